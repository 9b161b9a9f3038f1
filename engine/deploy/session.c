/* SPDX-License-Identifier: MIT
 * Sessions of the C ABI: see perilune_model.h. One of the CPU runs the model's program (kernels/program.h), which nothing
 * changes; one on a device runs the model's executor, in turn with the others. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/deploy/model.h"
#include "engine/device/device.h"

enum { SESSION_AT = 4 }; /* sizes that a session has memory for at a time */

typedef struct At { /* the session at some sizes */
  PlModelAt *at;
  PlkSession *run; /* NULL: on a device */
  void **own;      /* outputs of run_inside, made when it is first called */
} At;

struct perilune_session {
  perilune_model *m;
  At list[SESSION_AT]; /* the newest first */
  int64_t value[PL_MOST_FREE_SIZES];
  bool settled; /* list[0] has these sizes */
  bool ran;
  int32_t threads;
  atomic_flag busy; /* a thread is inside of it */
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a session"); }

/* Two threads in one session would write into one arena: the second is told so, and nobody waits. */
static PlStatus enter(const char *function, perilune_session *s) {
  PL_TRY(pl_model_given(function, "the session", s));
  if (!atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire)) return PL_OK;
  PL_FAIL(PL_ERR_STATE, "%s: another thread is inside of this session; each needs one of its own", function);
}
static PlStatus left(perilune_session *s, PlStatus st) {
  atomic_flag_clear_explicit(&s->busy, memory_order_release);
  return st;
}

/* ---- sizes --------------------------------------------------------------------------------------------------------------- */

static void leave(const perilune_session *s, At *a) {
  if (!a->at) return;
  plk_session_free(a->run);
  for (int32_t o = 0; a->own && o < a->at->saved.graph->noutputs; o++) free(a->own[o]);
  free(a->own);
  pl_model_leave(s->m, a->at);
  *a = (At){NULL, NULL, NULL};
}

static PlStatus make(const perilune_session *s, At *out) {
  At a = {NULL, NULL, NULL};
  PL_TRY(pl_model_at(s->m, s->value, &a.at));
  PlStatus st = a.at->refused == PL_OK ? PL_OK : pl_fail(a.at->refused, "%s", a.at->why);
  if (st == PL_OK && a.at->program) st = plk_session_new(&a.run, pl_program_of(a.at->program));
  if (st == PL_OK) *out = a;
  else leave(s, &a);
  return st;
}

/* list[0] has the sizes that were set. */
static PlStatus settle(perilune_session *s) {
  const size_t bytes = (size_t)s->m->base->saved.nsizes * sizeof *s->value;
  At now = {NULL, NULL, NULL};
  int k = 0;
  if (s->settled) return PL_OK;
  while (k < SESSION_AT && !(s->list[k].at && memcmp(s->list[k].at->value, s->value, bytes) == 0)) k++;
  if (k < SESSION_AT) now = s->list[k];
  else {
    PL_TRY(make(s, &now));
    k = SESSION_AT - 1;
    leave(s, &s->list[k]);
  }
  memmove(s->list + 1, s->list, (size_t)k * sizeof *s->list);
  s->list[0] = now;
  s->settled = true;
  s->ran = false;
  return PL_OK;
}

static PlStatus set_size(perilune_session *s, int32_t k, int64_t value) {
  PL_TRY(pl_model_size_check(s->m, k, value));
  if (s->value[k] == value) return PL_OK;
  s->value[k] = value;
  s->settled = s->ran = false;
  return PL_OK;
}

perilune_status perilune_session_set_size(perilune_session *s, const char *name, int64_t value) {
  PL_TRY(pl_model_given("perilune_session_set_size", "the session", s));
  PL_TRY(pl_model_given("perilune_session_set_size", "name", name));
  const int32_t k = pl_model_size_find(s->m, name);
  if (k < 0) PL_FAIL(PL_ERR_ARG, "perilune_session_set_size: the model has no free size '%s'", name);
  PL_TRY(enter("perilune_session_set_size", s));
  return left(s, set_size(s, k, value));
}

static PlStatus set_shape(perilune_session *s, int32_t i, const int64_t *shape, int32_t ndim) {
  const PlGValue *v;
  int64_t were[PL_MOST_FREE_SIZES];
  const PlSavedGraph *g = &s->m->base->saved;
  PL_TRY(pl_model_input_value(g, i, &v));
  if (ndim != v->ndim) PL_FAIL(PL_ERR_SHAPE, "input %d (%s) has %d dimensions, got %d", (int)i, v->name, v->ndim, (int)ndim);
  memcpy(were, s->value, sizeof were);
  const bool settled = s->settled, ran = s->ran;
  PlStatus st = PL_OK;
  for (int32_t d = 0; d < ndim && st == PL_OK; d++) {
    const char *name = g->input_dims[i] ? g->input_dims[i][d] : NULL;
    const int32_t k = name ? pl_model_size_find(s->m, name) : -1;
    if (name && k < 0)
      st = pl_fail(PL_ERR_UNSUPPORTED, "size %d of input %d (%s) is %s; set the free sizes by their names", (int)d, (int)i, v->name, name);
    else if (name) st = set_size(s, k, shape[d]);
    else if (shape[d] != v->dims[d])
      st = pl_fail(PL_ERR_SHAPE, "size %d of input %d (%s) is %lld in the model, got %lld", (int)d, (int)i, v->name, (long long)v->dims[d],
                   (long long)shape[d]);
    for (int32_t e = 0; e < d && name && st == PL_OK; e++)
      if (g->input_dims[i][e] && strcmp(g->input_dims[i][e], name) == 0 && shape[e] != shape[d])
        st = pl_fail(PL_ERR_SHAPE, "sizes %d and %d of input %d (%s) are both %s, got %lld and %lld", (int)e, (int)d, (int)i, v->name, name,
                     (long long)shape[e], (long long)shape[d]);
  }
  if (st == PL_OK) return PL_OK;
  memcpy(s->value, were, sizeof were);
  s->settled = settled;
  s->ran = ran;
  return st;
}

perilune_status perilune_session_set_shape(perilune_session *s, int32_t i, const int64_t *shape, int32_t ndim) {
  if (ndim > 0) PL_TRY(pl_model_given("perilune_session_set_shape", "shape", shape));
  PL_TRY(enter("perilune_session_set_shape", s));
  return left(s, set_shape(s, i, shape, ndim));
}

perilune_status perilune_session_input(perilune_session *s, int32_t i, perilune_tensor_info *out) {
  const PlGValue *v;
  PL_TRY(pl_model_given("perilune_session_input", "out", out));
  PL_TRY(enter("perilune_session_input", s));
  PL_TRY(left(s, settle(s)));
  PL_TRY(pl_model_input_value(&s->list[0].at->saved, i, &v));
  *out = pl_model_info(v, s->m->inputs[i]);
  return PL_OK;
}

perilune_status perilune_session_output(perilune_session *s, int32_t i, perilune_tensor_info *out) {
  const PlGValue *v;
  PL_TRY(pl_model_given("perilune_session_output", "out", out));
  PL_TRY(enter("perilune_session_output", s));
  PL_TRY(left(s, settle(s)));
  PL_TRY(pl_model_output_value(&s->list[0].at->saved, i, &v));
  *out = pl_model_info(v, s->m->base->saved.names[i]);
  return PL_OK;
}

/* ---- a session ------------------------------------------------------------------------------------------------------------ */

perilune_status perilune_session_new(perilune_model *m, perilune_session **out) {
  PL_TRY(pl_model_given("perilune_session_new", "the model", m));
  PL_TRY(pl_model_given("perilune_session_new", "out", (const void *)out));
  if (m->trains) PL_FAIL(PL_ERR_STATE, "this model writes into its weights, so sessions cannot share it; perilune_model_step runs it");
  if (m->base->refused != PL_OK) return pl_fail(m->base->refused, "%s", m->base->why);
  perilune_session *s = calloc(1, sizeof *s);
  if (!s) return no_memory();
  s->m = m;
  s->threads = 1;
  atomic_flag_clear(&s->busy);
  memcpy(s->value, m->base->value, sizeof s->value);
  PlStatus st = m->base->saved.nsizes > 0 ? PL_OK : settle(s); /* else other sizes are likely to be set before a run */
  if (st != PL_OK) {
    free(s);
    return st;
  }
  atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
  *out = s;
  return PL_OK;
}

void perilune_session_release(perilune_session *s) {
  if (!s) return;
  for (int k = 0; k < SESSION_AT; k++) leave(s, &s->list[k]);
  pl_model_drop(s->m);
  free(s);
}

perilune_status perilune_session_set_threads(perilune_session *s, int32_t n) {
  PL_TRY(pl_model_given("perilune_session_set_threads", "the session", s));
  if (n < 1) PL_FAIL(PL_ERR_ARG, "perilune_session_set_threads: at least 1 is wanted, got %d", (int)n);
  PL_TRY(enter("perilune_session_set_threads", s));
  s->threads = n;
  return left(s, PL_OK);
}

PlStatus pl_model_counts(const perilune_model *m, int32_t nin, int32_t nout) {
  const PlGraph *f = m->base->saved.graph;
  if (nin != f->ninputs) PL_FAIL(PL_ERR_SHAPE, "the model has %d inputs, got %d", (int)f->ninputs, (int)nin);
  if (nout != f->noutputs) PL_FAIL(PL_ERR_SHAPE, "the model has %d outputs, got %d", (int)f->noutputs, (int)nout);
  return PL_OK;
}

static PlStatus run(perilune_session *s, const void *const *in, void *const *out) {
  At *now = &s->list[0];
  if (now->run) return plk_session_run(now->run, s->threads, in, out); /* no lock, nothing of the engine's */
  pthread_mutex_lock(&s->m->lock);
  PlStatus st = pl_model_execute(s->m, now->at, s->threads, in, out, NULL);
  pthread_mutex_unlock(&s->m->lock);
  return st;
}

perilune_status perilune_session_run(perilune_session *s, const void *const *in, int32_t nin, void *const *out, int32_t nout) {
  PL_TRY(pl_model_given("perilune_session_run", "the session", s));
  PL_TRY(pl_model_counts(s->m, nin, nout));
  if (nin > 0) PL_TRY(pl_model_given("perilune_session_run", "in", (const void *)in));
  PL_TRY(pl_model_given("perilune_session_run", "out", (const void *)out));
  PL_TRY(enter("perilune_session_run", s));
  PlStatus st = settle(s);
  if (st == PL_OK) st = run(s, in, out);
  (void)left(s, st);
  if (st != PL_OK) pl_thread_watch();
  return st;
}

static PlStatus make_own(At *a) {
  const PlGraph *f = a->at->saved.graph;
  if (a->own) return PL_OK;
  void **own = calloc((size_t)f->noutputs + 1, sizeof *own);
  if (!own) return no_memory();
  for (int32_t o = 0; o < f->noutputs; o++) {
    own[o] = aligned_alloc(64, plk_round64((size_t)pl_gvalue_bytes(&f->vals[f->outputs[o]]) + 1));
    if (own[o]) continue;
    while (o > 0) free(own[--o]);
    free(own);
    return no_memory();
  }
  a->own = own;
  return PL_OK;
}

static PlStatus run_inside(perilune_session *s, const void *const *in) {
  s->ran = false;
  PL_TRY(settle(s));
  PL_TRY(make_own(&s->list[0]));
  PL_TRY(run(s, in, s->list[0].own));
  s->ran = true;
  return PL_OK;
}

perilune_status perilune_session_run_inside(perilune_session *s, const void *const *in, int32_t nin) {
  PL_TRY(pl_model_given("perilune_session_run_inside", "the session", s));
  PL_TRY(pl_model_counts(s->m, nin, s->m->base->saved.graph->noutputs));
  if (nin > 0) PL_TRY(pl_model_given("perilune_session_run_inside", "in", (const void *)in));
  PL_TRY(enter("perilune_session_run_inside", s));
  return left(s, run_inside(s, in));
}

const void *perilune_session_result(const perilune_session *s, int32_t i) {
  return s && s->ran && i >= 0 && i < s->m->base->saved.graph->noutputs ? s->list[0].own[i] : NULL;
}

/* ---- the executor: training, and devices ------------------------------------------------------------------------------- */

static PlStatus bring(const perilune_model *m, const PlGraph *f, const void *const *in, PlTensor **t) {
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind != PL_FV_INPUT) continue;
    if (!in[val->slot] && val->numel > 0) PL_FAIL(PL_ERR_ARG, "input %d (%s): no memory was given", (int)val->slot, val->name);
    PlTensor *host;
    PL_TRY(pl_tensor_from(&host, (PlDtype)val->dtype, val->ndim, val->dims, in[val->slot]));
    if (m->device == PL_CPU) {
      t[val->slot] = host;
      continue;
    }
    PlStatus s = pl_tensor_moved(&t[val->slot], host, m->device);
    pl_tensor_release(host);
    PL_TRY(s);
  }
  return PL_OK;
}

static PlStatus fetch(PlTensor *t, void *to) {
  PlTensor *host, *plain = NULL;
  PL_TRY(pl_tensor_on_host(&host, t));
  PlStatus s = host->a.contiguous ? PL_OK : pl_tensor_copy(&plain, host);
  const PlTensor *from = plain ? plain : host;
  if (s == PL_OK && from->a.numel) memcpy(to, from->a.data, (size_t)from->a.numel * pl_dtype_size((PlDtype)from->a.dtype));
  pl_tensor_release(plain);
  pl_tensor_release(host);
  return s;
}

/* The thread's generator becomes d, and what it was is d. */
static void swap_draws(PlModelDraws *d) {
  const PlModelDraws were = {pl_state.seed, pl_state.stream, pl_state.offset, pl_state.seeded};
  pl_state.seed = d->seed;
  pl_state.stream = d->stream;
  pl_state.offset = d->offset;
  pl_state.seeded = d->seeded;
  *d = were;
}

PlStatus pl_model_execute(perilune_model *m, PlModelAt *at, int threads, const void *const *in, void *const *out, bool *ended) {
  const PlGraph *f = at->saved.graph;
  PlTensor **t = calloc((size_t)f->ninputs + (size_t)f->noutputs + 1, sizeof *t), **y = t ? t + f->ninputs : NULL;
  if (!t) return no_memory();
  PlStatus s = PL_OK;
  for (int32_t o = 0; o < f->noutputs && s == PL_OK; o++)
    if (!out[o] && f->vals[f->outputs[o]].numel > 0)
      s = pl_fail(PL_ERR_ARG, "output %d (%s): no memory was given", (int)o, m->base->saved.names[o]);
  if (s == PL_OK) s = bring(m, f, in, t);
  const int were = plk_threads();
  const uint8_t device = pl_state.device;
  plk_set_threads(threads < 1 ? 1 : threads);
  pl_state.device = m->device;
  swap_draws(&m->draws);
  if (s == PL_OK) s = pl_exec_run(at->exec, t, y);
  if (ended) *ended = s == PL_OK; /* results may still not be fetched */
  swap_draws(&m->draws);
  for (int32_t o = 0; o < f->noutputs && s == PL_OK; o++) s = fetch(y[o], out[o]);
  pl_state.device = device;
  plk_set_threads(were);
  pl_release_all(t, f->ninputs + f->noutputs);
  free(t);
  return s;
}
