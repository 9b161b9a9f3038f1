/* SPDX-License-Identifier: MIT
 * Parallel loops: every block runs exactly once, whoever runs it; the lowest failing block is reported; loops from two
 * threads at once, and loops inside loops, do not disturb each other; helpers that sleep come back. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kernels/kernel.h"

enum { BLOCKS = 97, ROUNDS = 4000, CALLERS = 2, INNER = 5 };

typedef struct Job {
  atomic_int runs[BLOCKS];
  int64_t fail_from; /* blocks from here on fail */
  bool nested;
} Job;

static PlStatus inner(void *ctx, int64_t begin, int64_t end) {
  atomic_fetch_add((atomic_int *)ctx, (int)(end - begin));
  return PL_OK;
}

static PlStatus body(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  for (int64_t i = begin; i < end; i++) atomic_fetch_add(&j->runs[i], 1);
  if (begin >= j->fail_from) PL_FAIL(PL_ERR_ARG, "block %lld", (long long)begin);
  if (!j->nested) return PL_OK;
  atomic_int sum = 0;
  PL_TRY(plk_parallel(INNER, 1, inner, &sum));
  if (atomic_load(&sum) != INNER) PL_FAIL(PL_ERR_STATE, "the inner loop ran %d of %d", atomic_load(&sum), INNER);
  return PL_OK;
}

static int round_once(int r) {
  Job j;
  memset(&j, 0, sizeof j);
  j.fail_from = r % 5 == 4 ? r % BLOCKS : BLOCKS;
  j.nested = r % 7 == 0;
  const PlStatus s = plk_parallel(BLOCKS, 1, body, &j);
  const int64_t whole = j.fail_from < BLOCKS ? j.fail_from + 1 : BLOCKS; /* these must have run */
  for (int64_t i = 0; i < BLOCKS; i++) {
    const int n = atomic_load(&j.runs[i]);
    if (n > 1 || (i < whole && n != 1)) return fprintf(stderr, "round %d: block %lld ran %d times\n", r, (long long)i, n);
  }
  if (j.fail_from == BLOCKS) return s == PL_OK ? 0 : fprintf(stderr, "round %d: %s\n", r, pl_message());
  char want[32];
  snprintf(want, sizeof want, "block %lld", (long long)j.fail_from);
  if (s == PL_ERR_ARG && strcmp(pl_message(), want) == 0) return 0;
  return fprintf(stderr, "round %d: '%s' instead of '%s'\n", r, pl_message(), want);
}

static void *caller(void *arg) {
  int *bad = arg;
  plk_set_threads(3);
  for (int r = 0; r < ROUNDS && !*bad; r++) {
    *bad = round_once(r);
    if (r % 500 == 0) nanosleep(&(struct timespec){0, 2000000}, NULL); /* helpers fall asleep */
  }
  pl_message_end(); /* the engine does it for threads that use it */
  return NULL;
}

int main(void) {
  pthread_t id[CALLERS];
  int bad[CALLERS] = {0}, any = 0;
  for (int i = 0; i < CALLERS; i++)
    if (pthread_create(&id[i], NULL, caller, &bad[i]) != 0) return 2;
  for (int i = 0; i < CALLERS; i++) {
    pthread_join(id[i], NULL);
    any |= bad[i];
  }
  if (!any) printf("%d loops of %d blocks from %d threads\n", CALLERS * ROUNDS, BLOCKS, CALLERS);
  return any != 0;
}
