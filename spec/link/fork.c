/* SPDX-License-Identifier: MIT
 * fork: a child of a process that has used its threads computes the same bits on one thread and does not
 * hang (the library's team of threads does not survive a fork). So does a child of the child. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/perilune.h"
#include "kernels/kernel.h"

enum { THREADS = 2, CHILD_SECONDS = 20, KINDS = 4 };

static PlStatus ramp(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape) {
  PL_TRY(pl_tensor_full(out, dtype, ndim, shape, 0));
  for (int64_t i = 0; i < pl_tensor_numel(*out); i++) {
    double v = (double)((i * 7919) % 1013) / 1013 - 0.5;
    if (dtype == PL_F64) ((double *)pl_tensor_data(*out))[i] = v;
    else ((float *)pl_tensor_data(*out))[i] = (float)v;
  }
  return PL_OK;
}

/* Kind 0: f32 product, 1: f64 product, 2: elementwise and a sum, 3: convolution. */
static PlStatus compute(int kind, PlTensor **out) {
  static const int64_t square[2] = {600, 600}, image[4] = {4, 8, 40, 40}, weight[4] = {16, 8, 3, 3};
  static const char *const names[KINDS] = {"matmul", "matmul", "mul", "conv2d"};
  PlTensor *in[2] = {NULL, NULL};
  PlDtype dtype = kind == 1 ? PL_F64 : PL_F32;
  PlStatus s = ramp(&in[0], dtype, kind == 3 ? 4 : 2, kind == 3 ? image : square);
  if (s == PL_OK) s = ramp(&in[1], dtype, kind == 3 ? 4 : 2, kind == 3 ? weight : square);
  if (s == PL_OK) s = pl_apply(pl_op_find(names[kind]), in, 2, NULL, out);
  if (s == PL_OK && kind == 2) {
    PlTensor *product = *out;
    s = pl_apply(pl_op_find("sum"), &product, 1, NULL, out);
    pl_tensor_release(product);
  }
  pl_tensor_release(in[0]);
  pl_tensor_release(in[1]);
  return s;
}

/* 0 if every kind gives the bits of `want`. */
static int check(PlTensor *const *want, const char *who) {
  int bad = 0;
  for (int k = 0; k < KINDS; k++) {
    PlTensor *got;
    if (compute(k, &got) != PL_OK) return fprintf(stderr, "%s, kind %d: %s\n", who, k, pl_message()), 1;
    size_t bytes = (size_t)pl_tensor_numel(got) * pl_dtype_size(pl_tensor_dtype(got));
    if (memcmp(pl_tensor_data(got), pl_tensor_data(want[k]), bytes) != 0)
      bad = fprintf(stderr, "%s, kind %d: other bits than before the fork\n", who, k);
    pl_tensor_release(got);
  }
  return bad != 0;
}

static int in_child(PlTensor *const *want, int generation) {
  pid_t child = fork();
  if (child < 0) return perror("fork"), 1;
  if (child == 0) {
    alarm(CHILD_SECONDS);
    int bad = 0;
    plk_set_threads(THREADS);
    if (plk_threads() != 1) bad = fprintf(stderr, "generation %d uses %d threads\n", generation, plk_threads());
    bad |= check(want, generation == 1 ? "child" : "grandchild");
    if (generation == 1) bad |= in_child(want, 2);
    _exit(bad != 0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) < 0) return perror("waitpid"), 1;
  if (WIFSIGNALED(status))
    return fprintf(stderr, "generation %d ended by signal %d%s\n", generation, WTERMSIG(status),
                   WTERMSIG(status) == SIGALRM ? ": it hangs" : ""),
           1;
  return WEXITSTATUS(status);
}

int main(void) {
  PlTensor *want[KINDS];
  plk_set_threads(THREADS);
  for (int k = 0; k < KINDS; k++)
    if (compute(k, &want[k]) != PL_OK) return fprintf(stderr, "%s\n", pl_message()), 1;
  int bad = in_child(want, 1);
  if (plk_threads() != THREADS) bad |= fprintf(stderr, "the parent lost its threads\n");
  bad |= check(want, "parent after the fork");
  for (int k = 0; k < KINDS; k++) pl_tensor_release(want[k]);
  return bad != 0;
}
