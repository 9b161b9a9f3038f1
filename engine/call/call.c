/* SPDX-License-Identifier: MIT
 * The steps of one op call (call.h): count arguments, resolve attributes, promote dtypes, infer results, allocate them,
 * run the kernel. apply.c, apply_into.c and graphs put them together. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/ops/names.h"
#include "engine/remat/remat.h"
#include "engine/tensor/layout.h"

enum { FEW = PL_MAX_IN };

typedef PlCall Call;

const PlAttrs pl_no_attrs;

PlStatus pl_call_no_memory(const PlOp *op) { PL_FAIL(PL_ERR_OOM, "%s: out of memory", op->name); }

/* ---- promotion ----------------------------------------------------------------------------------------- */

/* PyTorch's rule: tensors with dimensions decide within the highest class among them; 0-d tensors count only
 * when their class is higher, numbers only when theirs is higher still. */
static PlDtype promoted(const PlOp *op, PlTensor *const *in, int nin) {
  int best = -1;
  PlDtype by_rank[3] = {PL_NDTYPE, PL_NDTYPE, PL_NDTYPE};
  for (int i = 0; i < nin; i++) {
    if (!in[i] || (op->promote_mask && i < 8 && !((op->promote_mask >> i) & 1))) continue;
    int rank = in[i]->a.weak ? 0 : in[i]->a.ndim == 0 ? 1 : 2;
    PlDtype d = (PlDtype)in[i]->a.dtype;
    if (rank == 0) d = pl_is_float(d) ? pl_default_float() : d;
    by_rank[rank] = by_rank[rank] == PL_NDTYPE ? d : pl_promote2(by_rank[rank], d);
    if (rank > best) best = rank;
  }
  if (best < 0) return PL_F32;
  PlDtype r = by_rank[best];
  for (int rank = best - 1; rank >= 0; rank--) {
    PlDtype d = by_rank[rank];
    if (d == PL_NDTYPE) continue;
    int have = pl_is_float(r) ? 2 : r == PL_BOOL ? 0 : 1, add = pl_is_float(d) ? 2 : d == PL_BOOL ? 0 : 1;
    if (add > have) r = d;
    else if (PL_UNLIKELY((op->wraps & PL_WIDENS) && rank == 1 && add == 1 && have == 1)) r = pl_promote2(r, d); /* what it holds counts */
  }
  if (op->promote == PL_PROMOTE_FLOAT && !pl_is_float(r)) r = pl_default_float();
  return r;
}

static PlStatus cast_input(Call *c, int i, PlDtype to) {
  PlTensor *t = c->in[i], *out;
  if (t->a.weak) PL_TRY(pl_number_as(&out, t, to));
  else {
    PlAttrs a;
    pl_attrs_init(&pl_op_cast, &a);
    pl_attrs_int(&a, 0, to);
    PL_TRY(pl_apply(&pl_op_cast, &t, 1, &a, &out));
  }
  c->in[i] = out;
  c->made[i] = true;
  return PL_OK;
}

/* What input i becomes where the call computes in c->compute: arithmetic of halves takes numbers, and 0-d tensors that are numbers
 * to a kernel, as f32 (PL_F_WIDE), and rounds its result alone. */
static PlDtype becomes(const Call *c, int i) {
  const PlArray *a = &c->in[i]->a;
  return (a->weak || (a->ndim == 0 && a->dtype != c->compute && !pl_on_gpu(a->device))) ? PL_F32 : c->compute;
}
/* Is there an array of halves that says so, rather than the default dtype of floats? */
static bool of_halves(const Call *c) {
  if (!(c->op->flags & PL_F_WIDE) || !pl_is_half(c->compute)) return false;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && !c->in[i]->a.weak && (c->in[i]->a.dtype == c->compute || c->in[i]->a.ndim > 0)) return true;
  return false;
}

/* Whether number i has no place in dtype d, which is one of integers. */
static bool beyond(const Call *c, int i, PlDtype d) {
  const PlTensor *t = c->in[i];
  if (!t || !t->a.weak || t->a.symbolic || d == PL_I64 || !pl_is_int(d) || t->a.dtype == d || ((c->op->wraps >> i) & 1)) return false;
  if (pl_is_float((PlDtype)t->a.dtype)) {
    const double v = pl_read_f(&t->a, 0);
    return !(v > (double)pl_int_least(d) - 1 && v < (double)pl_int_most(d) + 1);
  }
  const int64_t v = pl_read_i(&t->a, 0);
  return v < pl_int_least(d) || v > pl_int_most(d);
}
static PlStatus refuse_beyond(const Call *c, int i, PlDtype d) {
  PL_FAIL(PL_ERR_ARG, "%s: %.17g does not fit into %s, which holds %lld to %lld; convert the tensor: x:to(\"i64\")", c->op->name,
          pl_read_f(&c->in[i]->a, 0), pl_dtype_name(d), (long long)pl_int_least(d), (long long)pl_int_most(d));
}

static PlStatus promote(Call *c) {
  const PlOp *op = c->op;
  PlTensor *first = c->nin > 0 ? c->in[0] : NULL;
  c->compute = first ? (PlDtype)first->a.dtype : PL_F32;
  for (int i = 0; (op->flags & PL_F_NO_BOOL) && i < c->nin; i++)
    if (c->in[i] && c->in[i]->a.dtype == PL_BOOL)
      PL_FAIL(PL_ERR_DTYPE, "%s: %s has no order or difference; use logical_xor, or convert: x:to(\"i64\")", op->name,
              pl_desc_text(&c->in[i]->a));
  if (op->promote == PL_PROMOTE_NONE) {
    for (int i = 0; i < c->nin; i++) /* a number represents a tensor of input 0's dtype */
      if (c->in[i] && c->in[i]->a.weak && i > 0 && first && c->in[i]->a.dtype != first->a.dtype) {
        if (beyond(c, i, (PlDtype)first->a.dtype)) return refuse_beyond(c, i, (PlDtype)first->a.dtype);
        PL_TRY(cast_input(c, i, (PlDtype)first->a.dtype));
      }
    return PL_OK;
  }
  c->compute = promoted(op, c->in, c->nin);
  for (int i = 0; pl_is_int(c->compute) && i < c->nin; i++) {
    if (!beyond(c, i, c->compute) || (op->promote_mask && i < 8 && !((op->promote_mask >> i) & 1))) continue;
    if (!(op->wraps & PL_WIDENS)) return refuse_beyond(c, i, c->compute);
    c->compute = PL_I64;
  }
  const bool halves = PL_UNLIKELY(pl_is_half(c->compute)) && of_halves(c);
  for (int i = 0; i < c->nin; i++) {
    if (!c->in[i] || (op->promote_mask && i < 8 && !((op->promote_mask >> i) & 1))) continue;
    const PlDtype to = PL_UNLIKELY(halves) ? becomes(c, i) : c->compute;
    if (c->in[i]->a.dtype != to) PL_TRY(cast_input(c, i, to));
  }
  return PL_OK;
}

/* ---- begin and end ----------------------------------------------------------------------------------------- */

void pl_call_end(Call *c) {
  for (int i = 0; i < c->nin; i++)
    if (c->made[i]) pl_tensor_release(c->in[i]);
  if (c->in != c->few_in) free(c->in);
}

static PlStatus bad_count(const PlOp *op, int nin) {
  if (op->nin == PL_VARIADIC) PL_FAIL(PL_ERR_ARG, "%s: a list of 1 to %d tensors, not %d", op->name, PL_MAX_VARIADIC, nin);
  PL_FAIL(PL_ERR_ARG, "%s: takes %d to %d tensors, not %d", op->name, op->nin - op->nopt, op->nin, nin);
}

PlStatus pl_call_check_count(const PlOp *op, PlTensor *const *in, int nin) {
  const int want = op->nin == PL_VARIADIC ? nin : op->nin, required = op->nin == PL_VARIADIC ? nin : op->nin - op->nopt;
  if (nin > want || (op->nin == PL_VARIADIC ? nin < 1 || nin > PL_MAX_VARIADIC : nin < required)) return bad_count(op, nin);
  for (int i = 0; i < required; i++)
    if (!in[i]) PL_FAIL(PL_ERR_ARG, "%s: argument %s is missing", op->name, op->nin == PL_VARIADIC ? op->args[0] : op->args[i]);
  return PL_OK;
}

static bool has_dims(const PlOp *op) {
  for (int k = 0; k < op->nattr; k++)
    if (op->attrs[k].type == PL_A_DIM || op->attrs[k].type == PL_A_NEWDIM || op->attrs[k].type == PL_A_DIMS ||
        !(op->attrs[k].has_def || op->attrs[k].optional))
      return true;
  return false;
}

PlStatus pl_call_begin(Call *c, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs) {
  c->op = op;
  int want = op->nin == PL_VARIADIC ? nin : op->nin;
  PL_TRY(pl_call_check_count(op, in, nin));
  c->nin = want;
  c->layout = 0;
  c->spared = 0;
  c->in = c->few_in;
  c->made = c->few_made;
  c->arr = c->few_arr;
  if (want > FEW) {
    size_t n = (size_t)want;
    char *m = malloc(n * (sizeof(PlTensor *) + sizeof(PlArray *) + sizeof(bool)));
    if (!m) return pl_call_no_memory(op);
    c->in = (PlTensor **)(void *)m;
    c->arr = (const PlArray **)(void *)(m + n * sizeof(PlTensor *));
    c->made = (bool *)(m + n * (sizeof(PlTensor *) + sizeof(PlArray *)));
  }
  unsigned away = pl_state.device | (op->flags & PL_F_MOVES);
  for (int i = 0; i < want; i++) {
    c->in[i] = i < nin ? in[i] : NULL;
    c->made[i] = false;
    if (c->in[i]) away |= c->in[i]->a.device;
  }
  PlStatus s = PL_OK;
  c->device = PL_CPU;
  c->attrs = &pl_no_attrs;
  if (op->nattr) {
    if (!attrs) {
      pl_attrs_init(op, &c->normal);
      attrs = &c->normal;
    }
    c->attrs = attrs;
    if (has_dims(op)) {
      PlAttrs raw;
      if (attrs == &c->normal) {
        memcpy(&raw, attrs, pl_attrs_size(attrs));
        attrs = &raw;
      }
      s = pl_attrs_normalize(op, attrs, want > 0 && c->in[0] ? &c->in[0]->a : NULL, &c->normal);
      c->attrs = &c->normal;
    }
  }
  if (PL_UNLIKELY(away != 0) && s == PL_OK) s = pl_call_place(c);
  if (s == PL_OK) s = promote(c);
  if (PL_UNLIKELY(c->device != PL_CPU) && s == PL_OK) s = pl_call_bring(c);
  for (int i = 0; i < want; i++) c->arr[i] = c->in[i] ? &c->in[i]->a : NULL;
  if (s != PL_OK) pl_call_end(c);
  return s;
}

PlStatus pl_call_infer(Call *c) {
  for (int o = 0; o < c->op->nout; o++) {
    c->desc[o].is_view = false;
    c->desc[o].layout = 0;
    c->desc[o].ndim = 0;
    c->desc[o].dtype = (uint8_t)c->compute;
    c->desc[o].offset = 0;
  }
  if (PL_UNLIKELY(c->device != PL_CPU)) return pl_call_infer_device(c);
  for (int i = 0; PL_UNLIKELY(pl_state.remat != NULL) && c->op->reads_values && i < c->nin && i < 8; i++)
    if (((c->op->reads_values >> i) & 1) && c->in[i]) PL_TRY(pl_present(c->in[i]));
  PlInfer f = {.op = c->op, .attrs = c->attrs, .nin = c->nin, .in = c->arr, .compute = c->compute, .out = c->desc};
  PL_TRY(c->op->infer(&f));
  pl_layout_keep(c);
  return PL_OK;
}

/* ---- computing ------------------------------------------------------------------------------------------------ */

static PlStatus no_kernel(const PlOp *op) { PL_FAIL(PL_ERR_UNSUPPORTED, "%s: no kernel for device cpu", op->name); }

/* Whether input i may stay one element that repeats: see PL_F_REPEATED. */
static bool repeats(const Call *c, int i) {
  const PlArray *a = c->arr[i];
  if (!(c->op->flags & PL_F_REPEATED) || i < c->op->nin - c->op->nopt || c->device != PL_CPU) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->strides[d] != 0 && a->shape[d] != 1) return false;
  return true;
}

/* Whether input i may stay an expanded index: see PL_F_SPREAD. */
static bool spread(const Call *c, int i) {
  const PlArray *a = c->arr[i];
  int64_t dense = 1;
  if (!(c->op->flags & PL_F_SPREAD) || i != 1 || c->device != PL_CPU) return false;
  for (int d = a->ndim - 1; d >= 0; d--) {
    if (a->strides[d] == 0 || a->shape[d] == 1) continue;
    if (a->strides[d] != dense) return false;
    dense *= a->shape[d];
  }
  return true;
}

bool pl_call_layout_fits(const Call *c, int i) {
  const PlArray *a = c->arr[i];
  if (PL_UNLIKELY(c->layout != 0) && (a->ndim == 4 || a->ndim == 5)) return pl_is_channels_last(a);
  if (a->contiguous || repeats(c, i) || spread(c, i)) return true;
  if (i == 0 && (c->op->flags & PL_F_STRIDED) && c->device == PL_CPU) return true;
  return (c->op->flags & PL_F_ANY_STRIDES) && c->device != PL_CPU && pl_channels_last(a);
}

/* Runs the kernel on contiguous copies of inputs where the op asks for that. */
static PlStatus run(Call *c, PlTensor *const *out, struct PlkKept *kept) {
  const PlOp *op = c->op;
  PlKernel kernel = op->kernel[PL_CPU];
  if (!kernel && c->device == PL_CPU) return no_kernel(op);
  PlArray *dst[PL_MAX_OUT];
  for (int o = 0; o < op->nout; o++) dst[o] = out[o] ? &out[o]->a : NULL;
  PlTensor **copies = NULL;
  PlStatus s = PL_OK;
  const PlArray **arr = c->arr;
  if (op->flags & PL_F_CONTIGUOUS)
    for (int i = 0; i < c->nin && s == PL_OK; i++) {
      if (!c->in[i] || pl_call_layout_fits(c, i)) continue;
      if (!copies) {
        copies = calloc((size_t)c->nin, sizeof *copies + sizeof *arr);
        if (!copies) return pl_call_no_memory(op);
        arr = (const PlArray **)(void *)(copies + c->nin);
        memcpy((void *)arr, (const void *)c->arr, (size_t)c->nin * sizeof *arr);
      }
      s = PL_UNLIKELY(c->layout != 0) ? pl_tensor_copy_as(&copies[i], c->layout, c->in[i]) : pl_tensor_copy(&copies[i], c->in[i]);
      if (s == PL_OK) arr[i] = &copies[i]->a;
    }
  if (s == PL_OK) {
    PlkCall call = {.name = op->name,
                    .code = op->kcode,
                    .nin = c->nin,
                    .nout = op->nout,
                    .in = arr,
                    .out = dst,
                    .attrs = c->attrs,
                    .kept = copies ? NULL : kept};
    uint64_t offset = pl_state.offset;
    if (op->flags & PL_F_SEEDED) call.rng = pl_rng_take(op->draws(&call));
    s = PL_LIKELY(c->device == PL_CPU) ? kernel(&call) : pl_call_run_device(c->device, op, &call);
    if (s != PL_OK && (op->flags & PL_F_SEEDED)) pl_state.offset = offset;
    if (PL_UNLIKELY(pl_state.profile != NULL)) pl_state.profile->work(pl_flops_made(op, c->attrs, arr, c->nin, dst));
  }
  for (int i = 0; copies && i < c->nin; i++) pl_tensor_release(copies[i]);
  free(copies);
  return s;
}

PlStatus pl_call_run(Call *c, PlTensor *const *out) {
  if (PL_LIKELY(pl_state.remat == NULL)) return run(c, out, NULL);
  PlPins pins;
  PL_TRY(pl_remat_pin(&pins, c->op->name, c->in, c->nin));
  PlStatus s = run(c, out, NULL);
  pl_remat_unpin(&pins);
  return s;
}

PlStatus pl_call_kernel(const PlOp *op, const PlAttrs *attrs, PlTensor *const *in, const PlArray **arr, int nin, PlTensor *const *out,
                        struct PlkKept *kept) {
  Call c;
  c.op = op;
  c.attrs = attrs ? attrs : &pl_no_attrs;
  c.nin = nin;
  c.in = (PlTensor **)(uintptr_t)in; /* read only */
  c.arr = arr;
  c.layout = 0;
  c.device = nin == 0 && op->nout > 0 && out[0] ? out[0]->a.device : PL_CPU;
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->a.device) c.device = in[i]->a.device;
  return PL_UNLIKELY(kept != NULL) && !pl_state.remat ? run(&c, out, kept) : pl_call_run(&c, out);
}

static PlStatus compute(Call *c, PlTensor **out) {
  const PlOp *op = c->op;
  PlStatus s = PL_OK;
  for (int o = 0; o < op->nout && s == PL_OK; o++) {
    if (c->desc[o].dtype == PL_NDTYPE || (c->spared >> o & 1)) continue; /* an output that this call does not have */
    s = pl_tensor_empty_on(&out[o], c->device, (PlDtype)c->desc[o].dtype, c->desc[o].ndim, c->desc[o].shape);
    if (PL_LIKELY(!c->desc[o].layout) || s != PL_OK) continue;
    if (c->desc[o].layout == PL_STRIDED) pl_layout_stride(out[o], c->desc[o].strides);
    else pl_layout_apply(out[o], c->desc[o].layout);
  }
  if (s == PL_OK) s = pl_call_run(c, out);
  if (s != PL_OK) pl_release_all(out, op->nout);
  return s;
}

/* Under a limit of memory: the inputs stay while room for the results is made, and how they were made is noted. */
static PlStatus compute_noted(Call *c, PlTensor **out) {
  PlPins pins;
  PL_TRY(pl_remat_pin(&pins, c->op->name, c->in, c->nin));
  const PlDrawn drawn = pl_remat_drawn(c->op);
  PlStatus s = compute(c, out);
  if (s == PL_OK) pl_remat_note(c, out, drawn);
  pl_remat_unpin(&pins);
  return s;
}

PlStatus pl_call_outputs(Call *c, PlTensor **out) {
  const PlOp *op = c->op;
  for (int o = 0; o < op->nout; o++) out[o] = NULL;
  if (op->nout > 0 && c->desc[0].is_view) {
    const PlDesc *d = &c->desc[0];
    PlTensor *t = c->in[0];
    char *data = (char *)t->a.data + d->offset * (int64_t)pl_dtype_size((PlDtype)t->a.dtype);
    PL_TRY(pl_tensor_window(&out[0], t, d->ndim, d->shape, d->strides, data));
    pl_tensor_join(out[0], t);
    return PL_OK;
  }
  const bool watched = PL_UNLIKELY(pl_watched());
  if (watched) {
    bool given;
    PL_TRY(pl_checkpoint_given(op, c->desc, out, &given));
    if (given) {
      PlStatus s = pl_checkpoint_result(op, c->attrs, c->arr, c->nin, out);
      if (s != PL_OK) pl_release_all(out, op->nout);
      return s;
    }
  }
  PlStatus s = PL_UNLIKELY(pl_state.remat != NULL) ? compute_noted(c, out) : compute(c, out);
  if (watched && s == PL_OK) {
    s = pl_checkpoint_result(op, c->attrs, c->arr, c->nin, out);
    if (s != PL_OK) pl_release_all(out, op->nout);
  }
  return s;
}
