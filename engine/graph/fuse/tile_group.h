/* SPDX-License-Identifier: MIT
 * Groups that are ready to run: what tile_plan.c makes of what tile.c chose, and kernels/cpu/tiles.c runs. */
#ifndef PL_ENGINE_GRAPH_FUSE_TILE_GROUP_H
#define PL_ENGINE_GRAPH_FUSE_TILE_GROUP_H

#include "engine/graph/fuse/tile.h"
#include "kernels/program.h"

/* What a group points to, while it is made and when it goes. */
typedef struct PlTileMemory {
  PlkTileMember *m;
  PlkTileOperand *op;
  PlArray *form;
  int64_t *dims; /* of the forms */
  int32_t *ints; /* the members' lists */
} PlTileMemory;

struct PlFusion {
  int32_t *at; /* per node: the group that begins there, -1 */
  PlkTileGroup *groups;
  PlTileMemory *memory; /* per group */
  int32_t n;
};

#endif
