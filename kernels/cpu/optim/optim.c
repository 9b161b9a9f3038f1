/* SPDX-License-Identifier: MIT
 * Optimizer steps over a list of tensors (see kernels/optim.h).
 *
 * All parameters are laid end to end and cut into blocks of BLOCK elements. Where a group is plain f32 or f64
 * the inner loop works in place; every other mix of dtypes and strides goes through f32 (f64 if the parameter
 * is f64) in stretches of CHUNK elements. A parameter whose states are in 8 bits is filled up to whole rows of codes there. */
#include "kernels/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/optim/optim.h"
#include "kernels/cpu/rows.h"

enum { BLOCK = 16384, CHUNK = 512, MAX_COLS = PLK_OPTIM_COLUMNS };
_Static_assert(BLOCK % PLK_CODED_BLOCK == 0 && CHUNK % PLK_CODED_BLOCK == 0, "stretches end where rows of codes do");

PLK_ISA_DECLARE(const PlkOptimLoops, plk_optim);

/* ---- reading and writing any layout --------------------------------------------------------------- */

/* Element offset of row-major position `at`, and the odometer that walks on from there. */
typedef struct Walk {
  int64_t idx[PL_MAX_DIM], off;
} Walk;

static void walk_start(Walk *w, const PlArray *a, int64_t at) {
  w->off = 0;
  for (int d = a->ndim - 1; d >= 0; d--) {
    w->idx[d] = at % a->shape[d];
    at /= a->shape[d];
    w->off += w->idx[d] * a->strides[d];
  }
}

static void walk_next(Walk *w, const PlArray *a) {
  for (int d = a->ndim - 1; d >= 0; d--) {
    w->off += a->strides[d];
    if (++w->idx[d] < a->shape[d]) return;
    w->off -= w->idx[d] * a->strides[d];
    w->idx[d] = 0;
  }
}

static double get_one(const PlArray *a, int64_t off) {
  switch (a->dtype) {
  case PL_F32: return (double)((const float *)a->data)[off];
  case PL_F64: return ((const double *)a->data)[off];
  case PL_F16: return (double)plk_f16_to_f32(((const uint16_t *)a->data)[off]);
  default: return (double)plk_bf16_to_f32(((const uint16_t *)a->data)[off]);
  }
}

static void put_one(const PlArray *a, int64_t off, double v) {
  switch (a->dtype) {
  case PL_F32: ((float *)a->data)[off] = (float)v; break;
  case PL_F64: ((double *)a->data)[off] = v; break;
  case PL_F16: ((uint16_t *)a->data)[off] = plk_f32_to_f16((float)v); break;
  default: ((uint16_t *)a->data)[off] = plk_f32_to_bf16((float)v); break;
  }
}

/* Elements from `at` on that lie at one distance from each other: n of them, at most `most`, from off on. */
typedef struct Run {
  int64_t off, stride, n;
} Run;
static Run run_at(const PlArray *a, int64_t at, int64_t most) {
  Run r = {.off = at, .stride = 1, .n = most};
  if (a->contiguous) return r;
  r.off = 0;
  for (int d = a->ndim - 1; d >= 0; d--) {
    const int64_t i = at % a->shape[d];
    at /= a->shape[d];
    r.off += i * a->strides[d];
    if (d < a->ndim - 1) continue;
    r.stride = a->strides[d];
    if (a->shape[d] - i < r.n) r.n = a->shape[d] - i;
  }
  return r;
}

/* The first of n elements to all of them. */
static void repeat(void *to, int64_t n, bool wide) {
  if (wide)
    for (int64_t i = 1; i < n; i++) ((double *)to)[i] = ((double *)to)[0];
  else
    for (int64_t i = 1; i < n; i++) ((float *)to)[i] = ((float *)to)[0];
}

static void load(const PlArray *a, int64_t at, int64_t n, bool wide, void *out) {
  const int64_t size = wide ? 8 : 4;
  for (int64_t i = 0; i < n;) {
    const Run r = run_at(a, at + i, n - i);
    char *to = (char *)out + i * size;
    if (r.stride == 1 && a->dtype == (wide ? PL_F64 : PL_F32)) {
      memcpy(to, (const char *)a->data + r.off * size, (size_t)(r.n * size));
    } else {
      plk_load(wide ? PLK_CF64 : PLK_CF32, to, r.n, a->data, a->dtype, r.off, r.stride, r.stride ? r.n : 1, 1);
      if (!r.stride) repeat(to, r.n, wide);
    }
    i += r.n;
  }
}

static void store(const PlArray *a, int64_t at, int64_t n, bool wide, const void *from) {
  const int64_t size = wide ? 8 : 4;
  for (int64_t i = 0; i < n;) {
    const Run r = run_at(a, at + i, n - i);
    plk_store(wide ? PLK_CF64 : PLK_CF32, (const char *)from + i * size, r.n, a->data, a->dtype, r.off, r.stride, r.n, 1);
    i += r.n;
  }
}

/* ---- the list as one long row ---------------------------------------------------------------------- */

typedef struct List List;
/* Works on elements [at, at + n) of group `g`; `part` is the number of the block. */
typedef void (*Stretch)(const List *list, int64_t g, int64_t at, int64_t n, int64_t part);

struct List {
  const PlkCall *call;
  const PlkOptimLoops *loops;
  int64_t ngroup, k, total;
  int64_t *ends; /* elements in groups 0 … g */
  int64_t few[64];
  Stretch stretch;
  const void *opt;
  double *partial; /* norms: one a block; sums of a rule: two a stretch */
  double *factor;  /* a parameter's, or NULL */
};

static const PlArray *column(const List *l, int64_t g, int64_t j) { return l->call->in[g * l->k + j]; }

static PlStatus list_init(List *l, const PlkCall *call, int64_t ntensor, int64_t k, Stretch stretch, const void *opt) {
  l->call = call;
  l->loops = &PLK_ISA_PICK(plk_optim);
  l->k = k;
  l->ngroup = ntensor / k;
  l->stretch = stretch;
  l->opt = opt;
  l->partial = l->factor = NULL;
  l->ends = l->few;
  if (l->ngroup > (int64_t)(sizeof l->few / sizeof l->few[0])) {
    void *p;
    PL_TRY(plk_scratch((size_t)l->ngroup * sizeof(int64_t), &p));
    l->ends = p;
  }
  l->total = 0;
  bool coded = false;
  for (int64_t i = 0; i < l->ngroup * k; i++) coded = coded || (i % k >= 2 && plk_coded(call->in[i]));
  const int64_t fill = coded ? PLK_CODED_BLOCK - 1 : 0;
  for (int64_t g = 0; g < l->ngroup; g++) l->ends[g] = l->total += (column(l, g, 0)->numel + fill) & ~fill;
  return PL_OK;
}

static void list_free(List *l) {
  if (l->ends != l->few) plk_scratch_free(l->ends);
}

static PlStatus list_block(void *ctx, int64_t begin, int64_t end) {
  const List *l = ctx;
  int64_t lo = 0, hi = l->ngroup - 1; /* first group that ends after `begin` */
  while (lo < hi) {
    int64_t mid = (lo + hi) / 2;
    if (l->ends[mid] > begin) hi = mid;
    else lo = mid + 1;
  }
  for (int64_t g = lo; begin < end; g++) {
    int64_t first = g ? l->ends[g - 1] : 0;
    while (begin < end && begin < l->ends[g]) { /* never across a block border: partial sums depend on it */
      int64_t stop = (begin / BLOCK + 1) * BLOCK;
      if (stop > end) stop = end;
      if (stop > l->ends[g]) stop = l->ends[g];
      const int64_t last = first + column(l, g, 0)->numel; /* what follows fills up */
      l->stretch(l, g, begin - first, (stop < last ? stop : last) - begin, begin / BLOCK);
      begin = stop;
    }
  }
  return PL_OK;
}

static PlStatus list_run(List *l) { return plk_parallel(l->total, BLOCK, list_block, l); }

static int by_place(const void *a, const void *b) {
  const PlkExtent *x = a, *y = b;
  return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Do two of the first columns, which are written, lie on the same bytes? Yes also where they only may, as two columns of one
 * matrix. */
static PlStatus list_shares(const List *l, bool *yes) {
  void *room;
  *yes = false;
  if (l->total <= BLOCK || l->ngroup < 2) return PL_OK;
  PL_TRY(plk_scratch((size_t)l->ngroup * sizeof(PlkExtent), &room));
  PlkExtent *e = room;
  bool ascend = true;
  for (int64_t g = 0; g < l->ngroup; g++) {
    e[g] = plk_extent(column(l, g, 0));
    ascend = ascend && (g == 0 || e[g].lo >= e[g - 1].lo);
  }
  if (!ascend) qsort(e, (size_t)l->ngroup, sizeof *e, by_place);
  const char *end = e[0].hi;
  for (int64_t g = 1; g < l->ngroup; g++) {
    *yes = *yes || (e[g].lo < end && e[g].lo < e[g].hi); /* none before it starts behind it */
    if (e[g].hi > end) end = e[g].hi;
  }
  plk_scratch_free(room);
  return PL_OK;
}

/* All of a step or nothing: Ctrl-C before it, or behind it. Tensors that share memory are written one after the other, not by
 * two threads at once. */
static PlStatus list_write(List *l) {
  bool shares;
  PL_TRY(plk_poll());
  PL_TRY(list_shares(l, &shares));
  plk_interrupt_hold(1);
  const PlStatus s = shares ? list_block(l, 0, l->total) : list_run(l);
  plk_interrupt_hold(-1);
  return s;
}

/* ---- steps ------------------------------------------------------------------------------------------ */

/* Which of the steps a list runs: opt points at one of these. */
typedef struct Rule {
  enum { RULE_SGD, RULE_ADAM, RULE_RMS, RULE_FORMULA } kind;
  int formula;    /* which, a PlkOptimRule */
  unsigned reads; /* columns, a bit each */
  unsigned writes;
  int64_t step;
  PlkSgd sgd;
  PlkAdam a;
  PlkRms rms;
  PlkFormula f;
} Rule;

static bool touches(const Rule *r, int64_t j) { return ((r->reads | r->writes) >> j & 1) != 0; }

/* Whether all columns that a step touches are contiguous arrays of one dtype that has loops of its own. */
static bool plain(const List *l, int64_t g) {
  uint8_t d = column(l, g, 0)->dtype;
  if (d != PL_F32 && d != PL_F64) return false;
  for (int64_t j = 0; j < l->k; j++)
    if (touches(l->opt, j) && (!column(l, g, j)->contiguous || column(l, g, j)->dtype != d)) return false;
  return true;
}

static void step_f32(const List *l, float *const *col, int64_t n, const PlkFormula *f, double *sums) {
  const Rule *r = l->opt;
  if (r->kind == RULE_ADAM) l->loops->adam_f32(col, n, &r->a);
  else if (r->kind == RULE_RMS) l->loops->rms_f32(col, n, &r->rms);
  else if (r->kind == RULE_FORMULA) l->loops->formula_f32[r->formula](col, n, f, sums);
  else l->loops->sgd_f32(col, n, &r->sgd);
}

static void step_f64(const List *l, double *const *col, int64_t n, const PlkFormula *f, double *sums) {
  const Rule *r = l->opt;
  if (r->kind == RULE_ADAM) l->loops->adam_f64(col, n, &r->a);
  else if (r->kind == RULE_RMS) l->loops->rms_f64(col, n, &r->rms);
  else if (r->kind == RULE_FORMULA) l->loops->formula_f64[r->formula](col, n, f, sums);
  else l->loops->sgd_f64(col, n, &r->sgd);
}

static void step_plain(const List *l, int64_t g, int64_t at, int64_t n, const PlkFormula *f, double *sums) {
  if (column(l, g, 0)->dtype == PL_F32) {
    float *col[MAX_COLS] = {0};
    for (int64_t j = 0; j < l->k; j++) col[j] = (float *)column(l, g, j)->data + at;
    step_f32(l, col, n, f, sums);
  } else {
    double *col[MAX_COLS] = {0};
    for (int64_t j = 0; j < l->k; j++) col[j] = (double *)column(l, g, j)->data + at;
    step_f64(l, col, n, f, sums);
  }
}

/* Columns in the dtype of the step, whatever they are stored as. */
static void load_state(const List *l, const PlArray *a, int64_t at, int64_t n, bool wide, void *out) {
  if (!plk_coded(a)) {
    load(a, at, n, wide, out);
    return;
  }
  float narrow[CHUNK], *to = wide ? narrow : out;
  l->loops->load_coded((const uint8_t *)a->data + at / PLK_CODED_BLOCK * PLK_CODED_ROW, a->dtype == PL_I8, to, n);
  for (int64_t i = 0; wide && i < n; i++) ((double *)out)[i] = (double)narrow[i];
}

static void store_state(const List *l, const PlArray *a, int64_t j, int64_t at, int64_t n, bool wide, const void *from) {
  const bool coded = plk_coded(a), by_chance = a->dtype == PL_BF16 && j >= 2;
  if (!coded && !by_chance) {
    store(a, at, n, wide, from);
    return;
  }
  float narrow[CHUNK];
  for (int64_t i = 0; wide && i < n; i++) narrow[i] = (float)((const double *)from)[i];
  const float *x = wide ? narrow : from;
  if (coded) {
    l->loops->store_coded(x, a->dtype == PL_I8, (uint8_t *)a->data + at / PLK_CODED_BLOCK * PLK_CODED_ROW, n);
    return;
  }
  uint16_t bits[CHUNK], *to = a->contiguous ? (uint16_t *)a->data + at : bits;
  l->loops->store_bf16(x, to, n, at, plk_rounding_seed(((const Rule *)l->opt)->step, (int)j));
  if (a->contiguous) return;
  Walk w;
  walk_start(&w, a, at);
  for (int64_t i = 0; i < n; i++, walk_next(&w, a)) ((uint16_t *)a->data)[w.off] = bits[i];
}

static void step_any(const List *l, int64_t g, int64_t at, int64_t n, const PlkFormula *f, double *sums) {
  const Rule *r = l->opt;
  const bool wide = column(l, g, 0)->dtype == PL_F64;
  const int64_t size = wide ? 8 : 4;
  double room[MAX_COLS][CHUNK];
  void *col[MAX_COLS] = {0};
  bool direct[MAX_COLS] = {0};
  for (int64_t j = 0; j < l->k; j++) {
    const PlArray *a = column(l, g, j);
    direct[j] = a->contiguous && a->dtype == (wide ? PL_F64 : PL_F32);
    col[j] = direct[j] ? (char *)a->data + at * size : (char *)room[j];
  }
  for (int64_t i = 0; i < n; i += CHUNK) {
    int64_t m = n - i < CHUNK ? n - i : CHUNK;
    for (int64_t j = 0; j < l->k; j++)
      if (!direct[j] && r->reads >> j & 1) load_state(l, column(l, g, j), at + i, m, wide, room[j]);
    if (wide) step_f64(l, (double *const *)(void *)col, m, f, sums);
    else step_f32(l, (float *const *)(void *)col, m, f, sums);
    for (int64_t j = 0; j < l->k; j++) {
      if (direct[j]) col[j] = (char *)col[j] + m * size;
      else if (r->writes >> j & 1) store_state(l, column(l, g, j), j, at + i, m, wide, room[j]);
    }
  }
}

static void step_stretch(const List *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  const Rule *r = l->opt;
  double *sums = l->partial ? l->partial + 2 * (part + g) : NULL;
  PlkFormula f = r->f;
  f.factor = l->factor ? l->factor[g] : 1;
  if (plain(l, g)) step_plain(l, g, at, n, &f, sums);
  else step_any(l, g, at, n, &f, sums);
}

static PlStatus run_step(const PlkCall *call, int64_t k, Rule *rule) {
  List l;
  rule->writes = ~2u; /* column 1 is the gradient */
  rule->reads = ~0u;
  PL_TRY(list_init(&l, call, call->nin, k, step_stretch, rule));
  PlStatus s = list_write(&l);
  list_free(&l);
  return s;
}

PlStatus plk_cpu_sgd_step(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  Rule r = {.step = pl_attr_i(a, PLK_SGD_STEP),
            .sgd = {.lr = pl_attr_f(a, PLK_SGD_LR),
                    .momentum = pl_attr_f(a, PLK_SGD_MOMENTUM),
                    .dampening = pl_attr_f(a, PLK_SGD_DAMPENING),
                    .decay = pl_attr_f(a, PLK_SGD_DECAY),
                    .nesterov = pl_attr_i(a, PLK_SGD_NESTEROV) != 0,
                    .maximize = pl_attr_i(a, PLK_SGD_MAXIMIZE) != 0,
                    .first = pl_attr_i(a, PLK_SGD_STEP) == 1}};
  return run_step(call, pl_attr_i(a, PLK_SGD_K), &r);
}

PlStatus plk_cpu_adam_step(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  int64_t flags = pl_attr_i(a, PLK_ADAM_FLAGS), k = pl_attr_i(a, PLK_ADAM_K);
  double t = (double)pl_attr_i(a, PLK_ADAM_STEP);
  Rule r = {.kind = RULE_ADAM,
            .step = pl_attr_i(a, PLK_ADAM_STEP),
            .a = {.lr = pl_attr_f(a, PLK_ADAM_LR),
                  .beta1 = pl_attr_f(a, PLK_ADAM_BETA1),
                  .beta2 = pl_attr_f(a, PLK_ADAM_BETA2),
                  .eps = pl_attr_f(a, PLK_ADAM_EPS),
                  .decay = pl_attr_f(a, PLK_ADAM_DECAY),
                  .decoupled = (flags & PLK_ADAM_DECOUPLED) != 0,
                  .maximize = (flags & PLK_ADAM_MAXIMIZE) != 0,
                  .amsgrad = k == 5}};
  r.a.step_size = r.a.lr / (1 - pow(r.a.beta1, t));
  r.a.root = sqrt(1 - pow(r.a.beta2, t));
  return run_step(call, k, &r);
}

PlStatus plk_cpu_rmsprop_step(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  int64_t flags = pl_attr_i(a, PLK_RMS_FLAGS);
  Rule r = {.kind = RULE_RMS,
            .step = pl_attr_i(a, PLK_RMS_STEP),
            .rms = {.lr = pl_attr_f(a, PLK_RMS_LR),
                    .alpha = pl_attr_f(a, PLK_RMS_ALPHA),
                    .eps = pl_attr_f(a, PLK_RMS_EPS),
                    .decay = pl_attr_f(a, PLK_RMS_DECAY),
                    .momentum = pl_attr_f(a, PLK_RMS_MOMENTUM),
                    .buffer = (flags & PLK_RMS_BUFFER) != 0,
                    .centered = (flags & PLK_RMS_CENTERED) != 0,
                    .maximize = (flags & PLK_RMS_MAXIMIZE) != 0}};
  return run_step(call, pl_attr_i(a, PLK_RMS_K), &r);
}

static void pick_rule(Rule *r, int64_t rule) {
  const PlkOptimRuleFacts facts = plk_optim_facts(rule);
  r->formula = (int)rule, r->reads = facts.reads, r->writes = facts.writes;
}

/* One pass of a rule with sums over the list, which adds up; sums[2 g], sums[2 g + 1]: those of group g. */
static PlStatus run_sums(List *l, double *sums) {
  const int64_t nblock = (l->total + BLOCK - 1) / BLOCK, slots = nblock + l->ngroup;
  void *room;
  PL_TRY(plk_scratch((size_t)slots * 2 * sizeof(double), &room));
  l->partial = memset(room, 0, (size_t)slots * 2 * sizeof(double));
  const PlStatus s = list_write(l);
  for (int64_t g = 0; s == PL_OK && g < l->ngroup; g++) {
    const int64_t first = g ? l->ends[g - 1] : 0;
    sums[2 * g] = sums[2 * g + 1] = 0;
    for (int64_t b = first / BLOCK; b * BLOCK < l->ends[g]; b++)
      sums[2 * g] += l->partial[2 * (b + g)], sums[2 * g + 1] += l->partial[2 * (b + g) + 1];
  }
  l->partial = NULL;
  plk_scratch_free(room);
  return s;
}

/* A rule of two passes: the sums, then each parameter's step with its factor, which Ctrl-C does not part. */
static PlStatus run_twice(List *l, Rule *r, double *sums) {
  const int rule = r->formula;
  PL_TRY(plk_poll());
  plk_interrupt_hold(1);
  PlStatus s = run_sums(l, sums);
  for (int64_t g = 0; s == PL_OK && g < l->ngroup; g++)
    sums[g] = plk_optim_factor(rule, r->f.number, sums[2 * g], sums[2 * g + 1], column(l, g, 0)->numel);
  l->factor = sums;
  pick_rule(r, plk_optim_second(rule));
  if (s == PL_OK) s = list_write(l);
  plk_interrupt_hold(-1);
  return s;
}

PlStatus plk_cpu_optimizer_step(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  const int64_t flags = pl_attr_i(a, PLK_OPTIM_FLAGS);
  const int64_t rule = pl_attr_i(a, PLK_OPTIM_RULE), n = call->nin - plk_optim_sums_out(rule);
  const double lr = pl_attr_f(a, PLK_OPTIM_LR);
  const PlkOptimDecay decay = plk_optim_decay(lr, pl_attr_f(a, PLK_OPTIM_DECAY), flags);
  Rule r = {
      .kind = RULE_FORMULA,
      .step = pl_attr_i(a, PLK_OPTIM_STEP),
      .f = {.decay = decay.factor, .maximize = (flags & PLK_OPTIM_MAXIMIZE) != 0, .coupled = decay.coupled, .decoupled = decay.decoupled}};
  double given[PLK_OPTIM_MOST];
  memcpy(given, pl_attr_list(a, PLK_OPTIM_NUMBERS), (size_t)pl_attr_n(a, PLK_OPTIM_NUMBERS) * sizeof *given);
  plk_optim_numbers(rule, lr, pl_attr_f(a, PLK_OPTIM_DECAY), r.step, given, r.f.number);
  pick_rule(&r, rule);
  List l;
  PL_TRY(list_init(&l, call, n, pl_attr_i(a, PLK_OPTIM_K), step_stretch, &r));
  PlStatus s;
  if (!plk_optim_facts(rule).sums) {
    s = list_write(&l);
  } else {
    void *room = NULL;
    s = plk_scratch((size_t)(l.ngroup + 1) * 2 * sizeof(double), &room);
    double *sums = room;
    if (s == PL_OK && plk_optim_second(rule) >= 0) s = run_twice(&l, &r, sums);
    else if (s == PL_OK) s = run_sums(&l, sums);
    if (s == PL_OK && plk_optim_sums_out(rule)) {
      double *out = call->in[n]->data;
      for (int64_t g = 0; g < l.ngroup; g++) out[0] += sums[2 * g], out[1] += sums[2 * g + 1];
    }
    plk_scratch_free(room);
  }
  list_free(&l);
  return s;
}

/* ---- norm, scale, zero ------------------------------------------------------------------------------- */

/* The norm of order p of elements divided by `by`. */
typedef struct NormOf {
  double p, by;
} NormOf;

/* p = 2 in double for both dtypes: the square of any float is in range there. Other p: |x|^p one by one. */
static double stretch_power(const PlArray *x, int64_t at, int64_t n, const NormOf *o, double start) {
  const double p = o->p;
  Walk w;
  walk_start(&w, x, at);
  double s = start;
  for (int64_t i = 0; i < n; i++, walk_next(&w, x)) {
    double v = fabs(get_one(x, w.off)) / o->by;
    if (isinf(p)) s = isnan(v) || isnan(s) ? (double)NAN : p > 0 ? fmax(s, v) : fmin(s, v);
    else if (p == 0) s += v != 0;
    else s += p == 1 ? v : p == 2 ? v * v : pow(v, p);
  }
  return s;
}

static void norm_stretch(const List *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  const PlArray *x = column(l, g, 0);
  const NormOf *o = l->opt;
  const bool square = o->p == 2 && o->by == 1 && x->contiguous;
  if (square && x->dtype == PL_F32) l->partial[part] += l->loops->sumsq_f32((const float *)x->data + at, n);
  else if (square && x->dtype == PL_F64) l->partial[part] += l->loops->sumsq_f64((const double *)x->data + at, n);
  else l->partial[part] = stretch_power(x, at, n, o, l->partial[part]);
}

static PlStatus norm_run(List *l, const NormOf *o, int64_t nblock, double *norm) {
  const double p = o->p;
  double sum = isinf(p) && p < 0 ? (double)INFINITY : 0;
  for (int64_t b = 0; b < nblock; b++) l->partial[b] = sum;
  PL_TRY(list_run(l));
  for (int64_t b = 0; b < nblock; b++) {
    double v = l->partial[b];
    if (!isinf(p)) sum += v;
    else if (isnan(v) || isnan(sum)) sum = (double)NAN;
    else sum = p > 0 ? fmax(sum, v) : fmin(sum, v);
  }
  *norm = isinf(p) || p == 0 || p == 1 ? sum : p == 2 ? sqrt(sum) : pow(sum, 1 / p);
  return PL_OK;
}

/* Whether the sum of |x|^p left the range of doubles, or lost digits at its end, where elements can make it. */
static bool norm_left(const PlkCall *call, double p, double norm) {
  int bits = 149; /* 2^±bits is what an element may be */
  for (int i = 0; i < call->nin; i++)
    if (call->in[i]->dtype == PL_F64) bits = 1074;
  if (p == 0 || p == 1 || isinf(p) || fabs(p) * bits <= 960) return false;
  return norm == 0 || isinf(norm) || fabs(p * log2(norm)) > 960; /* false of NaN */
}

PlStatus plk_cpu_foreach_norm(const PlkCall *call) {
  const double p = pl_attr_f(call->attrs, 0);
  NormOf o = {p, 1};
  double norm = 0;
  List l;
  PL_TRY(list_init(&l, call, call->nin, 1, norm_stretch, &o));
  int64_t nblock = (l.total + BLOCK - 1) / BLOCK;
  void *room = NULL;
  PlStatus s = plk_scratch((size_t)(nblock + 1) * sizeof(double), &room);
  l.partial = room;
  if (s == PL_OK) s = norm_run(&l, &o, nblock, &norm);
  if (s == PL_OK && l.total > 0 && norm_left(call, p, norm)) { /* again, of quotients by the largest magnitude, or the smallest */
    double m = 0;
    o.p = p > 0 ? (double)INFINITY : -(double)INFINITY;
    s = norm_run(&l, &o, nblock, &m);
    o = (NormOf){p, m};
    if (s == PL_OK && m != 0 && isfinite(m)) s = norm_run(&l, &o, nblock, &norm), norm *= m;
  }
  if (s == PL_OK) put_one(call->out[0], 0, l.total == 0 ? 0 : norm);
  plk_scratch_free(room);
  list_free(&l);
  return s;
}

/* Whether the walk is at a repeated element of an expanded array: in-place work must touch each once. */
static bool repeats(const Walk *w, const PlArray *x) {
  for (int d = 0; d < x->ndim; d++)
    if (x->strides[d] == 0 && w->idx[d] > 0) return true;
  return false;
}

static void scale_stretch(const List *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  (void)part;
  const PlArray *x = column(l, g, 0);
  double f = *(const double *)l->opt;
  if (x->contiguous && x->dtype == PL_F32) l->loops->scale_f32((float *)x->data + at, n, f);
  else if (x->contiguous && x->dtype == PL_F64) l->loops->scale_f64((double *)x->data + at, n, f);
  else {
    Walk w;
    walk_start(&w, x, at);
    for (int64_t i = 0; i < n; i++, walk_next(&w, x))
      if (!repeats(&w, x)) put_one(x, w.off, get_one(x, w.off) * f);
  }
}

PlStatus plk_cpu_foreach_scale_(const PlkCall *call) {
  double f = get_one(call->in[call->nin - 1], 0);
  if (call->nin < 2) return PL_OK;
  List l;
  PL_TRY(list_init(&l, call, call->nin - 1, 1, scale_stretch, &f));
  PlStatus s = list_write(&l);
  list_free(&l);
  return s;
}

static void zero_stretch(const List *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  (void)part;
  const PlArray *x = column(l, g, 0);
  size_t size = pl_dtype_size((PlDtype)x->dtype);
  if (x->contiguous) {
    memset((char *)x->data + (size_t)at * size, 0, (size_t)n * size);
    return;
  }
  Walk w;
  walk_start(&w, x, at);
  for (int64_t i = 0; i < n; i++, walk_next(&w, x)) memset((char *)x->data + (size_t)w.off * size, 0, size);
}

PlStatus plk_cpu_foreach_zero_(const PlkCall *call) {
  List l;
  PL_TRY(list_init(&l, call, call->nin, 1, zero_stretch, NULL));
  PlStatus s = list_write(&l);
  list_free(&l);
  return s;
}
