/* SPDX-License-Identifier: MIT
 * Random numbers: element i takes the Philox words that it takes on the CPU (kernels/random.h), so uniform, integer,
 * Bernoulli and dropout draws have the same bits there and here; normals differ by the device's log, sin and cos. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/create/random.h"
extern "C" {
#include "kernels/create.h"
#include "kernels/random.h"
}

enum Draw { UNIFORM, NORMAL, EXPONENTIAL, RANDINT, BERNOULLI };

struct Random {
  Draw what;
  PlcRng rng;
  int dtype;
  int64_t n;
  double a, b, top; /* top: for uniform halves, what is above it would be rounded to b */
  uint64_t base, range, cut;
  const void *p; /* probabilities, or NULL */
  int p_dtype;
  bool p_one;
  PlcFlag *flag;
  uint64_t name;
};

/* Words of four elements from 4 q on: w[k] one word each, or two (lo, hi) where `two`. */
PLC_DEV void words(const PlkRng &r, int64_t q, bool two, uint32_t w[8]) {
  if (!two) {
    plk_philox(r.seed, r.stream, r.offset + (uint64_t)q, w);
    return;
  }
  plk_philox(r.seed, r.stream, r.offset + 2 * (uint64_t)q, w);
  plk_philox(r.seed, r.stream, r.offset + 2 * (uint64_t)q + 1, w + 4);
}

PLC_DEV uint64_t threshold(double p) { return (uint64_t)(p * 0x1p32); }

PLC_DEV double uniform32(const Random &r, uint32_t w) {
  w &= r.dtype == PL_F32 ? ~0u : r.dtype == PL_F16 ? 0xffe00000u : 0xff000000u; /* no more bits than the significand holds */
  const float a = (float)r.a, b = (float)r.b, width = (float)(r.b - r.a);
  const float u = fmaf((float)(int32_t)(w >> 8) * 0x1p-24f, width, a);
  const double v = (double)(u < b ? u : a);
  return r.dtype != PL_F32 && v > r.top ? r.top : v;
}
PLC_DEV double uniform64(const Random &r, uint64_t w) {
  const double u = r.a + (double)(int64_t)(w >> 11) * 0x1p-53 * (r.b - r.a);
  return u < r.b ? u : r.a;
}

/* Box-Muller on the pair that element k of four belongs to. */
PLC_DEV double normal(const Random &r, const uint32_t *w, int k) {
  int pair = k / 2;
  double radius, angle;
  if (r.dtype == PL_F64) {
    const uint32_t *v = w + 4 * pair;
    const uint64_t a = ((uint64_t)v[1] << 32 | v[0]) >> 11, b = ((uint64_t)v[3] << 32 | v[2]) >> 11;
    radius = r.b * sqrt(-2.0 * log(((double)(int64_t)a + 0.5) * 0x1p-53));
    angle = 2.0 * 3.14159265358979323846 * ((double)(int64_t)b * 0x1p-53);
    return fma(radius, k % 2 ? sin(angle) : cos(angle), r.a);
  }
  const float u = ((float)(int32_t)(w[2 * pair] >> 1) + 0.5f) * 0x1p-31f, v = (float)(int32_t)(w[2 * pair + 1] >> 8) * 0x1p-24f;
  const float l = logf(u), s = 6.28318530717958648f * v, d = (float)r.b * sqrtf(l < 0.0f ? -2.0f * l : 0.0f);
  return (double)fmaf(d, k % 2 ? sinf(s) : cosf(s), (float)r.a);
}

__global__ void draw(Random r, void *y) {
  bool wide = r.what == RANDINT || (r.what <= EXPONENTIAL && r.dtype == PL_F64);
  const PlkRng rng = plc_now(r.rng);
  for (PLC_EACH(q, (r.n + 3) / 4)) {
    uint32_t w[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    words(rng, q, wide, w);
    PLC_UNROLL
    for (int k = 0; k < 4; k++) {
      if (q * 4 + k >= r.n) break;
      int64_t i = q * 4 + k, whole = 0;
      double v = 0;
      const uint64_t w64 = wide ? (uint64_t)w[2 * k + 1] << 32 | w[2 * k] : w[k];
      switch (r.what) {
      case UNIFORM: v = wide ? uniform64(r, w64) : uniform32(r, w[k]); break;
      case NORMAL: v = normal(r, w, k); break;
      case EXPONENTIAL:
        if (wide) v = -log(((double)(int64_t)(w64 >> 11) + 0.5) * 0x1p-53) / r.a;
        else v = (double)fabsf(logf(((float)(int32_t)(w[k] >> 1) + 0.5f) * 0x1p-31f) * (float)(-1.0 / r.a));
        break;
      case RANDINT: whole = (int64_t)(r.base + (r.range == 0 ? w64 : __umul64hi(w64, r.range))); break;
      default: {
        uint64_t cut = r.cut;
        if (r.p) {
          const double p = plc_get_f(r.p, r.p_dtype, r.p_one ? 0 : i);
          if (!(p >= 0.0 && p <= 1.0)) plc_fault(r.flag, PLC_FAULT_PROBABILITY, (const char *)(uintptr_t)r.name, 0, 0, 0);
          cut = p >= 0.0 && p <= 1.0 ? threshold(p) : 0;
        }
        whole = w[k] < cut;
      }
      }
      plc_put_any(y, r.dtype, i, r.what >= RANDINT, v, whole);
    }
  }
}

static double param(const PlAttrs *a, int k, double otherwise) {
  if (!a || !pl_attr_has(a, k)) return otherwise;
  return (a->isint >> k) & 1 ? (double)a->v[k].i : a->v[k].f;
}

static PlStatus run(const PlkCall *c, Random r) {
  r.rng = plc_rng(&c->rng);
  r.dtype = c->out[0]->dtype;
  r.n = c->out[0]->numel;
  r.top = plk_uniform_top(r.a, r.b, (PlDtype)r.dtype);
  r.flag = plc_flag();
  r.name = (uint64_t)(uintptr_t)c->name;
  if (r.what <= EXPONENTIAL && !pl_is_float((PlDtype)r.dtype))
    PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", c->name, pl_dtype_name((PlDtype)r.dtype));
  if (r.n) PLC_LAUNCH(draw, plc_grid((r.n + 3) / 4, 1), PLC_BLOCK, 0, r, c->out[0]->data);
  return PL_OK;
}
static Random of(Draw what, double a, double b) {
  Random r;
  memset(&r, 0, sizeof r);
  r.what = what;
  r.a = a;
  r.b = b;
  return r;
}

static PlStatus uniform(const PlkCall *c) { return run(c, of(UNIFORM, param(c->attrs, 0, 0), param(c->attrs, 1, 1))); }
static PlStatus gaussian(const PlkCall *c) { return run(c, of(NORMAL, param(c->attrs, 0, 0), param(c->attrs, 1, 1))); }
static PlStatus exponential(const PlkCall *c) {
  const double rate = param(c->attrs, 0, 1);
  if (!(rate > 0)) PL_FAIL(PL_ERR_ARG, "%s: rate must be positive", c->name);
  return run(c, of(EXPONENTIAL, rate, 0));
}
static PlStatus randint(const PlkCall *c) {
  const int64_t lo = pl_attr_i(c->attrs, 0), hi = pl_attr_i(c->attrs, 1);
  Random r = of(RANDINT, 0, 0);
  if (c->out[0]->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "%s: not defined for bool", c->name);
  if (hi < lo) PL_FAIL(PL_ERR_ARG, "%s: empty range", c->name);
  r.base = (uint64_t)lo;
  r.range = (uint64_t)hi - (uint64_t)lo + 1u;
  return run(c, r);
}
PLC_KERNEL(uniform, uniform)
PLC_KERNEL(normal, gaussian)
PLC_KERNEL(exponential, exponential)
PLC_KERNEL(randint, randint)

static PlStatus bernoulli(const PlkCall *c, const PlArray *p) {
  Random r = of(BERNOULLI, 0, 0);
  if (p) {
    if (!pl_is_float((PlDtype)p->dtype)) PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", c->name, pl_dtype_name((PlDtype)p->dtype));
    r.p = p->data;
    r.p_dtype = p->dtype;
    r.p_one = p->numel == 1;
  } else {
    const double v = param(c->attrs, 0, 0.5);
    if (!(v >= 0 && v <= 1)) PL_FAIL(PL_ERR_ARG, "%s: probability %g is outside [0, 1]", c->name, v);
    r.cut = (uint64_t)(v * 0x1p32);
  }
  return run(c, r);
}
static PlStatus bernoulli_fill(const PlkCall *c) { return bernoulli(c, NULL); }
static PlStatus bernoulli_like(const PlkCall *c) { return bernoulli(c, pl_attr_has(c->attrs, 0) ? NULL : c->in[0]); }
PLC_KERNEL(bernoulli_fill, bernoulli_fill)
PLC_KERNEL(bernoulli_like, bernoulli_like)

/* ---- dropout --------------------------------------------------------------------------------------------------------- */

template <typename T> __global__ void drop(PlcRng from, int64_t n, uint64_t cut, double scale, const T *x, T *y, uint8_t *mask) {
  typedef typename plc_type<T>::math M;
  const PlkRng rng = plc_now(from);
  for (PLC_EACH(q, (n + 3) / 4)) {
    uint32_t w[4];
    plk_philox(rng.seed, rng.stream, rng.offset + (uint64_t)q, w);
    for (int k = 0; k < 4 && q * 4 + k < n; k++) {
      int64_t i = q * 4 + k;
      bool kept = cut <= UINT32_MAX && w[k] >= (uint32_t)cut; /* a cut of 2^32: p = 1 */
      y[i] = plc_type<T>::store(kept ? plc_type<T>::load(x[i]) * (M)scale : (M)0);
      if (mask) mask[i] = kept;
    }
  }
}
static PlStatus dropout(const PlkCall *c) {
  const double p = param(c->attrs, 0, 0.5);
  const PlArray *x = c->in[0];
  PlArray *mask = c->nout > 1 ? c->out[1] : NULL;
  if (!(p >= 0 && p <= 1)) PL_FAIL(PL_ERR_ARG, "%s: probability %g is outside [0, 1]", c->name, p);
  if (x->numel == 0) return PL_OK;
  const uint64_t cut = (uint64_t)(p * 0x1p32);
  const double scale = p < 1 ? 1.0 / (1.0 - p) : 0.0;
  PLC_FLOATS(x->dtype, T, c->name,
             PLC_LAUNCH(drop<T>, plc_grid((x->numel + 3) / 4, 1), PLC_BLOCK, 0, plc_rng(&c->rng), x->numel, cut, scale, (const T *)x->data,
                        (T *)c->out[0]->data, (uint8_t *)(mask ? mask->data : NULL)));
  return PL_OK;
}
PLC_KERNEL(dropout, dropout)

template <typename T> __global__ void drop_bwd(int64_t n, double scale, const T *dy, const uint8_t *mask, T *dx) {
  typedef typename plc_type<T>::math M;
  for (PLC_EACH(i, n)) dx[i] = plc_type<T>::store(mask[i] ? plc_type<T>::load(dy[i]) * (M)scale : (M)0);
}
static PlStatus dropout_bwd(const PlkCall *c) {
  const double p = pl_attr_f(c->attrs, 0), scale = p < 1 ? 1.0 / (1.0 - p) : 0.0;
  const PlArray *dy = c->in[0];
  if (dy->numel == 0) return PL_OK;
  PLC_FLOATS(dy->dtype, T, c->name,
             PLC_LAUNCH(drop_bwd<T>, plc_grid(dy->numel, 1), PLC_BLOCK, 0, dy->numel, scale, (const T *)dy->data,
                        (const uint8_t *)c->in[1]->data, (T *)c->out[0]->data));
  return PL_OK;
}
PLC_KERNEL(dropout_bwd, dropout_bwd)
