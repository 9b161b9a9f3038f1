/* SPDX-License-Identifier: MIT
 * Images read at given places (kernels/grid_sample.h). Forward an image's channels are put side by side in chunks, so that what is
 * read at a place is a few vectors; then blocks of places go to threads. Backward a chunk of one image is one thread's: it adds to
 * the places in their order. */
#include "kernels/grid_sample.h"

#include <string.h>

#include "kernels/cpu/image/grid_sample.h"
#include "kernels/cpu/shape/strided_copy.h"

enum { PACKED_BYTES = 4 << 20 }; /* images that are packed at a time, at least one */

typedef struct Work {
  PlkGrid g;
  PlDtype dtype;                      /* f32 or f64 */
  size_t size;                        /* of an element */
  int64_t chunks;                     /* of an image's channels */
  int64_t width;                      /* channels of a chunk */
  const char *x, *grid, *dy;          /* of the whole batch */
  char *y, *dx, *dgrid, *room, *part; /* room: packed images; part: gradients of the grid by chunk, NULL: there is one */
  int64_t image;                      /* the first one in room */
} Work;

static int64_t blocks_of(const PlkGrid *g) { return (g->places + PLK_GRID_BLOCK - 1) / PLK_GRID_BLOCK; }
static int64_t chunk_elements(const Work *w) { return (w->g.volume + 1) * w->width; }
static int64_t chunk_channels(const Work *w, int64_t chunk) { return plk_min64(w->width, w->g.C - chunk * w->width); }

/* Channels side by side where there are three or more, and enough places for them to be worth a copy of the image. */
static int lanes_of(const PlkGrid *g, size_t size) {
  if (g->C < 3 || g->places < g->volume / 4) return 0;
  return g->C <= PLK_GRID_FEW ? PLK_GRID_FEW : (int)(64 / size);
}

static void describe(Work *w, const PlAttrs *a, const PlArray *x, const PlArray *grid) {
  memset(w, 0, sizeof *w);
  PlkGrid *g = &w->g;
  g->nd = x->ndim - 2;
  g->mode = (int)pl_attr_i(a, 0), g->padding = (int)pl_attr_i(a, 1), g->align = pl_attr_i(a, 2) != 0;
  g->N = x->shape[0], g->C = x->shape[1], g->places = g->volume = 1;
  for (int d = 0; d < g->nd; d++) {
    g->size[d] = x->shape[d + 2];
    g->volume *= g->size[d], g->places *= grid->shape[d + 1];
  }
  w->dtype = x->dtype == PL_F64 ? PL_F64 : PL_F32;
  w->size = pl_dtype_size(w->dtype);
  g->turn = plk_transpose(w->size);
  g->lanes = lanes_of(g, w->size);
  w->width = g->lanes ? g->lanes : (int64_t)(64 / w->size);
  w->chunks = (g->C + w->width - 1) / w->width;
}

static const char *plane_of(const Work *w, const char *base, int64_t n, int64_t c, int64_t elements) {
  return base + (size_t)((n * w->g.C + c) * elements) * w->size;
}

/* A chunk of x: a row of zeros, then the places. */
static void pack(const Work *w, int64_t n, int64_t chunk, char *to) {
  const int64_t channels = chunk_channels(w, chunk);
  if (channels < w->width) memset(to, 0, (size_t)chunk_elements(w) * w->size);
  else memset(to, 0, (size_t)w->width * w->size);
  w->g.turn(to + (size_t)w->width * w->size, w->width, plane_of(w, w->x, n, chunk * w->width, w->g.volume), w->g.volume, channels,
            w->g.volume);
}

static PlStatus pack_body(void *ctx, int64_t begin, int64_t end) {
  const Work *w = ctx;
  for (int64_t i = begin; i < end; i++)
    pack(w, w->image + i / w->chunks, i % w->chunks, w->room + (size_t)(i * chunk_elements(w)) * w->size);
  return PL_OK;
}

static PlStatus sample_body(void *ctx, int64_t begin, int64_t end) {
  const Work *w = ctx;
  const PlkGrid *g = &w->g;
  const PlkGridLoops *l = &PLK_ISA_PICK(plk_grid_loops);
  for (int64_t i = begin; i < end; i++) {
    const int64_t n = w->image + i / blocks_of(g), from = i % blocks_of(g) * PLK_GRID_BLOCK;
    const int64_t many = plk_min64(PLK_GRID_BLOCK, g->places - from);
    const char *x =
        g->lanes ? w->room + (size_t)((n - w->image) * w->chunks * chunk_elements(w)) * w->size : plane_of(w, w->x, n, 0, g->volume);
    const char *grid = w->grid + (size_t)((n * g->places + from) * g->nd) * w->size;
    char *y = w->y + (size_t)(n * g->C * g->places + from) * w->size;
    if (w->dtype == PL_F32) l->sample_f32(g, (const float *)(const void *)grid, many, (const float *)(const void *)x, (float *)(void *)y);
    else l->sample_f64(g, (const double *)(const void *)grid, many, (const double *)(const void *)x, (double *)(void *)y);
    if (i % 64 == 63) PL_TRY(plk_poll());
  }
  return PL_OK;
}

static PlStatus sample(Work *w) {
  const PlkGrid *g = &w->g;
  const int64_t image = w->chunks * chunk_elements(w), block = plk_max64(1, PLK_GRAIN / plk_max64(1, g->C * PLK_GRID_BLOCK));
  int64_t images = g->N;
  void *room = NULL;
  if (g->lanes) {
    images = plk_max64(1, plk_min64(g->N, PACKED_BYTES / (image * (int64_t)w->size)));
    PL_TRY(plk_scratch((size_t)(images * image) * w->size, &room));
  }
  w->room = room;
  PlStatus s = PL_OK;
  for (w->image = 0; w->image < g->N && s == PL_OK; w->image += images) {
    const int64_t here = plk_min64(images, g->N - w->image);
    if (g->lanes) s = plk_parallel(here * w->chunks, plk_max64(1, PLK_GRAIN / chunk_elements(w)), pack_body, w);
    if (s == PL_OK) s = plk_parallel(here * blocks_of(g), block, sample_body, w);
  }
  plk_scratch_free(room);
  return s;
}

/* ---- gradients ---- */

/* Image n and one of its chunks: dx there, and what these channels give to dgrid. */
static PlStatus back_chunk(const Work *w, int64_t n, int64_t chunk, char *x, char *dx, char *dgrid) {
  const PlkGrid *g = &w->g;
  const PlkGridLoops *l = &PLK_ISA_PICK(plk_grid_loops);
  const int64_t channels = chunk_channels(w, chunk);
  const char *dy = plane_of(w, w->dy, n, chunk * w->width, g->places), *grid = w->grid + (size_t)(n * g->places * g->nd) * w->size;
  for (int64_t from = 0; from < g->places; from += PLK_GRID_BLOCK) {
    const int64_t many = plk_min64(PLK_GRID_BLOCK, g->places - from);
    const void *at = grid + (size_t)(from * g->nd) * w->size, *d = dy + (size_t)from * w->size;
    void *out = dgrid ? dgrid + (size_t)(from * g->nd) * w->size : NULL;
    if (w->dtype == PL_F32) l->back_f32(g, at, many, channels, (const void *)x, d, (void *)dx, out);
    else l->back_f64(g, at, many, channels, (const void *)x, d, (void *)dx, out);
    if (from / PLK_GRID_BLOCK % 64 == 63) PL_TRY(plk_poll());
  }
  return PL_OK;
}

static PlStatus back_body(void *ctx, int64_t begin, int64_t end) {
  const Work *w = ctx;
  const PlkGrid *g = &w->g;
  const size_t chunk_bytes = (size_t)chunk_elements(w) * w->size;
  void *mem = NULL;
  if (g->lanes) PL_TRY(plk_scratch(2 * chunk_bytes, &mem));
  PlStatus s = PL_OK;
  for (int64_t i = begin; i < end && s == PL_OK; i++) {
    const int64_t n = i / w->chunks, chunk = i % w->chunks, c = chunk * w->width;
    char *x = mem, *dx = w->dx ? (char *)mem + (g->lanes ? chunk_bytes : 0) : NULL;
    char *const to = w->dx ? w->dx + (size_t)((n * g->C + c) * g->volume) * w->size : NULL;
    char *const dgrid = w->part    ? w->part + (size_t)(chunk * g->N + n) * (size_t)(g->places * g->nd) * w->size
                        : w->dgrid ? w->dgrid + (size_t)(n * g->places * g->nd) * w->size
                                   : NULL;
    if (g->lanes) {
      if (dgrid) pack(w, n, chunk, x);
      if (dx) memset(dx, 0, chunk_bytes);
    } else {
      x = (char *)(uintptr_t)plane_of(w, w->x, n, c, g->volume); /* read only */
      dx = to;
      if (dx) memset(dx, 0, (size_t)(chunk_channels(w, chunk) * g->volume) * w->size);
    }
    s = back_chunk(w, n, chunk, x, dx, dgrid);
    if (g->lanes && dx && s == PL_OK)
      g->turn(to, g->volume, dx + (size_t)w->width * w->size, w->width, g->volume, chunk_channels(w, chunk));
  }
  plk_scratch_free(mem);
  return s;
}

/* The chunks' parts of dgrid, in order. */
static PlStatus sum_body(void *ctx, int64_t begin, int64_t end) {
  const Work *w = ctx;
  const int64_t all = w->g.N * w->g.places * w->g.nd;
  for (int64_t i = begin; i < end; i++) {
    if (w->dtype == PL_F32) {
      const float *p = (const float *)(const void *)w->part + i;
      float sum = *p;
      for (int64_t k = 1; k < w->chunks; k++) sum += p[k * all];
      ((float *)(void *)w->dgrid)[i] = sum;
    } else {
      const double *p = (const double *)(const void *)w->part + i;
      double sum = *p;
      for (int64_t k = 1; k < w->chunks; k++) sum += p[k * all];
      ((double *)(void *)w->dgrid)[i] = sum;
    }
  }
  return PL_OK;
}

static PlStatus back(Work *w) {
  const PlkGrid *g = &w->g;
  const int64_t all = g->N * g->places * g->nd, work = plk_max64(1, (g->places + g->volume) * plk_min64(w->width, g->C));
  void *part = NULL;
  if (w->dgrid && w->chunks == 0) memset(w->dgrid, 0, (size_t)all * w->size);
  if (w->dgrid && w->chunks > 1) PL_TRY(plk_scratch((size_t)(w->chunks * all) * w->size, &part));
  w->part = part;
  PlStatus s = plk_parallel(g->N * w->chunks, plk_max64(1, PLK_GRAIN / work), back_body, w);
  if (part && s == PL_OK) s = plk_parallel(all, PLK_GRAIN, sum_body, w);
  plk_scratch_free(part);
  return s;
}

/* ---- calls ---- */

static PlStatus convert(void *dst, PlDtype to, const void *src, PlDtype from, int64_t n) {
  PlkNd walk = {.n = 0};
  plk_nd_dim(&walk, n, 1, 1);
  return plk_nd_cast(dst, to, src, from, &walk);
}

/* Halves: the arrays in f32, outputs behind inputs. Others stay where they are. */
typedef struct Wide {
  const PlkCall *call;
  void *in[3], *out[2];
} Wide;

static void narrow_end(Wide *h) {
  for (int i = 0; i < 3; i++)
    if (h->in[i] && h->in[i] != h->call->in[i]->data) plk_scratch_free(h->in[i]);
  for (int o = 0; o < 2; o++)
    if (h->out[o] && h->out[o] != h->call->out[o]->data) plk_scratch_free(h->out[o]);
}

static PlStatus widen(Wide *h, const PlkCall *call) {
  *h = (Wide){.call = call};
  PlStatus s = PL_OK;
  for (int i = 0; i < call->nin && s == PL_OK; i++) {
    const PlArray *a = call->in[i];
    if (a->dtype == PL_F32 || a->dtype == PL_F64) {
      h->in[i] = a->data;
      continue;
    }
    s = plk_scratch((size_t)a->numel * sizeof(float), &h->in[i]);
    if (s == PL_OK) s = convert(h->in[i], PL_F32, a->data, (PlDtype)a->dtype, a->numel);
  }
  for (int o = 0; o < call->nout && s == PL_OK; o++) {
    PlArray *a = call->out[o];
    if (!a) continue;
    if (a->dtype == PL_F32 || a->dtype == PL_F64) h->out[o] = a->data;
    else s = plk_scratch((size_t)a->numel * sizeof(float), &h->out[o]);
  }
  if (s != PL_OK) narrow_end(h);
  return s;
}

static PlStatus narrow(Wide *h, PlStatus s) {
  for (int o = 0; o < h->call->nout && s == PL_OK; o++) {
    PlArray *a = h->call->out[o];
    if (a && h->out[o] != a->data) s = convert(a->data, (PlDtype)a->dtype, h->out[o], PL_F32, a->numel);
  }
  narrow_end(h);
  return s;
}

PlStatus plk_cpu_grid_sample(const PlkCall *call) {
  Work w;
  Wide h;
  if (call->out[0]->numel == 0) return PL_OK;
  describe(&w, call->attrs, call->in[0], call->in[1]);
  PL_TRY(widen(&h, call));
  w.x = h.in[0], w.grid = h.in[1], w.y = h.out[0];
  return narrow(&h, sample(&w));
}

PlStatus plk_cpu_grid_sample_bwd(const PlkCall *call) {
  Work w;
  Wide h;
  describe(&w, call->attrs, call->in[1], call->in[2]);
  PL_TRY(widen(&h, call));
  w.dy = h.in[0], w.x = h.in[1], w.grid = h.in[2], w.dx = h.out[0], w.dgrid = h.out[1];
  return narrow(&h, w.dx || w.dgrid ? back(&w) : PL_OK);
}
