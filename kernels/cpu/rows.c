/* SPDX-License-Identifier: MIT
 * Conversion of tiles between dtypes and compute types, and the row driver of rows.h. */
#include "kernels/cpu/rows.h"

#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/shape/transpose.h"

/* ---- elements ---------------------------------------------------------------------------------- */

static inline int64_t f64_to_i64(double v) {
  if (!(v > -9223372036854775808.0)) return v != v ? 0 : INT64_MIN;
  return v >= 9223372036854775808.0 ? INT64_MAX : (int64_t)v;
}

/* v in [lo, hi], its fraction cut off: what a cast to an integer dtype makes of a float. */
static inline int64_t f64_within(double v, int64_t lo, int64_t hi) {
  const int64_t i = f64_to_i64(v);
  return i < lo ? lo : i > hi ? hi : i;
}

/* Per dtype: its C type, how to read one as float, double, int64_t, and what one is made from, of each of these. Floats saturate
 * in integers as casts do; integers wrap, as their sums do. */
#define ID(v)    (v)
#define F16R(v)  plk_f16_to_f32(v)
#define BF16R(v) plk_bf16_to_f32(v)
#define KINDS(X)                                          \
  X(F32, float, ID, float, float, (float))                \
  X(F64, double, ID, double, double, (double))            \
  X(F16, uint16_t, F16R, float, float, plk_f32_to_f16)    \
  X(BF16, uint16_t, BF16R, float, float, plk_f32_to_bf16) \
  X(I8, int8_t, ID, int64_t, i8, (int8_t))                \
  X(I16, int16_t, ID, int64_t, i16, (int16_t))            \
  X(I32, int32_t, ID, int64_t, i32, (int32_t))            \
  X(I64, int64_t, ID, int64_t, i64, (int64_t))            \
  X(U8, uint8_t, ID, int64_t, u8, (uint8_t))              \
  X(BOOL, uint8_t, ID, int64_t, truth, 0 !=)

/* From a dtype's own reading type to a compute type: only floats to int64_t need care. */
#define TO_f32(v)         ((float)(v))
#define TO_f64(v)         ((double)(v))
#define TO_i64(v)         _Generic((v), int64_t : (v), default : f64_to_i64((double)(v)))
#define MID_float(v)      ((float)(v))
#define MID_double(v)     ((double)(v))
#define MID_i64(v)        TO_i64(v)
#define WITHIN(v, lo, hi) _Generic((v), int64_t : (v), default : f64_within((double)(v), lo, hi))
#define MID_i8(v)         WITHIN(v, INT8_MIN, INT8_MAX)
#define MID_i16(v)        WITHIN(v, INT16_MIN, INT16_MAX)
#define MID_i32(v)        WITHIN(v, INT32_MIN, INT32_MAX)
#define MID_u8(v)         WITHIN(v, 0, UINT8_MAX)
#define MID_truth(v)      ((v) != 0)

#define LOADER(name, S, READ, MID, C, cs)                                                                                      \
  static void load_##name##_##cs(C *PL_RESTRICT d, int64_t ld, const S *PL_RESTRICT s, int64_t stride, int64_t n, int64_t k) { \
    if (k == 1 && stride == 1)                                                                                                 \
      for (int64_t i = 0; i < n; i++) d[i] = TO_##cs((MID)READ(s[i]));                                                         \
    else                                                                                                                       \
      for (int64_t r = 0; r < n; r++)                                                                                          \
        for (int64_t j = 0; j < k; j++) d[j * ld + r] = TO_##cs((MID)READ(s[r * stride + j]));                                 \
  }
#define STORER(name, S, MID, MAKE, C, cs)                                                                                       \
  static void store_##name##_##cs(const C *PL_RESTRICT s, int64_t ld, S *PL_RESTRICT d, int64_t stride, int64_t n, int64_t k) { \
    if (k == 1 && stride == 1)                                                                                                  \
      for (int64_t i = 0; i < n; i++) d[i] = (S)(MAKE(MID_##MID(s[i])));                                                        \
    else                                                                                                                        \
      for (int64_t r = 0; r < n; r++)                                                                                           \
        for (int64_t j = 0; j < k; j++) d[r * stride + j] = (S)(MAKE(MID_##MID(s[j * ld + r])));                                \
  }
#define X(NAME, S, READ, RMID, WMID, MAKE)  \
  LOADER(NAME, S, READ, RMID, float, f32)   \
  LOADER(NAME, S, READ, RMID, double, f64)  \
  LOADER(NAME, S, READ, RMID, int64_t, i64) \
  STORER(NAME, S, WMID, MAKE, float, f32)   \
  STORER(NAME, S, WMID, MAKE, double, f64)  \
  STORER(NAME, S, WMID, MAKE, int64_t, i64)
KINDS(X)
#undef X

void plk_load(PlkComp c, void *dst, int64_t ld, const void *x, int dtype, int64_t at, int64_t stride, int64_t n, int64_t k) {
  if (c == PLK_CF32 && k == 1 && stride == 1 && (dtype == PL_F16 || dtype == PL_BF16)) {
    const PlkConvert *cv = plk_isa_tables()->convert;
    (dtype == PL_F16 ? cv->f16_load : cv->bf16_load)((const uint16_t *)x + at, dst, n);
    return;
  }
  if (k > 1 && plk_comp_direct(dtype, c)) {
    const size_t size = plk_comp_size(c);
    plk_transpose(size)(dst, ld, (const char *)x + (size_t)at * size, stride, n, k);
    return;
  }
  switch (dtype) {
#define X(NAME, S, READ, RMID, WMID, MAKE)                                         \
  case PL_##NAME: {                                                                \
    const S *s = (const S *)x + at;                                                \
    if (c == PLK_CF32) load_##NAME##_f32((float *)dst, ld, s, stride, n, k);       \
    else if (c == PLK_CF64) load_##NAME##_f64((double *)dst, ld, s, stride, n, k); \
    else load_##NAME##_i64((int64_t *)dst, ld, s, stride, n, k);                   \
    break;                                                                         \
  }
    KINDS(X)
#undef X
  default: break;
  }
}

void plk_store(PlkComp c, const void *src, int64_t ld, void *x, int dtype, int64_t at, int64_t stride, int64_t n, int64_t k) {
  if (c == PLK_CF32 && k == 1 && stride == 1 && (dtype == PL_F16 || dtype == PL_BF16)) {
    const PlkConvert *cv = plk_isa_tables()->convert;
    (dtype == PL_F16 ? cv->f16_store : cv->bf16_store)(src, (uint16_t *)x + at, n);
    return;
  }
  if (k > 1 && plk_comp_direct(dtype, c)) {
    const size_t size = plk_comp_size(c);
    plk_transpose(size)((char *)x + (size_t)at * size, stride, src, ld, k, n);
    return;
  }
  switch (dtype) {
#define X(NAME, S, READ, RMID, WMID, MAKE)                                                \
  case PL_##NAME: {                                                                       \
    S *d = (S *)x + at;                                                                   \
    if (c == PLK_CF32) store_##NAME##_f32((const float *)src, ld, d, stride, n, k);       \
    else if (c == PLK_CF64) store_##NAME##_f64((const double *)src, ld, d, stride, n, k); \
    else store_##NAME##_i64((const int64_t *)src, ld, d, stride, n, k);                   \
    break;                                                                                \
  }
    KINDS(X)
#undef X
  default: break;
  }
}

/* ---- the driver ---------------------------------------------------------------------------------- */

/* GROUP_LIMIT: elements of one array's rows in a group; DENSE_BYTES: of all buffers where rows are only converted. */
enum { GROUP = 16, STACK_BYTES = 8192, GROUP_LIMIT = 1 << 22, DENSE_BYTES = 4096 };

static inline size_t item_of(const PlkRowArg *x) {
  return x->comp == PLK_CRAW ? pl_dtype_size((PlDtype)x->dtype) : plk_comp_size((PlkComp)x->comp);
}
static inline bool in_place(const PlkRowArg *x) { return x->comp == PLK_CRAW || plk_comp_direct(x->dtype, (PlkComp)x->comp); }

/* k neighbouring rows to and from a buffer. */
static void rows_in(const PlkRowArg *x, void *buf, int64_t at, int64_t stride, int64_t k) {
  if (x->comp == PLK_CRAW) plk_transpose(item_of(x))(buf, x->len, (const char *)x->data + (size_t)at * item_of(x), stride, x->len, k);
  else plk_load((PlkComp)x->comp, buf, x->len, x->data, x->dtype, at, stride, x->len, k);
}
static void rows_out(const PlkRowArg *x, const void *buf, int64_t at, int64_t stride, int64_t k) {
  if (x->comp == PLK_CRAW) plk_transpose(item_of(x))((char *)x->data + (size_t)at * item_of(x), stride, buf, x->len, k, x->len);
  else plk_store((PlkComp)x->comp, buf, x->len, x->data, x->dtype, at, stride, x->len, k);
}

typedef struct Plan {
  const PlkRows *r;
  bool dense;                            /* rows are contiguous, groups run over the outer index */
  int64_t group, per_outer;              /* rows taken together; groups in one outer index */
  bool direct[PLK_ROW_ARGS], all_direct; /* rows used in place; those of all arguments */
  size_t at[PLK_ROW_ARGS + 1], bytes;    /* where each argument's rows are in a block's buffer */
} Plan;

/* The k rows from `row` on, at p. */
static PlStatus run_rows(const PlkRows *r, int64_t row, int64_t k, void *const *p) {
  void *ptr[PLK_ROW_ARGS + 1];
  size_t step[PLK_ROW_ARGS];
  if (r->many) return r->many(r->ctx, row, k, p);
  for (int a = 0; a < r->narg; a++) ptr[a] = p[a], step[a] = p[a] ? (size_t)r->arg[a].len * item_of(&r->arg[a]) : 0;
  ptr[r->narg] = p[r->narg];
  for (int64_t j = 0; j < k; j++) {
    PL_TRY(r->body(r->ctx, row + j, ptr));
    for (int a = 0; a < r->narg; a++)
      if (ptr[a]) ptr[a] = (char *)ptr[a] + step[a];
  }
  return PL_OK;
}

static PlStatus run_group(const Plan *p, int64_t g, char *buf) {
  const PlkRows *r = p->r;
  const int64_t o = p->dense ? 0 : g / p->per_outer, i0 = (p->dense ? g : g % p->per_outer) * p->group;
  const int64_t inner = p->dense ? r->outer : r->inner, k = inner - i0 < p->group ? inner - i0 : p->group;
  void *ptr[PLK_ROW_ARGS + 1];
  for (int a = 0; a < r->narg; a++) {
    const PlkRowArg *x = &r->arg[a];
    const size_t row = (size_t)x->len * item_of(x);
    ptr[a] = !x->data ? NULL : p->direct[a] ? (char *)x->data + (size_t)i0 * row : buf + p->at[a];
    if (!x->data || p->direct[a] || x->write) continue;
    if (p->dense) plk_load((PlkComp)x->comp, ptr[a], k * x->len, x->data, x->dtype, i0 * x->len, 1, k * x->len, 1);
    else rows_in(x, ptr[a], o * x->len * inner + i0, inner, k);
  }
  ptr[r->narg] = buf + p->at[r->narg];
  PL_TRY(run_rows(r, o * inner + i0, k, ptr));
  for (int a = 0; a < r->narg; a++) {
    const PlkRowArg *x = &r->arg[a];
    if (!x->data || p->direct[a] || !x->write) continue;
    if (p->dense) plk_store((PlkComp)x->comp, ptr[a], k * x->len, x->data, x->dtype, i0 * x->len, 1, k * x->len, 1);
    else rows_out(x, ptr[a], o * x->len * inner + i0, inner, k);
  }
  return PL_OK;
}

/* Rows begin … end - 1 where nothing is converted: each argument's next row follows the last. */
static PlStatus run_direct(const PlkRows *r, int64_t begin, int64_t end, char *buf) {
  void *ptr[PLK_ROW_ARGS + 1];
  for (int a = 0; a < r->narg; a++) {
    const PlkRowArg *x = &r->arg[a];
    ptr[a] = x->data ? (char *)x->data + begin * x->len * (int64_t)item_of(x) : NULL;
  }
  ptr[r->narg] = buf;
  return run_rows(r, begin, end - begin, ptr);
}

static PlStatus run_block(void *ctx, int64_t begin, int64_t end) {
  const Plan *p = ctx;
  if (p->all_direct && p->bytes == 0) return run_direct(p->r, begin, end, NULL);
  _Alignas(64) char stack[STACK_BYTES];
  void *heap = NULL;
  if (p->bytes > STACK_BYTES) PL_TRY(plk_scratch(p->bytes, &heap));
  PlStatus s = PL_OK;
  char *buf = heap ? heap : stack;
  if (p->all_direct) s = run_direct(p->r, begin, end, buf);
  else
    for (int64_t g = begin; g < end && s == PL_OK; g++) s = run_group(p, g, buf);
  plk_scratch_free(heap);
  return s;
}

PlStatus plk_rows(const PlkRows *r) {
  int64_t longest = 1;
  bool direct = r->inner == 1;
  if (r->outer == 0 || r->inner == 0) return PL_OK;
  for (int a = 0; a < r->narg; a++) {
    const PlkRowArg *x = &r->arg[a];
    if (!x->data) continue;
    if (x->len > longest) longest = x->len;
    direct &= in_place(x);
  }
  int64_t weight = r->cost > 0 ? r->cost : 1;
  if (direct && r->temp == 0 && (r->outer == 1 || r->outer <= PLK_GRAIN / (longest * weight)))
    return run_direct(r, 0, r->outer, NULL); /* what a tile of a group asks for */
  Plan p = {.r = r, .dense = r->inner == 1, .group = r->inner < GROUP ? r->inner : GROUP, .all_direct = direct};
  if (p.dense && !direct) {
    int64_t bytes = 1;
    for (int a = 0; a < r->narg; a++)
      if (r->arg[a].data && !in_place(&r->arg[a])) bytes += r->arg[a].len * (int64_t)item_of(&r->arg[a]);
    const int64_t grain = longest * weight < PLK_GRAIN ? PLK_GRAIN / (longest * weight) : 1;
    p.group = bytes >= DENSE_BYTES ? 1 : DENSE_BYTES / bytes;
    if (p.group > grain) p.group = grain;
    if (p.group > r->outer) p.group = r->outer;
  }
  if (p.group > 1 && p.group > GROUP_LIMIT / longest) p.group = longest < GROUP_LIMIT ? GROUP_LIMIT / longest : 1;
  p.per_outer = p.dense ? 1 : (r->inner + p.group - 1) / p.group;
  for (int a = 0; a < r->narg; a++) {
    const PlkRowArg *x = &r->arg[a];
    p.direct[a] = r->inner == 1 && in_place(x);
    p.at[a] = p.bytes;
    if (!x->data) continue;
    if (!p.direct[a]) p.bytes += ((size_t)(x->len * p.group) * item_of(x) + 63) & ~(size_t)63;
  }
  p.at[r->narg] = p.bytes;
  p.bytes += r->temp;
  int64_t groups = p.dense ? (r->outer + p.group - 1) / p.group : r->outer * p.per_outer, cost = longest * p.group * weight;
  int64_t block = cost >= PLK_GRAIN ? 1 : PLK_GRAIN / cost;
  if (groups <= block) return run_block(&p, 0, groups);
  return plk_parallel(groups, block, run_block, &p);
}
