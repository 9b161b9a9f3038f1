/* SPDX-License-Identifier: MIT
 * core.checkpoint: runs a function under a checkpoint (engine/grad/checkpoint.h). The function that runs it again is a kept
 * object (kept.h) until the engine needs it no more. */
#include <stdlib.h>

#include "bindings/kept.h"
#include "bindings/lib.h"
#include "bindings/walk.h"
#include "engine/grad/checkpoint.h"

typedef struct Rerun {
  Kept *kept;
  int place;
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
    Box *b = l_new_box(L);
    b->t = pl_retain(run->args[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_call(L, 1, 0);
  return 0;
}

static PlStatus run(void *ud, PlTensor *const *args, int nargs) {
  Running r = {ud, args, nargs};
  lua_State *L = l_running;
  if (!L || !lua_checkstack(L, 8)) PL_FAIL(PL_ERR_STATE, "checkpoint: no room on the Lua stack to run the function again");
  if (!l_kept_here(L, r.r->kept))
    PL_FAIL(PL_ERR_STATE, "checkpoint: its function belongs to another Lua state");
  lua_pushcfunction(L, run_body);
  lua_pushlightuserdata(L, &r);
  if (lua_pcall(L, 1, 0, 0) == LUA_OK) return PL_OK;
  if (!pl_checkpoint_stopped()) return l_keep_error(L);
  lua_pop(L, 1);
  PL_FAIL(PL_ERR_STATE, "checkpoint: ended early");
}

/* core.checkpoint(f, again, tensors, …) → what f(…) returns. again(tensors) runs f anew, on tensors that stand for those;
 * it is kept for as long as a backward may need it. f cannot yield. */
static int t_checkpoint(lua_State *L) {
  PlTensor **args;
  const int given = lua_gettop(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  const int n = l_tensor_list(L, 3, "checkpoint", "arguments", -1, false, &args);
  l_collect(L);
  luaL_checkstack(L, given + 8, NULL);
  Kept *k = l_kept(L);
  lua_pushvalue(L, 2);
  const int place = l_kept_put(L, k);
  Rerun *r = malloc(sizeof *r);
  if (!r) {
    l_kept_leave(k, place);
    return l_error(L, "checkpoint: out of memory");
  }
  *r = (Rerun){.kept = k, .place = place};
  k->refs++;
  const PlRerun rerun = {.run = run, .drop = drop, .ud = r, .kept = place};
  PlCheckpoint *c;
  CALL(L, pl_checkpoint_begin(&c, &rerun, args, n));
  const int at = lua_gettop(L);
  lua_pushvalue(L, 1);
  for (int i = 4; i <= given; i++) lua_pushvalue(L, i);
  const int rc = lua_pcall(L, given - 3, LUA_MULTRET, 0);
  pl_checkpoint_end(c);
  if (rc != LUA_OK) return lua_error(L);
  return lua_gettop(L) - at;
}

void l_checkpoint_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"checkpoint", t_checkpoint}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
