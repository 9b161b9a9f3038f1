/* SPDX-License-Identifier: MIT
 * JPEG through libjpeg-turbo's TurboJPEG interface, gray or RGB. */
#include "engine/io/image.h"

#include <string.h>

#include "kernels/kernel.h"

#ifdef PL_HAVE_TURBOJPEG
#include <turbojpeg.h>

static PlStatus broken(const char *path, tjhandle h) { return pl_file_bad(path, "broken JPEG: %s", tjGetErrorStr2(h)); }

/* A warning spoils the picture except this one, which cameras and editors cause: bytes too many before the end of the picture
 * (marker 0xd9). Only the first warning is known, so those before other markers may hide what is worse. */
static bool harmless(tjhandle h) {
  return tjGetErrorCode(h) == TJERR_WARNING && strstr(tjGetErrorStr2(h), "extraneous bytes before marker 0xd9");
}

static PlStatus decode(tjhandle h, PlPixels *p, const char *path, const unsigned char *bytes, size_t n, int c, int64_t max_bytes) {
  int width = 0, height = 0, sub = 0, space = 0;
  if (tjDecompressHeader3(h, bytes, n, &width, &height, &sub, &space) != 0) return broken(path, h);
  if (space == TJCS_CMYK || space == TJCS_YCCK)
    return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: a CMYK JPEG; gray and RGB ones are read", path));
  bool gray = c == 0 ? space == TJCS_GRAY : c < 3;
  if (c == 0) c = gray ? 1 : 3;
  static const int format[5] = {TJPF_UNKNOWN, TJPF_GRAY, TJPF_UNKNOWN, TJPF_RGB, TJPF_RGBA};
  if (format[c] == TJPF_UNKNOWN) return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: a JPEG has no alpha channel", path));
  PL_TRY(pl_pixels_new(p, path, height, width, c, max_bytes));
  if (tjDecompress2(h, bytes, n, pl_tensor_data(p->t), width, width * c, height, format[c], TJFLAG_LIMITSCANS) != 0 && !harmless(h))
    return broken(path, h);
  return PL_OK;
}

PlStatus pl_image_jpeg_decode(PlPixels *p, const char *path, const void *bytes, size_t n, int c, int64_t max_bytes) {
  tjhandle h = tjInitDecompress();
  if (!h) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  PlStatus st = decode(h, p, path, bytes, n, c, max_bytes);
  tjDestroy(h);
  return st;
}

PlStatus pl_image_jpeg_encode(const char *path, const uint8_t *data, int64_t h, int64_t w, int c, int quality, void **out, size_t *n) {
  if (c == 2 || c == 4) return pl_file_code(pl_fail(PL_ERR_ARG, "save_image: JPEG has no alpha channel; save a .png or x:narrow(1, 1, 3)"));
  tjhandle t = tjInitCompress();
  if (!t) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  unsigned char *mem = NULL;
  unsigned long size = 0;
  PlStatus st = PL_OK;
  if (tjCompress2(t, data, (int)w, (int)(w * c), (int)h, c == 1 ? TJPF_GRAY : TJPF_RGB, &mem, &size, c == 1 ? TJSAMP_GRAY : TJSAMP_420,
                  quality, 0) != 0)
    st = pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: JPEG: %s", path, tjGetErrorStr2(t)));
  void *copy = NULL; /* TurboJPEG has an allocator of its own */
  if (st == PL_OK) st = pl_file_code(plk_scratch(size, &copy));
  if (st == PL_OK) memcpy(copy, mem, size);
  tjFree(mem);
  tjDestroy(t);
  PL_TRY(st);
  *out = copy;
  *n = size;
  return PL_OK;
}

#else

static PlStatus missing(const char *path) {
  return pl_file_code(
      pl_fail(PL_ERR_UNSUPPORTED, "%s: this build has no libturbojpeg, so no JPEG (install libturbojpeg0-dev and build again)", path));
}

PlStatus pl_image_jpeg_decode(PlPixels *p, const char *path, const void *bytes, size_t n, int c, int64_t max_bytes) {
  (void)p, (void)bytes, (void)n, (void)c, (void)max_bytes;
  return missing(path);
}

PlStatus pl_image_jpeg_encode(const char *path, const uint8_t *data, int64_t h, int64_t w, int c, int quality, void **out, size_t *n) {
  (void)data, (void)h, (void)w, (void)c, (void)quality, (void)out, (void)n;
  return missing(path);
}

#endif
