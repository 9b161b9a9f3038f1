/* SPDX-License-Identifier: MIT
 * Optimizer steps over a list of tensors (kernels/optim.h), many tensors a launch: their addresses travel as the kernel's
 * argument, a block takes CHUNK elements of one of them. What a step does: step.h. */
#include "kernels/cuda/optim/step.h"

/* live: the rule of the moment in captured work, else NULL. factor: of each parameter, or NULL. part: two sums for each chunk, or
 * NULL. est: the rule's estimate, or NULL. */
__global__ void step_groups(const __grid_constant__ Rule given, const Rule *live, const __grid_constant__ Groups gs, const double *factor,
                            double *part, const double *est) {
  __shared__ uint32_t room[32];
  __shared__ double wide_room[32];
  Rule rule = live ? *live : given;
  rule.formula = given.formula, rule.reads = given.reads, rule.writes = given.writes; /* of two passes, this one */
  if (est && !by_estimate(&rule, est)) return;
  Now<float> r(rule);
  for (int64_t b = blockIdx.x; b < gs.first[gs.n]; b += gridDim.x) {
    const int lo = plc_list_of(gs.first, gs.n, b);
    double sum1 = 0, sum2 = 0;
    const Group &g = gs.g[lo];
    int64_t begin = (b - gs.first[lo]) * CHUNK, end = begin + CHUNK < g.numel ? begin + CHUNK : g.numel;
    const double f = factor ? factor[2 * (gs.before + lo)] : 1;
    r.factor = (float)f;
    if (plain(g, gs.k) && end - begin == CHUNK) step_packs(r, gs.k, g, begin, end, sum1, sum2);
    else if (g.dtype[0] == PL_F64) {
      Now<double> wide(rule);
      wide.factor = f;
      step_chunk<double>(wide, gs.k, g, begin, end, room, sum1, sum2);
    } else step_chunk<float>(r, gs.k, g, begin, end, room, sum1, sum2);
    if (part) put_sums(sum1, sum2, part + 2 * b, wide_room);
  }
}

/* One group with strides of its own. A thread block works on rows of CHUNK elements, so that there are as many parts. */
__global__ void step_strided(const __grid_constant__ Rule given, const Rule *live, int k, const __grid_constant__ Group g,
                             const __grid_constant__ plc_layout<COLUMNS> l, const double *factor, double *part, const double *est) {
  __shared__ uint32_t room[32];
  __shared__ double wide_room[32];
  Rule rule = live ? *live : given;
  rule.formula = given.formula, rule.reads = given.reads, rule.writes = given.writes;
  if (est && !by_estimate(&rule, est)) return;
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
        if (g.dtype[0] == PL_F64) element<double>(wide, k, g, at, i, sum1, sum2);
        else element<float>(r, k, g, at, i, sum1, sum2);
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
/* Adds those of all groups to the estimate's. */
__global__ void join_sums(const __grid_constant__ Rule given, const Rule *live, int64_t groups, const double *sums, double *est) {
  __shared__ double room[32];
  double sum1 = 0, sum2 = 0, both[2] = {0, 0};
  for (int64_t g = threadIdx.x; g < groups; g += blockDim.x) sum1 += sums[2 * g], sum2 += sums[2 * g + 1];
  put_sums(sum1, sum2, both, room);
  const Rule &rule = live ? *live : given;
  if (threadIdx.x == 0) {
    est[PLK_EST_WAY] += plk_prodigy_gain(rule.number, est, rule.lr) * both[0];
    est[PLK_EST_LENGTH] += both[1];
  }
}
/* Behind a call of prodigy_apply: the last one keeps the estimate. */
__global__ void keep_estimate(const __grid_constant__ Rule given, const Rule *live, double *est) {
  const Rule &rule = live ? *live : given;
  if (threadIdx.x == 0 && rule.number[PLK_EST_LAST] != 0) plk_prodigy_keep(rule.number, est, rule.lr);
}

/* What a list's launches share. */
struct Run {
  const Rule *r, *live;
  const double *factor; /* two numbers a group, the first counts, or NULL */
  double *part;         /* the next chunk's two sums, or NULL; then */
  double *sums;         /* those of groups */
  double *est;          /* the rule's estimate, or NULL */
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
    int64_t blocks = gs->first[gs->n], most = plc_most_blocks();
    PLC_LAUNCH(step_groups, (unsigned)(blocks < most ? blocks : most), PLC_BLOCK, 0, *run->r, run->live, *gs, run->factor, run->part,
               (const double *)run->est);
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
      dense = dense && (has_codes || (col[j]->numel == g.numel && plc_in_one_order(col[0], col[j])));
      arr[j] = has_codes ? NULL : col[j]; /* they find their own places */
    }
    dense = dense && (!codes || col[0]->contiguous); /* codes are in row-major order */
    const PlkExtent e = plk_extent(col[0]);
    if (g.numel && meets(&gs, waiting, e)) PL_TRY(flush(&now, &gs));
    if (g.numel && !dense) {
      PL_TRY(flush(&now, &gs)); /* groups are counted in their order */
      plc_layout<COLUMNS> l;
      plc_layout_of<COLUMNS>(&l, arr);
      const int64_t chunks = (l.numel + CHUNK - 1) / CHUNK, most = plc_most_blocks();
      PLC_LAUNCH(step_strided, (unsigned)(chunks < most ? chunks : most), PLC_BLOCK, 0, *r, now.live, k, g, l,
                 now.factor ? now.factor + 2 * gs.before : NULL, now.part, (const double *)now.est);
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
  r.lr = pl_attr_f(a, PLK_OPTIM_LR), r.weight_decay = pl_attr_f(a, PLK_OPTIM_DECAY);
  r.formula = (int)pl_attr_i(a, PLK_OPTIM_RULE), r.count = pl_attr_i(a, PLK_OPTIM_STEP);
  r.maximize = (flags & PLK_OPTIM_MAXIMIZE) != 0;
  const PlkOptimDecay decay = plk_optim_decay(r.lr, r.weight_decay, flags);
  r.decay = decay.factor, r.coupled = decay.coupled, r.decoupled = decay.decoupled;
  of_pass(&r, r.formula);
  double given[PLK_OPTIM_MOST];
  memcpy(given, pl_attr_list(a, PLK_OPTIM_NUMBERS), (size_t)pl_attr_n(a, PLK_OPTIM_NUMBERS) * sizeof given[0]);
  plk_optim_numbers(r.formula, r.lr, r.weight_decay, r.count, given, r.number);
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
  return run(c, c->nin, (int)tensors_each(c->attrs), Run{&r, (const Rule *)live, NULL, NULL, NULL, NULL});
}
static PlStatus sgd_step(const PlkCall *c) { return update(c, &sgd_settings); }
static PlStatus adam_step(const PlkCall *c) { return update(c, &adam_settings); }
static PlStatus rmsprop_step(const PlkCall *c) { return update(c, &rms_settings); }

static PlStatus join(const Rule *r, const Rule *live, int64_t groups, const double *sums, double *est) {
  PLC_LAUNCH(join_sums, 1, PLC_BLOCK, 0, *r, live, groups, sums, est);
  return PL_OK;
}
static PlStatus keep(const Rule *r, const Rule *live, double *est) {
  PLC_LAUNCH(keep_estimate, 1, 32, 0, *r, live, est);
  return PL_OK;
}

/* A rule with sums: its pass; for one of two passes another with what they say of each parameter, else the sums go to the estimate. */
static PlStatus with_sums(const PlkCall *c, int rule, Rule *r, const Rule *live) {
  const int k = (int)tensors_each(c->attrs), ntensor = c->nin - plk_optim_estimates(rule), groups = ntensor / k;
  double *est = ntensor < c->nin ? (double *)c->in[ntensor]->data : NULL;
  int64_t chunks = 0;
  for (int g = 0; g < groups; g++) chunks += (c->in[g * k]->numel + CHUNK - 1) / CHUNK;
  void *room;
  PL_TRY(plc_scratch((size_t)(2 * chunks + 2 * groups + 1) * sizeof(double), &room));
  double *part = (double *)room, *sums = part + 2 * chunks;
  PlStatus s = run(c, ntensor, k, Run{r, live, NULL, part, sums, est});
  if (s == PL_OK && plk_optim_second(rule) >= 0) {
    of_pass(r, plk_optim_second(rule));
    s = run(c, ntensor, k, Run{r, live, sums, NULL, NULL, NULL});
  } else if (s == PL_OK) {
    s = join(r, live, groups, sums, est);
  }
  plc_scratch_free(room);
  return s;
}

static PlStatus optimizer_step(const PlkCall *c) {
  const int rule = (int)pl_attr_i(c->attrs, PLK_OPTIM_RULE);
  if (!plk_optim_facts(rule).sums && !plk_optim_estimates(rule)) return update(c, &formula_settings);
  Rule r;
  const void *live;
  PL_TRY(plc_settings(&formula_settings, c, &r, &live));
  of_pass(&r, rule); /* also while captured, where the rule's numbers come later */
  if (!plk_optim_facts(rule).sums) {
    double *est = (double *)c->in[c->nin - 1]->data;
    PL_TRY(run(c, c->nin - 1, (int)tensors_each(c->attrs), Run{&r, (const Rule *)live, NULL, NULL, NULL, est}));
    return keep(&r, (const Rule *)live, est);
  }
  return with_sums(c, rule, &r, (const Rule *)live);
}
PLC_KERNEL_SET(sgd_step, sgd_step, &sgd_settings)
PLC_KERNEL_SET(adam_step, adam_step, &adam_settings)
PLC_KERNEL_SET(rmsprop_step, rmsprop_step, &rms_settings)
PLC_KERNEL_SET(optimizer_step, optimizer_step, &formula_settings)
