/* SPDX-License-Identifier: MIT
 * Weights of layers as the packages of GPTQ (Frantar et al. 2022) and AWQ (Lin et al. 2023) write them: whole numbers q of few bits
 * packed in i32, a zero z and a scale s for each group of inputs, w = s (q - z). q - z is a whole number of at most 8 bits, so blocks
 * of ggml with a scale for 32 elements hold w exactly where a group is whole blocks. */
#include <string.h>

#include "engine/io/io.h"
#include "engine/perilune.h"
#include "kernels/convert.h"
#include "kernels/kernel.h"

enum { BLOCK = 32 };

typedef struct Packed {
  PlPackedWeights p;
  const uint32_t *q, *z;
  const int32_t *group; /* of an input; NULL: inputs in order */
  const uint16_t *half; /* scales */
  const float *scale;
  uint8_t *to;
  int64_t nblocks, bytes; /* blocks of a row; bytes of a block */
  float *numbers;
} Packed;

/* Number k of a stream of p.bits bits each, lowest bits first, whose words are `step` apart. */
static uint32_t in_stream(const uint32_t *w, int64_t step, int64_t k, int bits) {
  const int64_t bit = k * bits, word = bit >> 5;
  const int shift = (int)(bit & 31);
  uint32_t v = w[word * step] >> shift;
  if (shift + bits > 32) v |= w[(word + 1) * step] << (32 - shift);
  return v & ((1u << bits) - 1);
}

/* Column k of a row of AWQ: eight columns a word, the even ones first. */
static uint32_t in_pairs(const uint32_t *row, int64_t k) { return row[k >> 3] >> (4 * ((k & 1) * 4 + ((k & 7) >> 1))) & 15; }

/* q - z of input i, output o, in group g. */
static int whole(const Packed *x, int64_t i, int64_t o, int64_t g) {
  const PlPackedWeights *p = &x->p;
  if (p->awq) return (int)in_pairs(x->q + i * (p->out / 8), o) - (int)in_pairs(x->z + g * (p->out / 8), o);
  const uint32_t q = in_stream(x->q + o, p->out, i, p->bits), most = (1u << p->bits) - 1;
  const uint32_t z = in_stream(x->z + g * (p->out * p->bits / 32), 1, o, p->bits);
  return (int)q - (int)(p->less_one ? (z + 1) & most : z);
}

static int64_t group_of(const Packed *x, int64_t i) { return x->group ? x->group[i] : i / x->p.group_size; }

/* Range of q - z. Outputs are taken as they are in memory, one beside the other. */
static void range(const Packed *x, int *least, int *most) {
  int lo = 0, hi = 0;
  for (int64_t i = 0; i < x->p.in; i++)
    for (int64_t o = 0, g = group_of(x, i); o < x->p.out; o++) {
      const int d = whole(x, i, o, g);
      lo = d < lo ? d : lo, hi = d > hi ? d : hi;
    }
  *least = lo, *most = hi;
}

static void put_block(const Packed *x, const int8_t *d, uint16_t scale, uint8_t *to) {
  to[0] = (uint8_t)scale, to[1] = (uint8_t)(scale >> 8);
  to += 2;
  if (x->bytes == 34) {
    memcpy(to, d, BLOCK);
    return;
  }
  const int zero = x->bytes == 22 ? 16 : 8;
  if (zero == 16) {
    uint32_t high = 0;
    for (int k = 0; k < BLOCK; k++) high |= (uint32_t)(d[k] + zero) >> 4 << k;
    for (int k = 0; k < 4; k++) *to++ = (uint8_t)(high >> 8 * k);
  }
  for (int k = 0; k < BLOCK / 2; k++) to[k] = (uint8_t)(((d[k] + zero) & 15) | ((d[k + BLOCK / 2] + zero) & 15) << 4);
}

static PlStatus put_blocks(void *ctx, int64_t first, int64_t last) {
  const Packed *x = ctx;
  int8_t d[BLOCK];
  for (int64_t b = first; b < last; b++)
    for (int64_t o = 0, g = group_of(x, b * BLOCK); o < x->p.out; o++) {
      for (int k = 0; k < BLOCK; k++) d[k] = (int8_t)whole(x, b * BLOCK + k, o, g);
      put_block(x, d, x->half[g * x->p.out + o], x->to + (o * x->nblocks + b) * x->bytes);
    }
  return PL_OK;
}

static PlStatus put_numbers(void *ctx, int64_t first, int64_t last) {
  const Packed *x = ctx;
  for (int64_t i = first; i < last; i++)
    for (int64_t o = 0, g = group_of(x, i); o < x->p.out; o++)
      x->numbers[o * x->p.in + i] = (float)whole(x, i, o, g) * x->scale[g * x->p.out + o];
  return PL_OK;
}

PlStatus pl_packed_weights(const PlPackedWeights *p, PlTensor *qweight, PlTensor *qzeros, PlTensor *scales, PlTensor *g_idx, bool numbers,
                           PlTensor **out, const char **format) {
  const int64_t words = p->in * p->out * p->bits / 32, n = pl_tensor_ndim(scales) == 2 ? pl_tensor_shape(scales)[0] : 0;
  if (p->bits < 2 || p->bits > 8 || p->out < 1 || p->in < 1 || p->out * p->bits % 32 != 0 || p->in * p->bits % 32 != 0 || n < 1 ||
      pl_tensor_numel(qweight) != words || pl_tensor_numel(qzeros) != n * p->out * p->bits / 32 || pl_tensor_numel(scales) != n * p->out ||
      (g_idx ? pl_tensor_numel(g_idx) != p->in : p->group_size < 1 || (p->in - 1) / p->group_size >= n))
    PL_FAIL(PL_ERR_ARG, "packed weights: sizes that do not go together");
  Packed x = {.p = *p, .q = pl_tensor_data(qweight), .z = pl_tensor_data(qzeros), .scale = pl_tensor_data(scales)};
  const int64_t groups = pl_tensor_shape(scales)[0];
  const int32_t *given = g_idx ? pl_tensor_data(g_idx) : NULL;
  bool in_order = p->group_size > 0;
  for (int64_t i = 0; given && i < p->in; i++) {
    if (given[i] < 0 || given[i] >= groups) return PL_ERR_INDEX;
    if (p->group_size <= 0 || given[i] != i / p->group_size) in_order = false;
  }
  x.group = in_order ? NULL : given;
  int64_t shape[2] = {p->out, p->in};
  bool exact = !numbers && in_order && p->in % BLOCK == 0 && p->group_size % BLOCK == 0;
  uint16_t *half = NULL;
  const int64_t nscales = groups * p->out;
  if (exact) {
    void *mem;
    PL_TRY(plk_scratch((size_t)nscales * sizeof *half + 1, &mem));
    x.half = half = mem;
    for (int64_t k = 0; k < nscales; k++) {
      half[k] = plk_f32_to_f16(x.scale[k]);
      exact = exact && plk_f16_to_f32(half[k]) == x.scale[k];
    }
  }
  int least = 0, most = 0;
  if (exact) range(&x, &least, &most);
  exact = exact && least >= -128 && most <= 127;
  PlStatus s;
  if (exact) {
    x.bytes = least >= -8 && most <= 7 ? 18 : least >= -16 && most <= 15 ? 22 : 34;
    *format = x.bytes == 18 ? "Q4_0" : x.bytes == 22 ? "Q5_0" : "Q8_0";
    x.nblocks = p->in / BLOCK;
    shape[1] = x.nblocks * x.bytes;
    s = pl_tensor_empty(out, PL_U8, 2, shape);
    x.to = s == PL_OK ? pl_tensor_data(*out) : NULL;
    if (s == PL_OK) s = plk_parallel(x.nblocks, 1, put_blocks, &x);
  } else {
    *format = NULL;
    s = pl_tensor_empty(out, PL_F32, 2, shape);
    x.numbers = s == PL_OK ? pl_tensor_data(*out) : NULL;
    if (s == PL_OK) s = plk_parallel(p->in, 64, put_numbers, &x);
  }
  plk_scratch_free(half);
  return s;
}
