/* SPDX-License-Identifier: MIT
 * Optimizer steps and list helpers as ops. Each works in place on a list, grouped by parameter: k tensors for
 * one parameter, then k for the next. One call, one parallel region (kernels/optim.h). */
#include "kernels/optim.h"
#include "engine/ops/op.h"

/* A state in 8 bits of the parameter p. */
static PlStatus check_coded(PlInfer *c, int i, const PlArray *p) {
  const PlArray *a = c->in[i];
  const int64_t rows = (p->numel + PLK_CODED_BLOCK - 1) / PLK_CODED_BLOCK;
  if (a->ndim != 2 || a->shape[0] != rows || a->shape[1] != PLK_CODED_ROW || !a->contiguous)
    PL_FAIL(PL_ERR_SHAPE, "%s: tensor %d of the list, a state in 8 bits, is %s%s, but its parameter %s needs a contiguous [%lld, %d]",
            c->op->name, i + 1, pl_desc_text(a), a->contiguous ? "" : ", strided", pl_desc_text(p), (long long)rows, PLK_CODED_ROW);
  return PL_OK;
}

enum { ALL_BUT_GRADIENT = 0x7FFFFFFF & ~2 };

/* Every group: equal shapes, floats, states also in 8 bits; outputs: the first tensor. The first n of the list are groups;
 * writes: which of a group's tensors change, a bit each. */
static PlStatus check_groups(PlInfer *c, int n, int64_t k, int64_t least, int64_t most, unsigned writes) {
  const char *op = c->op->name;
  if (k < least || k > most)
    PL_FAIL(PL_ERR_ARG, "%s: k is %lld, must be %lld to %lld", op, (long long)k, (long long)least, (long long)most);
  if (n % k != 0) PL_FAIL(PL_ERR_ARG, "%s: %d tensors are not groups of %lld", op, n, (long long)k);
  for (int i = 0; i < n; i++) {
    const PlArray *a = c->in[i], *p = c->in[i - i % (int)k];
    if (i % k >= 2 && plk_coded(a)) {
      PL_TRY(check_coded(c, i, p));
      continue;
    }
    PL_TRY(pl_check_float(c, i));
    bool same = a->ndim == p->ndim;
    for (int d = 0; same && d < a->ndim; d++) same = a->shape[d] == p->shape[d];
    if (!same)
      PL_FAIL(PL_ERR_SHAPE, "%s: tensor %d of the list is %s, but its parameter is %s", op, i + 1, pl_desc_text(a), pl_desc_text(p));
    for (int d = 0; (writes >> i % (int)k & 1) && d < a->ndim; d++)
      if (a->strides[d] == 0 && a->shape[d] > 1)
        PL_FAIL(PL_ERR_STATE, "%s: tensor %d of the list, %s, is expanded: its elements share memory", op, i + 1, pl_desc_text(a));
  }
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}

static PlStatus sgd_infer(PlInfer *c) {
  int64_t k = pl_attr_i(c->attrs, PLK_SGD_K);
  PL_TRY(check_groups(c, c->nin, k, 2, 3, ALL_BUT_GRADIENT));
  if (k == 2 && pl_attr_f(c->attrs, PLK_SGD_MOMENTUM) != 0)
    PL_FAIL(PL_ERR_ARG, "sgd_step: momentum needs a buffer for each parameter (k = 3)");
  return PL_OK;
}
static PlStatus adam_infer(PlInfer *c) {
  PL_TRY(check_groups(c, c->nin, pl_attr_i(c->attrs, PLK_ADAM_K), 4, 5, ALL_BUT_GRADIENT));
  if (pl_attr_i(c->attrs, PLK_ADAM_STEP) < 1) PL_FAIL(PL_ERR_ARG, "adam_step: step counts from 1");
  return PL_OK;
}

#define LIST       .nin = PL_VARIADIC, .nout = 1, .cls = PL_OPAQUE
#define STEP_FLAGS (PL_F_MUTATES | PL_F_NOMETHOD | PL_F_NOGRAD_OK)

PL_OP(sgd_step, .doc = "One step of SGD over the list {param, grad [, buffer], param, grad …}, k tensors a ",
      .example = "local p, grad = T.tensor { 1 }, T.tensor { 2 }\n"
                 "T.core.op.sgd_step({ p, grad }, { k = 2, lr = 0.1 }) -- what optim.SGD calls\n"
                 "print(p)  --> {0.8000}  -- f32[1] cpu",
      .formula = "g = +-grad + weight_decay p; b = momentum b + (1 - dampening) g; p = p - lr (nesterov ? g + momentum b : b)", LIST,
      .nattr = 8, .args = {"tensors"},
      .attrs = {[PLK_SGD_K] = A_INT("k", 2),
                [PLK_SGD_LR] = A_FLOAT_REQ("lr"),
                [PLK_SGD_MOMENTUM] = A_FLOAT("momentum", 0),
                [PLK_SGD_DAMPENING] = A_FLOAT("dampening", 0),
                [PLK_SGD_DECAY] = A_FLOAT("weight_decay", 0),
                [PLK_SGD_NESTEROV] = A_BOOL("nesterov", 0),
                [PLK_SGD_MAXIMIZE] = A_BOOL("maximize", 0),
                [PLK_SGD_STEP] = A_INT("step", 2)},
      .flags = STEP_FLAGS, .infer = sgd_infer, PL_KERNEL(sgd_step));

PL_OP(adam_step,
      .doc = "One step of Adam over the list {param, grad, m, v [, vmax], param …}, k tensors a "
             "parameter (5: AMSGrad), in place. flags: 1 decoupled decay (AdamW), 2 maximize. step "
             "counts from 1.",
      .example = "local p, grad, m, v = T.tensor { 1 }, T.tensor { 2 }, T.zeros(1), T.zeros(1)\n"
                 "T.core.op.adam_step({ p, grad, m, v }, { k = 4, lr = 0.1, step = 1 }) -- what optim.Adam calls\n"
                 "print(p)  --> {0.9000}  -- f32[1] cpu",
      .formula = "m = lerp(m, g, 1 - beta1); v = beta2 v + (1 - beta2) g^2; "
                 "p = p - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)",
      LIST, .nattr = 8, .args = {"tensors"},
      .attrs = {[PLK_ADAM_K] = A_INT("k", 4),
                [PLK_ADAM_LR] = A_FLOAT("lr", 1e-3),
                [PLK_ADAM_BETA1] = A_FLOAT("beta1", 0.9),
                [PLK_ADAM_BETA2] = A_FLOAT("beta2", 0.999),
                [PLK_ADAM_EPS] = A_FLOAT("eps", 1e-8),
                [PLK_ADAM_DECAY] = A_FLOAT("weight_decay", 0),
                [PLK_ADAM_STEP] = A_INT_REQ("step"),
                [PLK_ADAM_FLAGS] = A_INT("flags", 0)},
      .flags = STEP_FLAGS, .infer = adam_infer, PL_KERNEL(adam_step));

static PlStatus rmsprop_infer(PlInfer *c) {
  int64_t k = pl_attr_i(c->attrs, PLK_RMS_K), flags = pl_attr_i(c->attrs, PLK_RMS_FLAGS);
  int64_t need = 3 + ((flags & PLK_RMS_BUFFER) != 0) + ((flags & PLK_RMS_CENTERED) != 0);
  if (k != need)
    PL_FAIL(PL_ERR_ARG, "rmsprop_step: k is %lld, but flags %lld need %lld tensors a parameter", (long long)k, (long long)flags,
            (long long)need);
  if (!(flags & PLK_RMS_BUFFER) && pl_attr_f(c->attrs, PLK_RMS_MOMENTUM) != 0)
    PL_FAIL(PL_ERR_ARG, "rmsprop_step: momentum needs a buffer for each parameter (flag 1, one tensor more)");
  return check_groups(c, c->nin, k, 3, 5, ALL_BUT_GRADIENT);
}

PL_OP(rmsprop_step,
      .doc = "One step of RMSprop over the list {param, grad, s [, b] [, a], param …}, k tensors a "
             "parameter, in place. flags: 1 a momentum buffer b, 2 centered by a, 4 maximize.",
      .example = "local p, grad, v = T.tensor { 1 }, T.tensor { 2 }, T.zeros(1)\n"
                 "T.core.op.rmsprop_step({ p, grad, v }, { k = 3, lr = 0.1 }) -- what optim.RMSprop calls\n"
                 "print(p)  --> {5.9605e-08}  -- f32[1] cpu",
      .formula = "s = alpha s + (1 - alpha) g^2; u = g / (sqrt(s - a^2) + eps); b = momentum b + u; p = p - lr b", LIST, .nattr = 8,
      .args = {"tensors"},
      .attrs = {[PLK_RMS_K] = A_INT("k", 3),
                [PLK_RMS_LR] = A_FLOAT("lr", 1e-2),
                [PLK_RMS_ALPHA] = A_FLOAT("alpha", 0.99),
                [PLK_RMS_EPS] = A_FLOAT("eps", 1e-8),
                [PLK_RMS_DECAY] = A_FLOAT("weight_decay", 0),
                [PLK_RMS_MOMENTUM] = A_FLOAT("momentum", 0),
                [PLK_RMS_FLAGS] = A_INT("flags", 0),
                [PLK_RMS_STEP] = A_INT("step", 0)},
      .flags = STEP_FLAGS, .infer = rmsprop_infer, PL_KERNEL(rmsprop_step));

static PlStatus formula_infer(PlInfer *c) {
  const int64_t k = pl_attr_i(c->attrs, PLK_OPTIM_K), rule = pl_attr_i(c->attrs, PLK_OPTIM_RULE);
  const PlkOptimRuleFacts facts = plk_optim_facts(rule);
  if (k != facts.width)
    PL_FAIL(PL_ERR_ARG, "optimizer_step: k is %lld, but this rule needs %d tensors a parameter", (long long)k, facts.width);
  if (pl_attr_n(c->attrs, PLK_OPTIM_NUMBERS) != facts.numbers)
    PL_FAIL(PL_ERR_ARG, "optimizer_step: got %d numbers, but this rule needs %d", pl_attr_n(c->attrs, PLK_OPTIM_NUMBERS), facts.numbers);
  if (facts.settings && pl_attr_i(c->attrs, PLK_OPTIM_STEP) < 1) PL_FAIL(PL_ERR_ARG, "optimizer_step: step counts from 1");
  const int n = c->nin - plk_optim_estimates(rule);
  if (n < c->nin) {
    const PlArray *a = c->in[n];
    if (n == 0 || a->dtype != PL_F64 || a->ndim != 1 || a->numel != PLK_ESTIMATE || !a->contiguous)
      PL_FAIL(PL_ERR_ARG, "optimizer_step: the last tensor of this rule's list has its estimate and is a contiguous f64[%d], got %s",
              PLK_ESTIMATE, pl_desc_text(a));
  }
  return check_groups(c, n, k, 3, PLK_OPTIM_COLUMNS, plk_optim_writes(rule));
}

PL_OP(optimizer_step,
      .doc = "One step of a rule over the list {param, grad, a [, b …], param …}, k tensors a parameter, a, b … its state, in "
             "place; rules prodigy and prodigy_apply have an f64[6], their estimate, at the end of the list. numbers: the rule's settings, "
             "or its numbers of this step. flags: 1 maximize, 2 weight_decay p is added to the gradient, 4 p is multiplied by 1 - lr "
             "weight_decay "
             "first. step: its number, from 1.",
      .example = "local p, grad, s = T.tensor { 1 }, T.tensor { 2 }, T.zeros(1)\n"
                 "T.core.op.optimizer_step({ p, grad, s }, { k = 3, rule = \"adagrad\", lr = 0.1, numbers = { 0, 0 } }) -- eps, lr_decay\n"
                 "print(p)  --> {0.9000}  -- f32[1] cpu",
      .formula = "adagrad: a = a + g^2; p = p - lr g / (sqrt(a) + eps); the others: kernels/optim_formulas.h", LIST, .nattr = 7,
      .args = {"tensors"},
      .attrs = {[PLK_OPTIM_K] = A_INT("k", 3),
                [PLK_OPTIM_RULE] = {.name = "rule",
                                    .type = PL_A_ENUM,
                                    .choices = "adamax|nadam|radam|adagrad|adadelta|asgd|rprop|lion|schedule_free_adamw|"
                                               "schedule_free_sgd|lamb|lamb_apply|prodigy|prodigy_apply|adafactor|"
                                               "adafactor_apply|schedule_free_move|adafactor_mean|muon"},
                [PLK_OPTIM_NUMBERS] = {.name = "numbers", .type = PL_A_FLOATS},
                [PLK_OPTIM_LR] = A_FLOAT("lr", 0),
                [PLK_OPTIM_DECAY] = A_FLOAT("weight_decay", 0),
                [PLK_OPTIM_FLAGS] = A_INT("flags", 0),
                [PLK_OPTIM_STEP] = A_INT("step", 1)},
      .flags = STEP_FLAGS, .infer = formula_infer, PL_KERNEL(optimizer_step));

/* Of halves in f32: f16 ends at 65504, which the joint norm of gradients passes. */
static PlStatus norm_infer(PlInfer *c) {
  PlDtype d = (PlDtype)c->in[0]->dtype;
  for (int i = 0; i < c->nin; i++) {
    PL_TRY(pl_check_float(c, i));
    d = pl_promote2(d, (PlDtype)c->in[i]->dtype);
  }
  pl_desc_set(&c->out[0], pl_is_half(d) ? PL_F32 : d, 0, NULL);
  return PL_OK;
}
PL_OP(foreach_norm, .doc = "The p-norm (inf: the largest magnitude) of all elements of a list of tensors, 0-d; of halves in f32.",
      .example = "print(T.foreach_norm { T.tensor { 3 }, T.tensor { 4 } })  --> 5.  -- f32[] cpu", .formula = "(sum |x|^p)^(1/p)", LIST,
      .nattr = 1, .args = {"tensors"}, .attrs = {A_FLOAT("p", 2)}, .flags = PL_F_NOMETHOD | PL_F_NOGRAD_OK, .infer = norm_infer,
      PL_KERNEL(foreach_norm));

static PlStatus scale_infer(PlInfer *c) {
  const PlArray *f = c->in[c->nin - 1];
  if (c->nin < 2 || f->numel != 1)
    PL_FAIL(PL_ERR_ARG, "foreach_scale_: the last tensor of the list must hold the one factor, got %s", pl_desc_text(f));
  for (int i = 0; i < c->nin; i++) PL_TRY(pl_check_float(c, i));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}
PL_OP(foreach_scale_, .doc = "Multiplies all tensors of a list, in place, by the last one, which holds one number.",
      .example = "local a, b = T.ones(1), T.ones(2)\n"
                 "T.core.op.foreach_scale_ { a, b, T.tensor(0.5) } -- the last one is the factor\n"
                 "print(a, b)  --> {0.5000}  -- f32[1] cpu\t{0.5000, 0.5000}  -- f32[2] cpu",
      LIST, .args = {"tensors"}, .flags = STEP_FLAGS, .infer = scale_infer, PL_KERNEL(foreach_scale_));

static PlStatus zero_infer(PlInfer *c) {
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}
PL_OP(foreach_zero_, .doc = "Sets all elements of a list of tensors to 0, in place.",
      .example = "local a = T.ones(2)\n"
                 "T.core.op.foreach_zero_ { a }\n"
                 "print(a)  --> {0., 0.}  -- f32[2] cpu",
      LIST, .args = {"tensors"}, .flags = STEP_FLAGS, .infer = zero_infer, PL_KERNEL(foreach_zero_));
