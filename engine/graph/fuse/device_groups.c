/* SPDX-License-Identifier: MIT
 * Which neighbours become one kernel on the device: elementwise nodes over one shape, whose operands broadcast by rows or
 * columns, or a group of rows (device_rows.c) where that reaches further. A group that the device cannot compile runs node by
 * node from then on. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/run/device_run_internal.h"
#include "engine/tensor/layout.h"
#include "kernels/elementwise.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device"); }

int pl_device_group_code(const PlGNode *n) {
  const int16_t *code = n->op->fused;
  return (code[1] && pl_attr_i(n->attrs, 0) ? code[1] : code[0]) - 1;
}

static bool same_sizes(const PlGValue *a, const PlGValue *b) {
  return a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof(int64_t)) == 0;
}

/* How x broadcasts against s; false: in no way that kernels know. *cols: the row length that this needs, 0: any. */
static bool kind_of(const PlGValue *x, const PlGValue *s, PlkFusedKind *kind, int64_t *cols) {
  const int lead = s->ndim - x->ndim;
  int d = s->ndim - 1;
  int64_t row = 1;
  *cols = 0;
  if (x->dtype == PL_NDTYPE || lead < 0) return false;
  if (!x->contiguous) { /* a parameter that is channels last */
    const PlArray a = pl_gvalue_array(x);
    return *kind = PLK_FUSED_FULL, x->kind == PL_FV_CAPTURE && same_sizes(x, s) && pl_channels_last(&a);
  }
  if (x->numel == 1) return *kind = PLK_FUSED_ONE, true;
  for (; d >= lead && x->dims[d - lead] == s->dims[d]; d--) row *= s->dims[d];
  if (row > 1 || x->numel == s->numel) {
    for (; d >= 0; d--)
      if (d >= lead && x->dims[d - lead] != 1) return false;
    *cols = row == s->numel ? 0 : row;
    return *kind = row == s->numel ? PLK_FUSED_FULL : PLK_FUSED_ROW, true;
  }
  for (row = 1, d = s->ndim - 1; d >= lead && x->dims[d - lead] == 1; d--) row *= s->dims[d];
  for (int k = 0; k <= d; k++)
    if (k < lead ? s->dims[k] != 1 : x->dims[k - lead] != s->dims[k]) return false;
  *cols = row;
  return *kind = PLK_FUSED_COL, true;
}

int pl_device_group_argument(Group *g, PlGVal v, PlkFusedArg as) {
  for (int k = 0; k < g->fused.narg; k++)
    if (g->arg[k] == v && g->fused.arg[k].out == as.out) return k;
  if (g->fused.narg == PLK_FUSED_ARGS) return -1;
  g->arg[g->fused.narg] = v;
  g->fused.arg[g->fused.narg] = as;
  return g->fused.narg++;
}

static int member_of(const PlDeviceRun *a, const Group *g, PlGVal v) { /* the member that makes v, -1: none */
  int at = 0;
  for (int32_t i = g->begin; i < g->end; i++, at++)
    if (a->f->nodes[i].first == v) return at;
  return -1;
}

/* Adds node i = g->end to the group if it fits. */
static bool join(const PlDeviceRun *a, Group *g) {
  const PlGraph *f = a->f;
  const PlGNode *n = &f->nodes[g->end];
  if (pl_gnode_waits(n, g->begin)) return false;
  if (n->nout != 1 || n->nin < 1 || n->nin > 3 || n->draw >= 0 || (n->flags & (PL_FN_MUTATES | PL_FN_VIEW))) return false;
  if (g->fused.nmember == PLK_FUSED_MEMBERS || n->op->rows.roles) return false;
  const PlGValue *y = &f->vals[n->first], *s = &f->vals[f->nodes[g->begin].first];
  const int code = pl_device_group_code(n);
  if (code < 0 || !y->contiguous || y->numel == 0 || !same_sizes(y, s) || a->device[n->first] != g->device) return false;
  PlkFusedMember m = {.code = (int16_t)code,
                      .nin = (uint8_t)n->nin,
                      .out = -1,
                      .more = {-1, -1},
                      .result = y->dtype,
                      .set = (uint8_t)(n->attrs ? n->attrs->set & 7 : 0)};
  int64_t cols = g->cols;
  const int nargs = g->fused.narg;
  bool ok = n->in[n->nin - 1] >= 0;
  if (ok) m.dtype = f->vals[n->in[n->nin - 1]].dtype;
  if (n->op->fused[1]) m.set = 0; /* its attribute is the code */
  if (code == PLK_EW_CAST && m.dtype == m.result) m.code = PLK_EW_COPY;
  ok = ok && a->table->takes(m.code, (PlDtype)m.dtype, (PlDtype)m.result);
  for (int32_t k = 0; k < n->nin && ok; k++) {
    const PlGVal v = n->in[k];
    PlkFusedKind kind;
    int64_t need = 0;
    ok = v >= 0 && f->vals[v].dtype == (code == PLK_EW_WHERE && k == 0 ? PL_BOOL : m.dtype);
    const int made = ok ? member_of(a, g, v) : -1;
    m.in[k] = (int16_t)made;
    if (!ok || made >= 0) continue;
    ok = kind_of(&f->vals[v], y, &kind, &need) && (!need || !cols || cols == need);
    if (need) cols = need;
    if (ok && a->device[v] == PL_CPU) {
      ok = f->vals[v].ndim == 0;
      kind = PLK_FUSED_NUMBER;
    }
    const int at = ok ? pl_device_group_argument(g, v, (PlkFusedArg){.dtype = f->vals[v].dtype, .kind = (uint8_t)kind}) : -1;
    ok = ok && at >= 0;
    m.in[k] = (int16_t)(-1 - at);
  }
  if (!ok) {
    g->fused.narg = nargs;
    return false;
  }
  g->cols = cols;
  g->attrs[g->fused.nmember] = n->attrs;
  g->node[g->fused.nmember] = g->end;
  g->fused.member[g->fused.nmember++] = m;
  g->end++;
  return true;
}

/* Values that somebody outside reads become arguments that are written. False: no room. */
static bool outputs(const PlDeviceRun *a, Group *g) {
  for (int m = 0; m < g->fused.nmember; m++) {
    const PlGVal v = a->f->nodes[g->begin + m].first;
    if (a->last[v] < g->end && a->last[v] >= 0) continue;
    const int at = pl_device_group_argument(g, v, (PlkFusedArg){.dtype = a->f->vals[v].dtype, .kind = PLK_FUSED_FULL, .out = true});
    if (at < 0) return false;
    g->fused.member[m].out = (int16_t)at;
  }
  return true;
}

/* The longest group of elementwise nodes from node i on, shortened until its results fit; a single node is none. */
static bool elementwise(const PlDeviceRun *a, Group *g, int32_t i) {
  g->end = i; /* the last node finds nothing to join */
  if (a->device[a->f->nodes[i].first] == PL_CPU) return false;
  for (int32_t most = a->f->nnodes; most > i + 1; most = g->end - 1) {
    memset(g, 0, sizeof *g);
    g->begin = g->end = i;
    g->device = a->device[a->f->nodes[i].first];
    while (g->end < most && join(a, g)) {
    }
    if (g->end < i + 2) return false;
    if (outputs(a, g)) break;
  }
  if (g->end < i + 2) return false;
  g->numel = a->f->vals[a->f->nodes[i].first].numel;
  return true;
}

static bool along_rows(const PlDeviceRun *a, Group *g, int32_t i) {
  for (int32_t most = a->f->nnodes; most > i + 1; most = g->end - 1) {
    memset(g, 0, sizeof *g);
    g->begin = g->end = i;
    if (pl_device_group_rows(a, g, most)) return true;
    if (g->end < i + 2) return false;
  }
  return false;
}

PlStatus pl_device_group_from(PlDeviceRun *a, int32_t i, int32_t *end) {
  *end = i + 1;
  if (a->ngroups + 2 > a->room) {
    const int32_t room = 2 * a->room + 8;
    Group *g = realloc(a->groups, (size_t)room * sizeof *g);
    if (!g) return no_memory();
    a->groups = g;
    a->room = room;
  }
  Group *g = &a->groups[a->ngroups], *rows = g + 1;
  const bool flat = elementwise(a, g, i);
  if (along_rows(a, rows, i) && (!flat || rows->end > g->end)) *g = *rows;
  else if (!flat) return PL_OK;
  PlStatus s = a->table->make(pl_gpu_index(g->device), &g->fused, &g->kernel);
  if (s == PL_ERR_OOM || s == PL_ERR_INTERRUPT) return s;
  if (s != PL_OK) return PL_OK; /* not compiled: node by node */
  a->at[i] = a->ngroups++;
  *end = g->end;
  return PL_OK;
}
