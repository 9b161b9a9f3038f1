/* SPDX-License-Identifier: MIT
 * Rows at positions of a table, as index.cu reads them and scatter.cu writes them: row p of the table begins at offset offs[p]; within a
 * row are the dims before (A) and after (B) the indexed ones. In the dense array of rows element (a, p, b) is number
 * (a np + p) nb + b. */
#ifndef PL_KERNELS_CUDA_INDEX_INDEX_H
#define PL_KERNELS_CUDA_INDEX_INDEX_H

#include "kernels/cuda/device.h"
extern "C" {
#include "kernels/index.h"
}

struct PlcRows {
  int64_t np, na, nb;
  plc_layout<1> a, b; /* table offsets of the free dims */
  int64_t *offs;      /* scratch */
  int64_t span;       /* offsets are below this, */
  int64_t unit;       /* and multiples of this */
  int result_ndim;    /* of a list of indices: the shape that reading gives */
  int64_t result[PL_MAX_DIM];
};

PlStatus plc_rows_along(const PlkCall *c, const PlArray *table, const PlArray *index, int dim, int64_t base, bool wrap, PlcRows *r);
PlStatus plc_rows_listed(const PlkCall *c, const PlArray *table, int n, const PlArray *const *index, int ndims, const int64_t *dims,
                         int64_t base, PlcRows *r);
PlStatus plc_rows_at(const PlkCall *c, const PlArray *table, const PlArray *index, int64_t base, bool wrap, PlcRows *r); /* flat */
PlStatus plc_rows_get(const PlcRows *r, const PlArray *table, PlArray *y);
/* *positions (scratch, the caller frees it): the row-major numbers of a's elements that are not 0, ascending; *count of them,
 * read back from the device (mask.cu). */
PlStatus plc_nonzero(const PlArray *a, int64_t **positions, int64_t *count);
PlStatus plc_running_sum(int64_t *v, int64_t n); /* in place; v on the device (mask.cu) */

/* What rows of that alignment are copied in. */
struct alignas(16) Sixteen {
  uint64_t v[2];
};
static inline PlStatus clear(PlArray *y) {
  if (y->numel) PLC_TRY(cudaMemsetAsync(y->data, 0, (size_t)y->numel * pl_dtype_size((PlDtype)y->dtype), plc_stream()));
  return PL_OK;
}

PLC_DEV int64_t plc_row_offset(const PlcRows &r, int64_t a, int64_t p, int64_t b) {
  int64_t at[1], bt[1];
  plc_offsets<1>(r.a, a, at);
  plc_offsets<1>(r.b, b, bt);
  return r.offs[p] + at[0] + bt[0];
}

/* Element e of the dense array of rows as (a, p, b): two divisions, of 32 bits where that is enough. */
struct plc_places {
  bool wide;
  int64_t np, nb;
  plc_div by_nb, by_np;
};
static inline plc_places plc_places_of(const PlcRows *r) {
  plc_places s = {r->na * r->np * r->nb > INT32_MAX, r->np, r->nb, plc_div_by(1), plc_div_by(1)};
  if (!s.wide && r->nb > 0) s.by_nb = plc_div_by((uint32_t)r->nb);
  if (!s.wide && r->np > 0) s.by_np = plc_div_by((uint32_t)r->np);
  return s;
}
PLC_DEV void plc_place_at(const plc_places &s, int64_t e, int64_t *a, int64_t *p, int64_t *b) {
  if (s.wide) {
    *b = e % s.nb, *p = e / s.nb % s.np, *a = e / (s.nb * s.np);
    return;
  }
  const uint32_t n = (uint32_t)e, row = plc_quotient(n, s.by_nb), outer = plc_quotient(row, s.by_np);
  *b = (int64_t)(n - row * s.by_nb.d), *p = (int64_t)(row - outer * s.by_np.d), *a = (int64_t)outer;
}

/* Index value v, counted from base, of a dim of size n: 0 … n-1, or a fault and 0. */
PLC_DEV int64_t plc_resolved(PlcFlag *flag, uint64_t name, int64_t v, int64_t base, int64_t n, bool wrap) {
  int64_t i = v - base;
  if (wrap && v < 0) i = v + n;
  if (i >= 0 && i < n) return i;
  plc_fault(flag, PLC_FAULT_INDEX, (const char *)(uintptr_t)name, v, n, (int)base);
  return n > 0 ? 0 : -1;
}

#endif
