/* SPDX-License-Identifier: MIT
 * Every op by its name: pl_op_add is the descriptor, PL_OP_add its place in the table of all ops, PL_NOP their number.
 * Apart from op.h, so that a new op compiles the files anew that name ops, not those that know only what an op is. */
#ifndef PL_ENGINE_OPS_NAMES_H
#define PL_ENGINE_OPS_NAMES_H

#include "engine/ops/op.h"

#define OP(name) extern const PlOp pl_op_##name;
#include "engine/ops/ops.def"
#undef OP

typedef enum PlOpId {
#define OP(name) PL_OP_##name,
#include "engine/ops/ops.def"
#undef OP
  PL_NOP
} PlOpId;

#endif
