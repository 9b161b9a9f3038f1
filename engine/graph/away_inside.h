/* SPDX-License-Identifier: MIT
 * What away.c (groups, nodes one by one) and away_capture.c (the whole as one piece of work) share. */
#ifndef PL_ENGINE_GRAPH_AWAY_INSIDE_H
#define PL_ENGINE_GRAPH_AWAY_INSIDE_H

#include "engine/device.h"
#include "engine/graph/away.h"
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
};

/* One run, node by node and group by group. */
PlStatus pl_away_once(PlAway *a, PlTensor *const *in, PlTensor **out);
/* Decides about groups for leaves that lie where in[] and the captured tensors lie. */
PlStatus pl_away_choose(PlAway *a, PlTensor *const *in);

/* Takes the run if it is captured or can be now; *done false: pl_away_once must. */
PlStatus pl_away_captured(PlAway *a, PlTensor *const *in, PlTensor **out, bool *done);
void pl_away_capture_free(PlAway *a);

#endif
