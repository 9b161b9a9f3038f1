/* SPDX-License-Identifier: MIT
 * What device_run.c (nodes one by one, groups at work), device_groups.c (groups chosen) and device_capture.c (the whole as one piece
 * of work) share. */
#ifndef PL_ENGINE_GRAPH_RUN_DEVICE_RUN_INTERNAL_H
#define PL_ENGINE_GRAPH_RUN_DEVICE_RUN_INTERNAL_H

#include "engine/device/device.h"
#include "engine/graph/run/device_run.h"
#include "kernels/capture.h"
#include "kernels/fused.h"

/* A fused group, nodes [begin, end), as the device runs it: one kernel. */
typedef struct PlDeviceGroup {
  int32_t begin, end;
  uint8_t device; /* that all of it is on */
  int64_t numel, cols;
  int32_t node[PLK_FUSED_MEMBERS]; /* of each member */
  PlkFused fused;
  PlGVal arg[PLK_FUSED_ARGS]; /* which value each argument is */
  const PlAttrs *attrs[PLK_FUSED_MEMBERS];
  const PlkFusedKernel *kernel;
} PlDeviceGroup;

struct PlDeviceRun {
  const PlGraph *f;
  const PlkFusedTable *table; /* NULL: the device has no such kernels */
  int32_t *last;              /* per value: its last reader, -1: nobody, nnodes: an output */
  uint8_t *device;            /* per value: its device; leaves: at the last run */
  int32_t *at;                /* per node: the group that begins there, -1 */
  PlDeviceGroup *groups;
  int32_t ngroups, room;
  PlTensor **vals;
  int32_t *tail;      /* per node: a norm's, its sum's, its relu's: that relu (device_norms.c); an attention's: the node that it writes for,
                       * and that node's own (device_heads.c); -1 */
  uint8_t *cast;      /* per node: of which kind (device_casts.c) */
  int32_t *leaf_cast; /* those of leaves */
  int32_t nleaf_casts;
  int32_t *waiting; /* casts that are not made yet, */
  int32_t nwaiting;
  int64_t waiting_bytes;
  uint8_t *waits;   /* and per value: does one read or make it? */
  uint8_t *written; /* per store: does some node write it? */
  bool early;       /* may casts of leaves come before their turn in this run? */
  uint64_t *drawn;
  int32_t *whole; /* pieces that Ctrl-C does not part (whole.h), or NULL */
  int32_t done;   /* how many nodes ran, of a run that failed; else 0 */
  bool known, busy;
  bool crosses, several;           /* the graph decides about devices; at the last run it did, or leaves were on more than one GPU */
  struct PlDeviceCapture *capture; /* NULL: not tried yet */
  const PlkCaptureTable *noting;   /* set while nodes are noted and not run */
};

/* Chooses and compiles the groups of a graph whose values' devices are known (device_groups.c). */
PlStatus pl_device_groups(PlDeviceRun *a);
/* Does member m leave sums over rows to its op's own kernel, which runs behind the group (gradients of a norm's weights)? */
bool pl_device_group_sums_after(const PlDeviceRun *a, const PlDeviceGroup *g, int m);
/* The argument of halves that input 0 of member m only widens: those sums read it as it is; -1: it is none. */
int pl_device_group_narrow(const PlDeviceGroup *g, int m);

/* Batch norms with the sum and the relu behind them (device_norms.c): which there are, before groups are chosen; node i in its turn
 * (*taken: it is made, or was). */
PlStatus pl_device_norms(PlDeviceRun *a);
PlStatus pl_device_norms_take(PlDeviceRun *a, int32_t i, bool *taken);
/* Attention that writes where the copy or the join behind it would (device_heads.c): which there are, once groups are chosen; node i,
 * such an attention, in its turn. The node behind it is taken by pl_device_norms_take. */
PlStatus pl_device_heads(PlDeviceRun *a);
PlStatus pl_device_heads_take(PlDeviceRun *a, int32_t i, bool *taken);

/* Casts that go many a launch (device_casts.c): which are there; node i in its turn, of those before `to` (*taken: it is made, or
 * will be); what nodes begin … end-1 read; all that wait. */
void pl_device_casts_choose(PlDeviceRun *a);
void pl_device_casts_begin(PlDeviceRun *a); /* leaves are there */
PlStatus pl_device_casts_take(PlDeviceRun *a, int32_t i, int32_t to, bool *taken);
PlStatus pl_device_casts_before(PlDeviceRun *a, int32_t begin, int32_t end);
PlStatus pl_device_casts_flush(PlDeviceRun *a);
/* Node i was the last to read these; nobody reads those. */
void pl_device_run_drop_behind(PlDeviceRun *a, int32_t i);

/* Nodes from `from` on, one by one and group by group, with the values in there[] (per value, or NULL) that the nodes before
 * them made; what those nodes made is copied for the caller. From 0: one whole run. */
PlStatus pl_device_run_from(PlDeviceRun *a, int32_t from, PlTensor *const *there, PlTensor *const *in, PlTensor **out);
/* Nodes before `to`; kept[] gets (per value) what later nodes and the caller want. to 0: only decides about groups. */
PlStatus pl_device_run_until(PlDeviceRun *a, int32_t to, PlTensor *const *in, PlTensor **kept);

/* Takes the run if it is captured or can be now; *done false: pl_device_run_from must. */
PlStatus pl_device_run_captured(PlDeviceRun *a, PlTensor *const *in, PlTensor **out, bool *done);
void pl_device_capture_free(PlDeviceRun *a);

#endif
