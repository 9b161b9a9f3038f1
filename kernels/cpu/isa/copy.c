/* SPDX-License-Identifier: MIT
 * Copies of windows of rows, compiled once per ISA level (kernels/cpu/shape/copy.h). Rows of up to some kilobytes are faster in
 * vectors of ours than through a call of memcpy for each. */
#include "kernels/cpu/shape/copy.h"

#include <string.h>

#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"

enum {
  ALIGN = 256,    /* bytes from which aligned stores pay */
  LONG_ROW = 8192 /* from here on memcpy, which knows the machine, is as fast */
};

/* Fixed sizes become vector moves; the last one may cover bytes a second time. */
PLK_LANE void copy_run(char *PL_RESTRICT to, const char *PL_RESTRICT from, size_t n) {
#define ENDS(SIZE)                                        \
  if (n >= (SIZE)) {                                      \
    memcpy(to, from, SIZE);                               \
    memcpy(to + (n - (SIZE)), from + (n - (SIZE)), SIZE); \
    return;                                               \
  }
  if (n >= 64) {
    if (n >= LONG_ROW) {
      memcpy(to, from, n);
      return;
    }
    size_t k = 0;
    if (n >= ALIGN && ((uintptr_t)to & 63)) { /* what crosses lines of the cache costs stores more than loads */
      memcpy(to, from, 64);
      k = 64 - ((uintptr_t)to & 63);
    }
    for (; k + 128 <= n; k += 128) {
      memcpy(to + k, from + k, 64);
      memcpy(to + k + 64, from + k + 64, 64);
    }
    if (k + 64 <= n) {
      memcpy(to + k, from + k, 64);
      k += 64;
    }
    if (k < n) memcpy(to + (n - 64), from + (n - 64), 64);
    return;
  }
  ENDS(32)
  ENDS(16)
  ENDS(8)
  ENDS(4)
  ENDS(2)
#undef ENDS
  if (n) *to = *from;
}

static void run(void *to, const void *from, size_t bytes) { copy_run(to, from, bytes); }

static void rows_at(char *to, int64_t step, const char *from, const int64_t *at, int64_t size, int64_t rows, size_t bytes) {
  for (int64_t r = 0; r < rows; r++) copy_run(to + r * step, from + at[r] * size, bytes);
}

#define STRIDED(T)                                                     \
  for (int64_t r = 0; r < rows; r++) {                                 \
    T *PL_RESTRICT d = (T *)(void *)(to + r * dr);                     \
    const T *PL_RESTRICT s = (const T *)(const void *)(from + r * sr); \
    if (ss == 0 && ds == 1) {                                          \
      const T v = *s;                                                  \
      for (int64_t i = 0; i < n; i++) d[i] = v;                        \
    } else if (ds == 1 && ss == -1) {                                  \
      for (int64_t i = 0; i < n; i++) d[i] = s[-i];                    \
    } else if (ds == 1 && ss == 2) {                                   \
      for (int64_t i = 0; i < n; i++) d[i] = s[2 * i];                 \
    } else if (ds == 2 && ss == 1) {                                   \
      for (int64_t i = 0; i < n; i++) d[2 * i] = s[i];                 \
    } else {                                                           \
      for (int64_t i = 0; i < n; i++) d[i * ds] = s[i * ss];           \
    }                                                                  \
  }                                                                    \
  break;

static void window(char *to, int64_t dr, int64_t ds, const char *from, int64_t sr, int64_t ss, int64_t rows, int64_t n, size_t size) {
  if (ds == 1 && ss == 1) {
    for (int64_t r = 0; r < rows; r++) copy_run(to + r * dr, from + r * sr, (size_t)n * size);
    return;
  }
  switch (size) {
  case 1: STRIDED(uint8_t)
  case 2: STRIDED(uint16_t)
  case 4: STRIDED(uint32_t)
  default: STRIDED(uint64_t)
  }
}

static void add_f32(float *PL_RESTRICT to, const float *PL_RESTRICT from, float f, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] += f * from[i];
}

extern const PlkCopyLoops PLK_ISA_NAME(plk_copy_table);
const PlkCopyLoops PLK_ISA_NAME(plk_copy_table) = {run, window, rows_at, add_f32};
