/* SPDX-License-Identifier: MIT
 * T.override_gradient's hook into the op caller. */
#ifndef PL_BINDINGS_OPS_CALL_H
#define PL_BINDINGS_OPS_CALL_H

#include "bindings/core/lib.h"

/* l_op_call for unary operators, which Lua gives their operand twice. */
int l_op_unary(lua_State *L);
/* The operators with two operands: ops of exactly two tensors that draw and change nothing; ends with a NULL event. */
typedef struct BinaryMeta {
  const char *event;
  const PlOp *op;
  lua_CFunction f;
} BinaryMeta;
extern const BinaryMeta l_binary_meta[];

/* l_new_box for the hot path: the metatable is at `metatable`, an upvalue. */
static inline Box *l_new_result(lua_State *L, int metatable) {
  Box *b = lua_newuserdatauv(L, sizeof(Box), 0);
  b->t = NULL;
  b->magic = BOX_MAGIC;
  lua_pushvalue(L, metatable);
  lua_setmetatable(L, -2);
  l_note_box(L);
  return b;
}

/* If the running function is an op's: pushes the start of its message, the name under which the op was called, and
 * says how much of text that replaces: the op's name, that of an op it is made of, or nothing. */
bool l_push_op_name(lua_State *L, PlStatus s, const char *text, size_t *skip);

/* How many ops have a gradient rule of their own in Lua; the hot path looks only at this. */
extern _Thread_local int l_overridden_count;
int l_override_raw(lua_State *L); /* core.override_raw(op, rule or nil, call) → the rule before */
/* If op has such a rule and an input is tracked: calls it with the arguments 1 … top, leaves the results on the
 * stack above top, returns true. */
typedef enum PlOverrideCall { PL_OVERRIDE_NEW, PL_OVERRIDE_INPLACE, PL_OVERRIDE_OUT } PlOverrideCall;
bool l_override_call(lua_State *L, const PlOp *op, PlTensor *const *in, int nin, int top, PlOverrideCall how);

#endif
