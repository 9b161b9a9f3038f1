/* SPDX-License-Identifier: MIT
 * One op call on its way through pl_apply: inputs promoted, attributes normalized, outputs inferred. The steps (call.c)
 * serve the engine's own execution (apply.c, apply_into.c) and graphs under construction (trace/symbolic.c). */
#ifndef PL_ENGINE_CALL_CALL_H
#define PL_ENGINE_CALL_CALL_H

#include "engine/tensor/tensor.h"

/* Arrays live here unless the op is variadic and long. */
typedef struct PlCall {
  const PlOp *op;
  const PlAttrs *attrs;
  PlAttrs normal; /* with dimensions resolved */
  int nin;
  PlTensor **in; /* after promotion; entries of `made` are owned */
  bool *made;
  const PlArray **arr;
  PlTensor *few_in[PL_MAX_IN];
  bool few_made[PL_MAX_IN];
  const PlArray *few_arr[PL_MAX_IN];
  PlDtype compute;
  uint8_t device; /* where it computes (engine/device/device.h) */
  uint8_t layout; /* on a device: of outputs, and of images that the kernel reads (engine/tensor/layout.h) */
  PlDesc desc[PL_MAX_OUT];
  uint8_t spared; /* outputs that nobody will read: they are not made */
} PlCall;

/* One call of pl_apply or pl_apply_into. */
typedef struct PlApplied {
  const PlOp *op;
  PlTensor *const *in;
  int nin;
  const PlAttrs *attrs;
  PlTensor **out;        /* of pl_apply: for its results */
  PlTensor *const *into; /* of pl_apply_into: what it writes; else NULL */
} PlApplied;

/* The call with the modes around it that are on (modes.c): PL_MODES_AROUND. */
PlStatus pl_apply_around(const PlApplied *a);
/* What they wrap: the call alone, as it is computed, or batched, or put into a graph by its inputs. */
PlStatus pl_apply_inside(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
PlStatus pl_apply_into_inside(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out);
/* Does a running batch, rather than the graph under construction, say how the op is computed? */
bool pl_batch_call(const PlOp *op, PlTensor *const *in, int nin);
/* pl_apply without its short cut (fast_path.c): every op, traced and measured ones too. */
PlStatus pl_apply_any(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
/* op(x, number), or op(number, x) if it comes first, where the number needs no tensor; *out stays NULL where it does. */
PlStatus pl_apply_number(const PlOp *op, PlTensor *x, double number, bool first, PlTensor **out);
/* Checks counts, normalizes, promotes; end it when begin succeeded. */
PlStatus pl_call_begin(PlCall *c, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs);
/* As many inputs as op takes, and all that it needs: what pl_call_begin checks, for ops that expand without it. */
PlStatus pl_call_check_count(const PlOp *op, PlTensor *const *in, int nin);
PlStatus pl_call_infer(PlCall *c);
void pl_call_end(PlCall *c);
/* Outputs as inferred, with the kernel's results; views of input 0 where infer said so. */
PlStatus pl_call_outputs(PlCall *c, PlTensor **out);
/* Is any of these, or could any be once its history is brought up to date, tracked by a recording key? */
PlStatus pl_call_tracked(const char *op, PlTensor *const *in, int nin, PlTensor *out, bool *yes);
/* Is t a view without a history of a tensor that has one, and are gradients recorded? It was taken where nothing is recorded; a write
 * through it would change values under that history, and is refused. */
bool pl_view_unseen(const PlTensor *t);
/* Input 0 was changed by the op; its history was `old`'s and goes on through the op. */
PlStatus pl_call_record_write(PlCall *c, PlTensor *old);
/* Fails: op, which has no gradient, cannot change y while gradients are recorded. */
PlStatus pl_call_no_history(const PlOp *op, const PlTensor *y);
/* The kernel alone, into outputs that are there; NULL for one that this call does not have. */
PlStatus pl_call_run(PlCall *c, PlTensor *const *out);
/* An op that always changes input 0: its contents, its version and, where gradients are recorded, its history. */
PlStatus pl_call_mutate(PlCall *c, PlTensor **out);
/* pl_call_run on inputs that need no promotion and outputs of the inferred types: graphs know both. arr[nin] are
 * the inputs' arrays. Copies inputs where the op wants them contiguous; takes random numbers. */
PlStatus pl_call_kernel(const PlOp *op, const PlAttrs *attrs, PlTensor *const *in, const PlArray **arr, int nin, PlTensor *const *out,
                        struct PlkKept *kept);
/* Of an op with PL_F_CONTIGUOUS: is input i laid out as the kernel wants it? */
bool pl_call_layout_fits(const PlCall *c, int i);
/* out must have the shape of d, and a dtype that d's values fit into. */
PlStatus pl_call_check_target(const PlOp *op, const PlTensor *out, const PlDesc *d);
PlStatus pl_call_no_memory(const PlOp *op);
/* pl_apply for a caller that shows no more than op->nvisible results: those behind may be NULL, and are where nobody keeps them for
 * a gradient and the kernel can do without (PlOp.spare). */
PlStatus pl_apply_shown(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
/* Whether an op with `expand` runs as that: it has no kernel, or the inputs' device has none. */
bool pl_op_expands(const PlOp *op, PlTensor *const *in, int nin);
extern const PlAttrs pl_no_attrs; /* of ops that have none */

/* Dimensions among the attributes, which may count from the end, become 0-based ones of x (attrs.c). */
PlStatus pl_attrs_normalize(const PlOp *op, const PlAttrs *in, const PlArray *x, PlAttrs *out);
PlAttrs *pl_attrs_compact(const PlAttrs *a); /* pooled copy of pl_attrs_size(a) bytes; NULL: no memory */

/* Does an input represent a value of a graph under construction? */
static inline bool pl_any_symbolic(PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->a.symbolic) return true;
  return false;
}

/* Floating-point operations of a call: the op's own count, else one for each element of its largest tensor. */
double pl_flops(const PlInfer *c);
/* The same of a call that has its results; out[i] is NULL for one that it does not have. */
double pl_flops_made(const PlOp *op, const PlAttrs *attrs, const PlArray *const *in, int nin, PlArray *const *out);

#endif
