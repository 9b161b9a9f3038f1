/* SPDX-License-Identifier: MIT
 * See device_run.h. Groups are chosen at the first run (device_groups.c), when it is known which leaves are numbers on the host, and
 * again where that changes. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/graph/run/device_run_internal.h"
#include "engine/graph/run/whole.h"
#include "engine/tensor/layout.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device"); }

/* ---- making --------------------------------------------------------------------------------------------------- */

PlStatus pl_device_run_new(PlDeviceRun **out, const PlGraph *f) {
  PlDeviceRun *a = calloc(1, sizeof *a);
  if (!a) return no_memory();
  const size_t nv = (size_t)f->nvals + 1, nn = (size_t)f->nnodes + 1;
  const PlDeviceTable *t = pl_device_open();
  a->f = f;
  a->crosses = pl_graph_crosses(f);
  a->table = t && !pl_pass_is_off("fuse") ? t->extension("fused") : NULL;
  a->last = malloc(nv * sizeof *a->last);
  a->device = calloc(nv, 1);
  a->at = malloc(nn * sizeof *a->at);
  a->vals = calloc(nv, sizeof *a->vals);
  a->drawn = calloc((size_t)f->ndraws + 1, sizeof *a->drawn);
  a->tail = malloc(nn * sizeof *a->tail);
  a->cast = calloc(nn, 1);
  a->waiting = malloc(nn * sizeof *a->waiting);
  a->leaf_cast = malloc(nn * sizeof *a->leaf_cast);
  a->waits = calloc(nv, 1);
  a->written = calloc((size_t)f->nstores + 1, 1);
  if (!a->last || !a->device || !a->at || !a->vals || !a->drawn || !a->tail || !a->cast || !a->waiting || !a->leaf_cast || !a->waits ||
      !a->written) {
    pl_device_run_free(a);
    return no_memory();
  }
  const PlStatus s = pl_whole_find(&a->whole, f);
  if (s != PL_OK) {
    pl_device_run_free(a);
    return s;
  }
  for (PlGVal v = 0; v < f->nvals; v++) a->last[v] = -1;
  for (int32_t i = 0; i < f->nnodes; i++) {
    a->at[i] = -1;
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) a->last[f->nodes[i].in[k]] = i;
  }
  for (int32_t o = 0; o < f->noutputs; o++) a->last[f->outputs[o]] = f->nnodes;
  *out = a;
  return PL_OK;
}

void pl_device_run_free(PlDeviceRun *a) {
  if (!a) return;
  pl_device_capture_free(a);
  free(a->last);
  free(a->device);
  free(a->at);
  free(a->groups);
  free(a->vals);
  free(a->drawn);
  free(a->tail);
  free(a->cast);
  free(a->waiting);
  free(a->leaf_cast);
  free(a->waits);
  free(a->written);
  free(a->whole);
  free(a);
}

int32_t pl_device_run_done(const PlDeviceRun *a) { return a->done; }

int32_t pl_device_run_groups(const PlDeviceRun *a, int32_t *members) {
  *members = 0;
  for (int32_t g = 0; g < a->ngroups; g++) *members += a->groups[g].fused.nmember;
  return a->ngroups;
}

/* ---- choosing groups -------------------------------------------------------------------------------------------- */

/* Which device values are on: that of an input on the device, unless it is a question about sizes. */
static uint8_t device_of(const PlDeviceRun *a, const PlGNode *n) {
  if (n->op->flags & PL_F_SIZES) return PL_CPU;
  if (n->op->flags & PL_F_MOVES) return (uint8_t)pl_attr_i(n->attrs, 0);
  bool any = false;
  for (int32_t k = 0; k < n->nin; k++) {
    if (n->in[k] >= 0 && a->device[n->in[k]] != PL_CPU) return a->device[n->in[k]];
    any = any || n->in[k] >= 0;
  }
  if (n->op->cls != PL_CREATION && any) return PL_CPU;
  return pl_graph_makes_on(a->f, n, pl_state.device, a->several);
}

static PlStatus choose(PlDeviceRun *a) {
  const PlGraph *f = a->f;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const uint8_t d = device_of(a, &f->nodes[i]);
    a->at[i] = -1;
    for (int32_t o = 0; o < f->nodes[i].nout; o++) a->device[f->nodes[i].first + o] = d;
  }
  PL_TRY(pl_device_norms(a));
  if (a->table) PL_TRY(pl_device_groups(a));
  pl_device_casts_choose(a);
  PL_TRY(pl_device_heads(a));
  a->known = true;
  return PL_OK;
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

static void drop(PlDeviceRun *a, PlGVal v) {
  pl_tensor_release(a->vals[v]);
  a->vals[v] = NULL;
}

void pl_device_run_drop_behind(PlDeviceRun *a, int32_t i) {
  const PlGNode *n = &a->f->nodes[i];
  for (int32_t k = 0; k < n->nin; k++)
    if (n->in[k] >= 0 && a->last[n->in[k]] == i) drop(a, n->in[k]);
  for (int32_t o = 0; o < n->nout; o++)
    if (a->last[n->first + o] < 0) drop(a, n->first + o);
}

/* The plan takes every value of a node for row-major; as they run, results follow their inputs (engine/tensor/layout.h). Views
 * that count on memory get what the plan says. */
static PlStatus settle(PlDeviceRun *a, const PlGNode *n) {
  if (!(n->op->flags & PL_F_BY_MEMORY)) return PL_OK;
  PlTensor **t = &a->vals[n->in[0]], *copy;
  if ((*t)->a.contiguous || !a->f->vals[n->in[0]].contiguous) return PL_OK;
  PL_TRY(pl_tensor_copy(&copy, *t));
  pl_tensor_release(*t);
  *t = copy;
  return PL_OK;
}

/* Views between members of what is there: before the kernel runs those of earlier values, then those of results that others
 * read. Nothing is dropped before the group has run. */
static PlStatus take_views(PlDeviceRun *a, const PlDeviceGroup *g) {
  for (int32_t i = g->begin; i < g->end; i++) {
    const PlGNode *n = &a->f->nodes[i];
    PlTensor *in[PL_MAX_IN];
    if (!(n->flags & PL_FN_VIEW) || a->vals[n->first] || !a->vals[n->in[0]]) continue;
    PL_TRY(settle(a, n));
    for (int32_t k = 0; k < n->nin; k++) in[k] = n->in[k] < 0 ? NULL : a->vals[n->in[k]];
    PL_TRY(pl_apply(n->op, in, n->nin, n->attrs, &a->vals[n->first]));
  }
  return PL_OK;
}

enum { APART = -1 };
/* The layout of the full arrays of a group in this run: channels last where one of them is. APART: the group goes by rows then, or
 * has arrays of other shapes; its nodes, one by one, keep their layout. */
static int layout_of(const PlDeviceRun *a, const PlDeviceGroup *g) {
  const PlArray *first = NULL;
  bool last = false, plain = g->fused.rows;
  for (int k = 0; k < g->fused.narg; k++) {
    const PlkFusedArg *arg = &g->fused.arg[k];
    const PlGValue *val = &a->f->vals[g->arg[k]];
    const PlArray planned = pl_gvalue_array(val), *x = arg->out ? &planned : &a->vals[g->arg[k]]->a;
    plain = plain || arg->kind == PLK_FUSED_ROW || arg->kind == PLK_FUSED_COL;
    if (arg->kind != PLK_FUSED_FULL) continue;
    plain = plain || (first && !pl_shape_equal(first, x)) || (arg->out && val->ndim != 4 && val->ndim != 5);
    if (arg->out) continue;
    if (!first) first = x;
    last = last || (!x->contiguous && pl_channels_last(x));
  }
  for (int32_t i = g->begin; last && !plain && i < g->end; i++) /* of what a member makes: its shape is another one */
    plain = (a->f->nodes[i].flags & PL_FN_VIEW) && !a->vals[a->f->nodes[i].first];
  return !last ? PL_ROW_MAJOR : plain ? APART : PL_CHANNELS_LAST;
}

/* What the plan repeats of t (strides 0), once: the kernel repeats it by its kind. */
static PlStatus once(PlTensor **out, const PlGValue *planned, const PlTensor *t) {
  int64_t shape[PL_MAX_DIM];
  for (int d = 0; d < planned->ndim; d++) shape[d] = planned->dims[planned->ndim + d] ? planned->dims[d] : 1;
  return pl_tensor_window(out, t, planned->ndim, shape, t->a.strides, t->a.data);
}

/* Argument k, or a copy in made[k] in the layout that the kernel walks. */
static PlStatus argument(PlDeviceRun *a, const PlDeviceGroup *g, int k, int layout, PlTensor **made, const PlArray **arr) {
  const PlkFusedArg *arg = &g->fused.arg[k];
  PlTensor *t = a->vals[g->arg[k]], *part = NULL;
  const bool full = arg->kind == PLK_FUSED_FULL && layout == PL_CHANNELS_LAST;
  *arr = &t->a;
  if (arg->kind == PLK_FUSED_NUMBER || arg->kind == PLK_FUSED_ONE || (full ? pl_is_channels_last(&t->a) : t->a.contiguous)) return PL_OK;
  if (arg->kind != PLK_FUSED_FULL) {
    PL_TRY(once(&part, &a->f->vals[g->arg[k]], t));
    if (part->a.contiguous) {
      *made = part;
      *arr = &part->a;
      return PL_OK;
    }
    t = part;
  }
  PlStatus s = pl_tensor_copy_as(made, full ? layout : PL_ROW_MAJOR, t);
  pl_tensor_release(part);
  PL_TRY(s);
  *arr = &(*made)->a;
  return PL_OK;
}

/* The op of member m, without its first result, which the group made: sums over rows. It reads what the kernel read and wrote
 * (arr: the group's arguments). */
static PlStatus sum_behind(PlDeviceRun *a, const PlDeviceGroup *g, int m, const PlArray *const *arr) {
  const PlGNode *n = &a->f->nodes[g->node[m]];
  const PlkFusedMember *member = &g->fused.member[m];
  const PlArray *in[PLK_FUSED_IN] = {NULL};
  PlArray *out[PL_MAX_OUT] = {NULL};
  const int narrow = pl_device_group_narrow(g, m);
  for (int k = 0; k < member->nin; k++)
    if (k == 0 && narrow >= 0) in[0] = arr[narrow];
    else if (member->in[k] != PLK_FUSED_NONE) in[k] = arr[member->in[k] < 0 ? -1 - member->in[k] : g->fused.member[member->in[k]].out];
  for (int32_t o = 1; o < n->nout; o++) {
    const PlGVal v = n->first + o;
    const PlGValue *val = &a->f->vals[v];
    if (val->dtype == PL_NDTYPE || a->last[v] < 0) continue;
    PL_TRY(pl_tensor_empty_on(&a->vals[v], g->device, (PlDtype)val->dtype, val->ndim, val->dims));
    out[o] = &a->vals[v]->a;
  }
  const PlkCall call = {.name = n->op->name, .code = n->op->kcode, .nin = n->nin, .nout = n->nout, .in = in, .out = out, .attrs = n->attrs};
  return pl_call_run_device(g->device, n->op, &call);
}

static PlStatus launch(PlDeviceRun *a, const PlDeviceGroup *g, int layout, PlTensor **made) {
  const PlArray *arr[PLK_FUSED_ARGS];
  const PlkFusedRun run = {.numel = g->numel, .cols = g->cols, .arg = arr, .attrs = g->attrs};
  for (int k = 0; k < g->fused.narg; k++) {
    const PlGVal v = g->arg[k];
    const PlGValue *val = &a->f->vals[v];
    if (!g->fused.arg[k].out) {
      PL_TRY(argument(a, g, k, layout, &made[k], &arr[k]));
      continue;
    }
    PL_TRY(pl_tensor_empty_as(&a->vals[v], layout, g->device, (PlDtype)val->dtype, val->ndim, val->dims));
    arr[k] = &a->vals[v]->a;
  }
  if (PL_UNLIKELY(pl_state.profile != NULL)) pl_state.profile->launch(g->device);
  PL_TRY(a->table->run(pl_gpu_index(g->device), g->kernel, &run));
  for (int m = 0; m < g->fused.nmember; m++)
    if (pl_device_group_sums_after(a, g, m)) PL_TRY(sum_behind(a, g, m, arr));
  return PL_OK;
}

/* A repeated draw starts where its original did. */
static PlStatus apply(PlDeviceRun *a, const PlGNode *n, PlTensor *const *in, PlTensor **out) {
  if (n->draw < 0) return pl_apply(n->op, in, n->nin, n->attrs, out);
  (void)pl_rng_take(0); /* seeds the generator */
  const uint64_t now = pl_state.offset;
  const bool again = (n->flags & PL_FN_RECOMPUTED) != 0;
  if (again) pl_state.offset = a->drawn[n->draw];
  else a->drawn[n->draw] = now;
  PlStatus s = pl_apply(n->op, in, n->nin, n->attrs, out);
  if (again) pl_state.offset = now;
  return s;
}

/* The input whose memory node i may use for its result, as nobody wants it any more; -1: none. */
static int32_t free_input(const PlDeviceRun *a, int32_t i) {
  const PlGNode *n = &a->f->nodes[i];
  const int32_t k = n->op->over - 1;
  if (k < 0 || k >= n->nin || n->nout != 1 || n->in[k] < 0 || a->last[n->in[k]] != i || a->device[n->first] == PL_CPU) return -1;
  const PlGValue *v = &a->f->vals[n->in[k]], *y = &a->f->vals[n->first];
  const PlTensor *t = a->vals[n->in[k]], *base = t->base;
  if (v->kind != PL_FV_NODE || t->refs != 1 || t->a.device != a->device[n->first] || !t->a.contiguous || t->a.dtype != y->dtype ||
      t->a.numel != y->numel || t->a.ndim != y->ndim || memcmp(t->a.shape, y->dims, t->a.ndim * sizeof(int64_t)) != 0)
    return -1;
  const bool alone = base && base->refs == 1 && base->storage == t->storage && !base->base; /* held by this view alone */
  if (t->storage->refs != (alone ? 2u : 1u)) return -1;
  for (int32_t j = 0; j < n->nin; j++)
    if (j != k && n->in[j] >= 0 && a->vals[n->in[j]]->storage == t->storage) return -1;
  return k;
}

static PlStatus run_node(PlDeviceRun *a, int32_t i) {
  const PlGNode *n = &a->f->nodes[i];
  PlTensor *few[PL_MAX_IN], **in = few, *out[PL_MAX_OUT] = {NULL};
  if (n->flags & PL_FN_VIEW) PL_TRY(settle(a, n));
  if (n->nin > PL_MAX_IN && !(in = malloc((size_t)n->nin * sizeof *in))) return no_memory();
  for (int32_t k = 0; k < n->nin; k++) in[k] = n->in[k] < 0 ? NULL : a->vals[n->in[k]];
  if (PL_UNLIKELY(a->noting != NULL)) a->noting->settings(n->flags & PL_FN_MUTATES ? n->attrs : NULL);
  const uint8_t was = pl_state.device;
  if (n->nout > 0) pl_state.device = a->device[n->first];
  const int32_t over = free_input(a, i);
  PlStatus s;
  if (over < 0) s = apply(a, n, in, out);
  else {
    out[0] = pl_retain(in[over]);
    s = pl_apply_into(n->op, in, n->nin, n->attrs, out);
    if (s != PL_OK) pl_tensor_release(out[0]);
  }
  pl_state.device = was;
  if (s == PL_OK && (n->flags & PL_FN_MUTATES)) {
    for (int o = 0; o < n->op->nout; o++) pl_tensor_release(out[o]);
    for (int32_t o = 0; o < n->nout; o++) a->vals[n->first + o] = pl_retain(in[o]);
  } else if (s == PL_OK)
    for (int32_t o = 0; o < n->nout; o++) a->vals[n->first + o] = out[o];
  if (in != few) free(in);
  PL_TRY(s);
  pl_device_run_drop_behind(a, i);
  return PL_OK;
}

/* Nodes of a group whose memory formats do not fit into one kernel; views that were taken are there. */
static PlStatus run_apart(PlDeviceRun *a, const PlDeviceGroup *g) {
  for (int32_t i = g->begin; i < g->end; i++) {
    if (a->f->nodes[i].nout > 0 && a->vals[a->f->nodes[i].first]) pl_device_run_drop_behind(a, i);
    else PL_TRY(run_node(a, i));
  }
  return PL_OK;
}

static PlStatus run_group(PlDeviceRun *a, const PlDeviceGroup *g) {
  PlTensor *made[PLK_FUSED_ARGS] = {NULL};
  PL_TRY(take_views(a, g));
  const int layout = layout_of(a, g);
  if (PL_UNLIKELY(layout == APART)) return run_apart(a, g);
  PlStatus s = launch(a, g, layout, made);
  pl_release_all(made, PLK_FUSED_ARGS);
  if (s == PL_OK) s = take_views(a, g);
  for (int32_t i = g->begin; s == PL_OK && i < g->end; i++) pl_device_run_drop_behind(a, i);
  return s;
}

/* Inputs, captures and constants; *device: the first that any of them is on. */
static PlStatus leaves(PlDeviceRun *a, PlTensor *const *in, uint8_t *device) {
  const PlGraph *f = a->f;
  bool several = a->crosses;
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_NODE) continue;
    PlTensor *t = val->kind == PL_FV_INPUT ? in[val->slot] : val->real;
    if (val->kind != PL_FV_INPUT || pl_graph_layout_fits(val, &t->a) || (t->a.device != PL_CPU && pl_channels_last(&t->a)))
      a->vals[v] = pl_retain(t);
    else PL_TRY(pl_graph_laid(val, t, &a->vals[v]));
    a->known = a->known && a->device[v] == t->a.device;
    a->device[v] = t->a.device;
    several = several || (*device && t->a.device && t->a.device != *device);
    *device = pl_device_first(*device, t->a.device);
  }
  a->known = a->known && a->several == several;
  a->several = several;
  return PL_OK;
}

/* Memory that belongs to the caller alone: leaves, pieces, values given before and those of nodes before `from` are
 * copied. */
static PlStatus give(PlDeviceRun *a, int32_t from, PlTensor **out) {
  const PlGraph *f = a->f;
  for (int32_t o = 0; o < f->noutputs; o++) {
    const PlGValue *v = &f->vals[f->outputs[o]];
    bool shared = f->vals[f->stores[v->store].first].kind != PL_FV_NODE || pl_gvalue_bytes(v) != f->stores[v->store].bytes;
    shared = shared || v->kind != PL_FV_NODE || v->node < from;
    for (int32_t p = 0; p < o && !shared; p++) shared = f->vals[f->outputs[p]].store == v->store;
    PlStatus s = PL_OK;
    if (shared) s = pl_tensor_copy_as(&out[o], pl_channels_last(&a->vals[f->outputs[o]]->a), a->vals[f->outputs[o]]);
    else out[o] = pl_retain(a->vals[f->outputs[o]]);
    if (s == PL_OK) continue;
    while (o > 0) pl_tensor_release(out[--o]);
    return s;
  }
  return PL_OK;
}

/* Leaves, and what of other values is there already; then groups, if they are not chosen for such leaves. */
static PlStatus prepare(PlDeviceRun *a, PlTensor *const *in, PlTensor *const *there) {
  uint8_t device = PL_CPU;
  PL_TRY(leaves(a, in, &device));
  for (PlGVal v = 0; there && v < a->f->nvals; v++)
    if (there[v]) a->vals[v] = pl_retain(there[v]);
  pl_state.device = device; /* of what the graph makes out of nothing */
  if (!a->known) PL_TRY(choose(a));
  pl_device_casts_begin(a);
  return PL_OK;
}

static PlStatus run_all(PlDeviceRun *a, int32_t from, int32_t to, PlWhole *whole) {
  for (int32_t i = from; i < to; i++) {
    bool taken;
    if (!a->noting) a->done = i;
    PL_TRY(pl_whole_at(whole, i));
    PL_TRY(pl_device_casts_take(a, i, to, &taken));
    if (taken) continue;
    PL_TRY(pl_device_casts_before(a, i, a->at[i] < 0 ? i + 1 : a->groups[a->at[i]].end));
    PL_TRY(pl_device_norms_take(a, i, &taken));
    if (taken) continue;
    if (a->at[i] < 0) {
      PL_TRY(run_node(a, i));
      continue;
    }
    const PlDeviceGroup *g = &a->groups[a->at[i]];
    const PlProfile *p = pl_state.profile; /* nodes alone are measured by pl_apply */
    if (PL_UNLIKELY(p != NULL)) p->begin(a->f->nodes[g->begin].op, g->fused.nmember);
    PlStatus s = run_group(a, g);
    if (PL_UNLIKELY(p != NULL)) {
      for (int32_t k = g->begin; k < g->end; k++) p->work(a->f->nodes[k].flops);
      p->end();
    }
    PL_TRY(s);
    i = g->end - 1;
  }
  return pl_device_casts_flush(a);
}

static PlStatus run(PlDeviceRun *a, int32_t from, int32_t to) {
  PlWhole whole = {.ends = a->whole, .until = -1};
  const PlStatus s = run_all(a, from, to, &whole);
  pl_whole_over(&whole);
  return s;
}

static PlStatus finish(PlDeviceRun *a, uint8_t device, PlStatus s) {
  pl_state.device = device;
  a->nwaiting = 0, a->waiting_bytes = 0; /* of a run that failed */
  memset(a->waits, 0, (size_t)a->f->nvals);
  for (PlGVal v = 0; v < a->f->nvals; v++) drop(a, v);
  return s;
}

PlStatus pl_device_run_from(PlDeviceRun *a, int32_t from, PlTensor *const *there, PlTensor *const *in, PlTensor **out) {
  const uint8_t was = pl_state.device;
  PlStatus s = prepare(a, in, there);
  if (s == PL_OK) s = run(a, from, a->f->nnodes);
  if (s == PL_OK) s = give(a, from, out);
  return finish(a, was, s);
}

PlStatus pl_device_run_until(PlDeviceRun *a, int32_t to, PlTensor *const *in, PlTensor **kept) {
  const uint8_t was = pl_state.device;
  PlStatus s = prepare(a, in, NULL);
  if (s == PL_OK) s = run(a, 0, to);
  for (PlGVal v = 0; v < a->f->nvals && s == PL_OK; v++)
    if (a->f->vals[v].kind == PL_FV_NODE && a->vals[v]) kept[v] = pl_retain(a->vals[v]);
  return finish(a, was, s);
}

PlStatus pl_device_run(PlDeviceRun *a, PlTensor *const *in, PlTensor **out) {
  if (a->busy) return pl_graph_run(a->f, in, out);
  const bool was = pl_grad_enable(false);
  struct PlGraph *trace = pl_state.trace;
  bool done = false;
  pl_set_trace(NULL);
  a->busy = true;
  a->done = 0;
  PlStatus s = pl_device_run_captured(a, in, out, &done);
  if (s == PL_OK && !done) s = pl_device_run_from(a, 0, NULL, in, out);
  a->busy = false;
  if (s == PL_OK) a->done = 0;
  pl_set_trace(trace);
  pl_grad_enable(was);
  return s;
}
