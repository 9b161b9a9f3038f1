/* SPDX-License-Identifier: MIT
 * Processes that compute together, as the engine sees them: the plug-in that is opened when a script first asks for a
 * process group, and calls on contiguous tensors of the CPU, whose sizes are checked against what the call moves. */
#ifndef PL_ENGINE_DISTRIBUTED_PROCESS_GROUP_H
#define PL_ENGINE_DISTRIBUTED_PROCESS_GROUP_H

#include "engine/perilune.h"
#include "kernels/process_group.h"
#include "kernels/process_group_device.h"

/* The plug-in's table; opens it, and MPI, at first use. Failing says what to install. */
PlStatus pl_group(const PlGroupTable **out, PlGroupInfo *info);
/* The same for code that has a group already; NULL: nobody has opened it. */
const PlGroupTable *pl_group_open(void);

/* A call under way. Keeps its tensors until release. */
typedef struct PlGroupWork PlGroupWork;
/* call: name, kind, op, group, peer, tag, background, send, receive; the rest is taken from the tensors (NULL: none). */
PlStatus pl_group_start(PlGroupWork **out, const PlGroupCall *call, PlTensor *src, PlTensor *dst);
PlStatus pl_group_test(PlGroupWork *w, bool *done);
PlStatus pl_group_wait(PlGroupWork *w, double seconds, int *source);
/* One that is not done goes on by itself, and keeps its tensors for good. */
void pl_group_work_release(PlGroupWork *w);

/* Sets c->dtype and c->count and checks that both tensors, on `device`, have what the call moves in a group of n. */
PlStatus pl_group_fit(PlGroupCall *c, const PlTensor *src, const PlTensor *dst, int rank, int n, int device);

/* ---- tensors of GPUs (process_group_device.c): NCCL, where the device plug-in finds it ---- */

typedef struct PlGroupDevice PlGroupDevice;                   /* one GPU of each member */
PlStatus pl_group_device_library(char *version, size_t size); /* fails where it is missing */
PlStatus pl_group_device_id(PlkNcclId *out);
PlStatus pl_group_device_new(PlGroupDevice **out, const PlkNcclId *id, int gpu, int rank, int n);
void pl_group_device_release(PlGroupDevice *g);
bool pl_group_device_takes(PlGroupKind kind, PlGroupOp op, PlDtype dtype);
/* Queued on the GPU's current stream. */
PlStatus pl_group_device_start(PlGroupDevice *g, const PlGroupCall *call, PlTensor *src, PlTensor *dst);

#endif
