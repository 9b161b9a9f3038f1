/* SPDX-License-Identifier: MIT
 * What the engine keeps per thread: which keys record, the ambient key, the default random generator. */
#ifndef PL_ENGINE_CALL_THREAD_STATE_H
#define PL_ENGINE_CALL_THREAD_STATE_H

#include "engine/perilune.h"

/* What the embedding program watches while it looks for anomalies. */
typedef struct PlWatch {
  void (*recorded)(PlNode *n);                        /* a node was made */
  void (*wrote)(const char *op, const PlStorage *st); /* an op is about to change this memory */
  /* Text of at most `size` bytes: where the node was recorded; which op last wrote the memory, and where. */
  void (*where)(const PlNode *n, char *text, size_t size);
  void (*writer)(const PlStorage *st, char *text, size_t size);
} PlWatch;

/* Told of every op while the embedding program measures: begin and end of each, nested where one is made of others.
 * count: how many ops run as one; op is the first of them. work: what the kernels of the innermost one computed. */
typedef struct PlProfile {
  void (*begin)(const PlOp *op, int count);
  void (*work)(double flops);
  void (*launch)(int device); /* a kernel is about to be queued there */
  void (*end)(void);
} PlProfile;

/* What makes an op more than to be run: bits of PlState.modes. Whoever asks for several asks the word, once. */
enum {
  PL_MODE_TRACE = 1 << 0,      /* trace */
  PL_MODE_BATCH = 1 << 1,      /* batch_busy */
  PL_MODE_PROFILE = 1 << 2,    /* profile */
  PL_MODE_CHECKPOINT = 1 << 3, /* checkpoint */
  PL_MODE_REMAT = 1 << 4,      /* remat */
  PL_MODE_WATCH = 1 << 5,      /* watch */
  PL_MODE_PACKING = 1 << 6,    /* packing */
  PL_MODE_AUTOCAST = 1 << 7,   /* autocast */
  PL_MODE_FORWARD = 1 << 8,    /* forward */
  /* those that wrap every call (modes.c) */
  PL_MODES_AROUND = PL_MODE_TRACE | PL_MODE_CHECKPOINT | PL_MODE_PROFILE,
  /* those that see every op; a region of mixed precision only sees ops that have a rule for it */
  PL_MODES_OF_ALL = PL_MODES_AROUND | PL_MODE_BATCH | PL_MODE_REMAT
};

/* What a script opens around some of its calls: T.no_grad, a device, a region of mixed precision. */
typedef struct PlScope {
  bool grad_off, autocast_cache;
  uint8_t device, autocast;
  int autocast_depth;
} PlScope;

typedef struct PlState {
  uint32_t modes;         /* which of the fields that stand for modes are set; pl_set_NAME keeps both, nobody else */
  bool grad_off;          /* inside no_grad: nothing records */
  bool bookkeeping;       /* histories are brought up to date: every live key records, also one that is off now */
  bool changed;           /* what `around` is of has been changed; false again in what the engine calls then */
  const void *mode_owner; /* of the program's coroutines the one that grad_off is of; NULL: no other has its own */
  uint64_t mode_turn;     /* counts the turns of coroutines */
  PlKey *ambient;         /* made at first use, never finalized */
  PlKey *holder;          /* its leaves hold .grad of tensors that the ambient key does not track; made when needed */
  PlKey *keys;            /* live explicit keys, newest first */
  uint64_t seq;           /* record numbers */
  uint64_t key_seq;       /* birth numbers of keys and walks */
  uint64_t rules;         /* moves when a gradient of a built-in op is replaced or a parameter converted: what was traced before is stale */
  uint64_t unnamed;       /* keys that were named grad_N */
  const PlWatch *watch;   /* NULL: nobody looks for anomalies */
  const PlProfile *profile;      /* NULL: nobody measures */
  uint64_t seed, stream, offset; /* default generator */
  bool seeded;
  int in_backward;                 /* nesting depth */
  struct PlWalk *walk;             /* the innermost backward that runs, or NULL */
  struct PlGraph *trace;           /* every op goes into this graph under construction; NULL: ops run */
  struct PlBatch *batch;           /* the innermost running one, or NULL (engine/vmap) */
  struct PlBatch *batches;         /* all that are open, also of coroutines that do not run */
  uint64_t batch_loops;            /* ops computed element by element, for want of a rule */
  uint64_t batch_busy;             /* running batches and live batched handles: 0 spares ops the look */
  uint64_t key_floor, key_ceiling; /* keys born outside [floor, ~ceiling) do not record: batches keep levels apart */
  bool torn;                       /* a backward that failed has left sums in .grad, once (grad/leaf_sums.c) */
  bool history_moved;         /* views may have to be taken again, results of rules to be refused: some in-place op was recorded, or … */
  uint8_t gpu;                /* the thread's current one: what "cuda" means */
  uint8_t device;             /* where ops without arrays among their inputs compute, and backward graphs make zeros */
  uint8_t row_major;          /* > 0: results follow no layout (engine/tensor/layout.h) */
  uint8_t autocast;           /* 1 + the dtype that a region of mixed precision casts to; 0: none */
  bool autocast_cache;        /* casts of leaves are kept */
  int autocast_depth;         /* regions that are open */
  uint32_t forward;           /* open keys of tangents (grad/forward_mode.h) */
  struct PlRematState *remat; /* notes of how results were made, under a limit of memory (remat/remat.h); NULL: none */
  struct PlPacking *packing;  /* the innermost pair that saved tensors pass through (grad/saved_tensors_hooks.h); NULL: none */
  struct PlCasts *casts;      /* those casts, until the outermost region ends */
  struct PlCheckpoint *checkpoint; /* the innermost function that runs under one (grad/checkpoint.h); NULL: none does */
  int checkpoint_depth;            /* ops that run now, one inside the other, while one is watched */
  int ambient_muted;               /* > 0: an explicit key with ambient=false records, the ambient one does not */
  PlScope around;                  /* what the script has open, where the engine has changed that before it calls a function */
  struct PlPacking *around_packing;
} PlState;

extern _Thread_local PlState pl_state;

/* pl_set_NAME(now) → what the mode NAME was: whoever opens a mode puts back what was there. */
#define PL_MODE(TYPE, NAME, BIT)                                                       \
  static inline TYPE pl_set_##NAME(TYPE now) {                                         \
    TYPE was = pl_state.NAME;                                                          \
    pl_state.NAME = now;                                                               \
    pl_state.modes = now ? pl_state.modes | (BIT) : pl_state.modes & ~(uint32_t)(BIT); \
    return was;                                                                        \
  }
PL_MODE(struct PlGraph *, trace, PL_MODE_TRACE)
PL_MODE(uint64_t, batch_busy, PL_MODE_BATCH)
PL_MODE(const PlProfile *, profile, PL_MODE_PROFILE)
PL_MODE(struct PlCheckpoint *, checkpoint, PL_MODE_CHECKPOINT)
PL_MODE(struct PlRematState *, remat, PL_MODE_REMAT)
PL_MODE(const PlWatch *, watch, PL_MODE_WATCH)
PL_MODE(struct PlPacking *, packing, PL_MODE_PACKING)
PL_MODE(uint8_t, autocast, PL_MODE_AUTOCAST)
PL_MODE(uint32_t, forward, PL_MODE_FORWARD)
#undef PL_MODE

/* ---- copies of modes: all that are kept and put back later are one of these two ---- */

/* With it what the engine opens: what ops ask of the thread beside their inputs, the generator and the keys, which count
 * themselves (ambient_muted). */
typedef struct PlModes {
  PlScope scope;
  bool bookkeeping;
  uint8_t gpu, row_major;
  uint64_t key_floor, key_ceiling;
  struct PlBatch *batch;
  struct PlPacking *packing;
  struct PlGraph *trace;
} PlModes;

static inline PlScope pl_scope_now(void) {
  return (PlScope){.grad_off = pl_state.grad_off,
                   .autocast_cache = pl_state.autocast_cache,
                   .device = pl_state.device,
                   .autocast = pl_state.autocast,
                   .autocast_depth = pl_state.autocast_depth};
}

/* Kept casts stay: who ends a region frees them (pl_autocast_end). */
static inline void pl_scope_set(const PlScope *s) {
  pl_state.grad_off = s->grad_off;
  pl_state.autocast_cache = s->autocast_cache;
  pl_state.device = s->device;
  pl_set_autocast(s->autocast);
  pl_state.autocast_depth = s->autocast_depth;
}

/* Around changes of modes inside of which functions of the script may run; what begin returned ends it. */
static inline bool pl_changes_begin(void) {
  if (pl_state.changed) return false;
  pl_state.around = pl_scope_now();
  pl_state.around_packing = pl_state.packing;
  return pl_state.changed = true;
}
static inline void pl_changes_end(bool began) {
  if (began) pl_state.changed = false;
}

static inline PlModes pl_modes_now(void) {
  return (PlModes){.scope = pl_scope_now(),
                   .bookkeeping = pl_state.bookkeeping,
                   .gpu = pl_state.gpu,
                   .row_major = pl_state.row_major,
                   .key_floor = pl_state.key_floor,
                   .key_ceiling = pl_state.key_ceiling,
                   .batch = pl_state.batch,
                   .packing = pl_state.packing,
                   .trace = pl_state.trace};
}

static inline void pl_modes_set(const PlModes *m) {
  pl_scope_set(&m->scope);
  pl_state.bookkeeping = m->bookkeeping;
  pl_state.gpu = m->gpu;
  pl_state.row_major = m->row_major;
  pl_state.key_floor = m->key_floor;
  pl_state.key_ceiling = m->key_ceiling;
  pl_state.batch = m->batch;
  pl_set_packing(m->packing);
  pl_set_trace(m->trace);
}

/* The next random counters of the default generator: n of them belong to the caller. */
struct PlkRng pl_rng_take(uint64_t n);

#endif
