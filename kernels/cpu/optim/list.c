/* SPDX-License-Identifier: MIT
 * Lists of tensors as one long row (see kernels/optim.h), and tensors of any layout in pieces of it.
 *
 * All parameters are laid end to end and cut into blocks of PLK_LIST_BLOCK elements, so bits do not depend on threads. A parameter
 * whose states are in 8 bits is filled up to whole rows of codes there. */
#include "kernels/cpu/optim/list.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/rows.h"

_Static_assert(PLK_LIST_BLOCK % PLK_CODED_BLOCK == 0, "blocks end where rows of codes do");

PLK_ISA_DECLARE(const PlkOptimLoops, plk_optim);

/* ---- reading and writing any layout --------------------------------------------------------------- */

void plk_walk_start(PlkWalk *w, const PlArray *a, int64_t at) {
  w->off = 0;
  for (int d = a->ndim - 1; d >= 0; d--) {
    w->idx[d] = at % a->shape[d];
    at /= a->shape[d];
    w->off += w->idx[d] * a->strides[d];
  }
}

void plk_walk_next(PlkWalk *w, const PlArray *a) {
  for (int d = a->ndim - 1; d >= 0; d--) {
    w->off += a->strides[d];
    if (++w->idx[d] < a->shape[d]) return;
    w->off -= w->idx[d] * a->strides[d];
    w->idx[d] = 0;
  }
}

double plk_get_one(const PlArray *a, int64_t off) {
  switch (a->dtype) {
  case PL_F32: return (double)((const float *)a->data)[off];
  case PL_F64: return ((const double *)a->data)[off];
  case PL_F16: return (double)plk_f16_to_f32(((const uint16_t *)a->data)[off]);
  default: return (double)plk_bf16_to_f32(((const uint16_t *)a->data)[off]);
  }
}

void plk_put_one(const PlArray *a, int64_t off, double v) {
  switch (a->dtype) {
  case PL_F32: ((float *)a->data)[off] = (float)v; break;
  case PL_F64: ((double *)a->data)[off] = v; break;
  case PL_F16: ((uint16_t *)a->data)[off] = plk_f32_to_f16((float)v); break;
  default: ((uint16_t *)a->data)[off] = plk_f32_to_bf16((float)v); break;
  }
}

/* Elements from `at` on that lie at one distance from each other: n of them, at most `most`, from off on. */
typedef struct Run {
  int64_t off, stride, n;
} Run;
static Run run_at(const PlArray *a, int64_t at, int64_t most) {
  Run r = {.off = at, .stride = 1, .n = most};
  if (a->contiguous) return r;
  r.off = 0;
  for (int d = a->ndim - 1; d >= 0; d--) {
    const int64_t i = at % a->shape[d];
    at /= a->shape[d];
    r.off += i * a->strides[d];
    if (d < a->ndim - 1) continue;
    r.stride = a->strides[d];
    if (a->shape[d] - i < r.n) r.n = a->shape[d] - i;
  }
  return r;
}

/* The first of n elements to all of them. */
static void repeat(void *to, int64_t n, bool wide) {
  if (wide) {
    double *x = to;
    const double first = x[0];
    for (int64_t i = 0; i < n; i++) x[i] = first;
  } else {
    float *x = to;
    const float first = x[0];
    for (int64_t i = 0; i < n; i++) x[i] = first;
  }
}

void plk_list_load(const PlArray *a, int64_t at, int64_t n, bool wide, void *out) {
  const int64_t size = wide ? 8 : 4;
  for (int64_t i = 0; i < n;) {
    const Run r = run_at(a, at + i, n - i);
    char *to = (char *)out + i * size;
    if (r.stride == 1 && a->dtype == (wide ? PL_F64 : PL_F32)) {
      memcpy(to, (const char *)a->data + r.off * size, (size_t)(r.n * size));
    } else {
      plk_load(wide ? PLK_CF64 : PLK_CF32, to, r.n, a->data, a->dtype, r.off, r.stride, r.stride ? r.n : 1, 1);
      if (!r.stride) repeat(to, r.n, wide);
    }
    i += r.n;
  }
}

const void *plk_list_look(const PlArray *a, int64_t at, int64_t n, bool wide, void *room, PlkFilled *filled) {
  const Run r = run_at(a, at, n);
  if (r.n == n && r.stride == 1 && a->dtype == (wide ? PL_F64 : PL_F32)) return (const char *)a->data + r.off * (wide ? 8 : 4);
  const void *const one = r.n == n && r.stride == 0 ? (const char *)a->data + r.off * (int64_t)pl_dtype_size((PlDtype)a->dtype) : NULL;
  if (one && filled->element == one && filled->n >= n) return room;
  plk_list_load(a, at, n, wide, room);
  *filled = (PlkFilled){one, n};
  return room;
}

void plk_list_store(const PlArray *a, int64_t at, int64_t n, bool wide, const void *from) {
  const int64_t size = wide ? 8 : 4;
  for (int64_t i = 0; i < n;) {
    const Run r = run_at(a, at + i, n - i);
    plk_store(wide ? PLK_CF64 : PLK_CF32, (const char *)from + i * size, r.n, a->data, a->dtype, r.off, r.stride, r.n, 1);
    i += r.n;
  }
}

/* ---- the list as one long row ---------------------------------------------------------------------- */

PlStatus plk_list_init(PlkList *l, const PlkCall *call, int64_t ntensor, int64_t k, PlkStretch stretch, const void *opt) {
  l->call = call;
  l->loops = &PLK_ISA_PICK(plk_optim);
  l->k = k;
  l->ngroup = ntensor / k;
  l->stretch = stretch;
  l->opt = opt;
  l->partial = l->factor = NULL;
  l->looked = l->shares = false;
  l->ends = l->few;
  if (l->ngroup > (int64_t)(sizeof l->few / sizeof l->few[0])) {
    void *p;
    PL_TRY(plk_scratch((size_t)l->ngroup * sizeof(int64_t), &p));
    l->ends = p;
  }
  l->total = 0;
  bool coded = false;
  for (int64_t i = 0; i < l->ngroup * k; i++) coded = coded || (i % k >= 2 && plk_coded(call->in[i]));
  const int64_t fill = coded ? PLK_CODED_BLOCK - 1 : 0;
  for (int64_t g = 0; g < l->ngroup; g++) l->ends[g] = l->total += (plk_list_column(l, g, 0)->numel + fill) & ~fill;
  return PL_OK;
}

void plk_list_free(PlkList *l) {
  if (l->ends != l->few) plk_scratch_free(l->ends);
}

static PlStatus list_block(void *ctx, int64_t begin, int64_t end) {
  const PlkList *l = ctx;
  int64_t lo = 0, hi = l->ngroup - 1; /* first group that ends after `begin` */
  while (lo < hi) {
    int64_t mid = (lo + hi) / 2;
    if (l->ends[mid] > begin) hi = mid;
    else lo = mid + 1;
  }
  for (int64_t g = lo; begin < end; g++) {
    int64_t first = g ? l->ends[g - 1] : 0;
    while (begin < end && begin < l->ends[g]) { /* never across a block border: partial sums depend on it */
      int64_t stop = (begin / PLK_LIST_BLOCK + 1) * PLK_LIST_BLOCK;
      if (stop > end) stop = end;
      if (stop > l->ends[g]) stop = l->ends[g];
      const int64_t last = first + plk_list_column(l, g, 0)->numel; /* what follows fills up */
      l->stretch(l, g, begin - first, (stop < last ? stop : last) - begin, begin / PLK_LIST_BLOCK);
      begin = stop;
    }
  }
  return PL_OK;
}

PlStatus plk_list_run(PlkList *l) { return plk_parallel(l->total, PLK_LIST_BLOCK, list_block, l); }

static int by_place(const void *a, const void *b) {
  const PlkExtent *x = a, *y = b;
  return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Do two of the first columns, which are written, lie on the same bytes? Yes also where they only may, as two columns of one
 * matrix. */
static PlStatus list_shares(const PlkList *l, bool *yes) {
  void *room;
  *yes = false;
  if (l->total <= PLK_LIST_BLOCK || l->ngroup < 2) return PL_OK;
  PL_TRY(plk_scratch((size_t)l->ngroup * sizeof(PlkExtent), &room));
  PlkExtent *e = room;
  bool ascend = true;
  for (int64_t g = 0; g < l->ngroup; g++) {
    e[g] = plk_extent(plk_list_column(l, g, 0));
    ascend = ascend && (g == 0 || e[g].lo >= e[g - 1].lo);
  }
  if (!ascend) qsort(e, (size_t)l->ngroup, sizeof *e, by_place);
  const char *end = e[0].hi;
  for (int64_t g = 1; g < l->ngroup; g++) {
    *yes = *yes || (e[g].lo < end && e[g].lo < e[g].hi); /* none before it starts behind it */
    if (e[g].hi > end) end = e[g].hi;
  }
  plk_scratch_free(room);
  return PL_OK;
}

PlStatus plk_list_write(PlkList *l) {
  PL_TRY(plk_poll());
  if (!l->looked) PL_TRY(list_shares(l, &l->shares)); /* once: a second pass of a rule may not fail */
  l->looked = true;
  plk_interrupt_hold(1);
  const PlStatus s = l->shares ? list_block(l, 0, l->total) : plk_list_run(l);
  plk_interrupt_hold(-1);
  return s;
}
