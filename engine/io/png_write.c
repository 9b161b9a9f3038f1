/* SPDX-License-Identifier: MIT
 * Writes PNG (ISO/IEC 15948): signature, IHDR, one IDAT with the filtered rows as a zlib stream, IEND. */
#include "engine/io/png_write.h"

#include <stdlib.h>
#include <string.h>

#ifdef PL_HAVE_ZLIB
#include <zlib.h>
#endif

enum { BLOCK = 65535 }; /* a stored deflate block holds as many bytes */

uint32_t pl_crc32(uint32_t poly, uint32_t crc, const void *data, size_t n) {
  uint32_t table[256];
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int k = 0; k < 8; k++) c = (c >> 1) ^ (poly & (0u - (c & 1)));
    table[i] = c;
  }
  const uint8_t *p = data;
  crc = ~crc;
  for (size_t i = 0; i < n; i++) crc = (crc >> 8) ^ table[(crc ^ p[i]) & 0xff];
  return ~crc;
}

static void put32(uint8_t *to, uint32_t v) {
  for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Closes a chunk of n data bytes that begins (with its length) at `at`; returns what follows it. */
static uint8_t *finish_chunk(uint8_t *at, const char *type, size_t n) {
  put32(at, (uint32_t)n);
  memcpy(at + 4, type, 4);
  put32(at + 8 + n, pl_crc32(0xEDB88320u, 0, at + 4, n + 4));
  return at + 12 + n;
}

PlStatus pl_png_bound(size_t *out, int64_t width, int64_t height, int channels) {
  if (width < 1 || height < 1 || width > 65535 || height > 65535)
    PL_FAIL(PL_ERR_ARG, "png: an image of %lld x %lld pixels; 1 to 65535 each way are possible", (long long)width, (long long)height);
  if (channels < 1 || channels > 4) PL_FAIL(PL_ERR_ARG, "png: %d channels; 1 to 4 are possible", channels);
  size_t raw = (size_t)height * (1 + (size_t)width * (size_t)channels); /* below 2^35 */
  if (raw > 1u << 30) PL_FAIL(PL_ERR_ARG, "png: %lld x %lld pixels are too many", (long long)width, (long long)height);
  *out = raw + raw / 1000 + 5 * (raw / BLOCK + 2) + 256;
  return PL_OK;
}

static int paeth(int a, int b, int c) {
  int p = a + b - c, pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
  return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

/* One row through filter f (0 none, 1 left, 2 above, 4 Paeth); the sum of magnitudes tells how well it may compress. */
static uint64_t filter(int f, uint8_t *to, const uint8_t *row, const uint8_t *above, size_t n, size_t step) {
  uint64_t sum = 0;
  to[0] = (uint8_t)f;
  for (size_t i = 0; i < n; i++) {
    int a = i >= step ? row[i - step] : 0, b = above ? above[i] : 0, c = above && i >= step ? above[i - step] : 0;
    int guess = f == 0 ? 0 : f == 1 ? a : f == 2 ? b : paeth(a, b, c);
    to[i + 1] = (uint8_t)(row[i] - guess);
    sum += (uint64_t)abs((int8_t)to[i + 1]);
  }
  return sum;
}

/* All rows, each with the filter that makes it smallest (the heuristic the standard recommends). */
static void filter_rows(uint8_t *to, uint8_t *trial, const uint8_t *pixels, int64_t height, size_t n, size_t step) {
  static const int filters[] = {0, 1, 2, 4};
  for (int64_t y = 0; y < height; y++) {
    const uint8_t *row = pixels + (size_t)y * n, *above = y > 0 ? row - n : NULL;
    uint64_t best = UINT64_MAX;
    for (size_t k = 0; k < sizeof filters / sizeof *filters; k++) {
      uint64_t sum = filter(filters[k], trial, row, above, n, step);
      if (sum >= best) continue;
      best = sum;
      memcpy(to, trial, n + 1);
    }
    to += n + 1;
  }
}

#ifdef PL_HAVE_ZLIB
static PlStatus pack(uint8_t *to, size_t room, size_t *n, const uint8_t *raw, size_t size) {
  uLongf used = room;
  if (compress2(to, &used, raw, size, 6) != Z_OK) PL_FAIL(PL_ERR_OOM, "png: out of memory");
  *n = used;
  return PL_OK;
}
#else
/* A zlib stream (RFC 1950) of stored blocks. */
static PlStatus pack(uint8_t *to, size_t room, size_t *n, const uint8_t *raw, size_t size) {
  uint8_t *p = to;
  uint32_t a = 1, b = 0;
  (void)room;
  *p++ = 0x78;
  *p++ = 0x01;
  for (size_t at = 0; at < size; at += BLOCK) {
    size_t k = size - at < BLOCK ? size - at : BLOCK;
    *p++ = at + k == size;
    *p++ = (uint8_t)k;
    *p++ = (uint8_t)(k >> 8);
    *p++ = (uint8_t)~k;
    *p++ = (uint8_t)(~k >> 8);
    memcpy(p, raw + at, k);
    p += k;
  }
  for (size_t i = 0; i < size; i++) { /* Adler-32 */
    a = (a + raw[i]) % 65521;
    b = (b + a) % 65521;
  }
  put32(p, b << 16 | a);
  *n = (size_t)(p + 4 - to);
  return PL_OK;
}
#endif

PlStatus pl_png_encode(uint8_t *to, size_t *n, const uint8_t *pixels, int64_t width, int64_t height, int channels) {
  static const uint8_t signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, kinds[] = {0, 4, 2, 6};
  size_t bound, row = (size_t)width * (size_t)channels, used;
  PL_TRY(pl_png_bound(&bound, width, height, channels));
  uint8_t *raw = malloc((row + 1) * ((size_t)height + 1)); /* the last row is for trials */
  if (!raw) PL_FAIL(PL_ERR_OOM, "png: out of memory");
  filter_rows(raw, raw + (row + 1) * (size_t)height, pixels, height, row, (size_t)channels);
  uint8_t *p = to;
  memcpy(p, signature, sizeof signature);
  p += sizeof signature;
  put32(p + 8, (uint32_t)width);
  put32(p + 12, (uint32_t)height);
  memcpy(p + 16, (uint8_t[]){8, kinds[channels - 1], 0, 0, 0}, 5);
  p = finish_chunk(p, "IHDR", 13);
  PlStatus s = pack(p + 8, bound - (size_t)(p - to) - 24, &used, raw, (row + 1) * (size_t)height);
  free(raw);
  PL_TRY(s);
  p = finish_chunk(p, "IDAT", used);
  p = finish_chunk(p, "IEND", 0);
  *n = (size_t)(p - to);
  return PL_OK;
}
