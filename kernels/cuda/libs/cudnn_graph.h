/* SPDX-License-Identifier: MIT
 * cuDNN's graph API from C: a graph of a few operations is described, the library says which of its engines can run it
 * on this device, the first that keeps our rules becomes a plan, and plans are kept by what described them.
 *
 * A PlcGraph lives on the caller's stack. Its first failure sticks: later calls do nothing, plc_graph_plan returns it.
 * So a graph is written without a check after every line; plc_graph_end frees all descriptors in any case. */
#ifndef PL_KERNELS_CUDA_LIBS_CUDNN_GRAPH_H
#define PL_KERNELS_CUDA_LIBS_CUDNN_GRAPH_H

#include "kernels/cuda/libs/cudnn_api.h"

enum { PLC_G_DIM = 5, PLC_G_DESC = 112, PLC_G_OPS = 32, PLC_G_TENSORS = 16 };

/* What plans are made for: a handle, or (to plan without a GPU) a description of a device. */
typedef struct PlcDnnTarget {
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t device; /* a finalized CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, if handle is NULL */
} PlcDnnTarget;

typedef cudnnBackendDescriptor_t PlcDesc; /* NULL after a failure */

typedef struct PlcGraph {
  const PlcDnnApi *api;
  PlcDnnTarget target;
  PlStatus status;
  int ndesc, nops;
  PlcDesc desc[PLC_G_DESC], ops[PLC_G_OPS];
  int64_t next; /* names of tensors that exist only inside */
} PlcGraph;

/* A tensor of the outside: its number in the pack of addresses, dims and strides in elements. */
typedef struct PlcShape {
  int ndim;
  int64_t dim[PLC_G_DIM], stride[PLC_G_DIM];
} PlcShape;

/* Opens the library if need be. */
void plc_graph_begin(PlcGraph *g, PlcDnnTarget target);
void plc_graph_end(PlcGraph *g);

/* cuDNN's name of a dtype; UNSUPPORTED ones stick in g. */
cudnnDataType_t plc_dnn_dtype(PlDtype d);
/* Strides of dims of size 1 mean nothing, but engines look at them: they are set to those of a dense tensor in the
 * same order of dims, and all strides are kept as they are otherwise. */
void plc_shape_normalize(PlcShape *s);

/* A tensor in memory; uid ≥ 0 says which entry of the pack of addresses it is, align what addresses are multiples of. */
PlcDesc plc_graph_tensor(PlcGraph *g, int64_t uid, cudnnDataType_t d, const PlcShape *s, int64_t align);
/* One that passes between operations only; dense when s has no strides (all 0). */
PlcDesc plc_graph_inner(PlcGraph *g, cudnnDataType_t d, const PlcShape *s);
/* A number given at the run by its address on the host. */
PlcDesc plc_graph_number(PlcGraph *g, int64_t uid, int ndim);

/* y = mode(x), mode(x, b) or, for BINARY_SELECT, t ? x : b. The mode's parameter is `axis` for GEN_INDEX, the slope
 * below 0 for RELU_FWD. Arguments that a mode lacks are NULL. */
void plc_graph_pointwise(PlcGraph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, PlcDesc x, PlcDesc b, PlcDesc t, PlcDesc y,
                         int64_t axis);
void plc_graph_reduce(PlcGraph *g, cudnnReduceTensorOp_t op, PlcDesc x, PlcDesc y);
/* c[…,M,N] = a[…,M,K] b[…,K,N], added up in f32. */
void plc_graph_matmul(PlcGraph *g, PlcDesc a, PlcDesc b, PlcDesc c);
void plc_graph_reshape(PlcGraph *g, PlcDesc x, PlcDesc y);

typedef struct PlcConv {
  int spatial;
  int64_t stride[3], padding[3], dilation[3];
} PlcConv;
typedef enum PlcConvKind { PLC_CONV, PLC_CONV_DATA, PLC_CONV_FILTER } PlcConvKind;
/* y = conv(x, w); x is written by PLC_CONV_DATA, w by PLC_CONV_FILTER. */
void plc_graph_conv(PlcGraph *g, PlcConvKind kind, const PlcConv *c, cudnnDataType_t math, PlcDesc x, PlcDesc w, PlcDesc y);

/* ---- plans -------------------------------------------------------------------------------------------------- */

typedef struct PlcPlan PlcPlan;

/* What a plan may not do. */
typedef struct PlcRules {
  bool deterministic; /* same bits at every run */
  bool exact;         /* no TF32, no other rounding of f32 factors */
  bool once;          /* no sums in less than f32 */
  size_t workspace;   /* bytes at most */
} PlcRules;

/* The first engine configuration of the library's list that keeps the rules, or the first few: ways, of which times decide.
 * UNSUPPORTED: there is none. */
enum { PLC_PLAN_WAYS = 6 };
void plc_plans_measure(bool on); /* plans made from now on have several ways; those that have one are made again */
PlStatus plc_graph_plan(PlcGraph *g, const PlcRules *rules, PlcPlan **out);
void plc_plan_release(PlcPlan *p);                     /* NULL is fine */
int plc_plan_ways(const PlcPlan *p);                   /* 1 once it is decided */
size_t plc_plan_workspace(const PlcPlan *p, int way);  /* way < 0: the one that was decided for, until then the first */
void plc_plan_decide(PlcPlan *p, const double *times); /* of each way; not positive, or no number: it does not run */
/* at[k] is the address of the tensor with uid[k]. */
PlStatus plc_plan_run(const PlcPlan *p, int way, cudnnHandle_t handle, int n, const int64_t *uid, void *const *at, void *workspace);

/* Plans by key: the bytes of a struct whose padding is zero. A key that no engine takes is remembered, too: *out is then
 * NULL and the answer UNSUPPORTED, without asking the library again. The least recently used of 512 goes first. The
 * caller releases what it gets. */
typedef PlStatus (*PlcPlanMake)(const void *key, PlcDnnTarget target, PlcPlan **out);
PlStatus plc_plan_get(const void *key, size_t size, PlcDnnTarget target, PlcPlanMake make, PlcPlan **out);
void plc_plans_clear(void);

#endif
