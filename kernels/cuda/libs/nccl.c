/* SPDX-License-Identifier: MIT
 * NCCL, opened when a process group first has tensors on a GPU: the extension "nccl". gather, scatter and all_to_all, which
 * NCCL 2 has not (or only of late), are groups of messages. Its few types and functions are declared here, as they have been
 * since 2.10, so that no header is needed to build. */
#include "kernels/process_group_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libs/library.h"
#include "kernels/cuda/libs/libs.h"

typedef struct ncclComm *ncclComm_t;
typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t; /* enums of C: int */

typedef struct Api {
  ncclResult_t (*ncclGetVersion)(int *version);
  ncclResult_t (*ncclGetUniqueId)(PlkNcclId *id);
  ncclResult_t (*ncclCommInitRank)(ncclComm_t *comm, int n, PlkNcclId id, int rank);
  ncclResult_t (*ncclCommAbort)(ncclComm_t comm);
  ncclResult_t (*ncclCommGetAsyncError)(ncclComm_t comm, ncclResult_t *error);
  const char *(*ncclGetErrorString)(ncclResult_t code);
  ncclResult_t (*ncclAllReduce)(const void *src, void *dst, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s);
  ncclResult_t (*ncclReduce)(const void *src, void *dst, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c,
                             cudaStream_t s);
  ncclResult_t (*ncclBroadcast)(const void *src, void *dst, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s);
  ncclResult_t (*ncclAllGather)(const void *src, void *dst, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s);
  ncclResult_t (*ncclReduceScatter)(const void *src, void *dst, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s);
  ncclResult_t (*ncclSend)(const void *src, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s);
  ncclResult_t (*ncclRecv)(void *dst, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s);
  ncclResult_t (*ncclGroupStart)(void);
  ncclResult_t (*ncclGroupEnd)(void);
} Api;

static struct {
  pthread_once_t once;
  Api api;
  char missing[256], version[24];
} nccl = {.once = PTHREAD_ONCE_INIT};

typedef struct Group {
  ncclComm_t comm;
  int gpu, rank, n;
} Group;

static void open_nccl(void) {
  static const char *const files[] = {"libnccl.so.2", "libnccl.so", NULL};
#define PLC_X(name) \
  { #name, offsetof(Api, name) }
  static const PlcSymbol symbols[] = {PLC_X(ncclGetVersion),
                                      PLC_X(ncclGetUniqueId),
                                      PLC_X(ncclCommInitRank),
                                      PLC_X(ncclCommAbort),
                                      PLC_X(ncclCommGetAsyncError),
                                      PLC_X(ncclGetErrorString),
                                      PLC_X(ncclAllReduce),
                                      PLC_X(ncclReduce),
                                      PLC_X(ncclBroadcast),
                                      PLC_X(ncclAllGather),
                                      PLC_X(ncclReduceScatter),
                                      PLC_X(ncclSend),
                                      PLC_X(ncclRecv),
                                      PLC_X(ncclGroupStart),
                                      PLC_X(ncclGroupEnd),
                                      {NULL, 0}};
#undef PLC_X
  int v = 0;
  if (!plc_library_open("NCCL", files, symbols, &nccl.api, nccl.missing, sizeof nccl.missing)) return;
  (void)nccl.api.ncclGetVersion(&v); /* 2.28.9 is 22809 */
  snprintf(nccl.version, sizeof nccl.version, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
  if (v < 21000) snprintf(nccl.missing, sizeof nccl.missing, "NCCL %s was found, 2.10 is needed", nccl.version);
}

static PlStatus failed(ncclResult_t code, const char *name) {
  PL_FAIL(PL_ERR_STATE, "%s: NCCL: %s (NCCL_DEBUG=INFO says more)", name, nccl.api.ncclGetErrorString(code));
}
#define NCCL_TRY(name, expr)                                 \
  do {                                                       \
    ncclResult_t code_ = (expr);                             \
    if (PL_UNLIKELY(code_ != 0)) return failed(code_, name); \
  } while (0)

static PlStatus nccl_open(char *version, size_t size) {
  pthread_once(&nccl.once, open_nccl);
  if (nccl.missing[0]) PL_FAIL(PL_ERR_UNSUPPORTED, "%s", nccl.missing);
  snprintf(version, size, "%s", nccl.version);
  return PL_OK;
}

static PlStatus nccl_id(PlkNcclId *out) {
  NCCL_TRY("init_process_group", nccl.api.ncclGetUniqueId(out));
  return PL_OK;
}

static PlStatus group_new(int gpu, const PlkNcclId *id, int rank, int n, void **out) {
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  Group *g = calloc(1, sizeof *g);
  if (!g) PL_FAIL(PL_ERR_OOM, "init_process_group: out of memory");
  const ncclResult_t code = nccl.api.ncclCommInitRank(&g->comm, n, *id, rank);
  if (code != 0) {
    free(g);
    PL_FAIL(PL_ERR_STATE,
            "NCCL: %s (NCCL_DEBUG=INFO says more); each rank needs a GPU of its own: "
            "T.cuda.set_device(T.distributed.get_node_local_rank())",
            nccl.api.ncclGetErrorString(code));
  }
  g->gpu = gpu;
  g->rank = rank;
  g->n = n;
  *out = g;
  return PL_OK;
}

static void group_free(void *group) {
  Group *g = group;
  if (g && plc_use(g->gpu) == PL_OK) (void)nccl.api.ncclCommAbort(g->comm);
  free(g);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

/* ncclInt8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16 are 0 to 9; < 0: there is none. */
static int type_of(PlDtype d) {
  switch (d) {
  case PL_I8: return 0;
  case PL_U8:
  case PL_BOOL: return 1;
  case PL_I32: return 2;
  case PL_I64: return 4;
  case PL_F16: return 6;
  case PL_F32: return 7;
  case PL_F64: return 8;
  case PL_BF16: return 9;
  default: return -1;
  }
}

/* ncclSum, Prod, Max, Min are 0 to 3. Booleans are 0 and 1. */
static int op_of(PlGroupOp op, PlDtype d) {
  if (d == PL_BOOL) return op == PL_GROUP_SUM || op == PL_GROUP_MAX ? 2 : 3;
  return op == PL_GROUP_MIN ? 3 : op == PL_GROUP_MAX ? 2 : (int)op;
}

static bool takes(PlGroupKind kind, PlGroupOp op, PlDtype d) {
  const bool reduces = kind == PL_GROUP_ALL_REDUCE || kind == PL_GROUP_REDUCE || kind == PL_GROUP_REDUCE_SCATTER;
  return kind != PL_GROUP_BARRIER && type_of(d) >= 0 && (!reduces || op <= PL_GROUP_MAX);
}

/* gather, scatter, all_to_all: messages between `a` and everybody, inside of one NCCL group. */
static PlStatus exchange(const PlGroupCall *c, const Group *g, cudaStream_t s) {
  const size_t size = pl_dtype_size(c->dtype);
  const int t = type_of(c->dtype);
  const bool sends = c->kind != PL_GROUP_SCATTER || g->rank == c->peer;
  const bool receives = c->kind != PL_GROUP_GATHER || g->rank == c->peer;
  const char *src = c->src;
  char *dst = c->dst;
  for (int r = 0; r < g->n; r++) {
    const size_t out = (size_t)(c->send ? c->send[r] : c->count), in = (size_t)(c->receive ? c->receive[r] : c->count);
    if (sends && (c->kind != PL_GROUP_GATHER || r == c->peer)) {
      NCCL_TRY(c->name, nccl.api.ncclSend(src, out, t, r, g->comm, s));
      src += out * size; /* of gather there is one */
    }
    if (receives && (c->kind != PL_GROUP_SCATTER || r == c->peer)) {
      NCCL_TRY(c->name, nccl.api.ncclRecv(dst, in, t, r, g->comm, s));
      dst += in * size;
    }
  }
  return PL_OK;
}

static PlStatus nccl_start(const PlGroupCall *c) {
  const Group *g = c->group;
  const Api *a = &nccl.api;
  const int t = type_of(c->dtype), op = op_of(c->op, c->dtype);
  const size_t n = (size_t)c->count;
  PL_TRY(plc_use(g->gpu));
  PL_TRY(plc_alive());
  cudaStream_t s = plc_stream();
  switch (c->kind) {
  case PL_GROUP_ALL_REDUCE: NCCL_TRY(c->name, a->ncclAllReduce(c->src, c->dst, n, t, op, g->comm, s)); break;
  case PL_GROUP_REDUCE: NCCL_TRY(c->name, a->ncclReduce(c->src, c->dst, n, t, op, c->peer, g->comm, s)); break;
  case PL_GROUP_BROADCAST: NCCL_TRY(c->name, a->ncclBroadcast(c->dst, c->dst, n, t, c->peer, g->comm, s)); break;
  case PL_GROUP_ALL_GATHER: NCCL_TRY(c->name, a->ncclAllGather(c->src, c->dst, n, t, g->comm, s)); break;
  case PL_GROUP_REDUCE_SCATTER: NCCL_TRY(c->name, a->ncclReduceScatter(c->src, c->dst, n, t, op, g->comm, s)); break;
  case PL_GROUP_SEND: NCCL_TRY(c->name, a->ncclSend(c->src, n, t, c->peer, g->comm, s)); break;
  case PL_GROUP_RECEIVE: NCCL_TRY(c->name, a->ncclRecv(c->dst, n, t, c->peer, g->comm, s)); break;
  default: {
    NCCL_TRY(c->name, a->ncclGroupStart());
    PlStatus status = exchange(c, g, s);
    const ncclResult_t end = a->ncclGroupEnd();
    PL_TRY(status);
    NCCL_TRY(c->name, end);
  }
  }
  return PL_OK;
}

static PlStatus check(void *group) {
  const Group *g = group;
  ncclResult_t code = 0;
  NCCL_TRY("process group", nccl.api.ncclCommGetAsyncError(g->comm, &code));
  NCCL_TRY("process group", code);
  return PL_OK;
}

const PlkNcclTable *plc_nccl_table(void) {
  static const PlkNcclTable table = {nccl_open, nccl_id, group_new, group_free, takes, nccl_start, check};
  return &table;
}
