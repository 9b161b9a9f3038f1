/* SPDX-License-Identifier: MIT
 * Random kernels: tiles of Philox words, turned into values of the output's dtype. A tile starts at a
 * multiple of TILE elements, so element i always meets the same words. */
#include "kernels/random.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/table.h"
#include "kernels/elementwise_codes.h"

enum { TILE = 512, BLOCK = 16384 };

typedef struct Job Job;
/* Writes elements [first, first + n) of the output; n <= TILE, words are ready in t->word. */
typedef struct Tile {
  uint32_t word[2 * TILE];
  float f[TILE];
  double d[TILE];
} Tile;
typedef PlStatus (*Fill)(const Job *job, Tile *t, int64_t first, int64_t n);
struct Job {
  const PlkCall *call;
  const PlkIsa *isa;
  Fill fill;
  int words; /* per element */
  double a, b;
  float top;            /* uniform halves: what is above it would be rounded to b */
  uint64_t range, base; /* randint */
  uint64_t cut;         /* bernoulli, dropout: a word below it is a hit; 2^32: every word */
  char *out;
  int dtype;
};

static PlStatus run_tiles(void *ctx, int64_t begin, int64_t end) {
  const Job *job = ctx;
  Tile t;
  for (int64_t i = begin; i < end; i += TILE) {
    const int64_t n = end - i < TILE ? end - i : TILE;
    job->isa->random->bits(t.word, (n * job->words + 3) / 4, &job->call->rng, (uint64_t)i / 4 * (uint64_t)job->words);
    PL_TRY(job->fill(job, &t, i, n));
  }
  return PL_OK;
}

static PlStatus run(const PlkCall *call, Job *job, Fill fill, int words) {
  const PlArray *out = call->out[0];
  job->call = call;
  job->isa = plk_isa_tables();
  job->fill = fill;
  job->words = words;
  job->out = out->data;
  job->dtype = out->dtype;
  if (out->numel < PLK_GRAIN) return run_tiles(job, 0, out->numel);
  return plk_parallel(out->numel, BLOCK, run_tiles, job);
}

static PlStatus wrong_dtype(const PlkCall *call, int dtype) {
  PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", call->name, pl_dtype_name((PlDtype)dtype));
}

/* f32 values in t->f to the output's dtype. */
static void put_floats(const Job *job, Tile *t, int64_t first, int64_t n) {
  uint16_t *const half = (uint16_t *)(void *)job->out + first;
  if (job->dtype == PL_F32) memcpy((float *)(void *)job->out + first, t->f, (size_t)n * sizeof(float));
  else if (job->dtype == PL_F16) job->isa->convert->f16_store(t->f, half, n);
  else job->isa->convert->bf16_store(t->f, half, n);
}

static uint64_t word64(const Tile *t, int64_t i) { return (uint64_t)t->word[2 * i + 1] << 32 | t->word[2 * i]; }

/* ---- uniform, normal, exponential ---- */

static PlStatus fill_uniform(const Job *job, Tile *t, int64_t first, int64_t n) {
  if (job->dtype == PL_F64) {
    double *o = (double *)(void *)job->out + first;
    for (int64_t i = 0; i < n; i++) {
      const double u = job->a + (double)(int64_t)(word64(t, i) >> 11) * 0x1p-53 * (job->b - job->a);
      o[i] = u < job->b ? u : job->a;
    }
    return PL_OK;
  }
  /* As many bits as the dtype's significand holds, or rounding would reach the upper end. */
  const uint32_t keep = job->dtype == PL_F32 ? ~0u : job->dtype == PL_F16 ? 0xffe00000u : 0xff000000u;
  for (int64_t i = 0; i < n; i++) t->word[i] &= keep;
  job->isa->random->uniform(t->f, t->word, n, job->a, job->b);
  if (job->dtype != PL_F32)
    for (int64_t i = 0; i < n; i++) t->f[i] = t->f[i] < job->top ? t->f[i] : job->top;
  put_floats(job, t, first, n);
  return PL_OK;
}

static PlStatus fill_normal(const Job *job, Tile *t, int64_t first, int64_t n) {
  const int64_t even = n + (n & 1);
  if (job->dtype == PL_F64) {
    job->isa->random->normal64(t->d, t->word, even, job->a, job->b);
    memcpy((double *)(void *)job->out + first, t->d, (size_t)n * sizeof(double));
    return PL_OK;
  }
  job->isa->random->normal(t->f, t->word, even, job->a, job->b);
  put_floats(job, t, first, n);
  return PL_OK;
}

static PlStatus fill_exponential(const Job *job, Tile *t, int64_t first, int64_t n) {
  if (job->dtype == PL_F64) {
    double *o = (double *)(void *)job->out + first;
    for (int64_t i = 0; i < n; i++) o[i] = -log(((double)(int64_t)(word64(t, i) >> 11) + 0.5) * 0x1p-53) / job->a;
    return PL_OK;
  }
  for (int64_t i = 0; i < n; i++) t->f[i] = ((float)(int32_t)(t->word[i] >> 1) + 0.5f) * 0x1p-31f;
  char *const ptr[2] = {(char *)t->f, (char *)t->f};
  const int64_t stride[2] = {4, 4};
  job->isa->f32[PLK_EW_LOG](ptr, stride, n, job->call->attrs);
  const float scale = (float)(-1.0 / job->a);
  for (int64_t i = 0; i < n; i++) t->f[i] = fabsf(t->f[i] * scale);
  put_floats(job, t, first, n);
  return PL_OK;
}

static PlStatus run_floats(const PlkCall *call, Fill fill, double a, double b) {
  const int dtype = call->out[0]->dtype;
  if (!pl_is_float((PlDtype)dtype)) return wrong_dtype(call, dtype);
  Job job = {.a = a, .b = b, .top = (float)plk_uniform_top(a, b, (PlDtype)dtype)};
  return run(call, &job, fill, dtype == PL_F64 ? 2 : 1);
}
PlStatus plk_cpu_uniform(const PlkCall *call) {
  return run_floats(call, fill_uniform, plk_param(call->attrs, 0, 0.0), plk_param(call->attrs, 1, 1.0));
}
PlStatus plk_cpu_normal(const PlkCall *call) {
  return run_floats(call, fill_normal, plk_param(call->attrs, 0, 0.0), plk_param(call->attrs, 1, 1.0));
}
PlStatus plk_cpu_exponential(const PlkCall *call) {
  const double rate = plk_param(call->attrs, 0, 1.0);
  if (!(rate > 0.0)) PL_FAIL(PL_ERR_ARG, "%s: rate must be positive", call->name);
  return run_floats(call, fill_exponential, rate, 0.0);
}

/* ---- integers ---- */

/* Writes `expr` of v[i] to every element in the output's dtype. */
#define PUT_AS(T, expr) \
  for (int64_t i = 0; i < n; i++) ((T *)(void *)job->out)[first + i] = (T)(expr)

/* lo + floor(range * w / 2^64): the bias is below range / 2^64. */
static int64_t pick(const Job *job, uint64_t w) {
  const uint64_t k = job->range == 0 ? w : (uint64_t)(((unsigned __int128)w * job->range) >> 64);
  return (int64_t)(job->base + k);
}

static PlStatus fill_randint(const Job *job, Tile *t, int64_t first, int64_t n) {
  switch (job->dtype) {
  case PL_I8: PUT_AS(int8_t, pick(job, word64(t, i))); break;
  case PL_U8: PUT_AS(uint8_t, pick(job, word64(t, i))); break;
  case PL_I16: PUT_AS(int16_t, pick(job, word64(t, i))); break;
  case PL_I32: PUT_AS(int32_t, pick(job, word64(t, i))); break;
  case PL_I64: PUT_AS(int64_t, pick(job, word64(t, i))); break;
  case PL_F64: PUT_AS(double, pick(job, word64(t, i))); break;
  default:
    for (int64_t i = 0; i < n; i++) t->f[i] = (float)pick(job, word64(t, i));
    put_floats(job, t, first, n);
  }
  return PL_OK;
}

PlStatus plk_cpu_randint(const PlkCall *call) {
  const int64_t lo = pl_attr_i(call->attrs, 0), hi = pl_attr_i(call->attrs, 1);
  if (call->out[0]->dtype == PL_BOOL) return wrong_dtype(call, PL_BOOL);
  if (hi < lo) PL_FAIL(PL_ERR_ARG, "%s: empty range", call->name);
  Job job = {.base = (uint64_t)lo, .range = (uint64_t)hi - (uint64_t)lo + 1u};
  return run(call, &job, fill_randint, 2);
}

/* ---- bernoulli, dropout ---- */

static double float_at(const PlArray *x, int64_t i, const PlkIsa *isa) {
  float f;
  switch (x->dtype) {
  case PL_F32: return (double)((const float *)x->data)[i];
  case PL_F64: return ((const double *)x->data)[i];
  case PL_F16: isa->convert->f16_load((const uint16_t *)x->data + i, &f, 1); return (double)f;
  default: isa->convert->bf16_load((const uint16_t *)x->data + i, &f, 1); return (double)f;
  }
}

/* The threshold under which a 32-bit word is a hit of probability p. */
static uint64_t threshold(double p) { return (uint64_t)(p * 0x1p32); }

static PlStatus fill_bernoulli(const Job *job, Tile *t, int64_t first, int64_t n) {
  const PlArray *p = job->call->nin > 0 ? job->call->in[0] : NULL;
  for (int64_t i = 0; i < n; i++) {
    uint64_t cut = job->cut;
    if (p != NULL) {
      const double q = float_at(p, p->numel == 1 ? 0 : first + i, job->isa);
      if (!(q >= 0.0 && q <= 1.0)) PL_FAIL(PL_ERR_ARG, "%s: probability %g is outside [0, 1]", job->call->name, q);
      cut = threshold(q);
    }
    t->word[i] = t->word[i] < cut;
  }
  switch (job->dtype) {
  case PL_F64: PUT_AS(double, t->word[i]); break;
  case PL_I8:
  case PL_U8:
  case PL_BOOL: PUT_AS(uint8_t, t->word[i]); break;
  case PL_I16: PUT_AS(int16_t, t->word[i]); break;
  case PL_I32: PUT_AS(int32_t, t->word[i]); break;
  case PL_I64: PUT_AS(int64_t, t->word[i]); break;
  default:
    for (int64_t i = 0; i < n; i++) t->f[i] = (float)t->word[i];
    put_floats(job, t, first, n);
  }
  return PL_OK;
}

PlStatus plk_cpu_bernoulli(const PlkCall *call) {
  Job job = {.cut = 0};
  if (call->nin > 0 && call->in[0] != NULL) {
    if (!pl_is_float((PlDtype)call->in[0]->dtype)) return wrong_dtype(call, call->in[0]->dtype);
  } else {
    const double p = plk_param(call->attrs, 0, 0.5);
    if (!(p >= 0.0 && p <= 1.0)) PL_FAIL(PL_ERR_ARG, "%s: probability %g is outside [0, 1]", call->name, p);
    job.cut = threshold(p);
  }
  return run(call, &job, fill_bernoulli, 1);
}

static PlStatus fill_dropout(const Job *job, Tile *t, int64_t first, int64_t n) {
  const PlArray *x = job->call->in[0];
  const PlkConvert *cv = job->isa->convert;
  if (job->cut > UINT32_MAX) /* p = 1 */
    for (int64_t i = 0; i < n; i++) t->word[i] = 0;
  else
    for (int64_t i = 0; i < n; i++) t->word[i] = t->word[i] >= (uint32_t)job->cut;
  if (job->call->nout > 1 && job->call->out[1] != NULL) {
    uint8_t *m = (uint8_t *)job->call->out[1]->data + first;
    for (int64_t i = 0; i < n; i++) m[i] = (uint8_t)t->word[i];
  }
  if (job->dtype == PL_F64) {
    const double *a = (const double *)x->data + first;
    PUT_AS(double, t->word[i] ? a[i] * job->a : 0.0);
    return PL_OK;
  }
  const float scale = (float)job->a;
  const float *a = (const float *)x->data + first;
  const uint16_t *h = (const uint16_t *)x->data + first;
  if (job->dtype == PL_F16) cv->f16_load(h, t->f, n), a = t->f;
  if (job->dtype == PL_BF16) cv->bf16_load(h, t->f, n), a = t->f;
  float *o = job->dtype == PL_F32 ? (float *)(void *)job->out + first : t->f;
  PLK_IVDEP for (int64_t i = 0; i < n; i++) {
    const float y = a[i] * scale;
    o[i] = t->word[i] ? y : 0.0f;
  }
  if (job->dtype != PL_F32) put_floats(job, t, first, n);
  return PL_OK;
}

PlStatus plk_cpu_dropout(const PlkCall *call) {
  const int dtype = call->out[0]->dtype;
  const double p = plk_param(call->attrs, 0, 0.5);
  if (!pl_is_float((PlDtype)dtype)) return wrong_dtype(call, dtype);
  if (!(p >= 0.0 && p <= 1.0)) PL_FAIL(PL_ERR_ARG, "%s: probability %g is outside [0, 1]", call->name, p);
  Job job = {.cut = threshold(p), .a = p < 1.0 ? 1.0 / (1.0 - p) : 0.0};
  return run(call, &job, fill_dropout, 1);
}
