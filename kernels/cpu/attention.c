/* SPDX-License-Identifier: MIT
 * Attention and its gradient (see kernels/attention.h), a few queries at a time, so that memory grows with the
 * length and not with its square:
 *   p = exp(scale q kᵀ - top) / sum,  y = p v
 *   dp = dy vᵀ,  ds = p (dp - Σ p dp) scale,  dq = ds k,  dk = dsᵀ q,  dv = pᵀ dy
 * Keys and values are copied once a task, transposed where the product wants it, and padded with zeros to
 * whole vectors. Forward tasks are stretches of queries; backward tasks are whole sequences, because all
 * queries add to dk and dv. */
#include "kernels/cpu/attention.h"

#include <string.h>

#include "kernels/attention.h"
#include "kernels/cpu/isa/level.h"

PLK_ISA_DECLARE(const PlkAttentionLoops, plk_attention);

enum { R = PLK_AT_ROWS, CHUNK = 128, GROUP = 16 };

typedef struct Job {
  const PlkAttentionLoops *f;
  const float *q, *k, *v, *dy, *sums_in;
  float *y, *sums, *dq, *dk, *dv;
  int64_t B, L, S, E, D, Ep, Dp, Sp, chunks;
  float scale;
  bool causal;
} Job;

static int64_t padded(int64_t n) { return (n + PLK_AT_LANES - 1) / PLK_AT_LANES * PLK_AT_LANES; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static Job job_of(const PlkCall *call, int first) {
  const PlArray *q = call->in[first], *k = call->in[first + 1], *v = call->in[first + 2];
  Job j = {.f = &PLK_ISA_PICK(plk_attention),
           .q = q->data,
           .k = k->data,
           .v = v->data,
           .B = q->shape[0],
           .L = q->shape[1],
           .E = q->shape[2],
           .S = k->shape[1],
           .D = v->shape[2],
           .scale = (float)pl_attr_f(call->attrs, 0),
           .causal = pl_attr_i(call->attrs, 1) != 0};
  j.Ep = padded(j.E);
  j.Dp = padded(j.D);
  j.Sp = padded(j.S);
  j.chunks = (j.L + CHUNK - 1) / CHUNK;
  return j;
}

/* dst[c][ld] <- x[n][c] transposed; dst[n][ld] <- x[n][c] as it is. The rest of dst is zero already. */
static void transposed(float *dst, int64_t ld, const float *x, int64_t n, int64_t c) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < c; j++) dst[j * ld + i] = x[i * c + j];
}
static void rows(float *dst, int64_t ld, const float *x, int64_t n, int64_t c) {
  for (int64_t i = 0; i < n; i++) memcpy(dst + i * ld, x + i * c, (size_t)c * sizeof(float));
}

static PlStatus zeroed(int64_t n, float **out) {
  void *p;
  PL_TRY(plk_scratch((size_t)(n + 1) * sizeof(float), &p));
  memset(p, 0, (size_t)(n + 1) * sizeof(float));
  *out = p;
  return PL_OK;
}

/* How many keys query i sees. */
static int64_t seen(const Job *j, int64_t i) { return j->causal ? smaller(i + 1, j->S) : j->S; }

/* ---- forward ---------------------------------------------------------------------------------------- */

static PlStatus forward_chunk(const Job *j, int64_t b, int64_t from, int64_t to) {
  const int64_t E = j->E, D = j->D, Sp = j->Sp, Dp = j->Dp, most = seen(j, to - 1);
  float *room;
  PL_TRY(zeroed((E + R) * Sp + most * Dp + R * (E + Dp), &room));
  float *kt = room, *s = kt + E * Sp, *v = s + R * Sp, *q = v + most * Dp, *o = q + R * E;
  transposed(kt, Sp, j->k + b * j->S * E, most, E);
  rows(v, Dp, j->v + b * j->S * D, most, D);
  PlStatus status = PL_OK;
  for (int64_t i = from; i < to && status == PL_OK; i += R) {
    const int64_t m = smaller(R, to - i), w = padded(seen(j, i + m - 1));
    memset(q, 0, (size_t)(R * E) * sizeof(float));
    rows(q, E, j->q + (b * j->L + i) * E, m, E);
    for (int64_t r = 0; r < R; r++) memset(s + r * Sp, 0, (size_t)w * sizeof(float));
    memset(o, 0, (size_t)(R * Dp) * sizeof(float));
    j->f->mm4(q, E, 1, kt, Sp, E, s, Sp, w);
    float sum[R] = {0};
    for (int64_t r = 0; r < m; r++) {
      float top = j->f->softmax(s + r * Sp, seen(j, i + r), w, j->scale, &sum[r]);
      float *kept = j->sums ? j->sums + 2 * (b * j->L + i + r) : NULL;
      if (kept) kept[0] = top, kept[1] = sum[r];
    }
    j->f->mm4(s, Sp, 1, v, Dp, seen(j, i + m - 1), o, Dp, Dp);
    for (int64_t r = 0; r < m; r++)
      for (int64_t d = 0; d < D && j->y; d++) j->y[(b * j->L + i + r) * D + d] = o[r * Dp + d] / sum[r];
    status = plk_poll();
  }
  plk_scratch_free(room);
  return status;
}

static PlStatus forward(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  for (int64_t t = begin; t < end; t++) {
    int64_t from = t % j->chunks * CHUNK;
    PL_TRY(forward_chunk(j, t / j->chunks, from, smaller(from + CHUNK, j->L)));
  }
  return PL_OK;
}

PlStatus plk_cpu_attention(const PlkCall *call) {
  Job j = job_of(call, 0);
  j.y = call->out[0] ? call->out[0]->data : NULL;
  j.sums = call->out[1] ? call->out[1]->data : NULL;
  return j.B * j.chunks > 0 ? plk_parallel(j.B * j.chunks, 1, forward, &j) : PL_OK;
}

/* ---- backward --------------------------------------------------------------------------------------- */

/* Scratch of one sequence; widths are padded. */
typedef struct Space {
  float *kt, *vt, *k; /* [E][Sp], [D][Sp], [S][Ep] */
  float *dk, *dv;     /* [Sp][Ep], [Sp][Dp] */
  float *p, *ds;      /* [GROUP][Sp] */
  float *q, *dy, *dq; /* [GROUP][Ep], [GROUP][Dp], [GROUP][Ep] */
} Space;

/* p and ds of GROUP queries from i on, the last of which are zero where there are fewer; dq. */
static void group_scores(const Job *j, const Space *t, int64_t b, int64_t i, int64_t m, int64_t w) {
  const int64_t E = j->E, D = j->D, Sp = j->Sp, Ep = j->Ep, Dp = j->Dp;
  memset(t->q, 0, (size_t)(GROUP * (2 * Ep + Dp)) * sizeof(float)); /* q, dy and dq lie side by side */
  rows(t->q, Ep, j->q + (b * j->L + i) * E, m, E);
  rows(t->dy, Dp, j->dy + (b * j->L + i) * D, m, D);
  for (int64_t r = 0; r < GROUP; r++) {
    memset(t->p + r * Sp, 0, (size_t)w * sizeof(float));
    memset(t->ds + r * Sp, 0, (size_t)w * sizeof(float));
  }
  for (int64_t r = 0; r < m; r += R) {
    j->f->mm4(t->q + r * Ep, Ep, 1, t->kt, Sp, E, t->p + r * Sp, Sp, w);
    j->f->mm4(t->dy + r * Dp, Dp, 1, t->vt, Sp, D, t->ds + r * Sp, Sp, w);
  }
  for (int64_t r = 0; r < GROUP; r++) {
    int64_t n = r < m ? seen(j, i + r) : 0;
    const float *kept = j->sums_in + 2 * (b * j->L + i + (r < m ? r : 0));
    j->f->again(t->p + r * Sp, n, w, j->scale, kept[0], kept[1]);
    j->f->slope(t->p + r * Sp, t->ds + r * Sp, w, j->scale);
  }
}

static PlStatus backward_one(const Job *j, int64_t b, const Space *t) {
  const int64_t E = j->E, D = j->D, S = j->S, Sp = j->Sp, Ep = j->Ep, Dp = j->Dp;
  transposed(t->kt, Sp, j->k + b * S * E, S, E);
  transposed(t->vt, Sp, j->v + b * S * D, S, D);
  rows(t->k, Ep, j->k + b * S * E, S, E);
  memset(t->dk, 0, (size_t)(Sp * Ep) * sizeof(float));
  memset(t->dv, 0, (size_t)(Sp * Dp) * sizeof(float));
  for (int64_t i = 0; i < j->L; i += GROUP) {
    const int64_t m = smaller(GROUP, j->L - i), n = seen(j, i + m - 1), w = padded(n);
    group_scores(j, t, b, i, m, w);
    for (int64_t r = 0; r < m; r += R) j->f->mm4(t->ds + r * Sp, Sp, 1, t->k, Ep, n, t->dq + r * Ep, Ep, Ep);
    for (int64_t c = 0; c < n; c += R) { /* Sp is a multiple of R, and columns beyond n are zero */
      j->f->mm4(t->ds + c, 1, Sp, t->q, Ep, GROUP, t->dk + c * Ep, Ep, Ep);
      j->f->mm4(t->p + c, 1, Sp, t->dy, Dp, GROUP, t->dv + c * Dp, Dp, Dp);
    }
    for (int64_t r = 0; r < m && j->dq; r++)
      memcpy(j->dq + (b * j->L + i + r) * E, t->dq + r * Ep, (size_t)E * sizeof(float));
    PL_TRY(plk_poll());
  }
  for (int64_t c = 0; c < S; c++) {
    if (j->dk) memcpy(j->dk + (b * S + c) * E, t->dk + c * Ep, (size_t)E * sizeof(float));
    if (j->dv) memcpy(j->dv + (b * S + c) * D, t->dv + c * Dp, (size_t)D * sizeof(float));
  }
  return PL_OK;
}

static PlStatus backward(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  const int64_t E = j->E, D = j->D, Sp = j->Sp, Ep = j->Ep, Dp = j->Dp;
  float *room;
  PL_TRY(zeroed((E + D + 2 * Ep + Dp + 2 * GROUP) * Sp + GROUP * (2 * Ep + Dp), &room));
  Space t = {.kt = room};
  t.vt = t.kt + E * Sp;
  t.k = t.vt + D * Sp;
  t.dk = t.k + Sp * Ep;
  t.dv = t.dk + Sp * Ep;
  t.p = t.dv + Sp * Dp;
  t.ds = t.p + GROUP * Sp;
  t.q = t.ds + GROUP * Sp;
  t.dy = t.q + GROUP * Ep;
  t.dq = t.dy + GROUP * Dp;
  PlStatus s = PL_OK;
  for (int64_t b = begin; b < end && s == PL_OK; b++) s = backward_one(j, b, &t);
  plk_scratch_free(room);
  return s;
}

PlStatus plk_cpu_attention_bwd(const PlkCall *call) {
  Job j = job_of(call, 1);
  j.dy = call->in[0]->data;
  j.sums_in = call->in[4]->data;
  j.dq = call->out[0] ? call->out[0]->data : NULL;
  j.dk = call->out[1] ? call->out[1]->data : NULL;
  j.dv = call->out[2] ? call->out[2]->data : NULL;
  return j.B > 0 ? plk_parallel(j.B, 1, backward, &j) : PL_OK;
}
