/* SPDX-License-Identifier: MIT
 * Images as u8 tensors [C, H, W]: PNG and JPEG are distinguished by their first bytes when read, by the file name's ending
 * when written. The memory stays interleaved as the decoders leave it; [C, H, W] is a view. */
#include "engine/io/image.h"

#include <string.h>
#include <strings.h>

#include "engine/io/png_write.h"
#include "engine/tensor/tensor.h"
#include "kernels/kernel.h"

PlStatus pl_pixels_new(PlPixels *p, const char *path, int64_t h, int64_t w, int c, int64_t max_bytes) {
  if (h < 1 || w < 1) return pl_file_bad(path, "an image without pixels");
  int64_t bytes;
  if (__builtin_mul_overflow(h, w, &bytes) || __builtin_mul_overflow(bytes, c, &bytes) || bytes > max_bytes)
    return pl_file_bad(path, "%lld x %lld pixels are more than max_bytes = %lld", (long long)w, (long long)h, (long long)max_bytes);
  const int64_t shape[3] = {h, w, c};
  PL_TRY(pl_file_code(pl_tensor_empty(&p->t, PL_U8, 3, shape)));
  p->h = h;
  p->w = w;
  p->c = c;
  return PL_OK;
}

PlStatus pl_image_decode(PlTensor **out, const char *name, const void *bytes, size_t n, int c, int64_t max_bytes) {
  static const char png[8] = "\x89PNG\r\n\x1a\n";
  if (max_bytes < 0) max_bytes = (int64_t)1 << 29;
  PlPixels p = {.t = NULL};
  PlStatus st;
  if (n >= 8 && memcmp(bytes, png, 8) == 0) st = pl_image_png_decode(&p, name, bytes, n, c, max_bytes);
  else if (n >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0) st = pl_image_jpeg_decode(&p, name, bytes, n, c, max_bytes);
  else st = pl_file_bad(name, "neither a PNG nor a JPEG file");
  if (st == PL_OK) {
    const int64_t shape[3] = {p.c, p.h, p.w}, strides[3] = {1, p.w * p.c, p.c};
    st = pl_file_code(pl_tensor_view(out, p.t, 3, shape, strides, 0));
  }
  pl_tensor_release(p.t);
  return st;
}

PlStatus pl_image_load(PlTensor **out, const char *path, int c, int64_t max_bytes) {
  char *data;
  size_t n;
  PL_TRY(pl_file_bytes(path, (int64_t)1 << 30, &data, &n));
  PlStatus st = pl_image_decode(out, path, data, n, c, max_bytes);
  plk_scratch_free(data);
  return st;
}

/* [H, W] or [C, H, W] of any strides -> interleaved pixels in scratch memory. */
static PlStatus interleave(PlTensor *t, int c, int64_t h, int64_t w, uint8_t **out) {
  void *mem;
  PL_TRY(plk_scratch((size_t)(h * w * c), &mem));
  const int64_t *st = pl_tensor_strides(t);
  int nd = pl_tensor_ndim(t);
  int64_t sc = nd == 3 ? st[0] : 0, sh = st[nd - 2], sw = st[nd - 1];
  const uint8_t *from = pl_tensor_data(t);
  uint8_t *to = mem;
  for (int64_t y = 0; y < h; y++)
    for (int64_t x = 0; x < w; x++)
      for (int k = 0; k < c; k++) *to++ = from[k * sc + y * sh + x * sw];
  *out = mem;
  return PL_OK;
}

static PlStatus encode_png(const uint8_t *pixels, int64_t h, int64_t w, int c, void **out, size_t *n) {
  size_t most;
  PL_TRY(pl_png_bound(&most, w, h, c));
  PL_TRY(plk_scratch(most, out));
  PlStatus st = pl_png_encode(*out, n, pixels, w, h, c);
  if (st == PL_OK) return PL_OK;
  plk_scratch_free(*out);
  *out = NULL;
  return st;
}

PlStatus pl_image_save(const char *path, PlTensor *t, int quality) {
  const char *dot = strrchr(path, '.');
  bool png = dot && strcasecmp(dot, ".png") == 0;
  bool jpeg = dot && (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0);
  if (!png && !jpeg) PL_FAIL(PL_ERR_ARG, "save_image: %s: the name must end in .png, .jpg or .jpeg", path);
  int nd = pl_tensor_ndim(t);
  const int64_t *s = pl_tensor_shape(t);
  int64_t c = nd == 3 ? s[0] : 1, h = nd >= 2 ? s[nd - 2] : 0, w = nd >= 2 ? s[nd - 1] : 0;
  if (pl_tensor_dtype(t) != PL_U8 || nd < 2 || nd > 3 || c < 1 || c > 4 || h < 1 || w < 1 || h > 65500 || w > 65500)
    PL_FAIL(PL_ERR_ARG, "save_image: u8 [C, H, W] or [H, W] is wanted with C 1 to 4 and sizes up to 65500");
  uint8_t *pixels;
  PL_TRY(interleave(t, (int)c, h, w, &pixels));
  void *bytes = NULL;
  size_t n = 0;
  PlStatus st = png ? encode_png(pixels, h, w, (int)c, &bytes, &n) : pl_image_jpeg_encode(path, pixels, h, w, (int)c, quality, &bytes, &n);
  plk_scratch_free(pixels);
  if (st == PL_OK) st = pl_bytes_save(path, bytes, n);
  plk_scratch_free(bytes);
  return st;
}
