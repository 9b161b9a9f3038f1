/* SPDX-License-Identifier: MIT
 * Groups of rows on the device: nodes that can all work on rows of one space, as the CPU's tiles take them (tile.h), with at
 * least one that works along them. Views may be between: those of values that were there before are taken before the kernel
 * runs, those of a member's result (a sum that gradients spread over its row again) are the result itself. */
#include <string.h>

#include "engine/graph/run/device_run_internal.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"

/* Sums over the rows of the space, of which the group computes what goes along them: the op's own kernel adds up behind it. */
static bool sums_behind(int code) { return code == PLK_FUSED_LAYER_NORM_BWD || code == PLK_FUSED_RMS_NORM_BWD; }

bool pl_device_group_sums_after(const PlDeviceRun *a, const Group *g, int m) {
  const PlGNode *n = &a->f->nodes[g->node[m]];
  bool any = false;
  for (int32_t o = 1; o < n->nout; o++) any = any || a->last[n->first + o] >= 0;
  return any && sums_behind(g->fused.member[m].code);
}

/* A norm's weight or bias; its mean or 1/deviation. */
static bool is_weight(int code, int k) {
  return code >= PLK_FUSED_LAYER_NORM ? k > 0 : k == (code == PLK_FUSED_LAYER_NORM_BWD ? 4 : code == PLK_FUSED_RMS_NORM_BWD ? 3 : -1);
}
static bool is_statistic(int code, int k) { return sums_behind(code) && k > 1 && !is_weight(code, k); }

/* The member whose result value v is, itself or a view of it; -1: none. *slot: which of the node's results. */
static int maker(const PlDeviceRun *a, const Group *g, PlGVal v, int *slot) {
  const PlGValue *root = &a->f->vals[a->f->stores[a->f->vals[v].store].first];
  if (root->kind != PL_FV_NODE || root->node < g->begin || root->node >= g->end) return -1;
  for (int m = 0; m < g->fused.nmember; m++)
    if (g->node[m] == root->node) {
      *slot = root->slot;
      return m;
    }
  return -1;
}

bool pl_device_group_outside_view(const PlDeviceRun *a, const Group *g, int32_t i) {
  int slot;
  return maker(a, g, a->f->nodes[i].first, &slot) < 0;
}

/* Input k of a member as the kernel sees it; PLK_FUSED_NONE: it cannot. */
static int16_t operand(const PlDeviceRun *a, Group *g, PlGVal v, uint8_t role, PlDtype dtype) {
  static const uint8_t kinds[] = {
      [PL_TILE_FULL] = PLK_FUSED_FULL, [PL_TILE_ROW] = PLK_FUSED_ROW, [PL_TILE_COL] = PLK_FUSED_COL, [PL_TILE_ONE] = PLK_FUSED_ONE};
  const PlGValue *val = &a->f->vals[v];
  int slot = 0;
  const int made = maker(a, g, v, &slot);
  if (val->dtype != dtype || role > PL_TILE_ONE) return PLK_FUSED_NONE;
  if (made >= 0) {
    const PlGValue *root = &a->f->vals[a->f->stores[val->store].first];
    const bool whole = slot == 0 && val->offset == 0 && root->dtype == val->dtype;
    return whole && role == (g->fused.member[made].col ? PL_TILE_COL : PL_TILE_FULL) ? (int16_t)made : PLK_FUSED_NONE;
  }
  const bool number = a->device[v] == PL_CPU;
  if (number && val->ndim > 0) return PLK_FUSED_NONE;
  const int at = pl_device_group_argument(g, v, (PlkFusedArg){.dtype = val->dtype, .kind = number ? PLK_FUSED_NUMBER : kinds[role]});
  return at < 0 ? PLK_FUSED_NONE : (int16_t)(-1 - at);
}

/* What the device needs to know of node n, by its roles; false: it has no such member. */
static bool describe(const PlDeviceRun *a, const PlGNode *n, const PlTileRole *r, PlkFusedMember *m) {
  const PlGraph *f = a->f;
  const bool along = n->op->rows.roles != NULL;
  const int code = pl_device_group_code(n);
  if (code < 0 || n->nin < 1 || n->in[0] < 0) return false;
  *m = (PlkFusedMember){.code = (int16_t)code,
                        .nin = (uint8_t)(n->nin < PLK_FUSED_IN ? n->nin : PLK_FUSED_IN),
                        .out = -1,
                        .more = {-1, -1},
                        .result = f->vals[n->first].dtype,
                        .col = r->out[0] == PL_TILE_COL};
  if (along) {
    m->dtype = f->vals[n->in[0]].dtype;
    m->set = code >= PLK_FUSED_LAYER_NORM || code == PLK_FUSED_VAR || code == PLK_FUSED_STD;
    while (m->nin && ((n->op->sizes >> (m->nin - 1)) & 1)) m->nin--; /* the kernel does without sizes */
  } else {
    if (n->nin > 3 || n->in[n->nin - 1] < 0) return false;
    m->dtype = f->vals[n->in[n->nin - 1]].dtype;
    m->set = (uint8_t)(n->attrs ? n->attrs->set & 7 : 0);
    if (n->op->fused[1]) m->set = 0; /* its attribute is the code */
    if (code == PLK_EW_CAST && m->dtype == m->result) m->code = PLK_EW_COPY;
  }
  return a->table->takes(m->code, (PlDtype)m->dtype, (PlDtype)m->result);
}

static bool join(const PlDeviceRun *a, Group *g) {
  const PlGraph *f = a->f;
  const PlGNode *n = &f->nodes[g->end];
  PlTileSpace space = g->space;
  PlTileRole role;
  PlkFusedMember m;
  if (n->flags & PL_FN_VIEW) {
    if (n->nin < 1 || n->nin > PL_MAX_IN || n->nout != 1 || n->in[0] < 0 || a->device[n->in[0]] != g->device) return false;
    g->views += pl_device_group_outside_view(a, g, g->end);
    g->end++;
    return true;
  }
  if (pl_gnode_waits(n, g->begin)) return false;
  if (g->fused.nmember == PLK_FUSED_MEMBERS || !pl_tile_join_rows(f, n, &space, &role)) return false;
  if (a->device[n->first] != g->device || !describe(a, n, &role, &m)) return false;
  /* where eager kernels cut a row in pieces, sums would be other ones */
  if (m.code >= PLK_FUSED_SUM && m.code < PLK_FUSED_SOFTMAX && !a->table->takes_rows(space.numel / space.cols, space.cols)) return false;
  const int nargs = g->fused.narg;
  bool ok = true;
  for (int32_t k = 0; k < m.nin && ok; k++) {
    const bool weights = is_weight(m.code, k);
    m.in[k] = PLK_FUSED_NONE;
    if (n->in[k] < 0) {
      ok = weights;
      continue;
    }
    PlDtype own = weights ? (PlDtype)f->vals[n->in[k]].dtype : m.code == PLK_EW_WHERE && k == 0 ? PL_BOOL : (PlDtype)m.dtype;
    if (is_statistic(m.code, k)) own = m.dtype == PL_F64 ? PL_F64 : PL_F32;
    if (weights && own != (PlDtype)m.dtype && !(own == PL_F32 && m.dtype != PL_F64)) ok = false;
    if (ok) m.in[k] = operand(a, g, n->in[k], role.in[k], own);
    ok = ok && m.in[k] != PLK_FUSED_NONE;
  }
  if (!ok) {
    g->fused.narg = nargs;
    return false;
  }
  g->space = space;
  g->fused.rows = g->fused.rows || m.code >= PLK_FUSED_SUM;
  g->attrs[g->fused.nmember] = n->attrs;
  g->node[g->fused.nmember] = g->end;
  g->fused.member[g->fused.nmember++] = m;
  g->end++;
  return true;
}

/* Members that the sums behind the group read. */
static void read_behind(const PlDeviceRun *a, const Group *g, bool *read) {
  for (int m = 0; m < g->fused.nmember; m++)
    for (int k = 0; k < 2 && pl_device_group_sums_after(a, g, m); k++)
      if (g->fused.member[m].in[k] >= 0) read[g->fused.member[m].in[k]] = true;
}

/* Values that somebody outside reads become arguments that are written; views of them cannot. */
static bool outputs(const PlDeviceRun *a, Group *g) {
  const PlGraph *f = a->f;
  bool read[PLK_FUSED_MEMBERS] = {false};
  read_behind(a, g, read);
  for (int32_t i = g->begin; i < g->end; i++)
    if ((f->nodes[i].flags & PL_FN_VIEW) && a->last[f->nodes[i].first] >= g->end && !pl_device_group_outside_view(a, g, i)) return false;
  for (int m = 0; m < g->fused.nmember; m++) {
    const PlGNode *n = &f->nodes[g->node[m]];
    PlkFusedMember *member = &g->fused.member[m];
    for (int32_t o = 0; o < (sums_behind(member->code) ? 1 : n->nout) && o < 3; o++) {
      const PlGVal v = n->first + o;
      const bool inside = a->last[v] < g->end && a->last[v] >= 0 && !(o == 0 && read[m]);
      if (f->vals[v].dtype == PL_NDTYPE || (o > 0 && a->last[v] < 0) || inside) continue;
      const uint8_t kind = o > 0 || member->col ? PLK_FUSED_COL : PLK_FUSED_FULL;
      const int at = pl_device_group_argument(g, v, (PlkFusedArg){.dtype = f->vals[v].dtype, .kind = kind, .out = true});
      if (at < 0) return false;
      *(o > 0 ? &member->more[o - 1] : &member->out) = (int16_t)at;
    }
  }
  return true;
}

/* Members from g->begin on in a given space (numel 0: that of the first). */
static void fill(const PlDeviceRun *a, Group *g, PlTileSpace space, int32_t most) {
  const int32_t begin = g->begin;
  memset(g, 0, sizeof *g);
  g->begin = g->end = begin;
  g->device = a->device[a->f->nodes[begin].first];
  g->space = space;
  while (g->end < most && join(a, g)) {
  }
  while (g->end > begin && (a->f->nodes[g->end - 1].flags & PL_FN_VIEW)) { /* views at the end are nobody's */
    g->end--;
    g->views -= pl_device_group_outside_view(a, g, g->end);
  }
}

/* g->end behind begin: a shorter one may do. */
bool pl_device_group_rows(const PlDeviceRun *a, Group *g, int32_t most) {
  const PlGraph *f = a->f;
  const int32_t begin = g->begin;
  PlTileSpace space = {.numel = 0};
  g->end = begin;
  if ((f->nodes[begin].flags & PL_FN_VIEW) || a->device[f->nodes[begin].first] == PL_CPU) return false;
  for (int32_t i = begin; i < most && i < begin + PLK_FUSED_MEMBERS; i++) /* what is one a row shows when rows come */
    if (f->nodes[i].op->rows.roles && pl_device_group_code(&f->nodes[i]) >= 0 && pl_tile_rows(f, &f->nodes[i], &space)) break;
  if (space.numel == 0) return false;
  fill(a, g, space, most);
  g->numel = g->space.numel;
  g->cols = g->space.cols;
  const bool fine = g->fused.rows && g->fused.nmember > 1 && g->cols > 1;
  if (!fine) g->end = begin;
  return fine && outputs(a, g);
}
