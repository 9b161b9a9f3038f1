/* SPDX-License-Identifier: MIT
 * See wire.h. */
#include "engine/io/wire.h"

#include <math.h>
#include <string.h>

#include "engine/tensor/tensor.h"

static const PlWire wires[] = {
    /* the dtypes of ours in their own order */
    {"F32", PL_F32, 32, false},       {"F64", PL_F64, 64, false},      {"F16", PL_F16, 16, false},   {"BF16", PL_BF16, 16, false},
    {"I8", PL_I8, 8, false},          {"I16", PL_I16, 16, false},      {"I32", PL_I32, 32, false},   {"I64", PL_I64, 64, false},
    {"U8", PL_U8, 8, false},          {"BOOL", PL_BOOL, 8, false},     {"U16", PL_I32, 16, true},    {"U32", PL_I64, 32, true},
    {"U64", PL_I64, 64, true},        {"F8_E4M3", PL_F16, 8, true},    {"F8_E5M2", PL_F16, 8, true}, {"F8_E4M3FNUZ", PL_F16, 8, true},
    {"F8_E5M2FNUZ", PL_F16, 8, true}, {"F8_E8M0", PL_F32, 8, true},    {"C64", PL_NDTYPE, 64, true}, {"F4", PL_NDTYPE, 4, true},
    {"F6_E2M3", PL_NDTYPE, 6, true},  {"F6_E3M2", PL_NDTYPE, 6, true},
};

const PlWire *pl_wire_find(const char *name, size_t n) {
  for (size_t i = 0; i < sizeof wires / sizeof *wires; i++)
    if (strlen(wires[i].name) == n && memcmp(wires[i].name, name, n) == 0) return &wires[i];
  return NULL;
}

const PlWire *pl_wire_of(PlDtype dtype) {
  for (size_t i = 0; i < sizeof wires / sizeof *wires; i++)
    if (wires[i].dtype == dtype && !wires[i].widen) return &wires[i];
  return NULL;
}

/* ---- floats of 8 bits --------------------------------------------------------------------------------------------- */

/* OCP 8-bit floating point (OFP8), revision 1.0: s eeee mmm with bias 7, no infinity, NaN where all bits below the sign are 1; s eeeee
 * mm with bias 15, infinity and NaN as IEEE 754 has them. FNUZ: bias one more, one NaN in the place of -0, no infinity. */
static float float_of_8_bits(unsigned b, int mantissa_bits, int bias, bool finite, bool no_minus_zero) {
  const unsigned m = b & ((1u << mantissa_bits) - 1), e = (b & 0x7f) >> mantissa_bits, top = 0x7fu >> mantissa_bits;
  const float sign = b & 0x80 ? -1.0f : 1.0f;
  if (no_minus_zero && b == 0x80) return NAN;
  if (!no_minus_zero && e == top && (finite ? m == (1u << mantissa_bits) - 1 : true))
    return m == 0 && !finite ? sign * INFINITY : copysignf(NAN, sign);
  if (e == 0) return sign * ldexpf((float)m, 1 - bias - mantissa_bits);
  return sign * ldexpf((float)(m | 1u << mantissa_bits), (int)e - bias - mantissa_bits);
}

static float small_float(const PlWire *w, unsigned b) {
  if (strcmp(w->name, "F8_E4M3") == 0) return float_of_8_bits(b, 3, 7, true, false);
  if (strcmp(w->name, "F8_E5M2") == 0) return float_of_8_bits(b, 2, 15, false, false);
  if (strcmp(w->name, "F8_E4M3FNUZ") == 0) return float_of_8_bits(b, 3, 8, true, true);
  if (strcmp(w->name, "F8_E5M2FNUZ") == 0) return float_of_8_bits(b, 2, 16, true, true);
  return b == 0xff ? NAN : ldexpf(1.0f, (int)b - 127); /* F8_E8M0 */
}

/* Front to back none is overwritten unread: what is behind is always as long as what is before or shorter. */
static void convert_small_floats(const PlWire *w, void *data, int64_t n) {
  const size_t wide = pl_dtype_size((PlDtype)w->dtype);
  char table[256][4];
  for (unsigned b = 0; b < 256; b++) pl_write_f((PlDtype)w->dtype, table[b], (double)small_float(w, b));
  char *to = data;
  const unsigned char *from = (const unsigned char *)data + (size_t)n * (wide - 1);
  for (int64_t i = 0; i < n; i++, to += wide) memcpy(to, table[from[i]], wide);
}

/* ---- unsigned integers -------------------------------------------------------------------------------------------- */

static PlStatus convert_unsigned(const PlWire *w, const char *path, void *data, int64_t n) {
  const size_t wire = w->bits / 8, wide = pl_dtype_size((PlDtype)w->dtype);
  char *to = data;
  const char *from = to + (size_t)n * (wide - wire);
  for (int64_t i = 0; i < n; i++, from += wire, to += wide) {
    uint16_t h;
    uint32_t u;
    uint64_t d;
    if (wire == 2) {
      memcpy(&h, from, 2);
      u = h;
      memcpy(to, &u, 4);
    } else if (wire == 4) {
      memcpy(&u, from, 4);
      d = u;
      memcpy(to, &d, 8);
    } else {
      memcpy(&d, from, 8);
      if (d > INT64_MAX) return pl_file_bad(path, "the unsigned value %llu does not fit into i64", (unsigned long long)d);
    }
  }
  return PL_OK;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */

static PlStatus check_bools(const char *path, const unsigned char *b, int64_t n) {
  unsigned char any = 0;
  for (int64_t k = 0; k < n; k++) any |= b[k];
  return any > 1 ? pl_file_bad(path, "a bool is neither 0 nor 1") : PL_OK;
}

PlStatus pl_wire_convert(const PlWire *w, const char *path, bool swap, void *data, int64_t n) {
  const size_t wire = w->bits / 8, wide = pl_dtype_size((PlDtype)w->dtype);
  if (swap && wire > 1) pl_file_swap((char *)data + (size_t)n * (wide - wire), n, wire);
  if (w->dtype == PL_BOOL) return check_bools(path, data, n);
  if (!w->widen) return PL_OK;
  if (w->name[0] == 'U') return convert_unsigned(w, path, data, n);
  convert_small_floats(w, data, n);
  return PL_OK;
}

PlStatus pl_wire_read(const PlWire *w, int fd, const char *path, int64_t at, bool swap, PlTensor *t, int64_t first, int64_t n) {
  const size_t wire = w->bits / 8, wide = pl_dtype_size((PlDtype)w->dtype);
  char *data = (char *)pl_tensor_data(t) + (size_t)first * wide;
  if (n == 0) return PL_OK;
  PL_TRY(pl_file_read_at(fd, path, data + (size_t)n * (wide - wire), (size_t)n * wire, at));
  return pl_wire_convert(w, path, swap, data, n);
}
