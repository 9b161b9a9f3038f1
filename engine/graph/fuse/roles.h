/* SPDX-License-Identifier: MIT
 * How nodes look at the space of a fused group, on any device. A group works on numel elements, seen as rows of `cols`
 * elements. Every value that its members touch is all of it, one row, one value a row, or one value; or a sum over all
 * rows, which is there when the group has ended. */
#ifndef PL_ENGINE_GRAPH_FUSE_ROLES_H
#define PL_ENGINE_GRAPH_FUSE_ROLES_H

#include "engine/graph/plan/plan.h"

typedef enum PlFuseRole { PL_ROLE_FULL, PL_ROLE_ROW, PL_ROLE_COL, PL_ROLE_ONE, PL_ROLE_SUM } PlFuseRole;

/* cols 0: rows of any length do. rows: some member needs whole rows. grain: elements that one thread takes in order, for
 * members that sum over rows, 0: no matter; unit: rows in a tile are a multiple of it. channels_last: some parameter is, so that
 * there are no rows. */
typedef struct PlFuseSpace {
  int64_t numel, cols, grain;
  int32_t unit;
  bool rows, channels_last;
} PlFuseSpace;

/* What one member reads and makes. spare: outputs (bit mask) that its kernel can do without. summed: it sums over rows, and
 * pieces says how; where groups of the device do not, its own kernel must. */
typedef struct PlFuseRoles {
  uint8_t in[PL_MAX_IN], out[PL_MAX_OUT];
  uint8_t spare;
  bool summed;
  PlkPieces pieces;
} PlFuseRoles;

enum {
  PL_FUSE_LONGEST = 16384, /* elements of the longest row that is worked on as a whole */
  PL_FUSE_ALONE = 1 << 17  /* elements up to which one thread may take all, if that is the grain */
};

typedef struct PlFuseDevice PlFuseDevice; /* fuse.h */

/* May node n be a member on that device, in this space? A space of numel 0 takes n's. On success the space is what n makes
 * of it. */
bool pl_fuse_roles(const PlGraph *f, const PlGNode *n, const PlFuseDevice *device, PlFuseSpace *s, PlFuseRoles *r);
/* The space of a node that needs whole rows; false: it is none. */
bool pl_fuse_rows(const PlGraph *f, const PlGNode *n, PlFuseSpace *s);
/* The dim of v whose sizes up to there multiply to `rows` (> 1); -1: none does. */
int pl_fuse_split(const PlGValue *v, int64_t rows);

#endif
