/* SPDX-License-Identifier: MIT
 * matmul, linear, addmm: from strided arrays to the tiles of gemm.c. An operand with unit
 * stride in either of its last two dims is used in place; any other is first copied dense. Halves are read
 * as they are, but where a product is added to something: then all is converted to f32. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/matmul_int.h"
#include "kernels/cpu/gemm/matvec.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/gemm.h"

typedef struct Operand {
  const void *data;
  bool trans;
  int64_t ld, step[PL_MAX_DIM];
  void *scratch; /* to be freed, or NULL */
} Operand;

static PlDtype computes_in(PlDtype d) { return d == PL_F16 || d == PL_BF16 ? PL_F32 : d; }

static bool fits_as_is(const PlArray *a, Operand *o) {
  const int nd = a->ndim;
  const int64_t r = a->shape[nd - 2], c = a->shape[nd - 1];
  const int64_t s0 = a->strides[nd - 2], s1 = a->strides[nd - 1];
  if ((c <= 1 || s1 == 1) && (r <= 1 || s0 >= plk_max64(c, 1))) {
    o->trans = false;
    o->ld = r <= 1 ? plk_max64(c, 1) : s0;
    return true;
  }
  if ((r <= 1 || s0 == 1) && (c <= 1 || s1 >= plk_max64(r, 1))) {
    o->trans = true;
    o->ld = c <= 1 ? plk_max64(r, 1) : s1;
    return true;
  }
  return false;
}

static void batch_steps(const PlArray *a, Operand *o) {
  for (int i = 0; i < a->ndim - 2; i++) o->step[i] = a->shape[i] == 1 ? 0 : a->strides[i];
}

/* The matrices of a in dtype `to`. */
static PlStatus operand(const PlArray *a, PlDtype to, Operand *o) {
  const int nb = a->ndim - 2;
  const PlDtype from = (PlDtype)a->dtype;
  o->data = a->data;
  o->scratch = NULL;
  batch_steps(a, o);
  if ((from == to && fits_as_is(a, o)) || a->numel == 0) {
    if (a->numel == 0) o->trans = false, o->ld = plk_max64(a->shape[nb + 1], 1);
    return PL_OK;
  }
  /* dense copy; repeated batches stay one */
  PlkNd walk = {.n = 0};
  int64_t numel = 1;
  for (int i = a->ndim - 1; i >= 0; i--) {
    const bool repeated = i < nb && o->step[i] == 0;
    if (i < nb) o->step[i] = repeated ? 0 : numel;
    walk.dst[i] = repeated ? 0 : numel;
    walk.src[i] = a->strides[i];
    walk.shape[i] = repeated ? 1 : a->shape[i];
    numel *= walk.shape[i];
  }
  walk.n = a->ndim;
  PL_TRY(plk_scratch((size_t)numel * pl_dtype_size(to), &o->scratch));
  PlStatus s = from == to ? plk_nd_copy(o->scratch, a->data, &walk, pl_dtype_size(to)) : plk_nd_cast(o->scratch, to, a->data, from, &walk);
  if (s != PL_OK) {
    plk_scratch_free(o->scratch);
    return s;
  }
  o->data = o->scratch;
  o->trans = false;
  o->ld = a->shape[nb + 1];
  return PL_OK;
}

/* One big product where b serves all batches and the rows of a follow each other. */
static void collapse(PlkGemm *g) {
  int64_t rows = g->M;
  if (g->ta || g->ldc != g->N) return;
  for (int i = g->nbatch - 1; i >= 0; i--) {
    if (g->batch[i] == 1) continue;
    if (g->bstep[i] != 0 || g->astep[i] != rows * g->lda) return;
    rows *= g->batch[i];
  }
  g->M = rows;
  g->nbatch = 0;
}

/* The layout that a product of a and b has, as these operands lie. */
static void layout(PlkGemm *g, const PlArray *a, const Operand *oa, const Operand *ob) {
  g->ta = oa->trans, g->lda = oa->ld;
  g->tb = g->tb != ob->trans, g->ldb = ob->ld;
  g->ldc = plk_max64(g->N, 1), g->cstep = g->M * g->N;
  for (int i = 0; i < g->nbatch; i++) {
    g->batch[i] = a->shape[i];
    g->astep[i] = oa->step[i], g->bstep[i] = ob->step[i];
  }
  collapse(g);
}

/* Where the matrix is read once and no operand needs a copy: whatever the dtype, it is read as it is. Asked before the operands
 * are made, and of the very layout they get, as only plk_matvec_run reads halves. */
static bool as_matvec(const PlkGemm *g, const PlArray *a, const PlArray *b, PlDtype d) {
  Operand oa, ob;
  if (a->numel == 0 || !fits_as_is(a, &oa) || !fits_as_is(b, &ob)) return false;
  batch_steps(a, &oa), batch_steps(b, &ob);
  PlkGemm t = *g;
  t.dtype = d;
  layout(&t, a, &oa, &ob);
  return plk_matvec_fits(&t);
}

static PlStatus narrow(void *dst, PlDtype to, const void *src, PlDtype from, int64_t n) {
  PlkNd walk = {.n = 0};
  plk_nd_dim(&walk, n, 1, 1);
  return plk_nd_cast(dst, to, src, from, &walk);
}

/* Products of bf16, numel results in all, that oneDNN does as they are; and of f32, where T.set_float32_matmul_precision allows it. */
static bool in_bf16(const PlkGemm *g, PlDtype d, const PlArray *a, const PlArray *b, int64_t numel) {
  if (d != PL_BF16 && !(d == PL_F32 && plk_matmul_precision() == PLK_PRECISION_MEDIUM)) return false;
  const int last = g->nbatch - 1;
  const int64_t row = last >= 0 && a->strides[last] > 0 && b->strides[last] > 0 ? a->shape[last] : 1;
  return g->alpha == 1 && g->beta == 0 && numel > 0 && plk_gemm_bf16(g->M, g->N, g->K, numel / (g->M * g->N), row);
}

/* y = op(a) op(b) with g's alpha, beta and relu, and bias unless NULL; a, b, bias and y of one float dtype.
 * `init`, if given, fills y (in the compute dtype) before it is read through beta. */
static PlStatus product(PlkGemm *g, const PlArray *a, const PlArray *b, const PlArray *bias, PlArray *y, const PlArray *init) {
  const PlDtype d = (PlDtype)y->dtype;
  const bool matvec = !init && (PlDtype)a->dtype == d && as_matvec(g, a, b, d), narrow_in = !matvec && in_bf16(g, d, a, b, y->numel);
  g->widen = !matvec && !narrow_in && !init && g->alpha == 1 && computes_in(d) != d && (PlDtype)a->dtype == d && g->K > 0 && y->numel > 0;
  const PlDtype to = matvec || g->widen ? d : narrow_in ? PL_BF16 : computes_in(d);
  Operand oa, ob;
  void *wide = NULL, *wide_bias = NULL;
  PL_TRY(operand(a, to, &oa));
  PlStatus s = operand(b, to, &ob);
  if (s != PL_OK) {
    plk_scratch_free(oa.scratch);
    return s;
  }
  if (d != to && !narrow_in) {
    s = plk_scratch((size_t)plk_max64(y->numel, 1) * pl_dtype_size(to), &wide);
    if (s == PL_OK && bias) s = plk_scratch((size_t)plk_max64(g->N, 1) * pl_dtype_size(to), &wide_bias);
    if (s == PL_OK && bias) s = narrow(wide_bias, to, bias->data, d, g->N);
  }
  if (s == PL_OK) {
    g->dtype = to;
    g->bias = wide_bias ? wide_bias : bias ? bias->data : NULL;
    g->c_f32 = g->bias_f32 = narrow_in && d == PL_F32;
    g->A = oa.data, g->B = ob.data, g->C = wide ? wide : y->data;
    layout(g, a, &oa, &ob);
    if (init && (init->data != g->C || !init->contiguous)) { /* what is y itself is there */
      PlkNd walk = {.n = 0};
      PlArray out = *y;
      plk_nd_walk(&walk, &out, init);
      s = plk_nd_cast(g->C, to, init->data, (PlDtype)init->dtype, &walk);
    }
    if (s == PL_OK) s = matvec || (!init && plk_matvec_fits(g)) ? plk_matvec_run(g) : plk_gemm_run(g);
    if (s == PL_OK && wide) s = narrow(y->data, d, wide, to, y->numel);
  }
  plk_scratch_free(wide_bias);
  plk_scratch_free(wide);
  plk_scratch_free(ob.scratch);
  plk_scratch_free(oa.scratch);
  return s;
}

/* ---- integers ------------------------------------------------------------------------------------------ */

typedef struct IntCall {
  PlDtype dtype;
  int64_t M, N, K, as[2], bs[2];
  const PlArray *a, *b;
  int nbatch;
  void *y;
} IntCall;

PLK_ISA_DECLARE(const PlkMatmulInt, plk_matmul_int);

static PlkIntProduct int_rows_of(PlDtype d) {
  const PlkMatmulInt *l = &PLK_ISA_PICK(plk_matmul_int);
  return d == PL_I8 ? l->i8 : d == PL_U8 ? l->u8 : d == PL_I16 ? l->i16 : d == PL_I32 ? l->i32 : l->i64;
}

static PlStatus int_rows(void *ctx, int64_t begin, int64_t end) {
  const IntCall *q = ctx;
  const PlkIntProduct multiply = int_rows_of(q->dtype);
  const size_t size = pl_dtype_size(q->dtype);
  for (int64_t row = begin, rows; row < end; row += rows) {
    int64_t batch = row / q->M, a_at = row % q->M * q->as[0], b_at = 0;
    rows = plk_min64(end - row, q->M - row % q->M);
    for (int i = q->nbatch - 1; i >= 0; i--) {
      const int64_t at = batch % q->a->shape[i];
      batch /= q->a->shape[i];
      a_at += at * q->a->strides[i];
      b_at += at * q->b->strides[i];
    }
    const PlkIntRows some = {.a = plk_cat(q->a->data, a_at, size),
                             .am = q->as[0],
                             .as = q->as[1],
                             .b = plk_cat(q->b->data, b_at, size),
                             .bk = q->bs[0],
                             .bn = q->bs[1],
                             .y = plk_at(q->y, row * q->N, size),
                             .M = rows,
                             .N = q->N,
                             .K = q->K};
    multiply(&some);
  }
  return PL_OK;
}

static PlStatus int_product(const PlArray *a, const PlArray *b, bool b_trans, PlArray *y) {
  const int nb = a->ndim - 2;
  if (y->numel == 0) return PL_OK;
  IntCall q = {.dtype = (PlDtype)y->dtype, .a = a, .b = b, .nbatch = nb, .y = y->data};
  q.M = y->shape[y->ndim - 2], q.N = y->shape[y->ndim - 1], q.K = a->shape[nb + 1];
  q.as[0] = a->strides[nb], q.as[1] = a->strides[nb + 1];
  q.bs[0] = b->strides[nb + b_trans], q.bs[1] = b->strides[nb + !b_trans];
  const int64_t row = q.N * plk_max64(q.K, 1);
  return plk_parallel(y->numel / q.N, plk_max64(12, PLK_GRAIN / row), int_rows, &q); /* 12: whole groups of rows */
}

/* y = alpha y + beta c in integers; c broadcast. Only reached for small, rare calls: no
 * parallel region. */
static PlStatus int_combine(PlArray *y, int64_t alpha, const PlArray *c, int64_t beta) {
  PlkNd walk = {.n = 0};
  plk_nd_walk(&walk, y, c);
  void *mem;
  PL_TRY(plk_scratch((size_t)plk_max64(y->numel, 1) * sizeof(int64_t), &mem));
  PlStatus s = plk_nd_cast(mem, PL_I64, c->data, (PlDtype)c->dtype, &walk);
  const int64_t *add = mem;
  for (int64_t i = 0; s == PL_OK && i < y->numel; i++) {
#define ONE(T)                                                                                \
  {                                                                                           \
    T *at = (T *)y->data + i;                                                                 \
    const uint64_t sum = (uint64_t)alpha * (uint64_t)*at + (uint64_t)beta * (uint64_t)add[i]; \
    *at = (T)sum;                                                                             \
    break;                                                                                    \
  }
    switch ((PlDtype)y->dtype) {
    case PL_I8: ONE(int8_t)
    case PL_U8: ONE(uint8_t)
    case PL_I16: ONE(int16_t)
    case PL_I32: ONE(int32_t)
    default: ONE(int64_t)
    }
#undef ONE
  }
  plk_scratch_free(mem);
  return s;
}

/* ---- precision ----------------------------------------------------------------------------------------- */

static _Thread_local PlkPrecision precision;

PlkPrecision plk_matmul_precision(void) { return precision; }
void plk_set_matmul_precision(PlkPrecision p) { precision = p; }

/* ---- entry points -------------------------------------------------------------------------------------- */

static PlStatus check_dtype(const PlkCall *call) {
  if (call->out[0]->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "%s: bool tensors have no product", call->name);
  return PL_OK;
}

PlStatus plk_cpu_matmul(const PlkCall *call) {
  const PlArray *a = call->in[0], *b = call->in[1];
  PlArray *y = call->out[0];
  PL_TRY(check_dtype(call));
  if (!pl_is_float((PlDtype)y->dtype)) return int_product(a, b, false, y);
  PlkGemm g = {.alpha = 1, .beta = 0, .nbatch = a->ndim - 2};
  g.M = a->shape[a->ndim - 2], g.K = a->shape[a->ndim - 1], g.N = b->shape[b->ndim - 1];
  return product(&g, a, b, NULL, y, NULL);
}

PlStatus plk_cpu_linear(const PlkCall *call) {
  const PlArray *x = call->in[0], *w = call->in[1];
  const PlArray *bias = call->nin > 2 ? call->in[2] : NULL;
  PlArray *y = call->out[0];
  PL_TRY(check_dtype(call));
  if (!pl_is_float((PlDtype)y->dtype)) {
    PL_TRY(int_product(x, w, true, y));
    return bias ? int_combine(y, 1, bias, 1) : PL_OK;
  }
  PlkGemm g = {.alpha = 1, .beta = 0, .tb = true};
  g.M = x->shape[0], g.K = x->shape[1], g.N = w->shape[0];
  g.relu = call->attrs && pl_attr_has(call->attrs, 0) && pl_attr_i(call->attrs, 0) == 1;
  return product(&g, x, w, bias, y, NULL);
}

static double scalar(const PlAttrs *a, int k) {
  if (!a || !pl_attr_has(a, k)) return 1;
  return (a->isint >> k) & 1 ? (double)a->v[k].i : a->v[k].f;
}

static int64_t scalar_int(const PlAttrs *a, int k) {
  if (!a || !pl_attr_has(a, k)) return 1;
  if ((a->isint >> k) & 1) return a->v[k].i;
  const double x = a->v[k].f;
  return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : 0;
}

PlStatus plk_cpu_addmm(const PlkCall *call) {
  const PlArray *c = call->in[0], *a = call->in[1], *b = call->in[2];
  PlArray *y = call->out[0];
  PL_TRY(check_dtype(call));
  if (!pl_is_float((PlDtype)y->dtype)) {
    PL_TRY(int_product(a, b, false, y));
    return int_combine(y, scalar_int(call->attrs, 1), c, scalar_int(call->attrs, 0));
  }
  PlkGemm g = {.alpha = scalar(call->attrs, 1), .beta = scalar(call->attrs, 0), .nbatch = a->ndim - 2};
  g.M = a->shape[a->ndim - 2], g.K = a->shape[a->ndim - 1], g.N = b->shape[b->ndim - 1];
  return product(&g, a, b, NULL, y, g.beta == 0 ? NULL : c);
}
