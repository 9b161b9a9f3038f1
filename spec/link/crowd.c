/* SPDX-License-Identifier: MIT
 * Everything of the C ABI at once, in one process: spec/deploy/crowd_spec.lua writes the models and reads what this prints.
 *   link_crowd RUNS PATH ...    PATHs are models that sessions run, and behind "steps" those that train
 * Eight threads run all models in turn, each with sessions of its own, and see the bits of a thread alone. Beside them others load and
 * release the same files, make steps with numbers that are set on the way, make sessions of a model that another thread releases, and
 * make mistakes, whose messages are their own, or are two in one session. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/deploy/perilune_model.h"
#include "spec/link/model_memory.h"

enum { MOST = 32, VARIANTS = 3, THREADS = 8, STEPS = 6 };

typedef struct Shared {
  const char *path;
  perilune_model *model;
  uint64_t wanted[VARIANTS]; /* of a training: after STEPS steps from variant k's inputs */
} Shared;

static Shared models[MOST];
static int nmodels, nruns; /* those that run stand before those that train */
static long rounds;
static atomic_bool over;
static atomic_long wrong;

static bool odd(bool is, const char *what, const char *path) {
  if (!is) return false;
  if (atomic_fetch_add(&wrong, 1) < 20) fprintf(stderr, "%s: %s (%s)\n", path, what, perilune_message());
  return true;
}

/* Sizes that differ, and memory for them; s NULL: of the model. */
static bool prepare(perilune_model *model, perilune_session *s, size_t variant, Memory *m) {
  perilune_size_info z;
  memset(m, 0, sizeof *m);
  for (int32_t i = 0; s && i < perilune_model_size_count(model); i++)
    if (perilune_model_size(model, i, &z) || perilune_session_set_size(s, z.name, z.least + (int64_t)(variant + (size_t)i) % 3))
      return false;
  return prepare_ports(model, s, perilune_model_input_count(model), perilune_model_output_count(model), variant, m);
}

static bool run_once(perilune_session *s, Memory *m) {
  return perilune_session_run(s, (const void *const *)m->in, m->nin, m->out, m->nout) == PERILUNE_OK;
}

/* STEPS steps of a training from its file: the bits of weights and results. */
static bool train(const char *path, size_t variant, uint64_t *bits) {
  perilune_model *model;
  perilune_tensor_info t;
  const void *data;
  Memory m;
  double lr = 0;
  if (perilune_model_load(path, NULL, &model)) return false;
  bool fine = prepare(model, NULL, variant, &m) && !perilune_model_seed(model, variant); /* what dropout draws */
  uint64_t h = HASH_BEGIN;
  for (int k = 0; k < STEPS && fine; k++) {
    if (k == STEPS / 2) fine = !perilune_model_set(model, "lr", 0.25) && !perilune_model_get(model, "lr", &lr) && lr == 0.25;
    fine = fine && !perilune_model_step(model, 1, (const void *const *)m.in, m.nin, m.out, m.nout);
    h ^= fine ? outputs(&m) : 0;
  }
  for (int32_t i = 0; fine && i < perilune_model_weight_count(model); i++) {
    fine = perilune_model_weight(model, i, &t, &data) == PERILUNE_OK;
    h = fine ? hash(data, t.bytes, h) : 0;
  }
  release(&m);
  perilune_model_release(model);
  *bits = h;
  return fine;
}

/* ---- what threads do ----------------------------------------------------------------------------------------------------- */

/* Every model in turn, at each variant. */
static void *serve(void *ctx) {
  const int number = (int)(intptr_t)ctx;
  for (int i = 0; i < nruns; i++) {
    Shared *a = &models[(i + number) % nruns];
    perilune_session *s;
    Memory m[VARIANTS];
    if (odd(perilune_session_new(a->model, &s) != PERILUNE_OK, "no session", a->path)) continue;
    for (size_t k = 0; k < VARIANTS; k++)
      if (odd(!prepare(a->model, s, k, &m[k]), "no memory for it", a->path)) return NULL;
    for (long n = 0; n < rounds; n++) {
      const size_t k = (size_t)(n + number) % VARIANTS;
      perilune_size_info z;
      for (int32_t j = 0; j < perilune_model_size_count(a->model); j++)
        if (odd(perilune_model_size(a->model, j, &z) || perilune_session_set_size(s, z.name, z.least + (int64_t)(k + (size_t)j) % 3),
                "a size", a->path))
          return NULL;
      if (n == rounds / 2) (void)perilune_session_set_threads(s, 2);
      if (odd(!run_once(s, &m[k]), "a run failed", a->path)) break;
      odd(outputs(&m[k]) != a->wanted[k], "other bits", a->path);
    }
    for (size_t k = 0; k < VARIANTS; k++) release(&m[k]);
    perilune_session_release(s);
  }
  return NULL;
}

/* Loads a file that others run, runs it once, and lets go of the model before the session. */
static void *load(void *ctx) {
  (void)ctx;
  for (int i = 0; !atomic_load(&over); i++) {
    Shared *a = &models[i % nruns];
    perilune_model *model;
    perilune_session *s;
    Memory m;
    const size_t k = (size_t)(i / nruns) % VARIANTS;
    if (odd(perilune_model_load(a->path, NULL, &model) != PERILUNE_OK, "not loaded", a->path)) return NULL;
    const bool fine = perilune_session_new(model, &s) == PERILUNE_OK && prepare(model, s, k, &m);
    perilune_model_release(model);
    if (odd(!fine, "no session of what was loaded", a->path)) return NULL;
    odd(!run_once(s, &m) || outputs(&m) != a->wanted[k], "other bits of what was loaded", a->path);
    release(&m);
    perilune_session_release(s);
  }
  return NULL;
}

static void *step(void *ctx) {
  for (int i = (int)(intptr_t)ctx; nmodels > nruns && !atomic_load(&over); i++) {
    const Shared *a = &models[nruns + i % (nmodels - nruns)];
    const size_t k = (size_t)i % VARIANTS;
    uint64_t bits = 0;
    if (odd(!train(a->path, k, &bits), "a training failed", a->path)) return NULL;
    odd(bits != a->wanted[k], "other bits of a training", a->path);
  }
  return NULL;
}

/* One training of two threads: its steps, numbers, weights' names. Which step has which lr is chance; that all are counted is not. */
static perilune_model *common;
static atomic_long steps;
static void *share(void *ctx) {
  const long most = 40;
  Memory m;
  double got;
  (void)ctx;
  if (odd(!prepare(common, NULL, 0, &m), "no memory for it", "a shared training")) return NULL;
  for (long i = 0; i < most; i++) {
    odd(perilune_model_set(common, "lr", 0.01 * (double)(i % 3 + 1)) || perilune_model_get(common, "lr", &got) || !(got > 0), "lr",
        "a shared training");
    if (!odd(perilune_model_step(common, (int32_t)(i % 2) + 1, (const void *const *)m.in, m.nin, m.out, m.nout) != PERILUNE_OK, "no step",
             "a shared training"))
      atomic_fetch_add(&steps, 1);
  }
  release(&m);
  return NULL;
}

/* Two threads in one session, which is a mistake: one of them is told so, and what the other gets is right. */
static perilune_session *one;
static void *meet(void *ctx) {
  Shared *a = &models[0];
  Memory m;
  (void)ctx;
  while (!prepare(a->model, one, 0, &m)) release(&m); /* the other one is inside */
  while (!atomic_load(&over)) {
    const perilune_status st = perilune_session_run(one, (const void *const *)m.in, m.nin, m.out, m.nout);
    if (st == PERILUNE_ERR_STATE) odd(!strstr(perilune_message(), "each needs one of its own"), "another message", a->path);
    else odd(st != PERILUNE_OK || outputs(&m) != a->wanted[0], "other bits in a shared session", a->path);
  }
  release(&m);
  return NULL;
}

/* Mistakes beside runs that go well: the message is this thread's, and the session goes on. */
static void *err(void *ctx) {
  (void)ctx;
  for (int i = 0; !atomic_load(&over); i++) {
    Shared *a = &models[i % nruns];
    perilune_session *s;
    perilune_model *none;
    Memory m;
    char path[32];
    snprintf(path, sizeof path, "/no/such/model/%d", i);
    odd(perilune_model_load(path, NULL, &none) != PERILUNE_ERR_IO || !strstr(perilune_message(), path), "another message", path);
    if (odd(perilune_session_new(a->model, &s) != PERILUNE_OK || !prepare(a->model, s, 0, &m), "no session", a->path)) return NULL;
    odd(perilune_session_run(s, (const void *const *)m.in, m.nin + 1, m.out, m.nout) != PERILUNE_ERR_SHAPE, "a count was taken", a->path);
    void *kept = m.out[0];
    m.out[0] = NULL;
    odd(run_once(s, &m) || !strstr(perilune_message(), "no memory was given"), "NULL was taken", a->path);
    m.out[0] = kept;
    perilune_tensor_info t;
    for (int32_t k = 0; k < m.nin; k++) { /* an index that is out of its range, where there is one */
      if (perilune_session_input(s, k, &t) != PERILUNE_OK || t.dtype != PERILUNE_I64) continue;
      ((int64_t *)m.in[k])[0] = -1000000;
      odd(perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout) != PERILUNE_ERR_INDEX, "an index was taken", a->path);
      ((int64_t *)m.in[k])[0] = 16 % 33 % 2;
    }
    odd(!run_once(s, &m) || outputs(&m) != a->wanted[0], "other bits behind a mistake", a->path);
    release(&m);
    perilune_session_release(s);
  }
  return NULL;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------- */

static bool alone(Shared *a) {
  perilune_session *s;
  if (perilune_model_load(a->path, NULL, &a->model) || perilune_session_new(a->model, &s)) return false;
  for (size_t k = 0; k < VARIANTS; k++) {
    Memory m;
    if (!prepare(a->model, s, k, &m) || !run_once(s, &m)) return false;
    a->wanted[k] = outputs(&m);
    release(&m);
  }
  perilune_session_release(s);
  return true;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    puts("skipped: spec/deploy/crowd_spec.lua gives it models");
    return 77;
  }
  rounds = atol(argv[1]);
  bool trains = false;
  for (int i = 2; i < argc && nmodels < MOST; i++) {
    Shared *a = &models[nmodels];
    if (strcmp(argv[i], "steps") == 0) {
      trains = true;
      continue;
    }
    a->path = argv[i];
    bool fine = true;
    if (trains)
      for (size_t k = 0; k < VARIANTS; k++) fine = fine && train(a->path, k, &a->wanted[k]);
    else fine = alone(a);
    if (!fine) {
      fprintf(stderr, "%s: %s\n", a->path, perilune_message());
      return 1;
    }
    nmodels++;
    nruns += !trains;
  }
  if (nmodels == nruns || perilune_model_load(models[nruns].path, NULL, &common)) return 1;
  if (perilune_session_new(models[0].model, &one)) return 1;
  pthread_t servers[THREADS], others[9];
  void *(*const does[9])(void *) = {load, step, step, err, share, share, load, meet, meet};
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&servers[i], NULL, serve, (void *)(intptr_t)i)) return 1;
  for (int i = 0; i < 9; i++)
    if (pthread_create(&others[i], NULL, does[i], (void *)(intptr_t)i)) return 1;
  for (int i = 0; i < THREADS; i++) pthread_join(servers[i], NULL);
  atomic_store(&over, true);
  for (int i = 0; i < 9; i++) pthread_join(others[i], NULL);
  perilune_session_release(one);
  double count = 0, first = 0;
  perilune_model *again;
  odd(perilune_model_load(models[nruns].path, NULL, &again) || perilune_model_get(again, "step", &first), "its count", models[nruns].path);
  odd(perilune_model_get(common, "step", &count) || (long)(count - first) != atomic_load(&steps), "steps are missing", models[nruns].path);
  perilune_model_release(again);
  perilune_model_release(common);
  for (int i = 0; i < nruns; i++) perilune_model_release(models[i].model);
  printf("%d models, %ld runs each in %d threads, %ld wrong\n", nmodels, rounds, (int)THREADS, atomic_load(&wrong));
  return atomic_load(&wrong) != 0;
}
