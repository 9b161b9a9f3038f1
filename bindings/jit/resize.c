/* SPDX-License-Identifier: MIT
 * Programs for other sizes (docs/design/symbolic-sizes.md): the calls that a trace noted are made again for the new ones, in C
 * alone, and what comes out is planned and run like any trace. */
#include <stdlib.h>
#include <string.h>

#include "bindings/jit/program.h"
#include "engine/call/thread_state.h"

/* The outputs are values of the same numbers, and gradients go to the same leaves. */
static bool same_outputs(const Program *p, const PlGVal *grads) {
  for (int32_t i = 0; i < p->f->nleaves; i++)
    if (grads[i] != (p->leaf_at[i] < 0 ? -1 : p->f->outputs[p->leaf_at[i]])) return false;
  return true;
}

/* What was captured is watched by the script's own tensors. The notes have other handles on the memory of some, which do not
 * hear that a gradient is wanted from now on. */
static void same_captured(Program *to, const Program *p) {
  for (int32_t i = 0; i < to->ncaptured; i++) {
    const PlTensor *is = to->real[i], *was = i < p->ncaptured && p->captured[i] == to->captured[i] ? p->real[i] : NULL;
    if (!was || was == is || was->storage != is->storage || was->a.data != is->a.data || !pl_shape_equal(&was->a, &is->a)) continue;
    pl_tensor_release(to->real[i]);
    to->real[i] = pl_retain(p->real[i]);
    to->tracked[i] = p->tracked[i];
  }
}

/* Takes g. */
static PlStatus fill(Program *to, const Program *p, PlGraph *g) {
  to->f = g;
  to->nargs = p->nargs;
  to->nuser = p->nuser;
  PL_TRY(l_program_spend_like(to, p));
  to->leaf_at = malloc((size_t)(g->nleaves + 1) * sizeof *to->leaf_at);
  if (!to->leaf_at) PL_FAIL(PL_ERR_OOM, "jit: out of memory");
  memcpy(to->leaf_at, p->leaf_at, (size_t)g->nleaves * sizeof *to->leaf_at);
  PL_TRY(pl_graph_set_outputs(g, p->f->noutputs, p->f->outputs));
  PL_TRY(l_program_settle(to, g));
  same_captured(to, p);
  return PL_OK;
}

/* ---- functions that are called again ------------------------------------------------------------------------------ */

typedef struct Again {
  lua_State *L;
  int f; /* stack index */
} Again;

/* A list of boxes on the tensors. */
static void push_tensors(lua_State *L, int n, PlTensor *const *t) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    Box *b = l_new_box(L);
    b->t = t[i] ? pl_retain(t[i]) : NULL;
    lua_rawseti(L, -2, i + 1);
  }
}

/* f(number + 1, {tensors}, how many are expected) → {tensors} */
static int protected_again(lua_State *L) {
  const int32_t number = (int32_t)lua_tointeger(L, 2);
  const int nin = (int)lua_tointeger(L, 3), nout = (int)lua_tointeger(L, 5);
  PlTensor *const *in = lua_touserdata(L, 4);
  lua_settop(L, 1);
  lua_pushinteger(L, number + 1);
  push_tensors(L, nin, in);
  lua_pushinteger(L, nout);
  lua_call(L, 3, 1);
  luaL_checktype(L, 1, LUA_TTABLE);
  return 1;
}

static PlStatus again(void *ud, int32_t number, int nin, PlTensor *const *in, int nout, PlTensor **out) {
  const Again *a = ud;
  lua_State *L = a->L;
  const int top = lua_gettop(L);
  if (!lua_checkstack(L, 10)) PL_FAIL(PL_ERR_OOM, "jit: out of memory");
  lua_pushcfunction(L, protected_again);
  lua_pushvalue(L, a->f);
  lua_pushinteger(L, number);
  lua_pushinteger(L, nin);
  lua_pushlightuserdata(L, (void *)(uintptr_t)in);
  lua_pushinteger(L, nout);
  plk_interrupt_hold(1);
  const int status = lua_pcall(L, 5, 1, 0);
  plk_interrupt_hold(-1);
  PlStatus s = PL_OK;
  if (status != LUA_OK) s = pl_fail(PL_ERR_UNSUPPORTED, "%s", lua_isstring(L, -1) ? lua_tostring(L, -1) : "a function failed");
  for (int i = 0; i < nout && s == PL_OK; i++) {
    lua_rawgeti(L, top + 1, i + 1);
    PlTensor *t = l_to_tensor(L, -1);
    out[i] = t ? pl_retain(t) : NULL;
    if (!t) s = pl_fail(PL_ERR_UNSUPPORTED, "a function gives something else");
    lua_pop(L, 1);
  }
  if (s != PL_OK) pl_release_all(out, nout);
  lua_settop(L, top);
  return s;
}

static const char calling_meta[] = "perilune.calling";

/* jit_again_begin() → what jit_again_end takes, if a function that begins now is to be noted as a whole; else nil */
static int jit_again_begin(lua_State *L) {
  PlCalling k;
  if (!pl_state.trace || !pl_state.trace->calls || pl_state.trace->calls->depth > 0 || pl_state.trace->calls->refused) return 0;
  PlCalling *c = lua_newuserdatauv(L, sizeof *c, 0);
  luaL_setmetatable(L, calling_meta);
  if (!pl_calls_again_begin(pl_state.trace, &k)) return 0;
  *c = k;
  return 1;
}

static PlTensor **tensors_at(lua_State *L, int at, int *n) {
  luaL_checktype(L, at, LUA_TTABLE);
  *n = (int)lua_rawlen(L, at);
  PlTensor **t = lua_newuserdatauv(L, (size_t)(*n + 1) * sizeof *t, 0);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, at, i + 1);
    t[i] = l_to_tensor(L, -1);
    lua_pop(L, 1);
  }
  return t;
}

/* jit_again_end(what begin gave, whether it returned, {tensors in}, {tensors out}) → its number, or nil: nothing is noted any more */
static int jit_again_end(lua_State *L) {
  PlCalling *k = luaL_checkudata(L, 1, calling_meta);
  int nin, nout;
  PlTensor **in = tensors_at(L, 3, &nin), **out = tensors_at(L, 4, &nout);
  if (!k->f || k->f != pl_state.trace) return 0;
  const PlCalling was = *k;
  k->f = NULL;
  const int32_t number = pl_calls_again_end(&was, lua_toboolean(L, 2), nin, in, nout, out);
  if (number < 0) return 0;
  lua_pushinteger(L, number + 1);
  return 1;
}

/* ---- programs ------------------------------------------------------------------------------------------------------- */

/* jit_replay(program, {tensors}, again or nil, strict) → a program for tensors of these shapes, not compiled yet, and its graph; or nil and why there is
 * none. again(k, {tensors}) calls the k-th function that was noted again */
static int jit_replay(lua_State *L) {
  const Program *p = l_check_program(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 4);
  if (lua_rawlen(L, 2) != (size_t)p->nargs) return l_error(L, "jit_replay: %d tensors expected", (int)p->nargs);
  PlTensor **in = lua_newuserdatauv(L, (size_t)(p->nargs + 1) * sizeof *in, 0);
  for (int32_t i = 0; i < p->nargs; i++) {
    lua_rawgeti(L, 2, i + 1);
    in[i] = l_check_tensor(L, -1);
    lua_pop(L, 1);
  }
  PlGVal *grads = lua_newuserdatauv(L, (size_t)(p->f->nleaves + 1) * sizeof *grads, 0);
  Program *to = l_new_program(L);
  GraphBox *b = l_new_graph(L);
  PlGraph *g;
  char why[PL_WHY];
  Again by_lua = {.L = L, .f = 3};
  const PlAgain how = {.call = again, .ud = &by_lua};
  CALL(L, pl_graph_replay(&g, p->f, in, lua_isfunction(L, 3) ? &how : NULL, lua_toboolean(L, 4), grads, why));
  if (g && !same_outputs(p, grads)) {
    pl_graph_release(g);
    g = NULL;
    strcpy(why, "its gradients are others");
  }
  if (!g) {
    lua_pushnil(L);
    lua_pushstring(L, why);
    return 2;
  }
  CALL(L, fill(to, p, g));
  b->f = pl_graph_retain(g);
  return 2;
}

/* jit_fixed(program) → why its trace says nothing about other sizes; nil: it may */
static int jit_fixed(lua_State *L) {
  const PlCalls *c = l_check_program(L, 1)->f->calls;
  lua_pushstring(L, c ? c->refused : "it was not noted");
  return 1;
}

void l_program_resize_register(lua_State *L) {
  lua_pushcfunction(L, jit_replay);
  lua_setfield(L, -2, "jit_replay");
  lua_pushcfunction(L, jit_fixed);
  lua_setfield(L, -2, "jit_fixed");
  lua_pushcfunction(L, jit_again_begin);
  lua_setfield(L, -2, "jit_again_begin");
  lua_pushcfunction(L, jit_again_end);
  lua_setfield(L, -2, "jit_again_end");
  luaL_newmetatable(L, calling_meta);
  lua_pop(L, 1);
}
