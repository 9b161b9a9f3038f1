/* SPDX-License-Identifier: MIT
 * Elementwise calls: which loop, how many threads are worth it, and shortcuts for calls laid out as loops want them; the
 * others are cut into tiles (elementwise_tiles.c), in parallel from serial_below() elements on. */
#include "kernels/convert.h"
#include "kernels/cpu/elementwise/elementwise_tiles.h"
#include "kernels/cpu/shape/copy.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/elementwise_codes.h"

enum { MAX_OP = PLK_EW_MAX_OP };

static const uint8_t arity[PLK_NEW] = {
#define PLK_EW(name, nin, result) [PLK_EW_##name] = nin,
#include "kernels/elementwise.def"
#undef PLK_EW
};

/* Rough time of an element in units of an addition's, for the choice between one thread and several:
 * waking the others costs about what PARALLEL_COST additions do. */
#define PARALLEL_COST ((int64_t)1 << 19)
int plk_cpu_elementwise_cost(int code) {
  switch (code) {
  case PLK_EW_POW:
  case PLK_EW_FMOD:
  case PLK_EW_REMAINDER:
  case PLK_EW_FLOOR_DIVIDE:
  case PLK_EW_ERFC:
  case PLK_EW_ERFINV:
  case PLK_EW_LGAMMA:
  case PLK_EW_DIGAMMA:
  case PLK_EW_ATAN2:
  case PLK_EW_HYPOT: return 16;
  case PLK_EW_I0:
  case PLK_EW_I0E:
  case PLK_EW_I1:
  case PLK_EW_I1E:
  case PLK_EW_ERFCX:
  case PLK_EW_NDTRI:
  case PLK_EW_GAMMAINC:
  case PLK_EW_GAMMAINCC: return 64;
  case PLK_EW_RELU:
  case PLK_EW_RELU6:
  case PLK_EW_LEAKY_RELU:
  case PLK_EW_HARDTANH:
  case PLK_EW_COPYSIGN:
  case PLK_EW_RELU_BWD:
  case PLK_EW_SIGMOID_BWD:
  case PLK_EW_TANH_BWD:
  case PLK_EW_LEAKY_RELU_BWD: return 1;
  default: return code < PLK_EW_EXP ? 1 : code >= PLK_EW_ASIN && code <= PLK_EW_ATANH ? 8 : 4;
  }
}
static int64_t serial_below(int code) {
  const int64_t n = PARALLEL_COST / plk_cpu_elementwise_cost(code);
  return n > PLK_GRAIN ? n : PLK_GRAIN;
}

static const PlAttrs no_attrs;

/* ---- choice of a loop ---- */

static int size_log2(size_t size) { return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3; }

/* The loop for elements of `dtype` (never a half type), NULL: the op does not take it. */
static PlkLoop find_loop(const PlkIsa *isa, int code, int dtype) {
  if (dtype <= PL_F64) {
    const PlkLoop l = dtype == PL_F32 ? isa->f32[code] : isa->f64[code];
    return l != NULL ? l : plk_ew_rare[code][dtype];
  }
  return isa->integer[code][dtype - PL_I8];
}

static bool is_half(int dtype) { return dtype == PL_F16 || dtype == PL_BF16; }
static int widened(int dtype) { return is_half(dtype) ? PL_F32 : dtype; }

static PlkLoop choose_loop(const PlkIsa *isa, const PlkCall *call) {
  const PlArray *out = call->out[0], *in = call->in[0];
  switch (call->code) {
  case PLK_EW_COPY: return isa->copy[size_log2(pl_dtype_size((PlDtype)out->dtype))];
  case PLK_EW_WHERE: return isa->where[size_log2(pl_dtype_size((PlDtype)out->dtype))];
  case PLK_EW_CAST:
    if (in->dtype == out->dtype) return isa->copy[size_log2(pl_dtype_size((PlDtype)out->dtype))];
    return isa->cast[plk_cast_index(widened(in->dtype))][plk_cast_index(widened(out->dtype))];
  default: return find_loop(isa, call->code, widened(in->dtype));
  }
}

static PlStatus no_loop(const PlkCall *call) {
  PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", call->name, pl_dtype_name((PlDtype)call->in[0]->dtype));
}
PlStatus plk_ew_failed(const char *name) { PL_FAIL(PL_ERR_ARG, "%s: integer division by zero", name); }
/* Two inputs: every such loop takes one value in place of an array, but gradients. */
static bool takes_one_value(int code) { return arity[code] == 2 && code < PLK_EW_RELU_BWD; }

/* The loop that takes halves as they are stored, beside one f32 number if need be; NULL: none. */
static PlkLoop half_loop(const PlkIsa *isa, const PlkCall *call) {
  const PlArray *const *in = call->in;
  const uint8_t out = call->out[0]->dtype, dtype = out == PL_BOOL || call->nin == 0 ? in[0]->dtype : out;
  int halves = 0;
  if (!is_half(dtype)) return NULL;
  for (int k = 0; k < call->nin; k++)
    if (in[k]->dtype == dtype) halves++;
    else if (in[k]->dtype != PL_F32 || in[k]->numel != 1 || !takes_one_value(call->code)) return NULL;
  if (halves == 0) return NULL;
  if (PL_UNLIKELY(call->code == PLK_EW_NEXTAFTER)) return plk_ew_half_after[dtype == PL_BF16];
  return dtype == PL_F16 ? isa->f16[call->code] : isa->bf16[call->code];
}

const char *plk_ew_one(const PlArray *x, const char *at, float *room) {
  if (!is_half(x->dtype)) return at;
  const uint16_t h = *(const uint16_t *)(const void *)at;
  *room = x->dtype == PL_F16 ? plk_f16_to_f32(h) : plk_bf16_to_f32(h);
  return (const char *)room;
}

/* nan_to_num of halves: the default bounds are the type's own, not f32's. */
static void half_bounds(PlAttrs *a, int dtype) {
  const double top = dtype == PL_F16 ? 65504.0 : 0x1.fep127;
  for (int k = 1; k <= 2; k++) {
    if (pl_attr_has(a, k)) continue;
    a->set = (uint16_t)(a->set | 1u << k);
    a->isint = (uint16_t)(a->isint & ~(1u << k));
    a->v[k].f = k == 1 ? top : -top;
  }
}

/* One or two inputs laid out like the output, nothing to convert. */
static bool same_flat(const PlkCall *call, int64_t n, bool stored) {
  const PlArray *o = call->out[0], *a = call->in[0], *b = call->in[call->nin - 1];
  const unsigned halves = 1U << PL_F16 | 1U << PL_BF16;
  return call->nin <= 2 && (o->contiguous & a->contiguous & b->contiguous) && a->numel == n && b->numel == n &&
         (stored ? a->dtype == b->dtype : !((1U << o->dtype | 1U << a->dtype | 1U << b->dtype) & halves));
}

static PlStatus copy(const PlkCall *call) {
  PlkNd w;
  if (call->out[0]->data == call->in[0]->data) return PL_OK; /* the very same array */
  plk_nd_walk(&w, call->out[0], call->in[0]);
  return plk_nd_copy(call->out[0]->data, call->in[0]->data, &w, pl_dtype_size((PlDtype)call->out[0]->dtype));
}

/* Between f32 and a half, both dense: one pass. */
static PlStatus half_body(void *ctx, int64_t begin, int64_t end) {
  const PlkCall *call = ctx;
  const PlkConvert *cv = plk_isa_tables()->convert;
  const PlArray *x = call->in[0], *y = call->out[0];
  if (y->dtype == PL_F32)
    (x->dtype == PL_F16 ? cv->f16_load : cv->bf16_load)((const uint16_t *)x->data + begin, (float *)y->data + begin, end - begin);
  else (y->dtype == PL_F16 ? cv->f16_store : cv->bf16_store)((const float *)x->data + begin, (uint16_t *)y->data + begin, end - begin);
  return PL_OK;
}
static bool is_half_cast(const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->out[0];
  return call->code == PLK_EW_CAST && x->contiguous && y->contiguous && x->numel == y->numel &&
         ((y->dtype == PL_F32 && is_half(x->dtype)) || (x->dtype == PL_F32 && is_half(y->dtype)));
}
static PlStatus half_cast(const PlkCall *call) {
  PlkCall own = *call;
  const int64_t n = call->out[0]->numel;
  return n < serial_below(PLK_EW_CAST) ? half_body(&own, 0, n) : plk_parallel(n, PLK_EW_DIRECT, half_body, &own);
}

PlStatus plk_cpu_elementwise(const PlkCall *call) {
  const PlArray *out = call->out[0];
  const PlkIsa *isa = plk_isa_tables();
  PlkLoop loop = call->nin > 0 ? half_loop(isa, call) : NULL;
  const bool stored = loop != NULL; /* halves, which need no conversion */
  if (!stored) loop = choose_loop(isa, call);
  if (PL_UNLIKELY(loop == NULL)) return no_loop(call);
  const int64_t n = out->numel;
  if (n == 0) return PL_OK;
  const PlAttrs *attrs = call->attrs != NULL ? call->attrs : &no_attrs;
  PlAttrs bounds;
  if (PL_UNLIKELY(call->code == PLK_EW_NAN_TO_NUM && is_half(out->dtype))) {
    bounds = *attrs;
    half_bounds(&bounds, out->dtype);
    attrs = &bounds;
  }
  if (n < PLK_GRAIN && same_flat(call, n, stored)) { /* most calls of small models */
    char *all[MAX_OP] = {out->data, call->in[0]->data, call->in[call->nin - 1]->data};
    static const int64_t ones[MAX_OP] = {1, 1, 1, 1};
    return loop(all, ones, n, attrs) ? plk_ew_failed(call->name) : PL_OK;
  }
  bool flat = (n < PLK_GRAIN || n < serial_below(call->code)) && out->contiguous && (stored || !is_half(out->dtype));
  char *ptr[MAX_OP] = {out->data};
  int64_t stride[MAX_OP] = {1, 1, 1, 1};
  float one[MAX_OP];
  for (int k = 0; k < call->nin && flat; k++) {
    const PlArray *in = call->in[k];
    ptr[k + 1] = in->data;
    flat = stored || !is_half(in->dtype);
    if (in->numel == n && in->contiguous && !(stored && in->dtype == PL_F32)) continue;
    stride[k + 1] = 0;
    flat = flat && in->numel == 1 && takes_one_value(call->code) && stride[1] + stride[2] != 0;
    if (flat && stored) ptr[k + 1] = (char *)(uintptr_t)plk_ew_one(in, in->data, &one[k]);
  }
  if (flat) return loop(ptr, stride, n, attrs) ? plk_ew_failed(call->name) : PL_OK;
  if (call->code == PLK_EW_COPY || (call->code == PLK_EW_CAST && call->in[0]->dtype == out->dtype)) return copy(call);
  if (is_half_cast(call)) return half_cast(call);
  const PlkEwCall e = {.call = call,
                       .isa = isa,
                       .loop = loop,
                       .attrs = attrs,
                       .serial = serial_below(call->code),
                       .one_value = takes_one_value(call->code),
                       .stored = stored};
  return plk_ew_tiles(&e);
}

PlkLoop plk_cpu_elementwise_loop(int code, int dtype, bool one_value) {
  const PlkIsa *isa = plk_isa_tables();
  if (one_value && !takes_one_value(code)) return NULL;
  return dtype == PL_F32 ? isa->f32[code] : isa->f64[code];
}

/* ---- with tangents ---- */

/* x^e and its tangent v (e x^(e-1)) for one number e, by the loops of each, in pieces that stay in the first cache; 0 where e is. */
#define DUAL_POW(NAME, T, DTYPE)                                                                          \
  static int NAME(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) {                 \
    static const int64_t by_one[3] = {1, 1, 0}, each[3] = {1, 1, 1};                                      \
    const PlkLoop power = plk_cpu_elementwise_loop(PLK_EW_POW, DTYPE, true);                              \
    const PlkLoop times = plk_cpu_elementwise_loop(PLK_EW_MUL, DTYPE, true);                              \
    T e = *(const T *)(const void *)ptr[3], less = e - 1, zero = 0;                                       \
    int bad = 0;                                                                                          \
    (void)stride;                                                                                         \
    if (e == 2 || e == 3) return plk_isa_tables()->dual[PLK_EW_POW][DTYPE][PLK_DUAL_BY](ptr, NULL, n, p); \
    for (int64_t at = 0; at < n; at += 512) {                                                             \
      const int64_t m = n - at < 512 ? n - at : 512, skip = at * (int64_t)sizeof(T);                      \
      char *o = ptr[0] + skip, *t = ptr[1] + skip, *x = ptr[2] + skip, *v = ptr[4] + skip;                \
      bad |= power((char *[]){o, x, (char *)&e}, by_one, m, p);                                           \
      if (e == 0) {                                                                                       \
        bad |= times((char *[]){t, v, (char *)&zero}, by_one, m, p);                                      \
      } else {                                                                                            \
        bad |= power((char *[]){t, x, (char *)&less}, by_one, m, p);                                      \
        bad |= times((char *[]){t, t, (char *)&e}, by_one, m, p);                                         \
        bad |= times((char *[]){t, v, t}, each, m, p);                                                    \
      }                                                                                                   \
    }                                                                                                     \
    return bad;                                                                                           \
  }
DUAL_POW(dual_pow_f32, float, PL_F32)
DUAL_POW(dual_pow_f64, double, PL_F64)

PlkLoop plk_cpu_elementwise_dual(int code, int dtype, PlkDual kind) {
  if (code == PLK_EW_POW && kind == PLK_DUAL_BY && dtype <= PL_F64 && plk_cpu_elementwise_loop(code, dtype, true))
    return dtype == PL_F32 ? dual_pow_f32 : dual_pow_f64;
  return dtype > PL_F64 ? NULL : plk_isa_tables()->dual[code][dtype][kind];
}

typedef struct DualRun {
  PlkLoop loop;
  char *const *ptr;
  const uint8_t *steps;
  int narray;
} DualRun;

static PlStatus dual_body(void *ctx, int64_t begin, int64_t end) {
  const DualRun *r = ctx;
  char *ptr[PLK_DUAL_ARRAYS];
  for (int k = 0; k < r->narray; k++) ptr[k] = r->ptr[k] + begin * r->steps[k];
  r->loop(ptr, NULL, end - begin, &no_attrs);
  return PL_OK;
}

PlStatus plk_cpu_elementwise_dual_run(PlkLoop loop, char *const *ptr, const uint8_t *steps, int narray, int cost, int64_t n) {
  if (n < PLK_GRAIN || n * cost < PARALLEL_COST) {
    loop(ptr, NULL, n, &no_attrs);
    return PL_OK;
  }
  DualRun r = {loop, ptr, steps, narray};
  return plk_parallel(n, PLK_EW_DIRECT, dual_body, &r);
}

/* ---- several in one pass ---- */

enum { STEP_BYTES = 4096 };

typedef struct StepsRun {
  const PlkSteps *s;
  char *const *array;
} StepsRun;

static PlStatus steps_body(void *ctx, int64_t begin, int64_t end) {
  const StepsRun *r = ctx;
  const PlkSteps *s = r->s;
  _Alignas(64) char temp[PLK_STEPS_TEMPS][STEP_BYTES];
  const int64_t tile = STEP_BYTES / (int64_t)s->size;
  for (int64_t at = begin; at < end; at += tile) {
    const int64_t n = end - at < tile ? end - at : tile, skip = at * (int64_t)s->size;
    for (int i = 0; i < s->n; i++) {
      const PlkStep *p = &s->step[i];
      char *ptr[PLK_EW_MAX_OP];
      for (int k = 0; k < PLK_EW_MAX_OP; k++)
        ptr[k] = p->at[k] < s->arrays ? r->array[p->at[k]] + skip * p->stride[k] : temp[p->at[k] - s->arrays];
      p->loop(ptr, p->stride, n, p->attrs);
    }
  }
  return PL_OK;
}

PlStatus plk_cpu_elementwise_steps(const PlkSteps *s, char *const *array, int64_t n) {
  StepsRun r = {s, array};
  if (n < PLK_GRAIN || n * s->cost < PARALLEL_COST) return steps_body(&r, 0, n);
  return plk_parallel(n, PLK_EW_DIRECT, steps_body, &r);
}
