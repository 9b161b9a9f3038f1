/* SPDX-License-Identifier: MIT
 * Saved models through the C ABI, in all its functions. spec/deploy/abi_spec.lua writes the models and reads what this prints.
 *   link_model run PATH       what the model says of itself, and the bits of its outputs for inputs by a formula
 *   link_model step PATH N [SAVED]   N steps, drawing by seed 7, with the loss of each, lr 0.5 from the third on; then the model is saved
 *   link_model steps_at PATH SAVED name=value ...   a step at each of these sizes, lr 0.5 from the third on; then it is saved
 *   link_model steps PATH N [SAVED]  the same, but no number is set
 *   link_model on PATH DEVICE the first elements of each output, computed there; or the message
 *   link_model wrong PATH     the messages of wrong calls
 *   link_model free PATH SET ...   what the model says of its free sizes, then for each SET, "batch=2,h=9" or "0:2x3" (the shape of input 0),
 *                            its inputs and outputs, and the bits, of two runs; or the message
 *   link_model serve PATH THREADS RUNS   all threads at once, each with a session: the bits of one thread? Each variant of
 *                            the inputs has free sizes of its own. */
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/deploy/perilune_model.h"
#include "spec/link/model_memory.h"

enum { VARIANTS = 8 };

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, perilune_message());
  return 1;
}

static int prepare_at(perilune_session *s, int32_t nin, int32_t nout, size_t variant, Memory *m) {
  return !prepare_ports(NULL, s, nin, nout, variant, m);
}

static int prepare(perilune_model *model, size_t variant, Memory *m) {
  return !prepare_ports(model, NULL, perilune_model_input_count(model), perilune_model_output_count(model), variant, m);
}

static void tell(const char *what, int32_t i, const perilune_tensor_info *t) {
  printf("%s %d %s %s[", what, (int)i, t->name, perilune_dtype_name(t->dtype));
  for (int32_t d = 0; d < t->ndim; d++) printf("%s%lld", d ? "," : "", (long long)t->shape[d]);
  printf("]\n");
}

static int run(perilune_model *model) {
  perilune_tensor_info t;
  perilune_session *s;
  Memory m;
  const void *data;
  uint64_t h = HASH_BEGIN;
  if (prepare(model, 0, &m)) return fail("prepare");
  for (int32_t i = 0; i < m.nin; i++) {
    if (perilune_model_input(model, i, &t) || perilune_model_input_find(model, t.name) != i) return fail("input");
    tell("input", i, &t);
  }
  for (int32_t i = 0; i < m.nout; i++) {
    if (perilune_model_output(model, i, &t) || perilune_model_output_find(model, t.name) != i) return fail("output");
    tell("output", i, &t);
  }
  int64_t bytes = 0;
  for (int32_t i = 0; i < perilune_model_weight_count(model); i++) {
    if (perilune_model_weight(model, i, &t, &data)) return fail("weight");
    bytes += (int64_t)t.bytes;
  }
  if (bytes != perilune_model_weight_bytes(model)) return fail("weights");
  printf("arena %s, trains %d\n", perilune_model_arena_bytes(model) > 0 ? "yes" : "none", (int)perilune_model_trains(model));
  if (perilune_session_new(model, &s)) return fail("session");
  if (perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout)) return fail("run");
  printf("bits %016llx\n", (unsigned long long)outputs(&m));
  if (perilune_session_set_threads(s, 2) || perilune_session_run_inside(s, (const void *const *)m.in, m.nin)) return fail("inside");
  for (int32_t i = 0; i < m.nout; i++) h = hash(perilune_session_result(s, i), m.bytes[i], h);
  printf("inside %s\n", h == outputs(&m) ? "the same" : "OTHERS");
  const float *first = m.out[0];
  printf("first %.9g\n", (double)first[0]);
  perilune_session_release(s);
  release(&m);
  return 0;
}

/* "batch=2,h=9" or "0:2x3" */
static perilune_status set_sizes(perilune_session *s, const char *text) {
  char name[64];
  int64_t shape[16];
  int32_t ndim = 0;
  int k, at = 0;
  long long n;
  if (strchr(text, ':')) {
    const char *p = strchr(text, ':') + 1;
    for (; ndim < 16 && sscanf(p, "%lld%n", &n, &at) == 1; p += p[at] == 'x' ? at + 1 : at) shape[ndim++] = n;
    return perilune_session_set_shape(s, (int32_t)atoi(text), shape, ndim);
  }
  while (sscanf(text, "%63[^=]=%lld%n", name, &n, &k) == 2) {
    const perilune_status st = perilune_session_set_size(s, name, n);
    if (st) return st;
    text += k;
    text += *text == ',';
  }
  return PERILUNE_OK;
}

static int free_sizes(perilune_model *model, int n, char **sets) {
  perilune_size_info z;
  perilune_tensor_info t;
  perilune_session *s;
  const int32_t nin = perilune_model_input_count(model), nout = perilune_model_output_count(model);
  for (int32_t i = 0; i < perilune_model_size_count(model); i++) {
    if (perilune_model_size(model, i, &z)) return fail("size");
    printf("size %s %lld from %lld to %lld\n", z.name, (long long)z.example, (long long)z.least, (long long)z.most);
  }
  for (int32_t k = 0; k < nin + nout; k++) {
    const int32_t i = k < nin ? k : k - nin;
    if (k < nin ? perilune_model_input(model, i, &t) : perilune_model_output(model, i, &t)) return fail("port");
    printf("%s %s:", k < nin ? "input" : "output", t.name);
    for (int32_t d = 0; d < t.ndim; d++) {
      const char *dim = k < nin ? perilune_model_input_dim(model, i, d) : perilune_model_output_dim(model, i, d);
      if ((dim != NULL) != (t.shape[d] == -1) || (dim && t.bytes)) return fail("what is free");
      if (dim) printf(" %s", dim);
      else printf(" %lld", (long long)t.shape[d]);
    }
    printf("\n");
  }
  if (perilune_session_new(model, &s)) return fail("session");
  for (int k = 0; k < n; k++) {
    Memory m;
    const perilune_status st = set_sizes(s, sets[k]);
    if (st || perilune_session_output(s, 0, &t)) {
      printf("%s: %s\n", sets[k], perilune_message());
      continue;
    }
    if (prepare_at(s, nin, nout, 0, &m)) return fail("prepare");
    for (int32_t o = 0; o < nout; o++) {
      if (perilune_session_output(s, o, &t)) return fail("output");
      tell("output", o, &t);
    }
    if (perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout)) return fail("run");
    printf("%s: bits %016llx\n", sets[k], (unsigned long long)outputs(&m));
    if (perilune_session_run_inside(s, (const void *const *)m.in, m.nin)) return fail("inside");
    for (int32_t o = 0; o < nout; o++)
      if (memcmp(perilune_session_result(s, o), m.out[o], m.bytes[o]) != 0) return fail("inside gives OTHERS");
    release(&m);
  }
  perilune_session_release(s);
  return 0;
}

static int step(perilune_model *model, int n, const char *saved, int sets) {
  Memory m;
  double lr = 0, count = 0;
  if (prepare(model, 0, &m) || perilune_model_seed(model, 7)) return fail("prepare");
  for (int k = 0; k < n; k++) {
    void *const first = m.out[0];
    m.out[0] = NULL; /* which is no step, and counts as none */
    if (perilune_model_step(model, 1, (const void *const *)m.in, m.nin, m.out, m.nout) != PERILUNE_ERR_ARG) return fail("no memory");
    m.out[0] = first;
    if (perilune_model_step(model, 1, (const void *const *)m.in, m.nin, m.out, m.nout)) return fail("step");
    printf("loss %.9g\n", (double)*(const float *)m.out[0]);
    if (sets && k == 1 && perilune_model_set(model, "lr", 0.5)) return fail("set");
  }
  if (sets && perilune_model_get(model, "lr", &lr)) return fail("get");
  printf("lr %g", lr);
  if (perilune_model_get(model, "step", &count) == PERILUNE_OK) printf(", step %g", count);
  printf("\n");
  if (saved && perilune_model_save(model, saved)) return fail("save");
  release(&m);
  return 0;
}

/* A step at each of the sizes "name=value", the loss of each; then the model is saved. */
static int steps_at(perilune_model *model, int n, char **sets, const char *saved) {
  const int nin = perilune_model_input_count(model), nout = perilune_model_output_count(model);
  perilune_tensor_info t;
  Memory m;
  for (int k = 0; k < n; k++) {
    char name[64];
    long long value;
    if (sscanf(sets[k], "%63[^=]=%lld", name, &value) != 2) return 2;
    if (perilune_model_set_size(model, name, value)) {
      printf("%s: %s\n", sets[k], perilune_message());
      continue;
    }
    memset(&m, 0, sizeof m);
    m.nin = nin;
    m.nout = nout;
    for (int32_t i = 0; i < nin; i++) {
      if (perilune_model_step_input(model, i, &t) || !(m.in[i] = malloc(t.bytes + 1))) return fail("input");
      fill(&t, m.in[i], (size_t)k);
    }
    for (int32_t i = 0; i < nout; i++)
      if (perilune_model_step_output(model, i, &t) || !(m.out[i] = malloc(t.bytes + 1))) return fail("output");
    if (k == 2 && perilune_model_set(model, "lr", 0.5)) return fail("set");
    if (k == 2) perilune_model_set(model, "momentum", 0.5); /* an optimizer's, if it has one, and no norm's */
    if (perilune_model_step(model, 1 + k % 2, (const void *const *)m.in, nin, m.out, nout)) return fail("step");
    printf("loss %.9g\n", (double)*(const float *)m.out[0]);
    release(&m);
  }
  return saved && perilune_model_save(model, saved) ? fail("save") : 0;
}

/* To the averages and back around steps; what a saved graph of averages says to one. */
static int averages(perilune_model *model, const char *saved) {
  Memory m;
  perilune_tensor_info info;
  if (prepare(model, 0, &m)) return fail("prepare");
  const void *const *in = (const void *const *)m.in;
  for (int k = 0; k < 3; k++) {
    if (perilune_model_average(model, 0) == PERILUNE_OK && perilune_model_set(model, "step", 0) != PERILUNE_ERR_ARG) return fail("count");
    if (perilune_model_step(model, 1, in, m.nin, m.out, m.nout)) return fail("step");
    if (perilune_model_average(model, 1) || perilune_model_average(model, 1)) return fail("average");
    double before, after;
    if (perilune_model_get(model, "step", &before)) return fail("get");
    if (perilune_model_step(model, 1, in, m.nin, m.out, m.nout) != PERILUNE_ERR_STATE) return fail("a step at averages");
    if (perilune_model_get(model, "step", &after) || before != after) return fail("a step that was refused counts");
    if (k == 2 && perilune_model_save(model, saved)) return fail("save");
    for (int32_t i = 0; k == 2 && i < perilune_model_weight_count(model); i++) {
      const void *data;
      if (perilune_model_weight(model, i, &info, &data)) return fail("weight");
      if (info.dtype == PERILUNE_F32 && info.bytes >= sizeof(float)) printf("%s %.9g\n", info.name, (double)*(const float *)data);
    }
    if (perilune_model_average(model, 0)) return fail("average");
  }
  if (perilune_model_step(model, 1, in, m.nin, m.out, m.nout)) return fail("step");
  printf("loss %.9g\n", (double)*(const float *)m.out[0]);
  release(&m);
  return 0;
}

static int on(const char *path, const char *device) {
  const perilune_options options = {.size = sizeof options, .device = device};
  perilune_model *model;
  perilune_session *s;
  Memory m;
  const perilune_status st = perilune_model_load(path, &options, &model);
  if (st) printf("%d: %s\n", (int)st, perilune_message());
  if (st) return 0;
  if (prepare(model, 0, &m) || perilune_session_new(model, &s)) return fail("session");
  for (int again = 0; again < 2; again++)
    if (perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout)) return fail("run");
  for (int o = 0; o < m.nout; o++)
    for (size_t k = 0; k < 4 && k < m.bytes[o] / sizeof(float); k++) printf("%.6f\n", (double)((const float *)m.out[o])[k]);
  perilune_session_release(s);
  perilune_model_release(model);
  release(&m);
  return 0;
}

static int expect(perilune_status got, perilune_status want) {
  if (got == want) printf("%d: %s\n", (int)got, perilune_message());
  else printf("STATUS %d, not %d: %s\n", (int)got, (int)want, perilune_message());
  return got != want;
}

static int wrong(const char *path, perilune_model *model) {
  perilune_model *none;
  perilune_session *s;
  perilune_tensor_info t;
  Memory m;
  double d;
  const perilune_options device = {.size = sizeof device, .device = "abacus"};
  int bad = prepare(model, 0, &m);
  if (perilune_session_new(model, &s)) return fail("session");
  bad += expect(perilune_model_load(NULL, NULL, &none), PERILUNE_ERR_ARG);
  bad += expect(perilune_model_load("/no/such/model", NULL, &none), PERILUNE_ERR_IO);
  bad += expect(perilune_model_load("net.onnx", NULL, &none), PERILUNE_ERR_UNSUPPORTED);
  bad += expect(perilune_model_load(path, &device, &none), PERILUNE_ERR_ARG);
  bad += expect(perilune_model_input(model, 99, &t), PERILUNE_ERR_ARG);
  bad += expect(perilune_model_output(model, -1, &t), PERILUNE_ERR_ARG);
  bad += expect(perilune_model_weight(model, 99, &t, NULL), PERILUNE_ERR_ARG);
  bad += expect(perilune_session_run(s, (const void *const *)m.in, m.nin + 1, m.out, m.nout), PERILUNE_ERR_SHAPE);
  void *kept = m.out[0];
  m.out[0] = m.in[0];
  bad += expect(perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout), PERILUNE_ERR_ARG);
  m.out[0] = (char *)kept + 1;
  bad += expect(perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout), PERILUNE_ERR_ARG);
  m.out[0] = NULL;
  bad += expect(perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout), PERILUNE_ERR_ARG);
  m.out[0] = kept;
  bad += expect(perilune_session_set_threads(s, 0), PERILUNE_ERR_ARG);
  bad += expect(perilune_model_step(model, 1, (const void *const *)m.in, m.nin, m.out, m.nout), PERILUNE_ERR_STATE);
  bad += expect(perilune_model_get(model, "lr", &d), PERILUNE_ERR_STATE);
  perilune_stop(1);
  bad += expect(perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout), PERILUNE_ERR_INTERRUPT);
  perilune_stop(0);
  bad += perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout) != PERILUNE_OK;
  bad += perilune_session_result(s, 0) != NULL;
  perilune_session_release(s);
  perilune_session_release(NULL);
  perilune_model_release(NULL);
  release(&m);
  return bad;
}

/* ---- serving ------------------------------------------------------------------------------------------------------------- */

static uint64_t wanted[VARIANTS];
static atomic_int waiting;
static atomic_bool go;

typedef struct Server {
  pthread_t thread;
  perilune_model *model;
  int number;
  long runs, others;
} Server;

/* Sizes of a variant. */
static int resize(perilune_model *model, perilune_session *s, size_t k) {
  perilune_size_info z;
  for (int32_t i = 0; i < perilune_model_size_count(model); i++)
    if (perilune_model_size(model, i, &z) || perilune_session_set_size(s, z.name, z.least + (int64_t)((k + (size_t)i) % 6))) return 1;
  return 0;
}

static int prepare_variant(perilune_model *model, perilune_session *s, size_t k, Memory *m) {
  return resize(model, s, k) || prepare_at(s, perilune_model_input_count(model), perilune_model_output_count(model), k, m);
}

static void *serve(void *ctx) {
  Server *v = ctx;
  Memory m[VARIANTS];
  perilune_session *s;
  v->others = v->runs; /* until it is known better */
  bool bad = perilune_session_new(v->model, &s) != PERILUNE_OK;
  for (size_t k = 0; k < VARIANTS && !bad; k++) bad = prepare_variant(v->model, s, k, &m[k]) != 0;
  atomic_fetch_add(&waiting, 1);
  if (bad) return NULL;
  while (!atomic_load(&go)) {
  }
  long others = 0;
  for (long i = 0; i < v->runs; i++) {
    const long k = (i + v->number) % VARIANTS;
    if (resize(v->model, s, (size_t)k) || perilune_session_run(s, (const void *const *)m[k].in, m[k].nin, m[k].out, m[k].nout)) others++;
    else others += outputs(&m[k]) != wanted[k];
  }
  v->others = others;
  for (size_t k = 0; k < VARIANTS; k++) release(&m[k]);
  perilune_session_release(s);
  return NULL;
}

static int serve_all(perilune_model *model, int nthread, long runs) {
  perilune_session *s;
  Server v[PORTS];
  if (nthread < 1 || nthread > PORTS || perilune_session_new(model, &s)) return fail("session");
  for (size_t k = 0; k < VARIANTS; k++) {
    Memory m;
    if (prepare_variant(model, s, k, &m)) return fail("prepare");
    if (perilune_session_run(s, (const void *const *)m.in, m.nin, m.out, m.nout)) return fail("run");
    wanted[k] = outputs(&m);
    release(&m);
  }
  perilune_session_release(s);
  for (int i = 0; i < nthread; i++) {
    v[i] = (Server){.model = model, .number = i, .runs = runs};
    if (pthread_create(&v[i].thread, NULL, serve, &v[i])) return 1;
  }
  while (atomic_load(&waiting) < nthread) {
  }
  perilune_model_release(model); /* sessions keep it */
  atomic_store(&go, true);
  long others = 0;
  for (int i = 0; i < nthread; i++) {
    pthread_join(v[i].thread, NULL);
    others += v[i].others;
  }
  printf("%d threads, %ld runs each, %ld with other bits\n", nthread, runs, others);
  return others != 0;
}

/* Steps of which the second fails: its first place is not there. */
static int failed(perilune_model *model, const char *size, int64_t n) {
  int64_t where[64];
  float result;
  double steps;
  const void *in = where;
  void *out = &result;
  if (n > 64 || perilune_model_set_size(model, size, n)) return fail("size");
  for (int k = 0; k < 4; k++) {
    for (int64_t i = 0; i < n; i++) where[i] = i == 0 && k == 1 ? 99 : 1 + i % 3;
    const perilune_status st = perilune_model_step(model, 1, &in, 1, &out, 1);
    if (perilune_model_get(model, "step", &steps)) return fail("get");
    if (st) printf("failed, step %g\n", steps);
    else printf("%.9g, step %g\n", (double)result, steps);
  }
  return 0;
}

int main(int argc, char **argv) {
  perilune_model *model;
  if (argc < 3) {
    puts("skipped: spec/deploy/abi_spec.lua gives it models");
    return 77;
  }
  setlocale(LC_NUMERIC, ""); /* as programs with a window do */
  if (perilune_abi_version() / 1000 != PERILUNE_ABI_VERSION / 1000 || perilune_abi_version() < PERILUNE_ABI_VERSION) return 1;
  if (!*perilune_release()) return 1;
  if (strcmp(argv[1], "on") == 0 && argc == 4) return on(argv[2], argv[3]);
  if (perilune_model_load(argv[2], NULL, &model)) return fail("load");
  if (strcmp(argv[1], "serve") == 0 && argc == 5) return serve_all(model, atoi(argv[3]), atol(argv[4]));
  int status = 2;
  if (strcmp(argv[1], "run") == 0) status = run(model);
  if (strcmp(argv[1], "free") == 0) status = free_sizes(model, argc - 3, argv + 3);
  if (strcmp(argv[1], "step") == 0 && argc >= 4) status = step(model, atoi(argv[3]), argv[4], 1);
  if (strcmp(argv[1], "steps") == 0 && argc >= 4) status = step(model, atoi(argv[3]), argv[4], 0);
  if (strcmp(argv[1], "steps_at") == 0 && argc >= 4) status = steps_at(model, argc - 4, argv + 4, argv[3]);
  if (strcmp(argv[1], "failed") == 0 && argc == 5) status = failed(model, argv[3], atol(argv[4]));
  if (strcmp(argv[1], "averages") == 0 && argc == 4) status = averages(model, argv[3]);
  if (strcmp(argv[1], "wrong") == 0) status = wrong(argv[2], model);
  perilune_model_release(model);
  return status;
}
