/* SPDX-License-Identifier: MIT
 * Groups that are ready to run: what tile_plan.c makes of what tile.c chose, and tile_run.c runs. */
#ifndef PL_ENGINE_GRAPH_FUSE_TILE_GROUP_H
#define PL_ENGINE_GRAPH_FUSE_TILE_GROUP_H

#include "engine/graph/fuse/tile.h"
#include "kernels/kernel.h"

/* One array of one member: its tile is at base + row * by_row + col * by_col bytes. */
typedef struct PlTileOperand {
  PlGVal v;
  uint8_t kind;
  int8_t slot; /* ≥ 0: is in the tile's memory */
  bool wide;   /* repeated by steps of 0 (expand), not by being broadcast */
  int64_t by_row, by_col;
} PlTileOperand;

typedef struct PlTileMember {
  const PlGNode *node;
  int32_t at[PL_MAX_IN + PL_MAX_OUT]; /* operands: inputs, then outputs; -1: none */
  PlkPieces pieces;                   /* of a member that sums over rows; grain 0: it does not */
  size_t shared, local;               /* where its memory begins in that of the group and of a block */
} PlTileMember;

typedef struct PlTileGroup {
  int32_t begin, end, n;
  int64_t numel, inner;       /* elements of the space, of a row */
  int64_t cols, rows;         /* of a full tile */
  int64_t ncol, ntile, chunk; /* tiles: across, in all, that one thread takes in order */
  PlTileMember *m;
  PlTileOperand *op;
  PlArray *form[2]; /* the operands' arrays in a full tile and in the last one; data NULL */
  bool summed;      /* some member sums over rows */
  int64_t *dims;
  int32_t nop, nptr;
  int32_t nfull, ncolumn;          /* slots */
  size_t full_bytes, column_bytes; /* of one slot */
  size_t bytes, local, shared;     /* of a block's memory; of it for sums; for all blocks' sums */
} PlTileGroup;

struct PlFusion {
  int32_t *at; /* per node: the group that begins there, -1 */
  PlTileGroup *groups;
  int32_t n;
};

static inline size_t pl_round64(size_t n) { return (n + 63) & ~(size_t)63; }

#endif
