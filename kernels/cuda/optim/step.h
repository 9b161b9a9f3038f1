/* SPDX-License-Identifier: MIT
 * One element's step by every rule, and how its columns are read and written: by themselves, in packs, in codes. For optim.cu, which
 * launches them. Formulas and papers: kernels/cpu/isa/optim.c. */
#ifndef PL_KERNELS_CUDA_OPTIM_STEP_H
#define PL_KERNELS_CUDA_OPTIM_STEP_H

#include "kernels/cuda/optim/lists.h"

enum { COLUMNS = PLK_OPTIM_COLUMNS, GROUPS = 48, CHUNK = PLC_CHUNK };
static_assert((int)PLK_CODED_BLOCK == (int)PLC_BLOCK && CHUNK % PLK_CODED_BLOCK == 0, "a row of codes is a block's work");
/* Unrolled, so that columns are in registers and not in memory. */
#define EACH_COLUMN(j) PLC_UNROLL for (int j = 0; j < COLUMNS; j++)
enum Kind { SGD, ADAM, RMS, FORMULA };

struct Rule {
  Kind kind;
  double lr, momentum, dampening, decay, beta1, beta2, eps, alpha, step, root;
  bool nesterov, maximize, first, decoupled, amsgrad, buffer, centered, coupled;
  int formula;            /* a PlkOptimRule */
  unsigned reads, writes; /* columns, a bit each */
  int64_t count;          /* of the step */
  bool factor_of;         /* its sums become a factor */
  double weight_decay;    /* as it was given */
  double number[PLK_OPTIM_MOST];
};

struct Group {
  void *col[COLUMNS];
  int64_t numel;
  uint8_t dtype[COLUMNS];
};
struct Groups {
  int n, k;
  int64_t before;            /* groups in launches before this one */
  int64_t first[GROUPS + 1]; /* chunks before each group */
  Group g[GROUPS];
};

/* A rule as one thread uses it: numbers in the dtype that it works in. */
template <typename T> struct Now {
  Kind kind;
  T lr, momentum, undamped, decay, kept, rest1, beta2, rest2, eps, alpha, rest, step, root, sign;
  bool nesterov, first, decoupled, amsgrad, buffer, centered, coupled;
  int formula;
  unsigned reads, writes;
  int64_t count;
  T factor; /* of the parameter */
  T number[PLK_OPTIM_MOST];
  __device__ __forceinline__ explicit Now(const Rule &r) {
    kind = r.kind;
    lr = (T)r.lr, momentum = (T)r.momentum, undamped = (T)(1 - r.dampening), decay = (T)r.decay;
    kept = (T)(1 - r.lr * r.decay), rest1 = (T)(1 - r.beta1), beta2 = (T)r.beta2, rest2 = (T)(1 - r.beta2), eps = (T)r.eps;
    alpha = (T)r.alpha, rest = (T)(1 - r.alpha), step = (T)r.step, root = (T)r.root, sign = r.maximize ? (T)-1 : (T)1;
    nesterov = r.nesterov, first = r.first, decoupled = r.decoupled, amsgrad = r.amsgrad, buffer = r.buffer, centered = r.centered;
    coupled = r.coupled, formula = r.formula, reads = r.reads, writes = r.writes, count = r.count, factor = 1;
    PLC_UNROLL
    for (int k = 0; k < PLK_OPTIM_MOST; k++) number[k] = (T)r.number[k];
  }
};

/* kernels/optim_formulas.h; s, t: what a rule with sums adds to them. */
template <typename T> PLC_DEV void formula(const Now<T> &r, T *col, T g, T &s, T &t) {
  T x = col[0], a = col[2], b = col[3], c = col[4];
  const T d = col[5];
  if (r.coupled) g = g + r.decay * x;
  if (r.decoupled) x = x * r.decay;
  switch (r.formula) {
#define N(k) r.number[k]
#define F    r.factor
#define SQRT sqrt
#define ABS  fabs
#define R(NAME, WIDTH, NUMBERS, SETTINGS, READS, WRITES, SUMS, ...) \
  case PLK_OPTIM_##NAME: {                                          \
    __VA_ARGS__                                                     \
  } break;
#include "kernels/optim_formulas.h"
#undef N
#undef F
#undef SQRT
#undef ABS
#undef R
  default: break;
  }
  (void)d;
  col[0] = x, col[2] = a, col[3] = b, col[4] = c;
}

/* One element: c[0] the parameter, c[1] the gradient, then the state. */
template <typename T> PLC_DEV void step(const Now<T> &r, T *c, T &sum1, T &sum2) {
  T g = r.sign * c[1];
  switch (r.kind) {
  case SGD:
    if (r.decay != 0) g = g + r.decay * c[0];
    if (r.momentum != 0) {
      const T v = r.first ? g : r.momentum * c[2] + r.undamped * g;
      c[2] = v;
      g = r.nesterov ? g + r.momentum * v : v;
    }
    c[0] = c[0] - r.lr * g;
    break;
  case ADAM: {
    T x = c[0];
    if (r.decay != 0) {
      if (r.decoupled) x = x * r.kept;
      else g = g + r.decay * x;
    }
    const T m = c[2] + r.rest1 * (g - c[2]);
    T v = r.beta2 * c[3] + r.rest2 * g * g;
    c[2] = m;
    c[3] = v;
    if (r.amsgrad) {
      v = c[4] > v ? c[4] : v;
      c[4] = v;
    }
    c[0] = x - r.step * (m / (sqrt(v) / r.root + r.eps));
    break;
  }
  case RMS: {
    if (r.decay != 0) g = g + r.decay * c[0];
    T v = r.alpha * c[2] + r.rest * g * g;
    c[2] = v;
    if (r.centered) { /* no index that varies: the columns stay in registers */
      const T old = r.buffer ? c[4] : c[3], m = old + r.rest * (g - old);
      if (r.buffer) c[4] = m;
      else c[3] = m;
      v = v - m * m;
    }
    T u = g / (sqrt(v) + r.eps);
    if (r.buffer) {
      u = r.momentum * c[3] + u;
      c[3] = u;
    }
    c[0] = c[0] - r.lr * u;
    break;
  }
  case FORMULA: formula<T>(r, c, g, sum1, sum2); break;
  default: break;
  }
}

PLC_DEV void put(void *p, int dtype, int64_t i, double v) { plc_put_any(p, dtype, i, false, v, 0); }

/* What has an element of its own: not what is in codes (step_coded). */
PLC_DEV bool stored(const Group &g, int j) { return j < 2 || (g.dtype[j] != PL_I8 && g.dtype[j] != PL_U8); }

/* i: the element's number in the parameter. */
template <typename T> PLC_DEV void load_element(const Now<T> &r, int k, const Group &g, const int64_t *at, T *c) {
  EACH_COLUMN(j)
  if (j < k && (r.reads >> j & 1) && stored(g, j)) c[j] = (T)plc_get_f(g.col[j], g.dtype[j], at[j]);
}
template <typename T> PLC_DEV void store_element(const Now<T> &r, int k, const Group &g, const int64_t *at, int64_t i, const T *c) {
  EACH_COLUMN(j)
  if (j < k && (r.writes >> j & 1) && stored(g, j)) {
    if (j >= 2 && g.dtype[j] == PL_BF16)
      ((uint16_t *)g.col[j])[at[j]] = plk_bf16_by_chance((float)c[j], plk_rounding_bits(plk_rounding_seed(r.count, j), (uint32_t)i));
    else put(g.col[j], g.dtype[j], at[j], (double)c[j]);
  }
}
template <typename T>
PLC_DEV void element(const Now<T> &r, int k, const Group &g, const int64_t *at, int64_t i, double &sum1, double &sum2) {
  T c[COLUMNS] = {0, 0, 0, 0, 0, 0}, s = 0, t = 0;
  load_element<T>(r, k, g, at, c);
  step<T>(r, c, s, t);
  store_element<T>(r, k, g, at, i, c);
  sum1 += (double)s, sum2 += (double)t;
}

/* A thread block's elements are those of one row of codes; all of its threads come here, `live` are those with an element. */
template <typename T>
PLC_DEV void element_coded(const Now<T> &r, int k, const Group &g, const int64_t *at, int64_t i, bool live, uint32_t *room, double &sum1,
                           double &sum2) {
  T c[COLUMNS] = {0, 0, 0, 0, 0, 0}, s = 0, t = 0;
  const int64_t row = i / PLK_CODED_BLOCK * PLK_CODED_ROW, place = row + PLK_CODED_HEAD + i % PLK_CODED_BLOCK;
  if (live) {
    load_element<T>(r, k, g, at, c);
    EACH_COLUMN(j)
    if (j < k && (r.reads >> j & 1) && !stored(g, j)) {
      const uint8_t code = ((const uint8_t *)g.col[j])[place];
      const float part = g.dtype[j] == PL_I8 ? plk_decoded_i8((int8_t)code) : plk_decoded_u8(code);
      c[j] = (T)(part * *(const float *)((const char *)g.col[j] + row));
    }
    step<T>(r, c, s, t);
    store_element<T>(r, k, g, at, i, c);
  }
  EACH_COLUMN(j)
  if (j < k && (r.writes >> j & 1) && !stored(g, j)) {
    const float x = (float)c[j];
    const uint32_t high = plc_block_all(live ? plk_float_bits(x) & 0x7FFFFFFFu : 0u, plc_max{}, 0u, room);
    const float most = plk_bits_float(high), under = most > 1e-12f || most != most ? most : 1e-12f;
    if (live) {
      if (i % PLK_CODED_BLOCK == 0) *(float *)((char *)g.col[j] + row) = under;
      ((uint8_t *)g.col[j])[place] = g.dtype[j] == PL_I8 ? (uint8_t)plk_coded_i8(x * (1 / under)) : (uint8_t)plk_coded_u8(x * (1 / under));
    }
    __syncthreads();
  }
  sum1 += (double)s, sum2 += (double)t;
}
PLC_DEV bool coded(const Group &g, int k) {
  for (int j = 2; j < k; j++)
    if (!stored(g, j)) return true;
  return false;
}

/* All columns contiguous f32: 4 elements at a time. */
PLC_DEV bool plain(const Group &g, int k) {
  for (int j = 0; j < k; j++)
    if (g.dtype[j] != PL_F32 || (uintptr_t)g.col[j] % 16) return false;
  return true;
}

PLC_DEV void step_packs(const Now<float> &r, int k, const Group &g, int64_t begin, int64_t end, double &sum1, double &sum2) {
  for (int64_t i = begin + 4 * (int64_t)threadIdx.x; i < end; i += 4 * (int64_t)blockDim.x) {
    plc_pack<float, 4> c[COLUMNS];
    EACH_COLUMN(j)
    if (j < k && (r.reads >> j & 1)) c[j] = *(const plc_pack<float, 4> *)((const float *)g.col[j] + i);
    else c[j] = plc_pack<float, 4>{{0, 0, 0, 0}};
    PLC_UNROLL
    for (int e = 0; e < 4; e++) {
      float v[COLUMNS], s = 0, t = 0;
      EACH_COLUMN(j) v[j] = c[j].v[e];
      step<float>(r, v, s, t);
      EACH_COLUMN(j) c[j].v[e] = v[j];
      sum1 += (double)s, sum2 += (double)t;
    }
    EACH_COLUMN(j)
    if (j < k && (r.writes >> j & 1)) *(plc_pack<float, 4> *)((float *)g.col[j] + i) = c[j];
  }
}
template <typename T>
PLC_DEV void step_chunk(const Now<T> &r, int k, const Group &g, int64_t begin, int64_t end, uint32_t *room, double &sum1, double &sum2) {
  const bool codes = coded(g, k);
  for (int64_t from = begin; from < end; from += blockDim.x) {
    const int64_t i = from + threadIdx.x, at[COLUMNS] = {i, i, i, i, i, i};
    if (codes) element_coded<T>(r, k, g, at, i, i < end, room, sum1, sum2);
    else if (i < end) element<T>(r, k, g, at, i, sum1, sum2);
  }
}

/* The sums of a thread block's elements, to part[0] and part[1]. */
PLC_DEV void put_sums(double sum1, double sum2, double *part, double *room) {
  sum1 = plc_block_all(sum1, plc_sum{}, 0.0, room);
  __syncthreads();
  sum2 = plc_block_all(sum2, plc_sum{}, 0.0, room);
  __syncthreads();
  if (threadIdx.x == 0) part[0] = sum1, part[1] = sum2;
}

/* Makes the numbers of a rule with an estimate of its settings; false: there is nothing to do. */
PLC_DEV bool by_estimate(Rule *r, const double *est) {
  double s[PLK_OPTIM_MOST];
  for (int k = 0; k < PLK_OPTIM_MOST; k++) s[k] = r->number[k];
  if (r->formula != PLK_OPTIM_PRODIGY) return plk_prodigy_apply(s, est, r->lr, r->weight_decay, r->number, &r->decay);
  plk_prodigy_moments(s, est, r->lr, r->number);
  return true;
}

#endif
