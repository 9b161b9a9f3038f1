/* SPDX-License-Identifier: MIT
 * The source text of a group of rows: a block (or a warp) takes a row and walks it once for every sum that later members
 * wait for. What a walk needs is computed again from what is in memory, which the caches hold by then; so rows may be of
 * any length and nothing between members is written down. Each operation along rows is what its own kernel computes
 * (reduce.cu, softmax.cu, layer_norm.cu), in the same order. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/libs/fused_source.h"

/* first: the walk in which a member along rows begins to add up. ready: the first walk that can use a whole result; of one
 * value a row: the walk behind which it is known, -1: before all. */
typedef struct Plan {
  const PlkFused *g;
  PlcText *t;
  bool kept;
  int first[PLK_FUSED_MEMBERS], ready[PLK_FUSED_MEMBERS], params[PLK_FUSED_MEMBERS], walks;
} Plan;

static bool along(const PlkFusedMember *m) { return m->code >= PLK_FUSED_SUM; }

static bool norm_bwd(int code) { return code == PLK_FUSED_LAYER_NORM_BWD || code == PLK_FUSED_RMS_NORM_BWD; }

static bool soft_bwd(int code) { return code == PLK_FUSED_SOFTMAX_BWD || code == PLK_FUSED_LOG_SOFTMAX_BWD; }

static bool moments(int code) { return code == PLK_FUSED_VAR || code == PLK_FUSED_STD; }

/* Walks that a member along rows adds up in. */
static int sums_of(const PlkFusedMember *m) {
  switch (m->code) {
  case PLK_FUSED_VAR:
  case PLK_FUSED_STD: return m->dtype == PL_F64 ? 3 : 2; /* the mean of what the mean, as it comes, leaves */
  case PLK_FUSED_LOGSUMEXP:
  case PLK_FUSED_SOFTMAX:
  case PLK_FUSED_SOFTMAX_BWD: /* dy of an element that is more than half */
  case PLK_FUSED_LOG_SOFTMAX:
  case PLK_FUSED_LAYER_NORM: return 2;
  default: return 1;
  }
}

static int later(int a, int b) { return a > b ? a : b; }

static void make_plan(Plan *p) {
  int params = 0;
  for (int i = 0; i < p->g->nmember; i++) {
    const PlkFusedMember *m = &p->g->member[i];
    int walk = 0, known = -1;
    for (int k = 0; k < m->nin; k++) {
      if (m->in[k] < 0) continue;
      const bool col = p->g->member[m->in[k]].col;
      walk = later(walk, p->ready[m->in[k]] + col);
      if (col) known = later(known, p->ready[m->in[k]]);
    }
    p->first[i] = walk;
    const int end = along(m) ? walk + sums_of(m) : 0;
    p->ready[i] = !along(m) ? (m->col ? known : walk) : m->col ? end - 1 : end;
    p->walks = later(p->walks, along(m) ? end : 0);
    if (!m->col && m->out >= 0) p->walks = later(p->walks, p->ready[i] + 1);
    p->params[i] = params;
    params += m->set != 0;
  }
}

static const char *named(char *name, int in) {
  snprintf(name, 16, in < 0 ? "x%d" : "v%d", in < 0 ? -1 - in : in);
  return name;
}

/* ---- what a walk needs ------------------------------------------------------------------------------------------ */

typedef struct Needs {
  bool member[PLK_FUSED_MEMBERS], arg[PLK_FUSED_ARGS];
} Needs;

static void need(const Plan *p, Needs *n, int in) {
  if (in == PLK_FUSED_NONE) return;
  if (in < 0) n->arg[-1 - in] = true;
  else if (!p->g->member[in].col) n->member[in] = true;
}

static bool adds_in(const Plan *p, int i, int walk) {
  const PlkFusedMember *m = &p->g->member[i];
  return along(m) && walk >= p->first[i] && walk < p->first[i] + sums_of(m);
}

/* Members read earlier ones only, so one pass from the last to the first finds all. */
static void needs_of_input(const Plan *p, int in, Needs *n) {
  memset(n, 0, sizeof *n);
  need(p, n, in);
  for (int i = p->g->nmember - 1; i >= 0; i--)
    for (int k = 0; n->member[i] && k < p->g->member[i].nin; k++) need(p, n, p->g->member[i].in[k]);
}
static bool needs_of(const Plan *p, int walk, Needs *n) {
  bool any = false;
  memset(n, 0, sizeof *n);
  for (int i = p->g->nmember - 1; i >= 0; i--) {
    const PlkFusedMember *m = &p->g->member[i];
    if (adds_in(p, i, walk)) {
      need(p, n, m->in[0]);
      if (soft_bwd(m->code) || norm_bwd(m->code)) need(p, n, m->in[1]);
      if (norm_bwd(m->code)) need(p, n, m->in[m->nin - 1]);
      any = true;
    }
    if (!m->col && m->out >= 0 && p->ready[i] == walk) n->member[i] = any = true;
    for (int k = 0; n->member[i] && k < m->nin; k++) need(p, n, m->in[k]);
  }
  return any;
}

/* ---- sums --------------------------------------------------------------------------------------------------------- */

static bool largest(int code, int at) {
  return at == 0 && (code == PLK_FUSED_AMAX || code == PLK_FUSED_LOGSUMEXP || code == PLK_FUSED_SOFTMAX || code == PLK_FUSED_LOG_SOFTMAX);
}
/* The type that sum `at` of a member runs in. */
static const char *sum_type(const PlkFusedMember *m, int at) {
  const bool wide = moments(m->code) || (m->code == PLK_FUSED_LOGSUMEXP && at == 0);
  return wide ? "double" : plc_fused_math(m->dtype);
}
static const char *join_of(int code, int at) { return largest(code, at) ? "plc_max" : code == PLK_FUSED_AMIN ? "plc_min" : "plc_sum"; }

static void zero_of(char *text, size_t size, const PlkFusedMember *m, int at) {
  const char *type = sum_type(m, at);
  if (largest(m->code, at)) snprintf(text, size, "-(%s)INFINITY", type);
  else snprintf(text, size, "(%s)%s", type, m->code == PLK_FUSED_AMIN ? "INFINITY" : "0");
}

static void begin_sum(const Plan *p, int i, int at) {
  char zero[32];
  const int code = p->g->member[i].code;
  if (norm_bwd(code) || code == PLK_FUSED_LOG_SOFTMAX_BWD) plc_say(p->t, "    %s s%d_1 = 0;\n", sum_type(&p->g->member[i], 0), i);
  zero_of(zero, sizeof zero, &p->g->member[i], at);
  plc_say(p->t, "    %s s%d_%d = %s;\n", sum_type(&p->g->member[i], at), i, at, zero);
}

/* g<i> = w dy, d<i> = x - mean, in a walk; *rstd: what 1/deviation is called. As backward_rows in layer_norm.cu. */
static void norm_bwd_terms(const Plan *p, int i, char *rstd) {
  const PlkFusedMember *m = &p->g->member[i];
  const bool layer = m->code == PLK_FUSED_LAYER_NORM_BWD;
  const char *math = plc_fused_math(m->dtype);
  const int16_t w = m->nin > (layer ? 4 : 3) ? m->in[layer ? 4 : 3] : PLK_FUSED_NONE;
  char dy[16], x[16], t[16];
  named(rstd, m->in[layer ? 3 : 2]);
  plc_say(p->t, "      const %s g%d = %s[0]", math, i, named(dy, m->in[0]));
  if (w != PLK_FUSED_NONE) plc_say(p->t, " * %s[0]", named(t, w));
  plc_say(p->t, ", d%d = %s[0]", i, named(x, m->in[1]));
  if (layer) plc_say(p->t, " - %s[0]", named(t, m->in[2]));
  plc_say(p->t, ";\n");
}

static void add_element(const Plan *p, int i, int at) {
  const PlkFusedMember *m = &p->g->member[i];
  char x[16], y[16];
  if (norm_bwd(m->code)) {
    norm_bwd_terms(p, i, y);
    plc_say(p->t, "      s%d_0 += g%d, s%d_1 += g%d * d%d * %s[0];\n", i, i, i, i, i, y);
    return;
  }
  named(x, m->in[0]);
  plc_say(p->t, "      ");
  switch (m->code) {
  case PLK_FUSED_AMAX: plc_say(p->t, "s%d_0 = plc_max()(s%d_0, %s[0]);\n", i, i, x); return;
  case PLK_FUSED_AMIN: plc_say(p->t, "s%d_0 = plc_min()(s%d_0, %s[0]);\n", i, i, x); return;
  case PLK_FUSED_SOFTMAX:
  case PLK_FUSED_LOG_SOFTMAX:
    if (at == 0) plc_say(p->t, "s%d_0 = plc_max()(%s[0], s%d_0);\n", i, x, i);
    else plc_say(p->t, "s%d_1 += exp(%s[0] - s%d_0);\n", i, x, i);
    return;
  case PLK_FUSED_LOGSUMEXP:
    if (at == 0) plc_say(p->t, "s%d_0 = plc_max()(s%d_0, (double)%s[0]);\n", i, i, x);
    else plc_say(p->t, "s%d_1 += exp(%s[0] - (%s)k%d);\n", i, x, plc_fused_math(m->dtype), i);
    return;
  case PLK_FUSED_VAR:
  case PLK_FUSED_STD:
    if (at == 0) plc_say(p->t, "s%d_0 += (double)%s[0];\n", i, x);
    else if (at + 1 < sums_of(m)) plc_say(p->t, "s%d_%d += (double)%s[0] - k%d;\n", i, at, x, i);
    else plc_say(p->t, "s%d_%d += ((double)%s[0] - k%d) * ((double)%s[0] - k%d);\n", i, at, x, i, x, i);
    return;
  case PLK_FUSED_SOFTMAX_BWD: /* as SoftBack in softmax.cu, and so on */
    named(y, m->in[1]);
    if (at == 0) plc_say(p->t, "if (%s[0] > (%s)0.5) s%d_0 += %s[0];\n", y, plc_fused_math(m->dtype), i, x);
    else plc_say(p->t, "s%d_1 += (%s[0] - s%d_0) * %s[0];\n", i, x, i, y);
    return;
  case PLK_FUSED_LOG_SOFTMAX_BWD:
    named(y, m->in[1]);
    plc_say(p->t, "s%d_0 += %s[0]; if (!(%s[0] > (%s)-0.6875)) s%d_1 += exp(%s[0]);\n", i, x, y, plc_fused_math(m->dtype), i, y);
    return;
  case PLK_FUSED_LAYER_NORM:
    if (at == 0) plc_say(p->t, "s%d_0 += %s[0];\n", i, x);
    else plc_say(p->t, "s%d_1 += (%s[0] - k%d) * (%s[0] - k%d);\n", i, x, i, x, i);
    return;
  case PLK_FUSED_RMS_NORM: plc_say(p->t, "s%d_0 += %s[0] * %s[0];\n", i, x, x); return;
  default: plc_say(p->t, "s%d_0 += %s[0];\n", i, x); return;
  }
}

static void whole(const Plan *p, int i) {
  const PlkFusedMember *m = &p->g->member[i];
  char x[16], y[16];
  named(x, m->in[0]);
  if (norm_bwd(m->code)) norm_bwd_terms(p, i, y);
  plc_say(p->t, "      %s v%d[1]; v%d[0] = ", plc_fused_math(m->result), i, i);
  switch (m->code) {
  case PLK_FUSED_LAYER_NORM_BWD:
  case PLK_FUSED_RMS_NORM_BWD: plc_say(p->t, "%s[0] * (g%d - s%d_0 - d%d * %s[0] * s%d_1);\n", y, i, i, i, y, i); break;
  case PLK_FUSED_SOFTMAX: plc_say(p->t, "exp(%s[0] - s%d_0) * q%d;\n", x, i, i); break;
  case PLK_FUSED_LOG_SOFTMAX: plc_say(p->t, "%s[0] - s%d_0 - q%d;\n", x, i, i); break;
  case PLK_FUSED_SOFTMAX_BWD: named(y, m->in[1]), plc_say(p->t, "%s[0] * (%s[0] - s%d_0 - s%d_1);\n", y, x, i, i); break;
  case PLK_FUSED_LOG_SOFTMAX_BWD:
    named(y, m->in[1]);
    plc_say(p->t, "%s[0] > (%s)-0.6875 ? (%s[0] - s%d_0) + s%d_1 * s%d_0 : %s[0] - exp(%s[0]) * s%d_0;\n", y, plc_fused_math(m->dtype), x,
            i, i, i, x, y, i);
    break;
  case PLK_FUSED_LAYER_NORM: plc_say(p->t, "(%s[0] - k%d) * q%d;\n", x, i, i); break;
  default: plc_say(p->t, "%s[0] * q%d;\n", x, i); break;
  }
  if (m->code >= PLK_FUSED_LAYER_NORM && m->nin > 1 && m->in[1] != PLK_FUSED_NONE)
    plc_say(p->t, "      v%d[0] *= %s[0];\n", i, named(y, m->in[1]));
  if (m->code >= PLK_FUSED_LAYER_NORM && m->nin > 2 && m->in[2] != PLK_FUSED_NONE)
    plc_say(p->t, "      v%d[0] += %s[0];\n", i, named(y, m->in[2]));
  if (m->result == PL_F16 || m->result == PL_BF16) plc_say(p->t, "      fused_round<%s, 1>(v%d);\n", plc_fused_element(m->result), i);
}

/* Loads and members that a walk needs. Those out of turn (walk -1) are rare: they read the row from memory. */
static void values(const Plan *p, const Needs *n, int walk) {
  const PlkFused *g = p->g;
  const bool kept = p->kept && walk >= 0;
  plc_say(p->t, "    %s {\n      const int64_t e = row * cols + i;\n      (void)e;\n", kept ? "FUSED_KEPT" : "FUSED_ROW");
  for (int k = 0; k < g->narg; k++) {
    const char *element = plc_fused_element(g->arg[k].dtype);
    if (!n->arg[k] || g->arg[k].kind > PLK_FUSED_ROW) continue;
    plc_say(p->t, "      %s x%d[1]; ", plc_fused_math(g->arg[k].dtype), k);
    if (kept) plc_say(p->t, "x%d[0] = plc_type<%s>::load(w%d[k]);\n", k, element, k);
    else plc_say(p->t, "fused_at<%s>(a, %d, %s, x%d);\n", element, k, g->arg[k].kind == PLK_FUSED_FULL ? "e" : "i", k);
  }
  for (int i = 0; i < g->nmember; i++) {
    const PlkFusedMember *m = &g->member[i];
    if (!n->member[i]) continue;
    if (along(m)) whole(p, i);
    else plc_fused_compute(p->t, m, i, p->params[i]);
    if (m->out >= 0 && p->ready[i] == walk) plc_say(p->t, "      fused_put<%s>(a, %d, e, v%d);\n", plc_fused_element(m->result), m->out, i);
  }
}

/* d<i>: the sum of squares of a norm; where it, or the mean, is beyond floats, the row is walked again in double, as far_moments in
 * layer_norm.cu does. */
static void far_moments(const Plan *p, int i, int at) {
  const PlkFusedMember *m = &p->g->member[i];
  const bool center = m->code == PLK_FUSED_LAYER_NORM;
  Needs n;
  char x[16];
  named(x, m->in[0]);
  needs_of_input(p, m->in[0], &n);
  plc_say(p->t, "    double d%d = (double)s%d_%d;\n    if (isinf(d%d)) {\n    double mu = 0, s = 0;\n", i, i, at, i);
  if (center) {
    values(p, &n, -1);
    plc_say(p->t, "      mu += (double)%s[0];\n    }\n    mu = fused_all<WIDTH>(a, mu, plc_sum(), 0.0, room_d) / (double)a.cols;\n", x);
    plc_say(p->t, "    k%d = (%s)mu;\n", i, plc_fused_math(m->dtype));
  }
  values(p, &n, -1);
  plc_say(p->t,
          "      s += ((double)%s[0] - mu) * ((double)%s[0] - mu);\n    }\n    d%d = fused_all<WIDTH>(a, s, plc_sum(), 0.0, room_d);\n", x,
          x, i);
  if (center) plc_say(p->t, "    if (isinf(d%d)) d%d = (double)NAN;\n", i, i);
  plc_say(p->t, "    }\n");
}

/* k<i>: a mean, a largest value; q<i>: what whole results are made with. */
static void end_sum(const Plan *p, int i, int at) {
  const PlkFusedMember *m = &p->g->member[i];
  const char *type = sum_type(m, at), *math = plc_fused_math(m->dtype);
  char zero[32];
  zero_of(zero, sizeof zero, m, at);
  if (norm_bwd(m->code)) {
    if (m->code == PLK_FUSED_LAYER_NORM_BWD)
      plc_say(p->t, "    s%d_0 = fused_all<WIDTH>(a, s%d_0, plc_sum(), %s, room_%c) / (%s)a.cols;\n", i, i, zero, type[0], math);
    else plc_say(p->t, "    s%d_0 = 0;\n", i);
    plc_say(p->t, "    s%d_1 = fused_all<WIDTH>(a, s%d_1, plc_sum(), %s, room_%c) / (%s)a.cols;\n", i, i, zero, type[0], math);
    return;
  }
  plc_say(p->t, "    s%d_%d = fused_all<WIDTH>(a, s%d_%d, %s(), %s, room_%c);\n", i, at, i, at, join_of(m->code, at), zero, type[0]);
  if (m->code == PLK_FUSED_LOG_SOFTMAX_BWD)
    plc_say(p->t, "    s%d_1 = fused_all<WIDTH>(a, s%d_1, plc_sum(), %s, room_%c);\n", i, i, zero, type[0]);
  switch (m->code) {
  case PLK_FUSED_LOGSUMEXP:
    if (at == 0) plc_say(p->t, "    const double k%d = isinf(s%d_0) ? 0.0 : s%d_0;\n", i, i, i);
    break;
  case PLK_FUSED_VAR:
  case PLK_FUSED_STD:
    if (at == 0) plc_say(p->t, "    double k%d = s%d_0 / (double)a.cols;\n", i, i);
    else if (at + 1 < sums_of(m)) plc_say(p->t, "    if (isfinite(k%d)) k%d += s%d_%d / (double)a.cols;\n", i, i, i, at);
    break;
  case PLK_FUSED_SOFTMAX:
    if (at == 1) plc_say(p->t, "    const %s q%d = (%s)1 / s%d_1;\n", math, i, math, i);
    break;
  case PLK_FUSED_LOG_SOFTMAX:
    if (at == 1) plc_say(p->t, "    const %s q%d = log(s%d_1);\n", math, i, i);
    break;
  case PLK_FUSED_LAYER_NORM:
    if (at == 0) {
      plc_say(p->t, "    %s k%d = s%d_0 / (%s)a.cols;\n", math, i, i, math);
      break;
    } /* fall through */
  case PLK_FUSED_RMS_NORM:
    far_moments(p, i, at);
    plc_say(p->t, "    const %s q%d = (%s)(1.0 / sqrt(d%d / (double)a.cols + a.p[%d].f[0]));\n", math, i, math, i, p->params[i]);
    break;
  default: break;
  }
}

/* ---- results -------------------------------------------------------------------------------------------------------- */

/* One value a row of a member along rows, rounded once. */
static void one_a_row(const Plan *p, int i) {
  const PlkFusedMember *m = &p->g->member[i];
  plc_say(p->t, "    %s v%d[1]; v%d[0] = (%s)", plc_fused_math(m->result), i, i, plc_fused_math(m->result));
  switch (m->code) {
  case PLK_FUSED_MEAN: plc_say(p->t, "((double)s%d_0 / (double)a.cols);\n", i); break;
  case PLK_FUSED_LOGSUMEXP: plc_say(p->t, "(log((double)s%d_1) + k%d);\n", i, i); break;
  case PLK_FUSED_VAR:
  case PLK_FUSED_STD:
    plc_say(p->t, "%s(s%d_%d / ((double)a.cols - a.p[%d].f[0] > 0 ? (double)a.cols - a.p[%d].f[0] : 0));\n",
            m->code == PLK_FUSED_STD ? "sqrt" : "", i, sums_of(m) - 1, p->params[i], p->params[i]);
    break;
  default: plc_say(p->t, "s%d_0;\n", i); break;
  }
  if (m->result == PL_F16 || m->result == PL_BF16) plc_say(p->t, "    fused_round<%s, 1>(v%d);\n", plc_fused_element(m->result), i);
}

/* What is known behind a walk: values of one a row, and further results of norms. */
static void behind(const Plan *p, int walk) {
  const PlkFused *g = p->g;
  for (int i = 0; i < g->nmember; i++) {
    const PlkFusedMember *m = &g->member[i];
    if (m->col && p->ready[i] == walk) {
      if (along(m)) one_a_row(p, i);
      else plc_fused_compute(p->t, m, i, p->params[i]);
      if (m->out >= 0) plc_say(p->t, "    if (lane == 0) fused_put<%s>(a, %d, row, v%d);\n", plc_fused_element(m->result), m->out, i);
    }
    if (m->code < PLK_FUSED_LAYER_NORM || p->ready[i] - 1 != walk) continue;
    for (int k = 0; k < 2; k++)
      if (m->more[k] >= 0)
        plc_say(p->t, "    if (lane == 0) fused_put<%s>(a, %d, row, &%c%d);\n", plc_fused_element(g->arg[m->more[k]].dtype), m->more[k],
                k == 0 && m->code == PLK_FUSED_LAYER_NORM ? 'k' : 'q', i);
  }
}

static void walk_row(const Plan *p, int walk) {
  const PlkFused *g = p->g;
  Needs n;
  if (!needs_of(p, walk, &n)) return;
  for (int i = 0; i < g->nmember; i++)
    if (adds_in(p, i, walk)) begin_sum(p, i, walk - p->first[i]);
  values(p, &n, walk);
  for (int i = 0; i < g->nmember; i++)
    if (adds_in(p, i, walk)) add_element(p, i, walk - p->first[i]);
  plc_say(p->t, "    }\n");
  for (int i = 0; i < g->nmember; i++)
    if (adds_in(p, i, walk)) end_sum(p, i, walk - p->first[i]);
}

/* All that walks read of a row, at once. */
static void keep_row(const Plan *p) {
  const PlkFused *g = p->g;
  for (int k = 0; k < g->narg; k++)
    if (!g->arg[k].out && g->arg[k].kind <= PLK_FUSED_ROW) plc_say(p->t, "    %s w%d[KEEP];\n", plc_fused_element(g->arg[k].dtype), k);
  plc_say(p->t, "    FUSED_KEPT {\n");
  for (int k = 0; k < g->narg; k++)
    if (!g->arg[k].out && g->arg[k].kind <= PLK_FUSED_ROW)
      plc_say(p->t, "      w%d[k] = ((const %s *)a.at[%d])[%si];\n", k, plc_fused_element(g->arg[k].dtype), k,
              g->arg[k].kind == PLK_FUSED_FULL ? "row * cols + " : "");
  plc_say(p->t, "    }\n");
}

/* Registers that a thread may hold a row's elements in. */
enum { MOST_KEPT = 64 };
bool plc_fused_kept(const PlkFused *g) {
  int words = 0;
  if (!g->rows || g->cols < 1 || g->cols > 4096) return false;
  for (int k = 0; k < g->narg; k++)
    if (!g->arg[k].out && g->arg[k].kind <= PLK_FUSED_ROW) words += g->arg[k].dtype == PL_F64 ? 2 : 1;
  const int width = plc_fused_width(g->cols);
  return words * (((int)g->cols + width - 1) / width) <= MOST_KEPT;
}

void plc_fused_rows(PlcText *t, const PlkFused *g) {
  Plan p = {.g = g, .t = t, .kept = plc_fused_kept(g)};
  make_plan(&p);
  plc_say(t, "  __shared__ double room_d[32];\n  __shared__ float room_f[32];\n  (void)room_d, (void)room_f;\n  FUSED_ROWS {\n");
  for (int k = 0; k < g->narg; k++) {
    const PlkFusedArg *a = &g->arg[k];
    if (a->out || a->kind <= PLK_FUSED_ROW) continue;
    if (a->kind == PLK_FUSED_NUMBER)
      plc_say(t, "    %s x%d[1]; fused_number<%s, 1>(a, %d, x%d);\n", plc_fused_math(a->dtype), k, plc_fused_element(a->dtype), k, k);
    else
      plc_say(t, "    %s x%d[1]; fused_at<%s>(a, %d, %s, x%d);\n", plc_fused_math(a->dtype), k, plc_fused_element(a->dtype), k,
              a->kind == PLK_FUSED_COL ? "row" : "0", k);
  }
  if (p.kept) keep_row(&p);
  behind(&p, -1);
  for (int walk = 0; walk < p.walks; walk++) {
    walk_row(&p, walk);
    behind(&p, walk);
  }
  plc_say(t, "  }\n");
}
