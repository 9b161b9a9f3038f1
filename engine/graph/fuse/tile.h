/* SPDX-License-Identifier: MIT
 * Fused groups on the CPU: they run tile by tile, and what passes between members stays in the first-level cache and needs no
 * memory of the plan. pl_fuse decides before memory is planned, PlFusion runs what it decided. */
#ifndef PL_ENGINE_GRAPH_FUSE_TILE_H
#define PL_ENGINE_GRAPH_FUSE_TILE_H

#include "engine/graph/fuse/fuse.h"

typedef struct PlFusion PlFusion;

enum {
  PL_TILE_SLOTS = 8,     /* results as large as the tile that are alive at once */
  PL_TILE_COLUMNS = 16,  /* the same, of one value a row */
  PL_TILE_BYTES = 20480, /* of a tile of all arrays together, if rows are not longer: what the first-level cache holds */
  PL_TILE_LEAST = 4096,  /* of one array, lest calls cost more than work */
  PL_TILE_MOST = 16384
};

/* ---- choosing (tile.c) ---- */
extern const PlFuseDevice pl_tile_device;
/* Fills plan->group (per node: the group's first node, -1: alone), plan->space (of groups, at that node) and plan->inner
 * (per value: only its group reads it). */
PlStatus pl_fuse(PlPlan *plan);
/* One behind the last node of the group that begins at node i. */
int32_t pl_tile_end(const PlPlan *plan, int32_t i);
/* What a walk through a group's members keeps: tiles that are taken. Slots are numbered per kind. */
typedef struct PlTileSlots {
  uint32_t full, col; /* taken now */
  int8_t nfull, ncol; /* the most so far */
  int8_t *of;         /* per store: its slot; may be NULL: only counts */
} PlTileSlots;
/* Node i of the group [begin, end): its results take slots, and what is not read any more gives its back. false: too
 * many are alive. */
bool pl_tile_slots(PlTileSlots *t, const PlGraph *f, const int32_t *last, int32_t begin, int32_t end, int32_t i, const PlFuseRoles *r);

/* ---- running (tile_plan.c prepares, kernels/cpu/tiles.c runs) ---- */
PlStatus pl_fusion_new(PlFusion **out, const PlPlan *plan);
void pl_fusion_free(PlFusion *f); /* NULL is fine */
/* One behind the last node of the group that begins at node i; i itself: no group begins there. */
int32_t pl_fusion_end(const PlFusion *f, int32_t i);
/* The group that begins at node i, NULL: none does. */
const struct PlkTileGroup *pl_fusion_group(const PlFusion *f, int32_t i);

#endif
