/* SPDX-License-Identifier: MIT
 * Groups before they run: how large their tiles are, which slots members read and make, and what their arrays look like in a
 * full tile and in the last one. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/fuse/tile_group.h"

enum { TOTAL_TILE = 4096 }; /* elements of a tile that grains of everything can be cut into */

/* PlkTileOperand.wide: read by a member as large as the tile, or by one that makes one value a row. */
enum { WIDE_FULL = 1, WIDE_COLUMN };

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* ---- tiles -------------------------------------------------------------------------------------------------- */

/* Arrays as large as the tile that a member reads or makes: slots, and windows of what is in memory. There may be none,
 * where values of one a row or one row are spread and added up again at once. */
static int64_t full_arrays(const PlkTileGroup *g) {
  int64_t n = g->nfull;
  for (int32_t k = 0; k < g->nop; k++) {
    bool again = g->op[k].slot >= 0 || g->op[k].kind != PL_ROLE_FULL;
    for (int32_t j = 0; j < k && !again; j++) again = g->op[j].v == g->op[k].v;
    n += !again;
  }
  return n;
}

/* Rows in a tile: at most `most`, but a multiple of unit that cuts grains of `grain` rows evenly, 0: any. */
static int64_t rows_in_tile(int64_t most, int64_t unit, int64_t grain) {
  int64_t n = most / unit * unit;
  if (n < unit) n = unit;
  while (grain && n > unit && grain % n) n -= unit;
  return n;
}

/* mixed: pointwise ops and copies between ops of rows, of which each call costs as much as a row of a thousand floats: more rows at a
 * time gain more than they lose where they leave the first cache. */
static void tile_sizes(PlkTileGroup *g, int64_t widest, const PlFuseSpace *s, bool mixed) {
  bool rows = s->rows;
  int64_t arrays = full_arrays(g), fit = PL_TILE_BYTES / (arrays ? arrays : 1);
  fit = (mixed || fit > PL_TILE_MOST ? PL_TILE_MOST : fit < PL_TILE_LEAST ? PL_TILE_LEAST : fit) / widest;
  if (rows || g->inner <= fit) {
    g->cols = g->inner;
    g->rows = g->inner <= fit ? fit / g->inner : 1;
  } else {
    g->cols = s->grain && TOTAL_TILE < g->inner ? TOTAL_TILE : fit;
    g->rows = 1;
  }
  int64_t nrow = g->numel / g->inner;
  int64_t grain = s->grain && s->grain < s->numel ? s->grain : 0;
  if (g->cols == g->inner && s->unit) g->rows = rows_in_tile(g->rows, s->unit, grain / g->inner);
  if (g->rows > nrow) g->rows = nrow;
  g->ncol = (g->inner + g->cols - 1) / g->cols;
  g->ntile = g->ncol * ((nrow + g->rows - 1) / g->rows);
  g->chunk = !s->grain ? 1 : !grain ? g->ntile : grain < g->inner ? grain / g->cols : grain / g->inner / g->rows * g->ncol;
}

/* The array of operand o in a tile of rows x cols; dims has room for 2 * PL_MAX_DIM numbers. */
static void shape_of(const PlGraph *f, const PlkTileOperand *o, bool by_rows, int64_t nrow, int64_t rows, int64_t cols, PlArray *a,
                     int64_t *dims) {
  const PlGValue *v = &f->vals[o->v];
  int n = 0;
  if (by_rows) { /* the op's attributes speak of the value's dims */
    int split = o->kind == PL_ROLE_ROW ? -1 : pl_fuse_split(v, nrow);
    for (; n < v->ndim; n++) dims[n] = n < split ? 1 : n == split ? rows : v->dims[n];
  } else if (o->wide) {
    dims[n++] = rows;
    dims[n++] = o->wide == WIDE_COLUMN ? 1 : cols;
  } else if (o->kind != PL_ROLE_ONE) {
    if (o->kind != PL_ROLE_ROW) dims[n++] = rows;
    dims[n++] = o->kind == PL_ROLE_COL ? 1 : cols;
  }
  *a = (PlArray){.numel = 1,
                 .shape = dims,
                 .strides = dims + n,
                 .dtype = v->dtype,
                 .ndim = (uint8_t)n,
                 .device = PL_CPU,
                 .contiguous = 1,
                 .weak = v->weak};
  for (int d = n - 1; d >= 0; d--) {
    dims[n + d] = a->numel;
    a->numel *= dims[d];
  }
  if (!o->wide) return;
  a->contiguous = 0;
  dims[n] = o->kind == PL_ROLE_COL;
  dims[n + 1] = o->kind == PL_ROLE_ROW;
}

static PlStatus make_forms(const PlGraph *f, PlkTileGroup *g, PlTileMemory *u) {
  int64_t nrow = g->numel / g->inner, last_rows = nrow % g->rows, last_cols = g->inner % g->cols, *dims;
  u->form = calloc(2 * (size_t)g->nop + 1, sizeof(PlArray));
  u->dims = dims = calloc(2 * (size_t)g->nop + 1, 2 * PL_MAX_DIM * sizeof(int64_t));
  if (!u->form || !u->dims) return no_memory();
  g->form[0] = u->form;
  g->form[1] = u->form + g->nop;
  int32_t i = 0;
  for (int32_t k = g->begin; k < g->end; k++) {
    if (f->nodes[k].flags & PL_FN_VIEW) continue;
    const PlkTileMember *m = &g->m[i++];
    const bool by_rows = f->nodes[k].op->rows.roles && !m->cut.grain; /* pieces look at sizes alone */
    for (int32_t j = 0; j < m->nin + m->nout; j++) {
      const int32_t at = m->at[j];
      if (at < 0) continue;
      shape_of(f, &g->op[at], by_rows, nrow, g->rows, g->cols, &u->form[at], dims);
      dims += 2 * PL_MAX_DIM;
      shape_of(f, &g->op[at], by_rows, nrow, last_rows ? last_rows : g->rows, last_cols ? last_cols : g->cols, &u->form[g->nop + at], dims);
      dims += 2 * PL_MAX_DIM;
    }
  }
  return PL_OK;
}

typedef struct Prepare {
  const PlPlan *p;
  const int32_t *last;
  PlTileSlots slots;
} Prepare;

static void add_operand(PlkTileGroup *g, PlTileMemory *u, int32_t *at, bool exact, PlGVal v, uint8_t kind, int8_t slot, const PlGraph *f,
                        bool column) {
  int64_t item = (int64_t)pl_dtype_size((PlDtype)f->vals[v].dtype);
  *at = g->nop;
  PlkTileOperand *o = &u->op[g->nop++];
  const PlGValue *val = &f->vals[v];
  bool plain = val->contiguous || exact;
  *o = (PlkTileOperand){.v = v, .kind = kind, .column = kind == PL_ROLE_COL, .slot = slot};
  if (!plain && kind != PL_ROLE_FULL && val->numel > 1) o->wide = column ? WIDE_COLUMN : WIDE_FULL;
  if (kind == PL_ROLE_FULL || kind == PL_ROLE_ROW) o->by_col = item;
  if (kind == PL_ROLE_COL) o->by_row = item;
  if (kind == PL_ROLE_FULL) o->by_row = item * g->inner;
}

static PlStatus add_member(const Prepare *a, PlkTileGroup *g, PlTileMemory *u, int32_t i, int32_t **ints, int64_t *widest) {
  const PlGraph *f = a->p->graph;
  const PlGNode *n = &f->nodes[i];
  PlFuseSpace space = a->p->space[g->begin];
  PlFuseRoles role;
  PlTileSlots *t = (PlTileSlots *)(uintptr_t)&a->slots;
  if (!pl_fuse_roles(f, n, &pl_tile_device, &space, &role) || !pl_tile_slots(t, f, a->last, g->begin, g->end, i, &role))
    PL_FAIL(PL_ERR_STATE, "graph: %s does not fit into its group", n->name);
  PlkTileMember *m = &u->m[g->n++];
  int32_t *at = *ints, *arg = at + n->nin + n->nout;
  *ints = arg + n->nin + n->nout;
  *m = (PlkTileMember){.name = n->op->name,
                       .kernel = n->op->kernel[PL_CPU],
                       .pieces = n->op->rows.pieces,
                       .attrs = n->attrs,
                       .at = at,
                       .arg = arg,
                       .code = n->op->kcode,
                       .nin = n->nin,
                       .nout = n->nout};
  if (role.summed) {
    m->cut = role.pieces;
    m->shared = g->shared;
    m->local = g->local;
    g->shared += plk_round64(role.pieces.shared);
    g->local += plk_round64(role.pieces.local);
    g->summed = true;
  }
  for (int32_t k = 0; k < n->nin; k++) {
    arg[k] = n->in[k];
    at[k] = -1;
    if (n->in[k] >= 0)
      add_operand(g, u, &at[k], n->op->rows.roles != NULL, n->in[k], role.in[k],
                  a->p->inner[n->in[k]] ? t->of[f->vals[n->in[k]].store] : -1, f, role.out[0] == PL_ROLE_COL);
  }
  for (int32_t o = 0; o < n->nout; o++) {
    PlGVal v = n->first + o;
    bool inner = a->p->inner[v];
    arg[n->nin + o] = f->vals[v].dtype == PL_NDTYPE ? -1 : v;
    at[n->nin + o] = -1;
    if (f->vals[v].dtype == PL_NDTYPE || role.out[o] == PL_ROLE_SUM || (inner && a->last[f->vals[v].store] < 0 && (role.spare >> o) & 1))
      continue;
    add_operand(g, u, &at[n->nin + o], true, v, role.out[o], inner ? t->of[f->vals[v].store] : -1, f, false);
    int64_t item = (int64_t)pl_dtype_size((PlDtype)f->vals[v].dtype);
    if (role.out[o] == PL_ROLE_FULL && item > *widest) *widest = item;
  }
  g->nptr += n->nin + n->nout;
  return PL_OK;
}

static PlStatus prepare(const PlPlan *p, PlkTileGroup *g, PlTileMemory *u, int8_t *slot, const int32_t *last) {
  const PlGraph *f = p->graph;
  PlFuseSpace s = p->space[g->begin];
  int64_t widest = 4;
  size_t nop = 0;
  Prepare a = {p, last, {.of = slot}};
  for (int32_t i = g->begin; i < g->end; i++) nop += (size_t)f->nodes[i].nin + (size_t)f->nodes[i].nout;
  g->m = u->m = calloc((size_t)(g->end - g->begin), sizeof *u->m);
  g->op = u->op = calloc(nop + 1, sizeof *u->op);
  int32_t *ints = u->ints = malloc((2 * nop + 1) * sizeof *ints);
  if (!u->m || !u->op || !ints) return no_memory();
  g->numel = s.numel;
  g->inner = s.cols ? s.cols : s.numel;
  for (int32_t i = g->begin; i < g->end; i++)
    if (!(f->nodes[i].flags & PL_FN_VIEW)) PL_TRY(add_member(&a, g, u, i, &ints, &widest));
  g->nfull = a.slots.nfull;
  g->ncolumn = a.slots.ncol;
  bool mixed = false;
  for (int32_t i = g->begin; i < g->end; i++) mixed |= s.rows && !(f->nodes[i].flags & PL_FN_VIEW) && !f->nodes[i].op->rows.roles;
  tile_sizes(g, widest, &s, mixed);
  g->full_bytes = plk_round64((size_t)(g->rows * g->cols * widest));
  g->column_bytes = plk_round64((size_t)g->rows * 8);
  g->bytes = (size_t)g->nfull * g->full_bytes + (size_t)g->ncolumn * g->column_bytes + plk_round64((size_t)g->nop * sizeof(PlArray)) +
             plk_round64((size_t)g->n * sizeof(PlkCall)) + plk_round64((size_t)g->nptr * sizeof(void *)) +
             plk_round64((size_t)g->nop * sizeof(char *)) + g->local;
  return make_forms(f, g, u);
}

PlStatus pl_fusion_new(PlFusion **out, const PlPlan *p) {
  *out = NULL;
  if (!p->group) return PL_OK;
  const PlGraph *f = p->graph;
  PlFusion *u = calloc(1, sizeof *u);
  int8_t *slot = malloc((size_t)f->nstores + 1);
  int32_t *last = pl_last_readers(f, false);
  PlStatus s = u && slot && last ? PL_OK : no_memory();
  if (s == PL_OK) {
    u->at = malloc(((size_t)f->nnodes + 1) * sizeof *u->at);
    u->groups = calloc((size_t)f->nnodes / 2 + 1, sizeof *u->groups);
    u->memory = calloc((size_t)f->nnodes / 2 + 1, sizeof *u->memory);
    if (!u->at || !u->groups || !u->memory) s = no_memory();
  }
  for (int32_t i = 0; s == PL_OK && i < f->nnodes; i++) u->at[i] = -1;
  for (int32_t i = 0; s == PL_OK && i < f->nnodes;) {
    if (p->group[i] != i) {
      i++;
      continue;
    }
    PlkTileGroup *g = &u->groups[u->n];
    g->begin = i;
    g->end = pl_tile_end(p, i);
    u->at[i] = u->n;
    s = prepare(p, g, &u->memory[u->n++], slot, last);
    i = g->end;
  }
  free(slot);
  free(last);
  if (s != PL_OK) pl_fusion_free(u);
  else *out = u;
  return s;
}

void pl_fusion_free(PlFusion *u) {
  if (!u) return;
  for (int32_t k = 0; u->memory && k < u->n; k++) {
    free(u->memory[k].m);
    free(u->memory[k].op);
    free(u->memory[k].form);
    free(u->memory[k].dims);
    free(u->memory[k].ints);
  }
  free(u->memory);
  free(u->groups);
  free(u->at);
  free(u);
}

int32_t pl_fusion_end(const PlFusion *u, int32_t i) { return u && u->at[i] >= 0 ? u->groups[u->at[i]].end : i; }

const PlkTileGroup *pl_fusion_group(const PlFusion *u, int32_t i) { return u && u->at[i] >= 0 ? &u->groups[u->at[i]] : NULL; }
