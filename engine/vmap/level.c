/* SPDX-License-Identifier: MIT
 * Batches and batched handles: opening, closing, wrapping, unwrapping. See vmap.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/node.h"
#include "engine/ops/names.h"
#include "engine/tensor/alloc.h"
#include "engine/vmap/vmap.h"

PlStatus pl_batch_open(PlBatch **out, int64_t size, PlRandomness random) {
  PlBatch *b = malloc(sizeof *b);
  if (!b) PL_FAIL(PL_ERR_OOM, "vmap: out of memory");
  *b = (PlBatch){.size = size, .born = ++pl_state.key_seq, .random = random, .outer = pl_state.batch, .next = pl_state.batches};
  pl_state.batch = pl_state.batches = b;
  pl_set_batch_busy(pl_state.batch_busy + 1);
  *out = b;
  return PL_OK;
}

void pl_batch_close(PlBatch *b) {
  for (PlBatch **at = &pl_state.batches; *at;) {
    if ((*at)->outer == b) (*at)->outer = b->outer;
    if (*at == b) *at = b->next;
    else at = &(*at)->next;
  }
  if (pl_state.batch == b) pl_state.batch = b->outer;
  pl_set_batch_busy(pl_state.batch_busy - 1);
  free(b);
}

void pl_batches_turn(bool (*runs)(void *ud, uint64_t owner), void *ud) {
  bool owned = false;
  for (const PlBatch *b = pl_state.batches; b; b = b->next) owned |= b->owner != 0;
  if (!owned) return;
  PlBatch **at = &pl_state.batch;
  for (PlBatch *b = pl_state.batches; b; b = b->next)
    if (!b->owner || runs(ud, b->owner)) {
      *at = b;
      at = &b->outer;
    }
  *at = NULL;
}

/* A handle on full's memory without its first dimension. Of a graph's value it is no value itself: ops on it become nodes
 * on the full ones. */
static PlStatus handle(PlTensor **out, uint64_t born, PlTensor *full) {
  PlTensor *t;
  PL_TRY(pl_tensor_window_extra(&t, full, full->a.ndim - 1, full->a.shape + 1, full->a.strides + 1, full->a.data, sizeof(PlBatched)));
  t->flags |= PL_T_BATCHED;
  t->a.symbolic = 0;
  *pl_batched(t) = (PlBatched){.full = pl_retain(full), .born = born};
  pl_set_batch_busy(pl_state.batch_busy + 1);
  *out = t;
  return PL_OK;
}

PlStatus pl_batch_wrap(PlTensor **out, const PlBatch *b, PlTensor *full) {
  if (full->a.ndim == 0 || full->a.shape[0] != b->size)
    PL_FAIL(PL_ERR_SHAPE, "vmap: %s does not have %lld elements in the mapped dimension", pl_desc_text(&full->a), (long long)b->size);
  return handle(out, b->born, full);
}

PlStatus pl_batch_unwrap(PlTensor **out, const PlBatch *b, PlTensor *t) {
  if (pl_is_batched(t) && pl_batched(t)->born == b->born) {
    *out = pl_retain(pl_batched(t)->full);
    return PL_OK;
  }
  if (pl_is_batched(t) && pl_batched(t)->born > b->born)
    PL_FAIL(PL_ERR_STATE, "vmap: %s belongs to an inner vmap that has ended; return it from the function instead", pl_desc_text(&t->a));
  int64_t sizes[PL_MAX_DIM + 1];
  if (t->a.ndim == PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "vmap: a tensor has at most %d dimensions", PL_MAX_DIM);
  sizes[0] = b->size;
  memcpy(sizes + 1, t->a.shape, t->a.ndim * sizeof *sizes);
  PlAttrs a;
  pl_attrs_init(&pl_op_expand, &a);
  PL_TRY(pl_attrs_list(&a, 0, t->a.ndim + 1, sizes));
  return pl_apply(&pl_op_expand, &t, 1, &a, out);
}

PlStatus pl_batch_alias(PlTensor **out, PlTensor *t) { return handle(out, pl_batched(t)->born, pl_batched(t)->full); }

PlStatus pl_batch_detach(PlTensor **out, PlTensor *t) {
  PlTensor *full;
  PL_TRY(pl_tensor_detach(&full, pl_batched(t)->full));
  PlStatus s = handle(out, pl_batched(t)->born, full);
  pl_tensor_release(full);
  return s;
}

PlStatus pl_batch_window(PlTensor **out, PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides) {
  PlTensor *full = pl_batched(t)->full, *w;
  int64_t sizes[PL_MAX_DIM + 1], steps[PL_MAX_DIM + 1];
  sizes[0] = full->a.shape[0];
  steps[0] = full->a.strides[0];
  memcpy(sizes + 1, shape, (size_t)ndim * sizeof *sizes);
  memcpy(steps + 1, strides, (size_t)ndim * sizeof *steps);
  if (pl_is_batched(full)) PL_TRY(pl_batch_window(&w, full, ndim + 1, sizes, steps));
  else PL_TRY(pl_tensor_window(&w, full, ndim + 1, sizes, steps, full->a.data));
  PlStatus s = handle(out, pl_batched(t)->born, w);
  pl_tensor_release(w);
  return s;
}

/* Only where the batch lies in both alike: what a view's element is of the base's, all of them are. */
void pl_batch_join(PlTensor *view, PlTensor *t) {
  if (!pl_is_batched(view) || !pl_is_batched(t) || pl_batched(view)->born != pl_batched(t)->born) return;
  const PlArray *v = &pl_batched(view)->full->a, *x = &pl_batched(t)->full->a;
  if (view->storage == t->storage && (v->strides[0] == x->strides[0] || v->shape[0] <= 1)) pl_tensor_join(view, t);
}

void pl_batch_drop(PlTensor *t) {
  pl_tensor_release(pl_batched(t)->full);
  pl_set_batch_busy(pl_state.batch_busy - 1);
}

uint64_t pl_batch_enter(PlTensor *const *in, int nin) {
  uint64_t was = pl_state.key_floor, born = 0;
  for (int i = 0; i < nin; i++)
    if (in[i] && pl_is_batched(in[i]) && pl_batched(in[i])->born > born) born = pl_batched(in[i])->born;
  pl_state.key_floor = born;
  return was;
}
