/* SPDX-License-Identifier: MIT
 * The link check: engine and kernels without Lua. Trains a small network (2-8-1, tanh) on XOR through the
 * public C API, checks a refusal, and ends with as many live blocks as it began with. Linked against the
 * two archives alone, so a symbol of Lua's in either stops the build. */
#include <stdio.h>

#include "engine/perilune.h"

enum { HIDDEN = 8, STEPS = 3000 };

typedef struct Net {
  PlTensor *w1, *b1, *w2, *b2;
} Net;

static PlStatus op2(const char *name, PlTensor *a, PlTensor *b, PlTensor **out) {
  const PlOp *op = pl_op_find(name);
  if (!op) return pl_fail(PL_ERR_UNSUPPORTED, "no op named %s", name);
  PlTensor *in[2] = {a, b};
  return pl_apply(op, in, b ? 2 : 1, NULL, out);
}

/* *x becomes op(*x, b); the old *x is released, whatever happens. */
static PlStatus then(const char *name, PlTensor **x, PlTensor *b) {
  PlTensor *old = *x;
  PlStatus status = op2(name, old, b, x);
  if (status != PL_OK) *x = NULL;
  pl_tensor_release(old);
  return status;
}

/* A parameter with values in [-1, 1) from a small generator of our own: the same on every run. */
static PlStatus parameter(PlTensor **out, int64_t rows, int64_t columns, uint32_t *seed) {
  float values[2 * HIDDEN];
  int64_t shape[2] = {rows, columns};
  for (int64_t i = 0; i < rows * columns; i++) {
    *seed = *seed * 1664525u + 1013904223u;
    values[i] = (float)(*seed >> 8) / 8388608.0f - 1.0f;
  }
  PL_TRY(pl_tensor_from(out, PL_F32, 2, shape, values));
  return pl_requires_grad(*out, true);
}

/* loss = mean((tanh(x w1 + b1) w2 + b2 - y)^2) */
static PlStatus forward(const Net *net, PlTensor *x, PlTensor *y, PlTensor **loss) {
  *loss = NULL;
  PL_TRY(op2("matmul", x, net->w1, loss));
  PL_TRY(then("add", loss, net->b1));
  PL_TRY(then("tanh", loss, NULL));
  PL_TRY(then("matmul", loss, net->w2));
  PL_TRY(then("add", loss, net->b2));
  PL_TRY(then("sub", loss, y));
  PL_TRY(then("square", loss, NULL));
  return then("mean", loss, NULL);
}

/* w = w - rate * w.grad, in place and unrecorded; clears the gradient. */
static PlStatus descend(PlTensor *w, PlTensor *rate) {
  PlTensor *step = NULL;
  if (!pl_grad(w)) return pl_fail(PL_ERR_STATE, "a parameter got no gradient");
  bool was = pl_grad_enable(false);
  PlStatus status = op2("mul", pl_grad(w), rate, &step);
  if (status == PL_OK) {
    PlTensor *in[2] = {w, step};
    status = pl_apply_into(pl_op_find("sub"), in, 2, NULL, &w);
    pl_tensor_release(step);
  }
  pl_grad_enable(was);
  PL_TRY(status);
  return pl_set_grad(w, NULL);
}

static PlStatus train(Net *net, PlTensor *x, PlTensor *y, PlTensor *rate, float *first, float *last) {
  PlTensor *parameters[4] = {net->w1, net->b1, net->w2, net->b2};
  for (int step = 0; step < STEPS; step++) {
    PlTensor *loss;
    PlStatus status = forward(net, x, y, &loss);
    if (status == PL_OK) {
      *last = *(const float *)pl_tensor_data(loss);
      if (step == 0) *first = *last;
      status = pl_backward(&loss, NULL, 1, false, false);
    }
    pl_tensor_release(loss);
    PL_TRY(status);
    for (int i = 0; i < 4; i++) PL_TRY(descend(parameters[i], rate));
  }
  return PL_OK;
}

/* Shapes that do not fit must be refused with a message, and leave nothing behind. */
static PlStatus check_refusal(PlTensor *x) {
  PlTensor *out = NULL;
  PlStatus status = op2("matmul", x, x, &out);
  if (status == PL_ERR_SHAPE && !out && pl_message()[0]) return PL_OK;
  pl_tensor_release(out);
  return pl_fail(PL_ERR_STATE, "matmul took [4,2] x [4,2]: status %d, message \"%s\"", (int)status, pl_message());
}

static PlStatus run(float *first, float *last) {
  static const float inputs[8] = {0, 0, 0, 1, 1, 0, 1, 1}, outputs[4] = {0, 1, 1, 0};
  const int64_t x_shape[2] = {4, 2}, y_shape[2] = {4, 1};
  Net net = {0};
  PlTensor *x = NULL, *y = NULL, *rate = NULL;
  uint32_t seed = 1;
  PlStatus status = pl_tensor_from(&x, PL_F32, 2, x_shape, inputs);
  if (status == PL_OK) status = pl_tensor_from(&y, PL_F32, 2, y_shape, outputs);
  if (status == PL_OK) status = pl_tensor_number(&rate, false, 0, 0.1);
  if (status == PL_OK) status = parameter(&net.w1, 2, HIDDEN, &seed);
  if (status == PL_OK) status = parameter(&net.b1, 1, HIDDEN, &seed);
  if (status == PL_OK) status = parameter(&net.w2, HIDDEN, 1, &seed);
  if (status == PL_OK) status = parameter(&net.b2, 1, 1, &seed);
  if (status == PL_OK) status = check_refusal(x);
  if (status == PL_OK) status = train(&net, x, y, rate, first, last);
  PlTensor *all[] = {x, y, rate, net.w1, net.b1, net.w2, net.b2};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) pl_tensor_release(all[i]);
  return status;
}

int main(void) {
  PlMemory before, after;
  float first = 0, last = 0;
  PlStatus status = run(&first, &last); /* fills the caches that stay */
  pl_memory(&before);
  if (status == PL_OK) status = run(&first, &last);
  if (status != PL_OK) return fprintf(stderr, "status %d: %s\n", (int)status, pl_message()), 1;
  pl_memory(&after);
  printf("perilune %s: XOR loss %.4f -> %.6f in %d steps\n", pl_version(), (double)first, (double)last, (int)STEPS);
  if (!(last < 0.01f && first > 0.1f)) return fputs("it did not learn\n", stderr), 1;
  if (after.blocks != before.blocks) return fprintf(stderr, "%lld blocks leaked\n", (long long)(after.blocks - before.blocks)), 1;
  return 0;
}
