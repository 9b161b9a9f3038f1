/* SPDX-License-Identifier: MIT
 * Normalization over x[N,C,S] whose statistics belong to C: batch norm, and with N = 1 the groups and the channels of
 * group norm. Sums run in parts of a channel, cut by the shape alone; parts add up in double in one order. */
#ifndef PL_KERNELS_CUDA_NORM_CHANNELS_H
#define PL_KERNELS_CUDA_NORM_CHANNELS_H

#include "kernels/cuda/any_dtype.h"

struct PlcChannels {
  int64_t N, C, S, parts;
};
PlcChannels plc_channels(int64_t N, int64_t C, int64_t S);

/* part[c][parts][3]: count, mean, Σ (x - mean)². */
PlStatus plc_channel_moments(const PlcChannels *k, int dtype, const void *x, double *part);
/* part[c][parts][2]: Σ dy, Σ dy (x - mean[c / each]). */
PlStatus plc_channel_dots(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *mean, int64_t each, double *part);
/* y = (x - coef[c][0]) coef[c][1] + coef[c][2] */
PlStatus plc_channel_affine(const PlcChannels *k, int dtype, const void *x, const double *coef, void *y);
/* dx = coef[c][1] dy + s |s| (x - coef[c][0]) + coef[c][3] with s = coef[c][2], the root (plc_root) of a factor that goes with
 * 1/deviation³: where that is beyond floats, s times x - mean is not. */
PlStatus plc_channel_affine2(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *coef, void *dx);

/* The same where S is 1 and C whole packs of 16 bytes, at addresses that are such (channels_last.cu). plc_columns: how many
 * parts then; plc_channels' where C is none. */
PlcChannels plc_columns(int64_t rows, int64_t C, int dtype);
bool plc_columns_fit(int64_t C, int dtype, const void *x, const void *y, const void *z);
PlStatus plc_column_moments(const PlcChannels *k, int dtype, const void *x, double *part);
PlStatus plc_column_dots(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *mean, double *part);
PlStatus plc_column_affine(const PlcChannels *k, int dtype, const void *x, const double *coef, void *y);
/* relu of that, or of its sum with r, each rounded as its op alone would be. */
PlStatus plc_column_affine_relu(const PlcChannels *k, int dtype, const void *x, const double *coef, const void *r, void *y);
PlStatus plc_column_affine2(const PlcChannels *k, int dtype, const void *dy, const void *x, const double *coef, void *dx);

PLC_DEV double plc_root(double b) { return b < 0 ? -sqrt(-b) : sqrt(b); }

struct PlcMoments {
  double n, mean, m2;
};
/* Chan, Golub, LeVeque 1979. */
PLC_DEV PlcMoments plc_join(PlcMoments a, PlcMoments b) {
  double n = a.n + b.n;
  if (b.n == 0) return a;
  if (a.n == 0) return b;
  double d = b.mean - a.mean, f = b.n / n;
  PlcMoments r = {n, a.mean + d * f, a.m2 + b.m2 + d * d * a.n * f};
  return r;
}
/* Squares beyond what was counted in: no number, and no zeros by 1/inf. */
PLC_DEV PlcMoments plc_within(PlcMoments m) {
  if (isinf(m.m2)) m.m2 = (double)NAN;
  return m;
}
PLC_DEV PlcMoments plc_moments_total(const double *part, int64_t parts, int64_t c) {
  PlcMoments m = {0, 0, 0};
  for (int64_t p = 0; p < parts; p++) {
    const double *at = part + (c * parts + p) * 3;
    PlcMoments b = {at[0], at[1], at[2]};
    m = plc_join(m, b);
  }
  return plc_within(m);
}
PLC_DEV void plc_dots_total(const double *part, int64_t parts, int64_t c, double *s1, double *s2) {
  *s1 = *s2 = 0;
  for (int64_t p = 0; p < parts; p++) {
    const double *at = part + (c * parts + p) * 2;
    *s1 += at[0];
    *s2 += at[1];
  }
}

/* The same by a warp, each lane every 32nd part, the loads of some at a time under way together; all lanes call, lane 0 has the sum. */
enum { PLC_AHEAD = 4 };
PLC_DEV PlcMoments plc_moments_warp(const double *part, int64_t parts, int64_t c, int lane) {
  PlcMoments m = {0, 0, 0};
  for (int64_t p = lane; p < parts; p += 32 * PLC_AHEAD) {
    PlcMoments b[PLC_AHEAD];
    PLC_UNROLL for (int u = 0; u < PLC_AHEAD; u++) {
      const bool there = p + 32 * u < parts;
      const double *at = part + (c * parts + (there ? p + 32 * u : p)) * 3;
      b[u].n = there ? at[0] : 0, b[u].mean = at[1], b[u].m2 = at[2];
    }
    PLC_UNROLL for (int u = 0; u < PLC_AHEAD; u++) m = plc_join(m, b[u]);
  }
  for (int d = 16; d > 0; d >>= 1) {
    PlcMoments b = {__shfl_down_sync(0xffffffffu, m.n, d), __shfl_down_sync(0xffffffffu, m.mean, d),
                    __shfl_down_sync(0xffffffffu, m.m2, d)};
    m = plc_join(m, b);
  }
  return plc_within(m);
}
PLC_DEV void plc_dots_warp(const double *part, int64_t parts, int64_t c, int lane, double *s1, double *s2) {
  *s1 = *s2 = 0;
  for (int64_t p = lane; p < parts; p += 32 * PLC_AHEAD) {
    double a[PLC_AHEAD], b[PLC_AHEAD];
    PLC_UNROLL for (int u = 0; u < PLC_AHEAD; u++) {
      const bool there = p + 32 * u < parts;
      const double *at = part + (c * parts + (there ? p + 32 * u : p)) * 2;
      a[u] = there ? at[0] : 0, b[u] = there ? at[1] : 0;
    }
    PLC_UNROLL for (int u = 0; u < PLC_AHEAD; u++) *s1 += a[u], *s2 += b[u];
  }
  for (int d = 16; d > 0; d >>= 1) {
    *s1 += __shfl_down_sync(0xffffffffu, *s1, d);
    *s2 += __shfl_down_sync(0xffffffffu, *s2, d);
  }
}

/* x as an array of another dtype: itself, or a converted dense copy in *scratch. */
PlStatus plc_as(const PlArray *x, int dtype, void **scratch, const void **data);

#endif
