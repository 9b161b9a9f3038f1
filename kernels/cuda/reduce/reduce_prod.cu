/* SPDX-License-Identifier: MIT
 * Gradients of prod: a thread for each row; the formulas are in kernels/cpu/reduce/reduce.c. */
#include "kernels/cuda/any_dtype.h"

struct ProdRows {
  int64_t outer, n, inner;
  int dtype, dy_dtype, v_dtype; /* of x and the result, dy, v */
};

/* l: the products before each element, here n values of each row in scratch. */
__global__ void prod_bwd_rows(ProdRows p, const void *x, const void *dy, void *dx, double *keep) {
  for (PLC_EACH(r, p.outer * p.inner)) {
    int64_t base = r / p.inner * p.n * p.inner + r % p.inner;
    double *l = keep + r * p.n, right = 1, all = dy ? plc_get_f(dy, p.dy_dtype, r) : 1;
    bool zero = false;
    for (int64_t j = 0; j < p.n; j++) {
      double v = plc_get_f(x, p.dtype, base + j * p.inner);
      l[j] = all;
      all *= v;
      zero |= v == 0;
    }
    if (!zero && isnan(all) && p.n > 1) {
      for (int64_t j = 0; j < p.n; j++) {
        int64_t at = base + j * p.inner;
        plc_put_any(dx, p.dtype, at, false, all / plc_get_f(x, p.dtype, at), 0);
      }
      continue;
    }
    for (int64_t j = p.n; j-- > 0;) {
      plc_put_any(dx, p.dtype, base + j * p.inner, false, l[j] * right, 0);
      right *= plc_get_f(x, p.dtype, base + j * p.inner);
    }
  }
}

/* The same of l and dl. */
__global__ void prod_bwd2_rows(ProdRows p, const void *x, const void *dy, const void *v, void *out, double *keep) {
  for (PLC_EACH(r, p.outer * p.inner)) {
    int64_t base = r / p.inner * p.n * p.inner + r % p.inner;
    double *l = keep + r * 2 * p.n, *dl = l + p.n, a = 1, da = 0, g = dy ? plc_get_f(dy, p.dy_dtype, r) : 1;
    for (int64_t j = 0; j < p.n; j++) {
      int64_t at = base + j * p.inner;
      double xj = plc_get_f(x, p.dtype, at), vj = plc_get_f(v, p.v_dtype, at);
      l[j] = a, dl[j] = da;
      da = da * xj + a * vj, a *= xj;
    }
    a = 1, da = 0;
    for (int64_t j = p.n; j-- > 0;) {
      int64_t at = base + j * p.inner;
      double xj = plc_get_f(x, p.dtype, at), vj = plc_get_f(v, p.v_dtype, at);
      plc_put_any(out, p.dtype, at, false, g * (dl[j] * a + l[j] * da), 0);
      da = da * xj + a * vj, a *= xj;
    }
  }
}

static ProdRows prod_rows(const PlkCall *c) {
  const PlArray *x = c->in[0];
  ProdRows p = {1, x->numel, 1, x->dtype, c->in[1] ? c->in[1]->dtype : x->dtype, c->nin > 2 ? c->in[2]->dtype : x->dtype};
  if (!pl_attr_has(c->attrs, 0) || x->ndim == 0) return p;
  int dim = (int)pl_attr_i(c->attrs, 0);
  p.n = x->shape[dim];
  for (int d = 0; d < x->ndim; d++) *(d < dim ? &p.outer : &p.inner) *= d == dim ? 1 : x->shape[d];
  return p;
}
static PlStatus prod_bwd(const PlkCall *c) {
  if (c->out[0]->numel == 0) return PL_OK;
  ProdRows p = prod_rows(c);
  void *keep;
  PL_TRY(plc_scratch((size_t)c->in[0]->numel * sizeof(double), &keep));
  PLC_LAUNCH(prod_bwd_rows, plc_grid(p.outer * p.inner, 1), PLC_BLOCK, 0, p, c->in[0]->data, c->in[1] ? c->in[1]->data : NULL,
             c->out[0]->data, (double *)keep);
  plc_scratch_free(keep);
  return PL_OK;
}
PLC_KERNEL(prod_bwd, prod_bwd)
static PlStatus prod_bwd2(const PlkCall *c) {
  if (c->out[0]->numel == 0) return PL_OK;
  ProdRows p = prod_rows(c);
  void *keep;
  PL_TRY(plc_scratch((size_t)c->in[0]->numel * 2 * sizeof(double), &keep));
  PLC_LAUNCH(prod_bwd2_rows, plc_grid(p.outer * p.inner, 1), PLC_BLOCK, 0, p, c->in[0]->data, c->in[1] ? c->in[1]->data : NULL,
             c->in[2]->data, c->out[0]->data, (double *)keep);
  plc_scratch_free(keep);
  return PL_OK;
}
PLC_KERNEL(prod_bwd2, prod_bwd2)
