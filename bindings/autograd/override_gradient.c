/* SPDX-License-Identifier: MIT
 * T.override_gradient: which ops have a Lua rule instead of their own, and calls that go through it. */
#include "bindings/core/lib.h"
#include "bindings/ops/call.h"
#include "engine/call/thread_state.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/graph.h"
#include "engine/vmap/vmap.h"

_Thread_local int l_overridden_count;
static const char overrides_key = 0; /* op name → rule table */

/* The gradient pass of T.graph knows built-in gradients only: an op whose gradient was replaced is refused there. */
static void refuse_in_graph(lua_State *L, const PlOp *op, PlTensor *const *in, int nin) {
  bool graph = false;
  for (int i = 0; i < nin && !graph; i++) graph = in[i] && pl_behind(in[i])->a.symbolic && !pl_sym_graph(pl_behind(in[i]))->record;
  if (!graph || lua_rawgetp(L, LUA_REGISTRYINDEX, &overrides_key) != LUA_TTABLE) {
    if (graph) lua_pop(L, 1);
    return;
  }
  lua_getfield(L, -1, op->name);
  if (!lua_isnil(L, -1))
    l_error(L,
            "%s: its gradient was replaced by T.override_gradient, which the gradient pass of T.graph would not see; "
            "restore it, or trace the function with T.jit",
            op->name);
  lua_pop(L, 2);
}

bool l_override_call(lua_State *L, const PlOp *op, PlTensor *const *in, int nin, int top, PlOverrideCall how) {
  bool tracked = false;
  refuse_in_graph(L, op, in, nin);
  CALL(L, pl_history_current(in, nin));
  for (int i = 0; i < nin && !tracked; i++) tracked = in[i] && (in[i]->node || in[i]->more) && pl_tracked(in[i]);
  if (!tracked || lua_rawgetp(L, LUA_REGISTRYINDEX, &overrides_key) != LUA_TTABLE) {
    if (tracked) lua_pop(L, 1);
    return false;
  }
  lua_getfield(L, -1, op->name);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 2);
    return false;
  }
  bool writes = how != PL_OVERRIDE_NEW;
  lua_getfield(L, -1, writes ? "write" : "call");
  lua_insert(L, top + 1);
  lua_settop(L, top + 1);
  if (writes) lua_pushboolean(L, how == PL_OVERRIDE_INPLACE);
  for (int i = 1; i <= top; i++) lua_pushvalue(L, i);
  lua_call(L, top + writes, LUA_MULTRET);
  return true;
}

/* T.override_gradient(op, rule): rule(ctx, g…) with ctx.inputs and ctx.outputs; nil restores the built-in one.
 * Returns the rule that was in force, nil for the built-in. */
int l_override_raw(lua_State *L) {
  pl_state.rules++;
  if (lua_type(L, 1) != LUA_TSTRING || !pl_op_find(lua_tostring(L, 1)))
    return l_error(L, "override_gradient: no op named %s", lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : l_typename(L, 1));
  if (pl_op_find(lua_tostring(L, 1))->flags & PL_F_MUTATES)
    return l_error(L, "override_gradient: %s changes its first operand; only gradients of new results can be replaced", lua_tostring(L, 1));
  lua_settop(L, 4); /* 3: the call that T.custom made of it, from Lua; 4: the same for op_ and out= */
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &overrides_key) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &overrides_key);
  }
  lua_pushvalue(L, 1);
  bool had = lua_rawget(L, 5) == LUA_TTABLE;
  if (had) lua_getfield(L, -1, "rule");
  int old = lua_gettop(L);
  lua_pushvalue(L, 1);
  if (lua_isnil(L, 2)) lua_pushnil(L);
  else {
    lua_createtable(L, 0, 3);
    lua_pushvalue(L, 2);
    lua_setfield(L, -2, "rule");
    lua_pushvalue(L, 3);
    lua_setfield(L, -2, "call");
    lua_pushvalue(L, 4);
    lua_setfield(L, -2, "write");
  }
  l_overridden_count += !lua_isnil(L, 2) - had;
  lua_rawset(L, 5);
  lua_settop(L, old);
  return 1;
}
