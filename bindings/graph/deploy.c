/* SPDX-License-Identifier: MIT
 * Saved graphs as programs without Lua (engine/deploy): for `perilune build`. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/graph/graph.h"
#include "engine/deploy/program.h"
#include "engine/deploy/saved_graph.h"
#include "engine/io/file.h"

/* What is made of a file, and goes whatever happens. */
typedef struct Made {
  PlSavedGraph base, saved; /* as it was saved; at the sizes that are wanted */
  const char **inputs;
  PlPlan *plan;
  PlProgram *program;
} Made;

/* A size that is wanted: its name, and the number. */
typedef struct Want {
  const char *name;
  int64_t value;
  bool used;
} Want;

enum { MOST_WANTS = 4 * PL_MOST_FREE_SIZES };

static PlStatus at_sizes(Made *m, Want *want, int n) {
  int64_t value[PL_MOST_FREE_SIZES];
  for (int32_t k = 0; k < m->base.nsizes; k++) {
    const PlFreeSize *s = &m->base.sizes[k];
    Want *w = NULL;
    for (int i = 0; i < n; i++)
      if (strcmp(want[i].name, s->name) == 0) w = &want[i];
    if (!w) PL_FAIL(PL_ERR_UNSUPPORTED, "the graph leaves '%s' free, and a program has fixed sizes: give --size %s=N", s->name, s->name);
    if (w->value < s->least || w->value > s->most)
      PL_FAIL(PL_ERR_UNSUPPORTED, "--size %s=%lld: the graph was saved for %lld to %lld", s->name, (long long)w->value, (long long)s->least,
              (long long)s->most);
    w->used = true;
    value[k] = w->value;
  }
  for (int i = 0; i < n; i++)
    if (!want[i].used) PL_FAIL(PL_ERR_UNSUPPORTED, "--size %s: the graph leaves no size of that name free", want[i].name);
  return pl_saved_graph_at(&m->saved, &m->base, value, PL_CPU);
}

static PlStatus make(Made *m, const char *path, Want *want, int n, bool alone) {
  PL_TRY(pl_saved_graph_read(&m->base, path, PL_CPU));
  PL_TRY(at_sizes(m, want, n));
  PlGraph *f = m->saved.graph;
  f->alone = alone;
  m->inputs = calloc((size_t)f->ninputs + 1, sizeof *m->inputs);
  if (!m->inputs) PL_FAIL(PL_ERR_OOM, "build: out of memory");
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_INPUT) m->inputs[f->vals[v].slot] = f->vals[v].name;
  PL_TRY(pl_graph_compile(&m->plan, f));
  return pl_program_new(&m->program, m->plan, m->inputs, m->saved.names);
}

static void end(Made *m) {
  pl_program_free(m->program);
  pl_plan_release(m->plan);
  free(m->inputs);
  if (m->saved.graph) pl_saved_graph_free(&m->saved);
  if (m->base.graph) pl_saved_graph_free(&m->base);
}

static PlStatus emit(const Made *m, const char *prefix, const char *source, const char *weights) {
  FILE *to = fopen(source, "w"), *bytes = to ? fopen(weights, "wb") : NULL;
  PlStatus s = bytes ? pl_program_emit(m->program, prefix, to, bytes) : pl_file_fail("cannot write", to ? weights : source, errno);
  if (to && fclose(to) != 0 && s == PL_OK) s = pl_file_fail("cannot write", source, errno);
  if (bytes && fclose(bytes) != 0 && s == PL_OK) s = pl_file_fail("cannot write", weights, errno);
  return s;
}

/* A port as {name= dtype= shape= bytes=}; what it holds is copied, as the program goes. */
static void push_ports(lua_State *L, const PlkPort *p, int32_t n) {
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    lua_createtable(L, 0, 4);
    lua_pushstring(L, p[i].name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, pl_dtype_name((PlDtype)p[i].dtype));
    lua_setfield(L, -2, "dtype");
    lua_pushinteger(L, (lua_Integer)p[i].bytes);
    lua_setfield(L, -2, "bytes");
    lua_createtable(L, p[i].ndim, 0);
    for (int d = 0; d < p[i].ndim; d++) {
      lua_pushinteger(L, (lua_Integer)p[i].shape[d]);
      lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, i + 1);
  }
}

static int tell(lua_State *L) {
  const Made *m = lua_touserdata(L, 1);
  const PlkProgram *p = pl_program_of(m->program);
  lua_createtable(L, 0, 3);
  push_ports(L, p->in, p->nin);
  lua_setfield(L, -2, "inputs");
  push_ports(L, p->out, p->nout);
  lua_setfield(L, -2, "outputs");
  lua_pushinteger(L, (lua_Integer)p->arena);
  lua_setfield(L, -2, "arena");
  return 1;
}

/* deploy_program(path[, prefix, source path, weights path[, {size = number}[, alone]]]) → {inputs= outputs= arena=}; or nil, message, "io",
 * "format" or "unsupported". The saved graph at path as a program; written as C source and weights if their paths are given. alone: it
 * will run where no library is. */
static int deploy_program(lua_State *L) {
  const char *path = luaL_checkstring(L, 1), *prefix = luaL_optstring(L, 2, NULL);
  const char *source = prefix ? luaL_checkstring(L, 3) : NULL, *weights = prefix ? luaL_checkstring(L, 4) : NULL;
  Made m = {.plan = NULL};
  Want want[MOST_WANTS];
  int n = 0;
  if (lua_istable(L, 5))
    for (lua_pushnil(L); lua_next(L, 5); lua_pop(L, 1)) {
      if (n == MOST_WANTS) return luaL_error(L, "build: more than %d sizes", MOST_WANTS);
      want[n++] = (Want){lua_tostring(L, -2), (int64_t)luaL_checkinteger(L, -1), false};
    }
  PlStatus s = make(&m, path, want, n, lua_toboolean(L, 6));
  if (s == PL_OK && prefix) s = emit(&m, prefix, source, weights);
  if (s != PL_OK) {
    end(&m);
    if (s == PL_ERR_INTERRUPT) return l_fail(L, s);
    lua_pushnil(L);
    lua_pushstring(L, pl_message());
    lua_pushstring(L, s == PL_ERR_IO ? "io" : s == PL_ERR_FORMAT ? "format" : "unsupported");
    return 3;
  }
  lua_pushcfunction(L, tell);
  lua_pushlightuserdata(L, &m);
  const int status = lua_pcall(L, 1, 1, 0);
  end(&m);
  return status == LUA_OK ? 1 : lua_error(L);
}

void l_graph_deploy_register(lua_State *L) {
  lua_pushcfunction(L, deploy_program);
  lua_setfield(L, -2, "deploy_program");
}
