/* SPDX-License-Identifier: MIT
 * Sessions of the C ABI: see perilune_model.h. One of the CPU runs the model's program (kernels/program.h), which nothing
 * changes; one on a device runs the model's executor, in turn with the others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/deploy/model.h"
#include "engine/device/device.h"

struct perilune_session {
  perilune_model *m;
  PlkSession *run; /* NULL: on a device */
  void **own;      /* outputs of run_inside, made when it is first called */
  int32_t threads;
  bool ran;
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a session"); }

perilune_status perilune_session_new(perilune_model *m, perilune_session **out) {
  PL_TRY(pl_model_given("perilune_session_new", "the model", m));
  PL_TRY(pl_model_given("perilune_session_new", "out", (const void *)out));
  if (m->trains) PL_FAIL(PL_ERR_STATE, "this model writes into its weights, so sessions cannot share it; perilune_model_step runs it");
  if (m->refused != PL_OK) return pl_fail(m->refused, "%s", m->why);
  perilune_session *s = calloc(1, sizeof *s);
  if (!s) return no_memory();
  if (m->program) {
    PlStatus st = plk_session_new(&s->run, pl_program_of(m->program));
    if (st != PL_OK) {
      free(s);
      return st;
    }
  }
  atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
  s->m = m;
  s->threads = 1;
  *out = s;
  return PL_OK;
}

void perilune_session_release(perilune_session *s) {
  if (!s) return;
  plk_session_free(s->run);
  for (int32_t o = 0; s->own && o < s->m->saved.graph->noutputs; o++) free(s->own[o]);
  free(s->own);
  pl_model_drop(s->m);
  free(s);
}

perilune_status perilune_session_set_threads(perilune_session *s, int32_t n) {
  PL_TRY(pl_model_given("perilune_session_set_threads", "the session", s));
  if (n < 1) PL_FAIL(PL_ERR_ARG, "perilune_session_set_threads: at least 1 is wanted, got %d", (int)n);
  s->threads = n;
  return PL_OK;
}

PlStatus pl_model_counts(const perilune_model *m, int32_t nin, int32_t nout) {
  const PlGraph *f = m->saved.graph;
  if (nin != f->ninputs) PL_FAIL(PL_ERR_SHAPE, "the model has %d inputs, got %d", (int)f->ninputs, (int)nin);
  if (nout != f->noutputs) PL_FAIL(PL_ERR_SHAPE, "the model has %d outputs, got %d", (int)f->noutputs, (int)nout);
  return PL_OK;
}

static PlStatus run(perilune_session *s, const void *const *in, void *const *out) {
  if (s->run) return plk_session_run(s->run, s->threads, in, out); /* no lock, nothing of the engine's */
  pthread_mutex_lock(&s->m->lock);
  PlStatus st = pl_model_execute(s->m, s->threads, in, out);
  pthread_mutex_unlock(&s->m->lock);
  return st;
}

perilune_status perilune_session_run(perilune_session *s, const void *const *in, int32_t nin, void *const *out, int32_t nout) {
  PL_TRY(pl_model_given("perilune_session_run", "the session", s));
  PL_TRY(pl_model_counts(s->m, nin, nout));
  if (nin > 0) PL_TRY(pl_model_given("perilune_session_run", "in", (const void *)in));
  PL_TRY(pl_model_given("perilune_session_run", "out", (const void *)out));
  PlStatus st = run(s, in, out);
  if (st != PL_OK) pl_thread_watch();
  return st;
}

static PlStatus make_own(perilune_session *s) {
  const PlGraph *f = s->m->saved.graph;
  if (s->own) return PL_OK;
  void **own = calloc((size_t)f->noutputs + 1, sizeof *own);
  if (!own) return no_memory();
  for (int32_t o = 0; o < f->noutputs; o++) {
    own[o] = aligned_alloc(64, plk_round64((size_t)pl_gvalue_bytes(&f->vals[f->outputs[o]]) + 1));
    if (own[o]) continue;
    while (o > 0) free(own[--o]);
    free(own);
    return no_memory();
  }
  s->own = own;
  return PL_OK;
}

perilune_status perilune_session_run_inside(perilune_session *s, const void *const *in, int32_t nin) {
  PL_TRY(pl_model_given("perilune_session_run_inside", "the session", s));
  PL_TRY(pl_model_counts(s->m, nin, s->m->saved.graph->noutputs));
  if (nin > 0) PL_TRY(pl_model_given("perilune_session_run_inside", "in", (const void *)in));
  PL_TRY(make_own(s));
  s->ran = false;
  PL_TRY(run(s, in, s->own));
  s->ran = true;
  return PL_OK;
}

const void *perilune_session_result(const perilune_session *s, int32_t i) {
  return s && s->ran && i >= 0 && i < s->m->saved.graph->noutputs ? s->own[i] : NULL;
}

/* ---- the executor: training, and devices ------------------------------------------------------------------------------- */

static PlStatus bring(const perilune_model *m, const void *const *in, PlTensor **t) {
  const PlGraph *f = m->saved.graph;
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

PlStatus pl_model_execute(perilune_model *m, int threads, const void *const *in, void *const *out) {
  const PlGraph *f = m->saved.graph;
  PlTensor **t = calloc((size_t)f->ninputs + (size_t)f->noutputs + 1, sizeof *t), **y = t ? t + f->ninputs : NULL;
  if (!t) return no_memory();
  PlStatus s = PL_OK;
  for (int32_t o = 0; o < f->noutputs && s == PL_OK; o++)
    if (!out[o] && f->vals[f->outputs[o]].numel > 0)
      s = pl_fail(PL_ERR_ARG, "output %d (%s): no memory was given", (int)o, m->saved.names[o]);
  if (s == PL_OK) s = bring(m, in, t);
  const int were = plk_threads();
  const uint8_t device = pl_state.device;
  plk_set_threads(threads < 1 ? 1 : threads);
  pl_state.device = m->device;
  if (s == PL_OK) s = pl_exec_run(m->exec, t, y);
  for (int32_t o = 0; o < f->noutputs && s == PL_OK; o++) s = fetch(y[o], out[o]);
  pl_state.device = device;
  plk_set_threads(were);
  pl_release_all(t, f->ninputs + f->noutputs);
  free(t);
  return s;
}
