/* SPDX-License-Identifier: MIT
 * Runs a saved model in C, without Lua, on several threads at once. Write a model, then build and run:
 *   perilune -e 'local f = T.jit(T.nn.Linear(4, 2)); f(T.ones(3, 4)); print(T.save_graph("net.graph", f:graph()))'
 *   cc run_model.c -o run_model $(pkg-config --cflags --libs perilune-model) -lpthread
 *   ./run_model net.graph
 * Inputs are ones; the first numbers of each output are printed, and whether all threads got the same. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <perilune_model.h>

enum { THREADS = 4, RUNS = 100, MOST = 16 };

typedef struct Worker {
  pthread_t thread;
  perilune_model *model;
  void *out[MOST];
  int failed;
} Worker;

/* Memory for a tensor of floats, all of them ones. */
static void *ones(const perilune_tensor_info *t) {
  float *x = malloc(t->bytes + 1);
  for (size_t i = 0; x && i < t->bytes / sizeof *x; i++) x[i] = 1;
  return x;
}

/* A session of its own: nothing is waited for. */
static void *work(void *arg) {
  Worker *w = arg;
  const int32_t nin = perilune_model_input_count(w->model), nout = perilune_model_output_count(w->model);
  void *in[MOST] = {NULL};
  perilune_session *session = NULL;
  perilune_tensor_info t;
  w->failed = 1;
  for (int32_t i = 0; i < nin; i++)
    if (perilune_model_input(w->model, i, &t) || !(in[i] = ones(&t))) return NULL;
  for (int32_t i = 0; i < nout; i++)
    if (perilune_model_output(w->model, i, &t) || !(w->out[i] = malloc(t.bytes + 1))) return NULL;
  w->failed = perilune_session_new(w->model, &session);
  for (int run = 0; run < RUNS && !w->failed; run++) w->failed = perilune_session_run(session, (const void *const *)in, nin, w->out, nout);
  if (w->failed) fprintf(stderr, "run_model: %s\n", perilune_message());
  perilune_session_release(session);
  for (int32_t i = 0; i < nin; i++) free(in[i]);
  return NULL;
}

/* The model's inputs and outputs; 1: not for this program. */
static int tell(const perilune_model *m) {
  perilune_tensor_info t;
  const int32_t nin = perilune_model_input_count(m), nout = perilune_model_output_count(m);
  if (nin > MOST || nout > MOST) return fprintf(stderr, "run_model: too many inputs or outputs\n"), 1;
  for (int32_t i = 0; i < nin + nout; i++) {
    if (i < nin ? perilune_model_input(m, i, &t) : perilune_model_output(m, i - nin, &t)) return 1;
    printf("%s %s %s[", i < nin ? "input" : "output", t.name, perilune_dtype_name(t.dtype));
    for (int32_t d = 0; d < t.ndim; d++) printf("%s%lld", d ? "," : "", (long long)t.shape[d]);
    printf("]\n");
    if (t.dtype != PERILUNE_F32) return fprintf(stderr, "run_model: this program has 32-bit floats only\n"), 1;
  }
  return 0;
}

int main(int argc, char **argv) {
  perilune_model *model = NULL;
  perilune_tensor_info t;
  Worker w[THREADS] = {{0}};
  int same = 1, failed = 0;
  if (perilune_model_load(argc > 1 ? argv[1] : "net.graph", NULL, &model)) {
    fprintf(stderr, "run_model: %s\n", perilune_message());
    return 1;
  }
  if (tell(model)) return perilune_model_release(model), 1;
  for (int i = 0; i < THREADS; i++) {
    w[i].model = model;
    if (pthread_create(&w[i].thread, NULL, work, &w[i])) return 1;
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(w[i].thread, NULL);
    failed |= w[i].failed;
  }
  for (int32_t o = 0; o < perilune_model_output_count(model) && !failed; o++) {
    perilune_model_output(model, o, &t);
    for (int i = 1; i < THREADS; i++) same &= memcmp(w[0].out[o], w[i].out[o], t.bytes) == 0;
    printf("%s:", t.name);
    for (size_t k = 0; k < 3 && k < t.bytes / sizeof(float); k++) printf(" %.4f", (double)((const float *)w[0].out[o])[k]);
    printf("\n");
  }
  for (int i = 0; i < THREADS; i++)
    for (int o = 0; o < MOST; o++) free(w[i].out[o]);
  perilune_model_release(model);
  if (failed) return 1;
  puts(same ? "ok" : "the threads differ");
  return !same;
}
