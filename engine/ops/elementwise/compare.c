/* SPDX-License-Identifier: MIT
 * Comparisons, logic and bits. None has a gradient. Kernels: kernels/elementwise.h. */
#include "engine/ops/op.h"
#include "kernels/elementwise.h"

#define ROW(NAME, CODE, NIN, A, B, INFER, FLAGS, DOC)                                                                                \
  PL_OP(NAME, .doc = DOC, .nin = NIN, .nout = 1, .args = {A, B}, .cls = PL_POINTWISE, .flags = PL_F_SCALAR | PL_F_NOGRAD_OK | FLAGS, \
        .promote = PL_PROMOTE_ALL, .infer = INFER, PL_ELEMENTWISE(PLK_EW_##CODE));
#define COMPARE(NAME, CODE, DOC)   ROW(NAME, CODE, 2, "x", "y", pl_infer_predicate, 0, DOC)
#define SYMMETRIC(NAME, CODE, DOC) ROW(NAME, CODE, 2, "x", "y", pl_infer_predicate, PL_F_COMMUTES, DOC)
#define ASK(NAME, CODE, DOC)       ROW(NAME, CODE, 1, "x", NULL, pl_infer_predicate, 0, DOC)

SYMMETRIC(eq, EQ, "x == y elementwise, as bool; broadcast. NaN equals nothing.")
SYMMETRIC(ne, NE, "x ~= y elementwise, as bool; broadcast.")
COMPARE(lt, LT, "x < y elementwise, as bool; broadcast.")
COMPARE(le, LE, "x <= y elementwise, as bool; broadcast.")
COMPARE(gt, GT, "x > y elementwise, as bool; broadcast.")
COMPARE(ge, GE, "x >= y elementwise, as bool; broadcast.")

SYMMETRIC(logical_and, LOGICAL_AND, "Whether both are nonzero, as bool; broadcast.")
SYMMETRIC(logical_or, LOGICAL_OR, "Whether at least one is nonzero, as bool; broadcast.")
SYMMETRIC(logical_xor, LOGICAL_XOR, "Whether exactly one is nonzero, as bool; broadcast.")
ASK(logical_not, LOGICAL_NOT, "Whether x is zero, as bool.")

ASK(isnan, ISNAN, "Whether x is NaN, as bool; false for integers.")
ASK(isinf, ISINF, "Whether x is inf or -inf, as bool; false for integers.")
ASK(isfinite, ISFINITE, "Whether x is neither infinite nor NaN, as bool; true for integers.")
ASK(signbit, SIGNBIT, "Whether the sign bit is set, as bool: true for negative numbers and -0.")

static PlStatus infer_bits(PlInfer *c) {
  if (pl_is_float(c->compute))
    PL_FAIL(PL_ERR_DTYPE, "%s: needs integers or bool, got %s%s%s; convert: x:to(\"i64\")", c->op->name, pl_desc_text(c->in[0]),
            c->nin > 1 ? " and " : "", c->nin > 1 ? pl_desc_text(c->in[1]) : "");
  return pl_infer_broadcast(c);
}
static PlStatus infer_shift(PlInfer *c) {
  if (c->compute == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "%s: bool is not for this; convert: x:to(\"i64\")", c->op->name);
  return infer_bits(c);
}
#define BITS(NAME, CODE, INFER, DOC)           ROW(NAME, CODE, 2, "x", "y", INFER, PL_F_INPLACE, DOC)
#define SYMMETRIC_BITS(NAME, CODE, INFER, DOC) ROW(NAME, CODE, 2, "x", "y", INFER, PL_F_INPLACE | PL_F_COMMUTES, DOC)
SYMMETRIC_BITS(bitwise_and, BITWISE_AND, infer_bits, "x & y of integers or bool; broadcast and promoted.")
SYMMETRIC_BITS(bitwise_or, BITWISE_OR, infer_bits, "x | y of integers or bool; broadcast and promoted.")
SYMMETRIC_BITS(bitwise_xor, BITWISE_XOR, infer_bits, "x ~ y of integers or bool; broadcast and promoted.")
BITS(bitwise_left_shift, BITWISE_LEFT_SHIFT, infer_shift, "x << y of integers; bits that leave the dtype are lost.")
BITS(bitwise_right_shift, BITWISE_RIGHT_SHIFT, infer_shift, "x >> y of integers; arithmetic for signed dtypes.")
SYMMETRIC_BITS(gcd, GCD, infer_shift, "The greatest common divisor of integers, at least 0; broadcast and promoted.")
SYMMETRIC_BITS(lcm, LCM, infer_shift,
               "The least common multiple of integers, at least 0; broadcast and promoted. It wraps around as "
               "products do.")
ROW(bitwise_not, BITWISE_NOT, 1, "x", NULL, infer_bits, PL_F_INPLACE, "All bits of integers flipped; not, of bool.")
