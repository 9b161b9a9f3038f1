/* SPDX-License-Identifier: MIT
 * See saved_tensors_hooks.h. A packed tensor leaves a shell behind: a zero expanded to its shape, which carries its entries, so that
 * what unpack returns takes the place of the saved tensor in the history, too. */
#include "engine/grad/saved_tensors_hooks.h"

#include <stdlib.h>

#include "engine/device/device.h"

struct PlPacked {
  PlPacking *by;
  void *value;
  PlTensor *shell;
};

void pl_packing_open(PlPacking *p) {
  p->refs = 1;
  p->outer = pl_packing_retain(pl_set_packing(p));
}

void pl_packing_use(PlPacking *p) {
  while (p && p->closed) p = p->outer;
  pl_set_packing(p);
}

void pl_packing_close(PlPacking *p) {
  p->closed = true;
  pl_packing_use(pl_state.packing);
  pl_packing_release(p);
}

PlPacking *pl_packing_retain(PlPacking *p) {
  if (p) p->refs++;
  return p;
}

void pl_packing_release(PlPacking *p) {
  for (PlPacking *outer; p && !--p->refs; p = outer) {
    outer = p->outer;
    if (p->drop) p->drop(p->ud);
    free(p);
  }
}

/* The functions run as if no scope were open around them. What they do is no work of a checkpoint's function: its second run saves at
 * other places, and packs nothing. */
typedef struct Outside {
  PlPacking *packing;
  struct PlCheckpoint *checkpoint;
  bool changes, grad;
} Outside;
static Outside go_outside(void) {
  Outside o = {.changes = pl_changes_begin()};
  o.packing = pl_packing_retain(pl_set_packing(NULL)); /* which they may close */
  o.checkpoint = pl_set_checkpoint(NULL);
  o.grad = pl_grad_enable(false);
  return o;
}
static void come_back(Outside o) {
  pl_packing_use(o.packing);
  pl_packing_release(o.packing);
  pl_set_checkpoint(o.checkpoint);
  pl_grad_enable(o.grad);
  pl_changes_end(o.changes);
}

static PlStatus make_shell(PlTensor **out, const PlTensor *t, const PlKey *except) {
  static const int64_t strides[PL_MAX_DIM];
  PlTensor *zero;
  PL_TRY(pl_tensor_full_on(&zero, t->a.device, (PlDtype)t->a.dtype, 0, NULL, 0));
  PlStatus s = pl_tensor_window(out, zero, t->a.ndim, t->a.shape, strides, zero->a.data);
  pl_tensor_release(zero);
  PL_TRY(s);
  s = pl_entries_copy(*out, t, except);
  if (s != PL_OK) pl_tensor_release(*out);
  return s;
}

PlStatus pl_packed_make(PlPacked **out, PlTensor *t, const PlKey *except) {
  PlPacking *by = pl_state.packing;
  *out = NULL;
  if (t->a.symbolic || t->a.weak || pl_is_batched(t)) return PL_OK; /* no memory of its own to pack */
  PlPacked *p = malloc(sizeof *p);
  if (!p) PL_FAIL(PL_ERR_OOM, "out of memory for a saved tensor");
  *p = (PlPacked){.by = by};
  const uint32_t version = t->storage->version;
  PlStatus s = make_shell(&p->shell, t, except);
  if (s != PL_OK) {
    free(p);
    return s;
  }
  by->refs++; /* before user code runs, which may close the scope */
  const Outside o = go_outside();
  s = by->pack(by->ud, t, &p->value);
  come_back(o);
  if (s == PL_OK && t->storage->version != version)
    s = pl_fail(PL_ERR_STATE, "saved_tensors: pack changed the tensor it was given, %s, in place; it must work on a copy",
                pl_desc_text(&t->a));
  if (s == PL_OK && p->value) {
    *out = p;
    return PL_OK;
  }
  pl_packed_free(p);
  return s;
}

static PlStatus unpack(PlPacking *by, void *value, PlTensor *shell, const char *name, PlTensor **out) {
  PlTensor *t = NULL;
  const PlArray *want = &shell->a;
  const Outside o = go_outside();
  PlStatus s = by->unpack(by->ud, value, shell, &t);
  come_back(o);
  PL_TRY(s);
  if (t->a.symbolic || t->a.weak || pl_is_batched(t))
    s = pl_fail(PL_ERR_STATE, "backward of %s: unpack returned %s, which has no memory of its own", name, pl_desc_text(&t->a));
  else if (!pl_shape_equal(&t->a, want) || t->a.dtype != want->dtype || t->a.device != want->device)
    s = pl_fail(PL_ERR_SHAPE,
                "backward of %s: unpack returned %s on %s for a saved %s on %s; it must have the same shape, dtype and device", name,
                pl_desc_text(&t->a), pl_device_name(t->a.device), pl_desc_text(want), pl_device_name(want->device));
  PlTensor *alias = NULL;
  if (s == PL_OK) s = pl_tensor_alias(&alias, t);
  pl_tensor_release(t);
  if (s == PL_OK) s = pl_entries_copy(alias, shell, NULL);
  if (s != PL_OK) {
    pl_tensor_release(alias);
    return s;
  }
  *out = alias;
  return PL_OK;
}

/* User code may free p, by finalizing the key: what is needed afterwards is held. */
PlStatus pl_packed_get(const PlPacked *p, const char *name, PlTensor **out) {
  PlPacking *by = p->by;
  PlTensor *shell = pl_retain(p->shell);
  by->refs++;
  PlStatus s = unpack(by, p->value, shell, name, out);
  pl_tensor_release(shell);
  pl_packing_release(by);
  return s;
}

PlTensor *pl_packed_shell(const PlPacked *p) { return p->shell; }

void pl_packed_free(PlPacked *p) {
  if (!p) return;
  if (p->value) p->by->discard(p->by->ud, p->value);
  pl_packing_release(p->by);
  pl_tensor_release(p->shell);
  free(p);
}
