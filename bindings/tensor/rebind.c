/* SPDX-License-Identifier: MIT
 * A tensor object of Lua that goes on with other memory: how modules convert their parameters in place, so that
 * whoever holds one (an optimizer, another module, the script) holds the converted one. */
#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/graph/ir/graph.h"

/* core.rebind(x, y): x's object stands for y's values from now on, in y's dtype and memory; y must be fresh and of x's
 * shape. Hooks, grad keys and the place in recorded histories stay x's; its .grad is left to the caller. Ops recorded
 * before keep what they read. */
static int rebind(lua_State *L) {
  PlTensor *from = l_check_tensor(L, 1), *to = l_check_tensor(L, 2);
  if (pl_state.trace || from->a.symbolic || to->a.symbolic)
    return l_error_as(L, PL_ERR_TRACE, "to: a network cannot be converted while a function is traced; convert it before");
  if ((from->flags | to->flags) & PL_T_BATCHED) return l_error(L, "to: a network cannot be converted inside vmap");
  if (from == to) return 0;
  if (to->node || to->more || (to->flags & PL_T_BOXED) || !pl_shape_equal(&to->a, &from->a))
    return l_error(L, "rebind: the second tensor must be fresh and of the first one's shape");
  CALL(L, pl_leaf_rehome(to, from));
  pl_state.rules++; /* traces hold the memory that they saw */
  l_box_moves(L, to);
  return 0;
}

void l_rebind_register(lua_State *L) {
  lua_pushcfunction(L, rebind);
  lua_setfield(L, -2, "rebind");
}
