/* SPDX-License-Identifier: MIT
 * What away.c (groups, nodes one by one) and away_capture.c (the whole as one piece of work) share. */
#ifndef PL_ENGINE_GRAPH_AWAY_INSIDE_H
#define PL_ENGINE_GRAPH_AWAY_INSIDE_H

#include "engine/device.h"
#include "engine/graph/away.h"
#include "kernels/capture.h"
#include "kernels/fused.h"

typedef struct Group {
  int32_t begin, end;
  int64_t numel, cols;
  PlkFused fused;
  PlFVal arg[PLK_FUSED_ARGS]; /* which value each argument is */
  const PlAttrs *attrs[PLK_FUSED_MEMBERS];
  const PlkFusedKernel *kernel;
} Group;

struct PlAway {
  const PlFlow *f;
  const PlkFusedTable *table; /* NULL: the device has no such kernels */
  int32_t *last;    /* per value: its last reader, -1: nobody, nnodes: an output */
  uint8_t *device;  /* per value: where it lies; leaves: at the last run */
  int32_t *at;      /* per node: the group that begins there, -1 */
  Group *groups;
  int32_t ngroups, room;
  PlTensor **vals;
  uint64_t *drawn;
  bool known, busy;
  struct PlAwayCapture *capture; /* NULL: not tried yet */
  const PlkCaptureTable *noting; /* set while nodes are noted and not run */
};

/* Nodes from `from` on, one by one and group by group, with the values in there[] (per value, or NULL) that the nodes before
 * them made; what those nodes made is copied for the caller. From 0: one whole run. */
PlStatus pl_away_from(PlAway *a, int32_t from, PlTensor *const *there, PlTensor *const *in, PlTensor **out);
/* Nodes before `to`; kept[] gets (per value) what later nodes and the caller want. to 0: only decides about groups. */
PlStatus pl_away_until(PlAway *a, int32_t to, PlTensor *const *in, PlTensor **kept);

/* Takes the run if it is captured or can be now; *done false: pl_away_from must. */
PlStatus pl_away_captured(PlAway *a, PlTensor *const *in, PlTensor **out, bool *done);
void pl_away_capture_free(PlAway *a);

#endif
