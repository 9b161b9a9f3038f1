/* SPDX-License-Identifier: MIT
 * Groups at work. A tile is some rows of the group's space, or a piece of one long row; on it all members run, each with
 * the very kernel that would run it alone on everything, so the bits are the same. What passes between members is in
 * slots, which stay in the first-level cache. */
#include <string.h>

#include "engine/graph/fuse/tile_group.h"

enum {
  STACK_BYTES = 160 << 10, /* of a block of tiles: slots, arrays, calls */
  MIN_PARALLEL = 1 << 16,  /* members times elements below which one thread runs it all */
  BLOCKS = 32              /* that the tiles are shared out in */
};

typedef struct Run {
  const PlTileGroup *g;
  PlTensor *const *vals;
  char *shared;
} Run;

/* The memory of a block of tiles, carved up. */
typedef struct Block {
  PlArray *arr;
  char **base; /* per operand: where it begins */
  PlkCall *call;
  char *local;
} Block;

static void *carve(char **at, size_t bytes) {
  void *p = *at;
  *at += pl_round64(bytes);
  return p;
}

static void set_up(const Run *r, char *memory, Block *b) {
  static const PlAttrs none;
  const PlTileGroup *g = r->g;
  char *full = memory, *column = full + (size_t)g->nfull * g->full_bytes;
  memory = column + (size_t)g->ncolumn * g->column_bytes;
  b->local = carve(&memory, g->local);
  b->arr = carve(&memory, (size_t)g->nop * sizeof(PlArray));
  b->call = carve(&memory, (size_t)g->n * sizeof(PlkCall));
  b->base = carve(&memory, (size_t)g->nop * sizeof(char *));
  PlArray **ptr = carve(&memory, (size_t)g->nptr * sizeof(void *));
  memcpy(b->arr, g->form[0], (size_t)g->nop * sizeof(PlArray));
  for (int32_t k = 0; k < g->nop; k++) {
    const PlTileOperand *o = &g->op[k];
    b->base[k] = o->slot < 0              ? r->vals[o->v]->a.data
                 : o->kind == PL_ROLE_COL ? column + (size_t)o->slot * g->column_bytes
                                          : full + (size_t)o->slot * g->full_bytes;
    b->arr[k].data = b->base[k];
  }
  for (int32_t i = 0; i < g->n; i++) {
    const PlGNode *n = g->m[i].node;
    b->call[i] = (PlkCall){.name = n->op->name,
                           .code = n->op->kcode,
                           .nin = n->nin,
                           .nout = n->nout,
                           .in = (const PlArray *const *)ptr,
                           .out = ptr + n->nin,
                           .attrs = n->attrs ? n->attrs : &none};
    for (int32_t k = 0; k < n->nin; k++) *ptr++ = g->m[i].at[k] < 0 ? NULL : &b->arr[g->m[i].at[k]];
    for (int32_t o = 0; o < n->nout; o++) *ptr++ = g->m[i].at[PL_MAX_IN + o] < 0 ? NULL : &b->arr[g->m[i].at[PL_MAX_IN + o]];
  }
}

/* The arrays of a block in the form of the last tile, or back. */
static void reshape(const PlTileGroup *g, Block *b, int form) {
  for (int32_t k = 0; k < g->nop; k++) {
    const PlArray *a = &g->form[form][k];
    b->arr[k].shape = a->shape;
    b->arr[k].strides = a->strides;
    b->arr[k].numel = a->numel;
  }
}

static PlStatus run_block(const Run *r, int64_t begin, int64_t end, char *memory) {
  const PlTileGroup *g = r->g;
  int64_t nrow = g->numel / g->inner;
  int now = 0;
  Block b;
  set_up(r, memory, &b);
  int64_t row = begin / g->ncol * g->rows, col = begin % g->ncol * g->cols;
  for (int64_t k = begin; k < end; k++) {
    int form = nrow - row < g->rows || g->inner - col < g->cols;
    if (form != now) reshape(g, &b, now = form);
    for (int32_t o = 0; o < g->nop; o++)
      if (g->op[o].slot < 0) b.arr[o].data = b.base[o] + row * g->op[o].by_row + col * g->op[o].by_col;
    for (int32_t i = 0; i < g->n; i++) {
      const PlTileMember *m = &g->m[i];
      if (m->pieces.grain)
        PL_TRY(m->node->op->rows.pieces->piece(&b.call[i], &m->pieces, row * g->inner + col, r->shared + m->shared, b.local + m->local));
      else PL_TRY(m->node->op->kernel[PL_CPU](&b.call[i]));
    }
    if ((col += g->cols) >= g->inner) {
      col = 0;
      row += g->rows;
    }
  }
  return PL_OK;
}

static PlStatus run_tiles(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  _Alignas(64) char memory[STACK_BYTES];
  if (r->g->bytes <= STACK_BYTES) return run_block(r, begin, end, memory);
  void *heap;
  PL_TRY(plk_scratch(r->g->bytes, &heap));
  PlStatus s = run_block(r, begin, end, heap);
  plk_scratch_free(heap);
  return s;
}

/* The sums, when all rows were seen. */
static PlStatus finish_sums(const Run *r) {
  static const PlAttrs none;
  const PlTileGroup *g = r->g;
  for (int32_t i = 0; i < g->n; i++) {
    const PlTileMember *m = &g->m[i];
    const PlGNode *n = m->node;
    if (!m->pieces.grain) continue;
    const PlArray *in[PL_MAX_IN];
    PlArray *out[PL_MAX_OUT];
    for (int32_t k = 0; k < n->nin; k++) in[k] = n->in[k] < 0 ? NULL : &r->vals[n->in[k]]->a;
    for (int32_t o = 0; o < n->nout; o++) {
      PlTensor *t = r->vals[n->first + o];
      out[o] = t && t->a.data ? &t->a : NULL;
    }
    bool read = false; /* a sum whose readers were all given a copy has no memory */
    for (int32_t o = 0; o < n->nout; o++) read |= out[o] != NULL;
    if (!read) continue;
    PlkCall call = {.name = n->op->name,
                    .code = n->op->kcode,
                    .nin = n->nin,
                    .nout = n->nout,
                    .in = in,
                    .out = out,
                    .attrs = n->attrs ? n->attrs : &none};
    PL_TRY(n->op->rows.pieces->end(&call, &m->pieces, r->shared + m->shared));
  }
  return PL_OK;
}

static PlStatus run_chunks(void *ctx, int64_t begin, int64_t end) {
  const PlTileGroup *g = ((const Run *)ctx)->g;
  return run_tiles(ctx, begin * g->chunk, end * g->chunk < g->ntile ? end * g->chunk : g->ntile);
}

PlStatus pl_fusion_run(const PlFusion *u, int32_t i, PlTensor *const *vals) {
  const PlTileGroup *g = &u->groups[u->at[i]];
  Run r = {.g = g, .vals = vals};
  int64_t n = (g->ntile + g->chunk - 1) / g->chunk;
  void *shared = NULL;
  if (g->shared) PL_TRY(plk_scratch(g->shared, &shared));
  r.shared = shared;
  PlStatus s =
      g->numel * g->n < MIN_PARALLEL || n < 2 ? run_tiles(&r, 0, g->ntile) : plk_parallel(n, (n + BLOCKS - 1) / BLOCKS, run_chunks, &r);
  if (s == PL_OK && g->summed) s = finish_sums(&r);
  plk_scratch_free(shared);
  return s;
}
