/* SPDX-License-Identifier: MIT
 * Training in C without Lua, with an optimizer of the engine: a network of two layers learns sin(x) by Adam. Build and run:
 *   cc adam.c -o adam $(pkg-config --cflags --libs perilune)
 *   ./adam
 * Every function that can fail returns a status; PL_TRY passes it on, and main says what went wrong. */
#include <math.h>
#include <stdio.h>

#include <perilune.h>

enum { SAMPLES = 128, HIDDEN = 32, STEPS = 2000, PARAMETERS = 4 };

/* A parameter, and what Adam keeps for it: means of its gradient and of the gradient's square. */
typedef struct Parameter {
  PlTensor *value, *mean, *square;
} Parameter;

/* *out = op(a, b, attributes); b may be NULL */
static PlStatus apply(const char *name, PlTensor *a, PlTensor *b, const PlAttrs *attrs, PlTensor **out) {
  PlTensor *in[2] = {a, b};
  return pl_apply(pl_op_find(name), in, b ? 2 : 1, attrs, out);
}

/* *x = op(*x, b); what *x was is released */
static PlStatus then(PlTensor **x, const char *name, PlTensor *b) {
  PlTensor *before = *x;
  *x = NULL;
  PlStatus status = apply(name, before, b, NULL, x);
  pl_tensor_release(before);
  return status;
}

/* Normal numbers times scale; attributes are set by their names. */
static PlStatus make_parameter(Parameter *p, int64_t rows, int64_t columns, double scale) {
  const PlOp *normal = pl_op_find("normal");
  const int64_t shape[2] = {rows, columns};
  PlAttrs a;
  pl_attrs_init(normal, &a);
  PL_TRY(pl_attrs_set_float(normal, &a, "mean", 0));
  PL_TRY(pl_attrs_set_float(normal, &a, "std", scale));
  PL_TRY(pl_attrs_set_list(normal, &a, "shape", 2, shape));
  PL_TRY(pl_apply(normal, NULL, 0, &a, &p->value));
  PL_TRY(pl_requires_grad(p->value, true));
  PL_TRY(pl_tensor_full(&p->mean, PL_F32, 2, shape, 0));
  return pl_tensor_full(&p->square, PL_F32, 2, shape, 0);
}

/* tanh(x w1 + b1) w2 + b2 */
static PlStatus predict(const Parameter *p, PlTensor *x, PlTensor **y) {
  PL_TRY(apply("matmul", x, p[0].value, NULL, y));
  PL_TRY(then(y, "add", p[1].value));
  PL_TRY(then(y, "tanh", NULL));
  PL_TRY(then(y, "matmul", p[2].value));
  return then(y, "add", p[3].value);
}

/* One step of Adam for all parameters at once: they are a list of value, gradient, mean, square. */
static PlStatus update(Parameter *p, int step) {
  const PlOp *adam = pl_op_find("adam_step");
  PlTensor *list[4 * PARAMETERS], *first = NULL;
  PlAttrs a;
  for (int i = 0; i < PARAMETERS; i++) {
    list[4 * i] = p[i].value;
    list[4 * i + 1] = pl_grad(p[i].value); /* borrowed: it belongs to the parameter */
    list[4 * i + 2] = p[i].mean;
    list[4 * i + 3] = p[i].square;
  }
  pl_attrs_init(adam, &a);
  PL_TRY(pl_attrs_set_float(adam, &a, "lr", 0.01));
  PL_TRY(pl_attrs_set_int(adam, &a, "step", step));
  const bool was = pl_grad_enable(false);
  PlStatus status = pl_apply(adam, list, 4 * PARAMETERS, &a, &first); /* in place; what it gives is the first parameter */
  pl_grad_enable(was);
  pl_tensor_release(first);
  for (int i = 0; status == PL_OK && i < PARAMETERS; i++) status = pl_set_grad(p[i].value, NULL);
  return status;
}

static PlStatus train(Parameter *p, PlTensor *x, PlTensor *y) {
  for (int step = 1; step <= STEPS; step++) {
    PlTensor *loss = NULL;
    PlStatus status = predict(p, x, &loss);
    if (status == PL_OK) status = then(&loss, "sub", y);
    if (status == PL_OK) status = then(&loss, "square", NULL);
    if (status == PL_OK) status = then(&loss, "mean", NULL);
    if (status == PL_OK) status = pl_backward(&loss, NULL, 1, false, false);
    if (status == PL_OK) status = update(p, step);
    if (status == PL_OK && step % 500 == 0) printf("step %d, loss %.5f\n", step, (double)*(const float *)pl_tensor_data(loss));
    pl_tensor_release(loss);
    PL_TRY(status);
  }
  return PL_OK;
}

static PlStatus compare(const Parameter *p, PlTensor *x, const float *wanted, double *worst) {
  PlTensor *y = NULL;
  const bool was = pl_grad_enable(false);
  PlStatus status = predict(p, x, &y);
  pl_grad_enable(was);
  *worst = 0;
  if (status == PL_OK)
    for (int i = 0; i < SAMPLES; i++) *worst = fmax(*worst, fabs((double)((const float *)pl_tensor_data(y))[i] - (double)wanted[i]));
  pl_tensor_release(y);
  return status;
}

int main(void) {
  static float xs[SAMPLES], ys[SAMPLES];
  const int64_t shape[2] = {SAMPLES, 1};
  Parameter p[PARAMETERS] = {0};
  PlTensor *x = NULL, *y = NULL;
  double worst = 0;
  for (int i = 0; i < SAMPLES; i++) {
    xs[i] = -3.0f + 6.0f * (float)i / (SAMPLES - 1);
    ys[i] = sinf(xs[i]);
  }
  pl_manual_seed(1);
  PlStatus status = pl_tensor_from(&x, PL_F32, 2, shape, xs);
  if (status == PL_OK) status = pl_tensor_from(&y, PL_F32, 2, shape, ys);
  if (status == PL_OK) status = make_parameter(&p[0], 1, HIDDEN, 1.0);
  if (status == PL_OK) status = make_parameter(&p[1], 1, HIDDEN, 1.0);
  if (status == PL_OK) status = make_parameter(&p[2], HIDDEN, 1, 0.2);
  if (status == PL_OK) status = make_parameter(&p[3], 1, 1, 0.0);
  if (status == PL_OK) status = train(p, x, y);
  if (status == PL_OK) status = compare(p, x, ys, &worst);
  if (status != PL_OK) fprintf(stderr, "adam: %s\n", pl_message());
  for (int i = 0; i < PARAMETERS; i++) {
    pl_tensor_release(p[i].value);
    pl_tensor_release(p[i].mean);
    pl_tensor_release(p[i].square);
  }
  pl_tensor_release(x);
  pl_tensor_release(y);
  if (status != PL_OK) return 1;
  printf("largest error %.3f\n%s\n", worst, worst < 0.05 ? "ok" : "it did not learn");
  return worst < 0.05 ? 0 : 1;
}
