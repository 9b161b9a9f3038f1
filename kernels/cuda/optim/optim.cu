/* SPDX-License-Identifier: MIT
 * Optimizer steps over a list of tensors (kernels/optim.h), many tensors a launch: their addresses travel as the kernel's
 * argument, a block takes CHUNK elements of one of them. Formulas and papers: kernels/cpu/isa/optim.c. */
#include "kernels/cuda/any_dtype.h"
#define PLK_STATES_FN PLC_DEV
extern "C" {
#include "kernels/optim.h"
}

enum { COLUMNS = PLK_OPTIM_COLUMNS, GROUPS = 24, CHUNK = 4096 };
static_assert((int)PLK_CODED_BLOCK == (int)PLC_BLOCK && CHUNK % PLK_CODED_BLOCK == 0, "a row of codes is a block's work");
/* Unrolled, so that columns are in registers and not in memory. */
#define EACH_COLUMN(j) PLC_UNROLL for (int j = 0; j < COLUMNS; j++)
enum Kind { SGD, ADAM, RMS, FORMULA, SCALE, ZERO };

struct Rule {
  Kind kind;
  double lr, momentum, dampening, decay, beta1, beta2, eps, alpha, step, root;
  bool nesterov, maximize, first, decoupled, amsgrad, buffer, centered, coupled;
  int formula;            /* a PlkOptimRule */
  unsigned reads, writes; /* columns, a bit each */
  int64_t count;          /* of the step */
  bool factor_of;         /* its sums become a factor */
  double number[PLK_OPTIM_MOST];
  const void *scale; /* one number on the device, or NULL: `factor` */
  int scale_dtype;
  double factor;
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
#define R(NAME, WIDTH, NUMBERS, READS, WRITES, SUMS, ...) \
  case PLK_OPTIM_##NAME: {                                \
    __VA_ARGS__                                           \
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

/* r: the rule in T, which is f64 where the group is. */
template <typename T>
PLC_DEV void one(const Rule &given, const Now<T> &r, int k, const Group &g, const int64_t *at, int64_t i, double &sum1, double &sum2) {
  if (r.kind == ZERO) plc_put_any(g.col[0], g.dtype[0], at[0], true, 0, 0);
  else if (r.kind == SCALE) {
    double f = given.scale ? plc_get_f(given.scale, given.scale_dtype, 0) : given.factor;
    if (g.dtype[0] == PL_F64) ((double *)g.col[0])[at[0]] *= f;
    else if (g.dtype[0] == PL_F32) ((float *)g.col[0])[at[0]] *= (float)f;
    else put(g.col[0], g.dtype[0], at[0], plc_get_f(g.col[0], g.dtype[0], at[0]) * f);
  } else element<T>(r, k, g, at, i, sum1, sum2);
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
PLC_DEV void step_chunk(const Rule &given, const Now<T> &r, int k, const Group &g, int64_t begin, int64_t end, uint32_t *room, double &sum1,
                        double &sum2) {
  const bool codes = coded(g, k);
  for (int64_t from = begin; from < end; from += blockDim.x) {
    const int64_t i = from + threadIdx.x, at[COLUMNS] = {i, i, i, i, i, i};
    if (codes) element_coded<T>(r, k, g, at, i, i < end, room, sum1, sum2);
    else if (i < end) one<T>(given, r, k, g, at, i, sum1, sum2);
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

/* live: the rule of the moment in captured work, else NULL. factor: of each parameter, or NULL. part: two sums for each chunk, or
 * NULL. */
__global__ void step_groups(const __grid_constant__ Rule given, const Rule *live, const __grid_constant__ Groups gs, const double *factor,
                            double *part) {
  __shared__ uint32_t room[32];
  __shared__ double wide_room[32];
  Rule rule = live ? *live : given;
  rule.formula = given.formula, rule.reads = given.reads, rule.writes = given.writes; /* of two passes, this one */
  Now<float> r(rule);
  for (int64_t b = blockIdx.x; b < gs.first[gs.n]; b += gridDim.x) {
    int lo = 0;
    double sum1 = 0, sum2 = 0;
    while (lo + 1 < gs.n && gs.first[lo + 1] <= b) lo++;
    const Group &g = gs.g[lo];
    int64_t begin = (b - gs.first[lo]) * CHUNK, end = begin + CHUNK < g.numel ? begin + CHUNK : g.numel;
    const double f = factor ? factor[2 * (gs.before + lo)] : 1;
    r.factor = (float)f;
    if (r.kind <= FORMULA && plain(g, gs.k) && end - begin == CHUNK) step_packs(r, gs.k, g, begin, end, sum1, sum2);
    else if (g.dtype[0] == PL_F64) {
      Now<double> wide(rule);
      wide.factor = f;
      step_chunk<double>(given, wide, gs.k, g, begin, end, room, sum1, sum2);
    } else step_chunk<float>(given, r, gs.k, g, begin, end, room, sum1, sum2);
    if (part) put_sums(sum1, sum2, part + 2 * b, wide_room);
  }
}

/* One group with strides of its own. A thread block works on rows of CHUNK elements, so that there are as many parts. */
__global__ void step_strided(const __grid_constant__ Rule given, const Rule *live, int k, const __grid_constant__ Group g,
                             const __grid_constant__ plc_layout<COLUMNS> l, const double *factor, double *part) {
  __shared__ uint32_t room[32];
  __shared__ double wide_room[32];
  Rule rule = live ? *live : given;
  rule.formula = given.formula, rule.reads = given.reads, rule.writes = given.writes;
  Now<float> r(rule);
  Now<double> wide(rule);
  if (factor) r.factor = (float)factor[0], wide.factor = factor[0];
  const bool codes = r.kind <= FORMULA && coded(g, k);
  for (int64_t b = blockIdx.x; b * CHUNK < l.numel; b += gridDim.x) {
    double sum1 = 0, sum2 = 0;
    const int64_t end = b * CHUNK + CHUNK < l.numel ? b * CHUNK + CHUNK : l.numel;
    for (int64_t from = b * CHUNK; from < end; from += blockDim.x) {
      const int64_t i = from + threadIdx.x;
      int64_t at[COLUMNS];
      if (i < end) plc_offsets<COLUMNS>(l, i, at);
      if (codes) {
        if (g.dtype[0] == PL_F64) element_coded<double>(wide, k, g, at, i, i < end, room, sum1, sum2);
        else element_coded<float>(r, k, g, at, i, i < end, room, sum1, sum2);
      } else if (i < end) {
        if (g.dtype[0] == PL_F64) one<double>(given, wide, k, g, at, i, sum1, sum2);
        else one<float>(given, r, k, g, at, i, sum1, sum2);
      }
    }
    if (part) put_sums(sum1, sum2, part + 2 * b, wide_room);
  }
}

/* One thread block a group: adds up its chunks, [first[g], first[g + 1]), in a fixed order. Of a rule of two passes
 * the first sum becomes the factor. */
struct Firsts {
  int64_t of[GROUPS + 1], numel[GROUPS];
};
__global__ void group_sums(const __grid_constant__ Rule given, const Rule *live, const __grid_constant__ Firsts first, const double *part,
                           double *sums) {
  __shared__ double room[32];
  const Rule &rule = live ? *live : given;
  const int64_t g = blockIdx.x;
  double sum1 = 0, sum2 = 0;
  for (int64_t b = first.of[g] + threadIdx.x; b < first.of[g + 1]; b += blockDim.x) sum1 += part[2 * b], sum2 += part[2 * b + 1];
  put_sums(sum1, sum2, sums + 2 * g, room);
  if (given.factor_of && threadIdx.x == 0)
    sums[2 * g] = plk_optim_factor(given.formula, rule.number, sums[2 * g], sums[2 * g + 1], first.numel[g]);
}
/* Adds those of all groups to out[0] and out[1]. */
__global__ void join_sums(int64_t groups, const double *sums, double *out) {
  __shared__ double room[32];
  double sum1 = 0, sum2 = 0, both[2] = {0, 0};
  for (int64_t g = threadIdx.x; g < groups; g += blockDim.x) sum1 += sums[2 * g], sum2 += sums[2 * g + 1];
  put_sums(sum1, sum2, both, room);
  if (threadIdx.x == 0) out[0] += both[0], out[1] += both[1];
}

/* What a list's launches share. */
struct Run {
  const Rule *r, *live;
  const double *factor; /* two numbers a group, the first counts, or NULL */
  double *part;         /* the next chunk's two sums, or NULL; then */
  double *sums;         /* those of groups */
};

/* Behind a launch that left its parts: `groups` of them, their chunks from first[0] … */
static PlStatus sum_up(Run *run, int groups, const int64_t *first, const Group *g, int64_t before) {
  Firsts f;
  if (!run->part) return PL_OK;
  memcpy(f.of, first, (size_t)(groups + 1) * sizeof *first);
  for (int i = 0; i < groups; i++) f.numel[i] = g[i].numel;
  PLC_LAUNCH(group_sums, (unsigned)groups, PLC_BLOCK, 0, *run->r, run->live, f, (const double *)run->part, run->sums + 2 * before);
  run->part += 2 * first[groups];
  return PL_OK;
}

static PlStatus flush(Run *run, Groups *gs) {
  if (gs->n && gs->first[gs->n]) {
    int64_t blocks = gs->first[gs->n], most = (int64_t)plc_processors() * 16;
    PLC_LAUNCH(step_groups, (unsigned)(blocks < most ? blocks : most), PLC_BLOCK, 0, *run->r, run->live, *gs, run->factor, run->part);
  }
  if (gs->n) PL_TRY(sum_up(run, gs->n, gs->first, gs->g, gs->before));
  gs->before += gs->n;
  gs->n = 0;
  return PL_OK;
}

/* Does it write where one of the tensors does that wait for their launch? One launch writes its groups at once, so what shares
 * memory with them comes behind it; launches keep their order. */
static bool meets(const Groups *gs, const PlkExtent *waiting, PlkExtent e) {
  for (int g = 0; g < gs->n; g++)
    if (plk_extents_meet(waiting[g], e)) return true;
  return false;
}

/* Dense, and element by element beside each other: row-major or channels last. */
static bool in_one_order(const PlArray *a, const PlArray *b) {
  int64_t step = a->ndim > 1 ? a->shape[1] : 1;
  if (a->contiguous && b->contiguous) return true;
  if ((a->ndim != 4 && a->ndim != 5) || b->ndim != a->ndim) return false;
  for (int k = 0; k < a->ndim; k++) {
    const int d = k == 0 ? 1 : k == a->ndim - 1 ? 0 : a->ndim - k;
    if (b->shape[d] != a->shape[d]) return false;
    if (a->shape[d] == 1) continue;
    if (b->strides[d] != a->strides[d] || a->strides[d] != (d == 1 ? 1 : step)) return false;
    if (d != 1) step *= a->shape[d];
  }
  return true;
}

static PlStatus run(const PlkCall *c, int ntensor, int k, Run now) {
  const Rule *r = now.r;
  Groups gs;
  memset(&gs, 0, sizeof gs);
  gs.k = k;
  PlkExtent waiting[GROUPS];
  for (int t = 0; t + k <= ntensor; t += k) {
    const PlArray *const *col = c->in + t;
    Group g;
    memset(&g, 0, sizeof g);
    bool dense = true, codes = false;
    g.numel = col[0]->numel;
    const PlArray *arr[COLUMNS] = {NULL, NULL, NULL, NULL, NULL, NULL};
    for (int j = 0; j < k; j++) {
      const bool has_codes = j >= 2 && plk_coded(col[j]);
      g.col[j] = col[j]->data;
      g.dtype[j] = col[j]->dtype;
      codes = codes || has_codes;
      dense = dense && (has_codes || (col[j]->numel == g.numel && in_one_order(col[0], col[j])));
      arr[j] = has_codes ? NULL : col[j]; /* they find their own places */
    }
    dense = dense && (!codes || col[0]->contiguous); /* codes are in row-major order */
    const PlkExtent e = plk_extent(col[0]);
    if (g.numel && meets(&gs, waiting, e)) PL_TRY(flush(&now, &gs));
    if (g.numel && !dense) {
      PL_TRY(flush(&now, &gs)); /* groups are counted in their order */
      plc_layout<COLUMNS> l;
      PlArray first = *arr[0];
      int64_t shape[PL_MAX_DIM];
      for (int d = 0; d < first.ndim; d++) { /* in-place work touches a repeated element once */
        shape[d] = first.strides[d] == 0 && r->kind >= SCALE ? 1 : first.shape[d];
        first.numel = d ? first.numel * shape[d] : shape[d];
      }
      if (r->kind >= SCALE) first.shape = shape, arr[0] = &first;
      plc_layout_of<COLUMNS>(&l, arr);
      l.numel = r->kind >= SCALE ? first.numel : g.numel;
      const int64_t chunks = (l.numel + CHUNK - 1) / CHUNK, most = (int64_t)plc_processors() * 16;
      PLC_LAUNCH(step_strided, (unsigned)(chunks < most ? chunks : most), PLC_BLOCK, 0, *r, now.live, k, g, l,
                 now.factor ? now.factor + 2 * gs.before : NULL, now.part);
      const int64_t ends[2] = {0, chunks};
      PL_TRY(sum_up(&now, 1, ends, &g, gs.before));
      gs.before++;
      continue;
    }
    gs.g[gs.n] = g;
    waiting[gs.n] = e;
    gs.first[gs.n + 1] = gs.first[gs.n] + (g.numel + CHUNK - 1) / CHUNK;
    if (++gs.n == GROUPS) PL_TRY(flush(&now, &gs));
  }
  return flush(&now, &gs);
}

/* ---- the rules --------------------------------------------------------------------------------------------------------- */

static Rule blank(Kind kind) {
  Rule r;
  memset(&r, 0, sizeof r);
  r.kind = kind;
  r.reads = ~0u, r.writes = ~2u; /* column 1 is the gradient */
  return r;
}

static void sgd_rule(const PlAttrs *a, void *out) {
  Rule r = blank(SGD);
  r.lr = pl_attr_f(a, PLK_SGD_LR), r.momentum = pl_attr_f(a, PLK_SGD_MOMENTUM), r.dampening = pl_attr_f(a, PLK_SGD_DAMPENING);
  r.decay = pl_attr_f(a, PLK_SGD_DECAY), r.nesterov = pl_attr_i(a, PLK_SGD_NESTEROV) != 0;
  r.maximize = pl_attr_i(a, PLK_SGD_MAXIMIZE) != 0, r.count = pl_attr_i(a, PLK_SGD_STEP), r.first = r.count == 1;
  memcpy(out, &r, sizeof r);
}
static void adam_rule(const PlAttrs *a, void *out) {
  const int64_t flags = pl_attr_i(a, PLK_ADAM_FLAGS);
  const double t = (double)pl_attr_i(a, PLK_ADAM_STEP);
  Rule r = blank(ADAM);
  r.lr = pl_attr_f(a, PLK_ADAM_LR), r.beta1 = pl_attr_f(a, PLK_ADAM_BETA1), r.beta2 = pl_attr_f(a, PLK_ADAM_BETA2);
  r.eps = pl_attr_f(a, PLK_ADAM_EPS), r.decay = pl_attr_f(a, PLK_ADAM_DECAY);
  r.decoupled = (flags & PLK_ADAM_DECOUPLED) != 0, r.maximize = (flags & PLK_ADAM_MAXIMIZE) != 0;
  r.amsgrad = pl_attr_i(a, PLK_ADAM_K) == 5;
  r.count = pl_attr_i(a, PLK_ADAM_STEP);
  r.step = r.lr / (1 - pow(r.beta1, t));
  r.root = sqrt(1 - pow(r.beta2, t));
  memcpy(out, &r, sizeof r);
}
static void rms_rule(const PlAttrs *a, void *out) {
  const int64_t flags = pl_attr_i(a, PLK_RMS_FLAGS);
  Rule r = blank(RMS);
  r.count = pl_attr_i(a, PLK_RMS_STEP);
  r.lr = pl_attr_f(a, PLK_RMS_LR), r.alpha = pl_attr_f(a, PLK_RMS_ALPHA), r.eps = pl_attr_f(a, PLK_RMS_EPS);
  r.decay = pl_attr_f(a, PLK_RMS_DECAY), r.momentum = pl_attr_f(a, PLK_RMS_MOMENTUM);
  r.buffer = (flags & PLK_RMS_BUFFER) != 0, r.centered = (flags & PLK_RMS_CENTERED) != 0, r.maximize = (flags & PLK_RMS_MAXIMIZE) != 0;
  memcpy(out, &r, sizeof r);
}

static void of_pass(Rule *r, int rule) {
  const PlkOptimRuleFacts facts = plk_optim_facts(rule);
  r->formula = rule, r->reads = facts.reads, r->writes = facts.writes;
  r->factor_of = plk_optim_second(rule) >= 0;
}

static void formula_rule(const PlAttrs *a, void *out) {
  const int64_t flags = pl_attr_i(a, PLK_OPTIM_FLAGS);
  Rule r = blank(FORMULA);
  r.formula = (int)pl_attr_i(a, PLK_OPTIM_RULE), r.count = pl_attr_i(a, PLK_OPTIM_STEP), r.decay = pl_attr_f(a, PLK_OPTIM_DECAY);
  r.maximize = (flags & PLK_OPTIM_MAXIMIZE) != 0, r.coupled = (flags & PLK_OPTIM_COUPLED) != 0;
  r.decoupled = (flags & PLK_OPTIM_DECOUPLED) != 0;
  of_pass(&r, r.formula);
  memcpy(r.number, pl_attr_list(a, PLK_OPTIM_NUMBERS), (size_t)pl_attr_n(a, PLK_OPTIM_NUMBERS) * sizeof r.number[0]);
  memcpy(out, &r, sizeof r);
}

/* Captured updates follow lr, step and the like; how many tensors a parameter has decides what is launched. */
enum { K = 0 };
static_assert((int)PLK_SGD_K == K && (int)PLK_ADAM_K == K && (int)PLK_RMS_K == K && (int)PLK_OPTIM_K == K, "one attribute for all");
static int64_t tensors_each(const PlAttrs *a) { return pl_attr_i(a, K); }
static const PlcSettings sgd_settings = {sizeof(Rule), sgd_rule, tensors_each};
static const PlcSettings adam_settings = {sizeof(Rule), adam_rule, tensors_each};
static const PlcSettings rms_settings = {sizeof(Rule), rms_rule, tensors_each};
static const PlcSettings formula_settings = {sizeof(Rule), formula_rule, tensors_each};

static PlStatus update(const PlkCall *c, const PlcSettings *settings) {
  Rule r;
  const void *live;
  PL_TRY(plc_settings(settings, c, &r, &live));
  return run(c, c->nin, (int)tensors_each(c->attrs), Run{&r, (const Rule *)live, NULL, NULL, NULL});
}
static PlStatus sgd_step(const PlkCall *c) { return update(c, &sgd_settings); }
static PlStatus adam_step(const PlkCall *c) { return update(c, &adam_settings); }
static PlStatus rmsprop_step(const PlkCall *c) { return update(c, &rms_settings); }

static PlStatus join(int64_t groups, const double *sums, double *out) {
  PLC_LAUNCH(join_sums, 1, PLC_BLOCK, 0, groups, sums, out);
  return PL_OK;
}

/* A rule with sums: its pass; for one of two passes another with what they say of each parameter, else the sums go to the last tensor. */
static PlStatus with_sums(const PlkCall *c, int rule, Rule *r, const Rule *live) {
  const int k = (int)tensors_each(c->attrs), ntensor = c->nin - plk_optim_sums_out(rule), groups = ntensor / k;
  int64_t chunks = 0;
  for (int g = 0; g < groups; g++) chunks += (c->in[g * k]->numel + CHUNK - 1) / CHUNK;
  void *room;
  PL_TRY(plc_scratch((size_t)(2 * chunks + 2 * groups + 1) * sizeof(double), &room));
  double *part = (double *)room, *sums = part + 2 * chunks;
  PlStatus s = run(c, ntensor, k, Run{r, live, NULL, part, sums});
  if (s == PL_OK && plk_optim_second(rule) >= 0) {
    of_pass(r, plk_optim_second(rule));
    s = run(c, ntensor, k, Run{r, live, sums, NULL, NULL});
  } else if (s == PL_OK) {
    s = join(groups, sums, (double *)c->in[ntensor]->data);
  }
  plc_scratch_free(room);
  return s;
}

static PlStatus optimizer_step(const PlkCall *c) {
  const int rule = (int)pl_attr_i(c->attrs, PLK_OPTIM_RULE);
  if (!plk_optim_facts(rule).sums) return update(c, &formula_settings);
  Rule r;
  const void *live;
  PL_TRY(plc_settings(&formula_settings, c, &r, &live));
  of_pass(&r, rule); /* also while captured, where the rule's numbers come later */
  return with_sums(c, rule, &r, (const Rule *)live);
}
PLC_KERNEL_SET(sgd_step, sgd_step, &sgd_settings)
PLC_KERNEL_SET(adam_step, adam_step, &adam_settings)
PLC_KERNEL_SET(rmsprop_step, rmsprop_step, &rms_settings)
PLC_KERNEL_SET(optimizer_step, optimizer_step, &formula_settings)

static PlStatus foreach_zero(const PlkCall *c) {
  const Rule r = blank(ZERO);
  return run(c, c->nin, 1, Run{&r, NULL, NULL, NULL, NULL});
}
static PlStatus foreach_scale(const PlkCall *c) {
  Rule r = blank(SCALE);
  const PlArray *f = c->in[c->nin - 1];
  if (plc_on_host(f)) r.factor = plc_number_f(f);
  else r.scale = f->data, r.scale_dtype = f->dtype;
  return run(c, c->nin - 1, 1, Run{&r, NULL, NULL, NULL, NULL});
}
PLC_KERNEL(foreach_zero_, foreach_zero)
PLC_KERNEL(foreach_scale_, foreach_scale)

/* ---- the norm of a whole list: a partial sum for each chunk, then one block over the parts ------------------------------- */

PLC_DEV double joined(double p, double a, double b) {
  if (!isinf(p)) return a + b;
  if (a != a || b != b) return (double)NAN;
  return p > 0 ? (a > b ? a : b) : (a < b ? a : b);
}
struct Join {
  double p;
  __device__ __forceinline__ double operator()(double a, double b) const { return joined(p, a, b); }
};

__global__ void norm_part(plc_layout<1> l, const void *x, int dtype, double p, double start, double *part) {
  __shared__ double room[32];
  int64_t begin = (int64_t)blockIdx.x * CHUNK, end = begin + CHUNK < l.numel ? begin + CHUNK : l.numel;
  double s = start;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    int64_t at[1];
    plc_offsets<1>(l, i, at);
    double v = fabs(plc_get_f(x, dtype, at[0]));
    s = joined(p, s, isinf(p) || p == 1 ? v : p == 0 ? (double)(v != 0) : p == 2 ? v * v : pow(v, p));
  }
  s = plc_block_all(s, Join{p}, start, room);
  if (threadIdx.x == 0) part[blockIdx.x] = s;
}
__global__ void norm_join(int64_t n, const double *part, double p, double start, bool empty, void *y, int dtype) {
  __shared__ double room[32];
  double s = start;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) s = joined(p, s, part[i]);
  s = plc_block_all(s, Join{p}, start, room);
  if (threadIdx.x != 0) return;
  if (empty) s = 0;
  put(y, dtype, 0, isinf(p) || p == 0 || p == 1 ? s : p == 2 ? sqrt(s) : pow(s, 1 / p));
}
static PlStatus foreach_norm(const PlkCall *c) {
  const double p = pl_attr_f(c->attrs, 0), start = isinf(p) && p < 0 ? (double)INFINITY : 0;
  int64_t parts = 0, total = 0;
  for (int i = 0; i < c->nin; i++) parts += (c->in[i]->numel + CHUNK - 1) / CHUNK, total += c->in[i]->numel;
  void *room;
  PL_TRY(plc_scratch((size_t)(parts + 1) * sizeof(double), &room));
  double *at = (double *)room;
  for (int i = 0; i < c->nin; i++) {
    const PlArray *x = c->in[i], *arr[1] = {x};
    plc_layout<1> l;
    unsigned blocks = (unsigned)((x->numel + CHUNK - 1) / CHUNK);
    if (!blocks) continue;
    plc_layout_of<1>(&l, arr);
    PLC_LAUNCH(norm_part, blocks, PLC_BLOCK, 0, l, (const void *)x->data, (int)x->dtype, p, start, at);
    at += blocks;
  }
  PLC_LAUNCH(norm_join, 1, PLC_BLOCK, 0, parts, (const double *)room, p, start, total == 0, c->out[0]->data, (int)c->out[0]->dtype);
  plc_scratch_free(room);
  return PL_OK;
}
PLC_KERNEL(foreach_norm, foreach_norm)
