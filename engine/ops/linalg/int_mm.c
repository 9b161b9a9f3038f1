/* SPDX-License-Identifier: MIT
 * Products of 8-bit integer matrices with 32-bit sums: what quantized layers are made of. */
#include "engine/ops/linalg/matmul_operands.h"
#include "engine/ops/op.h"
#include "kernels/gemm.h"

static PlStatus int_mm_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *y = c->in[1];
  for (int i = 0; i < 2; i++) {
    PL_TRY(pl_check_ndim(c, i, 2, 2));
    PL_TRY(pl_check_dtype(c, i, PL_I8));
  }
  if (x->shape[1] != y->shape[0])
    PL_FAIL(PL_ERR_SHAPE, "int_mm: %s x %s: columns of the first must be rows of the second", pl_desc_text(x), pl_desc_text(y));
  const int64_t shape[2] = {x->shape[0], y->shape[1]};
  pl_desc_set(&c->out[0], PL_I32, 2, shape);
  return PL_OK;
}

PL_OP(int_mm,
      .doc = "The product of two matrices of i8, x[M,K] and y[K,N], as i32; sums of over 131072 terms may wrap. matmul of i8 gives i8.",
      .example = "local x = T.tensor({ { 100, 100 } }, { dtype = \"i8\" })\n"
                 "print(T.int_mm(x, x:t()))  --> {{20000}}  -- i32[1,1] cpu",
      .formula = "z[i,j] = sum over k of x[i,k] y[k,j]", .nin = 2, .nout = 1, .args = {"x", "y"}, .cls = PL_HEAVY, .flags = PL_F_NOGRAD_OK,
      .infer = int_mm_infer, .flops = pl_flops_matmul, PL_KERNEL(int_mm));
