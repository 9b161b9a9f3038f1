/* SPDX-License-Identifier: MIT
 * Fused groups: neighbours in the order of execution that run as one, so that what passes between them needs no way to memory.
 * One search for all devices (fuse.c): a device says what it takes in and what it has room for, and then makes of a group
 * what it runs: tiles on the CPU (tile.h), a kernel of its own on a GPU (device_groups.h). */
#ifndef PL_ENGINE_GRAPH_FUSE_FUSE_H
#define PL_ENGINE_GRAPH_FUSE_FUSE_H

#include "engine/graph/fuse/roles.h"

enum { PL_FUSE_NODES = 128 }; /* most nodes of a group, views between its members included */

/* Nodes [begin, end), of which those that are no views are members; roles: per node, of members. */
typedef struct PlFuseGroup {
  int32_t begin, end, nmember;
  PlFuseSpace space;
  PlFuseRoles roles[PL_FUSE_NODES];
} PlFuseGroup;

/* One search: a graph, a device, and what that knows of the graph. */
typedef struct PlFuse {
  const PlGraph *graph;
  const PlFuseDevice *device;
  const void *of;      /* the device's */
  const int32_t *last; /* last reader of every store (pl_last_readers) */
  int32_t *next;       /* per node: the next one that needs rows, with nothing between that is in no group; -1 */
} PlFuse;

typedef enum PlFuseRoom {
  PL_ROOM_NONE,  /* nor will there be if the group grows */
  PL_ROOM_LATER, /* not if it ended here: too many values go on to others */
  PL_ROOM_ENOUGH
} PlFuseRoom;

struct PlFuseDevice {
  int32_t members; /* of a group, at most */
  int64_t least;   /* elements of the smallest result that is worth it */
  bool sums;       /* a group may add up its rows */
  bool layouts;    /* values have the memory format of their inputs: parameters that are channels last are as good as others */
  bool lone;       /* members that share nothing with others are worth it, too: a launch less */
  /* Can node i go on with group g, which ends at it? In space s, with roles r. NULL: whatever pl_fuse_roles says. */
  bool (*takes)(const PlFuse *u, const PlFuseGroup *g, int32_t i, const PlFuseSpace *s, const PlFuseRoles *r);
  /* Is there room for group g? */
  PlFuseRoom (*room)(const PlFuse *u, const PlFuseGroup *g);
};

/* u->next for u->graph, malloc'ed. */
PlStatus pl_fuse_begin(PlFuse *u);
/* The group that begins at node i, worth it for the device; false: none does. */
bool pl_fuse_from(const PlFuse *u, int32_t i, PlFuseGroup *g);
/* The node of [begin, end) that made the memory of v, -1: none of them. */
int32_t pl_fuse_maker(const PlGraph *f, PlGVal v, int32_t begin, int32_t end);
/* Last reader of every store; nnodes: an output is there; -1: nobody. views: those read, too. malloc'ed; NULL: out of memory */
int32_t *pl_last_readers(const PlGraph *f, bool views);

#endif
