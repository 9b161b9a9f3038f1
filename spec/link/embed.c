/* SPDX-License-Identifier: MIT
 * The program of docs/tutorial/embedding.md: y = x·w, its gradient, and an error, through the C API alone.
 * spec/docs/embedding_spec.lua compares the two texts. */
#include <stdio.h>

#include "engine/perilune.h"

/* y = op(a, b) */
static PlStatus apply(const char *name, PlTensor *a, PlTensor *b, PlTensor **y) {
  PlTensor *in[2] = {a, b};
  return pl_apply(pl_op_find(name), in, b ? 2 : 1, NULL, y);
}

static PlStatus run(PlTensor *x, PlTensor *w) {
  PlTensor *y = NULL, *sum = NULL;
  PlStatus status = pl_requires_grad(w, true);
  if (status == PL_OK) status = apply("matmul", x, w, &y);
  if (status == PL_OK) status = apply("sum", y, NULL, &sum);
  if (status == PL_OK) {
    printf("sum %g\n", (double)*(const float *)pl_tensor_data(sum));
    status = pl_backward(&sum, NULL, 1, false, false);
  }
  if (status == PL_OK) {
    const float *g = pl_tensor_data(pl_grad(w)); /* borrowed: it belongs to w */
    printf("dw %g %g %g\n", (double)g[0], (double)g[1], (double)g[2]);
  }
  pl_tensor_release(sum);
  pl_tensor_release(y);
  return status;
}

int main(void) {
  static const float numbers[6] = {1, 2, 3, 4, 5, 6}, weights[3] = {1, 0, -1};
  PlTensor *x = NULL, *w = NULL, *wrong = NULL;
  PlStatus status = pl_tensor_from(&x, PL_F32, 2, (const int64_t[]){2, 3}, numbers);
  if (status == PL_OK) status = pl_tensor_from(&w, PL_F32, 2, (const int64_t[]){3, 1}, weights);
  if (status == PL_OK) status = run(x, w);
  if (status != PL_OK) fprintf(stderr, "%s\n", pl_message());
  if (apply("matmul", x, x, &wrong) != PL_OK) printf("%s\n", pl_message());
  pl_tensor_release(x);
  pl_tensor_release(w);
  return status != PL_OK;
}
