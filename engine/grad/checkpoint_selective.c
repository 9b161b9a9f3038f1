/* SPDX-License-Identifier: MIT
 * Results that a checkpoint keeps although its function makes them again: of the ops that PlRerun.keeps asks for, and values
 * that the script names. The second run takes them where forward had computed them. Kernels are counted, inside other ops as
 * well: the n-th of forward is the n-th of the second run, since both do the same. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/checkpoint_internal.h"
#include "engine/tensor/layout.h"

static PlCkKept *kept_at(const PlCheckpoint *c, size_t kernel) {
  for (size_t a = 0, b = c->nkept; a < b;) {
    const size_t m = a + (b - a) / 2;
    if (c->kept[m].kernel == kernel) return &c->kept[m];
    if (c->kept[m].kernel < kernel) a = m + 1;
    else b = m;
  }
  return NULL;
}

static void let_go(PlCkKept *k) {
  for (int o = 0; o < PL_MAX_OUT; o++) {
    if (k->out[o]) k->out[o]->storage->kept = false;
    pl_tensor_release(k->out[o]);
  }
}

static PlStatus keep(PlCheckpoint *c, size_t kernel, uint64_t draws, PlTensor *const *out, int nout) {
  PlCkKept k = {.kernel = kernel, .draws = draws};
  PlStatus s = pl_ck_grow(&c->kept, c->nkept, &c->kept_cap, sizeof *c->kept);
  for (int o = 0; o < nout && s == PL_OK; o++) {
    if (!out[o]) continue;
    s = pl_tensor_alias(&k.out[o], out[o]);
    k.version[o] = out[o]->storage->version;
    if (s == PL_OK) out[o]->storage->kept = true;
  }
  if (s != PL_OK) {
    let_go(&k);
    return s;
  }
  size_t at = c->nkept++;
  for (; at > 0 && c->kept[at - 1].kernel > kernel; at--) c->kept[at] = c->kept[at - 1]; /* named later than others were made */
  c->kept[at] = k;
  return PL_OK;
}

void pl_ck_kept_cut(PlCheckpoint *c, size_t kernel) {
  while (!c->replaying && c->nkept && c->kept[c->nkept - 1].kernel >= kernel) let_go(&c->kept[--c->nkept]);
}

void pl_ck_kept_free(PlCheckpoint *c) {
  for (size_t i = 0; i < c->nkept; i++) let_go(&c->kept[i]);
  free(c->kept);
}

/* ---- ops ------------------------------------------------------------------------------------------------------ */

/* Are the kept values as they were, and of the types that the op makes now? */
static bool fits(const PlCkKept *k, const PlOp *op, const PlDesc *desc) {
  for (int o = 0; o < op->nout; o++) {
    const PlTensor *t = k->out[o];
    if ((desc[o].dtype == PL_NDTYPE) != (t == NULL)) return false;
    if (!t) continue;
    const PlArray want = {.shape = desc[o].shape, .ndim = desc[o].ndim, .dtype = desc[o].dtype};
    if (t->storage->version != k->version[o] || t->a.dtype != desc[o].dtype || !pl_shape_equal(&t->a, &want)) return false;
  }
  return true;
}

static PlStatus hand_out(PlCkKept *k, PlTensor **out, int nout) {
  PlStatus s = PL_OK;
  for (int o = 0; o < nout && s == PL_OK; o++) {
    if (!k->out[o]) continue;
    s = k->overwritten ? pl_tensor_copy_as(&out[o], PL_STRIDED, k->out[o]) : pl_tensor_alias(&out[o], k->out[o]);
    if (s != PL_OK) break;
    PlStorage *st = out[o]->storage;
    if (!k->overwritten) k->stamp[o] = st->stamp;
    st->stamp = pl_clock; /* as if the op had made it now */
  }
  if (s != PL_OK) pl_release_all(out, nout);
  return s;
}

PlStatus pl_checkpoint_given(const PlOp *op, const PlDesc *desc, PlTensor **out, bool *given) {
  *given = false;
  for (PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer) {
    const size_t kernel = c->kernel++;
    c->offset = pl_state.offset;
    PlCkKept *k = c->replaying && !*given ? kept_at(c, kernel) : NULL;
    if (!k || !fits(k, op, desc)) continue;
    PL_TRY(hand_out(k, out, op->nout));
    k->given = true;
    pl_state.offset += k->draws;
    *given = true;
  }
  return PL_OK;
}

PlStatus pl_checkpoint_result(const PlOp *op, const PlAttrs *attrs, const PlArray *const *in, int nin, PlTensor *const *out) {
  PlCheckpoint *c = pl_state.checkpoint;
  c->made = op->nout == 1 && out[0] ? out[0]->storage : NULL;
  c->made_draws = pl_state.offset - c->offset;
  if (c->replaying || !c->rerun.keeps) return PL_OK;
  const PlCkMade made = {op, attrs, in, nin, out};
  bool yes = false;
  pl_set_checkpoint(NULL); /* what the answer takes is no work of the function's */
  PlStatus s = c->rerun.keeps(c->rerun.ud, &made, &yes);
  pl_set_checkpoint(c);
  if (s == PL_OK && yes) s = keep(c, c->kernel - 1, c->made_draws, out, op->nout);
  return s;
}

/* Before a write to memory made inside: what is kept of it becomes a copy. */
PlStatus pl_ck_part_kept(PlCheckpoint *c, PlStorage *st) {
  for (size_t i = 0; i < c->nkept; i++) {
    PlCkKept *k = &c->kept[i];
    for (int o = 0; o < PL_MAX_OUT; o++) {
      PlTensor *copy;
      if (!k->out[o] || k->out[o]->storage != st) continue;
      PL_TRY(pl_tensor_copy_as(&copy, PL_STRIDED, k->out[o])); /* which lies as it did: the two runs are compared in that, too */
      pl_tensor_release(k->out[o]);
      k->out[o] = copy;
      k->version[o] = copy->storage->version;
      k->overwritten = true;
    }
  }
  st->kept = false;
  return PL_OK;
}

void pl_ck_kept_back(PlCheckpoint *c) {
  for (size_t i = 0; i < c->nkept; i++) {
    PlCkKept *k = &c->kept[i];
    for (int o = 0; o < PL_MAX_OUT && k->given && !k->overwritten; o++)
      if (k->out[o]) k->out[o]->storage->stamp = k->stamp[o];
    k->given = false;
  }
}

/* ---- named values ---------------------------------------------------------------------------------------------- */

PlStatus pl_ck_note_made(PlCheckpoint *c, const PlTensor *t) {
  PL_TRY(pl_ck_grow(&c->traces, c->ntraces, &c->traces_cap, sizeof *c->traces));
  c->traces[c->ntraces++] = (PlCkTrace){.stamp = t->storage->stamp, .kernel = c->kernel - 1, .draws = c->made_draws};
  return PL_OK;
}

PlStatus pl_checkpoint_keep_value(PlTensor *t) {
  PlCheckpoint *c = pl_state.checkpoint;
  if (!pl_watched() || c->replaying) return PL_OK;
  PlTensor *real = pl_behind(t), *whole = real->base ? real->base : real;
  const PlStorage *st = whole->storage;
  if (!pl_ck_inside(c, st) || st->kept || whole->a.data != st->data ||
      whole->a.numel * (int64_t)pl_dtype_size((PlDtype)whole->a.dtype) != (int64_t)st->nbytes)
    return PL_OK;
  for (size_t a = 0, b = c->ntraces; a < b;) { /* by stamp: which kernel made it */
    const size_t m = a + (b - a) / 2;
    if (c->traces[m].stamp == st->stamp) return keep(c, c->traces[m].kernel, c->traces[m].draws, &whole, 1);
    if (c->traces[m].stamp < st->stamp) a = m + 1;
    else b = m;
  }
  return PL_OK;
}
