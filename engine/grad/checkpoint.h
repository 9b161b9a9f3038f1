/* SPDX-License-Identifier: MIT
 * A stretch of ops whose saved values are dropped and computed again when a backward needs them. Forward runs as it would
 * alone and records the same nodes; what they would save of values made inside is left out. The first backward that needs
 * one of those runs the function again: every op is compared with forward's, and the nodes that forward recorded get what
 * they lack. See docs/design/checkpointing.md. */
#ifndef PL_ENGINE_GRAD_CHECKPOINT_H
#define PL_ENGINE_GRAD_CHECKPOINT_H

#include "engine/grad/node.h"

typedef struct PlCheckpoint PlCheckpoint;
struct PlGraph;

/* The function, in the embedding program: runs again on args, which represent those of the first run; drop: at the end. */
typedef struct PlCkMade { /* what a kernel has computed */
  const PlOp *op;
  const PlAttrs *attrs;
  const PlArray *const *in;
  int nin;
  PlTensor *const *out;
} PlCkMade;
typedef struct PlRerun {
  PlStatus (*run)(void *ud, PlTensor *const *args, int nargs);
  void (*drop)(void *ud);
  /* In forward: are these results to be kept, so that the second run need not compute them? NULL: none are. */
  PlStatus (*keeps)(void *ud, const PlCkMade *made, bool *yes);
  bool names; /* pl_checkpoint_keep_value may be called */
  void *ud;
  int kept; /* for the embedding program: what of its own it keeps alive */
} PlRerun;

/* Begins one, which takes rerun (whatever is returned: after a failure, and where *out is NULL, it was dropped). *out stays
 * NULL where the ops are to run as they are: nothing records, a graph is traced, a batch runs, or a checkpoint around this
 * one drops the values already. args are what the function gets. */
PlStatus pl_checkpoint_begin(PlCheckpoint **out, const PlRerun *rerun, PlTensor *const *args, int nargs);
void pl_checkpoint_end(PlCheckpoint *c); /* the function has returned or failed; takes NULL */
/* The recomputation that runs has all that it is for, and has ended its function by an error, which is to pass. */
bool pl_checkpoint_stopped(void);

/* For tracing cycles: how many hold it, what it keeps of the embedding program, and every tensor and checkpoint it holds. */
uint32_t pl_checkpoint_refs(const PlCheckpoint *c);
int pl_checkpoint_kept(const PlCheckpoint *c);
void pl_checkpoint_each(const PlCheckpoint *c, void (*tensor)(void *ctx, PlTensor *t), void (*around)(void *ctx, PlCheckpoint *c),
                        void *ctx);

/* ---- what ops tell it, where pl_state.checkpoint is set --------------------------------------------------------- */

static inline bool pl_watched(void) { return pl_state.checkpoint && !pl_state.trace; }

/* Around one op: name, what else it was called with (size bytes at attrs), whether it draws random numbers, what it reads,
 * what it writes or NULL. After a success leave or failed follows. */
PlStatus pl_checkpoint_enter(const char *name, const void *attrs, size_t size, bool draws, PlTensor *const *in, int nin,
                             PlTensor *const *written, int nwritten);
void pl_checkpoint_leave(PlTensor *const *out, int nout, PlTensor *const *written, int nwritten);
void pl_checkpoint_failed(void); /* in place of leave: the op is as if it had not been called, it may be called again */
/* The same around a compiled graph. */
PlStatus pl_checkpoint_enter_graph(const struct PlGraph *f, PlTensor *const *in);
void pl_checkpoint_leave_graph(const struct PlGraph *f, PlTensor *const *out); /* out NULL: it failed */
/* Before and after a kernel computes out, which no memory has yet: *given: a second run has the results from forward. */
PlStatus pl_checkpoint_given(const PlOp *op, const PlDesc *desc, PlTensor **out, bool *given);
PlStatus pl_checkpoint_result(const PlOp *op, const PlAttrs *attrs, const PlArray *const *in, int nin, PlTensor *const *out);
/* t, which the function has computed, is kept, if one kernel made it. */
PlStatus pl_checkpoint_keep_value(PlTensor *t);
/* t's memory is about to change; it has changed in a way that no op knows of. */
PlStatus pl_checkpoint_writes(const char *op, PlTensor *t);
void pl_checkpoint_wrote(PlTensor *t);
/* t's history is about to be rewritten. */
PlStatus pl_checkpoint_rewrites(const char *op, const PlTensor *t);
/* Whether t requires a gradient is about to change: the second run, which may end before the function would turn it back, does. */
PlStatus pl_checkpoint_switches(PlTensor *t);
/* t's .grad is about to change. */
PlStatus pl_checkpoint_sets_grad(const PlTensor *t);
/* Is this memory from outside, and unchanged so far? Then its history is nothing of the function's. */
bool pl_checkpoint_foreign(const PlStorage *st);
/* A cast that the region of mixed precision keeps: noted where it was made outside, found again in the second run. */
PlStatus pl_checkpoint_uses_cast(PlTensor *leaf, PlTensor *cast);
PlTensor *pl_checkpoint_cast(const PlTensor *leaf, PlDtype to);

/* ---- what recording and walks tell it ------------------------------------------------------------------------------ */

/* *out: the node (retained) that forward recorded for this call of `name` under the key, where the function runs again;
 * NULL: record one. */
PlStatus pl_checkpoint_node(PlNode **out, PlKey *key, const char *name, PlTensor *const *in, int nin);
PlStatus pl_checkpoint_made(PlNode *n); /* n was made: its checkpoint notes it */
/* Is slot i of a checkpoint's node to hold t? */
bool pl_checkpoint_keeps(PlNode *n, uint32_t i, const PlTensor *t);
bool pl_checkpoint_keeps_rule(PlNode *n);
/* Runs the function again, because of n: whatever the running walk needs is there then. */
PlStatus pl_checkpoint_restore(PlNode *n);
void pl_checkpoint_drop_again(PlNode *n); /* n has run in a walk after which there may be others */
void pl_checkpoint_forget(PlNode *n);     /* n is cleared */
/* Has n, which forward made, been met in the running recomputation? Then its hooks are there. */
bool pl_checkpoint_repeats(const PlNode *n);

#endif
