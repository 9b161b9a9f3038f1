/* SPDX-License-Identifier: MIT
 * What device_run.c (nodes one by one, groups at work), device_groups.c, device_rows.c (groups chosen) and device_capture.c (the whole as
 * one piece of work) share. */
#ifndef PL_ENGINE_GRAPH_RUN_DEVICE_RUN_INTERNAL_H
#define PL_ENGINE_GRAPH_RUN_DEVICE_RUN_INTERNAL_H

#include "engine/device/device.h"
#include "engine/graph/fuse/tile.h"
#include "engine/graph/run/device_run.h"
#include "kernels/capture.h"
#include "kernels/fused.h"

/* Nodes [begin, end). In a group of rows views are among the members: such of what was there before are taken when the
 * group runs (`views` of them); one of what a member makes is that member, seen as it is. */
typedef struct Group {
  int32_t begin, end, views;
  uint8_t device; /* that all of it is on */
  int64_t numel, cols;
  PlTileSpace space;               /* of a group of rows */
  int32_t node[PLK_FUSED_MEMBERS]; /* of each member */
  PlkFused fused;
  PlGVal arg[PLK_FUSED_ARGS]; /* which value each argument is */
  const PlAttrs *attrs[PLK_FUSED_MEMBERS];
  const PlkFusedKernel *kernel;
} Group;

struct PlDeviceRun {
  const PlGraph *f;
  const PlkFusedTable *table; /* NULL: the device has no such kernels */
  int32_t *last;              /* per value: its last reader, -1: nobody, nnodes: an output */
  uint8_t *device;            /* per value: its device; leaves: at the last run */
  int32_t *at;                /* per node: the group that begins there, -1 */
  Group *groups;
  int32_t ngroups, room;
  PlTensor **vals;
  uint64_t *drawn;
  bool known, busy;
  bool crosses, several;           /* the graph decides about devices; at the last run it did, or leaves were on more than one GPU */
  struct PlDeviceCapture *capture; /* NULL: not tried yet */
  const PlkCaptureTable *noting;   /* set while nodes are noted and not run */
};

/* Where the longest group from node i on begins and ends; one behind i: none. Compiles it (device_groups.c). */
PlStatus pl_device_group_from(PlDeviceRun *a, int32_t i, int32_t *end);
/* The elementwise code of a node; < 0: it is no such call. */
int pl_device_group_code(const PlGNode *n);
/* The argument that value v is, a new one if need be; -1: no room. */
int pl_device_group_argument(Group *g, PlGVal v, PlkFusedArg as);
/* The longest group of rows from g->begin on, before node `most`; false: there is none (device_rows.c). */
bool pl_device_group_rows(const PlDeviceRun *a, Group *g, int32_t most);
/* Does member m leave sums over rows to its op's own kernel, which runs behind the group (gradients of a norm's weights)? */
bool pl_device_group_sums_after(const PlDeviceRun *a, const Group *g, int m);
/* Is node i a view of what no member of g makes? */
bool pl_device_group_outside_view(const PlDeviceRun *a, const Group *g, int32_t i);

/* Nodes from `from` on, one by one and group by group, with the values in there[] (per value, or NULL) that the nodes before
 * them made; what those nodes made is copied for the caller. From 0: one whole run. */
PlStatus pl_device_run_from(PlDeviceRun *a, int32_t from, PlTensor *const *there, PlTensor *const *in, PlTensor **out);
/* Nodes before `to`; kept[] gets (per value) what later nodes and the caller want. to 0: only decides about groups. */
PlStatus pl_device_run_until(PlDeviceRun *a, int32_t to, PlTensor *const *in, PlTensor **kept);

/* Takes the run if it is captured or can be now; *done false: pl_device_run_from must. */
PlStatus pl_device_run_captured(PlDeviceRun *a, PlTensor *const *in, PlTensor **out, bool *done);
void pl_device_capture_free(PlDeviceRun *a);

#endif
