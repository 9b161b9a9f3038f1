/* SPDX-License-Identifier: MIT
 * The contract between the engine and the kernels of one device.
 *
 * A kernel is a function of one PlkCall. The engine promises: shapes, dtypes and attributes were
 * checked by the op's infer rule; outputs are allocated with the inferred shape; where the descriptor
 * says PL_F_CONTIGUOUS, every input and output is contiguous; otherwise inputs may have any strides
 * (also 0), and the output of a pointwise op and what an op changes in place any non-overlapping ones; other outputs are
 * contiguous. An output either shares no byte with an input or,
 * for in-place pairs, is the very same array as one.
 * A kernel promises: it writes every element of its outputs, allocates only through plk_scratch,
 * gives the same bits at any thread count, returns a status, and polls plk_poll() at least every
 * 50 ms of work. Index VALUES are 0-based here. */
#ifndef PL_KERNELS_KERNEL_H
#define PL_KERNELS_KERNEL_H

#include "kernels/base.h"

/* Devices by number (PlArray.device): the CPU, then PL_CUDA + i, which is GPU number i, "cuda:i". */
enum { PL_CPU = 0, PL_CUDA = 1, PL_GPUS = 16 /* at most */ };
static inline bool pl_on_gpu(int device) { return device >= PL_CUDA; }
static inline int pl_gpu_index(int device) { return device - PL_CUDA; }

/* A counter-based random stream: element i of a call draws Philox4x32-10 block
 * (counter = offset + i / 4, key = seed, stream), lane i % 4. */
typedef struct PlkRng {
  uint64_t seed, stream, offset;
} PlkRng;

typedef struct PlkCall {
  const char *name; /* the op's, for messages */
  int code;         /* the op's `kcode`: which member of a kernel family */
  int nin, nout;
  const PlArray *const *in; /* NULL entries: optional inputs that were not given */
  PlArray *const *out;      /* NULL entries: outputs nobody wants */
  const PlAttrs *attrs;
  PlkRng rng;
  struct PlkKept *kept; /* of a call that is run again and again: forms of inputs that stay the same (below); NULL: none */
} PlkCall;

typedef PlStatus (*PlKernel)(const PlkCall *call);

/* ---- services that kernels may use (implemented in kernels/cpu/runtime.c) ------------------- */

/* Temporary memory of at least `bytes`, 64-byte aligned, counted by the engine's allocator; give it
 * back with plk_scratch_free (NULL is fine). */
PlStatus plk_scratch(size_t bytes, void **out);
void plk_scratch_free(void *p);
/* PL_ERR_INTERRUPT once the user asked to stop (Ctrl-C), else PL_OK. Cheap. Main thread or workers. */
PlStatus plk_poll(void);
/* From now on this flag stops the calling thread's kernels too; NULL: none does. It must outlive the thread's work. */
#ifndef __cplusplus /* C++ spells atomics its own way */
void plk_stop_by(const _Atomic bool *flag);
#endif
/* Threads that a parallel region may use; 1 inside a loader worker or a forked child. */
int plk_threads(void);
void plk_set_threads(int n);
/* Below this many elements no parallel region is opened. */
enum { PLK_GRAIN = 32768 };

/* The engine installs its allocator here once, so kernels need no engine header. */
typedef struct PlkHost {
  PlStatus (*alloc)(size_t bytes, void **out);
  void (*release)(void *p);
} PlkHost;
void plk_set_host(const PlkHost *host);
/* Set (also from a signal handler) to stop running kernels; the engine clears it. */
void plk_interrupt(bool on);
/* Between hold(1) and hold(-1) nothing is stopped: what is written must not be half written. Calls nest. */
void plk_interrupt_hold(int more);
bool plk_interrupt_held(void);

/* Runs body(ctx, begin, end) over [0, n) cut into blocks of `block` items: the cut depends on n and
 * block alone, so results do too. Threads take whole blocks. Stops early and returns the first failing
 * block's status (lowest block wins) or PL_ERR_INTERRUPT. */
typedef PlStatus (*PlkBody)(void *ctx, int64_t begin, int64_t end);
PlStatus plk_parallel(int64_t n, int64_t block, PlkBody body, void *ctx);

/* ---- forms of inputs that a kernel keeps from call to call (kernels/cpu/kept.c): weights that were put into another order cost as much to
 * order as a small batch costs to compute. Who runs the same calls again and again (programs, the graph's executor) has one
 * PlkKept a call and says which inputs hold the same elements at each run; a kernel that finds none of its forms there makes one
 * and leaves it. The results are the same to the bit with and without ---- */

/* Zeroed: nothing is kept. The form is written once, by whichever thread is first. */
typedef struct PlkKept {
  uint32_t fixed; /* bit k: input k is the same at each run; 0: nothing may be kept */
  void *form;     /* of the kernel's; NULL: not made yet */
} PlkKept;

static inline bool plk_kept_may(const PlkKept *k, int input) { return k && (k->fixed >> input & 1); }
/* What was left here; NULL: nothing yet. */
void *plk_kept_form(PlkKept *k);
/* Memory for a form, aligned to 64 bytes; NULL: there is none, and the kernel does without keeping. */
void *plk_kept_alloc(size_t bytes);
/* Leaves what plk_kept_alloc gave. Returns what is kept: another thread's, which has the same bytes, if that was first; ours is
 * freed then. */
void *plk_kept_leave(PlkKept *k, void *form);
/* What plk_kept_alloc gave and nobody left anywhere. */
void plk_kept_drop(void *form);
/* Frees the forms of n calls, which nobody runs. */
void plk_kept_clear(PlkKept *k, int n);

/* ---- what the kernels run on ---- */

/* ISA level picked at start: "v2" "v3" "v4" or "generic"; PERILUNE_ISA pins one. */
const char *plk_isa(void);
/* Name and version of the i-th library (from 0) that the kernels were built for, NULL behind the last. *found: it can be
 * opened on this machine; this opens it. */
const char *plk_library(int i, bool *found);

#endif
