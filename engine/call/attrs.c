/* SPDX-License-Identifier: MIT
 * Attribute values of one call: defaults, setters, normalization of dimensions, compact copies. */
#include <string.h>

#include "engine/call/call.h"
#include "engine/tensor/alloc.h"

void pl_attrs_init(const PlOp *op, PlAttrs *a) {
  memset(a, 0, offsetof(PlAttrs, pool));
  a->nval = op->nattr;
  for (int k = 0; k < op->nattr; k++) {
    const PlAttrDef *d = &op->attrs[k];
    if (!d->has_def) continue;
    a->set |= (uint16_t)(1 << k);
    if (d->type == PL_A_INTS) {
      a->v[k].list.at = a->npool;
      a->v[k].list.n = 1;
      a->pool[a->npool++] = d->i;
    } else if (d->type == PL_A_FLOAT) a->v[k].f = d->f;
    else {
      a->v[k].i = d->i;
      if (d->type == PL_A_SCALAR) a->isint |= (uint16_t)(1 << k);
    }
  }
}

void pl_attrs_int(PlAttrs *a, int k, int64_t v) {
  a->set |= (uint16_t)(1 << k);
  a->isint |= (uint16_t)(1 << k);
  a->v[k].i = v;
}

void pl_attrs_float(PlAttrs *a, int k, double v) {
  a->set |= (uint16_t)(1 << k);
  a->isint &= (uint16_t) ~(1 << k);
  a->v[k].f = v;
}

PlStatus pl_attrs_list(PlAttrs *a, int k, int n, const int64_t *v) {
  if (n < 0 || n + a->npool > PL_ATTR_POOL) PL_FAIL(PL_ERR_ARG, "a list of %d numbers is too long here", n);
  a->set |= (uint16_t)(1 << k);
  memset(&a->v[k], 0, sizeof a->v[k]);
  a->v[k].list.at = a->npool;
  a->v[k].list.n = (uint32_t)n;
  if (n) memcpy(a->pool + a->npool, v, (size_t)n * sizeof *v);
  a->npool = (uint16_t)(a->npool + n);
  return PL_OK;
}

void pl_attrs_none(PlAttrs *a, int k) {
  a->set &= (uint16_t) ~(1 << k);
  a->isint &= (uint16_t) ~(1 << k);
  memset(&a->v[k], 0, sizeof a->v[k]);
}

static PlStatus check_axis(const PlOp *op, const char *arg, int64_t d, int ndim, int64_t *out) {
  int64_t span = ndim > 0 ? ndim : 1; /* a 0-d tensor takes -1 and 0, as PyTorch's does */
  if (d < -span || d >= span)
    PL_FAIL(PL_ERR_ARG, "%s: %s %lld is out of range for a tensor of %d dimension%s (1 to %lld, or -%lld to -1)", op->name, arg,
            (long long)(d >= 0 ? d + 1 : d), ndim, ndim == 1 ? "" : "s", (long long)span, (long long)span);
  *out = d < 0 ? d + span : d;
  return PL_OK;
}

PlStatus pl_attrs_normalize(const PlOp *op, const PlAttrs *in, const PlArray *x, PlAttrs *out) {
  memcpy(out, in, pl_attrs_size(in));
  for (int k = 0; k < op->nattr; k++) {
    PlAttrType type = op->attrs[k].type;
    if (!((in->set >> k) & 1)) {
      if (!op->attrs[k].optional) PL_FAIL(PL_ERR_ARG, "%s: argument %s is missing", op->name, op->attrs[k].name);
      continue;
    }
    int ndim = x ? x->ndim : 0;
    if (type == PL_A_DIM || type == PL_A_NEWDIM)
      PL_TRY(check_axis(op, op->attrs[k].name, in->v[k].i, type == PL_A_DIM ? ndim : ndim + 1, &out->v[k].i));
    if (type == PL_A_DIMS) {
      uint32_t seen = 0;
      for (int j = 0; j < pl_attr_n(in, k); j++) {
        int64_t *d = &out->pool[in->v[k].list.at + (uint32_t)j];
        PL_TRY(check_axis(op, op->attrs[k].name, *d, ndim, d));
        if ((seen >> *d) & 1) PL_FAIL(PL_ERR_ARG, "%s: dimension %lld appears twice in %s", op->name, (long long)*d + 1, op->attrs[k].name);
        seen |= 1u << *d;
      }
    }
  }
  return PL_OK;
}

PlAttrs *pl_attrs_compact(const PlAttrs *a) {
  PlAttrs *c = pl_pool_get(pl_attrs_size(a));
  if (c) memcpy(c, a, pl_attrs_size(a));
  return c;
}
