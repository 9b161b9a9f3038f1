/* SPDX-License-Identifier: MIT
 * pl_apply, and the way most calls of small models take: pointwise ops without attributes, arrays of one dtype and one
 * shape (or a number on one side), nothing measured, traced or batched. Neither promotion nor infer has anything to say
 * then, and a few floats need no kernel call, only its loop. All else goes through pl_apply_any (apply.c). */
#include <string.h>

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/grad/forward_mode.h"
#include "engine/grad/node.h"
#include "kernels/elementwise.h"

/* Is an op just to be run? */
static inline bool undisturbed(void) { return (pl_state.modes & PL_MODES_OF_ALL) == 0; }

/* Arrays alike give an array like them. */
static inline bool keeps_type(const PlOp *op) { return op->infer == pl_infer_broadcast && op->promote != PL_PROMOTE_NONE; }
static inline bool plain_op(const PlOp *op) { return op->nattr == 0 && !(op->autocast | op->promote_mask); }

/* The result y is made: now its history. */
static inline PlStatus done(const PlOp *op, PlTensor *const *in, int nin, PlTensor *y, PlTensor **out) {
  if (!pl_state.grad_off && pl_may_record(in, nin)) {
    PlStatus s = pl_record(op, in, nin, &pl_no_attrs, &y);
    if (PL_UNLIKELY(s != PL_OK)) {
      pl_tensor_release(y);
      return s;
    }
  }
  *out = y;
  return PL_OK;
}

/* ---- a few floats ------------------------------------------------------------------------------------------------ */

/* Bytes of data where it is at most PL_SMALL, of floats with a loop, and contiguous; else 0. */
static inline size_t small_bytes(const PlArray *a) {
  if (a->dtype > PL_F64 || !a->contiguous || (a->weak | a->elsewhere) || (uint64_t)a->numel > PL_SMALL) return 0;
  const size_t bytes = (size_t)a->numel * pl_dtype_size((PlDtype)a->dtype);
  return bytes <= PL_SMALL ? bytes : 0;
}

static inline bool alike(const PlArray *a, const PlArray *b) {
  _Static_assert(offsetof(PlArray, weak) == offsetof(PlArray, dtype) + 3, "dtype, ndim, contiguous, weak: one comparison");
  return memcmp(&a->dtype, &b->dtype, 4) == 0 && !(a->elsewhere | b->elsewhere) && a->numel == b->numel &&
         (a->ndim < 2 || pl_shape_equal(a, b));
}

/* *y := an array like x from x and the data a and b (one input: b is a); it stays NULL where the op has no loop. */
static PL_ALWAYS_INLINE PlStatus run_small(const PlOp *op, const PlTensor *x, size_t bytes, const void *a, const void *b, int number,
                                           PlTensor **y) {
  static const int64_t strides[3][3] = {{1, 1, 1}, {1, 0, 1}, {1, 1, 0}}; /* number: 1, 2: a, b is one value */
  const int64_t n = x->a.numel;
  const PlDtype dtype = (PlDtype)x->a.dtype;
  const PlkLoop loop = plk_cpu_elementwise_loop(op->kcode, dtype, number && n > 1);
  *y = NULL;
  if (PL_UNLIKELY(!loop)) return PL_OK;
  PlTensor *t = pl_tensor_small_like(x, dtype, bytes);
  if (PL_UNLIKELY(!t)) PL_FAIL(PL_ERR_OOM, "%s: out of memory", op->name);
  char *ptr[3] = {t->a.data, (char *)(uintptr_t)a, (char *)(uintptr_t)b};
  loop(ptr, strides[n > 1 ? number : 0], n, &pl_no_attrs);
  *y = t;
  return PL_OK;
}

PlStatus pl_apply_number(const PlOp *op, PlTensor *x, double number, bool first, PlTensor **out) {
  size_t bytes;
  *out = NULL;
  if (!undisturbed() || !plain_op(op) || !keeps_type(op) || op->nin != 2 || op->kernel[PL_CPU] != plk_cpu_elementwise ||
      !(bytes = small_bytes(&x->a)) || !(pl_state.grad_off || !pl_may_record(&x, 1)))
    return PL_OK;
  const float narrow = (float)number;
  const void *v = x->a.dtype == PL_F32 ? (const void *)&narrow : &number;
  return run_small(op, x, bytes, first ? v : x->a.data, first ? x->a.data : v, first ? 1 : 2, out);
}

/* ---- any size ------------------------------------------------------------------------------------------------------ */

/* Is one of them halves, the other a number as it is to be beside them? */
static inline bool number_beside(const PlOp *op, const PlArray *a, const PlArray *b) {
  const PlArray *number = a->weak ? a : b, *x = a->weak ? b : a;
  return (op->flags & PL_F_WIDE) && number->weak && number->dtype == PL_F32 && !x->weak && pl_is_half((PlDtype)x->dtype);
}

/* Equal dtypes, and equal shapes or a number on one side. Returns the operand whose shape the result has, or -1. */
static int plain_pair(const PlOp *op, const PlTensor *x, const PlTensor *y) {
  const PlArray *a = &x->a, *b = &y->a;
  if ((a->elsewhere | b->elsewhere) || (a->dtype != b->dtype && !number_beside(op, a, b))) return -1;
  if (op->promote != PL_PROMOTE_ALL && !pl_is_float((PlDtype)a->dtype)) return -1;
  if (a->weak | b->weak) return a->weak & b->weak ? -1 : a->weak;
  return pl_shape_equal(a, b) ? 0 : -1;
}

static PlStatus run_plain(const PlOp *op, PlTensor *const *in, int nin, int like, PlDtype dtype, PlTensor **out) {
  PlTensor *y;
  PL_TRY(pl_tensor_like(&y, in[like], dtype));
  const PlArray *arr[2] = {&in[0]->a, nin > 1 ? &in[1]->a : NULL};
  PlArray *dst[1] = {&y->a};
  PlkCall call = {.name = op->name, .code = op->kcode, .nin = nin, .nout = 1, .in = arr, .out = dst, .attrs = &pl_no_attrs};
  PlStatus s = op->kernel[PL_CPU](&call);
  if (PL_LIKELY(s == PL_OK)) return done(op, in, nin, y, out);
  pl_tensor_release(y);
  return s;
}

/* The op is plain and all its inputs, one or two, are there. What is not contiguous has a say in how the result lies. */
static PlStatus apply_plain(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  const PlArray *a = &in[0]->a;
  if (PL_UNLIKELY(!(a->contiguous & in[nin - 1]->a.contiguous))) return pl_apply_any(op, in, nin, attrs, out);
  if (op->cls == PL_POINTWISE && op->kernel[PL_CPU] && nin == 2 && (keeps_type(op) || op->infer == pl_infer_predicate)) {
    int like = plain_pair(op, in[0], in[1]);
    if (like >= 0) return run_plain(op, in, 2, like, keeps_type(op) ? (PlDtype)in[like]->a.dtype : PL_BOOL, out);
  } else if (op->cls == PL_POINTWISE && op->kernel[PL_CPU] && nin == 1 && keeps_type(op) && pl_is_float((PlDtype)a->dtype) &&
             !(a->weak | a->elsewhere))
    return run_plain(op, in, 1, 0, (PlDtype)a->dtype, out);
  return pl_apply_any(op, in, nin, attrs, out);
}

PlStatus pl_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  const uint32_t modes = pl_state.modes & (PL_MODES_OF_ALL | PL_MODE_FORWARD);
  if (PL_UNLIKELY(modes != 0)) {
    bool made = false;
    if (modes != PL_MODE_FORWARD) return pl_apply_any(op, in, nin, attrs, out);
    PlStatus s = pl_forward_pointwise(op, in, nin, attrs, out, &made);
    if (made || s != PL_OK) return s;
  }
  if (!plain_op(op) || nin != op->nin || (unsigned)nin - 1 > 1 || !in[0] || !in[nin - 1]) return pl_apply_any(op, in, nin, attrs, out);
  const PlTensor *x = in[0];
  const PlArray *b = &in[nin - 1]->a;
  size_t bytes;
  if (op->kernel[PL_CPU] == plk_cpu_elementwise && keeps_type(op) && (bytes = small_bytes(&x->a)) && alike(&x->a, b)) {
    PlTensor *y;
    PL_TRY(run_small(op, x, bytes, x->a.data, b->data, 0, &y));
    if (PL_LIKELY(y != NULL)) return done(op, in, nin, y, out);
  }
  return apply_plain(op, in, nin, attrs, out);
}
