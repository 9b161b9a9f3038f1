/* SPDX-License-Identifier: MIT
 * 3×3 convolutions of f32 with stride 1 and a border of one, by Winograd's F(2×2, 3×3) (winograd.h): transforms around
 * sixteen matrix products with 4/9 of the multiplications. Work is cut by shape alone into runs of tile rows that go
 * through all steps in one thread's cache; where there are too few of them for that, all tiles are transformed first and
 * then the sixteen products run side by side. */
#include <string.h>

#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/conv/winograd.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/sizes.h"

PLK_ISA_DECLARE(const PlkWinogradLoops, plk_winograd_table);
#define loops PLK_ISA_PICK(plk_winograd_table)

/* Fewer channels or tiles than these: transforms cost what they save. Measured. */
enum { FEWEST_CHANNELS = 32, FEWEST_TILES = 192 };
/* Floats of a run's transformed tiles that stay in the second cache, and of a run of weight gradients, whose sums want
 * to be long; units that keep processors busy; floats of all partial sums together. */
enum { STAYS = 256 << 10, STAYS_DW = 768 << 10, UNITS = 8, PARTS = 4 << 20, TOGETHER = 6 << 20 };
enum { KERNELS = 1024, WIDTH = 64, WIDEST = 4 << 20 }; /* WIDEST: floats of one row of tiles, transformed */

typedef struct Run {
  const PlkConv *v;
  int64_t h, w, down, across, tiles; /* planes, and tiles of one */
  int64_t rows, nrun;                /* tile rows of a run; runs of all images */
  int64_t from, to;                  /* channels of what is read and of what is written (of x and y for weights) */
  int64_t width, nslice;             /* of `to`, where one run is shared */
  int64_t area;                      /* channels squared: step between the sixteen matrices of weights */
  float *u;                          /* transformed weights [16][o][c]; weight gradients: [nrun][16][o][c] */
  float *v_all, *m_all;              /* all tiles at once: [16][channels][lead] */
  int64_t lead;
} Run;

bool plk_conv_winograd_pays(const PlkConv *v) {
  bool ok = v->dtype == PL_F32 && v->nd == 2 && v->g == 1 && v->c >= FEWEST_CHANNELS && v->o >= FEWEST_CHANNELS;
  for (int i = 1; i < 3; i++) {
    ok = ok && v->k[i] == 3 && v->stride[i] == 1 && v->pad[i] == 1 && v->dil[i] == 1 && v->in[i] >= 4;
  }
  ok = ok && plk_ceil_div(v->in[2], 2) <= WIDEST / 16 / (v->c + v->o);
  return ok && v->n * plk_ceil_div(v->in[1], 2) * plk_ceil_div(v->in[2], 2) >= FEWEST_TILES;
}

static Run run_of(const PlkConv *v) {
  Run q = {.v = v, .h = v->in[1], .w = v->in[2], .area = v->o * v->c};
  q.down = plk_ceil_div(q.h, 2), q.across = plk_ceil_div(q.w, 2);
  q.tiles = q.down * q.across * v->n;
  q.from = v->kind == PLK_CONV_BWD_INPUT ? v->o : v->c;
  q.to = v->kind == PLK_CONV_BWD_INPUT ? v->c : v->o;
  return q;
}

/* Distance of the rows of a matrix of so many tiles: loops write somewhat more. */
static int64_t lead_of(int64_t tiles) { return plk_ceil_div(tiles, PLK_WINOGRAD_PAD) * PLK_WINOGRAD_PAD + PLK_WINOGRAD_PAD; }

/* Floats of scratch for runs of so many tile rows. */
static int64_t scratch_size(const Run *q, int64_t rows) {
  const int64_t n = (2 * rows + 2) * q->across + 2 * PLK_WINOGRAD_PAD;
  return 2 * n + (q->w % 2 ? 2 * n : 0) + 4 * n;
}

static PlkTileScratch scratch_at(const Run *q, int64_t rows, float *mem) {
  const int64_t n = (2 * rows + 2) * q->across + 2 * PLK_WINOGRAD_PAD;
  int32_t *inner = (int32_t *)(void *)mem, *last = inner + n;
  for (int64_t k = 0; k < n; k++) {
    inner[k] = k % q->across == 0 ? 0 : -1;
    last[k] = k % q->across == q->across - 1 ? 0 : -1;
  }
  float *even = mem + 2 * n;
  return (PlkTileScratch){{inner, last}, even, even + (q->w % 2 ? 2 * n : 0), n};
}

/* Calls STEP for the piece of each image among tile rows [begin, end); `at` counts tiles. */
#define FOR_IMAGES(q, begin, end, STEP)                                                   \
  for (int64_t r_ = (begin), at = 0; r_ < (end);) {                                       \
    const int64_t image = r_ / (q)->down, ty_ = r_ % (q)->down;                           \
    const PlkTileRows rows = {(q)->h, (q)->w, ty_, plk_min64((end)-r_, (q)->down - ty_)}; \
    STEP;                                                                                 \
    r_ += rows.rows, at += rows.rows * (q)->across;                                       \
  }

/* Tile rows [begin, end) of channels [c0, c1) of a tensor of `channels` → out, transformed. */
static void tiles_in(const Run *q, const float *data, int64_t channels, int64_t c0, int64_t c1, int64_t begin, int64_t end, bool gradient,
                     float *out, int64_t lead, int64_t step, PlkTileScratch *use) {
  const int64_t plane = q->h * q->w;
  for (int64_t c = c0; c < c1; c++, out += lead)
    FOR_IMAGES(q, begin, end, {
      const float *p = data + (image * channels + c) * plane;
      (gradient ? loops.gradient : loops.input)(p, &rows, out + at, step, use);
    })
}

static void tiles_out(const Run *q, const float *m, int64_t c0, int64_t c1, int64_t begin, int64_t end, int64_t lead, int64_t step,
                      PlkTileScratch *use) {
  float *data = q->v->kind == PLK_CONV_FWD ? q->v->y : q->v->x;
  const float *bias = q->v->kind == PLK_CONV_FWD ? q->v->bias : NULL;
  for (int64_t c = c0; c < c1; c++, m += lead)
    FOR_IMAGES(q, begin, end, { loops.output(m + at, step, &rows, bias ? bias[c] : 0, data + (image * q->to + c) * q->h * q->w, use); })
}

/* One of the sixteen products: channels [c0, c1) of what is written, `n` tiles. */
static PlStatus product(const Run *q, int ij, int64_t c0, int64_t c1, int64_t n, const float *v, float *m, int64_t lead) {
  const bool back = q->v->kind == PLK_CONV_BWD_INPUT;
  PlkGemm g = {.dtype = PL_F32, .alpha = 1, .ta = back, .M = c1 - c0, .N = n, .K = q->from, .lda = q->v->c};
  g.A = q->u + ij * q->area + c0 * (back ? 1 : q->v->c);
  g.B = v, g.ldb = lead;
  g.C = m, g.ldc = lead;
  return plk_gemm_alone(&g);
}

/* ---- weights ------------------------------------------------------------------------------------------------------ */

static PlStatus weights_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  const int64_t k = begin * KERNELS, n = plk_min64(end * KERNELS, q->area) - k;
  loops.weights((const float *)q->v->w + k * 9, n, q->v->kind == PLK_CONV_BWD_INPUT, q->u + k, q->area);
  return PL_OK;
}

static PlStatus weights_back_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  const int64_t k = begin * KERNELS, n = plk_min64(end * KERNELS, q->area) - k;
  loops.weights_back(q->u + k, q->area, n, (float *)q->v->w + k * 9);
  return PL_OK;
}

/* ---- forward and the gradient of the input ------------------------------------------------------------------------- */

static PlStatus run_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  const int64_t lead = lead_of(q->rows * q->across);
  const int64_t vsize = 16 * q->from * lead, msize = 16 * q->width * lead;
  const float *data = q->v->kind == PLK_CONV_FWD ? q->v->x : q->v->y;
  void *mem;
  PL_TRY(plk_scratch((size_t)(vsize + msize + scratch_size(q, q->rows)) * sizeof(float), &mem));
  float *v = mem, *m = v + vsize;
  PlkTileScratch use = scratch_at(q, q->rows, m + msize);
  PlStatus s = PL_OK;
  for (int64_t unit = begin; unit < end && s == PL_OK; unit++) {
    const int64_t r0 = unit / q->nslice * q->rows, r1 = plk_min64(r0 + q->rows, q->v->n * q->down);
    const int64_t c0 = unit % q->nslice * q->width, c1 = plk_min64(c0 + q->width, q->to);
    tiles_in(q, data, q->from, 0, q->from, r0, r1, false, v, lead, q->from * lead, &use);
    for (int ij = 0; ij < 16 && s == PL_OK; ij++)
      s = product(q, ij, c0, c1, (r1 - r0) * q->across, v + ij * q->from * lead, m + ij * q->width * lead, lead);
    if (s == PL_OK) tiles_out(q, m, c0, c1, r0, r1, lead, q->width * lead, &use);
  }
  plk_scratch_free(mem);
  return s;
}

static PlStatus in_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  const float *data = q->v->kind == PLK_CONV_BWD_INPUT ? q->v->y : q->v->x;
  void *mem;
  PL_TRY(plk_scratch((size_t)scratch_size(q, q->down) * sizeof(float), &mem));
  PlkTileScratch use = scratch_at(q, q->down, mem);
  tiles_in(q, data, q->from, begin, end, 0, q->v->n * q->down, false, q->v_all + begin * q->lead, q->lead, q->from * q->lead, &use);
  plk_scratch_free(mem);
  return PL_OK;
}

static PlStatus product_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  for (int64_t unit = begin; unit < end; unit++) {
    const int ij = (int)(unit / q->nslice);
    const int64_t c0 = unit % q->nslice * q->width, c1 = plk_min64(c0 + q->width, q->to);
    PL_TRY(product(q, ij, c0, c1, q->tiles, q->v_all + ij * q->from * q->lead, q->m_all + (ij * q->to + c0) * q->lead, q->lead));
  }
  return PL_OK;
}

static PlStatus out_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  void *mem;
  PL_TRY(plk_scratch((size_t)scratch_size(q, q->down) * sizeof(float), &mem));
  PlkTileScratch use = scratch_at(q, q->down, mem);
  tiles_out(q, q->m_all + begin * q->lead, begin, end, 0, q->v->n * q->down, q->lead, q->to * q->lead, &use);
  plk_scratch_free(mem);
  return PL_OK;
}

/* All tiles at once. */
static PlStatus run_together(Run *q) {
  void *mem;
  q->lead = lead_of(q->tiles);
  PL_TRY(plk_scratch((size_t)(16 * (q->from + q->to) * q->lead) * sizeof(float), &mem));
  q->v_all = mem, q->m_all = q->v_all + 16 * q->from * q->lead;
  q->nslice = plk_max64(1, q->to / 256);
  q->width = plk_ceil_div(q->to, q->nslice);
  q->nslice = plk_ceil_div(q->to, q->width);
  PlStatus s = plk_parallel(q->from, 16, in_body, q);
  if (s == PL_OK) s = plk_parallel(16 * q->nslice, 1, product_body, q);
  if (s == PL_OK) s = plk_parallel(q->to, 16, out_body, q);
  plk_scratch_free(mem);
  return s;
}

static PlStatus compute(Run *q) {
  const int64_t all = q->v->n * q->down;
  const int64_t tiles = plk_max64(64, STAYS / (16 * (q->from + q->to)));
  q->rows = plk_min64(all, plk_max64(1, plk_min64(tiles, 256) / q->across));
  q->nrun = plk_ceil_div(all, q->rows);
  if (q->nrun < UNITS && 16 * (q->from + q->to) * lead_of(q->tiles) <= TOGETHER) return run_together(q);
  const int64_t slices = plk_min64(plk_ceil_div(UNITS, q->nrun), plk_max64(1, q->to / WIDTH));
  q->width = plk_ceil_div(plk_ceil_div(q->to, slices), PLK_WINOGRAD_PAD) * PLK_WINOGRAD_PAD;
  q->nslice = plk_ceil_div(q->to, q->width);
  return plk_parallel(q->nrun * q->nslice, 1, run_body, q);
}

/* ---- the gradient of the weights -------------------------------------------------------------------------------------- */

/* du (o0 … o1 of it) = or += z vᵀ. */
static PlStatus product_dw(const Run *q, int64_t o0, int64_t o1, int64_t n, const float *z, const float *v, int64_t lead, bool add,
                           float *du) {
  PlkGemm g = {.dtype = PL_F32, .alpha = 1, .beta = add, .tb = true, .M = o1 - o0, .N = q->v->c, .K = n};
  g.A = z, g.lda = lead;
  g.B = v, g.ldb = lead;
  g.C = du + o0 * q->v->c, g.ldc = q->v->c;
  return plk_gemm_alone(&g);
}

/* One part of the images and one slice of the output channels, run by run. */
static PlStatus part_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  const int64_t c = q->v->c, all = q->v->n * q->down, each = plk_ceil_div(all, q->nrun);
  const int64_t lead = lead_of(q->rows * q->across), vsize = 16 * c * lead, zsize = 16 * q->width * lead;
  void *mem;
  PL_TRY(plk_scratch((size_t)(vsize + zsize + scratch_size(q, q->rows)) * sizeof(float), &mem));
  float *v = mem, *z = v + vsize;
  PlkTileScratch use = scratch_at(q, q->rows, z + zsize);
  PlStatus s = PL_OK;
  for (int64_t unit = begin; unit < end && s == PL_OK; unit++) {
    const int64_t part = unit / q->nslice, stop = plk_min64((part + 1) * each, all);
    const int64_t o0 = unit % q->nslice * q->width, o1 = plk_min64(o0 + q->width, q->v->o);
    for (int64_t r = part * each; r < stop && s == PL_OK; r += q->rows) {
      const int64_t r1 = plk_min64(r + q->rows, stop);
      tiles_in(q, q->v->x, c, 0, c, r, r1, false, v, lead, c * lead, &use);
      tiles_in(q, q->v->y, q->v->o, o0, o1, r, r1, true, z, lead, q->width * lead, &use);
      for (int ij = 0; ij < 16 && s == PL_OK; ij++)
        s = product_dw(q, o0, o1, (r1 - r) * q->across, z + ij * q->width * lead, v + ij * c * lead, lead, r > part * each,
                       q->u + (part * 16 + ij) * q->area);
      if (s == PL_OK) s = plk_poll();
    }
  }
  plk_scratch_free(mem);
  return s;
}

static PlStatus gradient_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  void *mem;
  PL_TRY(plk_scratch((size_t)scratch_size(q, q->down) * sizeof(float), &mem));
  PlkTileScratch use = scratch_at(q, q->down, mem);
  tiles_in(q, q->v->y, q->v->o, begin, end, 0, q->v->n * q->down, true, q->m_all + begin * q->lead, q->lead, q->v->o * q->lead, &use);
  plk_scratch_free(mem);
  return PL_OK;
}

static PlStatus product_dw_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  for (int64_t unit = begin; unit < end; unit++) {
    const int64_t ij = unit / q->nslice, o0 = unit % q->nslice * q->width, o1 = plk_min64(o0 + q->width, q->v->o);
    PL_TRY(product_dw(q, o0, o1, q->tiles, q->m_all + (ij * q->v->o + o0) * q->lead, q->v_all + ij * q->v->c * q->lead, q->lead, false,
                      q->u + ij * q->area));
  }
  return PL_OK;
}

static PlStatus weights_together(Run *q) {
  void *mem;
  q->lead = lead_of(q->tiles);
  PL_TRY(plk_scratch((size_t)(16 * (q->v->c + q->v->o) * q->lead) * sizeof(float), &mem));
  q->v_all = mem, q->m_all = q->v_all + 16 * q->v->c * q->lead;
  q->nslice = plk_max64(1, q->v->o / 256);
  q->width = plk_ceil_div(q->v->o, q->nslice);
  q->nslice = plk_ceil_div(q->v->o, q->width);
  PlStatus s = plk_parallel(q->v->c, 16, in_body, q);
  if (s == PL_OK) s = plk_parallel(q->v->o, 16, gradient_body, q);
  if (s == PL_OK) s = plk_parallel(16 * q->nslice, 1, product_dw_body, q);
  plk_scratch_free(mem);
  return s;
}

static PlStatus compute_dw(Run *q) {
  const int64_t all = q->v->n * q->down, both = q->v->c + q->v->o;
  const bool together = 16 * both * lead_of(q->tiles) <= TOGETHER && 16 * q->area * UNITS > PARTS;
  q->nrun = together ? 1 : plk_max64(1, plk_min64(plk_min64(all, UNITS), PARTS / (16 * q->area)));
  q->nrun = plk_ceil_div(all, plk_ceil_div(all, q->nrun));
  void *mem;
  PL_TRY(plk_scratch((size_t)(q->nrun * 16 * q->area) * sizeof(float), &mem));
  q->u = mem;
  PlStatus s;
  if (together) s = weights_together(q);
  else {
    const int64_t slices = plk_min64(plk_ceil_div(UNITS, q->nrun), plk_max64(1, q->v->o / WIDTH));
    q->width = plk_ceil_div(plk_ceil_div(q->v->o, slices), PLK_WINOGRAD_PAD) * PLK_WINOGRAD_PAD;
    q->nslice = plk_ceil_div(q->v->o, q->width);
    const int64_t tiles = plk_max64(64, STAYS_DW / (16 * (q->v->c + q->width)));
    q->rows = plk_max64(1, plk_min64(plk_min64(tiles, 512) / q->across, plk_ceil_div(all, q->nrun)));
    s = plk_parallel(q->nrun * q->nslice, 1, part_body, q);
  }
  if (s == PL_OK && q->nrun > 1) s = plk_conv_join(PL_F32, q->u, q->u, q->nrun, 16 * q->area);
  if (s == PL_OK) s = plk_parallel(plk_ceil_div(q->area, KERNELS), 1, weights_back_body, q);
  plk_scratch_free(mem);
  return s;
}

PlStatus plk_conv_winograd(const PlkConv *v) {
  Run q = run_of(v);
  if (v->kind == PLK_CONV_BWD_WEIGHT) return compute_dw(&q);
  void *mem;
  PL_TRY(plk_scratch((size_t)(16 * q.area) * sizeof(float), &mem));
  q.u = mem;
  PlStatus s = plk_parallel(plk_ceil_div(q.area, KERNELS), 1, weights_body, &q);
  if (s == PL_OK) s = compute(&q);
  plk_scratch_free(mem);
  return s;
}
