/* SPDX-License-Identifier: MIT
 * Attention and its gradient (see kernels/attention.h), a few queries at a time, so that memory grows with the
 * length and not with its square:
 *   p = exp(scale q kᵀ + mask - top) / sum,  y = (p d) v,  d = 0 or 1 / (1 - p) where there is dropout
 *   dp = d (dy vᵀ),  ds = p (dp - Σ p dp) scale,  dq = ds k,  dk = dsᵀ q,  dv = (p d)ᵀ dy
 * Forward tasks are stretches of queries. Backward tasks are whole sequences, because all queries add to dk and dv;
 * where there are few of them, each is cut into parts whose dk and dv are added in a fixed order. */
#include "kernels/attention.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/table.h"

PLK_ISA_DECLARE(const PlkAttentionLoops, plk_attention);

enum { FEW = 8 }; /* fewer sequences than this are cut for backward */

/* ---- matrices, rows, words ------------------------------------------------------------------------------------- */

int64_t plk_at_offset(const PlkAtMat *m, int64_t batch) {
  int64_t at = 0;
  for (int i = m->nbatch - 1; i >= 0; i--) {
    at += batch % m->size[i] * m->step[i];
    batch /= m->size[i];
  }
  return at;
}

/* Batch dims are those of `like`; missing or single ones repeat. */
static PlkAtMat matrix(const PlArray *a, const PlArray *like) {
  PlkAtMat m = {.data = a->data, .dtype = a->dtype, .nbatch = like->ndim - 2};
  const int skip = like->ndim - a->ndim;
  for (int i = 0; i < m.nbatch; i++) {
    m.size[i] = like->shape[i];
    m.step[i] = i < skip || a->shape[i - skip] == 1 ? 0 : a->strides[i - skip];
  }
  m.c = a->ndim > 0 ? a->shape[a->ndim - 1] : 1;
  m.n = a->ndim > 1 ? a->shape[a->ndim - 2] : 1;
  m.cs = m.c == 1 ? 0 : a->strides[a->ndim - 1];
  m.rs = m.n == 1 ? 0 : a->strides[a->ndim - 2];
  return m;
}

void plk_at_words(const PlkAtCall *c, int64_t b, int64_t i, int64_t n, uint32_t *out) {
  const uint64_t each = (uint64_t)((c->S + 3) / 4);
  plk_isa_tables()->random->bits(out, (n + 3) / 4, &c->rng, (uint64_t)(b * c->L + i) * each);
}

/* n elements `step` apart as floats. */
static void half_row(const uint16_t *x, int64_t step, int dtype, int64_t n, float *dst) {
  const PlkConvert *cv = plk_isa_tables()->convert;
  enum { TILE = 64 };
  uint16_t h[TILE];
  for (int64_t j = 0; j < n && step != 1; j += TILE) {
    const int64_t w = n - j < TILE ? n - j : TILE;
    for (int64_t e = 0; e < w; e++) h[e] = x[(j + e) * step];
    (dtype == PL_F16 ? cv->f16_load : cv->bf16_load)(h, dst + j, w);
  }
  if (step == 1) (dtype == PL_F16 ? cv->f16_load : cv->bf16_load)(x, dst, n);
}

void plk_at_row_f32(const PlkAtMat *m, int64_t at, int64_t i, int64_t n, float *dst) {
  const int64_t first = at + i * m->rs, step = m->cs;
  if (m->dtype == PL_BOOL) {
    const uint8_t *x = (const uint8_t *)m->data + first;
    for (int64_t j = 0; j < n; j++) dst[j] = x[j * step] ? 0 : -(float)INFINITY;
  } else if (m->dtype == PL_F32) {
    const float *x = (const float *)(const void *)m->data + first;
    if (step == 1) memcpy(dst, x, (size_t)n * sizeof *dst);
    else
      for (int64_t j = 0; j < n; j++) dst[j] = x[j * step];
  } else if (m->dtype == PL_F64) {
    const double *x = (const double *)(const void *)m->data + first;
    for (int64_t j = 0; j < n; j++) dst[j] = (float)x[j * step];
  } else half_row((const uint16_t *)(const void *)m->data + first, step, m->dtype, n, dst);
}

void plk_at_row_f64(const PlkAtMat *m, int64_t at, int64_t i, int64_t n, double *dst) {
  const int64_t first = at + i * m->rs, step = m->cs;
  if (m->dtype == PL_F64) {
    const double *x = (const double *)(const void *)m->data + first;
    for (int64_t j = 0; j < n; j++) dst[j] = x[j * step];
    return;
  }
  float tile[64]; /* masks of another dtype */
  for (int64_t j = 0; j < n; j += 64) {
    const int64_t w = n - j < 64 ? n - j : 64;
    plk_at_row_f32(m, at + j * step, i, w, tile);
    for (int64_t e = 0; e < w; e++) dst[j + e] = tile[e];
  }
}

void plk_at_put_f32(void *p, int dtype, int64_t at, const float *src, int64_t n) {
  const PlkConvert *cv = plk_isa_tables()->convert;
  if (dtype == PL_F32) memcpy((float *)p + at, src, (size_t)n * sizeof *src);
  else (dtype == PL_F16 ? cv->f16_store : cv->bf16_store)(src, (uint16_t *)p + at, n);
}
void plk_at_put_f64(void *p, int dtype, int64_t at, const double *src, int64_t n) {
  (void)dtype;
  memcpy((double *)p + at, src, (size_t)n * sizeof *src);
}

/* ---- what a call is --------------------------------------------------------------------------------------------- */

static void dropout(PlkAtCall *c, double p, const PlkRng *rng) {
  c->cut = (uint64_t)(p * 0x1p32);
  c->keep = p < 1 ? 1 / (1 - p) : 0;
  c->rng = *rng;
}

static PlkAtCall call_of(const PlkCall *call, int first, const PlArray *mask) {
  const PlArray *q = call->in[first], *k = call->in[first + 1], *v = call->in[first + 2];
  PlkAtCall c = {.loops = &PLK_ISA_PICK(plk_attention),
                 .q = matrix(q, q),
                 .k = matrix(k, q),
                 .v = matrix(v, q),
                 .dtype = q->dtype,
                 .B = 1,
                 .scale = pl_attr_f(call->attrs, 0),
                 .causal = pl_attr_i(call->attrs, 1) != 0,
                 .parts = 1};
  for (int i = 0; i < q->ndim - 2; i++) c.B *= q->shape[i];
  c.L = c.q.n, c.E = c.q.c, c.S = c.k.n, c.D = c.v.c;
  if (mask) c.mask = matrix(mask, q);
  return c;
}

uint64_t plk_attention_draws(const PlkCall *call) {
  const PlArray *q = call->in[0], *k = call->in[1];
  if (!(pl_attr_f(call->attrs, 2) > 0)) return 0;
  uint64_t rows = 1;
  for (int i = 0; i < q->ndim - 1; i++) rows *= (uint64_t)q->shape[i];
  return rows * (((uint64_t)k->shape[k->ndim - 2] + 3) / 4);
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */

static PlStatus forward(void *ctx, int64_t begin, int64_t end) {
  const PlkAtCall *c = ctx;
  const int64_t chunks = (c->L + PLK_AT_CHUNK - 1) / PLK_AT_CHUNK;
  const bool bf16 = plk_at_bf16(c);
  for (int64_t t = begin; t < end; t++) {
    const int64_t b = t / chunks, from = t % chunks * PLK_AT_CHUNK, to = from + PLK_AT_CHUNK < c->L ? from + PLK_AT_CHUNK : c->L;
    PL_TRY(bf16                 ? plk_at_forward_bf16(c, b, from, to)
           : c->dtype == PL_F64 ? plk_at_forward_f64(c, b, from, to)
                                : plk_at_forward_f32(c, b, from, to));
  }
  return PL_OK;
}

PlStatus plk_cpu_attention(const PlkCall *call) {
  PlkAtCall c = call_of(call, 0, call->nin > 3 ? call->in[3] : NULL);
  c.y = call->out[0] ? call->out[0]->data : NULL;
  c.sums = call->out[1] ? call->out[1]->data : NULL;
  if (pl_attr_f(call->attrs, 2) > 0) {
    dropout(&c, pl_attr_f(call->attrs, 2), &call->rng);
    if (call->nout > 2 && call->out[2])
      memcpy(call->out[2]->data, (const uint64_t[]){call->rng.seed, call->rng.stream, call->rng.offset}, 24);
  }
  const int64_t chunks = (c.L + PLK_AT_CHUNK - 1) / PLK_AT_CHUNK;
  return c.B * chunks > 0 ? plk_parallel(c.B * chunks, 1, forward, &c) : PL_OK;
}

/* ---- backward ----------------------------------------------------------------------------------------------------- */

static PlkRng state_of(const PlArray *state) {
  uint64_t v[3];
  for (int i = 0; i < 3; i++) v[i] = ((const uint64_t *)state->data)[i * state->strides[0]];
  return (PlkRng){v[0], v[1], v[2]};
}

static PlStatus backward(void *ctx, int64_t begin, int64_t end) {
  const PlkAtCall *c = ctx;
  const bool bf16 = plk_at_bf16(c);
  for (int64_t t = begin; t < end; t++) {
    const int64_t b = t / c->parts, part = t % c->parts;
    PL_TRY(bf16                 ? plk_at_backward_bf16(c, b, part)
           : c->dtype == PL_F64 ? plk_at_backward_f64(c, b, part)
                                : plk_at_backward_f32(c, b, part));
  }
  return PL_OK;
}

/* Adds the parts' dk and dv, in order. */
#define JOIN(T, F)                                                                      \
  static void join_##F(const PlkAtCall *c, int64_t b) {                                 \
    const int64_t nk = c->S * c->E, n = nk + c->S * c->D;                               \
    T *sum = (T *)c->partial + b * c->parts * n;                                        \
    for (int64_t p = 1; p < c->parts; p++)                                              \
      for (int64_t i = 0; i < n; i++) sum[i] += sum[p * n + i];                         \
    if (c->dk) plk_at_put_##F(c->dk, c->dtype, (b)*nk, sum, nk);                        \
    if (c->dv) plk_at_put_##F(c->dv, c->dtype, b * c->S * c->D, sum + nk, c->S * c->D); \
  }
JOIN(float, f32)
JOIN(double, f64)

PlStatus plk_cpu_attention_bwd(const PlkCall *call) {
  PlkAtCall c = call_of(call, 1, call->nin > 5 ? call->in[5] : NULL);
  c.dy = matrix(call->in[0], call->in[1]);
  c.sums_in = matrix(call->in[4], call->in[1]);
  if (call->nin > 6 && call->in[6]) {
    const PlkRng rng = state_of(call->in[6]);
    dropout(&c, pl_attr_f(call->attrs, 2), &rng);
  }
  c.dq = call->out[0] ? call->out[0]->data : NULL;
  c.dk = call->out[1] ? call->out[1]->data : NULL;
  c.dv = call->out[2] ? call->out[2]->data : NULL;
  if (c.B == 0) return PL_OK;
  if (c.B < FEW && c.L >= 2 * PLK_AT_CHUNK) {
    const int64_t chunks = (c.L + PLK_AT_CHUNK - 1) / PLK_AT_CHUNK, most = (FEW + c.B - 1) / c.B;
    c.part = (chunks + most - 1) / most * PLK_AT_CHUNK;
    c.parts = (c.L + c.part - 1) / c.part;
  } else c.part = c.L;
  if (c.parts > 1) PL_TRY(plk_scratch((size_t)(c.B * c.parts * c.S * (c.E + c.D)) * (c.dtype == PL_F64 ? 8 : 4), &c.partial));
  PlStatus s = plk_parallel(c.B * c.parts, 1, backward, &c);
  for (int64_t b = 0; b < c.B && c.parts > 1 && s == PL_OK; b++) c.dtype == PL_F64 ? join_f64(&c, b) : join_f32(&c, b);
  plk_scratch_free(c.partial);
  return s;
}

/* ---- what dropout keeps -------------------------------------------------------------------------------------------- */

typedef struct Keep {
  const PlkAtCall *c;
  void *out;
} Keep;

static PlStatus keep_rows(void *ctx, int64_t begin, int64_t end) {
  const Keep *k = ctx;
  const PlkAtCall *c = k->c;
  void *room;
  PL_TRY(plk_scratch((size_t)(c->S + 4) * sizeof(uint32_t), &room));
  for (int64_t r = begin; r < end; r++) {
    plk_at_words(c, 0, r, c->S, room);
    for (int64_t j = 0; j < c->S; j++) {
      const double v = ((const uint32_t *)room)[j] < c->cut ? 0 : c->keep;
      if (c->dtype == PL_F64) ((double *)k->out)[r * c->S + j] = v;
      else ((float *)k->out)[r * c->S + j] = (float)v;
    }
  }
  plk_scratch_free(room);
  return plk_poll();
}

PlStatus plk_cpu_attention_keep(const PlkCall *call) {
  const PlArray *y = call->out[0];
  PlkAtCall c = {.dtype = y->dtype, .S = y->shape[y->ndim - 1]};
  const PlkRng rng = state_of(call->in[2]);
  dropout(&c, pl_attr_f(call->attrs, 0), &rng);
  Keep k = {&c, y->data};
  return y->numel > 0 ? plk_parallel(y->numel / c.S, PLK_GRAIN / 8 / c.S + 1, keep_rows, &k) : PL_OK;
}
