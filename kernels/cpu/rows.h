/* SPDX-License-Identifier: MIT
 * Work along one dimension of arrays seen as [outer][len][inner], whatever the dtype: the driver hands a
 * body contiguous rows of float, double or int64_t and stores what it wrote. Strided rows are
 * copied, sixteen neighbours at a time, so a row's bits do not depend on its layout; short rows that are only converted, many at a time. A body that goes through its row once
 * takes it as it is stored (PLK_CRAW) and converts a piece at a time, so that long rows need no memory. */
#ifndef PL_KERNELS_CPU_ROWS_H
#define PL_KERNELS_CPU_ROWS_H

#include "kernels/kernel.h"

/* The type that a dtype is computed in. */
typedef enum PlkComp { PLK_CF32, PLK_CF64, PLK_CI64, PLK_CRAW /* of an argument: not converted */ } PlkComp;

static inline PlkComp plk_comp(int dtype) { return dtype == PL_F64 ? PLK_CF64 : pl_is_float((PlDtype)dtype) ? PLK_CF32 : PLK_CI64; }
static inline size_t plk_comp_size(PlkComp c) { return c == PLK_CF32 ? 4 : 8; }
/* Whether arrays of this dtype can be used as rows of c without conversion. */
static inline bool plk_comp_direct(int dtype, PlkComp c) {
  return (dtype == PL_F32 && c == PLK_CF32) || (dtype == PL_F64 && c == PLK_CF64) || (dtype == PL_I64 && c == PLK_CI64);
}

/* dst[j * ld + r] = x[at + r * stride + j] for r < n, j < k, converted. Floats to integers saturate. */
void plk_load(PlkComp c, void *dst, int64_t ld, const void *x, int dtype, int64_t at, int64_t stride, int64_t n, int64_t k);
/* The reverse; to bool: v != 0. */
void plk_store(PlkComp c, const void *src, int64_t ld, void *x, int dtype, int64_t at, int64_t stride, int64_t n, int64_t k);

/* A stored row in pieces of PLK_PIECE elements, as c: plk_piece gives elements at … at + n - 1, in buf (PLK_PIECE_BYTES,
 * aligned) if they are to be converted; what was written to plk_piece_out's place goes into the row by plk_piece_put. */
enum { PLK_PIECE = 512, PLK_PIECE_BYTES = PLK_PIECE * 8 };
static inline int64_t plk_piece_size(int64_t at, int64_t n) { return n - at < PLK_PIECE ? n - at : PLK_PIECE; }
static inline void *plk_piece_out(PlkComp c, void *row, int dtype, int64_t at, void *buf) {
  return plk_comp_direct(dtype, c) ? (char *)row + (size_t)at * plk_comp_size(c) : buf;
}
static inline const void *plk_piece(PlkComp c, const void *row, int dtype, int64_t at, int64_t n, void *buf) {
  if (plk_comp_direct(dtype, c)) return (const char *)row + (size_t)at * plk_comp_size(c);
  plk_load(c, buf, n, row, dtype, at, 1, n, 1);
  return buf;
}
static inline void plk_piece_put(PlkComp c, const void *buf, void *row, int dtype, int64_t at, int64_t n) {
  if (!plk_comp_direct(dtype, c)) plk_store(c, buf, n, row, dtype, at, 1, n, 1);
}

typedef struct PlkRowArg {
  void *data;
  int64_t len; /* elements of one row of this array */
  uint8_t dtype, comp;
  bool write;
} PlkRowArg;

enum { PLK_ROW_ARGS = 8 };

/* body(ctx, row, p): row = o * inner + i; p[k] is the row of argument k (NULL where its data is NULL),
 * p[narg] are `temp` bytes for itself, 64-byte aligned. Bodies may run at the same time. */
typedef struct PlkRows {
  int64_t outer, inner;
  int narg;
  PlkRowArg arg[PLK_ROW_ARGS];
  PlStatus (*body)(void *ctx, int64_t row, void *const *p);
  /* Instead of body, where it is given: rows row … row + rows - 1, which follow each other in each argument. */
  PlStatus (*many)(void *ctx, int64_t row, int64_t rows, void *const *p);
  void *ctx;
  size_t temp;
  int64_t cost; /* weight of one element against a simple pass; 0 is 1 */
} PlkRows;

PlStatus plk_rows(const PlkRows *r);

/* Fills an argument from an array (NULL: absent). */
static inline PlkRowArg plk_row_arg(const PlArray *a, int64_t len, PlkComp comp, bool write) {
  PlkRowArg g = {NULL, len, 0, (uint8_t)comp, write};
  if (a) g.data = a->data, g.dtype = a->dtype;
  return g;
}
/* Sizes of shape before and after `dim`; a 0-d array is one row of one element. */
static inline int64_t plk_outer(const PlArray *a, int64_t dim) {
  int64_t n = 1;
  for (int64_t d = 0; d < dim && d < a->ndim; d++) n *= a->shape[d];
  return n;
}
static inline int64_t plk_inner(const PlArray *a, int64_t dim) {
  int64_t n = 1;
  for (int64_t d = dim + 1; d < a->ndim; d++) n *= a->shape[d];
  return n;
}
static inline int64_t plk_dim_size(const PlArray *a, int64_t dim) { return a->ndim ? a->shape[dim] : 1; }

#endif
