/* SPDX-License-Identifier: MIT
 * Shape and dtype rules that many ops share, and the words their errors are made of.
 * Everything here reads descriptions only, allocates nothing and works for any rank up to PL_MAX_DIM. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ops/op.h"
#include "engine/tensor/tensor.h"

/* ---- texts ---------------------------------------------------------------------------------- */

/* Thread-local: four texts may meet in one message, and threads must not mix theirs. On the heap: thread-local
 * room of late modules is scarce. */
static _Thread_local char *text;

void pl_desc_text_end(void) {
  free(text);
  text = NULL;
}

const char *pl_desc_text(const PlArray *a) {
  enum { TEXT = 160 };
  static _Thread_local unsigned turn;
  if (!text && !(text = malloc(4 * TEXT))) return "a tensor";
  char *s = text + (turn++ & 3) * TEXT;
  const size_t size = TEXT;
  if (!a) {
    snprintf(s, size, "none");
    return s;
  }
  if (a->weak && a->ndim == 0) {
    snprintf(s, size, pl_is_float((PlDtype)a->dtype) ? "number" : "integer number");
    return s;
  }
  size_t at = (size_t)snprintf(s, size, "%s[", pl_dtype_name((PlDtype)a->dtype));
  for (int d = 0; d < a->ndim && at < size; d++) {
    int n = snprintf(s + at, size - at, d ? ",%lld" : "%lld", (long long)a->shape[d]);
    at += (size_t)n;
  }
  if (at >= size - 1) at = size - 2;
  s[at] = ']';
  s[at + 1] = 0;
  return s;
}

/* ---- dtypes --------------------------------------------------------------------------------- */

PlDtype pl_promote2(PlDtype a, PlDtype b) {
  if (a == b || b == PL_BOOL) return a;
  if (a == PL_BOOL) return b;
  bool fa = pl_is_float(a), fb = pl_is_float(b);
  if (fa != fb) return fa ? a : b;
  if (fa) {
    if (a == PL_F64 || b == PL_F64) return PL_F64;
    return PL_F32; /* f32 with a half, or the two halves, which cover neither range nor digits of each other */
  }
  if (a == PL_U8 || b == PL_U8) { /* u8 fits no i8: both go to i16 */
    PlDtype other = a == PL_U8 ? b : a;
    return other == PL_I8 ? PL_I16 : other;
  }
  return a > b ? a : b; /* i8 < i16 < i32 < i64 in the enum */
}

/* Per thread, as one Lua state is one thread: what f32 means when a script says nothing. */
PlDtype pl_compute_dtype(const PlOp *op, int nin, const PlArray *const *in) {
  for (int i = 0; (op->flags & PL_F_WIDE) && i < nin; i++)
    if (in[i] && pl_is_half((PlDtype)in[i]->dtype)) return (PlDtype)in[i]->dtype;
  return nin > 0 && in[0] ? (PlDtype)in[0]->dtype : PL_F32;
}

static _Thread_local PlDtype default_float = PL_F32;

PlDtype pl_default_float(void) { return default_float; }

void pl_set_default_float(PlDtype d) {
  if (pl_is_float(d)) default_float = d;
}

/* ---- outputs -------------------------------------------------------------------------------- */

void pl_desc_set(PlDesc *d, PlDtype dtype, int ndim, const int64_t *shape) {
  d->dtype = (uint8_t)dtype;
  d->ndim = (uint8_t)ndim;
  d->is_view = false;
  for (int i = 0; i < ndim; i++) d->shape[i] = shape[i];
}

PlStatus pl_infer_same(PlInfer *c) {
  pl_desc_set(&c->out[0], c->compute, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}

static PlStatus broadcast_fail(const PlInfer *c, int i, const PlDesc *d, int dim, int64_t have, int64_t size) {
  char got[PL_MAX_DIM * 21 + 8];
  size_t at = 0;
  got[0] = 0;
  for (int k = 0; k < d->ndim && at < sizeof got - 24; k++)
    at += (size_t)snprintf(got + at, sizeof got - at, k ? ",%lld" : "%lld", (long long)d->shape[k]);
  PL_FAIL(PL_ERR_SHAPE,
          "%s: %s does not broadcast with shape [%s]: sizes %lld and %lld differ at dim %d (counted from the last: -%d); "
          "sizes must be equal or 1",
          c->op->name, pl_desc_text(c->in[i]), got, (long long)size, (long long)have, dim + 1, d->ndim - dim);
}

/* Widens d by the shape of input i. Sizes of 1 repeat; aligned at the last dimension. */
static PlStatus broadcast_one(const PlInfer *c, int i, PlDesc *d) {
  const PlArray *a = c->in[i];
  if (a->ndim > d->ndim) {
    int lead = a->ndim - d->ndim;
    memmove(d->shape + lead, d->shape, (size_t)d->ndim * sizeof d->shape[0]);
    for (int k = 0; k < lead; k++) d->shape[k] = 1;
    d->ndim = a->ndim;
  }
  int off = d->ndim - a->ndim;
  for (int k = 0; k < a->ndim; k++) {
    int64_t n = a->shape[k], *have = &d->shape[off + k];
    if (n == *have || n == 1) continue;
    if (*have != 1) return broadcast_fail(c, i, d, off + k, *have, n);
    *have = n;
  }
  return PL_OK;
}

PlStatus pl_infer_broadcast(PlInfer *c) {
  PlDesc *d = &c->out[0];
  int first = 0;
  while (first < c->nin && !c->in[first]) first++;
  if (first == c->nin) PL_FAIL(PL_ERR_ARG, "%s: no input", c->op->name);
  pl_desc_set(d, c->compute, c->in[first]->ndim, c->in[first]->shape);
  for (int i = first + 1; i < c->nin; i++)
    if (c->in[i]) PL_TRY(broadcast_one(c, i, d));
  return PL_OK;
}

PlStatus pl_infer_predicate(PlInfer *c) {
  PL_TRY(pl_infer_broadcast(c));
  c->out[0].dtype = PL_BOOL;
  return PL_OK;
}

PlStatus pl_infer_reduced(PlInfer *c, PlDtype dtype) {
  const PlArray *a = c->in[0];
  bool all = !pl_attr_has(c->attrs, 0) || pl_attr_n(c->attrs, 0) == 0;
  bool keep = pl_attr_has(c->attrs, 1) && pl_attr_i(c->attrs, 1) != 0;
  uint32_t reduced = all ? ~0u : 0u;
  if (!all) {
    const int64_t *dims = pl_attr_list(c->attrs, 0);
    for (int k = 0, n = pl_attr_n(c->attrs, 0); k < n; k++) {
      if (dims[k] < 0 || dims[k] >= PL_MAX_DIM)
        PL_FAIL(PL_ERR_ARG, "%s: dim %lld of %s does not exist", c->op->name, (long long)dims[k] + 1, pl_desc_text(a));
      reduced |= 1u << dims[k];
    }
  }
  PlDesc *d = &c->out[0];
  d->dtype = (uint8_t)dtype;
  d->is_view = false;
  int nd = 0;
  for (int k = 0; k < a->ndim; k++) {
    if (!(reduced >> k & 1)) d->shape[nd++] = a->shape[k];
    else if (keep) d->shape[nd++] = 1;
  }
  d->ndim = (uint8_t)nd;
  return PL_OK;
}

/* ---- checks --------------------------------------------------------------------------------- */

static const char *arg_name(const PlInfer *c, int i) {
  if (c->op->nin == PL_VARIADIC || i >= PL_MAX_IN) return c->op->args[0] ? c->op->args[0] : "input";
  return c->op->args[i] ? c->op->args[i] : "input";
}

PlStatus pl_check_fits(const PlInfer *c, PlDtype d, double v) {
  const int64_t least = pl_int_least(d), most = pl_int_most(d);
  if (!pl_is_int(d) || (d == PL_I64 ? v >= -0x1p63 && v < 0x1p63 : v > (double)least - 1 && v < (double)most + 1)) return PL_OK;
  PL_FAIL(PL_ERR_ARG, "%s: %.17g does not fit into %s, which holds %lld to %lld", c->op->name, v, pl_dtype_name(d), (long long)least,
          (long long)most);
}
PlStatus pl_check_whole(const PlInfer *c, PlDtype d, int k) {
  if (pl_is_float(d) || !pl_attr_has(c->attrs, k) || (c->attrs->isint >> k) & 1) return PL_OK;
  const double v = pl_attr_f(c->attrs, k);
  if (v == floor(v)) return PL_OK;
  PL_FAIL(PL_ERR_ARG, "%s: %s is %g, and %s has no fractions; give an integer, or convert first: x:to(\"f32\")", c->op->name,
          c->op->attrs[k].name, v, pl_dtype_name(d));
}

PlStatus pl_check_float(const PlInfer *c, int i) {
  if (!c->in[i] || pl_is_float((PlDtype)c->in[i]->dtype)) return PL_OK;
  PL_FAIL(PL_ERR_DTYPE, "%s: %s must be floating, got %s; convert it first: %s:to(\"f32\")", c->op->name, arg_name(c, i),
          pl_desc_text(c->in[i]), arg_name(c, i));
}

PlStatus pl_check_dtype(const PlInfer *c, int i, PlDtype d) {
  if (!c->in[i] || c->in[i]->dtype == d) return PL_OK;
  PL_FAIL(PL_ERR_DTYPE, "%s: %s must be %s, got %s; convert it first: %s:to(\"%s\")", c->op->name, arg_name(c, i), pl_dtype_name(d),
          pl_desc_text(c->in[i]), arg_name(c, i), pl_dtype_name(d));
}

PlStatus pl_check_ndim(const PlInfer *c, int i, int lo, int hi) {
  if (!c->in[i] || (c->in[i]->ndim >= lo && c->in[i]->ndim <= hi)) return PL_OK;
  const char *got = pl_desc_text(c->in[i]);
  if (lo == hi)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s must have %d dim%s, got %s; reshape or unsqueeze it first", c->op->name, arg_name(c, i), lo,
            lo == 1 ? "" : "s", got);
  if (hi >= PL_MAX_DIM)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s must have at least %d dim%s, got %s; unsqueeze it first", c->op->name, arg_name(c, i), lo,
            lo == 1 ? "" : "s", got);
  PL_FAIL(PL_ERR_SHAPE, "%s: %s must have %d to %d dims, got %s; reshape it first", c->op->name, arg_name(c, i), lo, hi, got);
}

PlStatus pl_check_same_dtype(const PlInfer *c, int i, int j) {
  const PlArray *a = i < c->nin ? c->in[i] : NULL, *b = c->in[j];
  if (!a || !b || a->dtype == b->dtype) return PL_OK;
  const bool other = !pl_is_float((PlDtype)a->dtype) && pl_is_float((PlDtype)b->dtype);
  PL_FAIL(PL_ERR_DTYPE, "%s: %s x %s: dtypes differ; convert one, such as %s:to(\"%s\")", c->op->name, pl_desc_text(a), pl_desc_text(b),
          arg_name(c, other ? i : j), pl_dtype_name((PlDtype)(other ? b : a)->dtype)); /* whole numbers to the floating dtype */
}

PlStatus pl_check_shape(const PlInfer *c, int i, int ndim, const int64_t *shape) {
  const PlArray *a = i < c->nin ? c->in[i] : NULL;
  if (!a) return PL_OK;
  const PlArray want = {.dtype = a->dtype, .ndim = (uint8_t)(ndim < PL_MAX_DIM ? ndim : PL_MAX_DIM), .shape = shape};
  if (ndim <= PL_MAX_DIM && pl_shape_equal(a, &want)) return PL_OK;
  PL_FAIL(PL_ERR_SHAPE, "%s: %s is %s, should be %s", c->op->name, arg_name(c, i), pl_desc_text(a), pl_desc_text(&want));
}

PlStatus pl_check_like(const PlInfer *c, int i, int j) { return c->in[j] ? pl_check_shape(c, i, c->in[j]->ndim, c->in[j]->shape) : PL_OK; }

PlStatus pl_check_axis(const PlInfer *c, int k, int ndim) {
  if (!pl_attr_has(c->attrs, k)) return PL_OK;
  const int64_t d = pl_attr_i(c->attrs, k), n = ndim > 0 ? ndim : 1;
  if (d >= 0 && d < n) return PL_OK;
  PL_FAIL(PL_ERR_ARG, "%s: %s %lld is no dimension of a tensor of %d", c->op->name, c->op->attrs[k].name, (long long)d, ndim);
}
