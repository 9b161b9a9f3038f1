/* SPDX-License-Identifier: MIT
 * Groups at work. A tile is some rows of the group's space, or a piece of one long row; on it all members run, each with
 * the very kernel that would run it alone on everything, so the bits are the same. What passes between members is in
 * slots, which stay in the first-level cache. */
#include "kernels/program.h"

#include <string.h>

enum {
  STACK_BYTES = 160 << 10, /* of a block of tiles: slots, arrays, calls */
  MIN_PARALLEL = 1 << 16,  /* members times elements below which one thread runs it all */
  BLOCKS = 32              /* that the tiles are shared out in */
};

typedef struct Run {
  const PlkTileGroup *g;
  PlArray *const *vals;
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
  *at += plk_round64(bytes);
  return p;
}

static void set_up(const Run *r, char *memory, Block *b) {
  static const PlAttrs none;
  const PlkTileGroup *g = r->g;
  char *full = memory, *column = full + (size_t)g->nfull * g->full_bytes;
  memory = column + (size_t)g->ncolumn * g->column_bytes;
  b->local = carve(&memory, g->local);
  b->arr = carve(&memory, (size_t)g->nop * sizeof(PlArray));
  b->call = carve(&memory, (size_t)g->n * sizeof(PlkCall));
  b->base = carve(&memory, (size_t)g->nop * sizeof(char *));
  PlArray **ptr = carve(&memory, (size_t)g->nptr * sizeof(void *));
  memcpy(b->arr, g->form[0], (size_t)g->nop * sizeof(PlArray));
  for (int32_t k = 0; k < g->nop; k++) {
    const PlkTileOperand *o = &g->op[k];
    b->base[k] = o->slot < 0 ? r->vals[o->v]->data
                 : o->column ? column + (size_t)o->slot * g->column_bytes
                             : full + (size_t)o->slot * g->full_bytes;
    b->arr[k].data = b->base[k];
  }
  for (int32_t i = 0; i < g->n; i++) {
    const PlkTileMember *m = &g->m[i];
    b->call[i] = (PlkCall){.name = m->name,
                           .code = m->code,
                           .nin = m->nin,
                           .nout = m->nout,
                           .in = (const PlArray *const *)ptr,
                           .out = ptr + m->nin,
                           .attrs = m->attrs ? m->attrs : &none};
    for (int32_t k = 0; k < m->nin + m->nout; k++) *ptr++ = m->at[k] < 0 ? NULL : &b->arr[m->at[k]];
  }
}

/* The arrays of a block in the form of the last tile, or back. */
static void reshape(const PlkTileGroup *g, Block *b, int form) {
  for (int32_t k = 0; k < g->nop; k++) {
    const PlArray *a = &g->form[form][k];
    b->arr[k].shape = a->shape;
    b->arr[k].strides = a->strides;
    b->arr[k].numel = a->numel;
  }
}

static PlStatus run_block(const Run *r, int64_t begin, int64_t end, char *memory) {
  const PlkTileGroup *g = r->g;
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
      const PlkTileMember *m = &g->m[i];
      if (m->cut.grain) PL_TRY(m->pieces->piece(&b.call[i], &m->cut, row * g->inner + col, r->shared + m->shared, b.local + m->local));
      else PL_TRY(m->kernel(&b.call[i]));
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

/* Members have at most as many arrays as ops have that may be one. */
enum { MEMBER_ARRAYS = 32 };

/* The sums, when all rows were seen. */
static PlStatus finish_sums(const Run *r) {
  static const PlAttrs none;
  const PlkTileGroup *g = r->g;
  for (int32_t i = 0; i < g->n; i++) {
    const PlkTileMember *m = &g->m[i];
    if (!m->cut.grain) continue;
    const PlArray *in[MEMBER_ARRAYS];
    PlArray *out[MEMBER_ARRAYS];
    if (m->nin > MEMBER_ARRAYS || m->nout > MEMBER_ARRAYS) PL_FAIL(PL_ERR_STATE, "%s: too many arrays for a group", m->name);
    for (int32_t k = 0; k < m->nin; k++) in[k] = m->arg[k] < 0 ? NULL : r->vals[m->arg[k]];
    bool read = false; /* a sum whose readers were all given a copy has no memory */
    for (int32_t o = 0; o < m->nout; o++) {
      PlArray *a = m->arg[m->nin + o] < 0 ? NULL : r->vals[m->arg[m->nin + o]];
      out[o] = a && a->data ? a : NULL;
      read |= out[o] != NULL;
    }
    if (!read) continue;
    PlkCall call = {
        .name = m->name, .code = m->code, .nin = m->nin, .nout = m->nout, .in = in, .out = out, .attrs = m->attrs ? m->attrs : &none};
    PL_TRY(m->pieces->end(&call, &m->cut, r->shared + m->shared));
  }
  return PL_OK;
}

static PlStatus run_chunks(void *ctx, int64_t begin, int64_t end) {
  const PlkTileGroup *g = ((const Run *)ctx)->g;
  return run_tiles(ctx, begin * g->chunk, end * g->chunk < g->ntile ? end * g->chunk : g->ntile);
}

PlStatus plk_tiles_run(const PlkTileGroup *g, PlArray *const *vals) {
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
