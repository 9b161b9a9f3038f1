/* SPDX-License-Identifier: MIT
 * Processes that exchange the memory of their GPUs: the table "nccl" (PlDeviceTable.extension). Calls are those of
 * kernels/process_group.h with addresses of the device; they are queued, in order, on the calling thread's current stream of
 * the group's GPU. */
#ifndef PL_KERNELS_PROCESS_GROUP_DEVICE_H
#define PL_KERNELS_PROCESS_GROUP_DEVICE_H

#include "kernels/process_group.h"

enum { PLK_NCCL_ID = 128 };
typedef struct PlkNcclId {
  char bytes[PLK_NCCL_ID]; /* made by one process, which tells the others */
} PlkNcclId;

typedef struct PlkNcclTable {
  PlStatus (*open)(char *version, size_t size); /* "2.28.9"; fails where the library is not there: what is missing */
  PlStatus (*id)(PlkNcclId *out);
  /* On one GPU of each of n processes; waits for all of them. */
  PlStatus (*group_new)(int gpu, const PlkNcclId *id, int rank, int n, void **out);
  void (*group_free)(void *group); /* after a failure, too: what is queued on it is abandoned */
  bool (*takes)(PlGroupKind kind, PlGroupOp op, PlDtype dtype);
  PlStatus (*start)(const PlGroupCall *call); /* call->group is one of group_new */
  PlStatus (*check)(void *group);             /* what went wrong in what was queued */
} PlkNcclTable;

#endif
