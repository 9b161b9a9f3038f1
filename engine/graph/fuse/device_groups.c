/* SPDX-License-Identifier: MIT
 * A GPU as the search for groups sees it (fuse.h), and what it is told of a group (kernels/fused.h): elementwise members, or,
 * in a group of rows, beside some that work along them. Views may be between: those of what was there before are taken before
 * the kernel runs, those of a member's result (a sum that gradients spread over its row again) are the result itself. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/fuse/fuse.h"
#include "engine/graph/run/device_run_internal.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/reduce.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device"); }

/* ---- members ----------------------------------------------------------------------------------------------------- */

/* Sums over the rows of the space, of which the group computes what goes along them: the op's own kernel adds up behind it. */
static bool sums_behind(int code) { return code == PLK_FUSED_LAYER_NORM_BWD || code == PLK_FUSED_RMS_NORM_BWD; }

bool pl_device_group_sums_after(const PlDeviceRun *a, const PlDeviceGroup *g, int m) {
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

/* Member n but for where its inputs come from; false: the device has no such operation. */
static bool describe(const PlDeviceRun *a, const PlGNode *n, const PlFuseRoles *r, PlkFusedMember *m) {
  const PlGraph *f = a->f;
  const int16_t *codes = n->op->fused;
  const int code = (codes[1] && pl_attr_i(n->attrs, 0) ? codes[1] : codes[0]) - 1;
  if (code < 0 || n->nin < 1 || n->in[0] < 0) return false;
  *m = (PlkFusedMember){.code = (int16_t)code,
                        .nin = (uint8_t)(n->nin < PLK_FUSED_IN ? n->nin : PLK_FUSED_IN),
                        .out = -1,
                        .more = {-1, -1},
                        .result = f->vals[n->first].dtype,
                        .col = r->out[0] == PL_ROLE_COL};
  if (n->op->rows.roles) {
    m->dtype = f->vals[n->in[0]].dtype;
    m->set = code >= PLK_FUSED_LAYER_NORM || code == PLK_FUSED_VAR || code == PLK_FUSED_STD;
    while (m->nin && ((n->op->sizes >> (m->nin - 1)) & 1)) m->nin--; /* the kernel does without sizes */
  } else {
    if (n->nin > 3) return false;
    m->dtype = n->op->flags & PL_F_WIDE && pl_is_half((PlDtype)m->result) ? m->result : f->vals[n->in[n->nin - 1]].dtype;
    m->set = (uint8_t)(n->attrs && !codes[1] ? n->attrs->set & 7 : 0); /* with two codes its attribute is the code */
    if (code == PLK_EW_CAST && m->dtype == m->result) m->code = PLK_EW_COPY;
  }
  return a->table->takes(m->code, (PlDtype)m->dtype, (PlDtype)m->result);
}

/* Can the kernel read a value of this dtype as input k of the member? number: one of the host, which halves take as f32 (PL_F_WIDE). */
static bool reads(const PlkFusedMember *m, int k, PlDtype dtype, bool number) {
  if (number && dtype == PL_F32 && pl_is_half((PlDtype)m->dtype)) return m->code != PLK_EW_WHERE;
  if (is_weight(m->code, k)) return dtype == (PlDtype)m->dtype || (dtype == PL_F32 && m->dtype != PL_F64);
  if (is_statistic(m->code, k)) return dtype == (m->dtype == PL_F64 ? PL_F64 : PL_F32);
  return dtype == (m->code == PLK_EW_WHERE && k == 0 ? PL_BOOL : (PlDtype)m->dtype);
}

static bool takes(const PlFuse *u, const PlFuseGroup *g, int32_t i, const PlFuseSpace *s, const PlFuseRoles *r) {
  const PlDeviceRun *a = u->of;
  const PlGraph *f = a->f;
  const PlGNode *n = &f->nodes[i];
  const uint8_t device = a->device[f->nodes[g->begin].first];
  PlkFusedMember m;
  if (a->tail[i] >= 0) return false;
  if (device == PL_CPU || a->device[n->first] != device || !describe(a, n, r, &m)) return false;
  /* where eager kernels cut a row in pieces, sums would be other ones */
  if (m.code >= PLK_FUSED_SUM && m.code < PLK_FUSED_SOFTMAX && !a->table->takes_rows(s->numel / s->cols, s->cols)) return false;
  for (int32_t k = 0; k < m.nin; k++) {
    const PlGVal v = n->in[k];
    if (v < 0 && is_weight(m.code, k)) continue;
    if (v < 0 || r->in[k] > PL_ROLE_ONE || !reads(&m, k, (PlDtype)f->vals[v].dtype, a->device[v] == PL_CPU && (n->op->flags & PL_F_WIDE)))
      return false;
    const bool made = pl_fuse_maker(f, v, g->begin, i) >= 0;
    if (made && f->vals[f->stores[f->vals[v].store].first].slot != 0) return false; /* further results are written only */
    if (!made && a->device[v] == PL_CPU && f->vals[v].ndim > 0) return false;
  }
  return true;
}

/* ---- what the device is told --------------------------------------------------------------------------------------- */

/* The argument that value v is, a new one if need be; -1: no room. */
static int argument(PlDeviceGroup *d, PlGVal v, PlkFusedArg as) {
  for (int k = 0; k < d->fused.narg; k++)
    if (d->arg[k] == v && d->fused.arg[k].out == as.out) return k;
  if (d->fused.narg == PLK_FUSED_ARGS) return -1;
  d->arg[d->fused.narg] = v;
  d->fused.arg[d->fused.narg] = as;
  return d->fused.narg++;
}

/* Input v, in a role: a member's result, or an argument; PLK_FUSED_NONE: no room. */
static int16_t operand(const PlDeviceRun *a, PlDeviceGroup *d, PlGVal v, uint8_t role) {
  static const uint8_t kinds[] = {
      [PL_ROLE_FULL] = PLK_FUSED_FULL, [PL_ROLE_ROW] = PLK_FUSED_ROW, [PL_ROLE_COL] = PLK_FUSED_COL, [PL_ROLE_ONE] = PLK_FUSED_ONE};
  const int32_t by = pl_fuse_maker(a->f, v, d->begin, d->end);
  for (int m = 0; by >= 0 && m < d->fused.nmember; m++)
    if (d->node[m] == by) return (int16_t)m;
  const uint8_t kind = a->device[v] == PL_CPU ? PLK_FUSED_NUMBER : kinds[role];
  const int at = argument(d, v, (PlkFusedArg){.dtype = a->f->vals[v].dtype, .kind = kind});
  return at < 0 ? PLK_FUSED_NONE : (int16_t)(-1 - at);
}

static bool members(const PlDeviceRun *a, const PlFuseGroup *g, PlDeviceGroup *d) {
  int params = 0;
  for (int32_t i = g->begin; i < g->end; i++) {
    const PlGNode *n = &a->f->nodes[i];
    const PlFuseRoles *r = &g->roles[i - g->begin];
    PlkFusedMember m;
    if ((n->flags & PL_FN_VIEW) || !describe(a, n, r, &m)) continue; /* takes() has asked for members */
    for (int32_t k = 0; k < m.nin; k++) {
      m.in[k] = n->in[k] < 0 ? PLK_FUSED_NONE : operand(a, d, n->in[k], r->in[k]);
      if (n->in[k] >= 0 && m.in[k] == PLK_FUSED_NONE) return false;
    }
    d->fused.rows = d->fused.rows || m.code >= PLK_FUSED_SUM;
    d->attrs[d->fused.nmember] = n->attrs;
    d->node[d->fused.nmember] = i;
    d->fused.member[d->fused.nmember++] = m;
    params += m.set != 0;
  }
  return params <= PLK_FUSED_PARAMS;
}

int pl_device_group_narrow(const PlDeviceGroup *g, int m) {
  const int by = g->fused.member[m].in[0];
  if (by < 0) return -1;
  const PlkFusedMember *c = &g->fused.member[by];
  const bool widens = c->code == PLK_EW_CAST && (c->dtype == PL_BF16 || c->dtype == PL_F16) && c->result == PL_F32 && !c->col;
  if (!widens || c->in[0] >= 0 || c->in[0] == PLK_FUSED_NONE) return -1;
  return g->fused.arg[-1 - c->in[0]].kind == PLK_FUSED_FULL ? -1 - c->in[0] : -1;
}

/* Members that the sums behind the group read. */
static void read_behind(const PlDeviceRun *a, const PlDeviceGroup *d, bool *read) {
  for (int m = 0; m < d->fused.nmember; m++)
    for (int k = 0; k < 2 && pl_device_group_sums_after(a, d, m); k++)
      if (d->fused.member[m].in[k] >= 0 && (k > 0 || pl_device_group_narrow(d, m) < 0)) read[d->fused.member[m].in[k]] = true;
}

/* Values that somebody outside reads become arguments that are written. False: no room. */
static bool outputs(const PlDeviceRun *a, PlDeviceGroup *d, const int32_t *last) {
  bool read[PLK_FUSED_MEMBERS] = {false};
  read_behind(a, d, read);
  for (int m = 0; m < d->fused.nmember; m++) {
    const PlGNode *n = &a->f->nodes[d->node[m]];
    PlkFusedMember *member = &d->fused.member[m];
    for (int32_t o = 0; o < (sums_behind(member->code) ? 1 : n->nout) && o < 3; o++) {
      const PlGValue *v = &a->f->vals[n->first + o];
      const bool inside = last[v->store] < d->end && last[v->store] >= 0 && !(o == 0 && read[m]);
      if (v->dtype == PL_NDTYPE || (o > 0 && last[v->store] < 0) || inside) continue;
      const uint8_t kind = o > 0 || member->col ? PLK_FUSED_COL : PLK_FUSED_FULL;
      const int at = argument(d, n->first + o, (PlkFusedArg){.dtype = v->dtype, .kind = kind, .out = true});
      if (at < 0) return false;
      *(o > 0 ? &member->more[o - 1] : &member->out) = (int16_t)at;
    }
  }
  return true;
}

static PlFuseRoom tell(const PlFuse *u, const PlFuseGroup *g, PlDeviceGroup *d) {
  const PlDeviceRun *a = u->of;
  memset(d, 0, sizeof *d);
  d->begin = g->begin;
  d->end = g->end;
  d->device = a->device[a->f->nodes[g->begin].first];
  d->numel = g->space.numel;
  d->cols = g->space.cols;
  if (!members(a, g, d)) return PL_ROOM_NONE;
  if (d->fused.rows) d->fused.cols = d->cols;
  return outputs(a, d, u->last) ? PL_ROOM_ENOUGH : PL_ROOM_LATER;
}

static PlFuseRoom room(const PlFuse *u, const PlFuseGroup *g) {
  PlDeviceGroup d;
  return tell(u, g, &d);
}

/* ---- all groups of a graph ------------------------------------------------------------------------------------------ */

static PlStatus add(PlDeviceRun *a, const PlFuse *u, const PlFuseGroup *found) {
  if (a->ngroups == a->room) {
    const int32_t more = 2 * a->room + 8;
    PlDeviceGroup *g = realloc(a->groups, (size_t)more * sizeof *g);
    if (!g) return no_memory();
    a->groups = g;
    a->room = more;
  }
  PlDeviceGroup *g = &a->groups[a->ngroups];
  (void)tell(u, found, g);
  PlStatus s = a->table->make(pl_gpu_index(g->device), &g->fused, &g->kernel);
  if (pl_must_report(s)) return s;
  if (s == PL_OK) a->at[g->begin] = a->ngroups++; /* else it is not compiled: node by node */
  return PL_OK;
}

PlStatus pl_device_groups(PlDeviceRun *a) {
  static const PlFuseDevice gpu = {.members = PLK_FUSED_MEMBERS, .least = 1, .layouts = true, .lone = true, .takes = takes, .room = room};
  int32_t *last = pl_last_readers(a->f, true);
  PlFuse u = {.graph = a->f, .device = &gpu, .of = a, .last = last};
  PlStatus s = last ? pl_fuse_begin(&u) : no_memory();
  a->ngroups = 0;
  for (int32_t i = 0; s == PL_OK && i < a->f->nnodes;) {
    PlFuseGroup g;
    const bool found = pl_fuse_from(&u, i, &g);
    if (found) s = add(a, &u, &g);
    i = found ? g.end : i + 1;
  }
  free(last);
  free(u.next);
  return s;
}
