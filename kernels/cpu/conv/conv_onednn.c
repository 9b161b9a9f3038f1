/* SPDX-License-Identifier: MIT
 * f32 and bf16 convolution through oneDNN, in its blocked layouts. The library's own teams make weight gradients depend
 * on the number of threads, so the work is cut here, by shape alone, into units of some images and some channels
 * (conv_partition.c), each run by one thread. What one unit alone reads or writes is reordered from and to NCHW inside
 * the unit, while it is in cache; what several read is reordered once, ahead of them. Forward takes image by image, so
 * that an image's bits do not depend on the others, and x and y may be in blocks already (kernels/conv.h). */
#include <string.h>

#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/sizes.h"

#ifndef PLK_HAVE_ONEDNN

PlStatus plk_conv_onednn(const PlkConv *v, bool *done) {
  (void)v;
  *done = false;
  return PL_OK;
}

PlStatus plk_conv_onednn_takes(const PlkConv *v, bool *takes) { return plk_conv_onednn(v, takes); }

#else

/* More than this is not blocked ahead. */
static const size_t COMMON_BYTES = 64 << 20;
/* Blocked weights are kept where each is used for fewer multiplications than this: beyond, blocking them is less than a 30th. */
enum { KEPT_USES = 1024 };

typedef struct Run {
  const PlkConv *v;
  PlkConvCut cut;
  PlkConvPlan *plan[2][2]; /* [last unit along the batch][last slice], as their sizes may differ */
  char *wblocked;          /* blocked weights of each slice, at a fixed distance */
  size_t wbytes;
  bool wkept;        /* they are not this call's */
  bool last_differs; /* the last unit along the batch has its own form of them */
  char *common;      /* blocked images of the tensor that all slices read; NULL: each unit blocks its own */
  size_t image_bytes;
  float *parts; /* dw: one plain partial sum for each unit along the batch */
} Run;

static int64_t unit_images(const Run *q, int64_t b) { return plk_min64(q->cut.images, q->v->n - b * q->cut.images); }
/* Images of one run of the library's. */
static int64_t run_images(const Run *q, int64_t b) { return q->v->kind == PLK_CONV_FWD ? 1 : unit_images(q, b); }
static int64_t unit_width(const Run *q, int64_t s) { return plk_min64(q->cut.width, q->cut.whole - s * q->cut.width); }
/* The tensor that every slice reads; -1: none. */
static int common_of(const Run *q) {
  if (q->cut.nslice == 1 || q->cut.along == PLK_ALONG_GROUPS) return -1;
  return q->cut.along == PLK_ALONG_INPUT ? PLK_CONV_Y : PLK_CONV_X;
}

static void key_of(const Run *q, int64_t b, int64_t s, PlkConvKey *k) {
  const PlkConv *v = q->v;
  memset(k, 0, sizeof *k);
  k->kind = v->kind, k->nd = v->nd, k->has_bias = v->bias != NULL;
  k->bf16 = v->dtype == PL_BF16;
  k->common = common_of(q);
  k->n = run_images(q, b), k->g = v->g, k->c = v->c, k->o = v->o;
  *(q->cut.along == PLK_ALONG_INPUT ? &k->c : q->cut.along == PLK_ALONG_OUTPUT ? &k->o : &k->g) = unit_width(q, s);
  for (int i = 0; i < v->nd; i++) {
    const int at = 3 - v->nd + i;
    k->in[i] = v->in[at], k->k[i] = v->k[at], k->out[i] = v->out[at];
    k->stride[i] = v->stride[at], k->pad[i] = v->pad[at], k->dil[i] = v->dil[at];
  }
  k->xn = v->g * v->c * v->insize;
  k->yn = v->g * v->o * v->outsize;
  k->wo = v->c * v->ksize;
  k->xblock = v->xblock, k->yblock = v->yblock;
}

static PlkConvPlan *plan_of(const Run *q, int64_t b, int64_t s) { return q->plan[b == q->cut.nimages - 1][s == q->cut.nslice - 1]; }

/* Fills the plans that some unit uses; *all false if the library has no fast form of one.
 */
static PlStatus plans_get(Run *q, bool *all) {
  *all = true;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      if ((!i && q->cut.nimages == 1) || (!j && q->cut.nslice == 1)) continue;
      PlkConvKey key;
      key_of(q, i ? q->cut.nimages - 1 : 0, j ? q->cut.nslice - 1 : 0, &key);
      PL_TRY(plk_onednn_conv_get(&key, &q->plan[i][j]));
      if (!q->plan[i][j]) *all = false;
    }
  return PL_OK;
}

/* The part of x, w or y that slice s works on, from that image on. */
static char *part_of(const Run *q, int which, int64_t image, int64_t s) {
  const PlkConv *v = q->v;
  const int64_t from = s * q->cut.width;
  int64_t x = 0, y = 0, w = 0; /* first channels of x and y; first element of w */
  if (q->cut.along == PLK_ALONG_GROUPS) x = from * v->c, y = from * v->o, w = y * v->c * v->ksize;
  if (q->cut.along == PLK_ALONG_INPUT) x = from, w = from * v->ksize;
  if (q->cut.along == PLK_ALONG_OUTPUT) y = from, w = from * v->c * v->ksize;
  const int64_t size = (int64_t)pl_dtype_size(v->dtype);
  if (which == PLK_CONV_X) return (char *)v->x + (image * v->g * v->c + x) * v->insize * size;
  if (which == PLK_CONV_Y) return (char *)v->y + (image * v->g * v->o + y) * v->outsize * size;
  if (v->kind == PLK_CONV_BWD_WEIGHT) return (char *)(q->parts + image / q->cut.images * plk_conv_numel(v, PLK_CONV_W) + w);
  return (char *)v->w + w * size;
}

/* Weights are blocked once for all units. The last unit along the batch has its own form of them only where the
 * library wants another layout for fewer images. */
static char *blocked_weights(const Run *q, int64_t b, int64_t s) {
  const bool own = q->last_differs && b == q->cut.nimages - 1;
  return q->wblocked + (size_t)((own ? q->cut.nslice : 0) + s) * q->wbytes;
}

static PlStatus weights_body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  for (int64_t u = begin; u < end; u++) {
    const int64_t s = u % q->cut.nslice, b = u < q->cut.nslice ? 0 : q->cut.nimages - 1;
    const PlkConvPlan *p = plan_of(q, b, s);
    if (plk_onednn_conv_bytes(p, PLK_CONV_W) == 0) continue;
    PL_TRY(plk_onednn_conv_reorder(p, PLK_CONV_W, part_of(q, PLK_CONV_W, b * q->cut.images, s), blocked_weights(q, b, s)));
  }
  return PL_OK;
}

static PlStatus weights_prepare(Run *q) {
  if (q->v->kind == PLK_CONV_BWD_WEIGHT) return PL_OK;
  for (int i = 0; i < 4; i++) {
    const PlkConvPlan *p = q->plan[i / 2][i % 2], *last = q->plan[1][i % 2];
    const size_t bytes = p ? plk_onednn_conv_bytes(p, PLK_CONV_W) : 0;
    if (bytes > q->wbytes) q->wbytes = (bytes + 63) / 64 * 64;
    if (p && !plk_onednn_conv_same_weights(p, last)) q->last_differs = true;
  }
  if (q->wbytes == 0) return PL_OK;
  const int64_t n = q->cut.nslice * (q->last_differs ? 2 : 1);
  struct PlkKept *kept = q->v->n * q->v->outsize < KEPT_USES ? q->v->kept : NULL;
  void *mem = kept ? plk_kept_form(kept) : NULL;
  q->wkept = mem != NULL;
  q->wblocked = mem;
  if (mem) return PL_OK;
  if (kept) mem = plk_kept_alloc(q->wbytes * (size_t)n);
  const bool keep = mem != NULL;
  if (!keep) PL_TRY(plk_scratch(q->wbytes * (size_t)n, &mem));
  q->wblocked = mem;
  const PlStatus s = plk_parallel(n, 1, weights_body, q);
  if (!keep) return s;
  q->wkept = true;
  if (s == PL_OK) q->wblocked = plk_kept_leave(kept, mem);
  else plk_kept_drop(mem);
  return s;
}

typedef struct Blocking {
  const Run *q;
  char *plain;
  size_t step;
} Blocking;

static PlStatus block_body(void *ctx, int64_t begin, int64_t end) {
  const Blocking *t = ctx;
  const Run *q = t->q;
  for (int64_t i = begin; i < end; i++)
    PL_TRY(plk_onednn_conv_reorder_image(plan_of(q, 0, 0), t->plain + (size_t)i * t->step, q->common + (size_t)i * q->image_bytes));
  return PL_OK;
}

/* Blocks the images that all slices read, once, where all plans agree on their layout. */
static PlStatus common_prepare(Run *q) {
  const PlkConv *v = q->v;
  const PlkConvPlan *first = plan_of(q, 0, 0);
  const size_t each = plk_onednn_conv_image_bytes(first);
  if (common_of(q) < 0 || each == 0 || each > COMMON_BYTES / (size_t)v->n) return PL_OK;
  for (int i = 0; i < 4; i++) {
    const PlkConvPlan *p = q->plan[i / 2][i % 2];
    if (p && !plk_onednn_conv_same_images(first, p)) return PL_OK;
  }
  void *mem;
  PL_TRY(plk_scratch(each * (size_t)v->n, &mem));
  q->common = mem;
  q->image_bytes = each;
  const bool x = common_of(q) == PLK_CONV_X;
  Blocking t = {q, x ? v->x : v->y, (size_t)(x ? v->g * v->c * v->insize : v->g * v->o * v->outsize) * pl_dtype_size(v->dtype)};
  return plk_parallel(v->n, plk_max64(1, PLK_GRAIN * (int64_t)sizeof(float) / (int64_t)t.step), block_body, &t);
}

static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* The tail of what was written of an image, in cache: the channels from `first` on, which lie together. */
static void image_tail(const Run *q, int64_t image, int64_t first) {
  const PlkConv *v = q->v;
  const int64_t whole = v->g * v->o, width = q->cut.along == PLK_ALONG_GROUPS ? q->cut.width * v->o : q->cut.width;
  const int64_t n = plk_min64(width, whole - first);
  plk_conv_tail(v, (image * whole + first) * v->outsize, n * v->outsize);
}

/* Slice s of the images of unit b from that one on: of one, forward, else of all. */
static PlStatus images_run(const Run *q, int64_t b, int64_t image, int64_t s) {
  const PlkConv *v = q->v;
  const PlkConvPlan *p = plan_of(q, b, s);
  const int out = v->kind == PLK_CONV_FWD ? PLK_CONV_Y : v->kind == PLK_CONV_BWD_INPUT ? PLK_CONV_X : PLK_CONV_W;
  void *plain[3], *use[3];
  size_t need = padded(plk_onednn_conv_scratch(p)), size[3];
  for (int i = 0; i < 3; i++) {
    use[i] = plain[i] = part_of(q, i, image, s);
    size[i] = plk_onednn_conv_bytes(p, i);
    if (size[i] && i == PLK_CONV_W && out != PLK_CONV_W) {
      use[i] = blocked_weights(q, b, s);
      size[i] = 0;
    }
    if (size[i] && q->common && i == common_of(q)) {
      use[i] = q->common + (size_t)image * q->image_bytes;
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
  const int64_t first = s * q->cut.width * (q->cut.along == PLK_ALONG_GROUPS ? v->o : 1);
  void *bias = v->bias ? (char *)(uintptr_t)v->bias + first * (int64_t)pl_dtype_size(v->dtype) : NULL;
  if (st == PL_OK) st = plk_onednn_conv_run(p, use[0], use[1], use[2], bias, at);
  if (st == PL_OK && size[out]) st = plk_onednn_conv_reorder(p, out, plain[out], use[out]);
  if (st == PL_OK && (v->addend || v->relu)) image_tail(q, image, first);
  plk_scratch_free(mem);
  return st;
}

static PlStatus body(void *ctx, int64_t begin, int64_t end) {
  const Run *q = ctx;
  for (int64_t u = begin; u < end; u++) {
    const int64_t b = u / q->cut.nslice, s = u % q->cut.nslice, first = b * q->cut.images, n = unit_images(q, b);
    for (int64_t i = 0; i < n; i += run_images(q, b)) PL_TRY(images_run(q, b, first + i, s));
  }
  return PL_OK;
}

static PlStatus run(Run *q) {
  const PlkConv *v = q->v;
  const int64_t size = plk_conv_numel(v, PLK_CONV_W);
  void *mem = NULL;
  PL_TRY(weights_prepare(q));
  PL_TRY(common_prepare(q));
  if (v->kind == PLK_CONV_BWD_WEIGHT) {
    q->parts = v->w;
    if (q->cut.nimages > 1 || v->dtype == PL_BF16) {
      PL_TRY(plk_scratch((size_t)(q->cut.nimages * size) * sizeof(float), &mem));
      q->parts = mem;
    }
  }
  PlStatus s = plk_parallel(q->cut.nimages * q->cut.nslice, 1, body, q);
  if (s == PL_OK && mem && v->dtype == PL_BF16) {
    s = plk_conv_join(PL_F32, mem, mem, q->cut.nimages, size);
    if (s == PL_OK) plk_isa_tables()->convert->bf16_store(mem, v->w, size);
  } else if (s == PL_OK && mem) s = plk_conv_join(PL_F32, v->w, mem, q->cut.nimages, size);
  plk_scratch_free(mem);
  return s;
}

/* Do the channels that units read and write begin and end between blocks? */
static bool blocks_fit(const Run *q) {
  const PlkConv *v = q->v;
  const int64_t each = q->cut.nslice > 1 ? q->cut.width : q->cut.whole;
  const int64_t x = q->cut.along == PLK_ALONG_GROUPS ? each * v->c : v->g * v->c, y = q->cut.along == PLK_ALONG_GROUPS ? each * v->o : each;
  return (!v->xblock || (x % v->xblock == 0 && v->g * v->c % v->xblock == 0)) &&
         (!v->yblock || (y % v->yblock == 0 && v->g * v->o % v->yblock == 0));
}

static PlStatus plans_of(Run *q, const PlkConv *v, bool *all) {
  memset(q, 0, sizeof *q);
  q->v = v;
  plk_conv_cut(&q->cut, v);
  *all = blocks_fit(q);
  return *all ? plans_get(q, all) : PL_OK;
}

static void plans_put(Run *q) {
  for (int i = 0; i < 4; i++) plk_onednn_conv_put(q->plan[i / 2][i % 2]);
}

PlStatus plk_conv_onednn_takes(const PlkConv *v, bool *takes) {
  Run q;
  PlStatus s = plans_of(&q, v, takes);
  if (s == PL_OK && *takes)
    *takes = !(v->xblock && plk_onednn_conv_bytes(plan_of(&q, 0, 0), PLK_CONV_X)) &&
             !(v->yblock && plk_onednn_conv_bytes(plan_of(&q, 0, 0), PLK_CONV_Y));
  plans_put(&q);
  return s;
}

PlStatus plk_conv_onednn(const PlkConv *v, bool *done) {
  Run q;
  PlStatus s = plans_of(&q, v, done);
  if (s == PL_OK && *done) s = run(&q);
  if (!q.wkept) plk_scratch_free(q.wblocked);
  plk_scratch_free(q.common);
  plans_put(&q);
  return s;
}

#endif
