/* SPDX-License-Identifier: MIT
 * Which nodes can be members of a fused group, and how: see roles.h. Pointwise ops can if their operands broadcast by rows or
 * columns; ops whose descriptor has row roles (PlOp.rows) can if they work along the trailing dims. */
#include <string.h>

#include "engine/graph/fuse/fuse.h"
#include "engine/tensor/layout.h"

/* ---- operands of pointwise nodes -------------------------------------------------------------------------- */

/* Steps of x through the dims of s, 0 where it is repeated; false: x does not broadcast to s. */
static bool steps_of(const PlGValue *x, const PlGValue *s, int64_t *step) {
  int lead = s->ndim - x->ndim;
  if (lead < 0) return false;
  for (int d = 0; d < s->ndim; d++) {
    int64_t n = d < lead ? 1 : x->dims[d - lead];
    if (n != 1 && n != s->dims[d]) return false;
    step[d] = n == 1 ? 0 : x->dims[x->ndim + d - lead];
  }
  return true;
}

/* What x is to elements of shape s; *inner: the row length that this needs, 0: any. */
static bool role_of(const PlGValue *x, const PlGValue *s, uint8_t *role, int64_t *inner) {
  int64_t step[PL_MAX_DIM], seen = 1; /* elements of s in the dims looked at */
  int64_t row = 0;
  bool dense = true, begun = false;
  *inner = 0;
  if (x->dtype == PL_NDTYPE || !steps_of(x, s, step)) return false;
  for (int d = s->ndim - 1; d >= 0; d--) {
    if (s->dims[d] == 1) continue;
    if (!begun) dense = step[d] != 0;
    begun = true;
    if (!row && dense != (step[d] != 0)) row = seen; /* from here on the other way */
    int64_t want = !row ? (dense ? seen : 0) : dense ? 0 : seen / row;
    if (step[d] != want) return false;
    seen *= s->dims[d];
  }
  *inner = row;
  *role = row ? (dense ? PL_ROLE_ROW : PL_ROLE_COL) : dense ? PL_ROLE_FULL : PL_ROLE_ONE;
  return true;
}

/* A parameter that is channels last, where results are as their inputs. */
static bool follows(const PlGValue *x, const PlGValue *s) {
  const PlArray a = pl_gvalue_array(x);
  return x->kind == PL_FV_CAPTURE && !x->contiguous && x->ndim == s->ndim && memcmp(x->dims, s->dims, x->ndim * sizeof(int64_t)) == 0 &&
         pl_channels_last(&a);
}

static bool pointwise(const PlGraph *f, const PlGNode *n, const PlFuseDevice *device, PlFuseSpace *s, PlFuseRoles *r) {
  if (!pl_op_each(n->op) || n->nout != 1 || n->nin < 1 || n->nin > 4) return false;
  const PlGValue *y = &f->vals[n->first];
  if (!y->contiguous || y->numel < device->least) return false;
  if (s->numel == 0) s->numel = y->numel;
  bool column = y->numel != s->numel;
  if (column && (!s->rows || y->numel * s->cols != s->numel)) return false;
  for (int32_t k = 0; k < n->nin; k++) {
    int64_t need;
    if (n->in[k] < 0) return false;
    if (device->layouts && !column && follows(&f->vals[n->in[k]], y)) {
      r->in[k] = PL_ROLE_FULL;
      s->channels_last = true;
      continue;
    }
    if (!role_of(&f->vals[n->in[k]], y, &r->in[k], &need)) return false;
    if (need && (column || (s->cols && s->cols != need))) return false;
    if (need) s->cols = need;
    if (column && r->in[k] == PL_ROLE_FULL) r->in[k] = PL_ROLE_COL;
  }
  r->out[0] = column ? PL_ROLE_COL : PL_ROLE_FULL;
  return !s->channels_last || (!s->cols && !s->rows);
}

/* ---- nodes that need rows ---------------------------------------------------------------------------------- */

int pl_fuse_split(const PlGValue *v, int64_t rows) {
  int64_t n = 1;
  for (int d = 0; d < v->ndim; d++) {
    n *= v->dims[d];
    if (n == rows) return d;
  }
  return -1;
}

/* Dims of x that the node works along, as bits; 0: not known. */
static uint32_t along(const PlGraph *f, const PlGNode *n, const PlGValue *x) {
  uint32_t all = (1u << x->ndim) - 1, mask = 0;
  if (n->op->rows.rule == PL_ROWS_TO) {
    const PlGValue *y = &f->vals[n->first];
    int lead = x->ndim - y->ndim;
    for (int d = 0; d < x->ndim; d++)
      if (d < lead || (y->dims[d - lead] == 1 && x->dims[d] != 1)) mask |= 1u << d;
    return mask;
  }
  int k = n->op->rows.attr;
  if (!n->attrs || !pl_attr_has(n->attrs, k)) return n->op->rows.rule == PL_ROWS_DIMS ? all : 0;
  switch (n->op->rows.rule) {
  case PL_ROWS_DIM:
    if (pl_attr_i(n->attrs, k) < 0 || pl_attr_i(n->attrs, k) >= x->ndim) return 0;
    return 1u << pl_attr_i(n->attrs, k);
  case PL_ROWS_DIMS:
    for (int i = 0; i < pl_attr_n(n->attrs, k); i++) mask |= 1u << pl_attr_list(n->attrs, k)[i];
    return mask ? mask : all;
  case PL_ROWS_SHAPE:
    if (pl_attr_n(n->attrs, k) >= x->ndim) return 0;
    for (int i = 0; i < pl_attr_n(n->attrs, k); i++) mask |= 1u << (x->ndim - 1 - i);
    return mask;
  default: return 0;
  }
}

/* The value of role 'f' that comes first: x of reductions, the result of dim_put. */
static const PlGValue *full_value(const PlGraph *f, const PlGNode *n) {
  int at = 0;
  bool out = false;
  for (const char *p = n->op->rows.roles; *p; p++) {
    if (*p == ':') {
      out = true;
      at = 0;
      continue;
    }
    if (*p == '?') continue;
    if (*p == 'f') {
      if (out) return &f->vals[n->first + at];
      return n->in[at] >= 0 ? &f->vals[n->in[at]] : NULL;
    }
    at++;
  }
  return NULL;
}

bool pl_fuse_rows(const PlGraph *f, const PlGNode *n, PlFuseSpace *s) {
  if (!n->op->rows.roles) return false;
  const PlGValue *x = full_value(f, n);
  if (!x || x->dtype == PL_NDTYPE || x->ndim < 2 || x->numel == 0) return false;
  uint32_t mask = along(f, n, x);
  int64_t cols = 1;
  bool kept = false;
  for (int d = x->ndim - 1; d >= 0; d--) {
    if (x->dims[d] == 1) continue;
    bool in = (mask >> d) & 1;
    if (in && kept) return false; /* not the trailing ones */
    kept |= !in;
    if (in) cols *= x->dims[d];
  }
  if (cols < 2 || cols > PL_FUSE_LONGEST || cols == x->numel) return false;
  *s = (PlFuseSpace){.numel = x->numel, .cols = cols, .rows = true};
  return true;
}

/* Is v what the letter (PlRows) says? */
static bool fits(const PlGValue *v, char letter, const PlFuseSpace *s, uint8_t *role) {
  int64_t rows = s->numel / s->cols;
  if (!v->contiguous) return false;
  switch (letter) {
  case 'f': return *role = PL_ROLE_FULL, v->numel == s->numel && pl_fuse_split(v, rows) >= 0;
  case 'c': return *role = PL_ROLE_COL, v->numel == rows && pl_fuse_split(v, rows) >= 0;
  case 'r': return *role = PL_ROLE_ROW, v->numel == s->cols;
  case 's': return *role = PL_ROLE_SUM, v->numel == s->cols;
  default: return false;
  }
}

static bool row_member(const PlGraph *f, const PlGNode *n, PlFuseSpace *s, PlFuseRoles *r) {
  PlFuseSpace own;
  if (!pl_fuse_rows(f, n, &own)) return false;
  if (s->channels_last || (s->numel && (s->numel != own.numel || (s->cols && s->cols != own.cols)))) return false;
  int at = 0;
  bool out = false;
  for (const char *p = n->op->rows.roles; *p; p++) {
    if (*p == ':') {
      out = true;
      at = 0;
    } else if (*p == '?') {
      if (out) r->spare |= (uint8_t)(1u << (at - 1));
    } else if (!out) {
      if (at < n->nin && n->in[at] >= 0 && !fits(&f->vals[n->in[at]], *p, &own, &r->in[at])) return false;
      at++;
    } else {
      const PlGValue *v = &f->vals[n->first + at];
      if (v->dtype != PL_NDTYPE && !fits(v, *p, &own, &r->out[at])) return false;
      at++;
    }
  }
  own.grain = s->grain;
  own.unit = s->unit;
  *s = own;
  return true;
}

/* ---- sums over rows ---------------------------------------------------------------------------------------- */

/* A sum over the leading dims, or over all. */
static bool sum_member(const PlGraph *f, const PlGNode *n, PlFuseSpace *s, PlFuseRoles *r) {
  if (n->op->rows.rule != PL_ROWS_DIMS && n->op->rows.rule != PL_ROWS_TO) return false;
  const PlGValue *x = &f->vals[n->in[0]];
  if (!x->contiguous || x->numel < 2 || (s->numel && s->numel != x->numel)) return false;
  uint32_t mask = along(f, n, x);
  int64_t cols = 1;
  bool summed = false, kept = false;
  for (int d = x->ndim - 1; d >= 0; d--) {
    if (x->dims[d] == 1) continue;
    bool in = (mask >> d) & 1;
    if (!in && summed) return false; /* not the leading ones */
    summed |= in;
    kept |= !in;
    if (!in) cols *= x->dims[d];
  }
  if (!summed || (kept && ((s->cols && s->cols != cols) || cols > PL_FUSE_LONGEST))) return false;
  s->numel = x->numel;
  if (kept) {
    s->cols = cols;
    s->rows = true;
  }
  r->in[0] = PL_ROLE_FULL;
  r->out[0] = PL_ROLE_SUM;
  return true;
}

/* How the member sums over rows, and what that asks of tiles. */
static bool plan_sums(const PlGraph *f, const PlGNode *n, PlFuseSpace *s, PlFuseRoles *r) {
  static const PlAttrs none;
  PlArray arr[PL_MAX_IN + PL_MAX_OUT], *out[PL_MAX_OUT];
  const PlArray *in[PL_MAX_IN];
  int at = 0;
  for (int32_t k = 0; k < n->nin; k++) {
    in[k] = n->in[k] < 0 ? NULL : &arr[at];
    if (n->in[k] >= 0) arr[at++] = pl_gvalue_array(&f->vals[n->in[k]]);
  }
  for (int32_t o = 0; o < n->nout; o++) {
    bool there = f->vals[n->first + o].dtype != PL_NDTYPE;
    out[o] = there ? &arr[at] : NULL;
    if (there) arr[at++] = pl_gvalue_array(&f->vals[n->first + o]);
  }
  PlkCall call = {.name = n->op->name,
                  .code = n->op->kcode,
                  .nin = n->nin,
                  .nout = n->nout,
                  .in = in,
                  .out = out,
                  .attrs = n->attrs ? n->attrs : &none};
  int64_t cols = s->cols ? s->cols : s->numel;
  r->summed = true;
  r->pieces = (PlkPieces){.rows = s->numel / cols, .cols = cols, .unit = 1};
  if (!n->op->rows.pieces->plan(&call, &r->pieces)) return false;
  int64_t grain = r->pieces.grain < s->numel ? r->pieces.grain : s->numel;
  if (s->grain && (grain > s->grain ? grain % s->grain : s->grain % grain)) return false;
  if (grain > s->grain) s->grain = grain;
  if (r->pieces.unit > s->unit) s->unit = (int32_t)r->pieces.unit;
  return true;
}

/* Tiles of the space end where grains do, and threads find enough of them. */
static bool grains_fit(const PlFuseSpace *s) {
  if (!s->grain) return true;
  if (s->grain == s->numel) return s->numel <= PL_FUSE_ALONE;
  if (s->cols && s->grain % s->cols) return false;
  return s->unit <= 1 || (s->cols && s->grain / s->cols % s->unit == 0);
}

static bool may_join(const PlGNode *n) {
  if ((n->flags & (PL_FN_MUTATES | PL_FN_VIEW)) || (n->op->flags & (PL_F_MUTATES | PL_F_SEEDED)) || n->draw >= 0) return false;
  return n->op->kernel[PL_CPU] && n->nin <= PL_MAX_IN;
}

bool pl_fuse_roles(const PlGraph *f, const PlGNode *n, const PlFuseDevice *device, PlFuseSpace *s, PlFuseRoles *r) {
  if (!may_join(n)) return false;
  *r = (PlFuseRoles){.spare = 0};
  PlFuseSpace mine = *s;
  bool sums = n->op->rows.pieces != NULL;
  if (!n->op->rows.roles) {
    if (!pointwise(f, n, device, &mine, r)) return false;
  } else if (row_member(f, n, &mine, r)) {
    r->summed = sums = sums && strchr(n->op->rows.roles, 's');
  } else if (!device->sums || !sums || !sum_member(f, n, &mine, r)) return false;
  if (device->sums && ((sums && !plan_sums(f, n, &mine, r)) || !grains_fit(&mine))) return false;
  *s = mine;
  return true;
}
