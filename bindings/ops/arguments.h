/* SPDX-License-Identifier: MIT
 * One op call as read from the Lua stack: bindings/ops/arguments.c fills it, bindings/ops/call.c runs it. */
#ifndef PL_BINDINGS_OPS_ARGUMENTS_H
#define PL_BINDINGS_OPS_ARGUMENTS_H

#include "bindings/core/lib.h"

/* What a call looks like once parsed. Numbers given for tensors sit in boxes on the stack, so nothing is lost
 * when a later argument raises. */
typedef struct Parsed {
  int nin;
  PlTensor **in, *few[PL_MAX_IN];
  bool boolean;            /* some operand was given as true or false */
  int first_box, last_box; /* stack range of the operands, for anchors */
  PlTensor *out;           /* out= */
  int dim_at;              /* stack index of attribute 0 given before the other tensors; 0: not so */
  PlAttrs attrs;
} Parsed;

/* Operands from stack index 1 on; returns the index of the first argument behind them. Raises. */
int l_read_operands(lua_State *L, const PlOp *op, Parsed *p);
/* Attributes and options from `at` to `top`. Raises. */
int l_read_attr_args(lua_State *L, const PlOp *op, Parsed *p, int at, int top);

#endif
