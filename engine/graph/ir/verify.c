/* SPDX-License-Identifier: MIT
 * What every legal graph satisfies. A failure is a bug of the pass that ran last, never of a script. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/graph/ir/graph.h"

#define BAD(...) PL_FAIL(PL_ERR_STATE, "graph_verify: " __VA_ARGS__)

static PlStatus check_value(const PlGraph *f, PlGVal v) {
  const PlGValue *val = &f->vals[v];
  if (val->store < 0 || val->store >= f->nstores) BAD("value %%%d has no store", (int)v);
  if (val->dtype == PL_NDTYPE) return PL_OK;
  int64_t n = 1, last = val->offset;
  for (int d = 0; d < val->ndim; d++) {
    if (val->dims[d] < 0) BAD("value %%%d has a negative size", (int)v);
    n *= val->dims[d];
    if (val->dims[d] > 0) last += (val->dims[d] - 1) * val->dims[val->ndim + d];
  }
  if (n != val->numel) BAD("value %%%d counts %lld elements, its sizes say %lld", (int)v, (long long)val->numel, (long long)n);
  if (n > 0 && (val->offset < 0 || (last + 1) * (int64_t)pl_dtype_size((PlDtype)val->dtype) > f->stores[val->store].bytes))
    BAD("value %%%d reaches outside its store of %lld bytes", (int)v, (long long)f->stores[val->store].bytes);
  if (val->kind == PL_FV_NODE) {
    if (val->node < 0 || val->node >= f->nnodes) BAD("value %%%d has no node", (int)v);
    const PlGNode *p = &f->nodes[val->node];
    if (val->slot < 0 || val->slot >= p->nout || p->first + val->slot != v)
      BAD("value %%%d is not output %d of %s", (int)v, (int)val->slot, p->name);
  } else if ((val->kind == PL_FV_CAPTURE || val->kind == PL_FV_CONST) && !val->real) BAD("leaf %%%d has no tensor", (int)v);
  return PL_OK;
}

/* writer[s]: the newest value written into store s so far, or -1. */
static PlStatus check_node(const PlGraph *f, int32_t i, PlGVal *written_at) {
  const PlGNode *n = &f->nodes[i];
  int32_t want = n->flags & PL_FN_MUTATES ? (n->op->nin == PL_VARIADIC ? n->nin : 1) : n->op->nout;
  if (n->nout != want) BAD("%s has %d outputs, its op %d", n->name, (int)n->nout, (int)want);
  if (n->op->nin != PL_VARIADIC && n->nin != n->op->nin) BAD("%s has %d inputs, its op %d", n->name, (int)n->nin, n->op->nin);
  for (int32_t k = 0; k < n->nin; k++) {
    PlGVal v = n->in[k];
    if (v < 0) continue;
    if (v >= f->nvals) BAD("%s reads a value that does not exist", n->name);
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_NODE && val->node >= i) BAD("%s reads %%%d before it is computed", n->name, (int)v);
    if (val->version < written_at[val->store]) BAD("%s reads %%%d after its memory was overwritten", n->name, (int)v);
  }
  if (n->flags & PL_FN_VIEW && n->in[0] >= 0) {
    const PlGValue *x = &f->vals[n->in[0]], *v = &f->vals[n->first];
    if (v->store != x->store || v->offset != x->offset + n->window) BAD("%s is a view of other memory than its input's", n->name);
  }
  for (int32_t k = 0; k < n->nafter; k++)
    if (n->after[k] >= i) BAD("%s must run after %s, which comes after it", n->name, f->nodes[n->after[k]].name);
  for (int32_t o = 0; o < pl_gnode_written(n); o++) {
    const PlGValue *val = &f->vals[n->first + o];
    if (val->store != f->vals[n->in[o]].store) BAD("%s writes into another store than it reads", n->name);
    if (val->version <= written_at[val->store]) BAD("%s does not make a newer version of what it writes", n->name);
    written_at[val->store] = val->version;
  }
  return PL_OK;
}

PlStatus pl_graph_verify(const PlGraph *f) {
  for (PlGVal v = 0; v < f->nvals; v++) PL_TRY(check_value(f, v));
  int32_t *written = calloc((size_t)f->nstores + 1, sizeof *written);
  if (!written) PL_FAIL(PL_ERR_OOM, "out of memory to check a graph");
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++) s = check_node(f, i, written);
  for (int32_t o = 0; o < f->noutputs && s == PL_OK; o++) {
    PlGVal v = f->outputs[o];
    if (v < 0 || v >= f->nvals) s = pl_fail(PL_ERR_STATE, "graph_verify: output %d does not exist", (int)o + 1);
    else if (f->vals[v].version < written[f->vals[v].store])
      s = pl_fail(PL_ERR_STATE, "graph_verify: the memory of output %d is overwritten before the end", (int)o + 1);
  }
  free(written);
  return s;
}

static bool same_desc(const PlDesc *d, const PlGValue *v, bool spare) {
  if (v->dtype == PL_NDTYPE && spare) return true;
  if (d->dtype == PL_NDTYPE || v->dtype == PL_NDTYPE) return d->dtype == v->dtype;
  return d->dtype == v->dtype && d->ndim == v->ndim && (d->ndim == 0 || memcmp(d->shape, v->dims, d->ndim * sizeof *v->dims) == 0);
}

PlStatus pl_graph_node_takes(const PlGraph *f, int32_t i, const PlAttrs *attrs) {
  const PlGNode *n = &f->nodes[i];
  const PlArray *few[PL_MAX_IN], **in = few;
  PlArray *arr = calloc((size_t)n->nin + 1, sizeof *arr);
  if (n->nin > PL_MAX_IN) in = malloc((size_t)n->nin * sizeof(PlArray *));
  if (!arr || !in) {
    free(arr);
    if (in != few) free((void *)in);
    PL_FAIL(PL_ERR_OOM, "out of memory to check a graph");
  }
  bool known = true;
  for (int32_t k = 0; k < n->nin; k++) {
    in[k] = n->in[k] < 0 ? NULL : &arr[k];
    if (!in[k]) continue;
    const PlGValue *v = &f->vals[n->in[k]];
    arr[k] = v->real ? v->real->a : pl_gvalue_array(v);
    known = known && (v->real || k >= 8 || !((n->op->reads_values >> k) & 1));
  }
  PlAttrs normal;
  PlDesc desc[PL_MAX_OUT] = {{0}};
  PlStatus s = known ? PL_OK : pl_fail(PL_ERR_UNSUPPORTED, "%s depends on values", n->op->name);
  if (s == PL_OK) s = pl_attrs_normalize(n->op, attrs, n->nin ? in[0] : NULL, &normal);
  PlInfer c = {.op = n->op, .attrs = &normal, .nin = n->nin, .in = in, .out = desc, .compute = pl_compute_dtype(n->op, n->nin, in)};
  if (s == PL_OK) s = n->op->infer(&c);
  for (int o = 0; s == PL_OK && o < n->op->nout && o < n->nout; o++)
    if (!same_desc(&desc[o], &f->vals[n->first + o], n->op->spare >> o & 1))
      s = pl_fail(PL_ERR_SHAPE, "%s: with other options its result is another one than the graph was made for", n->op->name);
  free(arr);
  if (in != few) free((void *)in);
  return s;
}
