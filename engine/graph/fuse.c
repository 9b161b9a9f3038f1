/* SPDX-License-Identifier: MIT
 * Fusion of pointwise nodes on the CPU. A group is a run of neighbours in the order of execution whose results all have
 * one shape S. It is looked at as rows of `inner` elements, so that operands may be of four kinds: as large as S, one
 * row, one value a row, one value. A tile is some rows, or a piece of one row; on it all nodes run, each with the very
 * kernel that would run it alone, so the bits are the same. */
#include "engine/graph/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/kernel.h"

enum {
  SLOTS = 8,         /* results inside of a tile that are alive at once */
  SLOT_BYTES = 16384,
  MIN_PARALLEL = 1 << 16, /* nodes times elements below which one thread runs it all */
  MAX_GROUP = 64
};

typedef enum Kind { FULL, ROW, COL, ONE } Kind;

typedef struct Operand {
  PlFVal v;
  Kind kind;
  int8_t slot; /* ≥ 0: result of the group that lies in the tile's memory */
} Operand;

typedef struct Member {
  const PlFNode *node;
  int32_t nin;
  Operand in[4], out;
} Member;

typedef struct Group {
  int32_t begin, end, n;
  int64_t numel, inner; /* elements of S, of a row */
  int64_t cols, rows;   /* of a full tile */
  int64_t ncol, ntile;
  Member *m;
} Group;

struct PlFusion {
  int32_t nnodes;
  int32_t *at; /* per node: the group that begins there, -1 */
  Group *groups;
  int32_t n;
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* ---- kinds of operands ------------------------------------------------------------------------------------- */

static bool same_shape(const PlFValue *a, const PlFValue *b) {
  return a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof(int64_t)) == 0;
}

/* x broadcast to the shape of s; *inner is the row length that this needs, 0: any. */
static bool kind_of(const PlFValue *x, const PlFValue *s, Kind *kind, int64_t *inner) {
  *inner = 0;
  if (x->dtype == PL_NDTYPE || !x->contiguous || x->ndim > s->ndim) return false;
  if (x->numel == 1) return *kind = ONE, true;
  if (same_shape(x, s)) return *kind = FULL, true;
  int lead = s->ndim - x->ndim, d = s->ndim - 1;
  int64_t row = 1;
  for (; d >= lead && x->dims[d - lead] == s->dims[d]; d--) row *= s->dims[d];
  if (row > 1) { /* trailing sizes agree: one row, if the rest is 1 */
    for (; d >= lead; d--)
      if (x->dims[d - lead] != 1) return false;
    *inner = row;
    return *kind = ROW, true;
  }
  row = 1;
  for (d = s->ndim - 1; d >= lead && x->dims[d - lead] == 1; d--) row *= s->dims[d];
  for (int k = 0; k <= d; k++)
    if (k < lead ? s->dims[k] != 1 : x->dims[k - lead] != s->dims[k]) return false;
  *inner = row;
  return *kind = COL, true;
}

static bool may_join(const PlFlow *f, const PlFNode *n, const PlFValue *s, int64_t *inner) {
  if (n->op->cls != PL_POINTWISE || n->nout != 1 || n->nin < 1 || n->nin > 4 || n->draw >= 0) return false;
  if ((n->flags & (PL_FN_MUTATES | PL_FN_VIEW)) || (n->op->flags & (PL_F_CONTIGUOUS | PL_F_MUTATES | PL_F_SEEDED))) return false;
  if (!n->op->kernel[PL_CPU]) return false;
  const PlFValue *y = &f->vals[n->first];
  if (!y->contiguous || y->numel < 2 || !same_shape(y, s)) return false;
  int64_t want = *inner;
  for (int32_t k = 0; k < n->nin; k++) {
    Kind kind;
    int64_t need;
    if (n->in[k] < 0 || !kind_of(&f->vals[n->in[k]], s, &kind, &need)) return false;
    if (need && want && need != want) return false;
    if (need) want = need;
  }
  *inner = want;
  return true;
}

/* ---- choosing groups --------------------------------------------------------------------------------------- */

/* Last reader of every value; nnodes: an output. */
static int32_t *last_readers(const PlFlow *f) {
  int32_t *last = malloc(((size_t)f->nvals + 1) * sizeof *last);
  if (!last) return NULL;
  for (PlFVal v = 0; v < f->nvals; v++) last[v] = -1;
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) last[f->nodes[i].in[k]] = i;
  for (int32_t o = 0; o < f->noutputs; o++) last[f->outputs[o]] = f->nnodes;
  return last;
}

/* Results of [begin, end) that only the group reads need a slot while they live; true if SLOTS are enough. */
static bool slots_suffice(const PlFlow *f, const int32_t *last, int32_t begin, int32_t end) {
  int used = 0;
  for (int32_t i = begin; i < end; i++) {
    const PlFNode *n = &f->nodes[i];
    if (n->flags & PL_FN_VIEW) continue;
    bool inside = last[n->first] < end && last[n->first] >= 0;
    used += inside;
    if (used > SLOTS) return false;
    for (int32_t k = 0; k < n->nin; k++) {
      PlFVal v = n->in[k];
      bool again = false;
      for (int32_t j = 0; j < k; j++) again |= n->in[j] == v;
      if (!again && v >= 0 && f->vals[v].kind == PL_FV_NODE && f->vals[v].node >= begin && last[v] == i) used--;
    }
  }
  return true;
}

/* Values of the store other than v exist: views of a result keep it in memory. */
static bool seen_through_views(const PlFlow *f, const int32_t *seen, PlFVal v) {
  return seen[f->vals[v].store] > 1;
}

PlStatus pl_fuse(PlPlan *plan) {
  const PlFlow *f = plan->flow;
  free(plan->group);
  free(plan->inner);
  plan->group = malloc(((size_t)f->nnodes + 1) * sizeof *plan->group);
  plan->inner = calloc((size_t)f->nvals + 1, 1);
  int32_t *last = last_readers(f), *seen = calloc((size_t)f->nstores + 1, sizeof *seen);
  PlStatus s = plan->group && plan->inner && last && seen ? PL_OK : no_memory();
  for (int32_t i = 0; s == PL_OK && i < f->nnodes; i++) plan->group[i] = -1;
  for (PlFVal v = 0; s == PL_OK && v < f->nvals; v++) seen[f->vals[v].store]++;
  for (int32_t i = 0; s == PL_OK && i < f->nnodes;) {
    const PlFValue *shape = &f->vals[f->nodes[i].first];
    int64_t inner = 0;
    int32_t end = i, n = 0;
    uint8_t stage = f->nodes[i].stage, mirror = f->nodes[i].flags & PL_FN_MIRROR;
    while (end < f->nnodes && n < MAX_GROUP && f->nodes[i].nout == 1) {
      const PlFNode *m = &f->nodes[end];
      int64_t wanted = inner;
      if (m->stage != stage || (m->flags & PL_FN_MIRROR) != mirror || !may_join(f, m, shape, &wanted)) break;
      if (!slots_suffice(f, last, i, end + 1)) break;
      inner = wanted;
      end++;
      n++;
    }
    if (n < 2) {
      i++;
      continue;
    }
    for (int32_t k = i; k < end; k++) {
      PlFVal v = f->nodes[k].first;
      plan->group[k] = i;
      plan->inner[v] = last[v] >= 0 && last[v] < end && !seen_through_views(f, seen, v);
    }
    i = end;
  }
  free(last);
  free(seen);
  return s;
}

/* ---- preparing --------------------------------------------------------------------------------------------- */

static void tile_sizes(Group *g, int64_t widest) {
  int64_t fit = SLOT_BYTES / widest;
  if (g->inner <= fit) {
    g->cols = g->inner;
    g->rows = fit / g->inner;
  } else {
    g->cols = fit;
    g->rows = 1;
  }
  int64_t nrow = g->numel / g->inner;
  g->ncol = (g->inner + g->cols - 1) / g->cols;
  g->ntile = g->ncol * ((nrow + g->rows - 1) / g->rows);
}

static PlStatus prepare(const PlPlan *p, Group *g, int8_t *slot, const int32_t *last) {
  const PlFlow *f = p->flow;
  const PlFValue *s = &f->vals[f->nodes[g->begin].first];
  uint32_t taken = 0;
  int64_t inner = 0, widest = 1;
  g->m = calloc((size_t)(g->end - g->begin), sizeof *g->m);
  if (!g->m) return no_memory();
  g->numel = s->numel;
  for (int32_t i = g->begin; i < g->end; i++) {
    const PlFNode *n = &f->nodes[i];
    Member *m = &g->m[g->n++];
    *m = (Member){.node = n, .nin = n->nin};
    for (int32_t k = 0; k < n->nin; k++) {
      int64_t need = 0;
      const PlFValue *x = &f->vals[n->in[k]];
      m->in[k] = (Operand){.v = n->in[k], .slot = p->inner[n->in[k]] ? slot[n->in[k]] : -1};
      (void)kind_of(x, s, &m->in[k].kind, &need);
      if (need) inner = need;
    }
    /* results take a slot before inputs give theirs back: a kernel may not be told that they are one */
    m->out = (Operand){.v = n->first, .kind = FULL, .slot = -1};
    if (p->inner[n->first]) {
      int at = 0;
      while (at < SLOTS && (taken >> at) & 1) at++;
      if (at == SLOTS) at = SLOTS; /* slots_suffice counted one more */
      taken |= 1u << at;
      slot[n->first] = m->out.slot = (int8_t)at;
      int64_t item = (int64_t)pl_dtype_size((PlDtype)f->vals[n->first].dtype);
      if (item > widest) widest = item;
    }
    for (int32_t k = 0; k < n->nin; k++)
      if (m->in[k].slot >= 0 && last[n->in[k]] == i) taken &= ~(1u << m->in[k].slot);
  }
  g->inner = inner ? inner : g->numel;
  tile_sizes(g, widest < 4 ? 4 : widest);
  return PL_OK;
}

PlStatus pl_fusion_new(PlFusion **out, const PlPlan *p) {
  *out = NULL;
  if (!p->group) return PL_OK;
  const PlFlow *f = p->flow;
  PlFusion *u = calloc(1, sizeof *u);
  int8_t *slot = malloc((size_t)f->nvals + 1);
  int32_t *last = last_readers(f);
  PlStatus s = u && slot && last ? PL_OK : no_memory();
  if (s == PL_OK) {
    u->nnodes = f->nnodes;
    u->at = malloc(((size_t)f->nnodes + 1) * sizeof *u->at);
    u->groups = calloc((size_t)f->nnodes / 2 + 1, sizeof *u->groups);
    if (!u->at || !u->groups) s = no_memory();
  }
  for (int32_t i = 0; s == PL_OK && i < f->nnodes; i++) u->at[i] = -1;
  for (int32_t i = 0; s == PL_OK && i < f->nnodes;) {
    int32_t end = i + 1;
    if (p->group[i] != i) {
      i = end;
      continue;
    }
    while (end < f->nnodes && p->group[end] == i) end++;
    Group *g = &u->groups[u->n];
    g->begin = i;
    g->end = end;
    u->at[i] = u->n++;
    s = prepare(p, g, slot, last);
    i = end;
  }
  free(slot);
  free(last);
  if (s != PL_OK)
    pl_fusion_free(u);
  else
    *out = u;
  return s;
}

void pl_fusion_free(PlFusion *u) {
  if (!u) return;
  for (int32_t k = 0; k < u->n; k++) free(u->groups[k].m);
  free(u->groups);
  free(u->at);
  free(u);
}

int32_t pl_fusion_end(const PlFusion *u, int32_t i) { return u && u->at[i] >= 0 ? u->groups[u->at[i]].end : i; }

/* ---- running ----------------------------------------------------------------------------------------------- */

typedef struct Run {
  const Group *g;
  PlTensor *const *vals;
} Run;

typedef struct Tile {
  int64_t row, col, rows, cols;
  char *memory; /* of the slots */
} Tile;

/* A window of an operand; dims has room for shape and strides. */
static void window(const Run *r, const Tile *t, const Operand *o, PlArray *a, int64_t *dims) {
  const PlArray *whole = &r->vals[o->v]->a;
  int64_t item = (int64_t)pl_dtype_size((PlDtype)whole->dtype), inner = r->g->inner, at = 0;
  *a = (PlArray){.shape = dims, .strides = dims + 2, .dtype = whole->dtype, .device = PL_CPU, .contiguous = 1, .weak = whole->weak};
  switch (o->kind) {
  case FULL: /* whole rows lie one behind the other, and so does a piece of one row */
    a->ndim = 2;
    dims[0] = t->rows;
    dims[1] = t->cols;
    dims[2] = t->cols;
    dims[3] = 1;
    at = t->row * inner + t->col;
    break;
  case ROW:
    a->ndim = 1;
    dims[0] = t->cols;
    dims[2] = 1;
    at = t->col;
    break;
  case COL:
    a->ndim = 2;
    dims[0] = t->rows;
    dims[1] = 1;
    dims[2] = dims[3] = 1;
    at = t->row;
    break;
  case ONE: a->ndim = 0; break;
  }
  a->numel = 1;
  for (int d = 0; d < a->ndim; d++) a->numel *= dims[d];
  a->data = o->slot >= 0 ? t->memory + o->slot * SLOT_BYTES : (char *)whole->data + at * item;
}

static PlStatus run_member(const Run *r, const Tile *t, const Member *m) {
  PlArray in[4], out;
  int64_t dims[5][4];
  const PlArray *args[4] = {NULL};
  PlArray *res[1] = {&out};
  for (int32_t k = 0; k < m->nin; k++) {
    window(r, t, &m->in[k], &in[k], dims[k]);
    args[k] = &in[k];
  }
  window(r, t, &m->out, &out, dims[4]);
  static const PlAttrs none;
  PlkCall call = {.name = m->node->op->name, .code = m->node->op->kcode, .nin = m->nin, .nout = 1, .in = args, .out = res,
                  .attrs = m->node->attrs ? m->node->attrs : &none};
  return m->node->op->kernel[PL_CPU](&call);
}

static PlStatus run_tiles(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  const Group *g = r->g;
  _Alignas(64) char memory[(SLOTS + 1) * SLOT_BYTES];
  int64_t nrow = g->numel / g->inner;
  for (int64_t k = begin; k < end; k++) {
    Tile t = {.row = k / g->ncol * g->rows, .col = k % g->ncol * g->cols, .memory = memory};
    t.rows = nrow - t.row < g->rows ? nrow - t.row : g->rows;
    t.cols = g->inner - t.col < g->cols ? g->inner - t.col : g->cols;
    for (int32_t i = 0; i < g->n; i++) PL_TRY(run_member(r, &t, &g->m[i]));
  }
  return PL_OK;
}

PlStatus pl_fusion_run(const PlFusion *u, int32_t i, PlTensor *const *vals) {
  const Group *g = &u->groups[u->at[i]];
  Run r = {g, vals};
  if (g->numel * g->n < MIN_PARALLEL || g->ntile < 2) return run_tiles(&r, 0, g->ntile);
  return plk_parallel(g->ntile, 1, run_tiles, &r);
}
