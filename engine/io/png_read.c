/* SPDX-License-Identifier: MIT
 * Reading PNG through libspng. Everything is decoded as RGBA or RGB of 8 bits; channels nobody wants are dropped in place. */
#include "engine/io/image.h"

#include <stdlib.h>
#include <string.h>

#ifdef PL_HAVE_SPNG
#include <spng.h>

enum { MAX_CHUNK = 64 << 20 };

static PlStatus broken(const char *path, int code) {
  if (code == SPNG_EMEM) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  return pl_file_bad(path, "broken PNG: %s", spng_strerror(code));
}

/* Gray of the luma weights of ITU-R BT.601, in 16 bits. */
static uint8_t luma(const uint8_t *p) { return (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 32768u) >> 16); }

/* from channels a pixel -> to channels, front to back in one memory. */
static void reduce(uint8_t *data, int64_t n, int from, int to, bool gray) {
  const uint8_t *s = data;
  for (int64_t i = 0; i < n; i++, s += from, data += to) {
    uint8_t first = to < 3 ? (gray ? s[0] : luma(s)) : s[0], alpha = s[from - 1];
    data[0] = first;
    if (to == 2) data[1] = alpha;
    if (to >= 3) data[1] = s[1], data[2] = s[2];
  }
}

static PlStatus decode(spng_ctx *ctx, PlPixels *p, const char *path, int c, int64_t max_bytes) {
  struct spng_ihdr h;
  struct spng_trns trns;
  int code = spng_get_ihdr(ctx, &h);
  if (code) return broken(path, code);
  bool gray = h.color_type == SPNG_COLOR_TYPE_GRAYSCALE || h.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA;
  bool alpha =
      h.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA || h.color_type == SPNG_COLOR_TYPE_TRUECOLOR_ALPHA || spng_get_trns(ctx, &trns) == 0;
  if (c == 0) c = (gray ? 1 : 3) + alpha;
  int wide = c == 2 || c == 4 ? 4 : 3; /* channels that libspng writes */
  size_t bytes = 0;
  code = spng_decoded_image_size(ctx, wide == 4 ? SPNG_FMT_RGBA8 : SPNG_FMT_RGB8, &bytes);
  if (code) return broken(path, code);
  PL_TRY(pl_pixels_new(p, path, h.height, h.width, wide, max_bytes));
  if (bytes != (size_t)pl_tensor_numel(p->t)) return pl_file_bad(path, "broken PNG: impossible size");
  code = spng_decode_image(ctx, pl_tensor_data(p->t), bytes, wide == 4 ? SPNG_FMT_RGBA8 : SPNG_FMT_RGB8,
                           c == 2 || c == 4 ? SPNG_DECODE_TRNS : 0);
  if (code == 0) code = spng_decode_chunks(ctx); /* what is behind the pixels, to the end: a file cut there was cut */
  if (code) return broken(path, code);
  if (c == wide) return PL_OK;
  reduce(pl_tensor_data(p->t), (int64_t)h.height * h.width, wide, c, gray);
  const int64_t shape[3] = {h.height, h.width, c};
  PlTensor *small;
  PL_TRY(pl_file_code(pl_tensor_from(&small, PL_U8, 3, shape, pl_tensor_data(p->t))));
  pl_tensor_release(p->t);
  p->t = small;
  p->c = c;
  return PL_OK;
}

PlStatus pl_image_png_decode(PlPixels *p, const char *path, const void *bytes, size_t n, int c, int64_t max_bytes) {
  spng_ctx *ctx = spng_ctx_new(0);
  if (!ctx) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  int code = spng_set_chunk_limits(ctx, MAX_CHUNK, MAX_CHUNK);
  if (!code) code = spng_set_png_buffer(ctx, bytes, n);
  PlStatus st = code ? broken(path, code) : decode(ctx, p, path, c, max_bytes);
  spng_ctx_free(ctx);
  return st;
}

#else

static PlStatus missing(const char *path) {
  return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: this build has no libspng, so no PNG (install libspng-dev and build again)", path));
}

PlStatus pl_image_png_decode(PlPixels *p, const char *path, const void *bytes, size_t n, int c, int64_t max_bytes) {
  (void)p, (void)bytes, (void)n, (void)c, (void)max_bytes;
  return missing(path);
}

#endif
