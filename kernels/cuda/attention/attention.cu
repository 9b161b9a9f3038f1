/* SPDX-License-Identifier: MIT
 * Attention (kernels/attention.h) without cuDNN: with masks, dropout, f32, f64, odd head sizes. Scores are made by a
 * product, a slice of the batch at a time (512 MiB), one block of threads turns each row into shares, a second product
 * takes the values. Backward makes the scores again.
 *   P = exp(Z - top) / sum, y = (P d) v;  T = d (dy vᵀ), G = P (T - Σ P T), dq = scale G k, dk = scale Gᵀ q, dv = (P d)ᵀ dy
 * with Z = scale q kᵀ + mask and d what dropout keeps, drawn from the same words as on the CPU. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/gemm/operand.h"

#define SCORE_BYTES ((int64_t)512 << 20)
/* ---- what a call is ------------------------------------------------------------------------------------------------------- */

struct Call {
  PlcScores rows;
  int64_t B, E, D;
  PlDtype dtype, wide;
  double scale;
  PlcOperand q, k, v, dy;
};

static PlcMask mask_of(const PlArray *m, const PlArray *q) {
  PlcMask r;
  memset(&r, 0, sizeof r);
  if (!m) return r;
  r.data = m->data, r.dtype = m->dtype, r.nbatch = q->ndim - 2;
  const int skip = q->ndim - m->ndim;
  for (int d = 0; d < q->ndim; d++) {
    const int64_t step = d < skip || m->shape[d - skip] == 1 ? 0 : m->strides[d - skip];
    if (d < r.nbatch) r.size[d] = q->shape[d], r.step[d] = step;
    if (d == r.nbatch) r.rows = step;
    if (d == r.nbatch + 1) r.cols = step;
  }
  return r;
}

static PlStatus dense_copy(const PlArray *a, PlcOperand *o) {
  const int nb = a->ndim - 2;
  PlArray dense = *a;
  int64_t strides[PL_MAX_DIM], n = 1;
  memset(o, 0, sizeof *o);
  PL_TRY(plc_scratch((size_t)a->numel * pl_dtype_size((PlDtype)a->dtype), &o->scratch));
  for (int d = a->ndim - 1; d >= 0; d--) strides[d] = n, n *= a->shape[d];
  dense.data = o->scratch, dense.strides = strides, dense.contiguous = 1;
  static const PlAttrs none = {};
  const PlArray *in[1] = {a};
  PlArray *out[1] = {&dense};
  PlkCall copy;
  memset(&copy, 0, sizeof copy);
  copy.name = "copy", copy.nin = copy.nout = 1, copy.in = in, copy.out = out, copy.attrs = &none;
  o->data = o->scratch;
  o->ld = a->shape[nb + 1] > 1 ? a->shape[nb + 1] : 1;
  o->step[0] = a->shape[nb] * a->shape[nb + 1];
  return plc_run(&plc_kernel_copy, &copy);
}

/* An operand whose batches have one stride: collapsed, or a dense copy where they cannot be. */
static PlStatus stack(const PlArray *a, PlcOperand *o) {
  const int nb = a->ndim - 2;
  int64_t step = 0, size = 1;
  bool even = true;
  PL_TRY(plc_operand(a, o));
  for (int d = nb - 1; d >= 0 && even; d--) {
    if (a->shape[d] == 1) continue;
    even = size == 1 || o->step[d] == step * size;
    if (size == 1) step = o->step[d];
    size *= a->shape[d];
  }
  if (!even) { /* rows of strides that nothing fits: as if no stride were 1 */
    plc_scratch_free(o->scratch);
    return dense_copy(a, o);
  }
  o->step[0] = step;
  return PL_OK;
}

static PlStatus prepare(Call *c, const PlkCall *call, int first, const PlArray *mask, const PlArray *dy) {
  const PlArray *q = call->in[first], *k = call->in[first + 1], *v = call->in[first + 2];
  memset(c, 0, sizeof *c);
  c->B = 1;
  for (int d = 0; d < q->ndim - 2; d++) c->B *= q->shape[d];
  c->rows.L = q->shape[q->ndim - 2], c->rows.S = k->shape[k->ndim - 2];
  c->E = q->shape[q->ndim - 1], c->D = v->shape[v->ndim - 1];
  c->dtype = (PlDtype)q->dtype, c->wide = q->dtype == PL_F64 ? PL_F64 : PL_F32;
  c->scale = pl_attr_f(call->attrs, 0);
  c->rows.causal = pl_attr_i(call->attrs, 1) != 0;
  c->rows.mask = mask_of(mask, q);
  PL_TRY(stack(q, &c->q));
  PL_TRY(stack(k, &c->k));
  PL_TRY(stack(v, &c->v));
  return dy ? stack(dy, &c->dy) : PL_OK;
}

static void finish(Call *c) {
  plc_scratch_free(c->q.scratch);
  plc_scratch_free(c->k.scratch);
  plc_scratch_free(c->v.scratch);
  plc_scratch_free(c->dy.scratch);
}

static void dropout(PlcScores *r, double p, const void *state, int64_t step) {
  r->cut = (uint64_t)(p * 4294967296.0);
  r->keep = p < 1 ? 1 / (1 - p) : 0;
  r->state = (const uint64_t *)state;
  r->state_step = step;
}

/* c[m,n] of n batches from `first` on = alpha op(a) op(b); operands with a step are whole stacks. */
struct Side {
  const void *data;
  int64_t ld, step;
  bool trans;
};
static Side side(const PlcOperand *o, int64_t first, PlDtype d) {
  Side s = {(const char *)o->data + first * o->step[0] * (int64_t)pl_dtype_size(d), o->ld, o->step[0], o->trans};
  return s;
}
static Side dense(const void *data, int64_t rows, int64_t cols) {
  Side s = {data, cols > 1 ? cols : 1, rows * cols, false};
  return s;
}
static PlStatus product(const Call *c, int64_t batch, int64_t m, int64_t n, int64_t k, Side a, bool ta, Side b, bool tb, double alpha,
                        void *out, PlDtype result) {
  PlcGemm g;
  memset(&g, 0, sizeof g);
  g.m = m, g.n = n, g.k = k, g.batch = batch, g.dtype = c->dtype, g.result = result;
  g.ta = a.trans != ta, g.tb = b.trans != tb, g.a = a.data, g.b = b.data, g.c = out;
  g.lda = a.ld, g.ldb = b.ld, g.ldc = n > 1 ? n : 1, g.sa = a.step, g.sb = b.step, g.sc = m * n, g.alpha = alpha;
  return plc_gemm(&g);
}

static char *at_batch(const PlArray *a, int64_t elements) { return (char *)a->data + elements * (int64_t)pl_dtype_size((PlDtype)a->dtype); }

static int64_t batches_at_once(const Call *c) {
  const int64_t each = c->rows.L * c->rows.S * (c->wide == PL_F64 ? 8 : 4), fit = SCORE_BYTES / (each > 0 ? each : 1);
  const int64_t most = (int64_t)1 << 30; /* rows of a grid */
  int64_t n = fit < 1 ? 1 : fit < c->B ? fit : c->B;
  while (n > 1 && n * c->rows.L > most) n /= 2;
  return n;
}

/* ---- forward ------------------------------------------------------------------------------------------------------------------ */

static PlStatus forward(Call *c, int64_t first, int64_t n, void *z, void *p, PlArray *y, PlArray *sums) {
  const PlcScores &r = c->rows;
  PL_TRY(product(c, n, r.L, r.S, c->E, side(&c->q, first, c->dtype), false, side(&c->k, first, c->dtype), true, c->scale, z, c->wide));
  c->rows.first = first;
  PL_TRY(plc_attention_shares(&c->rows, n * r.L, c->dtype, z, p, sums ? sums->data : NULL));
  if (!y) return PL_OK;
  return product(c, n, r.L, c->D, r.S, dense(p, r.L, r.S), false, side(&c->v, first, c->dtype), false, 1, at_batch(y, first * r.L * c->D),
                 c->dtype);
}

static PlStatus all_forward(Call *c, PlArray *y, PlArray *sums) {
  const int64_t most = batches_at_once(c), each = c->rows.L * c->rows.S;
  const bool narrow = c->dtype != c->wide;
  void *z = NULL, *p = NULL;
  PL_TRY(plc_scratch((size_t)(most * each) * pl_dtype_size(c->wide), &z));
  PlStatus s = narrow ? plc_scratch((size_t)(most * each) * pl_dtype_size(c->dtype), &p) : PL_OK;
  for (int64_t b = 0; b < c->B && s == PL_OK; b += most) {
    const int64_t n = c->B - b < most ? c->B - b : most;
    s = forward(c, b, n, z, narrow ? p : z, y, sums);
  }
  plc_scratch_free(p);
  plc_scratch_free(z);
  return s;
}

static PlStatus attention_dense(const PlkCall *call) {
  const double p = pl_attr_f(call->attrs, 2);
  PlArray *kept_state = call->nout > 2 ? call->out[2] : NULL;
  Call c;
  void *state = NULL;
  PlStatus s = prepare(&c, call, 0, call->nin > 3 ? call->in[3] : NULL, NULL);
  if (s == PL_OK && p > 0) {
    if (!kept_state) s = plc_scratch(3 * sizeof(uint64_t), &state);
    dropout(&c.rows, p, kept_state ? kept_state->data : state, 1);
    if (s == PL_OK) s = plc_attention_state((void *)c.rows.state, &call->rng);
  }
  if (s == PL_OK && c.B * c.rows.L > 0) s = all_forward(&c, call->out[0], call->out[1]);
  plc_scratch_free(state);
  finish(&c);
  return s;
}

/* ---- backward ------------------------------------------------------------------------------------------------------------------- */

struct Room {
  void *z, *t, *p, *g; /* scores and dy vᵀ in the wide dtype; P d and G in q's, on top of them where it is the same */
};

static PlStatus backward(Call *c, int64_t first, int64_t n, const Room *m, PlArray *const *out) {
  const PlcScores &r = c->rows;
  const Side q = side(&c->q, first, c->dtype), k = side(&c->k, first, c->dtype), v = side(&c->v, first, c->dtype);
  const Side dy = side(&c->dy, first, c->dtype), p = dense(m->p, r.L, r.S), g = dense(m->g, r.L, r.S);
  PL_TRY(product(c, n, r.L, r.S, c->E, q, false, k, true, c->scale, m->z, c->wide));
  PL_TRY(product(c, n, r.L, r.S, c->D, dy, false, v, true, 1, m->t, c->wide));
  c->rows.first = first;
  if (r.L > 0) PL_TRY(plc_attention_slopes(&c->rows, n * r.L, c->dtype, m->z, m->t, m->p, m->g));
  if (out[0]) PL_TRY(product(c, n, r.L, c->E, r.S, g, false, k, false, c->scale, at_batch(out[0], first * r.L * c->E), c->dtype));
  if (out[1]) PL_TRY(product(c, n, r.S, c->E, r.L, g, true, q, false, c->scale, at_batch(out[1], first * r.S * c->E), c->dtype));
  if (out[2]) PL_TRY(product(c, n, r.S, c->D, r.L, p, true, dy, false, 1, at_batch(out[2], first * r.S * c->D), c->dtype));
  return PL_OK;
}

static PlStatus all_backward(Call *c, PlArray *const *out) {
  const int64_t most = batches_at_once(c), n = most * c->rows.L * c->rows.S;
  const bool narrow = c->dtype != c->wide;
  Room m = {NULL, NULL, NULL, NULL};
  PlStatus s = plc_scratch((size_t)n * pl_dtype_size(c->wide), &m.z);
  if (s == PL_OK) s = plc_scratch((size_t)n * pl_dtype_size(c->wide), &m.t);
  if (s == PL_OK && narrow) s = plc_scratch((size_t)n * pl_dtype_size(c->dtype), &m.p);
  if (s == PL_OK && narrow) s = plc_scratch((size_t)n * pl_dtype_size(c->dtype), &m.g);
  Room use = {m.z, m.t, narrow ? m.p : m.z, narrow ? m.g : m.t};
  for (int64_t b = 0; b < c->B && s == PL_OK; b += most) s = backward(c, b, c->B - b < most ? c->B - b : most, &use, out);
  plc_scratch_free(m.g);
  plc_scratch_free(m.p);
  plc_scratch_free(m.t);
  plc_scratch_free(m.z);
  return s;
}

/* The sums of all rows, one behind the other; a copy (in *copy) where they are not. */
static PlStatus even_sums(const PlArray *sums, PlcScores *r, void **copy) {
  PlcOperand o;
  const int64_t L = sums->shape[sums->ndim - 2];
  PlStatus s = stack(sums, &o);
  const bool by_rows = s != PL_OK || sums->numel <= 2 * L || (o.trans ? 1 : o.ld) * L == o.step[0];
  if (!by_rows) { /* repeated, or apart */
    plc_scratch_free(o.scratch);
    s = dense_copy(sums, &o);
  }
  *copy = o.scratch;
  r->sums = o.data;
  r->sums_row = o.trans ? 1 : o.ld;
  r->sums_col = o.trans ? o.ld : 1;
  return s;
}

static PlStatus attention_bwd_dense(const PlkCall *call) {
  Call c;
  void *sums = NULL;
  const bool dropped = call->nin > 6 && call->in[6];
  PlStatus s = prepare(&c, call, 1, call->nin > 5 ? call->in[5] : NULL, call->in[0]);
  if (s == PL_OK) s = even_sums(call->in[4], &c.rows, &sums);
  if (s == PL_OK && dropped) dropout(&c.rows, pl_attr_f(call->attrs, 2), call->in[6]->data, call->in[6]->strides[0]);
  if (s == PL_OK && c.B > 0) s = all_backward(&c, call->out);
  plc_scratch_free(sums);
  finish(&c);
  return s;
}

/* ---- statistics of a library: log Σ exp in place of the largest score and the sum ---------------------------------------------------- */

__global__ void split_stats(int64_t n, const float *stats, float *sums) {
  for (PLC_EACH(i, n)) sums[2 * i] = stats[i], sums[2 * i + 1] = 1;
}
__global__ void join_sums(int64_t n, const float *sums, int64_t row, int64_t col, float *stats) {
  for (PLC_EACH(i, n)) stats[i] = sums[i * row] + logf(sums[i * row + col]);
}

extern "C" PlStatus plc_attention_split(int64_t n, const float *stats, PlArray *sums) {
  PLC_LAUNCH(split_stats, plc_grid(n, 1), PLC_BLOCK, 0, n, stats, (float *)sums->data);
  return PL_OK;
}

static PlStatus launch_join(const PlcScores *r, int64_t n, float *stats) {
  PLC_LAUNCH(join_sums, plc_grid(n, 1), PLC_BLOCK, 0, n, (const float *)r->sums, r->sums_row, r->sums_col, stats);
  return PL_OK;
}
extern "C" PlStatus plc_attention_join(const PlArray *sums, float *stats) {
  PlcScores r;
  void *copy = NULL;
  PlStatus s = even_sums(sums, &r, &copy);
  if (s == PL_OK) s = launch_join(&r, sums->numel / 2, stats);
  plc_scratch_free(copy);
  return s;
}

/* ---- results that are apart in memory ----------------------------------------------------------------------------- */

/* Those are made densely and copied: the usual case is the library's, which writes them where they belong. */
static PlStatus apart(const PlkCall *call, PlStatus (*run)(const PlkCall *call)) {
  static const PlAttrs none = {};
  PlArray mine[3], *out[3];
  int64_t strides[3][PL_MAX_DIM];
  void *room[3] = {NULL, NULL, NULL};
  PlStatus s = PL_OK;
  for (int o = 0; o < call->nout && s == PL_OK; o++) {
    out[o] = call->out[o];
    if (!out[o] || out[o]->contiguous) continue;
    mine[o] = *out[o];
    int64_t step = 1;
    for (int d = mine[o].ndim - 1; d >= 0; d--) strides[o][d] = step, step *= mine[o].shape[d];
    s = plc_scratch((size_t)step * pl_dtype_size((PlDtype)mine[o].dtype), &room[o]);
    mine[o].data = room[o], mine[o].strides = strides[o], mine[o].contiguous = 1;
    out[o] = &mine[o];
  }
  PlkCall dense = *call;
  dense.out = out;
  if (s == PL_OK) s = run(&dense);
  for (int o = 0; o < call->nout; o++) {
    const PlArray *in[1] = {&mine[o]};
    PlkCall copy;
    memset(&copy, 0, sizeof copy);
    copy.name = call->name, copy.nin = copy.nout = 1, copy.in = in, copy.out = &call->out[o], copy.attrs = &none;
    if (s == PL_OK && room[o]) s = plc_run(&plc_kernel_copy, &copy);
    plc_scratch_free(room[o]);
  }
  return s;
}
static PlStatus attention(const PlkCall *call) { return apart(call, attention_dense); }
static PlStatus attention_bwd(const PlkCall *call) { return apart(call, attention_bwd_dense); }

/* ---- what dropout keeps ----------------------------------------------------------------------------------------------------------- */

static PlStatus attention_keep(const PlkCall *call) {
  PlArray *y = call->out[0];
  PlcScores r;
  memset(&r, 0, sizeof r);
  r.S = y->shape[y->ndim - 1];
  dropout(&r, pl_attr_f(call->attrs, 0), call->in[2]->data, call->in[2]->strides[0]);
  if (y->numel == 0) return PL_OK;
  return plc_attention_kept(&r, y->numel, y->dtype, y->data);
}

PLC_KERNEL(attention, attention)
PLC_KERNEL(attention_bwd, attention_bwd)
PLC_KERNEL(attention_keep, attention_keep)
