/* SPDX-License-Identifier: MIT
 * Attention graphs: see cudnn_ops.h. Legend: q[B,H,L,E], k[B,H,S,E], v[B,H,S,D], Z[B,H,L,S] scores, P = softmax(Z).
 * cuDNN knows the patterns below as flash attention; nothing of size L S is ever in memory. The row statistics are the
 * logarithms log Σ exp Z (Dao et al., "FlashAttention-2", 2023, algorithms 1 and 2). */
#include <string.h>

#include "kernels/cuda/libs/cudnn_ops.h"

/* What both graphs have. Inner results are f32. */
typedef struct Sdpa {
  PlcGraph g;
  const PlcSdpaKey *k;
  cudnnDataType_t type;
  PlcShape scores, rows; /* [B,H,L,S], [B,H,L,1] */
} Sdpa;

#define F32 CUDNN_DATA_FLOAT

static PlcShape dense(int64_t a, int64_t b, int64_t c, int64_t d) {
  return (PlcShape){.ndim = 4, .dim = {a, b, c, d}, .stride = {b * c * d, c * d, d, 1}};
}

static PlcDesc outer(Sdpa *s, int64_t uid, int64_t rows, int64_t cols, const int64_t *stride) {
  PlcShape h = {.ndim = 4, .dim = {s->k->B, s->k->H, rows, cols}};
  memcpy(h.stride, stride, 4 * sizeof *stride);
  return plc_graph_tensor(&s->g, uid, s->type, &h, s->k->align);
}

/* [.., rows, cols] seen as [.., cols, rows] */
static PlcDesc outer_t(Sdpa *s, int64_t uid, int64_t rows, int64_t cols, const int64_t *stride) {
  const int64_t t[4] = {stride[0], stride[1], stride[3], stride[2]};
  return outer(s, uid, cols, rows, t);
}

static PlcDesc inner(Sdpa *s, cudnnDataType_t type, const PlcShape *h) { return plc_graph_inner(&s->g, type, h); }

/* y = mode(x, b), a new inner tensor. */
static PlcDesc op2(Sdpa *s, cudnnPointwiseMode_t mode, PlcDesc x, PlcDesc b, const PlcShape *h) {
  PlcDesc y = inner(s, F32, h);
  plc_graph_pointwise(&s->g, mode, F32, x, b, NULL, y, 0);
  return y;
}

/* Z with what is behind the diagonal hidden: column ≤ row ? Z : masked. */
static PlcDesc causal(Sdpa *s, PlcDesc z) {
  PlcGraph *g = &s->g;
  PlcDesc row = inner(s, CUDNN_DATA_INT32, &s->scores), col = inner(s, CUDNN_DATA_INT32, &s->scores);
  PlcDesc seen = inner(s, CUDNN_DATA_BOOLEAN, &s->scores), out = inner(s, F32, &s->scores);
  plc_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, z, NULL, NULL, row, 2);
  plc_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, z, NULL, NULL, col, 3);
  plc_graph_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, col, NULL, seen, 0);
  plc_graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, z, plc_graph_number(g, PLC_UID_MASKED, 4), seen, out, 0);
  return out;
}

/* scale q kᵀ */
static PlcDesc scores(Sdpa *s, PlcDesc q, PlcDesc kt, PlcDesc scale) {
  PlcDesc z = inner(s, F32, &s->scores);
  plc_graph_matmul(&s->g, q, kt, z);
  return op2(s, CUDNN_POINTWISE_MUL, z, scale, &s->scores);
}

/* m = max Z, e = exp(Z - m), l = Σ e, stats = m + log l, P = e / l, o = P v */
static void forward(Sdpa *s) {
  const PlcSdpaKey *k = s->k;
  PlcGraph *g = &s->g;
  PlcDesc q = outer(s, PLC_UID_Q, k->L, k->E, k->q), kt = outer_t(s, PLC_UID_K, k->S, k->E, k->k);
  PlcDesc v = outer(s, PLC_UID_V, k->S, k->D, k->v), o = outer(s, PLC_UID_O, k->L, k->D, k->o);
  PlcDesc z = scores(s, q, kt, plc_graph_number(g, PLC_UID_SCALE, 4));
  if (k->causal) z = causal(s, z);
  PlcDesc m = inner(s, F32, &s->rows), l = inner(s, F32, &s->rows), log_l = inner(s, F32, &s->rows);
  plc_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, z, m);
  PlcDesc e = inner(s, F32, &s->scores), p = inner(s, s->type, &s->scores);
  PlcDesc low = op2(s, CUDNN_POINTWISE_SUB, z, m, &s->scores);
  plc_graph_pointwise(g, CUDNN_POINTWISE_EXP, F32, low, NULL, NULL, e, 0);
  plc_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, l);
  plc_graph_pointwise(g, CUDNN_POINTWISE_LOG, F32, l, NULL, NULL, log_l, 0);
  plc_graph_pointwise(g, CUDNN_POINTWISE_ADD, F32, m, log_l, NULL, plc_graph_tensor(g, PLC_UID_STATS, F32, &s->rows, k->rows_align), 0);
  plc_graph_pointwise(g, CUDNN_POINTWISE_DIV, F32, e, l, NULL, p, 0);
  plc_graph_matmul(g, p, v, o);
}

/* x[B,H,L,S] as [B,H,S,L], in the dtype of the products */
static PlcDesc turned(Sdpa *s, PlcDesc x) {
  const PlcSdpaKey *k = s->k;
  PlcShape t = {.ndim = 4, .dim = {k->B, k->H, k->S, k->L}, .stride = {k->H * k->L * k->S, k->L * k->S, 1, k->S}};
  PlcDesc y = inner(s, s->type, &t);
  plc_graph_reshape(&s->g, x, y);
  return y;
}

/* With r = Σ_d dy o (one number a row):  P = exp(Z - stats), dv = Pᵀ dy, dZ = P (dy vᵀ - r) scale, dk = dZᵀ q, dq = dZ k */
static void backward(Sdpa *s) {
  const PlcSdpaKey *k = s->k;
  PlcGraph *g = &s->g;
  PlcDesc q = outer(s, PLC_UID_Q, k->L, k->E, k->q), kt = outer_t(s, PLC_UID_K, k->S, k->E, k->k);
  PlcDesc vt = outer_t(s, PLC_UID_V, k->S, k->D, k->v), o = outer(s, PLC_UID_O, k->L, k->D, k->o);
  PlcDesc dy = outer(s, PLC_UID_DY, k->L, k->D, k->dy), stats = plc_graph_tensor(g, PLC_UID_STATS, F32, &s->rows, k->rows_align);
  PlcDesc scale = plc_graph_number(g, PLC_UID_SCALE, 4), one = plc_graph_number(g, PLC_UID_ONE, 4);
  PlcShape wide = {.ndim = 4, .dim = {k->B, k->H, k->L, k->D}, .stride = {k->H * k->L * k->D, k->L * k->D, k->H * k->D, 1}};
  PlcDesc r = inner(s, F32, &s->rows), r_kept = plc_graph_tensor(g, PLC_UID_SUM, F32, &s->rows, k->rows_align);
  plc_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, op2(s, CUDNN_POINTWISE_MUL, dy, o, &wide), r);
  plc_graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, r, one, NULL, r_kept, 0); /* the pattern scales by dropout's 1 - p here */
  PlcDesc z = op2(s, CUDNN_POINTWISE_SUB, scores(s, q, kt, scale), stats, &s->scores);
  if (k->causal) z = causal(s, z);
  PlcDesc p = inner(s, F32, &s->scores);
  plc_graph_pointwise(g, CUDNN_POINTWISE_EXP, F32, z, NULL, NULL, p, 0);
  plc_graph_matmul(g, turned(s, p), dy, outer(s, PLC_UID_DV, k->S, k->D, k->dv));
  PlcDesc dp = inner(s, F32, &s->scores);
  plc_graph_matmul(g, dy, vt, dp);
  PlcDesc dz = op2(s, CUDNN_POINTWISE_MUL, op2(s, CUDNN_POINTWISE_SUB, dp, r_kept, &s->scores), p, &s->scores);
  PlcDesc scaled = inner(s, s->type, &s->scores);
  plc_graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, dz, scale, NULL, scaled, 0);
  plc_graph_matmul(g, turned(s, scaled), q, outer(s, PLC_UID_DK, k->S, k->E, k->dk));
  PlcShape sk = {.ndim = 4, .dim = {k->B, k->H, k->S, k->E}, .stride = {k->k[0], k->k[1], k->k[2], k->k[3]}};
  PlcDesc k_again = inner(s, s->type, &sk), dq = outer(s, PLC_UID_DQ, k->L, k->E, k->dq);
  plc_graph_reshape(g, kt, k_again);
  if (k->deterministic) { /* the sum over blocks of keys in one order: through the library's workspace */
    plc_graph_matmul(g, scaled, k_again, dq);
    return;
  }
  PlcShape acc = dense(k->B, k->H, k->L, k->E);
  PlcDesc sum = plc_graph_tensor(g, PLC_UID_ACC, F32, &acc, 16);
  plc_graph_matmul(g, scaled, k_again, sum);
  plc_graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, F32, sum, NULL, NULL, dq, 0);
}

PlStatus plc_sdpa_plan(const void *key, PlcDnnTarget target, PlcPlan **out) {
  const PlcSdpaKey *k = key;
  if (k->dtype != PL_F16 && k->dtype != PL_BF16) /* some engine takes f32, with factors rounded to TF32 */
    PL_FAIL(PL_ERR_UNSUPPORTED, "cudnn: attention of f16 and bf16 only");
  if (k->E % 8 || k->D % 8) PL_FAIL(PL_ERR_UNSUPPORTED, "cudnn: attention takes head sizes that are multiples of 8");
  Sdpa s = {.k = k, .type = plc_dnn_dtype((PlDtype)k->dtype), .scores = dense(k->B, k->H, k->L, k->S), .rows = dense(k->B, k->H, k->L, 1)};
  plc_graph_begin(&s.g, target);
  if (k->backward) backward(&s);
  else forward(&s);
  const PlcRules rules = {.deterministic = k->deterministic != 0, .workspace = (size_t)k->workspace};
  PlStatus st = plc_graph_plan(&s.g, &rules, out);
  plc_graph_end(&s.g);
  return st;
}
