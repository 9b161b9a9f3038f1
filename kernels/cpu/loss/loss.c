/* SPDX-License-Identifier: MIT
 * Pointwise losses: broadcast the inputs tile by tile, compute in double, store or add up. Sums go over
 * fixed blocks, in order. */
#include "kernels/loss.h"

#include <math.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/rows.h"

PLK_ISA_DECLARE(const PlkLossLoops, plk_loss_table);

enum { TILE = 256, BLOCK = 8192, MAX_IN = 4 };

typedef struct Loss {
  const PlkCall *c;
  int nin, ndim;
  int64_t shape[PL_MAX_DIM], numel;
  int64_t stride[MAX_IN][PL_MAX_DIM]; /* of the broadcast shape */
  bool linear[MAX_IN];                /* has the full shape */
  bool low;                           /* no input is f64 */
  double param;
  double *part; /* one sum a block; NULL: store */
  double *dot;  /* the same for tangents */
} Loss;

/* The shape that all inputs broadcast to (the shape rule has checked that they do). */
static void broadcast(Loss *l) {
  for (int i = 0; i < l->nin; i++)
    if (l->c->in[i] && l->c->in[i]->ndim > l->ndim) l->ndim = l->c->in[i]->ndim;
  l->numel = 1;
  for (int d = 0; d < l->ndim; d++) {
    l->shape[d] = 1;
    for (int i = 0; i < l->nin; i++) {
      const PlArray *a = l->c->in[i];
      int k = a ? d - (l->ndim - a->ndim) : -1;
      if (k >= 0 && a->shape[k] != 1) l->shape[d] = a->shape[k];
    }
    l->numel *= l->shape[d];
  }
  for (int i = 0; i < l->nin; i++) {
    const PlArray *a = l->c->in[i];
    if (!a) continue;
    int64_t step = 1;
    for (int k = a->ndim; k-- > 0; step *= a->shape[k]) l->stride[i][k + l->ndim - a->ndim] = a->shape[k] == 1 ? 0 : step;
    l->linear[i] = a->numel == l->numel;
  }
}

static void load(const Loss *l, int i, int64_t at, int64_t n, double *to) {
  const PlArray *a = l->c->in[i];
  if (l->linear[i] && a->dtype == PL_F32) {
    char *const ptr[2] = {(char *)to, (char *)a->data + (size_t)at * sizeof(float)};
    static const int64_t ones[2] = {1, 1};
    plk_isa_tables()->cast[PL_F32][PL_F64](ptr, ones, n, NULL);
    return;
  }
  if (l->linear[i]) {
    plk_load(PLK_CF64, to, n, a->data, a->dtype, at, 1, n, 1);
    return;
  }
  int64_t idx[PL_MAX_DIM], from = 0;
  for (int d = l->ndim; d-- > 0; at /= l->shape[d]) idx[d] = at % l->shape[d], from += idx[d] * l->stride[i][d];
  for (int64_t k = 0; k < n;) {
    int64_t run = l->ndim ? l->shape[l->ndim - 1] - idx[l->ndim - 1] : 1, s = l->ndim ? l->stride[i][l->ndim - 1] : 0;
    if (run > n - k) run = n - k;
    plk_load(PLK_CF64, to + k, s ? run : 1, a->data, a->dtype, from, 1, s ? run : 1, 1);
    for (int64_t j = 1; s == 0 && j < run; j++) to[k + j] = to[k];
    k += run;
    if (k == n) break;
    from -= idx[l->ndim - 1] * s;
    idx[l->ndim - 1] = 0;
    for (int d = l->ndim - 2; d >= 0; d--) {
      from += l->stride[i][d];
      if (++idx[d] < l->shape[d]) break;
      from -= idx[d] * l->stride[i][d];
      idx[d] = 0;
    }
  }
}

/* Is an element outside [0, 1], where w, if any, is not 0? NaN is not: it shows in the result. The extremes, which are found many at a
 * time, tell of nearly all tiles that none is. */
static bool outside(const double *v, const double *w, int64_t n) {
  const PlkReduceLoops *loops = plk_reduce_loops();
  if (n > 0 && loops->min_f64(v, n) >= 0 && loops->max_f64(v, n) <= 1) return false;
  int bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= ((v[i] < 0) | (v[i] > 1)) & (!w || w[i] != 0);
  return bad != 0;
}

static double first_outside(const double *v, const double *w, int64_t n) {
  int64_t i = 0;
  while (i < n - 1 && !((v[i] < 0 || v[i] > 1) && !(w && w[i] == 0))) i++;
  return v[i];
}

/* Probabilities of binary cross entropy. A reduced loss with logits takes other targets only where their weight is 0: elsewhere it
 * has no least value, and classes counted from 1 would train without a word. Unreduced, the caller may still mask them. */
static PlStatus bce_check(const Loss *l, const double *x, const double *t, const double *w, int64_t n) {
  const bool logits = l->c->code == PLK_L_BCE_LOGITS;
  if (!logits && outside(x, NULL, n))
    PL_FAIL(PL_ERR_ARG, "%s: x holds %g, but probabilities are between 0 and 1; apply sigmoid first", l->c->name,
            first_outside(x, NULL, n));
  if (logits && !l->part) return PL_OK;
  if (!logits) w = NULL;
  if (outside(t, w, n))
    PL_FAIL(PL_ERR_ARG, "%s: target holds %g, but targets are probabilities, between 0 and 1 (classes 1 and 2 are target - 1)%s",
            l->c->name, first_outside(t, w, n), logits ? "; weight = 0 or reduction = \"none\" leaves elements out" : "");
  return PL_OK;
}

static PlStatus compute(const Loss *l, int64_t at, int64_t n, double *y) {
  _Alignas(64) double x[TILE], t[TILE], w[TILE], pos[TILE];
  const PlArray *const *in = l->c->in;
  load(l, 0, at, n, x);
  load(l, 1, at, n, t);
  const bool has_w = l->nin > 2 && in[2], has_pos = l->nin > 3 && in[3];
  if (has_w) load(l, 2, at, n, w);
  if (has_pos) load(l, 3, at, n, pos);
  if (l->c->code == PLK_L_BCE || l->c->code == PLK_L_BCE_LOGITS) PL_TRY(bce_check(l, x, t, has_w ? w : NULL, n));
  const PlkLossLoops *loops = &PLK_ISA_PICK(plk_loss_table);
  (l->low && loops->low[l->c->code] ? loops->low : loops->loop)[l->c->code](x, t, has_pos ? pos : NULL, l->param, y, n);
  for (int64_t i = 0; has_w && i < n; i++) y[i] *= w[i];
  return PL_OK;
}

/* Floats laid out as the loss wants them, added up in one pass. */
static bool sums_at_once(const Loss *l) {
  const PlArray *const *in = l->c->in;
  return l->part && l->linear[0] && l->linear[1] && in[0]->dtype == PL_F32 && in[1]->dtype == PL_F32 && !(l->nin > 2 && in[2]) &&
         PLK_ISA_PICK(plk_loss_table).sum_f32[l->c->code];
}

static PlStatus body(void *ctx, int64_t begin, int64_t end) {
  const Loss *l = ctx;
  if (sums_at_once(l)) {
    const float *x = l->c->in[0]->data, *t = l->c->in[1]->data;
    l->part[begin / BLOCK] = PLK_ISA_PICK(plk_loss_table).sum_f32[l->c->code](x + begin, t + begin, l->param, end - begin);
    return PL_OK;
  }
  const PlkReduceLoops *loops = plk_reduce_loops();
  _Alignas(64) double y[TILE];
  double sum = 0;
  for (int64_t at = begin; at < end; at += TILE) {
    int64_t n = end - at < TILE ? end - at : TILE;
    PL_TRY(compute(l, at, n, y));
    if (l->part) sum += loops->sum_f64(y, n);
    else plk_store(PLK_CF64, y, n, l->c->out[0]->data, l->c->out[0]->dtype, at, 1, n, 1);
  }
  if (l->part) l->part[begin / BLOCK] = sum;
  return PL_OK;
}

static double param_of(const PlkCall *c) {
  if (c->code == PLK_L_SMOOTH_L1 || c->code == PLK_L_HUBER) return pl_attr_f(c->attrs, 1);
  return c->code == PLK_L_KL_DIV ? (double)pl_attr_i(c->attrs, 1) : 0;
}

/* The blocks' sums, added up and divided, as the element of out. */
static void finish(const Loss *l, const double *part, PlArray *out) {
  const int64_t reduction = pl_attr_i(l->c->attrs, 0), blocks = (l->numel + BLOCK - 1) / BLOCK;
  double sum = 0;
  for (int64_t b = 0; b < blocks; b++) sum += part[b];
  if (reduction == 1) sum /= (double)l->numel;
  if (reduction == 3) sum /= (double)(l->ndim ? l->shape[0] : 1);
  plk_store(PLK_CF64, &sum, 1, out->data, out->dtype, 0, 1, 1, 1);
}

static PlStatus run(Loss *l, PlkBody each, double **sums[2], int nsums) {
  const int64_t reduction = pl_attr_i(l->c->attrs, 0), blocks = (l->numel + BLOCK - 1) / BLOCK;
  double few[2][16];
  void *heap = NULL;
  if (reduction != 0 && blocks > 16) PL_TRY(plk_scratch(2 * (size_t)blocks * sizeof(double), &heap));
  for (int k = 0; k < nsums && reduction != 0; k++) *sums[k] = heap ? (double *)heap + k * blocks : few[k];
  PlStatus s = l->numel == 0 ? PL_OK : blocks == 1 ? each(l, 0, l->numel) : plk_parallel(l->numel, BLOCK, each, l);
  for (int k = 0; k < nsums && reduction != 0 && s == PL_OK; k++) finish(l, *sums[k], l->c->out[k]);
  plk_scratch_free(heap);
  return s;
}

PlStatus plk_cpu_loss(const PlkCall *c) {
  Loss l = {.c = c, .nin = c->nin < MAX_IN ? c->nin : MAX_IN, .low = true, .param = param_of(c)};
  for (int i = 0; i < l.nin; i++) l.low = l.low && !(c->in[i] && c->in[i]->dtype == PL_F64);
  broadcast(&l);
  return run(&l, body, (double **[2]){&l.part}, 1);
}

/* ---- with tangents -------------------------------------------------------------------------------------------- */

static PlStatus dual_body(void *ctx, int64_t begin, int64_t end) {
  const Loss *l = ctx;
  const int code = l->c->code == PLK_L_SMOOTH_L1 && l->param == 0 ? PLK_L_L1 : l->c->code;
  const PlkLossLoops *loops = &PLK_ISA_PICK(plk_loss_table);
  const PlArray *const *in = l->c->in;
  if (l->part && in[0]->dtype == PL_F32) {
    const float *x = in[0]->data, *t = in[1]->data, *v = in[2]->data;
    l->part[begin / BLOCK] = loops->dual_f32[code](x + begin, t + begin, v + begin, l->param, end - begin, &l->dot[begin / BLOCK]);
    return PL_OK;
  }
  _Alignas(64) double x[TILE], t[TILE], v[TILE], y[2][TILE];
  double sum[2] = {0, 0};
  for (int64_t at = begin; at < end; at += TILE) {
    const int64_t n = end - at < TILE ? end - at : TILE;
    load(l, 0, at, n, x);
    load(l, 1, at, n, t);
    load(l, 2, at, n, v);
    loops->loop[code](x, t, NULL, l->param, y[0], n);
    loops->slope[code](x, t, v, l->param, y[1], n);
    for (int k = 0; k < 2; k++)
      if (l->part) sum[k] += plk_reduce_loops()->sum_f64(y[k], n);
      else plk_store(PLK_CF64, y[k], n, l->c->out[k]->data, l->c->out[k]->dtype, at, 1, n, 1);
  }
  if (l->part) {
    l->part[begin / BLOCK] = sum[0];
    l->dot[begin / BLOCK] = sum[1];
  }
  return PL_OK;
}

PlStatus plk_cpu_loss_dual(const PlkCall *c) {
  Loss l = {.c = c, .nin = 3, .param = param_of(c)};
  broadcast(&l);
  return run(&l, dual_body, (double **[2]){&l.part, &l.dot}, 2);
}
