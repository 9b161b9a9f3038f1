/* SPDX-License-Identifier: MIT
 * Bringing values back: their recipes run again, with the same kernels on the same bytes and the same random numbers. What
 * a recipe needs is brought first, by a list of open recipes rather than by recursion; the inputs of an open one are
 * pinned, so that bringing one does not send another away. */
#include <stdlib.h>
#include <string.h>

#include "engine/remat/remat_internal.h"
#include "engine/tensor/layout.h"
#include "kernels/gemm.h"

/* ---- one recipe --------------------------------------------------------------------------------------------- */

static PlStatus make_input(const Read *r, PlTensor **out) {
  const int64_t *strides = r->dims + r->ndim;
  if (r->of) {
    PlStorage *s = r->of->storage;
    PlArray type = {.data = (char *)s->data + r->offset,
                    .shape = r->dims,
                    .strides = strides,
                    .dtype = r->dtype,
                    .ndim = r->ndim,
                    .numel = 1,
                    .weak = r->weak};
    for (int d = 0; d < r->ndim; d++) type.numel *= r->dims[d];
    s->refs++;
    return pl_tensor_handle(out, &type, s); /* takes the reference */
  }
  const int64_t n = r->nfew;
  PlTensor *few;
  PL_TRY(pl_tensor_from(&few, PL_U8, 1, &n, r->few));
  few->a.dtype = r->dtype;
  PlStatus s = pl_tensor_window(out, few, r->ndim, r->dims, strides, (char *)few->a.data + r->offset);
  pl_tensor_release(few);
  if (s == PL_OK) (*out)->a.weak = r->weak;
  return s;
}

/* The value takes the memory of t, which nobody else has. */
static void adopt(PlValue *v, PlTensor *t) {
  PlRematState *rs = remat();
  PlStorage *from = t->storage;
  if (v->storage) {
    remat_move(v, from->data);
    from->owns = PL_OWNS_NOTHING;
    v->evicted = false;
    rs->stats.evicted--;
    rs->stats.evicted_bytes -= (int64_t)v->bytes;
  } else {
    v->storage = from;
    v->held = true;
    v->was = from->owns;
    from->value = v;
    from->owns = PL_OWNS_REMAT;
    from->refs++;
    rs->stats.dead--;
  }
  remat_lru_add(v);
  remat_touch(v);
}

static PlStatus compute(const Recipe *r, PlTensor **in, const PlArray **arr, PlTensor **out) {
  PlStatus s = PL_OK;
  for (int o = 0; o < r->op->nout && s == PL_OK; o++) {
    const Result *x = &r->out[o];
    if (!x->given) continue;
    s = pl_tensor_empty(&out[o], (PlDtype)x->dtype, x->ndim, x->shape);
    if (s == PL_OK) pl_layout_stride(out[o], x->shape + x->ndim);
  }
  for (int i = 0; i < r->nin && s == PL_OK; i++) {
    if (r->in[i].given) s = make_input(&r->in[i], &in[i]);
    arr[i] = in[i] ? &in[i]->a : NULL;
  }
  if (s != PL_OK) return s;
  PlCall c;
  c.op = r->op;
  c.attrs = r->attrs ? r->attrs : &pl_no_attrs;
  c.nin = r->nin;
  c.in = in;
  c.arr = arr;
  c.layout = 0;
  c.device = PL_CPU;
  return pl_call_run(&c, out);
}

/* What else a kernel depends on is as it was; afterwards it is as it is now. */
static PlStatus replay(const Recipe *r) {
  PlRematState *rs = remat();
  PlTensor *few[PL_MAX_IN], **in = few, *out[PL_MAX_OUT] = {NULL};
  const PlArray *few_arr[PL_MAX_IN], **arr = few_arr;
  if (r->nin > PL_MAX_IN) {
    in = malloc((size_t)r->nin * (sizeof *in + sizeof *arr));
    if (!in) return pl_call_no_memory(r->op);
    arr = (const PlArray **)(void *)(in + r->nin);
  }
  memset(in, 0, (size_t)r->nin * sizeof *in);
  const PlDrawn now = {pl_state.seed, pl_state.stream, pl_state.offset};
  const PlkPrecision precision = plk_matmul_precision();
  const PlkPrecision then = (PlkPrecision)r->precision;
  const bool seeded = (r->op->flags & PL_F_SEEDED) != 0;
  if (precision != then) plk_set_matmul_precision(then);
  if (seeded) pl_state.seed = r->drawn.seed, pl_state.stream = r->drawn.stream, pl_state.offset = r->drawn.offset;
  rs->replaying++;
  PlStatus s = compute(r, in, arr, out);
  rs->replaying--;
  if (seeded) pl_state.seed = now.seed, pl_state.stream = now.stream, pl_state.offset = now.offset;
  if (precision != then) plk_set_matmul_precision(precision);
  pl_release_all(in, r->nin);
  if (in != few) free(in);
  if (s == PL_OK) {
    rs->stats.recomputed++;
    rs->clock += r->cost;
    for (int o = 0; o < r->op->nout; o++) {
      PlValue *v = r->out[o].value;
      if (v && !is_resident(v) && out[o]) adopt(v, out[o]);
    }
  }
  pl_release_all(out, r->op->nout);
  return s;
}

/* ---- all that it needs -------------------------------------------------------------------------------------- */

typedef struct Open {
  PlValue *v;
  Read *awaited; /* the input that is being brought */
  bool begun;
} Open;

typedef struct List {
  Open *at, few[16];
  size_t n, room;
} List;

static PlStatus push(List *l, PlValue *v) {
  if (l->n == l->room) {
    Open *m = malloc(2 * l->room * sizeof *m);
    if (!m) PL_FAIL(PL_ERR_OOM, "out of memory for computing a tensor again");
    memcpy(m, l->at, l->n * sizeof *m);
    if (l->at != l->few) free(l->at);
    l->at = m;
    l->room *= 2;
  }
  l->at[l->n++] = (Open){.v = v};
  return PL_OK;
}

static void pin_input(Read *in) {
  if (!in->of || in->pinned) return;
  in->pinned = true;
  in->of->pins++;
}
static void unpin_inputs(Recipe *r) {
  for (int i = 0; i < r->nin; i++) {
    if (!r->in[i].pinned) continue;
    r->in[i].pinned = false;
    r->in[i].of->pins--;
  }
}

/* The missing input that takes most to compute. Those that are there are not pinned meanwhile: they are easier to bring
 * again than to do without their memory. */
static Read *hardest(const Recipe *r) {
  Read *hard = NULL;
  double most = 0;
  for (int i = 0; i < r->nin; i++) {
    Read *in = &r->in[i];
    if (!in->of || is_resident(in->of)) continue;
    const double cost = remat_estimate(in->of);
    if (hard && cost <= most) continue;
    hard = in;
    most = cost;
  }
  return hard;
}

/* One look at the top of the list. */
static PlStatus advance(List *l) {
  Open *top = &l->at[l->n - 1];
  PlValue *v = top->v;
  Recipe *r = v->recipe;
  if (is_resident(v)) { /* a result of the same recipe may have brought it */
    if (top->begun) unpin_inputs(r);
    l->n--;
    return PL_OK;
  }
  if (!r) PL_FAIL(PL_ERR_STATE, "a tensor that was evicted has no recipe"); /* our own mistake, if ever */
  if (top->awaited) pin_input(top->awaited);                                /* not to be lost to the ones that follow */
  top->begun = true;
  top->awaited = hardest(r);
  if (top->awaited) return push(l, top->awaited->of);
  for (int i = 0; i < r->nin; i++) pin_input(&r->in[i]);
  return replay(r);
}

PlStatus remat_bring(PlValue *v) {
  List l = {.n = 0, .room = sizeof l.few / sizeof *l.few};
  l.at = l.few;
  v->pins++;
  PlStatus s = push(&l, v);
  while (s == PL_OK && l.n) s = advance(&l);
  while (l.n) { /* after a failure */
    const Open *top = &l.at[--l.n];
    if (top->begun) unpin_inputs(top->v->recipe);
  }
  v->pins--;
  if (l.at != l.few) free(l.at);
  return s;
}

PlStatus pl_remat_bring(PlStorage *s) {
  PlValue *v = s->value;
  if (!v->evicted) {
    remat_touch(v);
    return PL_OK;
  }
  return remat_bring(v);
}

/* ---- pins ------------------------------------------------------------------------------------------------------ */

PlStatus pl_remat_pin(PlPins *p, const char *name, PlTensor *const *t, int n) {
  p->n = 0;
  p->at = p->few;
  p->room = PL_MAX_IN;
  if (!remat()->replaying) remat()->op = name;
  if (n > p->room) {
    p->at = malloc((size_t)n * sizeof *p->at);
    if (!p->at) PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
    p->room = n;
  }
  PlStatus s = PL_OK;
  if (PL_UNLIKELY(remat()->always) && !remat()->replaying) pl_remat_evict_all(true);
  for (int i = 0; i < n; i++) {
    if (!t[i] || t[i]->storage->owns != PL_OWNS_REMAT) continue;
    PlValue *v = t[i]->storage->value;
    v->pins++;
    p->at[p->n++] = v;
  }
  for (int k = 0; k < p->n && s == PL_OK; k++) {
    s = p->at[k]->evicted ? remat_bring(p->at[k]) : PL_OK;
    remat_touch(p->at[k]);
  }
  if (s != PL_OK) pl_remat_unpin(p);
  return s;
}

void pl_remat_unpin(PlPins *p) {
  for (int k = 0; k < p->n; k++) {
    p->at[k]->pins--;
    remat_check(p->at[k]);
  }
  if (p->at != p->few) free(p->at);
  p->n = 0;
  p->at = p->few;
}
