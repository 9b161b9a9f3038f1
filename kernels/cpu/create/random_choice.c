/* SPDX-License-Identifier: MIT
 * Permutations and draws from a discrete distribution: sequential, words straight from the stream. */
#include "kernels/random.h"

#include <math.h>

#include "kernels/cpu/isa/table.h"

enum { WORDS = 1024, POLL = 1 << 16 };

/* 64-bit word k of the call, k rising. */
typedef struct Source {
  const PlkIsa *isa;
  const PlkRng *rng;
  uint64_t at, start;
  uint32_t word[WORDS];
} Source;

static void open_source(Source *s, const PlkCall *call) {
  s->isa = plk_isa_tables(), s->rng = &call->rng, s->at = 0, s->start = UINT64_MAX;
}
static uint64_t next64(Source *s) {
  const uint64_t start = s->at / (WORDS / 2) * (WORDS / 2), i = s->at - start;
  if (start != s->start) {
    s->isa->random->bits(s->word, WORDS / 4, s->rng, start / 2);
    s->start = start;
  }
  s->at++;
  return (uint64_t)s->word[2 * i + 1] << 32 | s->word[2 * i];
}
/* In (0, 1). */
static double next_open(Source *s) { return ((double)(int64_t)(next64(s) >> 11) + 0.5) * 0x1p-53; }

/* Fisher-Yates, from the front. */
PlStatus plk_cpu_randperm(const PlkCall *call) {
  const PlArray *out = call->out[0];
  if (out->dtype != PL_I64) PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", call->name, pl_dtype_name((PlDtype)out->dtype));
  int64_t *p = out->data;
  const int64_t n = out->numel;
  Source s;
  open_source(&s, call);
  for (int64_t i = 0; i < n; i++) p[i] = i;
  for (int64_t i = 0; i < n; i++) {
    if (i % POLL == 0) PL_TRY(plk_poll());
    const uint64_t left = (uint64_t)(n - i);
    const int64_t j = i + (int64_t)(((unsigned __int128)next64(&s) * left) >> 64);
    const int64_t v = p[i];
    p[i] = p[j], p[j] = v;
  }
  return PL_OK;
}

/* ---- multinomial ---- */

typedef struct Row {
  double *w;   /* weights, then running sums or keys */
  int64_t *id; /* heap of categories; NULL with replacement */
  int64_t k, n;
} Row;

static PlStatus read_weights(const PlkCall *call, const PlArray *x, int64_t at, Row *r) {
  const PlkConvert *cv = plk_isa_tables()->convert;
  int64_t positive = 0;
  for (int64_t i = 0; i < r->k; i++) {
    float f = 0.0f;
    if (i % POLL == 0) PL_TRY(plk_poll());
    if (x->dtype == PL_F16) cv->f16_load((const uint16_t *)x->data + at + i, &f, 1);
    if (x->dtype == PL_BF16) cv->bf16_load((const uint16_t *)x->data + at + i, &f, 1);
    if (x->dtype == PL_F32) f = ((const float *)x->data)[at + i];
    const double w = x->dtype == PL_F64 ? ((const double *)x->data)[at + i] : (double)f;
    if (!(w >= 0.0 && w <= 1.7976931348623157e308)) PL_FAIL(PL_ERR_ARG, "%s: weight %g is not a finite number >= 0", call->name, w);
    positive += w > 0.0;
    r->w[i] = w;
  }
  if (positive == 0) PL_FAIL(PL_ERR_ARG, "%s: all weights are zero", call->name);
  if (r->id != NULL && positive < r->n)
    PL_FAIL(PL_ERR_ARG, "%s: %lld samples without replacement from %lld positive weights", call->name, (long long)r->n,
            (long long)positive);
  return PL_OK;
}

/* Inverse of the running sum, by bisection; never a category of weight 0. */
static PlStatus draw_again(Source *s, Row *r, int64_t *out) {
  double sum = 0.0;
  int64_t last = 0;
  for (int64_t i = 0; i < r->k; i++) {
    if (r->w[i] > 0.0) last = i;
    r->w[i] = sum += r->w[i];
  }
  for (int64_t j = 0; j < r->n; j++) {
    if (j % POLL == 0) PL_TRY(plk_poll());
    const double u = next_open(s) * sum;
    int64_t lo = 0, hi = last; /* first i with w[i] > u */
    while (lo < hi) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (r->w[mid] > u) hi = mid;
      else lo = mid + 1;
    }
    out[j] = lo;
  }
  return PL_OK;
}

static void sift(Row *r, int64_t i, int64_t n) {
  for (;;) {
    int64_t c = 2 * i + 1;
    if (c >= n) return;
    if (c + 1 < n && r->w[r->id[c + 1]] < r->w[r->id[c]]) c++;
    if (!(r->w[r->id[c]] < r->w[r->id[i]])) return;
    const int64_t v = r->id[i];
    r->id[i] = r->id[c], r->id[c] = v;
    i = c;
  }
}

/* The n smallest of E_i / w_i, E_i standard exponential, in order: successive draws without replacement
 * (Efraimidis & Spirakis 2006). */
static PlStatus draw_once(Source *s, Row *r, int64_t *out) {
  for (int64_t i = 0; i < r->k; i++) {
    if (i % POLL == 0) PL_TRY(plk_poll());
    r->w[i] = -log(next_open(s)) / r->w[i]; /* weight 0: infinite, last */
    r->id[i] = i;
  }
  for (int64_t i = r->k / 2 - 1; i >= 0; i--) sift(r, i, r->k);
  int64_t left = r->k;
  for (int64_t j = 0; j < r->n; j++) {
    out[j] = r->id[0];
    r->id[0] = r->id[--left];
    sift(r, 0, left);
  }
  return PL_OK;
}

static PlStatus draw_rows(const PlkCall *call, Row *r, int64_t rows) {
  int64_t *out = call->out[0]->data;
  Source s;
  open_source(&s, call);
  for (int64_t i = 0; i < rows; i++) {
    PL_TRY(read_weights(call, call->in[0], i * r->k, r));
    PL_TRY((r->id != NULL ? draw_once : draw_again)(&s, r, out + i * r->n));
  }
  return PL_OK;
}

PlStatus plk_cpu_multinomial(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const bool again = pl_attr_has(call->attrs, 1) && pl_attr_i(call->attrs, 1) != 0;
  if (!pl_is_float((PlDtype)x->dtype) || call->out[0]->dtype != PL_I64)
    PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", call->name, pl_dtype_name((PlDtype)x->dtype));
  if (x->ndim < 1 || x->ndim > 2) PL_FAIL(PL_ERR_SHAPE, "%s: weights must be 1-D or 2-D", call->name);
  Row r = {.k = x->shape[x->ndim - 1], .n = pl_attr_i(call->attrs, 0)};
  const int64_t rows = x->ndim == 2 ? x->shape[0] : 1;
  if (rows == 0 || r.n == 0) return PL_OK;
  if (r.k == 0) PL_FAIL(PL_ERR_ARG, "%s: no categories", call->name);
  void *mem;
  PL_TRY(plk_scratch((size_t)r.k * (sizeof(double) + sizeof(int64_t)), &mem));
  r.w = mem;
  r.id = again ? NULL : (int64_t *)(void *)(r.w + r.k);
  const PlStatus status = draw_rows(call, &r, rows);
  plk_scratch_free(mem);
  return status;
}

/* ---- the alias method ---- */

/* Vose's form of Walker's tables (1991): a place that has less than its share is filled up from one that has more. */
static PlStatus fill_tables(const PlkCall *call, Row *r, int64_t *alias, int64_t *work) {
  const int64_t k = r->k;
  double sum = 0.0;
  PL_TRY(read_weights(call, call->in[0], 0, r));
  for (int64_t i = 0; i < k; i++) sum += r->w[i];
  if (!(sum <= 1.7976931348623157e308)) PL_FAIL(PL_ERR_ARG, "%s: the sum of the weights is not finite", call->name);
  int64_t less = 0, more = k, largest = 0; /* stacks at both ends of `work` */
  for (int64_t i = 0; i < k; i++) {
    r->w[i] = r->w[i] / sum * (double)k;
    alias[i] = i;
    if (r->w[i] > r->w[largest]) largest = i;
    if (r->w[i] < 1.0) work[less++] = i;
    else work[--more] = i;
  }
  for (int64_t n = 0; less > 0 && more < k; n++) {
    if (n % POLL == 0) PL_TRY(plk_poll());
    const int64_t small = work[--less], large = work[more];
    alias[small] = large;
    r->w[large] -= 1.0 - r->w[small];
    if (r->w[large] < 1.0) {
      more++;
      work[less++] = large;
    }
  }
  /* What is left has its whole share, but for rounding; or next to nothing, and nobody to fill it up. */
  while (less > 0) {
    const int64_t i = work[--less];
    if (r->w[i] < 0.5) alias[i] = largest;
    else r->w[i] = 1.0;
  }
  for (; more < k; more++) r->w[work[more]] = 1.0;
  return PL_OK;
}

PlStatus plk_cpu_multinomial_alias_setup(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *alias = call->out[0], *q = call->out[1];
  if (!pl_is_float((PlDtype)x->dtype)) PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", call->name, pl_dtype_name((PlDtype)x->dtype));
  Row r = {.k = x->numel};
  void *mem;
  if (r.k == 0) return PL_OK;
  PL_TRY(plk_scratch((size_t)r.k * 24, &mem));
  r.w = mem;
  int64_t *work = (int64_t *)(r.w + r.k), *to = work + r.k;
  PlStatus s = fill_tables(call, &r, to, work);
  const PlkConvert *cv = plk_isa_tables()->convert;
  for (int64_t i = 0; s == PL_OK && i < r.k; i++) {
    if (alias) ((int64_t *)alias->data)[i] = to[i];
    if (!q) continue;
    const float f = (float)r.w[i];
    if (q->dtype == PL_F16) cv->f16_store(&f, (uint16_t *)q->data + i, 1);
    if (q->dtype == PL_BF16) cv->bf16_store(&f, (uint16_t *)q->data + i, 1);
    if (q->dtype == PL_F32) ((float *)q->data)[i] = f;
    if (q->dtype == PL_F64) ((double *)q->data)[i] = r.w[i];
  }
  plk_scratch_free(mem);
  return s;
}
