/* SPDX-License-Identifier: MIT
 * Comparisons, logic and bits. None has a gradient. Kernels: kernels/elementwise.h. */
#include "engine/ops/op.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

#define ROW(NAME, CODE, NIN, A, B, INFER, FLAGS, DOC, EXAMPLE) ROW_WRAPS(NAME, CODE, NIN, A, B, INFER, FLAGS, 0, DOC, EXAMPLE)
#define ROW_WRAPS(NAME, CODE, NIN, A, B, INFER, FLAGS, WRAPS, DOC, EXAMPLE)                                               \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .nin = NIN, .nout = 1, .args = {A, B}, .cls = PL_POINTWISE, .wraps = WRAPS, \
        .flags = PL_F_SCALAR | PL_F_NOGRAD_OK | FLAGS, .promote = PL_PROMOTE_ALL, .infer = INFER, PL_ELEMENTWISE(PLK_EW_##CODE));
#define COMPARE(NAME, CODE, DOC, EXAMPLE)   ROW_WRAPS(NAME, CODE, 2, "x", "y", pl_infer_predicate, 0, PL_WIDENS, DOC, EXAMPLE)
#define SYMMETRIC(NAME, CODE, DOC, EXAMPLE) ROW_WRAPS(NAME, CODE, 2, "x", "y", pl_infer_predicate, PL_F_COMMUTES, PL_WIDENS, DOC, EXAMPLE)
#define ASK(NAME, CODE, DOC, EXAMPLE)       ROW(NAME, CODE, 1, "x", NULL, pl_infer_predicate, 0, DOC, EXAMPLE)

SYMMETRIC(eq, EQ, "x == y elementwise, as bool; broadcast. NaN equals nothing.",
          "print(T.tensor { 1, 2 }:eq(2))  --> {false,  true}  -- bool[2] cpu")
SYMMETRIC(ne, NE, "x ~= y elementwise, as bool; broadcast.", "print(T.tensor { 1, 2 }:ne(2))  --> { true, false}  -- bool[2] cpu")
COMPARE(lt, LT, "x < y elementwise, as bool; broadcast.", "print(T.tensor { 1, 2 }:lt(2))  --> { true, false}  -- bool[2] cpu")
COMPARE(le, LE, "x <= y elementwise, as bool; broadcast.", "print(T.tensor { 1, 2 }:le(2))  --> {true, true}  -- bool[2] cpu")
COMPARE(gt, GT, "x > y elementwise, as bool; broadcast.", "print(T.tensor { 1, 2 }:gt(1))  --> {false,  true}  -- bool[2] cpu")
COMPARE(ge, GE, "x >= y elementwise, as bool; broadcast.", "print(T.tensor { 1, 2 }:ge(2))  --> {false,  true}  -- bool[2] cpu")

SYMMETRIC(logical_and, LOGICAL_AND, "Whether both are nonzero, as bool; broadcast.",
          "print(T.logical_and(T.tensor { 1, 0 }, T.tensor { 1, 1 }))  --> { true, false}  -- bool[2] cpu")
SYMMETRIC(logical_or, LOGICAL_OR, "Whether at least one is nonzero, as bool; broadcast.",
          "print(T.logical_or(T.tensor { 0, 0 }, T.tensor { 1, 0 }))  --> { true, false}  -- bool[2] cpu")
SYMMETRIC(logical_xor, LOGICAL_XOR, "Whether exactly one is nonzero, as bool; broadcast.",
          "print(T.logical_xor(T.tensor { 1, 0 }, T.tensor { 1, 1 }))  --> {false,  true}  -- bool[2] cpu")
ASK(logical_not, LOGICAL_NOT, "Whether x is zero, as bool.", "print(T.tensor { 1, 0 }:logical_not())  --> {false,  true}  -- bool[2] cpu")

ASK(isnan, ISNAN, "Whether x is NaN, as bool; false for integers.",
    "print(T.tensor { 1, 0 / 0 }:isnan())  --> {false,  true}  -- bool[2] cpu")
ASK(isinf, ISINF, "Whether x is inf or -inf, as bool; false for integers.",
    "print(T.tensor { 1, -math.huge }:isinf())  --> {false,  true}  -- bool[2] cpu")
ASK(isfinite, ISFINITE, "Whether x is neither infinite nor NaN, as bool; true for integers.",
    "print(T.tensor { 1, math.huge }:isfinite())  --> { true, false}  -- bool[2] cpu")
ASK(signbit, SIGNBIT, "Whether the sign bit is set, as bool: true for negative numbers and -0.",
    "print(T.tensor { -1, 1 }:signbit())  --> { true, false}  -- bool[2] cpu")

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
#define SHIFT(NAME, CODE, WRAPS, DOC, EXAMPLE)          ROW_WRAPS(NAME, CODE, 2, "x", "y", infer_shift, PL_F_INPLACE, WRAPS, DOC, EXAMPLE)
#define SYMMETRIC_BITS(NAME, CODE, INFER, DOC, EXAMPLE) ROW(NAME, CODE, 2, "x", "y", INFER, PL_F_INPLACE | PL_F_COMMUTES, DOC, EXAMPLE)
#define EACH_BIT(NAME, CODE, DOC, EXAMPLE)              ROW_WRAPS(NAME, CODE, 2, "x", "y", infer_bits, PL_F_INPLACE | PL_F_COMMUTES, 3, DOC, EXAMPLE)
EACH_BIT(bitwise_and, BITWISE_AND, "x & y of integers or bool; broadcast and promoted.",
         "print(T.arange(4) & 1)  --> {1, 0, 1, 0}  -- i64[4] cpu")
EACH_BIT(bitwise_or, BITWISE_OR, "x | y of integers or bool; broadcast and promoted.",
         "print(T.arange(3) | 4)  --> {5, 6, 7}  -- i64[3] cpu")
EACH_BIT(bitwise_xor, BITWISE_XOR, "x ~ y of integers or bool; broadcast and promoted.",
         "print(T.arange(3) ~ 1)  --> {0, 3, 2}  -- i64[3] cpu")
SHIFT(bitwise_left_shift, BITWISE_LEFT_SHIFT, 1, "x << y of integers; bits that leave the dtype are lost.",
      "print(T.arange(3) << 2)  --> { 4,  8, 12}  -- i64[3] cpu")
SHIFT(bitwise_right_shift, BITWISE_RIGHT_SHIFT, 0, "x >> y of integers; arithmetic for signed dtypes.",
      "print(T.tensor({ 8, 9 }, { dtype = \"i64\" }) >> 1)  --> {4, 4}  -- i64[2] cpu")
SYMMETRIC_BITS(gcd, GCD, infer_shift, "The greatest common divisor of integers, at least 0; broadcast and promoted.",
               "print(T.gcd(T.tensor({ 12, 18 }, { dtype = \"i64\" }), 8))  --> {4, 2}  -- i64[2] cpu")
SYMMETRIC_BITS(lcm, LCM, infer_shift,
               "The least common multiple of integers, at least 0; broadcast and promoted. It wraps around as "
               "products do.",
               "print(T.lcm(T.tensor({ 4, 6 }, { dtype = \"i64\" }), 10))  --> {20, 30}  -- i64[2] cpu")
ROW(bitwise_not, BITWISE_NOT, 1, "x", NULL, infer_bits, PL_F_INPLACE, "All bits of integers flipped; not, of bool.",
    "print(~T.tensor({ true, false }))  --> {false,  true}  -- bool[2] cpu")
