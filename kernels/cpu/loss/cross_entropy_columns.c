/* SPDX-License-Identifier: MIT
 * Cross entropy of x[outer][classes][inner], a tile of columns at a time (isa/softmax_columns.c); formulas in
 * cross_entropy.c. Label smoothing goes row by row. */
#include <math.h>

#include "kernels/cpu/loss/cross_entropy.h"

typedef struct Columns {
  PlkClass *k;
  const PlArray *x, *target;
  int64_t inner, tiles;
} Columns;

/* A tile: its columns, the row number of the first, its place in x. */
typedef struct Tile {
  int64_t cols, row, at;
} Tile;

static Tile tile_of(const Columns *q, int64_t i) {
  const int64_t o = i / q->tiles, c0 = i % q->tiles * PLK_SOFT_COLS;
  const int64_t cols = q->inner - c0 < PLK_SOFT_COLS ? q->inner - c0 : PLK_SOFT_COLS;
  return (Tile){cols, o * q->inner + c0, o * q->k->n * q->inner + c0};
}

bool plk_class_by_columns(const PlkClass *k, const PlkRows *r, const PlArray *target) {
  const PlArray *x = k->c->in[target == k->c->in[1] ? 0 : 1];
  return r->inner >= 8 && k->n > 0 && x->numel > 0 && k->smooth == 0 && (x->dtype == PL_F32 || x->dtype == PL_F64);
}

static PlStatus run(Columns *q, const PlkRows *r, PlkBody body) {
  q->inner = r->inner;
  q->tiles = (r->inner + PLK_SOFT_COLS - 1) / PLK_SOFT_COLS;
  const int64_t work = 2 * q->k->n * (r->inner < PLK_SOFT_COLS ? r->inner : PLK_SOFT_COLS);
  return plk_parallel(r->outer * q->tiles, PLK_GRAIN / work + 1, body, q);
}

/* log(sum exp x) of each column is max + lg, which are kept apart: cross_entropy.c says why. */
static void lse_tile(const Columns *q, const Tile *t, double *max, double *lg) {
  const PlkSoftmaxColumns *l = plk_softmax_columns_loops();
  const double none[PLK_SOFT_COLS] = {0};
  double sum[PLK_SOFT_COLS];
  if (q->k->f64) {
    l->lse_f64((const double *)q->x->data + t->at, q->inner, q->k->n, t->cols, max, sum);
  } else {
    float m[PLK_SOFT_COLS];
    l->lse_f32((const float *)q->x->data + t->at, q->inner, q->k->n, t->cols, m, sum);
    for (int64_t c = 0; c < t->cols; c++) max[c] = (double)m[c];
  }
  l->join_f64(none, sum, t->cols, lg);
}

static PlStatus forward(void *ctx, int64_t begin, int64_t end) {
  const Columns *q = ctx;
  PlkClass *k = q->k;
  PlArray *each = k->reduction == 0 ? k->c->out[0] : NULL, *kept = k->c->out[1];
  for (int64_t i = begin; i < end; i++) {
    const Tile t = tile_of(q, i);
    int64_t at[PLK_SOFT_COLS];
    double max[PLK_SOFT_COLS], lg[PLK_SOFT_COLS];
    plk_load(PLK_CI64, at, t.cols, q->target->data, q->target->dtype, t.row, 1, t.cols, 1);
    lse_tile(q, &t, max, lg);
    for (int64_t c = 0; c < t.cols; c++) {
      int64_t class;
      PL_TRY(plk_class_target(k, t.row + c, at[c], &class));
      const int64_t place = t.at + class * q->inner + c;
      const double w = class < 0 ? 0 : plk_class_weight(k, class);
      k->wt[t.row + c] = w;
      const double x = class < 0 ? 0 : k->f64 ? ((const double *)q->x->data)[place] : (double)((const float *)q->x->data)[place];
      k->loss[t.row + c] = class < 0 ? 0 : w * ((max[c] - x) + lg[c]);
      lg[c] += max[c];
    }
    if (each) plk_store(PLK_CF64, k->loss + t.row, t.cols, each->data, each->dtype, t.row, 1, t.cols, 1);
    if (kept) plk_store(PLK_CF64, lg, t.cols, kept->data, kept->dtype, t.row, 1, t.cols, 1);
  }
  return PL_OK;
}

PlStatus plk_class_columns(PlkClass *k, const PlkRows *r, const PlArray *target) {
  Columns q = {.k = k, .x = k->c->in[0], .target = target};
  return run(&q, r, forward);
}

/* dx_c = s w_t (e^(x_c - lse) - [c = t]), 0 where the target is ignored. */
#define BACK(T, sfx)                                                                                                         \
  static void back_##sfx(const Columns *q, const Tile *t, const double *lse, const double *s, const int64_t *class) {        \
    const T *x = (const T *)q->x->data + t->at;                                                                              \
    T *dx = (T *)q->k->c->out[0]->data + t->at, m[PLK_SOFT_COLS], a[PLK_SOFT_COLS], max[PLK_SOFT_COLS], rest[PLK_SOFT_COLS]; \
    double sum[PLK_SOFT_COLS];                                                                                               \
    bool far = false;                                                                                                        \
    for (int64_t c = 0; c < t->cols; c++) {                                                                                  \
      m[c] = (T)lse[c], a[c] = (T)s[c];                                                                                      \
      far = far || plk_class_far(lse[c]);                                                                                    \
    }                                                                                                                        \
    if (far) plk_softmax_columns_loops()->lse_##sfx(x, q->inner, q->k->n, t->cols, max, sum);                                \
    for (int64_t c = 0; far && c < t->cols; c++) /* as soften in cross_entropy.c */                                          \
      if (plk_class_far(lse[c])) m[c] = max[c], a[c] = (T)(s[c] / sum[c]);                                                   \
    plk_softmax_columns_loops()->exp_##sfx(x, dx, q->inner, q->k->n, t->cols, m, a, rest);                                   \
    for (int64_t c = 0; c < t->cols; c++)                                                                                    \
      if (class[c] >= 0) { /* e - 1 is minus the others' sum where it would be rounding alone */                             \
        T *const at = dx + class[c] * q->inner + c;                                                                          \
        *at = fabs((double)*at) > 0.75 * fabs(s[c]) ? 0 - a[c] * rest[c] : *at - (T)s[c];                                    \
      } else                                                                                                                 \
        for (int64_t r = 0; r < q->k->n; r++) dx[r * q->inner + c] = 0;                                                      \
  }
BACK(float, f32)
BACK(double, f64)

static PlStatus backward(void *ctx, int64_t begin, int64_t end) {
  const Columns *q = ctx;
  PlkClass *k = q->k;
  const PlArray *dy = k->reduction == 0 ? k->c->in[0] : NULL, *kept = k->c->in[3];
  for (int64_t i = begin; i < end; i++) {
    const Tile t = tile_of(q, i);
    int64_t at[PLK_SOFT_COLS];
    double lse[PLK_SOFT_COLS], s[PLK_SOFT_COLS];
    plk_load(PLK_CI64, at, t.cols, q->target->data, q->target->dtype, t.row, 1, t.cols, 1);
    plk_load(PLK_CF64, lse, t.cols, kept->data, kept->dtype, t.row, 1, t.cols, 1);
    if (dy) plk_load(PLK_CF64, s, t.cols, dy->data, dy->dtype, t.row, 1, t.cols, 1);
    for (int64_t c = 0; c < t.cols; c++) {
      PL_TRY(plk_class_target(k, t.row + c, at[c], &at[c]));
      s[c] = at[c] < 0 ? 0 : plk_class_weight(k, at[c]) * (dy ? s[c] : k->scale);
    }
    if (k->f64) back_f64(q, &t, lse, s, at);
    else back_f32(q, &t, lse, s, at);
  }
  return PL_OK;
}

PlStatus plk_class_columns_bwd(PlkClass *k, const PlkRows *r) {
  Columns q = {.k = k, .x = k->c->in[1], .target = k->c->in[2]};
  return run(&q, r, backward);
}
