/* SPDX-License-Identifier: MIT
 * How nodes look at the rows of a group (fuse.c). A group works on a space of numel elements, seen as rows of `cols`
 * elements. Every value that its members touch is all of it, one row, one value a row, or one value; or a sum over all
 * rows, which is there when the group has ended. */
#ifndef PL_ENGINE_GRAPH_FUSE_TILE_H
#define PL_ENGINE_GRAPH_FUSE_TILE_H

#include "engine/graph/plan/plan.h"

typedef enum PlTileKind { PL_TILE_FULL, PL_TILE_ROW, PL_TILE_COL, PL_TILE_ONE, PL_TILE_SUM } PlTileKind;

/* cols 0: rows of any length do. rows: some member needs whole rows. grain: elements that one thread takes in order, for
 * members that sum over rows, 0: no matter; unit: rows in a tile are a multiple of it. */
typedef struct PlTileSpace {
  int64_t numel, cols, grain;
  int32_t unit;
  bool rows;
} PlTileSpace;

/* What one member reads and makes. spare: outputs (bit mask) that its kernel can do without. summed: it sums over rows, and
 * pieces says how. */
typedef struct PlTileRole {
  uint8_t in[PL_MAX_IN], out[PL_MAX_OUT];
  uint8_t spare;
  bool summed;
  PlkPieces pieces;
} PlTileRole;

enum {
  PL_TILE_SLOTS = 8,     /* results as large as the tile that are alive at once */
  PL_TILE_COLUMNS = 16,  /* the same, of one value a row */
  PL_TILE_BYTES = 20480, /* of a tile of all arrays together, if rows are not longer: what the first-level cache holds */
  PL_TILE_LEAST = 4096,  /* of one array, lest calls cost more than work */
  PL_TILE_MOST = 16384,
  PL_TILE_LONGEST = 16384, /* elements of the longest row that is worked on as a whole */
  PL_TILE_MEMBERS = 64,
  PL_TILE_ALONE = 1 << 17 /* elements up to which one thread may take all, if that is the grain */
};

/* May node n work on tiles of this space? A space of numel 0 takes n's. On success the space is what n makes of it. */
bool pl_tile_join(const PlGraph *f, const PlGNode *n, PlTileSpace *s, PlTileRole *r);
/* The same where the op's own kernel sums over rows, not the group: r->summed then only says that it does so. Sums alone are no
 * members. */
bool pl_tile_join_rows(const PlGraph *f, const PlGNode *n, PlTileSpace *s, PlTileRole *r);
/* The space of a node that needs whole rows; false: it is none. */
bool pl_tile_rows(const PlGraph *f, const PlGNode *n, PlTileSpace *s);
/* The dim of v whose sizes up to there multiply to `rows` (> 1); -1: none does. */
int pl_tile_split(const PlGValue *v, int64_t rows);

#endif
