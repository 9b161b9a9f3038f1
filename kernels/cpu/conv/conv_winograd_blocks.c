/* SPDX-License-Identifier: MIT
 * 3×3 convolutions of f32 forward, with stride 1 and a border of one, by Winograd's F(2×2, 3×3) on blocks of channels
 * (winograd_blocks.h). x and y are in blocks, or are turned some images at a time. A run of tile rows goes through all steps in one
 * thread's cache; where there are few tiles all are transformed first, and slices of 32 output channels go side by side. An element
 * is one sum over the channels in order, whatever the cut, so that its bits depend on nothing else. Weights are transformed once where
 * the caller keeps them. */
#include <string.h>

#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/conv/winograd_blocks.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/sizes.h"

PLK_ISA_DECLARE(const PlkWinogradBlockLoops, plk_winograd_block_table);
#define loops PLK_ISA_PICK(plk_winograd_block_table)

enum { WIDE = PLK_WINOGRAD_WIDE };
/* Below 16 tiles weights, which are 16/9 as large as before, cost more than multiplications save. Measured. */
enum { FEWEST_CHANNELS = 32, FEWEST_TILES = 16 };
/* Floats of a run that stay in the second cache; tiles of a run and of a slice's piece; units that keep processors busy; runs below
 * which tiles are transformed ahead; floats of images that are turned at a time. */
enum { STAYS = 192 << 10, FEW = 48, PIECE = 128, UNITS = 8, RUNS = 4, TURNED = 4 << 20, WIDEST = 4 << 20 };

typedef struct Run {
  const PlkConv *v;
  int64_t h, w, down, across, c, o; /* planes, tiles of one; channels */
  int64_t block;
  const float *u;        /* [slice][16][c][32] */
  int64_t nslice;        /* of outputs */
  int64_t rows, nrun;    /* tile rows of a run, of all images in order */
  int64_t group, ngroup; /* slices of a unit */
  float *all;            /* all tiles, transformed: [16][tiles][c]; NULL: each run its own */
  int64_t tiles;         /* … of them */
} Run;

bool plk_conv_winograd_blocks_pays(const PlkConv *v) {
  bool ok = v->kind == PLK_CONV_FWD && v->dtype == PL_F32 && v->nd == 2 && v->g == 1 && v->c >= FEWEST_CHANNELS &&
            v->o >= FEWEST_CHANNELS && v->c % 16 == 0 && v->o % 16 == 0;
  for (int i = 1; i < 3; i++) ok = ok && v->k[i] == 3 && v->stride[i] == 1 && v->pad[i] == 1 && v->dil[i] == 1 && v->in[i] >= 4;
  ok = ok && plk_ceil_div(v->in[2], 2) <= WIDEST / 16 / (v->c + WIDE);
  return ok && v->n * plk_ceil_div(v->in[1], 2) * plk_ceil_div(v->in[2], 2) >= FEWEST_TILES;
}

static int which(const Run *q) { return q->block == 16; }

/* Tile rows [r0, r1) of all images, of channels from c0 on, `n` of them → v[16][…][c], at the tiles of these rows. */
static void tiles_in(const Run *q, int64_t r0, int64_t r1, int64_t c0, int64_t n, float *v, int64_t step) {
  const PlkBlockPlane plane = {.h = q->h, .w = q->w};
  for (int64_t r = r0, at = 0; r < r1;) {
    const int64_t image = r / q->down, first = r % q->down, rows = plk_min64(r1 - r, q->down - first);
    for (int64_t c = c0; c < c0 + n; c += q->block)
      loops.input[which(q)]((const float *)q->v->x + (image * q->c + c) * q->h * q->w, &plane, first, rows, v + at * q->c + c, q->c, step);
    r += rows, at += rows * q->across;
  }
}

/* Slice s of tile rows [r0, r1), whose transformed tiles begin at v. */
static void slice_out(const Run *q, int64_t r0, int64_t r1, int64_t s, const float *v, int64_t step, float *m) {
  const PlkConv *p = q->v;
  const int64_t tiles = (r1 - r0) * q->across, area = q->h * q->w;
  for (int ij = 0; ij < 16; ij++) loops.product(v + ij * step, q->u + (s * 16 + ij) * q->c * WIDE, q->c, tiles, m + ij * tiles * WIDE);
  for (int64_t r = r0, at = 0; r < r1;) {
    const int64_t image = r / q->down, first = r % q->down, rows = plk_min64(r1 - r, q->down - first);
    for (int64_t k = 0; k < WIDE && s * WIDE + k < q->o; k += q->block) {
      const int64_t o = s * WIDE + k, from = (image * q->o + o) * area;
      const PlkBlockPlane plane = {
          q->h, q->w, (float *)p->y + from, p->bias ? (const float *)p->bias + o : NULL, p->addend ? p->addend + from : NULL, p->relu};
      loops.output[which(q)](m + at * WIDE + k, tiles * WIDE, &plane, first, rows);
    }
    r += rows, at += rows * q->across;
  }
}

static PlStatus run_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  const int64_t most = q->rows * q->across;
  void *mem;
  PL_TRY(plk_scratch((size_t)(16 * most * (q->c + WIDE)) * sizeof(float), &mem));
  float *v = mem, *m = v + 16 * most * q->c;
  for (int64_t unit = begin; unit < end; unit++) {
    const int64_t r0 = unit / q->ngroup * q->rows, r1 = plk_min64(r0 + q->rows, q->v->n * q->down);
    const int64_t s0 = unit % q->ngroup * q->group, s1 = plk_min64(s0 + q->group, q->nslice), step = (r1 - r0) * q->across * q->c;
    tiles_in(q, r0, r1, 0, q->c, v, step);
    for (int64_t s = s0; s < s1; s++) slice_out(q, r0, r1, s, v, step, m);
  }
  plk_scratch_free(mem);
  return PL_OK;
}

static PlStatus in_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  tiles_in(q, 0, q->v->n * q->down, begin * q->block, (end - begin) * q->block, q->all, q->tiles * q->c);
  return PL_OK;
}

/* Units: slices, each in runs. */
static PlStatus out_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  void *mem;
  PL_TRY(plk_scratch((size_t)(16 * q->rows * q->across * WIDE) * sizeof(float), &mem));
  for (int64_t unit = begin; unit < end; unit++) {
    const int64_t r0 = unit % q->nrun * q->rows, r1 = plk_min64(r0 + q->rows, q->v->n * q->down);
    slice_out(q, r0, r1, unit / q->nrun, q->all + r0 * q->across * q->c, q->tiles * q->c, mem);
  }
  plk_scratch_free(mem);
  return PL_OK;
}

static void cut(Run *q, int64_t tiles) {
  const int64_t all = q->v->n * q->down;
  q->rows = plk_min64(all, plk_max64(1, tiles / q->across));
  q->nrun = plk_ceil_div(all, q->rows);
}

/* x and y in blocks. */
static PlStatus compute(const PlkConv *v, const float *u) {
  Run q = {.v = v, .h = v->in[1], .w = v->in[2], .c = v->c, .o = v->o, .u = u, .block = v->xblock};
  q.down = plk_ceil_div(q.h, 2), q.across = plk_ceil_div(q.w, 2);
  q.tiles = v->n * q.down * q.across;
  q.nslice = plk_ceil_div(v->o, WIDE);
  cut(&q, plk_min64(plk_max64(FEW, STAYS / (16 * (q.c + WIDE))), plk_max64(FEW, q.tiles / UNITS)));
  if (q.nrun >= RUNS) {
    q.group = plk_ceil_div(q.nslice, plk_min64(q.nslice, plk_ceil_div(UNITS, q.nrun)));
    q.ngroup = plk_ceil_div(q.nslice, q.group);
    return plk_parallel(q.nrun * q.ngroup, 1, run_body, &q);
  }
  void *mem;
  PL_TRY(plk_scratch((size_t)(16 * q.tiles * q.c) * sizeof(float), &mem));
  q.all = mem;
  cut(&q, PIECE);
  PlStatus s = plk_parallel(q.c / q.block, plk_max64(1, PLK_GRAIN / 4 / (16 * q.tiles * q.block)), in_body, &q);
  if (s == PL_OK) s = plk_parallel(q.nslice * q.nrun, 1, out_body, &q);
  plk_scratch_free(mem);
  return s;
}

/* Plain images, some at a time: the same numbers. */
static PlStatus compute_plain(const PlkConv *v, const float *u) {
  const int64_t xn = v->c * v->insize, yn = v->o * v->outsize, b = v->xblock ? v->xblock : v->yblock ? v->yblock : 16;
  const int64_t xs = v->xblock ? 0 : xn, ys = v->yblock ? 0 : yn, few = plk_min64(v->n, plk_max64(1, TURNED / plk_max64(1, xs + ys)));
  void *mem;
  PlStatus s = PL_OK;
  PL_TRY(plk_scratch((size_t)(few * (xs + ys)) * sizeof(float), &mem));
  for (int64_t i = 0; i < v->n && s == PL_OK; i += few) {
    PlkConv f = *v;
    f.n = plk_min64(few, v->n - i);
    f.x = (float *)v->x + i * xn, f.y = (float *)v->y + i * yn;
    if (v->addend) f.addend = v->addend + i * yn;
    float *x = f.x, *y = f.y;
    if (xs) {
      s = plk_conv_reblock(mem, x, f.n * v->c, v->insize, b, true);
      f.x = mem;
    }
    if (ys) f.y = (float *)mem + few * xs, f.addend = NULL, f.relu = false; /* an addend lies as y does */
    f.xblock = f.yblock = b;
    if (s == PL_OK) s = compute(&f, u);
    if (s == PL_OK && ys) s = plk_conv_reblock(y, f.y, f.n * v->o, v->outsize, b, false);
  }
  plk_scratch_free(mem);
  return s;
}

typedef struct Weights {
  const PlkConv *v;
  float *u;
} Weights;

static PlStatus weights_body(void *ctx, int64_t begin, int64_t end) {
  const Weights *t = ctx;
  for (int64_t s = begin; s < end; s++)
    loops.weights((const float *)t->v->w + s * WIDE * t->v->c * 9, t->v->c, plk_min64(WIDE, t->v->o - s * WIDE),
                  t->u + s * 16 * t->v->c * WIDE);
  return PL_OK;
}

PlStatus plk_conv_winograd_blocks(const PlkConv *v, bool *tail) {
  const int64_t nslice = plk_ceil_div(v->o, WIDE);
  const size_t bytes = (size_t)(nslice * 16 * v->c * WIDE) * sizeof(float);
  void *u = v->kept ? plk_kept_form(v->kept) : NULL, *mem = NULL;
  PlStatus s = PL_OK;
  *tail = v->yblock != 0;
  if (!u) {
    Weights t = {.v = v};
    u = v->kept ? plk_kept_alloc(bytes) : NULL;
    const bool keep = u != NULL;
    if (!keep) {
      PL_TRY(plk_scratch(bytes, &mem));
      u = mem;
    }
    t.u = u;
    s = plk_parallel(nslice, 1, weights_body, &t);
    if (keep && s == PL_OK) u = plk_kept_leave(v->kept, u);
    else if (keep) plk_kept_drop(u);
  }
  if (s == PL_OK) s = v->xblock && v->yblock ? compute(v, u) : compute_plain(v, u);
  plk_scratch_free(mem);
  return s;
}
