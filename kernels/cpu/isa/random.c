/* SPDX-License-Identifier: MIT
 * The vector parts of the random kernels, one ISA level: Philox words, uniform and normal values. */
#define PLK_PHILOX_FN static inline __attribute__((always_inline))
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath/vmath.h"
#include "kernels/philox.h"

static void bits(uint32_t *PL_RESTRICT out, int64_t nblock, const PlkRng *rng, uint64_t block) {
  const uint64_t seed = rng->seed, stream = rng->stream, first = rng->offset + block;
  enum { WIDE = 64 };
  uint32_t w0[WIDE], w1[WIDE], w2[WIDE], w3[WIDE];
  int64_t b = 0;
  for (; b + WIDE <= nblock; b += WIDE) {
    for (int64_t i = 0; i < WIDE; i++) { /* words apart, so that the rounds vectorize */
      uint32_t lane[4];
      plk_philox(seed, stream, first + (uint64_t)(b + i), lane);
      w0[i] = lane[0], w1[i] = lane[1], w2[i] = lane[2], w3[i] = lane[3];
    }
    for (int64_t i = 0; i < WIDE; i++) {
      uint32_t *o = out + 4 * (b + i);
      o[0] = w0[i], o[1] = w1[i], o[2] = w2[i], o[3] = w3[i];
    }
  }
  for (; b < nblock; b++) plk_philox(seed, stream, first + (uint64_t)b, out + 4 * b);
}

/* 24 bits of each word; rounding must not reach the excluded upper end. */
static void uniform(float *io, const uint32_t *word, int64_t n, double lo, double hi) {
  const float a = (float)lo, b = (float)hi, w = (float)(hi - lo);
  for (int64_t i = 0; i < n; i++) {
    const float u = vm_fma_f32((float)(int32_t)(word[i] >> 8) * 0x1p-24f, w, a);
    io[i] = u < b ? u : a;
  }
}

/* Box-Muller: r = sqrt(-2 ln u), the pair r cos(2 pi v), r sin(2 pi v); u = (31 bits + 1/2) 2^-31 is
 * never 0, so |z| reaches 6.6. */
static void normal(float *PL_RESTRICT out, const uint32_t *PL_RESTRICT word, int64_t n, double mean, double std) {
  const float m = (float)mean, d = (float)std;
  for (int64_t i = 0; i < n / 2; i++) {
    const float u = ((float)(int32_t)(word[2 * i] >> 1) + 0.5f) * 0x1p-31f;
    const float v = (float)(int32_t)(word[2 * i + 1] >> 8) * 0x1p-24f;
    /* u is a normal number in (0, 1]: no edge to handle */
    const uint32_t x = vm_bits_f32(u), e = (uint32_t)((int32_t)(x - 0x3f3504f3u) >> 23);
    const float l = vm_logk_f32(vm_from_f32(x - (e << 23)) - 1.0f, (float)(int32_t)e);
    const float r = d * vm_sqrt_f32(l < 0.0f ? -2.0f * l : 0.0f);
    float s, c;
    vm_sincos2pi_f32(v, &s, &c);
    out[2 * i] = vm_fma_f32(r, c, m);
    out[2 * i + 1] = vm_fma_f32(r, s, m);
  }
}

static void normal64(double *PL_RESTRICT out, const uint32_t *PL_RESTRICT word, int64_t n, double mean, double std) {
  for (int64_t i = 0; i < n / 2; i++) {
    const uint32_t *w = word + 4 * i;
    const uint64_t a = ((uint64_t)w[1] << 32 | w[0]) >> 11, b = ((uint64_t)w[3] << 32 | w[2]) >> 11;
    const double r = std * sqrt(-2.0 * log(((double)(int64_t)a + 0.5) * 0x1p-53));
    const double t = 2.0 * VM_PI * ((double)(int64_t)b * 0x1p-53);
    out[2 * i] = vm_fma_f64(r, cos(t), mean);
    out[2 * i + 1] = vm_fma_f64(r, sin(t), mean);
  }
}

const PlkRandomLoops PLK_SUFFIX(plk_random) = {bits, uniform, normal, normal64};
