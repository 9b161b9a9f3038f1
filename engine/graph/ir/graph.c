/* SPDX-License-Identifier: MIT
 * Graphs: pool, values, leaves, nodes. See graph.h. Functions either do all of their work or leave the graph as it was. */
#include "engine/graph/ir/graph.h"
#include "engine/call/thread_state.h"
#include "engine/graph/ir/calls.h"
#include "engine/ops/names.h"
#include "engine/tensor/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct PlChunk {
  PlChunk *next;
  size_t used, size;
  _Alignas(16) char room[];
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a graph"); }

/* ---- pool and arrays ----------------------------------------------------------------------------------- */

void *pl_graph_alloc(PlGraph *f, size_t n) {
  n = (n + 15) & ~(size_t)15;
  PlChunk *c = f->chunks;
  if (!c || c->size - c->used < n) {
    size_t size = n > 16384 ? n : 16384;
    c = malloc(sizeof *c + size);
    if (!c) return NULL;
    *c = (PlChunk){.next = f->chunks, .size = size};
    f->chunks = c;
  }
  void *p = c->room + c->used;
  c->used += n;
  return memset(p, 0, n);
}

const char *pl_graph_string(PlGraph *f, const char *s) {
  size_t n = strlen(s) + 1;
  char *p = pl_graph_alloc(f, n);
  return p ? memcpy(p, s, n) : NULL;
}

/* Room for `more` further entries. */
static PlStatus grow(void *array, int32_t n, int32_t *cap, int32_t more, size_t size) {
  if (n + more <= *cap) return PL_OK;
  if (n > INT32_MAX / 4) PL_FAIL(PL_ERR_ARG, "a graph of more than %d nodes", INT32_MAX / 4);
  int32_t want = 2 * (n + more) + 16;
  void **a = array, *p = realloc(*a, (size_t)want * size);
  if (!p) return no_memory();
  *a = p;
  *cap = want;
  return PL_OK;
}

PlStatus pl_graph_new(PlGraph **out) {
  PlGraph *f = calloc(1, sizeof *f);
  if (!f) return no_memory();
  f->refs = 1;
  f->origin = -1;
  f->counts = calloc(PL_NOP, sizeof *f->counts);
  if (!f->counts) {
    free(f);
    return no_memory();
  }
  *out = f;
  return PL_OK;
}

PlGraph *pl_graph_retain(PlGraph *f) {
  f->refs++;
  return f;
}

void pl_graph_regions_drop(PlGraph *f) {
  for (int32_t r = 0; r < f->nregions; r++) {
    free(f->regions[r].ys);
    free(f->regions[r].recompute.choice);
  }
  f->nregions = 0;
}

void pl_graph_release(PlGraph *f) {
  if (!f || --f->refs) return;
  for (int32_t v = 0; v < f->nvals; v++) pl_tensor_release(f->vals[v].real);
  pl_graph_regions_drop(f);
  pl_graph_leaves_drop(f);
  pl_calls_free(f->calls);
  for (PlChunk *c = f->chunks, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  pl_graph_release(f->base);
  free(f->vals);
  free(f->nodes);
  free(f->stores);
  free(f->outputs);
  free(f->regions);
  free(f->recompute.choice);
  free(f->captures);
  free(f->counts);
  free(f->lines);
  free(f->versions);
  for (int32_t i = 0; i < f->nswitches; i++) pl_tensor_release(f->switches[i].t);
  free(f->switches);
  free(f);
}

/* ---- values -------------------------------------------------------------------------------------------- */

PlStatus pl_graph_value(PlGraph *f, PlGKind kind, const PlArray *type, int32_t store, int64_t offset, PlGVal *out) {
  PL_TRY(grow(&f->vals, f->nvals, &f->cap_vals, 1, sizeof *f->vals));
  PL_TRY(grow(&f->stores, f->nstores, &f->cap_stores, 1, sizeof *f->stores));
  int64_t *dims = pl_graph_alloc(f, 2 * (size_t)type->ndim * sizeof *dims + 1);
  if (!dims) return no_memory();
  PlGVal v = f->nvals++;
  if (type->ndim) {
    memcpy(dims, type->shape, type->ndim * sizeof *dims);
    memcpy(dims + type->ndim, type->strides, type->ndim * sizeof *dims);
  }
  f->vals[v] = (PlGValue){.kind = (uint8_t)kind,
                          .dtype = type->dtype,
                          .ndim = type->ndim,
                          .weak = type->weak,
                          .contiguous = type->contiguous,
                          .device = type->device,
                          .node = -1,
                          .slot = -1,
                          .store = store,
                          .offset = offset,
                          .numel = type->numel,
                          .dims = dims};
  if (store < 0) {
    f->vals[v].store = f->nstores;
    f->stores[f->nstores++] = (PlGStore){.bytes = pl_gvalue_bytes(&f->vals[v]), .first = v, .root = v};
  } else f->vals[v].version = f->stores[store].version;
  f->edition++;
  *out = v;
  return PL_OK;
}

/* An input that is not row-major: the whole of its memory, which windows are taken of when it is written, is a view of it with
 * dims in the order of memory. */
static PlStatus whole_of(PlGraph *f, PlGVal v) {
  const PlGValue *x = &f->vals[v];
  int64_t dims[PL_MAX_DIM];
  int order[PL_MAX_DIM];
  int32_t node;
  PlAttrs a;
  PlDesc d = {.dtype = x->dtype, .ndim = x->ndim, .is_view = true};
  pl_layout_order(x->ndim, x->dims, x->dims + x->ndim, order);
  for (int k = 0; k < x->ndim; k++) {
    dims[k] = order[k];
    d.shape[k] = x->dims[order[k]];
    d.strides[k] = x->dims[x->ndim + order[k]];
  }
  pl_attrs_init(&pl_op_permute, &a);
  PL_TRY(pl_attrs_list(&a, 0, x->ndim, dims));
  PL_TRY(pl_graph_node(f, &pl_op_permute, 1, &v, &a, &d, 0, &node));
  f->stores[f->vals[v].store].root = f->nodes[node].first;
  if (f->calls) f->calls->nodes = f->nnodes;
  return PL_OK;
}

PlStatus pl_graph_input(PlGraph *f, const char *name, PlDtype d, int ndim, const int64_t *shape, bool leaf, PlGVal *out) {
  return pl_graph_input_like(f, name, d, ndim, shape, NULL, leaf, out);
}

PlStatus pl_graph_input_like(PlGraph *f, const char *name, PlDtype d, int ndim, const int64_t *shape, const PlArray *like, bool leaf,
                             PlGVal *out) {
  int64_t numel, strides[PL_MAX_DIM], step = 1;
  size_t bytes;
  PL_TRY(pl_count(ndim, shape, d, &numel, &bytes));
  for (int k = ndim - 1; k >= 0; k--) {
    strides[k] = step;
    step *= shape[k] ? shape[k] : 1;
  }
  const char *copy = pl_graph_string(f, name);
  if (!copy) return no_memory();
  PlArray a = {.numel = numel, .shape = shape, .strides = strides, .dtype = (uint8_t)d, .ndim = (uint8_t)ndim, .contiguous = 1};
  if (like && pl_layout_permuted(like, strides)) a.contiguous = like->contiguous; /* strides of sizes of 1 alone leave it so */
  PL_TRY(pl_graph_value(f, PL_FV_INPUT, &a, -1, 0, out));
  f->vals[*out].name = copy;
  f->vals[*out].leaf = leaf;
  f->vals[*out].slot = f->ninputs++;
  return a.contiguous ? PL_OK : whole_of(f, *out);
}

PlStatus pl_graph_laid(const PlGValue *v, PlTensor *t, PlTensor **out) {
  PlTensor *c;
  PL_TRY(pl_tensor_empty_as(&c, PL_ROW_MAJOR, t->a.device, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  pl_layout_stride(c, v->dims + v->ndim);
  PlStatus s = pl_copy_data(c, t);
  if (s == PL_OK) *out = c;
  else pl_tensor_release(c);
  return s;
}

PlStatus pl_graph_const(PlGraph *f, PlTensor *t, PlGVal *out) {
  PL_TRY(pl_graph_value(f, PL_FV_CONST, &t->a, -1, 0, out));
  f->vals[*out].real = pl_retain(t);
  return PL_OK;
}

/* ---- captured tensors ---------------------------------------------------------------------------------- */

static uint32_t hash_storage(const PlTensor *t) {
  uint64_t h = (uint64_t)(uintptr_t)t->storage * UINT64_C(0x9E3779B97F4A7C15);
  return (uint32_t)(h >> 33);
}

static bool same_window(const PlTensor *a, const PlTensor *b) {
  return a->storage == b->storage && a->a.data == b->a.data && a->a.dtype == b->a.dtype && pl_shape_equal(&a->a, &b->a) &&
         memcmp(a->a.strides, b->a.strides, a->a.ndim * sizeof(int64_t)) == 0;
}

/* Do gradients of both go to the same? An alias once detached has none where what it was taken from has one. */
static bool same_history(const PlTensor *a, const PlTensor *b) {
  if (a->node != b->node || (a->node && a->slot != b->slot)) return false;
  const PlEntry *p = a->more, *q = b->more;
  for (; p && q; p = p->next, q = q->next)
    if (p->node != q->node || p->slot != q->slot) return false;
  return p == q;
}

static PlStatus grow_captures(PlGraph *f) {
  if (2 * (f->ncaptures + 1) <= f->cap_captures) return PL_OK;
  int32_t cap = f->cap_captures ? 2 * f->cap_captures : 64;
  int32_t *slots = malloc((size_t)cap * sizeof *slots);
  if (!slots) return no_memory();
  for (int32_t i = 0; i < cap; i++) slots[i] = -1;
  for (int32_t i = 0; i < f->cap_captures; i++) {
    if (f->captures[i] < 0) continue;
    uint32_t s = hash_storage(f->vals[f->captures[i]].real) & (uint32_t)(cap - 1);
    while (slots[s] >= 0) s = (s + 1) & (uint32_t)(cap - 1);
    slots[s] = f->captures[i];
  }
  free(f->captures);
  f->captures = slots;
  f->cap_captures = cap;
  return PL_OK;
}

PlStatus pl_graph_capture(PlGraph *f, PlTensor *t, PlGVal *out) {
  PL_TRY(grow_captures(f));
  uint32_t mask = (uint32_t)(f->cap_captures - 1), s = hash_storage(t) & mask;
  int32_t store = -1;
  for (; f->captures[s] >= 0; s = (s + 1) & mask) {
    const PlGValue *v = &f->vals[f->captures[s]];
    if (same_window(v->real, t) && same_history(v->real, t)) {
      *out = f->captures[s];
      return PL_OK;
    }
    if (v->real->storage == t->storage) store = v->store;
  }
  int64_t at = ((char *)t->a.data - (char *)t->storage->data) / (ptrdiff_t)pl_dtype_size((PlDtype)t->a.dtype);
  PL_TRY(pl_graph_value(f, PL_FV_CAPTURE, &t->a, store, at, out));
  PlGValue *v = &f->vals[*out];
  v->leaf = true;
  v->real = pl_retain(t);
  if (store < 0) f->stores[v->store].bytes = (int64_t)t->storage->nbytes;
  f->captures[s] = *out;
  f->ncaptures++;
  return PL_OK;
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

bool pl_gnode_pure(const PlGNode *n) { return !(n->flags & PL_FN_MUTATES) && !(n->op->flags & (PL_F_SEEDED | PL_F_MUTATES | PL_F_IMPURE)); }

/* On which device a node's results are: see pl_call_place. */
static uint8_t device_of(const PlGraph *f, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *attrs) {
  if ((op->flags & PL_F_MOVES) && attrs) return (uint8_t)pl_attr_i(attrs, 0);
  for (int k = 0; k < nin; k++)
    if (in[k] >= 0 && f->vals[in[k]].device != PL_CPU) return f->vals[in[k]].device;
  return nin == 0 ? pl_state.device : PL_CPU;
}

/* The type of output o: a window of input 0's store, or row-major memory of its own. */
static PlStatus output(PlGraph *f, const PlGNode *n, const PlDesc *d, int32_t slot) {
  PlGVal v;
  int64_t numel, strides[PL_MAX_DIM], step = 1;
  size_t bytes;
  PlArray a = {.shape = d->shape, .strides = d->strides, .dtype = d->dtype, .ndim = d->ndim};
  if (d->dtype == PL_NDTYPE) {
    a.ndim = 0;
    PL_TRY(pl_graph_value(f, PL_FV_NODE, &a, -1, 0, &v));
  } else {
    PL_TRY(pl_count(d->ndim, d->shape, (PlDtype)d->dtype, &numel, &bytes));
    a.numel = numel;
    a.contiguous = 1;
    for (int k = d->ndim - 1; k >= 0; k--) {
      strides[k] = step;
      if (d->is_view && numel && d->shape[k] != 1 && d->strides[k] != step) a.contiguous = 0;
      step *= d->shape[k] ? d->shape[k] : 1;
    }
    if (!d->is_view) a.strides = strides;
    int32_t store = d->is_view ? f->vals[n->in[0]].store : -1;
    PL_TRY(pl_graph_value(f, PL_FV_NODE, &a, store, d->is_view ? f->vals[n->in[0]].offset + d->offset : 0, &v));
  }
  f->vals[v].slot = slot;
  return PL_OK;
}

/* A mutated input's new value: the whole of what the store's newest root shows. */
static PlStatus written(PlGraph *f, PlGVal in, int32_t slot) {
  PlGVal v;
  const PlGValue *old = &f->vals[in];
  PlArray a = pl_gvalue_array(old);
  PL_TRY(pl_graph_value(f, PL_FV_NODE, &a, old->store, old->offset, &v));
  f->vals[v].slot = slot;
  return PL_OK;
}

static const char *numbered(PlGraph *f, const char *base, int32_t k) {
  char text[160];
  snprintf(text, sizeof text, "%.140s_%d", base, (int)k);
  return pl_graph_string(f, text);
}

static const char *node_name(PlGraph *f, const PlOp *op) {
  if (!f->emit_name) return numbered(f, op->name, ++f->counts[pl_op_id(op)]);
  return f->emit_count++ ? numbered(f, f->emit_name, f->emit_count) : f->emit_name;
}

PlStatus pl_graph_node(PlGraph *f, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *attrs, const PlDesc *desc, uint8_t flags,
                       int32_t *node) {
  int32_t nout = flags & PL_FN_MUTATES ? (op->nin == PL_VARIADIC ? nin : 1) : op->nout;
  PL_TRY(plk_poll()); /* whatever makes nodes, a trace, a gradient pass or copies, stops at Ctrl-C */
  PL_TRY(grow(&f->nodes, f->nnodes, &f->cap_nodes, 1, sizeof *f->nodes));
  PL_TRY(grow(&f->vals, f->nvals, &f->cap_vals, nout, sizeof *f->vals));
  PL_TRY(grow(&f->stores, f->nstores, &f->cap_stores, nout, sizeof *f->stores));
  PlGNode n = {.op = op,
               .nin = nin,
               .nout = nout,
               .flags = flags,
               .stage = f->stage,
               .origin = f->origin,
               .draw = -1,
               .source = -1,
               .mark = f->mark,
               .whole = f->holding > 0 ? f->held : 0,
               .first = f->nvals,
               .where = pl_graph_line(f)};
  n.in = pl_graph_alloc(f, (size_t)nin * sizeof *n.in + 1);
  n.name = node_name(f, op);
  if (!n.in || !n.name) return no_memory();
  memcpy(n.in, in, (size_t)nin * sizeof *in);
  if (op->nattr && attrs) {
    n.attrs = pl_graph_alloc(f, pl_attrs_size(attrs));
    if (!n.attrs) return no_memory();
    memcpy(n.attrs, attrs, pl_attrs_size(attrs));
  }
  int32_t vals = f->nvals, stores = f->nstores;
  PlStatus s = PL_OK;
  for (int32_t o = 0; o < nout && s == PL_OK; o++) s = flags & PL_FN_MUTATES ? written(f, in[o], o) : output(f, &n, &desc[o], o);
  if (s != PL_OK) {
    f->nvals = vals;
    f->nstores = stores;
    return s;
  }
  const uint8_t device = device_of(f, op, nin, in, attrs);
  for (int32_t o = 0; o < nout; o++) {
    f->vals[n.first + o].node = f->nnodes;
    if (!(flags & PL_FN_MUTATES)) f->vals[n.first + o].device = device;
  }
  if (!(flags & PL_FN_MUTATES) && nout && desc[0].is_view) {
    n.flags |= PL_FN_VIEW;
    n.window = desc[0].offset;
  }
  if (op->flags & PL_F_SEEDED) n.draw = f->ndraws++;
  *node = f->nnodes;
  f->nodes[f->nnodes++] = n;
  f->edition++;
  return PL_OK;
}

void pl_graph_hold(PlGraph *f, int more) {
  if (more > 0 && f->holding == 0) f->held++;
  f->holding += more;
}

void pl_graph_piece(PlGraph *f, int32_t i, int32_t piece) {
  f->nodes[i].whole = piece;
  if (piece > f->held) f->held = piece; /* those to come are others */
  f->edition++;
}

/* ---- undoing ------------------------------------------------------------------------------------------- */

PlStatus pl_graph_mark(const PlGraph *f, PlGMark *m) {
  *m = (PlGMark){.nvals = f->nvals, .nnodes = f->nnodes, .nstores = f->nstores, .ndraws = f->ndraws, .ncaptures = f->ncaptures};
  m->counts = malloc(PL_NOP * sizeof *m->counts);
  if (!m->counts) return no_memory();
  memcpy(m->counts, f->counts, PL_NOP * sizeof *m->counts);
  return PL_OK;
}

/* Does anybody outside know of what came after the mark, or did that write into what was there before? */
static bool may_go_back(const PlGraph *f, const PlGMark *m) {
  for (int32_t s = 0; s < f->nstores; s++)
    if (s < m->nstores ? f->stores[s].root >= m->nvals : f->stores[s].live != NULL) return false;
  for (int32_t i = m->nnodes; i < f->nnodes; i++)
    if (f->nodes[i].flags & PL_FN_MUTATES) return false;
  return f->ncaptures == m->ncaptures;
}

void pl_graph_back(PlGraph *f, const PlGMark *m) {
  if (!may_go_back(f, m)) return;
  for (PlGVal v = m->nvals; v < f->nvals; v++) pl_tensor_release(f->vals[v].real);
  f->nvals = m->nvals;
  f->nnodes = m->nnodes;
  f->nstores = m->nstores;
  f->ndraws = m->ndraws;
  memcpy(f->counts, m->counts, PL_NOP * sizeof *m->counts);
  f->edition++;
}

PlStatus pl_graph_set_outputs(PlGraph *f, int n, const PlGVal *v) {
  PlGVal *copy = malloc((size_t)(n ? n : 1) * sizeof *copy);
  if (!copy) return no_memory();
  memcpy(copy, v, (size_t)n * sizeof *v);
  free(f->outputs);
  f->outputs = copy;
  f->noutputs = n;
  f->edition++;
  return PL_OK;
}

PlStatus pl_graph_after(PlGraph *f, int32_t node, int32_t before) {
  PlGNode *n = &f->nodes[node];
  for (int32_t k = 0; k < n->nafter; k++)
    if (n->after[k] == before) return PL_OK;
  int32_t *list = pl_graph_alloc(f, (size_t)(n->nafter + 1) * sizeof *list);
  if (!list) return no_memory();
  if (n->nafter) memcpy(list, n->after, (size_t)n->nafter * sizeof *list);
  list[n->nafter++] = before;
  n->after = list;
  f->edition++;
  return PL_OK;
}
