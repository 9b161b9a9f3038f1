/* SPDX-License-Identifier: MIT
 * What T.checkpoint needs: which tensors a stretch of ops reads from outside, and a rule over any number of inputs
 * (those of T.custom have at most MAX_CUSTOM) whose backward is a closure over lists. Not public. */
#include <stdlib.h>
#include <string.h>

#include "bindings/context.h"
#include "bindings/walk.h"
#include "engine/state.h"

/* ---- what newer nodes read from outside ------------------------------------------------------------------ */

typedef struct Found {
  PlTensor **t;
  int n, cap;
} Found;

static PlStatus found(void *ctx, PlTensor *t) {
  Found *f = ctx;
  for (int i = 0; i < f->n; i++)
    if (f->t[i] == t) return PL_OK;
  if (f->n == f->cap) {
    int cap = f->cap ? 2 * f->cap : 64;
    PlTensor **list = realloc(f->t, (size_t)cap * sizeof *list);
    if (!list) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
    f->t = list;
    f->cap = cap;
  }
  f->t[f->n++] = pl_retain(t);
  return PL_OK;
}

/* (light Found) → list of its tensors; under lua_pcall, so that the list is freed whatever Lua does */
static int push_found(lua_State *L) {
  const Found *f = lua_touserdata(L, 1);
  lua_createtable(L, f->n, 0);
  for (int i = 0; i < f->n; i++) {
    l_push_shared(L, f->t[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* core.captured(ys, since) → list of attached or leaf tensors that newer nodes read, true if they read others too */
static int t_captured(lua_State *L) {
  PlTensor **ys;
  lua_settop(L, 2);
  int n = l_tensor_list(L, 1, "checkpoint", "results", -1, false, &ys);
  int64_t since = l_check_int(L, 2, "checkpoint", "since");
  Found f = {NULL, 0, 0};
  bool inner;
  lua_pushcfunction(L, push_found);
  lua_pushlightuserdata(L, &f);
  PlStatus s = pl_grad_captured(ys, n, (uint64_t)since, found, &f, &inner);
  int rc = s == PL_OK ? lua_pcall(L, 1, 1, 0) : LUA_OK;
  for (int i = 0; i < f.n; i++) pl_tensor_release(f.t[i]);
  free(f.t);
  CALL(L, s);
  if (rc != LUA_OK) return lua_error(L);
  lua_pushboolean(L, inner);
  return 2;
}

/* ---- a rule over lists ------------------------------------------------------------------------------------ */

/* The rule's data, in one piece with the PlRule before it: where its context {backward, anchors} is found, and ndim,
 * dtype and sizes of every input. */
typedef struct ListRule {
  PlRule rule;
  Slots *slots;
  int slot;
  int64_t sizes[];
} ListRule;

typedef struct ListRun {
  PlNode *n;
  const ListRule *r;
  PlTensor *const *dy;
  const bool *want;
  PlTensor **dx;
  PlStatus status;
} ListRun;

static PlStatus read_gradients(lua_State *L, const ListRun *run) {
  const int64_t *sizes = run->r->sizes;
  for (uint32_t i = 0; i < run->n->nin; i++, sizes += 2 + sizes[0]) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    PlTensor *g = l_to_tensor(L, -1);
    lua_pop(L, 1);
    if (!g || !run->want[i]) continue;
    PlArray want = {.shape = sizes + 2, .ndim = (uint8_t)sizes[0], .dtype = (uint8_t)sizes[1]};
    if (!pl_shape_equal(&g->a, &want) || g->a.dtype != want.dtype)
      PL_FAIL(PL_ERR_SHAPE, "backward of %s: gradient %s for input %u, which is %s", run->n->name, pl_desc_text(&g->a), i + 1,
              pl_desc_text(&want));
    run->dx[i] = pl_retain(g);
  }
  return PL_OK;
}

static int backward_body(lua_State *L) {
  ListRun *run = lua_touserdata(L, 1);
  const ListRule *r = run->r;
  run->status = PL_OK;
  if (lua_topointer(L, LUA_REGISTRYINDEX) != r->slots->registry) {
    run->status = pl_fail(PL_ERR_STATE, "backward of %s: it belongs to another Lua state", run->n->name);
    return 0;
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, r->slots->table);
  if (lua_rawgeti(L, -1, r->slot) != LUA_TTABLE) {
    run->status = pl_fail(PL_ERR_STATE, "backward of %s: its function was collected; keep a tensor that depends on it",
                          run->n->name);
    return 0;
  }
  lua_rawgeti(L, -1, 1);
  lua_createtable(L, (int)run->n->nout, 0);
  for (uint32_t o = 0; o < run->n->nout; o++) {
    if (run->dy[o]) {
      Box *b = l_new_box(L);
      b->t = pl_retain(run->dy[o]);
      if (b->t->node) l_default_anchor(L, -1);
    } else
      lua_pushboolean(L, 0);
    lua_rawseti(L, -2, (lua_Integer)o + 1);
  }
  lua_call(L, 1, 1);
  if (lua_type(L, -1) == LUA_TTABLE) run->status = read_gradients(L, run);
  return 0;
}

static PlStatus list_bwd(void *ud, PlNode *n, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  lua_State *L = l_running;
  if (!L || !lua_checkstack(L, 12)) PL_FAIL(PL_ERR_STATE, "backward of %s: no room on the Lua stack", n->name);
  ListRun run = {n, ud, dy, want, dx, PL_OK};
  lua_pushcfunction(L, backward_body);
  lua_pushlightuserdata(L, &run);
  PlStatus s = lua_pcall(L, 1, 0, 0) == LUA_OK ? run.status : l_keep_error(L);
  for (uint32_t i = 0; s != PL_OK && i < n->nin; i++) {
    pl_tensor_release(dx[i]);
    dx[i] = NULL;
  }
  return s;
}

static void list_drop(void *ud) {
  ListRule *r = ud;
  l_slot_give(r->slots, r->slot);
  l_slots_release(r->slots);
}

typedef struct ListMaking {
  lua_State *L;
  Slots *slots;
  PlTensor *const *in;
  int nin, ctx, slot;
} ListMaking;

static int take_slot(lua_State *L) {
  ListMaking *m = lua_touserdata(L, 2);
  m->slot = l_slot_take(L, m->slots, 1);
  return 0;
}

/* Every key that records needs a place of its own; below the engine, so protected. */
static PlRule *list_make(void *p, PlNode *n) {
  ListMaking *m = p;
  size_t count = 0;
  (void)n;
  for (int i = 0; i < m->nin; i++) count += 2 + (size_t)m->in[i]->a.ndim;
  ListRule *r = malloc(sizeof *r + count * sizeof *r->sizes);
  if (!r) return NULL;
  lua_pushcfunction(m->L, take_slot);
  lua_pushvalue(m->L, m->ctx);
  lua_pushlightuserdata(m->L, m);
  if (lua_pcall(m->L, 2, 0, 0) != LUA_OK) {
    lua_pop(m->L, 1);
    free(r);
    return NULL;
  }
  *r = (ListRule){.rule = {.bwd = list_bwd, .drop = list_drop, .ud = r}, .slots = m->slots, .slot = m->slot};
  m->slots->refs++;
  int64_t *at = r->sizes;
  for (int i = 0; i < m->nin; i++) {
    const PlArray *a = &m->in[i]->a;
    *at++ = a->ndim;
    *at++ = a->dtype;
    for (int d = 0; d < a->ndim; d++) *at++ = a->shape[d];
  }
  return &r->rule;
}

/* core.record_rule(name, inputs, outputs, backward) → the outputs under fresh handles, tracked by every key that tracks
 * an input. backward(dys) gets a list with false where no gradient arrived and returns one beside the inputs. */
static int t_record_rule(lua_State *L) {
  PlTensor **in, **out;
  lua_settop(L, 4);
  const char *name = l_intern(L, luaL_checkstring(L, 1));
  int nin = l_tensor_list(L, 2, "record_rule", "inputs", -1, false, &in);
  int nout = l_tensor_list(L, 3, "record_rule", "outputs", -1, false, &out);
  luaL_checktype(L, 4, LUA_TFUNCTION);
  l_collect(L);
  lua_createtable(L, nin + 1, 0);
  int ctx = lua_gettop(L), kept = 1;
  lua_pushvalue(L, 4);
  lua_rawseti(L, ctx, 1);
  for (int i = 1; i <= nin; i++) { /* what the inputs' histories keep */
    lua_rawgeti(L, 2, i);
    if (lua_getiuservalue(L, -1, 1) == LUA_TNIL)
      lua_pop(L, 1);
    else
      lua_rawseti(L, ctx, ++kept);
    lua_pop(L, 1);
  }
  lua_createtable(L, nout, 0);
  int res = lua_gettop(L);
  PlTensor **fresh = lua_newuserdatauv(L, (size_t)(nout + 1) * sizeof *fresh, 0);
  for (int o = 0; o < nout; o++) {
    Box *b = l_new_box(L);
    CALL(L, pl_tensor_alias(&b->t, out[o]));
    fresh[o] = b->t;
    lua_rawseti(L, res, o + 1);
  }
  l_push_slots(L);
  ListMaking m = {.L = L, .slots = *(Slots **)lua_touserdata(L, -1), .in = in, .nin = nin, .ctx = ctx};
  CALL(L, pl_record_rule(in, nin, fresh, nout, NULL, name, list_make, &m));
  for (int o = 0; o < nout; o++) {
    if (!fresh[o]->node) continue;
    lua_rawgeti(L, res, o + 1);
    lua_pushvalue(L, ctx);
    lua_setiuservalue(L, -2, 1);
    lua_pop(L, 1);
  }
  lua_settop(L, res);
  return 1;
}

void l_recompute_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"captured", t_captured}, {"record_rule", t_record_rule}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
