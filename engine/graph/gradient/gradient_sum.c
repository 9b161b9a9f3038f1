/* SPDX-License-Identifier: MIT
 * The gradient pass: gradients that arrive at one value are added up in a chain, which the planner turns into accumulation
 * in place. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/graph/gradient/gradient_internal.h"
#include "engine/ops/names.h"

PlStatus pl_grad_no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for the gradients of a graph"); }

bool pl_grad_is_zero(const PlGradWalk *w, PlGVal v) {
  if (w->f->vals[v].node < 0) return false;
  const PlOp *op = w->f->nodes[w->f->vals[v].node].op;
  if (!w->opts->zero_ops) return op->flags & PL_F_ZEROS;
  for (int k = 0; k < w->opts->nzero_ops; k++)
    if (op == w->opts->zero_ops[k]) return true;
  return false;
}

PlStatus pl_grad_add_term(PlGradWalk *w, PlGVal v, PlGVal g) {
  PlGradTerm *have = w->terms[v];
  if (have && !w->opts->aggregate) {
    if (pl_grad_is_zero(w, g)) return PL_OK;
    if (pl_grad_is_zero(w, have->v)) {
      have->v = g;
      return PL_OK;
    }
    PlGVal in[2] = {have->v, g};
    const char *name = w->f->emit_name;
    int32_t count = w->f->emit_count;
    pl_grad_name_next(w->f, "grad_sum");
    PlStatus s = pl_grad_apply(w->f, &pl_op_add, 2, in, NULL, &have->v);
    w->f->emit_name = name;
    w->f->emit_count = count;
    return s;
  }
  PlGradTerm *t = pl_graph_alloc(w->f, sizeof *t);
  if (!t) return pl_grad_no_memory();
  *t = (PlGradTerm){.next = w->terms[v], .v = g};
  w->terms[v] = t;
  return PL_OK;
}

PlStatus pl_grad_apply(PlGraph *f, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *attrs, PlGVal *out) {
  PlTensor *t[2] = {NULL, NULL}, *y = NULL;
  PlStatus s = PL_OK;
  for (int i = 0; i < nin && s == PL_OK; i++) s = pl_sym_tensor(&t[i], f, in[i]);
  if (s == PL_OK) s = pl_sym_apply(op, t, nin, attrs, &y);
  if (s == PL_OK) *out = pl_sym_value(y);
  for (int i = 0; i < nin; i++) pl_tensor_release(t[i]);
  pl_tensor_release(y);
  return s;
}

void pl_grad_name_next(PlGraph *f, const char *name) {
  f->emit_name = name;
  f->emit_count = 0;
}

PlStatus pl_grad_constant_like(PlGraph *f, const PlOp *op, PlGVal like, const char *name, PlGVal *out) {
  const PlGValue *v = &f->vals[like];
  PlAttrs a;
  pl_attrs_init(op, &a);
  PL_TRY(pl_attrs_list(&a, 0, v->ndim, v->dims));
  pl_attrs_int(&a, 1, v->dtype);
  pl_grad_name_next(f, name);
  const uint8_t was = pl_state.device;
  pl_state.device = pl_device_first(f->vals[like].device, was);
  PlStatus s = pl_grad_apply(f, op, 0, NULL, &a, out);
  pl_state.device = was;
  return s;
}

/* What an op of the options gave for a value of the type of x must be of that type. */
static PlStatus check_type(const PlGraph *f, const char *option, const PlOp *op, PlGVal x, PlGVal y) {
  PlArray want = pl_gvalue_array(&f->vals[x]), got = pl_gvalue_array(&f->vals[y]);
  char text[128];
  if (want.dtype == got.dtype && pl_shape_equal(&want, &got)) return PL_OK;
  snprintf(text, sizeof text, "%.120s", pl_desc_text(&want));
  PL_FAIL(PL_ERR_SHAPE, "gradient: %s: %s gives %s of %s; the same shape and dtype are wanted", option, op->name, pl_desc_text(&got), text);
}

PlStatus pl_grad_zeros(PlGradWalk *w, PlGVal x, const char *name, PlGVal *out) {
  const PlOp *op = w->opts->nzero_ops > 0 ? w->opts->zero_ops[0] : &pl_op_zeros;
  if (op->nin == 0) return pl_grad_constant_like(w->f, op, x, name, out);
  pl_grad_name_next(w->f, name);
  PL_TRY(pl_grad_apply(w->f, op, 1, &x, NULL, out));
  return check_type(w->f, "zero_ops", op, x, *out);
}

PlStatus pl_grad_copy(PlGradWalk *w, PlGVal g, const char *name, PlGVal *out) {
  const PlOp *op = w->opts->copy_op ? w->opts->copy_op : &pl_op_clone;
  pl_grad_name_next(w->f, name);
  PL_TRY(pl_grad_apply(w->f, op, 1, &g, NULL, out));
  return check_type(w->f, "copy_op", op, g, *out);
}

PlStatus pl_grad_sum_terms(PlGradWalk *w, PlGVal v) {
  PlGraph *f = w->f;
  if (w->sum[v] >= 0 || !w->terms[v]) return PL_OK;
  int n = 0;
  for (PlGradTerm *t = w->terms[v]; t; t = t->next) n += !pl_grad_is_zero(w, t->v);
  PlGVal sum = w->terms[v]->v;
  if (n > 0 && w->terms[v]->next) {
    PlGVal *list = malloc((size_t)n * sizeof *list);
    if (!list) return pl_grad_no_memory();
    int k = n;
    for (PlGradTerm *t = w->terms[v]; t; t = t->next)
      if (!pl_grad_is_zero(w, t->v)) list[--k] = t->v;
    PlStatus s = PL_OK;
    pl_grad_name_next(f, "grad_sum");
    if (n > 1) s = w->opts->aggregate(w->opts->ud, f, n, list, &sum);
    else sum = list[0];
    free(list);
    PL_TRY(s);
  }
  w->terms[v] = NULL;
  w->sum[v] = sum;
  return PL_OK;
}
