/* SPDX-License-Identifier: MIT
 * Matrix products: shape rule, and the way from tensors of any rank to the kernels' form. No data moves
 * here unless leading dimensions cannot be seen as one. */
#include "engine/ops/linalg/matmul_operands.h"
#include "engine/device/dispatch.h"

#include <string.h>

#include "kernels/join.h"

PL_EITHER(copy)

/* ---- windows ------------------------------------------------------------------------------------------ */

void pl_window_done(PlWindow *w) {
  w->a.shape = w->shape;
  w->a.strides = w->strides;
  int64_t n = 1;
  bool dense = true;
  for (int d = w->a.ndim - 1; d >= 0; d--) {
    dense = dense && (w->shape[d] == 1 || w->strides[d] == n);
    n *= w->shape[d];
  }
  w->a.numel = n;
  w->a.contiguous = dense || n == 0;
}

void pl_window_of(PlWindow *w, const PlArray *src) {
  w->a = *src;
  memcpy(w->shape, src->shape, src->ndim * sizeof(int64_t));
  memcpy(w->strides, src->strides, src->ndim * sizeof(int64_t));
  pl_window_done(w);
}

void pl_window_insert(PlWindow *w, int d) {
  int n = w->a.ndim++;
  memmove(w->shape + d + 1, w->shape + d, (size_t)(n - d) * sizeof(int64_t));
  memmove(w->strides + d + 1, w->strides + d, (size_t)(n - d) * sizeof(int64_t));
  w->shape[d] = 1;
  w->strides[d] = d < n ? w->shape[d + 1] * w->strides[d + 1] : 1;
  pl_window_done(w);
}

bool pl_window_flatten(PlWindow *w, const PlArray *src, int keep) {
  int lead = src->ndim - keep;
  int64_t n = 1, stride = 0;
  bool any = false;
  for (int d = lead - 1; d >= 0; d--) {
    if (src->shape[d] == 1) continue;
    if (src->numel && any && src->strides[d] != n * stride) return false;
    if (!any) stride = src->strides[d];
    any = true;
    n *= src->shape[d];
  }
  w->a = *src;
  w->a.ndim = (uint8_t)(keep + 1);
  w->shape[0] = n;
  w->strides[0] = any ? stride : 0;
  memcpy(w->shape + 1, src->shape + lead, (size_t)keep * sizeof(int64_t));
  memcpy(w->strides + 1, src->strides + lead, (size_t)keep * sizeof(int64_t));
  if (!any) w->strides[0] = keep ? w->shape[1] * w->strides[1] : 1;
  pl_window_done(w);
  return true;
}

PlStatus pl_window_copy(PlWindow *w, const PlArray *src, void **scratch) {
  size_t size = pl_dtype_size((PlDtype)src->dtype);
  PL_TRY(pl_scratch_at(src->device, (size_t)(src->numel ? src->numel : 1) * size, scratch));
  pl_window_of(w, src);
  w->a.data = *scratch;
  int64_t n = 1;
  for (int d = src->ndim - 1; d >= 0; d--) {
    w->strides[d] = n;
    n *= src->shape[d];
  }
  pl_window_done(w);
  const PlArray *in[1] = {src};
  PlArray *out[1] = {&w->a};
  static const PlAttrs none;
  PlkCall k = {.name = "copy", .nin = 1, .nout = 1, .in = in, .out = out, .attrs = &none};
  PlStatus s = either_copy(&k);
  if (s == PL_OK) return PL_OK;
  pl_scratch_free_at(src->device, *scratch);
  *scratch = NULL;
  return s;
}

PlStatus pl_window_dense(PlWindow *w, const PlArray *src, int keep, void **scratch) {
  *scratch = NULL;
  if (pl_window_flatten(w, src, keep)) return PL_OK;
  PlWindow copy;
  PL_TRY(pl_window_copy(&copy, src, scratch));
  pl_window_flatten(w, &copy.a, keep);
  return PL_OK;
}

/* ---- shapes --------------------------------------------------------------------------------------------- */

static PlStatus inner_fail(const PlInfer *c, const PlArray *a, const PlArray *b, int64_t ka, int64_t kb) {
  const char *ta = pl_desc_text(a), *tb = pl_desc_text(b);
  int64_t tail = 1;
  int split = a->ndim; /* first dim of a tail of a that holds kb elements */
  while (split > 0 && tail < kb) tail *= a->shape[--split];
  if (split > 0 && split < a->ndim - 1 && tail == kb && kb > 0) {
    char fix[PL_MAX_DIM * 21];
    size_t at = 0;
    for (int d = 0; d < split && at < sizeof fix - 24; d++)
      at += (size_t)__builtin_snprintf(fix + at, sizeof fix - at, "%lld,", (long long)a->shape[d]);
    PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: inner sizes %lld and %lld differ; flatten first: x:view(%s-1)", c->op->name, ta, tb, (long long)ka,
            (long long)kb, fix);
  }
  if (b->ndim >= 2 && b->shape[b->ndim - 1] == ka)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: inner sizes %lld and %lld differ; transpose the second: y:transpose(-2,-1)", c->op->name, ta, tb,
            (long long)ka, (long long)kb);
  PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: inner sizes %lld and %lld differ", c->op->name, ta, tb, (long long)ka, (long long)kb);
}

PlStatus pl_infer_matmul(PlInfer *c, int ia, int ib, bool ta, bool tb) {
  const PlArray *a = c->in[ia], *b = c->in[ib];
  PL_TRY(pl_check_same_dtype(c, ia, ib));
  if (a->ndim == 0 || b->ndim == 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: both need at least one dim; use * for numbers", c->op->name, pl_desc_text(a), pl_desc_text(b));
  int na = a->ndim, nb = b->ndim;
  int64_t ka = na == 1 ? a->shape[0] : a->shape[na - 1 - ta];
  int64_t kb = nb == 1 ? b->shape[0] : b->shape[nb - 2 + tb];
  if (ka != kb) return inner_fail(c, a, b, ka, kb);
  PlDesc *d = &c->out[0];
  d->dtype = a->dtype;
  d->is_view = false;
  int ba = na > 2 ? na - 2 : 0, bb = nb > 2 ? nb - 2 : 0, nd = ba > bb ? ba : bb;
  for (int k = 0; k < nd; k++) {
    int i = k - (nd - ba), j = k - (nd - bb);
    int64_t x = i >= 0 ? a->shape[i] : 1, y = j >= 0 ? b->shape[j] : 1;
    if (x != y && x != 1 && y != 1)
      PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: batch sizes %lld and %lld do not broadcast", c->op->name, pl_desc_text(a), pl_desc_text(b),
              (long long)x, (long long)y);
    d->shape[k] = x == 1 ? y : x;
  }
  if (na > 1) d->shape[nd++] = a->shape[na - 2 + ta];
  if (nb > 1) d->shape[nd++] = b->shape[nb - 1 - tb];
  d->ndim = (uint8_t)nd;
  return PL_OK;
}

/* 2 M N K for every product of the batch. */
double pl_flops_matmul(const PlInfer *c) {
  double n = 2;
  for (int d = 0; d < c->out[0].ndim; d++) n *= (double)c->out[0].shape[d];
  const PlArray *a = c->in[0];
  return n * (double)(a->ndim ? a->shape[a->ndim - 1] : 1);
}

/* ---- running --------------------------------------------------------------------------------------------- */

/* A matrix out of a vector or a batch of matrices, expanded to the batch of nb dims. */
static void operand(PlWindow *w, const PlArray *src, bool trans, bool column, int nb, const int64_t *batch) {
  pl_window_of(w, src);
  if (w->a.ndim == 1) pl_window_insert(w, column ? 1 : 0);
  int n = w->a.ndim;
  if (trans && src->ndim > 1) {
    int64_t s = w->shape[n - 1], t = w->strides[n - 1];
    w->shape[n - 1] = w->shape[n - 2], w->strides[n - 1] = w->strides[n - 2];
    w->shape[n - 2] = s, w->strides[n - 2] = t;
  }
  int add = nb + 2 - n;
  if (add > 0) {
    memmove(w->shape + add, w->shape, (size_t)n * sizeof(int64_t));
    memmove(w->strides + add, w->strides, (size_t)n * sizeof(int64_t));
  }
  for (int k = 0; k < nb; k++) {
    if (k >= add && w->shape[k] == batch[k] && batch[k] != 1) continue;
    w->shape[k] = batch[k];
    w->strides[k] = 0;
  }
  w->a.ndim = (uint8_t)(nb + 2);
  pl_window_done(w);
}

PlStatus pl_run_matmul(const PlkCall *call, PlKernel kernel, bool ta, bool tb) {
  const PlArray *a = call->in[0], *b = call->in[1], *y = call->out[0];
  int nb = y->ndim - (a->ndim > 1) - (b->ndim > 1);
  PlWindow wa, wb, wy;
  operand(&wa, a, ta, false, nb, y->shape);
  operand(&wb, b, tb, true, nb, y->shape);
  pl_window_of(&wy, y);
  if (a->ndim == 1) pl_window_insert(&wy, nb);
  if (b->ndim == 1) pl_window_insert(&wy, nb + 1);
  const PlArray *in[2] = {&wa.a, &wb.a};
  PlArray *out[1] = {&wy.a};
  PlkCall k = *call;
  k.nin = 2;
  k.in = in;
  k.out = out;
  return kernel(&k);
}
