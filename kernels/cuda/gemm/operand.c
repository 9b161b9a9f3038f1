/* SPDX-License-Identifier: MIT
 * From strided arrays to batches of matrices: see operand.h. */
#include "kernels/cuda/gemm/operand.h"

#include <string.h>

static int64_t at_least_1(int64_t n) { return n > 1 ? n : 1; }

static bool as_stored(const PlArray *a, PlcOperand *o) {
  const int nd = a->ndim;
  const int64_t r = a->shape[nd - 2], c = a->shape[nd - 1], s0 = a->strides[nd - 2], s1 = a->strides[nd - 1];
  o->trans = false;
  if ((c <= 1 || s1 == 1) && (r <= 1 || s0 >= at_least_1(c))) {
    o->ld = r <= 1 ? at_least_1(c) : s0;
    return true;
  }
  o->trans = true;
  o->ld = c <= 1 ? at_least_1(r) : s1;
  return (r <= 1 || s0 == 1) && (c <= 1 || s1 >= at_least_1(r));
}

PlStatus plc_operand(const PlArray *a, PlcOperand *o) {
  const int nb = a->ndim - 2;
  *o = (PlcOperand){.data = a->data};
  for (int i = 0; i < nb; i++) o->step[i] = a->shape[i] == 1 ? 0 : a->strides[i];
  if (a->numel == 0 || as_stored(a, o)) return PL_OK;
  int64_t shape[PL_MAX_DIM], from[PL_MAX_DIM], dense[PL_MAX_DIM], numel = 1;
  for (int i = a->ndim - 1; i >= 0; i--) {
    const bool repeated = i < nb && o->step[i] == 0;
    shape[i] = repeated ? 1 : a->shape[i];
    from[i] = a->strides[i];
    dense[i] = numel;
    if (i < nb) o->step[i] = repeated ? 0 : numel;
    numel *= shape[i];
  }
  PL_TRY(plc_scratch((size_t)numel * pl_dtype_size((PlDtype)a->dtype), &o->scratch));
  PlArray src = *a, dst = *a;
  src.shape = dst.shape = shape;
  src.strides = from;
  src.contiguous = 0;
  dst.strides = dense;
  dst.data = o->scratch;
  dst.contiguous = 1;
  src.numel = dst.numel = numel;
  static const PlAttrs none;
  const PlArray *in[1] = {&src};
  PlArray *out[1] = {&dst};
  const PlkCall copy = {.name = "copy", .nin = 1, .nout = 1, .in = in, .out = out, .attrs = &none};
  PlStatus s = plc_run(&plc_kernel_copy, &copy);
  if (s != PL_OK) {
    plc_scratch_free(o->scratch);
    o->scratch = NULL;
    return s;
  }
  o->data = o->scratch;
  o->trans = false;
  o->ld = at_least_1(a->shape[nb + 1]);
  return PL_OK;
}

/* Dims that both walk in one step each become one: what is left is a stack of `batch` and dims to loop over. */
typedef struct Walk {
  int n;
  int64_t size[PL_MAX_DIM], sa[PL_MAX_DIM], sb[PL_MAX_DIM], sc[PL_MAX_DIM];
} Walk;

static void walk_of(Walk *w, const PlcOperand *a, const PlcOperand *b, int nbatch, const int64_t *size, int64_t each) {
  w->n = 0;
  int64_t sc = each;
  for (int i = nbatch - 1; i >= 0; i--) {
    const int64_t step = sc;
    sc *= size[i];
    if (size[i] == 1) continue;
    const int l = w->n - 1;
    if (l >= 0 && a->step[i] == w->sa[l] * w->size[l] && b->step[i] == w->sb[l] * w->size[l]) {
      w->size[l] *= size[i];
      continue;
    }
    w->size[w->n] = size[i];
    w->sa[w->n] = a->step[i];
    w->sb[w->n] = b->step[i];
    w->sc[w->n++] = step;
  }
}

/* One product with more rows where b serves all batches and the rows of a follow each other. */
static void rows_together(PlcGemm *g, Walk *w) {
  if (g->ta || w->n != 1 || w->sb[0] != 0 || w->sa[0] != g->m * g->lda) return;
  g->m *= w->size[0];
  w->n = 0;
}

PlStatus plc_gemm_batched(PlcGemm *g, const PlcOperand *a, const PlcOperand *b, int nbatch, const int64_t *size) {
  Walk w;
  const size_t item = pl_dtype_size(g->dtype), out = pl_dtype_size(g->result);
  g->lda = a->ld, g->ldb = b->ld, g->ldc = at_least_1(g->n);
  g->ta = g->ta != a->trans, g->tb = g->tb != b->trans;
  walk_of(&w, a, b, nbatch, size, g->m * g->n);
  rows_together(g, &w);
  g->batch = w.n > 0 ? w.size[0] : 1;
  g->sa = w.n > 0 ? w.sa[0] : 0, g->sb = w.n > 0 ? w.sb[0] : 0, g->sc = w.n > 0 ? w.sc[0] : 0;
  int64_t outer = 1;
  for (int d = 1; d < w.n; d++) outer *= w.size[d];
  char *c = g->c;
  for (int64_t i = 0; i < outer; i++) {
    int64_t rest = i, at_a = 0, at_b = 0, at_c = 0;
    for (int d = 1; d < w.n; d++) {
      const int64_t k = rest % w.size[d];
      rest /= w.size[d];
      at_a += k * w.sa[d], at_b += k * w.sb[d], at_c += k * w.sc[d];
    }
    g->a = (const char *)a->data + at_a * (int64_t)item;
    g->b = (const char *)b->data + at_b * (int64_t)item;
    g->c = c + at_c * (int64_t)out;
    PL_TRY(plc_gemm(g));
  }
  return PL_OK;
}
