/* SPDX-License-Identifier: MIT
 * Connectionist temporal classification (Graves et al. 2006) in double precision, one sequence at a time.
 * l' = blank, l1, blank, l2, …, blank has L' = 2L + 1 entries. Forward and backward variables in logarithms:
 *   alpha[t][s] = lp[t][l'_s] + lse(alpha[t-1][s], alpha[t-1][s-1], alpha[t-1][s-2] if l'_s may follow l'_{s-2})
 *   beta[t][s]  = lp[t][l'_s] + lse(beta[t+1][s], beta[t+1][s+1], beta[t+1][s+2] if …)
 *   nll = -lse(alpha[T-1][L'-1], alpha[T-1][L'-2])
 *   dlp[t][c] = dnll (exp lp[t][c] - exp(lse over l'_s = c of (alpha + beta)[t][s] + nll - lp[t][c])) */
#include <math.h>

#include "kernels/loss.h"

typedef struct Ctc {
  const char *name;
  const PlArray *lp;
  const int64_t *targets, *frames, *lengths;
  int64_t T, N, C, S, blank, base;
  double *alpha;
  /* backward only */
  const PlArray *dy, *nll;
  PlArray *out;
} Ctc;

static double get(const PlArray *a, int64_t i) {
  return a->dtype == PL_F64 ? ((const double *)a->data)[i] : (double)((const float *)a->data)[i];
}
static void put(PlArray *a, int64_t i, double v) {
  if (a->dtype == PL_F64) ((double *)a->data)[i] = v;
  else ((float *)a->data)[i] = (float)v;
}
static double prob(const Ctc *c, int64_t t, int64_t n, int64_t k) { return get(c->lp, (t * c->N + n) * c->C + k); }

static double lse3(double a, double b, double d) {
  double m = a > b ? a : b;
  m = m > d ? m : d;
  if (m == -(double)INFINITY) return m;
  return m + log(exp(a - m) + exp(b - m) + exp(d - m));
}

/* l'_s of sequence n */
static int64_t label(const Ctc *c, int64_t n, int64_t s) { return s % 2 ? c->targets[n * c->S + s / 2] - c->base : c->blank; }
/* Whether l'_s may directly follow l'_{s-2}: it is no blank and another letter. */
static bool leaps(const Ctc *c, int64_t n, int64_t s) { return s >= 2 && s % 2 && label(c, n, s) != label(c, n, s - 2); }

static Ctc read_call(const PlkCall *call, int first) {
  const PlArray *x = call->in[first];
  return (Ctc){.name = call->name,
               .lp = x,
               .targets = call->in[first + 1]->data,
               .frames = call->in[first + 2]->data,
               .lengths = call->in[first + 3]->data,
               .T = x->shape[0],
               .N = x->shape[1],
               .C = x->shape[2],
               .S = call->in[first + 1]->shape[1],
               .blank = pl_attr_i(call->attrs, 0) - pl_attr_i(call->attrs, 1),
               .base = pl_attr_i(call->attrs, 1)};
}

static PlStatus check(const Ctc *c) {
  for (int64_t n = 0; n < c->N; n++) {
    if (c->frames[n] < 0 || c->frames[n] > c->T)
      PL_FAIL(PL_ERR_ARG, "%s: input length %lld of sequence %lld is not between 0 and %lld", c->name, (long long)c->frames[n],
              (long long)n + 1, (long long)c->T);
    if (c->lengths[n] < 0 || c->lengths[n] > c->S)
      PL_FAIL(PL_ERR_ARG, "%s: target length %lld of sequence %lld is not between 0 and %lld", c->name, (long long)c->lengths[n],
              (long long)n + 1, (long long)c->S);
    for (int64_t s = 0; s < c->lengths[n]; s++) {
      int64_t k = c->targets[n * c->S + s];
      if (k < c->base || k - c->base >= c->C)
        PL_FAIL(PL_ERR_INDEX, "%s: target %lld of sequence %lld is %lld, classes are %lld to %lld", c->name, (long long)s + 1,
                (long long)n + 1, (long long)k, (long long)c->base, (long long)(c->C - 1 + c->base));
    }
  }
  return PL_OK;
}

/* ---- forward ---------------------------------------------------------------------------------------- */

static PlStatus forward(void *ctx, int64_t begin, int64_t end) {
  const Ctc *c = ctx;
  const double none = -(double)INFINITY;
  const int64_t W = 2 * c->S + 1;
  for (int64_t n = begin; n < end; n++) {
    double *a = c->alpha + n * c->T * W;
    int64_t T = c->frames[n], L = 2 * c->lengths[n] + 1;
    for (int64_t i = 0; i < c->T * W; i++) a[i] = none;
    for (int64_t t = 0; t < T; t++) {
      const double *before = a + (t - 1) * W;
      double *now = a + t * W;
      for (int64_t s = 0; s < L; s++) {
        double v;
        if (t == 0) v = s < 2 ? 0 : none;
        else v = lse3(before[s], s ? before[s - 1] : none, leaps(c, n, s) ? before[s - 2] : none);
        now[s] = v + prob(c, t, n, label(c, n, s));
      }
      PL_TRY(plk_poll());
    }
    double nll;
    if (T == 0) nll = L == 1 ? 0 : (double)INFINITY;
    else nll = -lse3(a[(T - 1) * W + L - 1], L > 1 ? a[(T - 1) * W + L - 2] : none, none);
    put(c->out, n, nll);
  }
  return PL_OK;
}

PlStatus plk_cpu_ctc_loss(const PlkCall *call) {
  Ctc c = read_call(call, 0);
  PL_TRY(check(&c));
  void *room = NULL, *spare = NULL;
  const int64_t W = 2 * c.S + 1;
  int64_t shape[1] = {c.N};
  PlArray dump = {.dtype = c.lp->dtype, .ndim = 1, .shape = shape};
  if (!call->out[1]) PL_TRY(plk_scratch((size_t)(c.N * c.T * W + 1) * sizeof(double), &room));
  c.alpha = call->out[1] ? call->out[1]->data : room;
  c.out = call->out[0];
  if (!c.out) {
    PlStatus s = plk_scratch((size_t)(c.N + 1) * sizeof(double), &spare);
    if (s != PL_OK) {
      plk_scratch_free(room);
      return s;
    }
    dump.data = spare;
    c.out = &dump;
  }
  PlStatus s = plk_parallel(c.N, 1, forward, &c);
  plk_scratch_free(room);
  plk_scratch_free(spare);
  return s;
}

/* ---- backward --------------------------------------------------------------------------------------- */

/* Gradients of one sequence; `room` holds two rows of W and one of C. */
static PlStatus backward_one(const Ctc *c, int64_t n, double *room) {
  const double none = -(double)INFINITY;
  const int64_t W = 2 * c->S + 1, T = c->frames[n], L = 2 * c->lengths[n] + 1;
  const double *a = c->alpha + n * c->T * W, dy = get(c->dy, n), nll = get(c->nll, n);
  double *now = room, *after = room + W, *sum = room + 2 * W;
  for (int64_t t = 0; t < c->T; t++)
    for (int64_t k = 0; k < c->C; k++) put(c->out, (t * c->N + n) * c->C + k, 0);
  if (dy == 0) return PL_OK; /* also where the loss is infinite and was set aside */
  for (int64_t t = T; t-- > 0;) {
    double *swap = after;
    after = now;
    now = swap;
    for (int64_t k = 0; k < c->C; k++) sum[k] = none;
    for (int64_t s = L; s-- > 0;) {
      double v;
      if (t == T - 1) v = s >= L - 2 ? 0 : none;
      else v = lse3(after[s], s + 1 < L ? after[s + 1] : none, s + 2 < L && leaps(c, n, s + 2) ? after[s + 2] : none);
      int64_t k = label(c, n, s);
      now[s] = v + prob(c, t, n, k);
      sum[k] = lse3(sum[k], a[t * W + s] + now[s], none);
    }
    for (int64_t k = 0; k < c->C; k++) {
      double lp = prob(c, t, n, k);
      /* no alignment at all: PyTorch's gradient is NaN, so that nobody trains on it unseen */
      const double share = nll == (double)INFINITY ? (double)NAN : sum[k] == none ? 0 : exp(sum[k] + nll - lp);
      put(c->out, (t * c->N + n) * c->C + k, dy * (exp(lp) - share));
    }
    PL_TRY(plk_poll());
  }
  return PL_OK;
}

static PlStatus backward(void *ctx, int64_t begin, int64_t end) {
  const Ctc *c = ctx;
  void *room;
  PL_TRY(plk_scratch((size_t)(2 * (2 * c->S + 1) + c->C) * sizeof(double), &room));
  PlStatus s = PL_OK;
  for (int64_t n = begin; n < end && s == PL_OK; n++) s = backward_one(c, n, room);
  plk_scratch_free(room);
  return s;
}

PlStatus plk_cpu_ctc_loss_bwd(const PlkCall *call) {
  Ctc c = read_call(call, 1);
  PL_TRY(check(&c));
  c.dy = call->in[0];
  c.nll = call->in[5];
  c.alpha = call->in[6]->data;
  c.out = call->out[0];
  return c.out ? plk_parallel(c.N, 1, backward, &c) : PL_OK;
}
