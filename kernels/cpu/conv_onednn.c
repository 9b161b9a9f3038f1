/* SPDX-License-Identifier: MIT
 * f32 convolution through oneDNN, in its blocked layouts. The library's own teams make
 * weight gradients depend on the number of threads, so the work is cut here, by shape
 * alone: about eight units, each some images and, where there are fewer images than that,
 * some channels, each run by one thread. Reordering from and to NCHW happens inside the
 * unit, while its part is in cache. */
#include <string.h>

#include "kernels/cpu/conv.h"

#ifndef PLK_HAVE_ONEDNN

PlStatus plk_conv_onednn(const PlkConv *v, bool *done) {
  (void)v;
  *done = false;
  return PL_OK;
}

#else

enum { UNITS = 8, LANES = 16, PART_ELEMENTS = 1 << 25 };
static const double POLL_MACS = 2e9; /* about 20 ms */
static const double SLICE_MACS = 1 << 24;

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
static int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

typedef struct Cut {
  const PlkConv *v;
  int64_t images, nimages; /* images of a unit; units along the batch */
  int64_t width, nslice; /* channels of a unit (of y, or of x for dx); units along them */
  PlkConvPlan *
      plan[2][2]; /* [last unit along the batch][last slice], as their sizes may differ */
  char *wblocked; /* blocked weights of (batch kind, slice), at a fixed distance */
  size_t wbytes;
  float *parts; /* dw: one plain partial sum for each unit along the batch */
} Cut;

static void cut(Cut *q, const PlkConv *v) {
  const double macs = plk_conv_macs(v);
  const bool dx = v->kind == PLK_CONV_BWD_INPUT;
  q->v = v;
  q->images = ceil_div(v->n, UNITS);
  if ((double)q->images * macs > POLL_MACS)
    q->images = max64(1, (int64_t)(POLL_MACS / macs));
  if (v->kind == PLK_CONV_BWD_WEIGHT) {
    const int64_t most = PART_ELEMENTS / plk_conv_numel(v, PLK_CONV_W);
    q->images = max64(q->images, ceil_div(v->n, max64(1, min64(64, most))));
  }
  q->nimages = ceil_div(v->n, q->images);
  q->width = dx ? v->c : v->o;
  q->nslice = 1;
  if (v->g == 1 && v->n < UNITS && macs * (double)v->n >= SLICE_MACS) {
    const int64_t want = min64(ceil_div(UNITS, v->n), max64(1, q->width / LANES));
    const int64_t whole = q->width;
    q->width = ceil_div(ceil_div(whole, want), LANES) * LANES;
    q->nslice = ceil_div(whole, q->width);
    q->width = min64(q->width, whole);
  }
}

static int64_t unit_images(const Cut *q, int64_t b) {
  return min64(q->images, q->v->n - b * q->images);
}
static int64_t unit_width(const Cut *q, int64_t s) {
  return min64(q->width,
               (q->v->kind == PLK_CONV_BWD_INPUT ? q->v->c : q->v->o) - s * q->width);
}

static void key_of(const Cut *q, int64_t b, int64_t s, PlkConvKey *k) {
  const PlkConv *v = q->v;
  memset(k, 0, sizeof *k);
  k->kind = v->kind, k->nd = v->nd, k->has_bias = v->bias != NULL;
  k->n = unit_images(q, b), k->g = v->g, k->c = v->c, k->o = v->o;
  if (v->kind == PLK_CONV_BWD_INPUT)
    k->c = unit_width(q, s);
  else
    k->o = unit_width(q, s);
  for (int i = 0; i < v->nd; i++) {
    const int at = 3 - v->nd + i;
    k->in[i] = v->in[at], k->k[i] = v->k[at], k->out[i] = v->out[at];
    k->stride[i] = v->stride[at], k->pad[i] = v->pad[at], k->dil[i] = v->dil[at];
  }
  k->xn = v->g * v->c * v->insize;
  k->yn = v->g * v->o * v->outsize;
  k->wo = v->c * v->ksize;
}

static PlkConvPlan *plan_of(const Cut *q, int64_t b, int64_t s) {
  return q->plan[b == q->nimages - 1][s == q->nslice - 1];
}

/* Fills the plans that some unit uses; *all false if the library has no fast form of one.
 */
static PlStatus plans_get(Cut *q, bool *all) {
  *all = true;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      if ((!i && q->nimages == 1) || (!j && q->nslice == 1)) continue;
      PlkConvKey key;
      key_of(q, i ? q->nimages - 1 : 0, j ? q->nslice - 1 : 0, &key);
      PL_TRY(plk_onednn_conv_get(&key, &q->plan[i][j]));
      if (!q->plan[i][j]) *all = false;
    }
  return PL_OK;
}

/* The part of x, w or y that unit (b, s) works on. */
static float *part_of(const Cut *q, int which, int64_t b, int64_t s) {
  const PlkConv *v = q->v;
  const int64_t from = s * q->width;
  const bool dx = v->kind == PLK_CONV_BWD_INPUT;
  if (which == PLK_CONV_X)
    return (float *)v->x + b * q->images * v->g * v->c * v->insize +
           (dx ? from * v->insize : 0);
  if (which == PLK_CONV_Y)
    return (float *)v->y + b * q->images * v->g * v->o * v->outsize +
           (dx ? 0 : from * v->outsize);
  if (v->kind == PLK_CONV_BWD_WEIGHT)
    return q->parts + b * plk_conv_numel(v, PLK_CONV_W) + from * v->c * v->ksize;
  return (float *)v->w + from * (dx ? 1 : v->c) * v->ksize;
}

static char *blocked_weights(const Cut *q, int64_t b, int64_t s) {
  return q->wblocked + (size_t)((b == q->nimages - 1 ? q->nslice : 0) + s) * q->wbytes;
}

/* Weights are blocked once for all units, in the form that each kind of unit asks for. */
static PlStatus weights_prepare(Cut *q) {
  if (q->v->kind == PLK_CONV_BWD_WEIGHT) return PL_OK;
  for (int i = 0; i < 4; i++) {
    const PlkConvPlan *p = q->plan[i / 2][i % 2];
    const size_t bytes = p ? plk_onednn_conv_bytes(p, PLK_CONV_W) : 0;
    if (bytes > q->wbytes) q->wbytes = (bytes + 63) / 64 * 64;
  }
  if (q->wbytes == 0) return PL_OK;
  void *mem;
  PL_TRY(plk_scratch(q->wbytes * (size_t)q->nslice * 2, &mem));
  q->wblocked = mem;
  for (int last = q->nimages == 1; last < 2; last++)
    for (int64_t s = 0; s < q->nslice; s++) {
      const int64_t b = last ? q->nimages - 1 : 0;
      const PlkConvPlan *p = plan_of(q, b, s);
      if (plk_onednn_conv_bytes(p, PLK_CONV_W) == 0) continue;
      PL_TRY(plk_onednn_conv_reorder(p, PLK_CONV_W, part_of(q, PLK_CONV_W, b, s),
                                     blocked_weights(q, b, s)));
    }
  return PL_OK;
}

static size_t padded(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

static PlStatus unit_run(const Cut *q, int64_t b, int64_t s) {
  const PlkConv *v = q->v;
  const PlkConvPlan *p = plan_of(q, b, s);
  const int out = v->kind == PLK_CONV_FWD         ? PLK_CONV_Y
                  : v->kind == PLK_CONV_BWD_INPUT ? PLK_CONV_X
                                                  : PLK_CONV_W;
  float *plain[3];
  void *use[3];
  size_t need = padded(plk_onednn_conv_scratch(p)), size[3];
  for (int i = 0; i < 3; i++) {
    use[i] = plain[i] = part_of(q, i, b, s);
    size[i] = plk_onednn_conv_bytes(p, i);
    if (size[i] && i == PLK_CONV_W && out != PLK_CONV_W) {
      use[i] = blocked_weights(q, b, s);
      size[i] = 0;
    }
    need += padded(size[i]);
  }
  void *mem = NULL;
  if (need) PL_TRY(plk_scratch(need, &mem));
  char *at = mem;
  PlStatus st = PL_OK;
  for (int i = 0; i < 3 && st == PL_OK; i++) {
    if (!size[i]) continue;
    use[i] = at;
    at += padded(size[i]);
    if (i != out) st = plk_onednn_conv_reorder(p, i, plain[i], use[i]);
  }
  float *bias = v->bias ? (float *)(uintptr_t)v->bias + s * q->width : NULL;
  if (st == PL_OK) st = plk_onednn_conv_run(p, use[0], use[1], use[2], bias, at);
  if (st == PL_OK && size[out])
    st = plk_onednn_conv_reorder(p, out, plain[out], use[out]);
  plk_scratch_free(mem);
  return st;
}

static PlStatus body(void *ctx, int64_t begin, int64_t end) {
  const Cut *q = ctx;
  for (int64_t u = begin; u < end; u++) PL_TRY(unit_run(q, u / q->nslice, u % q->nslice));
  return PL_OK;
}

static PlStatus run(Cut *q) {
  const PlkConv *v = q->v;
  const int64_t size = plk_conv_numel(v, PLK_CONV_W);
  void *mem = NULL;
  PL_TRY(weights_prepare(q));
  if (v->kind == PLK_CONV_BWD_WEIGHT) {
    q->parts = v->w;
    if (q->nimages > 1) {
      PL_TRY(plk_scratch((size_t)(q->nimages * size) * sizeof(float), &mem));
      q->parts = mem;
    }
  }
  PlStatus s = plk_parallel(q->nimages * q->nslice, 1, body, q);
  if (s == PL_OK && mem) s = plk_conv_join(PL_F32, v->w, mem, q->nimages, size);
  plk_scratch_free(mem);
  return s;
}

PlStatus plk_conv_onednn(const PlkConv *v, bool *done) {
  Cut q;
  memset(&q, 0, sizeof q);
  cut(&q, v);
  PlStatus s = plans_get(&q, done);
  if (s == PL_OK && *done) s = run(&q);
  plk_scratch_free(q.wblocked);
  for (int i = 0; i < 4; i++) plk_onednn_conv_put(q.plan[i / 2][i % 2]);
  return s;
}

#endif
