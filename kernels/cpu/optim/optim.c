/* SPDX-License-Identifier: MIT
 * Optimizer steps over a list of tensors (see kernels/optim.h and list.h).
 *
 * Where a group is plain f32 or f64 the inner loop works in place; every other mix of dtypes and strides goes through f32 (f64 if the
 * parameter is f64) in stretches of CHUNK elements. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/optim/list.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/sizes.h"

enum { CHUNK = 512, PIECE = 128, MAX_COLS = PLK_OPTIM_COLUMNS };
_Static_assert(CHUNK % PLK_CODED_BLOCK == 0, "stretches end where rows of codes do");

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
static bool plain(const PlkList *l, int64_t g) {
  uint8_t d = plk_list_column(l, g, 0)->dtype;
  if (d != PL_F32 && d != PL_F64) return false;
  for (int64_t j = 0; j < l->k; j++)
    if (touches(l->opt, j) && (!plk_list_column(l, g, j)->contiguous || plk_list_column(l, g, j)->dtype != d)) return false;
  return true;
}

static void step_f32(const PlkList *l, float *const *col, int64_t n, const PlkFormula *f, double *sums) {
  const Rule *r = l->opt;
  if (r->kind == RULE_ADAM) l->loops->adam_f32(col, n, &r->a);
  else if (r->kind == RULE_RMS) l->loops->rms_f32(col, n, &r->rms);
  else if (r->kind == RULE_FORMULA) l->loops->formula_f32[r->formula](col, n, f, sums);
  else l->loops->sgd_f32(col, n, &r->sgd);
}

static void step_f64(const PlkList *l, double *const *col, int64_t n, const PlkFormula *f, double *sums) {
  const Rule *r = l->opt;
  if (r->kind == RULE_ADAM) l->loops->adam_f64(col, n, &r->a);
  else if (r->kind == RULE_RMS) l->loops->rms_f64(col, n, &r->rms);
  else if (r->kind == RULE_FORMULA) l->loops->formula_f64[r->formula](col, n, f, sums);
  else l->loops->sgd_f64(col, n, &r->sgd);
}

static void step_plain(const PlkList *l, int64_t g, int64_t at, int64_t n, const PlkFormula *f, double *sums) {
  if (plk_list_column(l, g, 0)->dtype == PL_F32) {
    float *col[MAX_COLS] = {0};
    for (int64_t j = 0; j < l->k; j++) col[j] = (float *)plk_list_column(l, g, j)->data + at;
    step_f32(l, col, n, f, sums);
  } else {
    double *col[MAX_COLS] = {0};
    for (int64_t j = 0; j < l->k; j++) col[j] = (double *)plk_list_column(l, g, j)->data + at;
    step_f64(l, col, n, f, sums);
  }
}

/* Columns in the dtype of the step, whatever they are stored as. */
static void load_state(const PlkList *l, const PlArray *a, int64_t at, int64_t n, bool wide, void *out) {
  if (!plk_coded(a)) {
    plk_list_load(a, at, n, wide, out);
    return;
  }
  float narrow[CHUNK], *to = wide ? narrow : out;
  l->loops->load_coded(a->data, at, a->dtype == PL_I8, to, n);
  for (int64_t i = 0; wide && i < n; i++) ((double *)out)[i] = (double)narrow[i];
}

static void store_state(const PlkList *l, const PlArray *a, int64_t j, int64_t at, int64_t n, bool wide, const void *from) {
  const bool coded = plk_coded(a), by_chance = a->dtype == PL_BF16 && j >= 2;
  if (!coded && !by_chance) {
    plk_list_store(a, at, n, wide, from);
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
  PlkWalk w;
  plk_walk_start(&w, a, at);
  for (int64_t i = 0; i < n; i++, plk_walk_next(&w, a)) ((uint16_t *)a->data)[w.off] = bits[i];
}

static void step_any(const PlkList *l, int64_t g, int64_t at, int64_t n, const PlkFormula *f, double *sums) {
  const Rule *r = l->opt;
  const bool wide = plk_list_column(l, g, 0)->dtype == PL_F64;
  const int64_t size = wide ? 8 : 4;
  double room[MAX_COLS][CHUNK];
  PlkFilled filled[MAX_COLS] = {{0}};
  void *col[MAX_COLS] = {0};
  bool direct[MAX_COLS] = {0}, looks[MAX_COLS] = {0}, coded[MAX_COLS] = {0}, some = false;
  for (int64_t j = 0; j < l->k; j++) {
    const PlArray *a = plk_list_column(l, g, j);
    direct[j] = a->contiguous && a->dtype == (wide ? PL_F64 : PL_F32);
    col[j] = direct[j] ? (char *)a->data + at * size : (char *)room[j];
    coded[j] = plk_coded(a) && (r->reads >> j & 1);
    looks[j] = !direct[j] && !(r->writes >> j & 1) && !plk_coded(a);
    some = some || coded[j];
  }
  /* Codes are read between short steps, whose divisions go on in the meantime; the order of sums is that of whole stretches. */
  const int64_t piece = some && !sums ? PIECE : CHUNK;
  for (int64_t i = 0; i < n; i += CHUNK) {
    int64_t m = n - i < CHUNK ? n - i : CHUNK;
    for (int64_t j = 0; j < l->k; j++)
      if (looks[j] && r->reads >> j & 1)
        memcpy(&col[j], &(const void *){plk_list_look(plk_list_column(l, g, j), at + i, m, wide, room[j], &filled[j])}, sizeof col[j]);
      else if (!direct[j] && !coded[j] && r->reads >> j & 1) load_state(l, plk_list_column(l, g, j), at + i, m, wide, room[j]);
    for (int64_t s = 0; s < m; s += piece) {
      const int64_t c = m - s < piece ? m - s : piece;
      void *part[MAX_COLS] = {0};
      for (int64_t j = 0; j < l->k; j++) {
        part[j] = (char *)col[j] + s * size;
        if (coded[j]) load_state(l, plk_list_column(l, g, j), at + i + s, c, wide, part[j]);
      }
      if (wide) step_f64(l, (double *const *)(void *)part, c, f, sums);
      else step_f32(l, (float *const *)(void *)part, c, f, sums);
    }
    for (int64_t j = 0; j < l->k; j++) {
      if (direct[j]) col[j] = (char *)col[j] + m * size;
      else if (r->writes >> j & 1) store_state(l, plk_list_column(l, g, j), j, at + i, m, wide, room[j]);
    }
  }
}

/* Whether a step has a loop of its own for states in bf16, which all else of the group allows. */
static bool narrow(const PlkList *l, int64_t g) {
  const Rule *r = l->opt;
  const bool adam = r->kind == RULE_ADAM && !r->a.amsgrad, lion = r->kind == RULE_FORMULA && r->formula == PLK_OPTIM_LION;
  for (int64_t j = 0; j < l->k; j++)
    if (!plk_list_column(l, g, j)->contiguous || plk_list_column(l, g, j)->dtype != (j < 2 ? PL_F32 : PL_BF16)) return false;
  return adam || lion;
}

/* Its ends, which are no multiple of what such a loop does at once, go as any other does. */
static void step_narrow(const PlkList *l, int64_t g, int64_t at, int64_t n, const PlkFormula *f) {
  const Rule *r = l->opt;
  const int64_t head = plk_min64((PLK_OPTIM_WHOLE - at % PLK_OPTIM_WHOLE) % PLK_OPTIM_WHOLE, n);
  const int64_t middle = (n - head) / PLK_OPTIM_WHOLE * PLK_OPTIM_WHOLE, first = at + head, left = n - head - middle;
  float *const p = (float *)plk_list_column(l, g, 0)->data + first;
  const float *const grad = (const float *)plk_list_column(l, g, 1)->data + first;
  uint16_t *state[MAX_COLS];
  uint32_t seed[MAX_COLS];
  for (int64_t j = 2; j < l->k; j++) {
    state[j - 2] = (uint16_t *)plk_list_column(l, g, j)->data + first;
    seed[j - 2] = plk_rounding_seed(r->step, (int)j);
  }
  if (head) step_any(l, g, at, head, f, NULL);
  if (r->kind == RULE_ADAM) l->loops->adam_bf16(p, grad, state, middle, first, seed, &r->a);
  else l->loops->lion_bf16(p, grad, state, middle, first, seed, f);
  if (left) step_any(l, g, first + middle, left, f, NULL);
}

static void step_stretch(const PlkList *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  const Rule *r = l->opt;
  double *sums = l->partial ? l->partial + 2 * (part + g) : NULL;
  PlkFormula f = r->f;
  f.factor = l->factor ? l->factor[g] : 1;
  if (plain(l, g)) step_plain(l, g, at, n, &f, sums);
  else if (narrow(l, g)) step_narrow(l, g, at, n, &f);
  else step_any(l, g, at, n, &f, sums);
}

static PlStatus run_step(const PlkCall *call, int64_t k, Rule *rule) {
  PlkList l;
  rule->writes = ~2u; /* plk_list_column 1 is the gradient */
  rule->reads = ~0u;
  PL_TRY(plk_list_init(&l, call, call->nin, k, step_stretch, rule));
  PlStatus s = plk_list_write(&l);
  plk_list_free(&l);
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
static PlStatus run_sums(PlkList *l, double *sums) {
  const int64_t nblock = (l->total + PLK_LIST_BLOCK - 1) / PLK_LIST_BLOCK, slots = nblock + l->ngroup;
  void *room;
  PL_TRY(plk_scratch((size_t)slots * 2 * sizeof(double), &room));
  l->partial = memset(room, 0, (size_t)slots * 2 * sizeof(double));
  const PlStatus s = plk_list_write(l);
  for (int64_t g = 0; s == PL_OK && g < l->ngroup; g++) {
    const int64_t first = g ? l->ends[g - 1] : 0;
    sums[2 * g] = sums[2 * g + 1] = 0;
    for (int64_t b = first / PLK_LIST_BLOCK; b * PLK_LIST_BLOCK < l->ends[g]; b++)
      sums[2 * g] += l->partial[2 * (b + g)], sums[2 * g + 1] += l->partial[2 * (b + g) + 1];
  }
  l->partial = NULL;
  plk_scratch_free(room);
  return s;
}

/* A rule of two passes: the sums, then each parameter's step with its factor, which Ctrl-C does not part. */
static PlStatus run_twice(PlkList *l, Rule *r, double *sums) {
  const int rule = r->formula;
  PL_TRY(plk_poll());
  plk_interrupt_hold(1);
  PlStatus s = run_sums(l, sums);
  for (int64_t g = 0; s == PL_OK && g < l->ngroup; g++)
    sums[g] = plk_optim_factor(rule, r->f.number, sums[2 * g], sums[2 * g + 1], plk_list_column(l, g, 0)->numel);
  l->factor = sums;
  pick_rule(r, plk_optim_second(rule));
  if (s == PL_OK) s = plk_list_write(l);
  plk_interrupt_hold(-1);
  return s;
}

/* The numbers of a rule with an estimate; false: there is nothing to do. */
static bool by_estimate(Rule *r, const double *given, double *estimate, double lr, double decay) {
  if (r->formula == PLK_OPTIM_PRODIGY) plk_prodigy_moments(given, estimate, lr, r->f.number);
  else return plk_prodigy_apply(given, estimate, lr, decay, r->f.number, &r->f.decay);
  return true;
}

PlStatus plk_cpu_optimizer_step(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  const int64_t flags = pl_attr_i(a, PLK_OPTIM_FLAGS);
  const int64_t rule = pl_attr_i(a, PLK_OPTIM_RULE), n = call->nin - plk_optim_estimates(rule);
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
  double *estimate = plk_optim_estimates(rule) ? call->in[n]->data : NULL;
  if (estimate && !by_estimate(&r, given, estimate, lr, pl_attr_f(a, PLK_OPTIM_DECAY))) return PL_OK;
  PlkList l;
  PL_TRY(plk_list_init(&l, call, n, pl_attr_i(a, PLK_OPTIM_K), step_stretch, &r));
  PlStatus s;
  if (!plk_optim_facts(rule).sums) {
    s = plk_list_write(&l);
  } else {
    void *room = NULL;
    s = plk_scratch((size_t)(l.ngroup + 1) * 2 * sizeof(double), &room);
    double *sums = room;
    if (s == PL_OK && plk_optim_second(rule) >= 0) s = run_twice(&l, &r, sums);
    else if (s == PL_OK) s = run_sums(&l, sums);
    if (s == PL_OK && estimate) {
      const double gain = plk_prodigy_gain(given, estimate, lr);
      for (int64_t g = 0; g < l.ngroup; g++) estimate[PLK_EST_WAY] += gain * sums[2 * g], estimate[PLK_EST_LENGTH] += sums[2 * g + 1];
    }
    plk_scratch_free(room);
  }
  if (s == PL_OK && rule == PLK_OPTIM_PRODIGY_APPLY && given[PLK_EST_LAST] != 0) plk_prodigy_keep(given, estimate, lr);
  plk_list_free(&l);
  return s;
}
