/* SPDX-License-Identifier: MIT
 * Devices that are not the CPU, as the engine sees them: the plug-in that is opened when somebody first asks for one,
 * tensors in its memory, and calls of ops on them. A device is a number: PL_CPU, or PL_CUDA + i for GPU i, "cuda:i".
 *
 * Where a call computes: on the device if any input is there, else on the CPU; ops without arrays among their inputs use
 * pl_state.device. Numbers and 0-d CPU tensors mix with device tensors; inputs that only give sizes are always on the CPU. */
#ifndef PL_ENGINE_DEVICE_DEVICE_H
#define PL_ENGINE_DEVICE_DEVICE_H

#include "engine/tensor/tensor.h"
#include "kernels/device.h"

typedef struct PlCall PlCall; /* engine/call/call.h */

/* The plug-in's table; opens it at first use. Failing says why there is no device, each time the same. */
PlStatus pl_device(const PlDeviceTable **out);
/* The same for code that already has a tensor on the device. */
const PlDeviceTable *pl_device_open(void);
/* "cpu", "cuda:1"; where the process has one GPU that is "cuda". It names the same device whatever the current one is. */
const char *pl_device_name(int device);
int pl_device_count(void); /* GPUs; 0 while no plug-in is open */
/* What kernels and libraries are chosen by beside arguments: this thread's precision of products, and the settings of the plug-in if it
 * is open. What was planned under another value is stale. */
uint32_t pl_device_modes(void);
/* "cpu", "cuda:1", "cuda" (the thread's current one): a number, be there such a device or not; < 0: it is no name of one. */
int pl_device_parse(const char *name);
/* The device of two values that belongs to what a graph makes out of nothing: the first that is not the CPU. */
static inline uint8_t pl_device_first(uint8_t a, uint8_t b) { return a ? a : b; }

PlStatus pl_device_storage(int device, size_t nbytes, void **out); /* memory for a tensor */
void pl_device_storage_free(int device, void *p);

void pl_device_pinned_free(void *p);
/* Memory of the host that copies go straight from and to. Errors: UNSUPPORTED without a GPU. */
PlStatus pl_tensor_empty_pinned(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape);
/* A copy of t on another device that nobody waits for, without history. *done false: t is not of that kind; it takes pinned,
 * dense memory to go to a GPU beside its work, and dense memory to come from one (into pinned memory, which is right once the
 * device has been waited for). */
PlStatus pl_tensor_moved_later(PlTensor **out, PlTensor *t, int device, bool *done);

/* ---- calls (device_call.c) ---- */

PlStatus pl_call_place(PlCall *c);        /* sets c->device, checks that the inputs are on one device; before promotion */
PlStatus pl_call_bring(PlCall *c);        /* what the kernel cannot read on the CPU goes to the device; after promotion */
PlStatus pl_call_infer_device(PlCall *c); /* the infer rule, with host copies of inputs whose values it reads */
PlStatus pl_call_run_device(int device, const PlOp *op, const PlkCall *call);
bool pl_op_on_device(const PlOp *op);                                           /* has a kernel there */
PlStatus pl_device_family(int device, const char *family, const PlkCall *call); /* runs one by name */

/* Elementwise copy, cast and broadcast between any two arrays, whatever their devices. */
PlStatus pl_copy_arrays(PlArray *dst, const PlArray *src);
/* A contiguous copy of t on `device`, without history. */
PlStatus pl_tensor_moved(PlTensor **out, PlTensor *t, int device);
/* t itself (retained) if it is on the CPU, else a copy there. Waits. */
PlStatus pl_tensor_on_host(PlTensor **out, PlTensor *t);
PlStatus pl_tensor_empty_on(PlTensor **out, int device, PlDtype dtype, int ndim, const int64_t *shape);
PlStatus pl_tensor_full_on(PlTensor **out, int device, PlDtype dtype, int ndim, const int64_t *shape, double value);

#endif
