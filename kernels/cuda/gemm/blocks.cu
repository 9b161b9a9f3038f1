/* SPDX-License-Identifier: MIT
 * Matrices that are kept in ggml's block formats (kernels/blocks.h): their numbers, the bits of the CPU, and products, for which a
 * part of the matrix at a time becomes numbers of x's dtype; sums are f32. Layouts of blocks: kernels/cpu/blocks. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/operand.h"
extern "C" {
#include "kernels/blocks.h"
}

namespace {

/* In the order of PLK_BLOCK_CHOICES. */
enum Format { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, FORMATS };
struct Size {
  int elements, bytes;
};
const Size sizes[FORMATS] = {{32, 18},   {32, 20},   {32, 22}, {32, 24},   {32, 34},  {256, 84}, {256, 110}, {256, 144},
                             {256, 176}, {256, 210}, {32, 18}, {256, 136}, {256, 54}, {256, 66}, {32, 17}};

/* ---- element j of a block ------------------------------------------------------------------------------------------------- */

PLC_DEV uint32_t le16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
PLC_DEV float half_at(const uint8_t *p) { return plc_widen(plc_f16{(uint16_t)le16(p)}); }
PLC_DEV int nibble(const uint8_t *q, int j) { return j < 16 ? q[j] & 15 : q[j - 16] >> 4; } /* of 32 */

/* Levels as bytes of words: an array that is indexed would be in local memory. */
PLC_DEV int level_of(int q, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t w = q < 8 ? (q < 4 ? a : b) : q < 12 ? c : d;
  return (int)(int8_t)(w >> (q % 4 * 8));
}
PLC_DEV int iq4(int q) { return level_of(q, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u); }
PLC_DEV int twice_e2m1(int q) { return level_of(q, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu); }

/* Scale and offset of 6 bits of part 0 … 7. */
PLC_DEV int scale6(const uint8_t *p, int part) { return part < 4 ? p[part] & 63 : (p[part + 4] & 15) | p[part - 4] >> 6 << 4; }
PLC_DEV int offset6(const uint8_t *p, int part) { return part < 4 ? p[part + 4] & 63 : p[part + 4] >> 4 | p[part] >> 6 << 4; }

PLC_DEV int ternary(int q, int power) { return (q * power & 255) * 3 >> 8; }
PLC_DEV int power3(int k) { return k == 0 ? 1 : k == 1 ? 3 : k == 2 ? 9 : k == 3 ? 27 : 81; }

PLC_DEV float q2_k(const uint8_t *b, int j) {
  const int part = j / 16, q = b[16 + part / 8 * 32 + part % 2 * 16 + j % 16] >> (part % 8 / 2 * 2) & 3;
  const float s = half_at(b + 80) * (float)(b[part] & 15), m = half_at(b + 82) * (float)(b[part] >> 4);
  return s * (float)q - m;
}
PLC_DEV float q3_k(const uint8_t *b, int j) {
  const int i = j / 16, e = i % 2 * 16 + j % 16;
  const int scale = (b[96 + i % 8] >> (i / 8 * 4) & 15) | (b[104 + i % 4] >> (i / 4 * 2) & 3) << 4;
  const int q = (b[32 + i / 8 * 32 + e] >> (i % 8 / 2 * 2) & 3) + (b[e] >> (i / 2) & 1) * 4 - 4;
  return half_at(b + 108) * (float)(scale - 32) * (float)q;
}
PLC_DEV float q4_k(const uint8_t *b, int j) {
  const int part = j / 32, q = b[16 + part / 2 * 32 + j % 32] >> (part % 2 * 4) & 15;
  const float s = half_at(b) * (float)scale6(b + 4, part), m = half_at(b + 2) * (float)offset6(b + 4, part);
  return s * (float)q - m;
}
PLC_DEV float q5_k(const uint8_t *b, int j) {
  const int part = j / 32, q = (b[48 + part / 2 * 32 + j % 32] >> (part % 2 * 4) & 15) | (b[16 + j % 32] >> part & 1) << 4;
  const float s = half_at(b) * (float)scale6(b + 4, part), m = half_at(b + 2) * (float)offset6(b + 4, part);
  return s * (float)q - m;
}
PLC_DEV float q6_k(const uint8_t *b, int j) {
  const int part = j / 16, g = part / 8, k = part % 8, e = j % 16;
  const int low = b[g * 64 + k % 4 * 16 + e] >> (k / 4 * 4) & 15, high = b[128 + g * 32 + k % 2 * 16 + e] >> (k / 2 * 2) & 3;
  return half_at(b + 208) * (float)(int8_t)b[192 + part] * (float)((low | high << 4) - 32);
}
PLC_DEV float iq4_xs(const uint8_t *b, int j) {
  const int part = j / 32, scale = (b[4 + part / 2] >> (part % 2 * 4) & 15) | (int)(le16(b + 2) >> (2 * part) & 3) << 4;
  return half_at(b) * (float)(scale - 32) * (float)iq4(nibble(b + 8 + part * 16, j % 32));
}
PLC_DEV float tq1_0(const uint8_t *b, int j) {
  const int k = j < 160 ? j : j < 240 ? j - 160 : j - 240, wide = j < 160 ? 32 : j < 240 ? 16 : 4;
  const int q = b[(j < 160 ? 0 : j < 240 ? 32 : 48) + k % wide];
  return half_at(b + 52) * (float)(ternary(q, power3(k / wide)) - 1);
}
PLC_DEV float number_at(Format f, const uint8_t *b, int j) {
  switch (f) {
  case Q4_0: return half_at(b) * (float)(nibble(b + 2, j) - 8);
  case Q4_1: return half_at(b) * (float)nibble(b + 4, j) + half_at(b + 2);
  case Q5_0: return half_at(b) * (float)((nibble(b + 6, j) | (b[2 + j / 8] >> (j % 8) & 1) << 4) - 16);
  case Q5_1: return half_at(b) * (float)(nibble(b + 8, j) | (b[4 + j / 8] >> (j % 8) & 1) << 4) + half_at(b + 2);
  case Q8_0: return (float)(int8_t)b[2 + j] * half_at(b);
  case Q2_K: return q2_k(b, j);
  case Q3_K: return q3_k(b, j);
  case Q4_K: return q4_k(b, j);
  case Q5_K: return q5_k(b, j);
  case Q6_K: return q6_k(b, j);
  case IQ4_NL: return half_at(b) * (float)iq4(nibble(b + 2, j));
  case IQ4_XS: return iq4_xs(b, j);
  case TQ1_0: return tq1_0(b, j);
  case TQ2_0: return half_at(b + 64) * (float)((b[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3) - 1);
  default: return ldexpf(1.0f, (int)b[0] - 128) * (float)twice_e2m1(nibble(b + 1, j));
  }
}

/* ---- blocks to numbers ------------------------------------------------------------------------------------------------------ */

/* Columns first … first + cols - 1 of rows of `bytes` bytes, cols apart in y. */
struct Part {
  const uint8_t *w;
  int64_t rows, cols, first, bytes;
  Format format;
  int elements, block; /* of a block, its bytes */
};
template <typename T> __global__ void numbers(Part p, T *y) {
  typedef typename plc_type<T>::math M;
  for (PLC_EACH(i, p.rows * p.cols)) {
    const int64_t row = i / p.cols, at = p.first + i % p.cols, block = at / p.elements;
    y[i] = plc_type<T>::store((M)number_at(p.format, p.w + row * p.bytes + block * p.block, (int)(at - block * p.elements)));
  }
}
PlStatus to_numbers(const Part &p, int dtype, void *y) {
  PLC_FLOATS(dtype, T, "dequantize_blocks", PLC_LAUNCH(numbers<T>, plc_grid(p.rows * p.cols, 1), PLC_BLOCK, 0, p, (T *)y))
  return PL_OK;
}

Part part_of(const PlkCall *call, const PlArray *w) {
  const Format f = (Format)pl_attr_i(call->attrs, 0);
  Part p = {(const uint8_t *)w->data, 0, 0, 0, w->shape[w->ndim - 1], f, sizes[f].elements, sizes[f].bytes};
  p.cols = p.bytes / p.block * p.elements;
  p.rows = w->numel / p.bytes;
  return p;
}

PlStatus dequantize_blocks(const PlkCall *call) {
  const Part p = part_of(call, call->in[0]);
  return p.rows > 0 ? to_numbers(p, call->out[0]->dtype, call->out[0]->data) : PL_OK;
}

/* ---- products ------------------------------------------------------------------------------------------------------------------ */

#ifdef PLC_EMULATED
const int64_t MOST = 4096; /* so that tests have parts */
#else
const int64_t MOST = (int64_t)64 << 20; /* elements that become numbers at a time */
#endif

PlcGemm product_of(const PlArray *x, PlArray *y, int64_t rows) {
  PlcGemm g;
  memset(&g, 0, sizeof g);
  g.m = rows, g.batch = 1, g.alpha = 1, g.dtype = g.result = (PlDtype)x->dtype, g.a = x->data;
  g.k = g.lda = x->shape[x->ndim - 1], g.ldc = y->shape[y->ndim - 1];
  return g;
}

/* y[M,N] = x[M,K] wᵀ + bias: rows of w, which are columns of y, a part at a time. */
PlStatus linear_parts(const PlkCall *call, Part w, void *room, int64_t most) {
  PlArray *y = call->out[0];
  const PlArray *bias = call->nin > 2 ? call->in[2] : NULL;
  const int64_t size = (int64_t)pl_dtype_size((PlDtype)y->dtype), N = w.rows;
  PlcGemm g = product_of(call->in[0], y, y->numel / N);
  g.b = room, g.ldb = w.cols, g.tb = true, g.epilogue = bias ? PLC_EPI_BIAS : PLC_EPI_NONE;
  for (int64_t n = 0; n < N; n += most, w.w += most * w.bytes) {
    g.n = w.rows = N - n < most ? N - n : most;
    PL_TRY(to_numbers(w, y->dtype, room));
    g.c = (char *)y->data + n * size;
    if (bias) g.bias = (const char *)bias->data + n * size;
    PL_TRY(plc_gemm(&g));
  }
  return PL_OK;
}
/* y[M,K] = x[M,N] w: columns of w, whole blocks of all rows, a part at a time. */
PlStatus matmul_parts(const PlkCall *call, Part w, void *room, int64_t most) {
  PlArray *y = call->out[0];
  const int64_t size = (int64_t)pl_dtype_size((PlDtype)y->dtype), K = w.cols;
  PlcGemm g = product_of(call->in[0], y, y->numel / K);
  g.b = room;
  for (; w.first < K; w.first += most) {
    g.n = g.ldb = w.cols = K - w.first < most ? K - w.first : most;
    PL_TRY(to_numbers(w, y->dtype, room));
    g.c = (char *)y->data + w.first * size;
    PL_TRY(plc_gemm(&g));
  }
  return PL_OK;
}

template <PlStatus (*parts)(const PlkCall *, Part, void *, int64_t), bool by_rows> PlStatus product(const PlkCall *call) {
  const Part w = part_of(call, call->in[1]);
  const int64_t each = by_rows ? w.cols : w.rows, all = by_rows ? w.rows : w.cols, unit = by_rows ? 1 : w.elements;
  void *room = NULL;
  if (call->out[0]->numel == 0) return PL_OK;
  int64_t most = MOST / (each > 0 ? each : 1) / unit * unit;
  most = most < unit ? unit : most < all ? most : all;
  PL_TRY(plc_scratch((size_t)(most * each) * pl_dtype_size((PlDtype)call->out[0]->dtype), &room));
  PlStatus s = parts(call, w, room, most);
  plc_scratch_free(room);
  return s;
}

} // namespace

PLC_KERNEL(dequantize_blocks, dequantize_blocks)
PLC_KERNEL(quantized_linear, (product<linear_parts, true>))
PLC_KERNEL(quantized_matmul, (product<matmul_parts, false>))
