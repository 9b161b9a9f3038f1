/* SPDX-License-Identifier: MIT
 * matmul, linear, addmm, int_mm (kernels/gemm.h) through plc_gemm: an operand with unit stride in either of its last two dims
 * is used in place, any other is copied dense first. */
#include "kernels/cuda/gemm/operand.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

static PlStatus product(PlcGemm *g, const PlArray *a, const PlArray *b, PlArray *y) {
  PlcOperand oa, ob;
  if (y->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "matmul: bool tensors have no product");
  g->dtype = (PlDtype)a->dtype;
  g->result = (PlDtype)y->dtype;
  g->c = y->data;
  PL_TRY(plc_operand(a, &oa));
  PlStatus s = plc_operand(b, &ob);
  if (s == PL_OK) {
    s = plc_gemm_batched(g, &oa, &ob, a->ndim - 2, a->shape);
    plc_scratch_free(ob.scratch);
  }
  plc_scratch_free(oa.scratch);
  return s;
}

/* in a[…,M,K], b[…,K,N]; out c[…,M,N] */
static PlStatus matmul(const PlkCall *call) {
  const PlArray *a = call->in[0], *b = call->in[1];
  PlcGemm g = {.m = a->shape[a->ndim - 2], .k = a->shape[a->ndim - 1], .n = b->shape[b->ndim - 1], .alpha = 1};
  return product(&g, a, b, call->out[0]);
}

/* in a[M,K], b[K,N] of i8; out c[M,N] of i32 */
static PlStatus int_mm(const PlkCall *call) {
  PlcGemm g = {.m = call->in[0]->shape[0], .k = call->in[0]->shape[1], .n = call->in[1]->shape[1], .alpha = 1};
  return product(&g, call->in[0], call->in[1], call->out[0]);
}

/* y = call's elementwise op over x and w, any shapes that broadcast. */
static PlStatus combine(const char *name, int code, const PlArray *x, const PlArray *w, PlArray *y) {
  static const PlAttrs none;
  const PlArray *in[2] = {x, w};
  PlArray *out[1] = {y};
  const PlkCall k = {.name = name, .code = code, .nin = w ? 2 : 1, .nout = 1, .in = in, .out = out, .attrs = &none};
  return plc_run(&plc_kernel_elementwise, &k);
}

/* in x[M,K], w[N,K], optional bias[N]; out y = x wᵀ + bias. attrs: 0 activation (1 relu) */
static PlStatus linear(const PlkCall *call) {
  const PlArray *x = call->in[0], *w = call->in[1], *bias = call->nin > 2 ? call->in[2] : NULL;
  const bool relu = call->attrs && pl_attr_has(call->attrs, 0) && pl_attr_i(call->attrs, 0) == 1;
  PlcGemm g = {.m = x->shape[0], .k = x->shape[1], .n = w->shape[0], .alpha = 1, .tb = true};
  if (bias) {
    g.epilogue = relu ? PLC_EPI_BIAS_RELU : PLC_EPI_BIAS;
    g.bias = bias->data;
  }
  PL_TRY(product(&g, x, w, call->out[0]));
  return relu && !bias ? combine("relu", PLK_EW_RELU, call->out[0], NULL, call->out[0]) : PL_OK;
}

static double scalar(const PlAttrs *a, int k) {
  if (!a || !pl_attr_has(a, k)) return 1;
  return (a->isint >> k) & 1 ? (double)a->v[k].i : a->v[k].f;
}

/* in c broadcast to […,M,N], a[…,M,K], b[…,K,N]; out beta c + alpha a b. attrs: 0 beta, 1 alpha. c is read if beta is not 0. */
static PlStatus addmm(const PlkCall *call) {
  const PlArray *c = call->in[0], *a = call->in[1], *b = call->in[2];
  PlArray *y = call->out[0];
  const int nd = a->ndim;
  PlcGemm g = {
      .m = a->shape[nd - 2], .k = a->shape[nd - 1], .n = b->shape[nd - 1], .alpha = scalar(call->attrs, 1), .beta = scalar(call->attrs, 0)};
  /* one row of dense values is a bias of the product's own */
  const bool row = nd == 2 && c->ndim > 0 && c->shape[c->ndim - 1] == g.n && c->numel == g.n && (g.n == 1 || c->strides[c->ndim - 1] == 1);
  const bool there = c->data == y->data && c->contiguous && c->numel == y->numel; /* y itself */
  if (g.beta == 1 && row && !there && pl_is_float((PlDtype)y->dtype)) {
    g.beta = 0;
    g.epilogue = PLC_EPI_BIAS;
    g.bias = c->data;
  } else if (g.beta != 0 && y->numel > 0 && !there) { /* fills y, which is then added to */
    int64_t strides[PL_MAX_DIM];
    for (int d = 0; d < nd; d++) {
      const int at = d - (nd - c->ndim);
      strides[d] = at < 0 || c->shape[at] == 1 ? 0 : c->strides[at];
    }
    PlArray wide = *c;
    wide.ndim = y->ndim, wide.shape = y->shape, wide.strides = strides, wide.numel = y->numel, wide.contiguous = 0;
    static const PlAttrs none;
    const PlArray *in[1] = {&wide};
    PlArray *out[1] = {y};
    const PlkCall copy = {.name = "copy", .nin = 1, .nout = 1, .in = in, .out = out, .attrs = &none};
    PL_TRY(plc_run(&plc_kernel_copy, &copy));
  }
  return product(&g, a, b, y);
}

PLC_KERNEL(matmul, matmul)
PLC_KERNEL(int_mm, int_mm)
PLC_KERNEL(linear, linear)
PLC_KERNEL(addmm, addmm)
