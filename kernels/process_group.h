/* SPDX-License-Identifier: MIT
 * The contract between the engine and the plug-in that joins processes (MPI): one table of functions, found by dlopen and
 * checked by its ABI number. No MPI header is needed to include this. Data is in the CPU's memory, contiguous.
 * Ranks are those of the group that a call names. All members of a group make the same calls on it in the same order. */
#ifndef PL_KERNELS_PROCESS_GROUP_H
#define PL_KERNELS_PROCESS_GROUP_H

#include "kernels/kernel.h"

#define PL_GROUP_ABI   1u
#define PL_GROUP_ENTRY "perilune_group_plugin"

/* What the engine lends to the plug-in. */
typedef struct PlGroupHost {
  uint32_t abi;
  PlStatus (*fail)(PlStatus code, const char *text); /* becomes pl_message() */
  PlStatus (*poll)(void);                            /* PL_ERR_INTERRUPT once the user asked to stop */
} PlGroupHost;

typedef struct PlGroupInfo {
  int rank, size;             /* among all processes */
  int local_rank, local_size; /* among those of this machine */
  char library[128];          /* "Open MPI v4.1.4" */
} PlGroupInfo;

/* n: processes of the group. What each call reads and writes, in elements: */
typedef enum PlGroupKind {
  PL_GROUP_BARRIER,        /* nothing */
  PL_GROUP_ALL_REDUCE,     /* src[count] → dst[count]; src may be dst */
  PL_GROUP_REDUCE,         /* the same, dst on `peer` alone */
  PL_GROUP_BROADCAST,      /* dst[count]: read on `peer`, written elsewhere */
  PL_GROUP_ALL_GATHER,     /* src[count] → dst[n count] */
  PL_GROUP_GATHER,         /* the same, dst on `peer` alone */
  PL_GROUP_SCATTER,        /* src[n count] on `peer` alone → dst[count] */
  PL_GROUP_REDUCE_SCATTER, /* src[n count] → dst[count] */
  PL_GROUP_ALL_TO_ALL,     /* src[n count] → dst[n count], or pieces of send[r] and receive[r] elements for rank r */
  PL_GROUP_SEND,           /* src[count] to `peer` */
  PL_GROUP_RECEIVE,        /* dst[count] from `peer`, < 0: from any */
  PL_GROUP_NKIND
} PlGroupKind;

/* On booleans SUM and MAX are "or", PROD and MIN are "and". */
typedef enum PlGroupOp {
  PL_GROUP_SUM,
  PL_GROUP_PROD,
  PL_GROUP_MIN,
  PL_GROUP_MAX,
  PL_GROUP_AND, /* bitwise; not of floats */
  PL_GROUP_OR,
  PL_GROUP_XOR,
  PL_GROUP_NOP
} PlGroupOp;

typedef struct PlGroupCall {
  const char *name; /* of the function, for messages */
  PlGroupKind kind;
  PlGroupOp op;
  PlDtype dtype;
  void *group; /* of group_new; NULL: all processes */
  int peer, tag;
  bool background; /* goes on while the caller computes */
  const void *src;
  void *dst;
  int64_t count;
  const int64_t *send, *receive; /* n numbers each, or NULL */
} PlGroupCall;

typedef struct PlGroupTable {
  uint32_t abi, size; /* PL_GROUP_ABI, sizeof(PlGroupTable) */
  const char *kind;   /* "mpi" */

  PlStatus (*open)(PlGroupInfo *info); /* again: the same answer */
  /* The process ends. Waits until all others end, too, and then leaves in order; after a failure it leaves at once, and
   * the launcher ends the others. */
  void (*close)(bool failed);

  /* A group of those processes; every process makes this call. *out is NULL on those that are not among them. */
  PlStatus (*group_new)(const int *ranks, int n, double seconds, void **out);
  void (*group_info)(const void *group, int *rank, int *size); /* NULL: all processes */

  /* src and dst stay as they are until the work is done. */
  PlStatus (*start)(const PlGroupCall *call, void **work);
  PlStatus (*test)(void *work, bool *done);
  /* seconds < 0: for ever. *source: who sent, after RECEIVE. A work that failed stays failed. */
  PlStatus (*wait)(void *work, double seconds, int *source);
  bool (*release)(void *work); /* false: it is not done, and its memory must stay; close() waits for it */
} PlGroupTable;

/* The plug-in's one exported function, under PL_GROUP_ENTRY; NULL if it does not speak host->abi. */
typedef const PlGroupTable *(*PlGroupEntry)(const PlGroupHost *host);

#endif
