/* SPDX-License-Identifier: MIT
 * pl_apply, and the way most calls of small models take: pointwise ops without attributes, arrays of one dtype and one
 * shape (or a number on one side), nothing measured, traced or batched. Neither promotion nor infer has anything to say
 * then. Everything else goes through pl_apply_any (apply.c). */
#include "engine/call.h"
#include "engine/grad/node.h"
#include "engine/state.h"
#include "kernels/elementwise.h"

/* Is an op just to be run? */
static inline bool undisturbed(void) {
  return ((uintptr_t)pl_state.profile | (uintptr_t)pl_state.trace | pl_state.batch_busy) == 0;
}

static inline bool plain_op(const PlOp *op) {
  return op->cls == PL_POINTWISE && op->nattr == 0 && !op->autocast && !op->promote_mask && op->kernel[PL_CPU];
}

/* Equal dtypes, and equal shapes or a number on one side. Returns the operand whose shape the result has, or -1. */
static inline int plain_pair(const PlOp *op, const PlTensor *x, const PlTensor *y) {
  const PlArray *a = &x->a, *b = &y->a;
  if (a->dtype != b->dtype || (a->elsewhere | b->elsewhere)) return -1;
  if (op->promote != PL_PROMOTE_ALL && !pl_is_float((PlDtype)a->dtype)) return -1;
  if (PL_UNLIKELY(a->weak | b->weak)) return a->weak & b->weak ? -1 : a->weak;
  return pl_shape_equal(a, b) ? 0 : -1;
}

enum { FEW = 4096 };

/* Few floats that lie like the result need neither a PlkCall nor the plan of one. False: nothing was done. */
static inline bool run_few(const PlOp *op, const PlArray *a, const PlArray *b, const PlArray *y) {
  return op->kernel[PL_CPU] == plk_cpu_elementwise && (uint64_t)y->numel - 1 < FEW && a->numel == y->numel &&
         b->numel == y->numel && (a->contiguous & b->contiguous) && a->dtype <= PL_F64 &&
         plk_cpu_elementwise_flat(op->kcode, a->dtype, y->numel, y->data, a->data, b->data, 0);
}

static PlStatus run_any(const PlOp *op, PlTensor *const *in, int nin, PlTensor *y) {
  const PlArray *arr[2] = {&in[0]->a, nin > 1 ? &in[1]->a : NULL};
  PlArray *dst[1] = {&y->a};
  PlkCall call = {.name = op->name, .code = op->kcode, .nin = nin, .nout = 1, .in = arr, .out = dst, .attrs = &pl_no_attrs};
  return op->kernel[PL_CPU](&call);
}

static PlStatus apply_plain(const PlOp *op, PlTensor *const *in, int nin, int like, PlDtype dtype, PlTensor **out) {
  PlTensor *y;
  PlStatus s = PL_OK;
  PL_TRY(pl_tensor_like(&y, in[like], dtype));
  if (!run_few(op, &in[0]->a, &in[nin - 1]->a, &y->a)) s = run_any(op, in, nin, y);
  if (PL_LIKELY(s == PL_OK) && !pl_state.grad_off && pl_may_record(in, nin)) s = pl_record(op, in, nin, &pl_no_attrs, &y);
  if (PL_UNLIKELY(s != PL_OK)) {
    pl_tensor_release(y);
    return s;
  }
  *out = y;
  return PL_OK;
}

PlStatus pl_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (PL_LIKELY(undisturbed()) && plain_op(op) && nin == op->nin) {
    const bool broadcast = op->infer == pl_infer_broadcast && op->promote != PL_PROMOTE_NONE;
    if (nin == 2 && (broadcast || op->infer == pl_infer_predicate) && in[0] && in[1]) {
      int like = plain_pair(op, in[0], in[1]);
      if (like >= 0) return apply_plain(op, in, 2, like, broadcast ? (PlDtype)in[0]->a.dtype : PL_BOOL, out);
    } else if (nin == 1 && broadcast && in[0]) {
      const PlArray *a = &in[0]->a;
      if (pl_is_float((PlDtype)a->dtype) && !(a->weak | a->elsewhere)) return apply_plain(op, in, 1, 0, (PlDtype)a->dtype, out);
    }
  }
  return pl_apply_any(op, in, nin, attrs, out);
}

PlStatus pl_apply_number(const PlOp *op, PlTensor *x, double number, bool first, PlTensor **out) {
  const PlArray *a = &x->a;
  *out = NULL;
  if (!undisturbed() || !plain_op(op) || op->nin != 2 || op->infer != pl_infer_broadcast ||
      op->promote == PL_PROMOTE_NONE || op->kernel[PL_CPU] != plk_cpu_elementwise || a->dtype > PL_F64 || !a->contiguous ||
      (a->weak | a->elsewhere) || (uint64_t)a->numel - 1 >= FEW || !(pl_state.grad_off || !pl_may_record(&x, 1)))
    return PL_OK;
  PlTensor *y;
  PL_TRY(pl_tensor_like(&y, x, (PlDtype)a->dtype));
  const float narrow = (float)number;
  const void *v = a->dtype == PL_F32 ? (const void *)&narrow : &number;
  if (plk_cpu_elementwise_flat(op->kcode, a->dtype, a->numel, y->a.data, first ? v : a->data, first ? a->data : v, first ? 1 : 2))
    *out = y;
  else
    pl_tensor_release(y);
  return PL_OK;
}
