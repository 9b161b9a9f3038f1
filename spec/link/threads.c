/* SPDX-License-Identifier: MIT
 * Threads: independent work in two threads at once gives the bits that one thread alone gives, each thread has
 * its own tape, random state and messages, and nothing is left when they have ended. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/perilune.h"
#include "kernels/kernel.h"

enum { WORKERS = 2, ROUNDS = 12, SIZE = 96 };

typedef struct Worker {
  uint64_t seed;
  double result[ROUNDS];
  PlStatus status;
  char message[200];
} Worker;

static PlStatus op(const char *name, PlTensor *a, PlTensor *b, PlTensor **out) {
  PlTensor *in[2] = {a, b};
  if (!pl_op_find(name)) return pl_fail(PL_ERR_UNSUPPORTED, "no op named %s", name);
  return pl_apply(pl_op_find(name), in, b ? 2 : 1, NULL, out);
}

/* y = sum(tanh(w x) * noise); the sum of w's gradient and of y. */
static PlStatus steps(PlTensor *w, PlTensor *x, PlTensor *noise, PlTensor **keep, double *result) {
  PL_TRY(op("matmul", w, x, &keep[0]));
  PL_TRY(op("tanh", keep[0], NULL, &keep[1]));
  PL_TRY(op("mul", keep[1], noise, &keep[2]));
  PL_TRY(op("sum", keep[2], NULL, &keep[3]));
  PL_TRY(pl_backward(&keep[3], NULL, 1, false, false));
  PL_TRY(op("sum", pl_grad(w), NULL, &keep[4]));
  *result = (double)*(const float *)pl_tensor_data(keep[3]) + (double)*(const float *)pl_tensor_data(keep[4]);
  return PL_OK;
}

static PlStatus random_matrix(PlTensor **out) {
  static const int64_t shape[2] = {SIZE, SIZE};
  const PlOp *normal = pl_op_find("normal");
  PlAttrs attrs;
  pl_attrs_init(normal, &attrs);
  pl_attrs_float(&attrs, 0, 0);
  pl_attrs_float(&attrs, 1, 1);
  PL_TRY(pl_attrs_list(&attrs, 2, 2, shape));
  return pl_apply(normal, NULL, 0, &attrs, out);
}

static PlStatus one_round(double *result) {
  PlTensor *t[3] = {NULL}, *keep[5] = {NULL};
  PlStatus s = PL_OK;
  for (int i = 0; i < 3 && s == PL_OK; i++) s = random_matrix(&t[i]);
  if (s == PL_OK) s = pl_requires_grad(t[0], true);
  if (s == PL_OK) s = steps(t[0], t[1], t[2], keep, result);
  for (int i = 0; i < 5; i++) pl_tensor_release(keep[i]);
  for (int i = 0; i < 3; i++) pl_tensor_release(t[i]);
  return s;
}

/* A refusal whose message names this thread's own shape. */
static PlStatus own_message(uint64_t seed) {
  const int64_t n = 3 + (int64_t)seed, a_shape[2] = {2, n}, b_shape[2] = {n + 1, 2};
  PlTensor *a, *b, *out = NULL;
  char want[32];
  PL_TRY(pl_tensor_full(&a, PL_F32, 2, a_shape, 0));
  PL_TRY(pl_tensor_full(&b, PL_F32, 2, b_shape, 0));
  PlStatus s = op("matmul", a, b, &out);
  snprintf(want, sizeof want, "f32[2,%lld]", (long long)n);
  pl_tensor_release(a);
  pl_tensor_release(b);
  pl_tensor_release(out);
  if (s == PL_ERR_SHAPE && strstr(pl_message(), want)) return PL_OK;
  return pl_fail(PL_ERR_STATE, "the message is another thread's: %s", pl_message());
}

static void *work(void *p) {
  Worker *w = p;
  plk_set_threads(2);
  pl_manual_seed(w->seed);
  w->status = PL_OK;
  for (int r = 0; r < ROUNDS && w->status == PL_OK; r++) {
    w->status = one_round(&w->result[r]);
    if (w->status == PL_OK) w->status = own_message(w->seed);
  }
  if (w->status != PL_OK) snprintf(w->message, sizeof w->message, "%s", pl_message());
  return NULL;
}

int main(void) {
  Worker alone[WORKERS], together[WORKERS];
  pthread_t threads[WORKERS];
  PlMemory before, after;
  int bad = 0;
  memset(alone, 0, sizeof alone);
  memset(together, 0, sizeof together);
  for (int i = 0; i < WORKERS; i++) {
    alone[i].seed = together[i].seed = (uint64_t)i + 1;
    work(&alone[i]);
    if (alone[i].status != PL_OK) return fprintf(stderr, "alone: %s\n", alone[i].message), 1;
  }
  pl_memory(&before); /* with what this thread has cached */
  for (int i = 0; i < WORKERS; i++)
    if (pthread_create(&threads[i], NULL, work, &together[i]) != 0) return perror("pthread_create"), 1;
  for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < WORKERS; i++) {
    if (together[i].status != PL_OK) bad = fprintf(stderr, "thread %d: %s\n", i, together[i].message);
    else if (memcmp(alone[i].result, together[i].result, sizeof alone[i].result) != 0)
      bad = fprintf(stderr, "thread %d: other bits than alone\n", i);
  }
  if (alone[0].result[0] == alone[1].result[0]) bad = fprintf(stderr, "two seeds gave one result\n");
  pl_memory(&after);
  if (after.blocks != before.blocks) bad = fprintf(stderr, "%lld blocks left\n", (long long)(after.blocks - before.blocks));
  return bad != 0;
}
