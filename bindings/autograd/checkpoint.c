/* SPDX-License-Identifier: MIT
 * core.checkpoint: runs a function under a checkpoint (engine/grad/checkpoint.h). The function that runs it again is a kept
 * object (collector/kept.h) until the engine needs it no more. */
#include <stdlib.h>

#include "bindings/autograd/backward.h"
#include "bindings/collector/kept.h"
#include "bindings/core/lib.h"
#include "engine/call/call.h"
#include "engine/grad/checkpoint.h"

typedef struct Rerun {
  Kept *kept;
  int place;
  lua_State *L; /* in forward: who is asked what is to be kept */
  int keep;     /* what is asked, a reference of the registry */
} Rerun;

static void drop(void *ud) {
  Rerun *r = ud;
  l_kept_leave(r->kept, r->place);
  l_kept_release(r->kept);
  free(r);
}

typedef struct Running {
  const Rerun *r;
  PlTensor *const *args;
  int nargs;
} Running;

static int run_body(lua_State *L) {
  const Running *run = lua_touserdata(L, 1);
  l_kept_push(L, run->r->kept, run->r->place);
  if (!lua_isfunction(L, -1)) return l_error(L, "checkpoint: its function was collected as garbage; please report this");
  lua_createtable(L, run->nargs, 0);
  for (int i = 0; i < run->nargs; i++) {
    int first = 0;
    while (run->args[first] != run->args[i]) first++;
    if (first < i) lua_rawgeti(L, -1, first + 1); /* one object, as for the script */
    else l_new_box(L)->t = pl_retain(run->args[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_call(L, 1, 0);
  return 0;
}

static PlStatus run(void *ud, PlTensor *const *args, int nargs) {
  Running r = {ud, args, nargs};
  lua_State *L = l_running;
  if (!L || !lua_checkstack(L, 8)) PL_FAIL(PL_ERR_STATE, "checkpoint: no room on the Lua stack to run the function again");
  if (!l_kept_here(L, r.r->kept)) PL_FAIL(PL_ERR_STATE, "checkpoint: its function belongs to another Lua state");
  lua_pushcfunction(L, run_body);
  const int64_t before = pl_allocated_bytes();
  const bool whole = l_call_in_modes(L, &r) == LUA_OK;
  if (!whole && !pl_checkpoint_stopped()) return l_keep_error(L);
  if (!whole) lua_pop(L, 1);
  l_collect_dropped(L, before);
  if (whole) return PL_OK;
  PL_FAIL(PL_ERR_STATE, "checkpoint: ended early");
}

static void push_types(lua_State *L, const PlCkMade *made) {
  lua_createtable(L, made->op->nout, 0);
  lua_createtable(L, made->op->nout, 0);
  for (int o = 0; o < made->op->nout; o++) {
    const PlTensor *t = made->out[o];
    lua_pushstring(L, t ? pl_dtype_name((PlDtype)t->a.dtype) : "none");
    lua_rawseti(L, -2, o + 1);
    lua_createtable(L, t ? t->a.ndim : 0, 0);
    for (int d = 0; t && d < t->a.ndim; d++) {
      lua_pushinteger(L, t->a.shape[d]);
      lua_rawseti(L, -2, d + 1);
    }
    lua_rawseti(L, -3, o + 1);
  }
  lua_setfield(L, -3, "dtypes");
  lua_setfield(L, -2, "shapes");
}

/* (light PlCkMade, what is to be kept) → is this? A function is asked with the op's name and a table about it. */
static int ask(lua_State *L) {
  const PlCkMade *made = lua_touserdata(L, 1);
  if (lua_istable(L, 2)) {
    lua_getfield(L, 2, made->op->name);
    return 1;
  }
  PlArray *out[PL_MAX_OUT];
  lua_Integer bytes = 0;
  for (int o = 0; o < made->op->nout; o++) {
    out[o] = made->out[o] ? &made->out[o]->a : NULL;
    if (made->out[o]) bytes += (lua_Integer)made->out[o]->storage->nbytes;
  }
  lua_pushstring(L, made->op->name);
  lua_createtable(L, 0, 6);
  lua_pushstring(L, made->op->name);
  lua_setfield(L, -2, "op");
  lua_pushinteger(L, bytes);
  lua_setfield(L, -2, "bytes");
  lua_pushnumber(L, pl_flops_made(made->op, made->attrs, made->in, made->nin, out));
  lua_setfield(L, -2, "flops");
  lua_pushboolean(L, made->op->cls == PL_HEAVY);
  lua_setfield(L, -2, "heavy");
  push_types(L, made);
  lua_call(L, 2, 1);
  return 1;
}

static PlStatus keeps(void *ud, const PlCkMade *made, bool *yes) {
  const Rerun *r = ud;
  lua_State *L = r->L;
  if (!lua_checkstack(L, 12)) PL_FAIL(PL_ERR_STATE, "checkpoint: no room on the Lua stack to ask the policy");
  lua_pushcfunction(L, ask);
  lua_pushlightuserdata(L, (void *)(uintptr_t)made);
  lua_rawgeti(L, LUA_REGISTRYINDEX, r->keep);
  if (lua_pcall(L, 2, 1, 0) != LUA_OK) return l_keep_error(L);
  *yes = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return PL_OK;
}

/* core.checkpoint_keep(tensor): the running checkpoint keeps this value */
static int t_keep(lua_State *L) {
  CALL(L, pl_checkpoint_keep_value(l_check_tensor(L, 1)));
  return 0;
}

/* core.checkpoint(f, again, tensors, keep, names, …) → what f(…) returns. again(tensors) runs f anew, on tensors that stand for those;
 * it is kept for as long as a backward may need it. f cannot yield. keep: nil, a set of names of ops whose results are kept, or a
 * function that says so; names: core.checkpoint_keep may be called. */
static int t_checkpoint(lua_State *L) {
  PlTensor **args;
  const int given = lua_gettop(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  if (!lua_isnil(L, 4) && !lua_istable(L, 4)) luaL_checktype(L, 4, LUA_TFUNCTION);
  const int n = l_tensor_list(L, 3, "checkpoint", "arguments", -1, false, &args);
  l_collect(L);
  luaL_checkstack(L, given + 8, NULL);
  Kept *k = l_kept(L);
  lua_pushvalue(L, 2);
  const int place = l_kept_put(L, k);
  lua_pushvalue(L, 4);
  const int keep = luaL_ref(L, LUA_REGISTRYINDEX);
  Rerun *r = malloc(sizeof *r);
  if (!r) {
    luaL_unref(L, LUA_REGISTRYINDEX, keep);
    l_kept_leave(k, place);
    return l_error(L, "checkpoint: out of memory");
  }
  *r = (Rerun){.kept = k, .place = place, .L = L, .keep = keep};
  k->refs++;
  const PlRerun rerun = {
      .run = run, .drop = drop, .keeps = lua_isnil(L, 4) ? NULL : keeps, .names = lua_toboolean(L, 5) != 0, .ud = r, .kept = place};
  PlCheckpoint *c;
  const PlStatus begun = pl_checkpoint_begin(&c, &rerun, args, n);
  if (begun != PL_OK) luaL_unref(L, LUA_REGISTRYINDEX, keep);
  CALL(L, begun);
  const int at = lua_gettop(L);
  lua_pushvalue(L, 1);
  for (int i = 6; i <= given; i++) lua_pushvalue(L, i);
  const int64_t before = pl_allocated_bytes();
  const int rc = lua_pcall(L, given - 5, LUA_MULTRET, 0);
  pl_checkpoint_end(c);
  if (rc == LUA_OK) l_collect_dropped(L, before);
  luaL_unref(L, LUA_REGISTRYINDEX, keep);
  if (rc != LUA_OK) return lua_error(L);
  return lua_gettop(L) - at;
}

void l_checkpoint_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"checkpoint", t_checkpoint}, {"checkpoint_keep", t_keep}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
