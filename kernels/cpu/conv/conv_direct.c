/* SPDX-License-Identifier: MIT
 * Convolution by its definition (kernels/conv.h), every product in its place. Integers
 * run here, and the fast forms are judged by it. Floats add up in f64. */
#include <string.h>

#include "kernels/cpu/conv/conv.h"

/* Input position of output `t` and kernel `k`; -1 in the padding. */
static int64_t position(const PlkConv *v, const int64_t t[3], const int64_t k[3]) {
  int64_t at = 0;
  for (int i = 0; i < 3; i++) {
    const int64_t p = t[i] * v->stride[i] - v->pad[i] + k[i] * v->dil[i];
    if (p < 0 || p >= v->in[i]) return -1;
    at = at * v->in[i] + p;
  }
  return at;
}

static void unravel(int64_t at, const int64_t size[3], int64_t coord[3]) {
  for (int i = 2; i >= 0; i--) {
    coord[i] = at % size[i];
    at /= size[i];
  }
}

/* sum[·] (one slot for each output element) += the products of one image, group and pair
 * of channels. */
#define PAIR(name, T, A)                                                             \
  static void name(const PlkConv *v, A *sum, int64_t image, int64_t o, int64_t c) {  \
    const int64_t oc = image * v->g * v->o + o, ic = image * v->g * v->c + c;        \
    const int64_t wat = (o * v->c + c % v->c) * v->ksize;                            \
    const T *x = v->x, *w = v->w, *y = v->y;                                         \
    int64_t t[3], k[3];                                                              \
    for (int64_t j = 0; j < v->ksize; j++) {                                         \
      unravel(j, v->k, k);                                                           \
      for (int64_t i = 0; i < v->outsize; i++) {                                     \
        unravel(i, v->out, t);                                                       \
        const int64_t p = position(v, t, k);                                         \
        if (p < 0) continue;                                                         \
        const int64_t xi = ic * v->insize + p, yi = oc * v->outsize + i;             \
        if (v->kind == PLK_CONV_FWD) sum[yi] += (A)x[xi] * (A)w[wat + j];            \
        else if (v->kind == PLK_CONV_BWD_INPUT) sum[xi] += (A)y[yi] * (A)w[wat + j]; \
        else sum[wat + j] += (A)y[yi] * (A)x[xi];                                    \
      }                                                                              \
    }                                                                                \
  }
PAIR(pair_f32, float, double)
PAIR(pair_f64, double, double)
PAIR(pair_i8, int8_t, uint64_t)
PAIR(pair_u8, uint8_t, uint64_t)
PAIR(pair_i16, int16_t, uint64_t)
PAIR(pair_i32, int32_t, uint64_t)
PAIR(pair_i64, int64_t, uint64_t)

static void pair(const PlkConv *v, void *sum, int64_t image, int64_t o, int64_t c) {
  switch (v->dtype) {
  case PL_F32: pair_f32(v, sum, image, o, c); break;
  case PL_F64: pair_f64(v, sum, image, o, c); break;
  case PL_I8: pair_i8(v, sum, image, o, c); break;
  case PL_U8: pair_u8(v, sum, image, o, c); break;
  case PL_I16: pair_i16(v, sum, image, o, c); break;
  case PL_I32: pair_i32(v, sum, image, o, c); break;
  default: pair_i64(v, sum, image, o, c); break;
  }
}

/* out = sum, plus the bias of its channel. */
static void store(const PlkConv *v, void *out, const void *sum, int64_t n) {
  const int64_t channels = v->g * v->o;
#define STORE(T, A)                                                       \
  for (int64_t i = 0; i < n; i++) {                                       \
    A s = ((const A *)sum)[i];                                            \
    if (v->bias) s += (A)((const T *)v->bias)[i / v->outsize % channels]; \
    ((T *)out)[i] = (T)s;                                                 \
  }                                                                       \
  break;
  switch (v->dtype) {
  case PL_F32: STORE(float, double)
  case PL_F64: STORE(double, double)
  case PL_I8: STORE(int8_t, uint64_t)
  case PL_U8: STORE(uint8_t, uint64_t)
  case PL_I16: STORE(int16_t, uint64_t)
  case PL_I32: STORE(int32_t, uint64_t)
  default: STORE(int64_t, uint64_t)
  }
#undef STORE
}

PlStatus plk_conv_plain(const PlkConv *v) {
  const int which = v->kind == PLK_CONV_FWD ? PLK_CONV_Y : v->kind == PLK_CONV_BWD_INPUT ? PLK_CONV_X : PLK_CONV_W;
  void *const out = which == PLK_CONV_Y ? v->y : which == PLK_CONV_X ? v->x : v->w;
  const int64_t n = plk_conv_numel(v, which);
  if (n == 0) return PL_OK;
  void *sum;
  PL_TRY(plk_scratch((size_t)n * 8, &sum));
  memset(sum, 0, (size_t)n * 8); /* 0 in f64 as in integers */
  PlStatus s = PL_OK;
  for (int64_t i = 0; i < v->n && s == PL_OK; i++)
    for (int64_t o = 0; o < v->g * v->o && s == PL_OK; o++) {
      for (int64_t c = 0; c < v->c; c++) pair(v, sum, i, o, o / v->o * v->c + c);
      s = plk_poll();
    }
  if (s == PL_OK) store(v, out, sum, n);
  plk_scratch_free(sum);
  return s;
}
