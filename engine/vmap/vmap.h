/* SPDX-License-Identifier: MIT
 * Many calls at once. Inside a batch of n, a handle may represent n tensors of one shape: its `full` handle holds
 * them with a leading dimension of n. Ops see the shape of one; the engine computes all n, by the op's batching rule
 * (PlOp.batch) or, where there is none, one after the other. What keys made before the batch record are the ops on
 * full handles; keys made inside it record the ops as they were called. See docs/design/batching.md. */
#ifndef PL_ENGINE_VMAP_VMAP_H
#define PL_ENGINE_VMAP_VMAP_H

#include "engine/call/thread_state.h"
#include "engine/tensor/hooks.h"

typedef enum PlRandomness {
  PL_RANDOM_ERROR,    /* drawing random numbers is an error */
  PL_RANDOM_SAME,     /* every element draws the same numbers */
  PL_RANDOM_DIFFERENT /* every element draws its own */
} PlRandomness;

/* A running batch; they nest, the innermost is pl_state.batch. */
typedef struct PlBatch {
  int64_t size;
  uint64_t born; /* on the clock of keys: keys with a larger number were made inside */
  PlRandomness random;
  uint64_t owner; /* the embedding program's number of the coroutine that opened it; 0: it is around all of them */
  struct PlBatch *outer;
  struct PlBatch *next; /* of all that are open, newest first */
} PlBatch;

PlStatus pl_batch_open(PlBatch **out, int64_t size, PlRandomness random);
void pl_batch_close(PlBatch *b); /* wherever in the nest it is, or in that of another coroutine */
/* Those with owners for which runs says so are open now, and those without. */
void pl_batches_turn(bool (*runs)(void *ud, uint64_t owner), void *ud);
/* full[n, …] → a handle that represents its n elements. */
PlStatus pl_batch_wrap(PlTensor **out, const PlBatch *b, PlTensor *full);
/* The other way; a tensor that is the same for all n is repeated (expanded). */
PlStatus pl_batch_unwrap(PlTensor **out, const PlBatch *b, PlTensor *t);
/* `view`, fresh, is what a view op made of t: both are of one family, if it has t's memory. */
void pl_batch_join(PlTensor *view, PlTensor *t);
/* ---- from pl_apply ---- */
static inline bool pl_any_batched(PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++)
    if (in[i] && pl_is_batched(in[i])) return true;
  return false;
}
/* op on inputs some of which are batched; attributes are normalized, inputs promoted. desc: what infer said, NULL for
 * an op whose infer would read the values of a batched input. */
PlStatus pl_batch_compute(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, const PlDesc *desc, PlTensor **out);
/* Has a random op inside of b, the innermost batch, results for each of b's elements? Else one draw is theirs all, and the
 * batches around are asked in turn. */
bool pl_batch_draws(const PlBatch *b, PlTensor *const *in, int nin);
/* It has. */
PlStatus pl_batch_draw(PlBatch *b, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, const PlDesc *desc, PlTensor **out);
/* An error where b allows no random numbers. */
PlStatus pl_batch_random_asks(const PlOp *op, const PlBatch *b);
/* out := op(in…), an op that changes `out`. Where keys made inside the batch track it, it takes the history of the
 * result, and so do its family's tensors. */
PlStatus pl_batch_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *out);
/* An op that changes in[0]; in[0] must be batched. */
PlStatus pl_batch_mutate(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs);
/* Before a random op writes into y: an error unless the elements of all running batches that share y are to draw the same numbers. */
PlStatus pl_batch_random_into(const PlOp *op, const PlTensor *y);
/* While an op on batched inputs is recorded as it was called, only keys made inside the batch record: sets
 * pl_state.key_floor, returns what it was. */
uint64_t pl_batch_enter(PlTensor *const *in, int nin);

/* ---- for batching rules ---- */
/* One call. A rule sets out[o] to [n, …] for every output (the sizes behind n are checked and reshaped by the
 * caller), or says that it does not know this case: declined. Tensors made by the pl_b_ functions live as long as
 * the call; errors stick in `status` and turn what follows into NULL. */
struct PlBatchCall {
  const PlOp *op;
  const PlAttrs *attrs;
  int nin;
  PlTensor *const *in; /* as called */
  PlTensor **full;     /* [n, …] of the batched inputs, NULL for the others */
  int64_t n;
  const PlDesc *desc; /* of one element's outputs */
  PlTensor *out[PL_MAX_OUT];
  bool declined;
  bool plain; /* the outputs are the same for all elements */
  PlStatus status;
  PlTensor **made;
  int nmade, cap;
};

PlTensor *pl_b_op(PlBatchCall *c, const PlOp *op, int nin, PlTensor *const *in, const PlAttrs *attrs);
void pl_b_ops(PlBatchCall *c, const PlOp *op, int nin, PlTensor *const *in, const PlAttrs *attrs, PlTensor **outs);
PlTensor *pl_b_reshape(PlBatchCall *c, PlTensor *t, int ndim, const int64_t *shape);
/* [n, 1 …, sizes of input i] with `rank` dims behind n; an input that is not batched as it is. */
PlTensor *pl_b_ranked(PlBatchCall *c, int i, int rank);
/* [n, sizes of input i], repeated where it is not batched; NULL stays NULL. */
PlTensor *pl_b_each(PlBatchCall *c, int i);
/* Dim `from` moves to place `to`. */
PlTensor *pl_b_move(PlBatchCall *c, PlTensor *t, int from, int to);
PlTensor *pl_b_take(PlBatchCall *c, PlTensor *t); /* t is released with the call */
PlTensor *pl_b_number(PlBatchCall *c, double v);
PlTensor *pl_b_two(PlBatchCall *c, const PlOp *op, PlTensor *a, PlTensor *b);
/* Dims `from` and `from`+1 become one. */
PlTensor *pl_b_merge(PlBatchCall *c, PlTensor *t, int from);
PlTensor *pl_b_sum(PlBatchCall *c, PlTensor *t, int from, int to); /* over dims from … to-1, which go */

#endif
