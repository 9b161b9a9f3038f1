/* SPDX-License-Identifier: MIT
 * Layer norm and RMS norm, forward and backward, row by row with the loops of
 * isa/norm.c. Halves are computed in float. */
#include "kernels/norm.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/rows.h"
#include "kernels/program.h"

PLK_ISA_DECLARE(const PlkNormLoops, plk_norm_table);
const PlkNormLoops *plk_norm_loops(void) { return &PLK_ISA_PICK(plk_norm_table); }

typedef struct Layer {
  const PlkNormLoops *loops;
  const void *w, *b; /* in the compute type */
  int64_t n;
  double eps;
  bool center, f64, wide; /* wide: statistics are doubles */
  bool tangent;           /* p[4], that of x, makes p[5], that of y */
} Layer;

/* The derivative of what is normalized is symmetric: w times what backward does without w. While the row is in the cache. */
#define TANGENT(T, sfx)                                                                     \
  static void tangent_##sfx(const Layer *l, const T *x, const T *v, T mean, T rstd, T *t) { \
    const T *w = l->w;                                                                      \
    l->loops->norm_bwd_##sfx(v, x, NULL, mean, rstd, l->center, t, NULL, NULL, l->n);       \
    for (int64_t i = 0; w && i < l->n; i++) t[i] *= w[i];                                   \
  }
TANGENT(float, f32)
TANGENT(double, f64)

static PlStatus layer_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  const Layer *l = ctx;
  double mean, m2;
  if (l->f64) l->loops->moments_f64(p[0], l->n, l->center, &mean, &m2);
  else l->loops->moments_f32(p[0], l->n, l->center, &mean, &m2);
  double rstd = 1 / sqrt(m2 / (double)l->n + l->eps);
  if (p[1] && l->f64) l->loops->norm_f64(p[0], l->w, l->b, p[1], l->n, mean, rstd);
  else if (p[1]) l->loops->norm_f32(p[0], l->w, l->b, p[1], l->n, (float)mean, (float)rstd);
  if (p[2] && l->wide) *(double *)p[2] = mean;
  else if (p[2]) *(float *)p[2] = (float)mean;
  if (p[3] && l->wide) *(double *)p[3] = rstd;
  else if (p[3]) *(float *)p[3] = (float)rstd;
  if (l->tangent && l->f64) tangent_f64(l, p[0], p[4], mean, rstd, p[5]);
  else if (l->tangent) tangent_f32(l, p[0], p[4], (float)mean, (float)rstd, p[5]);
  return PL_OK;
}

/* A parameter as a row of the compute type: itself, or a copy in `to`. */
static const void *param(const PlArray *a, PlkComp comp, void *to) {
  if (!a) return NULL;
  if (plk_comp_direct(a->dtype, comp)) return a->data;
  plk_load(comp, to, a->numel, a->data, a->dtype, 0, 1, a->numel, 1);
  return to;
}

static int64_t row_length(const PlkCall *c) {
  int64_t n = 1;
  for (int i = 0; i < pl_attr_n(c->attrs, 0); i++) n *= pl_attr_list(c->attrs, 0)[i];
  return n;
}

static bool copies(const PlArray *a, PlkComp comp) { return a && !plk_comp_direct(a->dtype, comp); }

static double eps_of(const PlkCall *c, int dtype) {
  return pl_attr_has(c->attrs, 1) ? pl_attr_f(c->attrs, 1) : plk_norm_default_eps(dtype);
}

/* v, t: the tangents of x and y, or NULL. */
static PlStatus forward(const PlkCall *c, const PlArray *v, PlArray *t) {
  const PlArray *x = c->in[0], *w = c->in[1], *b = c->code == 0 ? c->in[2] : NULL;
  PlkComp comp = plk_comp(x->dtype);
  Layer l = {.loops = plk_norm_loops(),
             .n = row_length(c),
             .eps = eps_of(c, x->dtype),
             .center = c->code == 0,
             .f64 = comp == PLK_CF64,
             .tangent = t != NULL};
  if (x->numel == 0) {
    for (int i = 1; i < (c->code == 0 ? 3 : 2); i++)
      for (int64_t k = 0; c->out[i] && k < c->out[i]->numel; k++)
        plk_store(PLK_CF64, &(double){(double)NAN}, 1, c->out[i]->data, c->out[i]->dtype, k, 1, 1, 1);
    return PL_OK;
  }
  size_t row = (size_t)l.n * plk_comp_size(comp);
  void *temp = NULL;
  if (copies(w, comp) || copies(b, comp)) PL_TRY(plk_scratch(2 * row, &temp));
  l.w = param(w, comp, temp);
  l.b = param(b, comp, (char *)temp + row);
  PlArray *mean = c->code == 0 ? c->out[1] : NULL, *rstd = c->out[c->code == 0 ? 2 : 1];
  const PlArray *either = mean ? mean : rstd;
  l.wide = either && either->dtype == PL_F64;
  const PlkComp statistic = l.wide ? PLK_CF64 : PLK_CF32; /* they are f32 or f64 */
  PlkRows r = {.outer = x->numel / l.n, .inner = 1, .body = layer_row, .ctx = &l};
  r.arg[r.narg++] = plk_row_arg(x, l.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], l.n, comp, true);
  r.arg[r.narg++] = plk_row_arg(mean, 1, statistic, true);
  r.arg[r.narg++] = plk_row_arg(rstd, 1, statistic, true);
  if (t) {
    r.arg[r.narg++] = plk_row_arg(v, l.n, comp, false);
    r.arg[r.narg++] = plk_row_arg(t, l.n, comp, true);
  }
  PlStatus s = plk_rows(&r);
  plk_scratch_free(temp);
  return s;
}
PlStatus plk_cpu_layer_norm(const PlkCall *c) { return forward(c, NULL, NULL); }
PlStatus plk_cpu_layer_norm_with_tangent(const PlkCall *c) {
  const int nin = c->code == 0 ? 3 : 2, nout = c->code == 0 ? 3 : 2;
  if (c->nin != nin + 1 || c->nout != nout + 1 || c->out[0]->dtype != c->in[0]->dtype)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: not with its tangent in one pass", c->name);
  return forward(c, c->in[nin], c->out[nout]);
}

/* Rows are cut into at most 64 stretches; each adds its dw and db up in a row pair of its own, and those
 * are added in double at the end. */
typedef struct LayerBwd {
  Layer l;
  const PlkCall *c;
  const PlArray *dy, *x, *mean, *rstd;
  PlArray *dx;
  PlkComp comp;
  int64_t rows, stretch;
  int64_t first; /* row that the arrays begin with */
  char *part;    /* [stretches][2][n] */
  bool dw, db;
} LayerBwd;

static double scalar(const PlArray *a, int64_t i) {
  if (!a) return 0;
  if (a->dtype == PL_F32) return (double)((const float *)a->data)[i];
  return ((const double *)a->data)[i]; /* statistics are f32 or f64 */
}

static PlStatus layer_bwd_stretch(void *ctx, int64_t begin, int64_t end) {
  LayerBwd *b = ctx;
  int64_t n = b->l.n;
  size_t size = plk_comp_size(b->comp), row = (size_t)n * size;
  bool dx_direct = b->dx && plk_comp_direct(b->dx->dtype, b->comp);
  bool direct = plk_comp_direct(b->x->dtype, b->comp) && plk_comp_direct(b->dy->dtype, b->comp) && (!b->dx || dx_direct);
  void *heap = NULL;
  if (!direct) PL_TRY(plk_scratch(3 * row, &heap));
  char *buf = heap;
  for (int64_t s = begin; s < end; s++) {
    char *dw = b->part + (size_t)s * 2 * row, *db = dw + row;
    int64_t r0 = s * b->stretch - b->first, r1 = (s + 1) * b->stretch < b->rows ? (s + 1) * b->stretch : b->rows;
    if (b->part && r0 >= 0) memset(dw, 0, 2 * row);
    for (int64_t r = r0 > 0 ? r0 : 0; r < r1 - b->first; r++) {
      const char *dy = (const char *)b->dy->data + (size_t)r * row, *x = (const char *)b->x->data + (size_t)r * row;
      char *dx = b->dx ? (char *)b->dx->data + (size_t)r * row : NULL;
      if (!direct) {
        plk_load(b->comp, buf, n, b->dy->data, b->dy->dtype, r * n, 1, n, 1);
        plk_load(b->comp, buf + row, n, b->x->data, b->x->dtype, r * n, 1, n, 1);
        dy = buf, x = buf + row, dx = b->dx ? buf + 2 * row : NULL;
      }
      double mean = scalar(b->mean, r), rstd = scalar(b->rstd, r);
      if (b->l.f64)
        b->l.loops->norm_bwd_f64((const void *)dy, (const void *)x, b->l.w, mean, rstd, b->l.center, (void *)dx, b->dw ? (void *)dw : NULL,
                                 b->db ? (void *)db : NULL, n);
      else
        b->l.loops->norm_bwd_f32((const void *)dy, (const void *)x, b->l.w, (float)mean, (float)rstd, b->l.center, (void *)dx,
                                 b->dw ? (void *)dw : NULL, b->db ? (void *)db : NULL, n);
      if (!direct && b->dx) plk_store(b->comp, dx, n, b->dx->data, b->dx->dtype, r * n, 1, n, 1);
    }
  }
  plk_scratch_free(heap);
  return PL_OK;
}

/* out[i] = sum over stretches of their row `which`. */
static void add_stretches(const LayerBwd *b, int64_t count, int which, PlArray *out) {
  int64_t n = b->l.n;
  enum { TILE = 256 };
  double acc[TILE];
  for (int64_t at = 0; at < n; at += TILE) {
    int64_t k = n - at < TILE ? n - at : TILE;
    for (int64_t i = 0; i < k; i++) acc[i] = 0;
    for (int64_t s = 0; s < count; s++) {
      const void *p = b->part + (size_t)((s * 2 + which) * n + at) * plk_comp_size(b->comp);
      if (b->comp == PLK_CF64)
        for (int64_t i = 0; i < k; i++) acc[i] += ((const double *)p)[i];
      else
        for (int64_t i = 0; i < k; i++) acc[i] += (double)((const float *)p)[i];
    }
    plk_store(PLK_CF64, acc, k, out->data, out->dtype, at, 1, k, 1);
  }
}

/* What a call says of the job; x may be a window of the rows. */
static LayerBwd layer_bwd_job(const PlkCall *c, int64_t rows) {
  bool layer = c->code == 0;
  const PlArray *x = c->in[1];
  LayerBwd b = {.c = c,
                .dy = c->in[0],
                .x = x,
                .mean = layer ? c->in[2] : NULL,
                .rstd = c->in[layer ? 3 : 2],
                .dx = c->out[0],
                .comp = plk_comp(x->dtype),
                .dw = c->out[1] != NULL,
                .db = layer && c->out[2] != NULL};
  b.l = (Layer){.loops = plk_norm_loops(), .n = row_length(c), .center = layer, .f64 = b.comp == PLK_CF64};
  b.rows = rows;
  b.stretch = (rows + 63) / 64 < 16 ? 16 : (rows + 63) / 64;
  return b;
}

static void layer_bwd_end(const LayerBwd *b) {
  int64_t count = (b->rows + b->stretch - 1) / b->stretch;
  if (b->dw) add_stretches(b, count, 0, b->c->out[1]);
  if (b->db) add_stretches(b, count, 1, b->c->out[2]);
}

PlStatus plk_cpu_layer_norm_bwd(const PlkCall *c) {
  const PlArray *x = c->in[1], *w = c->in[c->code == 0 ? 4 : 3];
  int64_t len = row_length(c);
  LayerBwd b = layer_bwd_job(c, len ? x->numel / len : 0);
  int64_t count = (b.rows + b.stretch - 1) / b.stretch;
  size_t row = (size_t)b.l.n * plk_comp_size(b.comp);
  void *temp = NULL, *part = NULL;
  PlStatus s = PL_OK;
  if (copies(w, b.comp)) PL_TRY(plk_scratch(row, &temp));
  b.l.w = param(w, b.comp, temp);
  if ((b.dw || b.db) && count) s = plk_scratch((size_t)count * 2 * row, &part);
  b.part = part;
  int64_t work = b.stretch * b.l.n * 2, block = work >= PLK_GRAIN ? 1 : PLK_GRAIN / (work ? work : 1);
  if (s == PL_OK) s = count <= block ? layer_bwd_stretch(&b, 0, count) : plk_parallel(count, block, layer_bwd_stretch, &b);
  if (s == PL_OK) layer_bwd_end(&b);
  plk_scratch_free(part);
  plk_scratch_free(temp);
  return s;
}

/* ---- the same, some rows at a time ------------------------------------------------------------------------- */

static bool bwd_plan(const PlkCall *c, PlkPieces *p) {
  const PlArray *w = c->in[c->code == 0 ? 4 : 3];
  LayerBwd b = layer_bwd_job(c, p->rows);
  if (b.l.n != p->cols || copies(w, b.comp)) return false;
  int64_t count = (b.rows + b.stretch - 1) / b.stretch;
  p->grain = b.stretch * p->cols;
  p->unit = 1;
  p->note = b.dw | b.db << 1;
  p->shared = p->note ? (size_t)(count * 2 * p->cols) * plk_comp_size(b.comp) : 0;
  return true;
}

static PlStatus bwd_piece(const PlkCall *c, const PlkPieces *p, int64_t at, void *shared, void *local) {
  (void)local;
  const PlArray *w = c->in[c->code == 0 ? 4 : 3];
  LayerBwd b = layer_bwd_job(c, p->rows);
  b.l.w = w ? w->data : NULL;
  b.dw = p->note & 1;
  b.db = p->note >> 1;
  b.first = at / p->cols;
  b.part = p->shared ? shared : NULL;
  int64_t last = b.first + c->in[1]->numel / p->cols - 1;
  b.rows = last + 1;
  return layer_bwd_stretch(&b, b.first / b.stretch, last / b.stretch + 1);
}

static PlStatus bwd_end(const PlkCall *c, const PlkPieces *p, void *shared) {
  LayerBwd b = layer_bwd_job(c, p->rows);
  b.part = shared;
  layer_bwd_end(&b);
  return PL_OK;
}

const PlkPiecewise plk_cpu_layer_norm_bwd_pieces = {bwd_plan, bwd_piece, bwd_end};
