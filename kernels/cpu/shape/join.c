/* SPDX-License-Identifier: MIT
 * Joins, repeats, flips, rolls and pads. Each output is a product of a few straight pieces per dimension, and
 * every combination of pieces is one strided copy; adjoints add the same pieces back. */
#include <string.h>

#include "kernels/join.h"

#include "kernels/cpu/shape/copy.h"
#include "kernels/cpu/shape/strided_copy.h"

static size_t esize_of(const PlArray *a) { return pl_dtype_size((PlDtype)a->dtype); }

PlStatus plk_cpu_cat(const PlkCall *call) {
  PlArray *y = call->out[0];
  int64_t at = 0, dim = pl_attr_i(call->attrs, 0);
  if (dim < 0) dim += y->ndim;
  for (int i = 0; i < call->nin; i++) {
    const PlArray *x = call->in[i];
    if (x->numel == 0) continue; /* also the empty 1-d tensor that joins with anything; nothing to count on */
    PlkNd w = {0};
    for (int d = 0; d < x->ndim; d++) plk_nd_dim(&w, x->shape[d], y->strides[d], x->strides[d]);
    PL_TRY(plk_nd_copy(plk_at(y->data, at * y->strides[dim], esize_of(y)), x->data, &w, esize_of(y)));
    at += x->shape[dim];
  }
  return PL_OK;
}

PlStatus plk_cpu_slices_bwd(const PlkCall *call) {
  PlArray *y = call->out[0];
  const int64_t dim = pl_attr_i(call->attrs, 0);
  int64_t at = 0;
  if (y->numel == 0) return PL_OK;
  PL_TRY(plk_nd_zero(y->data, (size_t)y->numel * esize_of(y)));
  for (int i = 0; i < call->nin; i++) {
    const PlArray *x = call->in[i];
    PlkNd w = {0};
    for (int d = 0; d < x->ndim; d++) plk_nd_dim(&w, x->shape[d], y->strides[d], x->strides[d]);
    if (x->numel) PL_TRY(plk_nd_add(plk_at(y->data, at * y->strides[dim], esize_of(y)), x->data, &w, (PlDtype)y->dtype));
    at += x->shape[dim];
  }
  return PL_OK;
}

PlStatus plk_cpu_stack(const PlkCall *call) {
  PlArray *y = call->out[0];
  const int dim = (int)pl_attr_i(call->attrs, 0);
  for (int i = 0; i < call->nin; i++) {
    const PlArray *x = call->in[i];
    PlkNd w = {0};
    for (int d = 0; d < x->ndim; d++) plk_nd_dim(&w, x->shape[d], y->strides[d + (d >= dim)], x->strides[d]);
    PL_TRY(plk_nd_copy(plk_at(y->data, i * y->strides[dim], esize_of(y)), x->data, &w, esize_of(y)));
  }
  return PL_OK;
}

/* ---- repeats ---------------------------------------------------------------------------------------- */

/* The walk between x [.., n, ..] and y [.., r·n, ..]: two dims a dim, stride 0 over the repeats in x. */
static void tile_walk(PlkNd *w, const PlAttrs *a, const PlArray *x, const PlArray *y) {
  const int64_t *reps = pl_attr_list(a, 0);
  int n = pl_attr_n(a, 0), lead = y->ndim - x->ndim, skip = y->ndim - n;
  w->n = 0;
  for (int d = 0; d < y->ndim; d++) {
    int64_t size = d < lead ? 1 : x->shape[d - lead], rep = d < skip ? 1 : reps[d - skip];
    plk_nd_dim(w, rep, y->strides[d] * size, 0);
    if (d >= lead) plk_nd_dim(w, size, y->strides[d], x->strides[d - lead]);
  }
}

static void exchange(PlkNd *w) {
  for (int d = 0; d < w->n; d++) {
    int64_t t = w->dst[d];
    w->dst[d] = w->src[d];
    w->src[d] = t;
  }
}

PlStatus plk_cpu_tile(const PlkCall *call) {
  PlkNd w;
  tile_walk(&w, call->attrs, call->in[0], call->out[0]);
  return plk_nd_copy(call->out[0]->data, call->in[0]->data, &w, esize_of(call->out[0]));
}

PlStatus plk_cpu_tile_bwd(const PlkCall *call) {
  PlArray *dx = call->out[0];
  PlkNd w;
  tile_walk(&w, call->attrs, dx, call->in[0]);
  exchange(&w);
  return plk_nd_zero_add(dx->data, dx->numel, call->in[0]->data, &w, (PlDtype)dx->dtype);
}

/* x and the contiguous y with every position along dim (none: of the flattened x) r times in a row. */
static void interleave_walk(PlkNd *w, const PlAttrs *a, const PlArray *x, const PlArray *y) {
  int64_t r = y->numel ? pl_attr_i(a, 0) : 0, strides[PL_MAX_DIM]; /* of nothing any number may be asked */
  w->n = 0;
  if (!pl_attr_has(a, 1) || x->ndim == 0) {
    plk_nd_strides(x->ndim, x->shape, strides);
    for (int d = 0; d < x->ndim; d++) plk_nd_dim(w, x->shape[d], strides[d] * r, x->strides[d]);
    plk_nd_dim(w, r, 1, 0);
    return;
  }
  int dim = (int)pl_attr_i(a, 1);
  for (int d = 0; d < x->ndim; d++) {
    plk_nd_dim(w, x->shape[d], y->strides[d] * (d == dim ? r : 1), x->strides[d]);
    if (d == dim) plk_nd_dim(w, r, y->strides[d], 0);
  }
}

PlStatus plk_cpu_repeat_interleave(const PlkCall *call) {
  PlkNd w;
  interleave_walk(&w, call->attrs, call->in[0], call->out[0]);
  return plk_nd_copy(call->out[0]->data, call->in[0]->data, &w, esize_of(call->out[0]));
}

PlStatus plk_cpu_repeat_interleave_bwd(const PlkCall *call) {
  PlArray *dx = call->out[0];
  PlkNd w;
  interleave_walk(&w, call->attrs, dx, call->in[0]);
  exchange(&w);
  return plk_nd_zero_add(dx->data, dx->numel, call->in[0]->data, &w, (PlDtype)dx->dtype);
}

/* Position i along dim counts[i] times. x and y are contiguous here: [outer, n, inner], [outer, sum, inner]. */
static PlStatus repeat_each(const PlkCall *call, bool backward) {
  PlArray *big = backward ? NULL : call->out[0];
  const PlArray *y = backward ? call->in[0] : big, *x = backward ? call->out[0] : call->in[0];
  const PlArray *counts = call->in[1];
  bool flat = !pl_attr_has(call->attrs, 0) || x->ndim == 0;
  int dim = flat ? 0 : (int)pl_attr_i(call->attrs, 0);
  int64_t n = flat ? x->numel : x->shape[dim], inner = 1, outer = 1, total = 0, at = 0;
  for (int d = 0; !flat && d < x->ndim; d++) *(d < dim ? &outer : d > dim ? &inner : &total) *= x->shape[d];
  total = flat ? y->numel : y->shape[dim];
  const size_t esize = esize_of(y);
  if (backward) PL_TRY(plk_nd_zero(x->data, (size_t)x->numel * esize));
  for (int64_t i = 0; i < n; i++) {
    int64_t r;
    const size_t cs = esize_of(counts);
    plk_nd_load_i64(&r, plk_cat(counts->data, counts->numel == 1 ? 0 : i, cs), (PlDtype)counts->dtype, 1, 1);
    if (r < 0 || r > total - at) /* counts are values: no infer rule of the adjoint has looked at them */
      PL_FAIL(PL_ERR_SHAPE, "%s: the counts do not add up to the %lld positions", call->name, (long long)total);
    char *px = plk_at(x->data, i * inner, esize), *py = plk_at(y->data, at * inner, esize);
    PlkNd w = {0};
    plk_nd_dim(&w, outer, total * inner, n * inner);
    plk_nd_dim(&w, r, inner, 0);
    plk_nd_dim(&w, inner, 1, 1);
    if (backward) exchange(&w);
    PL_TRY(backward ? plk_nd_add(px, py, &w, (PlDtype)y->dtype) : plk_nd_copy(py, px, &w, esize));
    at += r;
  }
  if (at != total) PL_FAIL(PL_ERR_SHAPE, "%s: the counts do not add up to the %lld positions", call->name, (long long)total);
  return PL_OK;
}

PlStatus plk_cpu_repeat_each(const PlkCall *call) { return repeat_each(call, false); }
PlStatus plk_cpu_repeat_each_bwd(const PlkCall *call) { return repeat_each(call, true); }

/* ---- pieces: flip, roll, pad --------------------------------------------------------------------------- */

PlStatus plk_cpu_flip(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  const size_t esize = esize_of(x);
  if (x->numel == 0) return PL_OK;
  PlkNd w;
  plk_nd_walk(&w, y, x);
  const int64_t *dims = pl_attr_list(call->attrs, 0);
  int64_t start = 0;
  for (int k = 0, n = x->ndim ? pl_attr_n(call->attrs, 0) : 0; k < n; k++) {
    int d = (int)dims[k];
    start += (x->shape[d] - 1) * x->strides[d];
    w.src[d] = -w.src[d];
  }
  return plk_nd_copy(y->data, plk_cat(x->data, start, esize), &w, esize);
}

/* One straight piece of a dimension: positions out … out+len-1 read src, src+step, … */
typedef struct Piece {
  int64_t out, len, src, step;
} Piece;

typedef struct Pieces {
  int ndim;
  int n[PL_MAX_DIM];
  Piece piece[PL_MAX_DIM][3];
} Pieces;

static void piece_add(Pieces *p, int d, int64_t out, int64_t len, int64_t src, int64_t step) {
  if (len > 0) p->piece[d][p->n[d]++] = (Piece){out, len, src, step};
}

/* Rows of the last dimension, where both are straight in it: all of a row's pieces at once, so that narrow borders cost
 * no walk of their own. from[d][o]: the place in small of position o of dimension d, or -1 where no piece is. */
typedef struct RowCopy {
  const Pieces *p;
  char *big;
  const char *small;
  const int64_t *bigs;
  int64_t *from[PL_MAX_DIM], size[PL_MAX_DIM];
  size_t esize;
  void (*run)(void *to, const void *from, size_t bytes);
} RowCopy;

#define STEPS(T)                                                                 \
  {                                                                              \
    const T *s = (const T *)(const void *)src;                                   \
    for (int64_t i = 0; i < q->len; i++) ((T *)(void *)dst)[i] = s[i * q->step]; \
  }
/* Most borders are one element wide. */
static inline void one_element(char *dst, const char *src, size_t esize) {
  if (esize == 4) memcpy(dst, src, 4);
  else if (esize == 8) memcpy(dst, src, 8);
  else if (esize == 2) memcpy(dst, src, 2);
  else *dst = *src;
}
static void copy_row(const RowCopy *c, char *big, const char *small) {
  const int last = c->p->ndim - 1;
  for (int k = 0; k < c->p->n[last]; k++) {
    const Piece *q = &c->p->piece[last][k];
    char *dst = big + q->out * (int64_t)c->esize;
    const char *src = small + q->src * (int64_t)c->esize;
    if (q->len == 1) one_element(dst, src, c->esize);
    else if (q->step == 1) c->run(dst, src, (size_t)q->len * c->esize);
    else if (c->esize == 4) STEPS(uint32_t)
    else if (c->esize == 8) STEPS(uint64_t)
    else if (c->esize == 2) STEPS(uint16_t)
    else STEPS(uint8_t)
  }
}
#undef STEPS

static PlStatus copy_rows(void *ctx, int64_t begin, int64_t end) {
  const RowCopy *c = ctx;
  const int outer = c->p->ndim - 1;
  int64_t at[PL_MAX_DIM];
  for (int64_t d = outer - 1, r = begin; d >= 0; d--) at[d] = r % c->size[d], r /= c->size[d];
  for (int64_t r = begin; r < end; r++) {
    int64_t b = 0, s = 0;
    bool there = true;
    for (int d = 0; d < outer; d++) {
      const int64_t from = c->from[d][at[d]];
      there = there && from >= 0;
      b += at[d] * c->bigs[d], s += from;
    }
    if (there) copy_row(c, c->big + b * (int64_t)c->esize, c->small + s * (int64_t)c->esize);
    for (int d = outer - 1; d >= 0 && ++at[d] == c->size[d]; d--) at[d] = 0;
  }
  return PL_OK;
}

static PlStatus row_copy(const Pieces *p, void *big, const int64_t *bigs, const void *small, const int64_t *smalls, size_t esize) {
  RowCopy c = {.p = p, .big = big, .small = small, .bigs = bigs, .esize = esize, .run = plk_copy_loops()->run};
  int64_t places = 0, rows = 1, wide = 0;
  for (int d = 0; d < p->ndim; d++) {
    for (int k = 0; k < p->n[d]; k++) c.size[d] = plk_max64(c.size[d], p->piece[d][k].out + p->piece[d][k].len);
    if (d < p->ndim - 1) places += c.size[d], rows *= c.size[d];
    else wide = c.size[d];
  }
  void *room;
  PL_TRY(plk_scratch((size_t)places * sizeof(int64_t), &room));
  int64_t *next = room;
  for (int d = 0; d < p->ndim - 1; next += c.size[d], d++) {
    c.from[d] = next;
    for (int64_t o = 0; o < c.size[d]; o++) next[o] = -1;
    for (int k = 0; k < p->n[d]; k++) {
      const Piece *q = &p->piece[d][k];
      for (int64_t i = 0; i < q->len; i++) next[q->out + i] = (q->src + i * q->step) * smalls[d];
    }
  }
  PlStatus s = plk_parallel(rows, PLK_GRAIN / (wide + 8) + 1, copy_rows, &c);
  plk_scratch_free(room);
  return s;
}

/* Visits every combination: big = small (copy), or small += big (adjoint). */
static PlStatus pieces_run(const Pieces *p, void *big, const int64_t *bigs, void *small, const int64_t *smalls, PlDtype dtype,
                           bool adjoint) {
  const size_t esize = pl_dtype_size(dtype);
  int at[PL_MAX_DIM] = {0};
  for (int d = 0; d < p->ndim; d++)
    if (p->n[d] == 0) return PL_OK;
  const int last = p->ndim - 1;
  bool straight = !adjoint && last > 0 && bigs[last] == 1 && smalls[last] == 1, several = false;
  for (int d = 0; d < last; d++) straight = straight && smalls[d] >= 0;
  for (int d = 0; d <= last; d++) several = several || p->n[d] > 1;
  if (straight && several) return row_copy(p, big, bigs, small, smalls, esize);
  for (;;) {
    PlkNd w = {0};
    int64_t b = 0, s = 0;
    for (int d = 0; d < p->ndim; d++) {
      const Piece *q = &p->piece[d][at[d]];
      b += q->out * bigs[d];
      s += q->src * smalls[d];
      plk_nd_dim(&w, q->len, bigs[d], smalls[d] * q->step);
    }
    if (adjoint) exchange(&w);
    PL_TRY(adjoint ? plk_nd_add(plk_at(small, s, esize), plk_at(big, b, esize), &w, dtype)
                   : plk_nd_copy(plk_at(big, b, esize), plk_at(small, s, esize), &w, esize));
    int d = p->ndim - 1;
    while (d >= 0 && ++at[d] == p->n[d]) at[d--] = 0;
    if (d < 0) return PL_OK;
  }
}

static void roll_pieces(Pieces *p, int d, int64_t n, int64_t shift) {
  int64_t k = n ? shift % n : 0;
  if (k < 0) k += n;
  piece_add(p, d, 0, k, n - k, 1);
  piece_add(p, d, k, n - k, 0, 1);
}

PlStatus plk_cpu_roll(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  const int64_t *shifts = pl_attr_list(call->attrs, 0), one = 1;
  Pieces p = {0};
  if (x->numel == 0) return PL_OK;
  if (!pl_attr_has(call->attrs, 1) || pl_attr_n(call->attrs, 1) == 0) {
    p.ndim = 1;
    roll_pieces(&p, 0, x->numel, shifts[0]);
    return pieces_run(&p, y->data, &one, x->data, &one, (PlDtype)x->dtype, false);
  }
  int64_t shift[PL_MAX_DIM] = {0};
  const int64_t *dims = pl_attr_list(call->attrs, 1);
  for (int k = 0; k < pl_attr_n(call->attrs, 1); k++) shift[dims[k]] += shifts[k] % x->shape[dims[k]];
  p.ndim = x->ndim;
  for (int d = 0; d < x->ndim; d++) roll_pieces(&p, d, x->shape[d], shift[d]);
  return pieces_run(&p, y->data, y->strides, x->data, x->strides, (PlDtype)x->dtype, false);
}

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };

/* Negative pads crop first; the borders are then made from what is left. Where that is nothing, replicate repeats the element at the
 * end that was not widened. */
static void pad_pieces(Pieces *p, const PlAttrs *a, int ndim, const int64_t *shape) {
  const int64_t *pads = pl_attr_list(a, 0), mode = pl_attr_i(a, 1);
  int npair = pl_attr_n(a, 0) / 2;
  p->ndim = ndim;
  for (int d = 0; d < ndim; d++) {
    int k = ndim - 1 - d;
    int64_t lo = k < npair ? pads[2 * k] : 0, hi = k < npair ? pads[2 * k + 1] : 0;
    int64_t first = plk_max64(-lo, 0), n = shape[d] - first - plk_max64(-hi, 0);
    if (mode == PAD_REPLICATE && n <= 0) {
      piece_add(p, d, 0, shape[d] + lo + hi, lo > 0 ? 0 : shape[d] - 1, 0);
      continue;
    }
    lo = plk_max64(lo, 0), hi = plk_max64(hi, 0);
    if (mode == PAD_REFLECT) piece_add(p, d, 0, lo, first + lo, -1);
    if (mode == PAD_REPLICATE) piece_add(p, d, 0, lo, first, 0);
    if (mode == PAD_CIRCULAR) piece_add(p, d, 0, lo, first + n - lo, 1);
    piece_add(p, d, lo, n, first, 1);
    if (mode == PAD_REFLECT) piece_add(p, d, lo + n, hi, first + n - 2, -1);
    if (mode == PAD_REPLICATE) piece_add(p, d, lo + n, hi, first + n - 1, 0);
    if (mode == PAD_CIRCULAR) piece_add(p, d, lo + n, hi, first, 1);
  }
}

PlStatus plk_cpu_pad(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  Pieces p = {0};
  if (pl_attr_i(call->attrs, 1) == PAD_CONSTANT) {
    uint64_t value = 0;
    double v = pl_attr_f(call->attrs, 2);
    plk_nd_store_f64(&value, (PlDtype)y->dtype, &v, 1, 1);
    PL_TRY(plk_nd_fill(y, &value));
  }
  pad_pieces(&p, call->attrs, x->ndim, x->shape);
  return pieces_run(&p, y->data, y->strides, x->data, x->strides, (PlDtype)x->dtype, false);
}

PlStatus plk_cpu_pad_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  Pieces p = {0};
  pad_pieces(&p, call->attrs, dx->ndim, dx->shape);
  PL_TRY(plk_nd_zero(dx->data, (size_t)dx->numel * esize_of(dx)));
  return pieces_run(&p, dy->data, dy->strides, dx->data, dx->strides, (PlDtype)dx->dtype, true);
}
