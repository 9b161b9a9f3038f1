/* SPDX-License-Identifier: MIT
 * perilune's public C API.
 *
 * Ownership: arguments are borrowed, out parameters are yours (release them), whoever stores retains.
 * release takes NULL, returns nothing and never fails. Every function that can fail returns a PlStatus,
 * writes its out parameters only on success, and leaves a message in pl_message(). Tensors belong to the
 * thread that made them; hand one over only when the other thread is its sole user.
 * Dimensions and index values are 0-based in C (negative dims count from the end); Lua's are 1-based. */
#ifndef PERILUNE_H
#define PERILUNE_H

#include "kernels/base.h"

typedef struct PlTensor PlTensor; /* a handle on a strided window of a storage */
typedef struct PlStorage PlStorage;
typedef struct PlOp PlOp;     /* an immutable op descriptor */
typedef struct PlKey PlKey;   /* a gradient key with its tape */
typedef struct PlNode PlNode; /* one recorded op */

/* ---- making tensors ------------------------------------------------------------------------ */

/* A new tensor of the given shape with undefined contents, row-major, 64-byte aligned (16 up to 64 bytes).
 * Errors: SHAPE (negative size, size overflow, ndim > PL_MAX_DIM), OOM. */
PlStatus pl_tensor_empty(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape);
/* The same with every element set to `value` (converted as pl_cast does). */
PlStatus pl_tensor_full(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape, double value);
/* Copies numel elements of `dtype` from `data` (row-major). */
PlStatus pl_tensor_from(PlTensor **out, PlDtype dtype, int ndim, const int64_t *shape, const void *data);
/* A 0-d tensor that promotes like a script's number. */
PlStatus pl_tensor_number(PlTensor **out, bool is_int, int64_t i, double f);
/* Another handle on the same storage, without gradient history. */
PlStatus pl_tensor_alias(PlTensor **out, PlTensor *t);
/* The same memory under a handle that no gradient passes. */
PlStatus pl_tensor_detach(PlTensor **out, PlTensor *t);
/* Another window on t's storage; the caller vouches for strides (checked against the storage's size). */
PlStatus pl_tensor_view(PlTensor **out, PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset);
void pl_tensor_retain(PlTensor *t);
void pl_tensor_release(PlTensor *t);

/* ---- looking at tensors --------------------------------------------------------------------- */

PlDtype pl_tensor_dtype(const PlTensor *t);
int pl_tensor_ndim(const PlTensor *t);
const int64_t *pl_tensor_shape(const PlTensor *t);
const int64_t *pl_tensor_strides(const PlTensor *t);
int64_t pl_tensor_numel(const PlTensor *t);
/* Element (0, …, 0). NULL only under a limit of memory (remat/remat.h), where the values cannot be had within it. */
void *pl_tensor_data(const PlTensor *t);
/* Before the address of a tensor that others made is used: its values are in memory, and stay there. */
PlStatus pl_tensor_hold(const PlTensor *t);
/* Writes a text such as "f32[2,3]" into buf and returns it. */
const char *pl_tensor_text(const PlTensor *t, char *buf, size_t size);

/* ---- ops ------------------------------------------------------------------------------------ */

/* The op of that name, or NULL. pl_ops(&n) is the table of all. */
const PlOp *pl_op_find(const char *name);
const PlOp *const *pl_ops(int *count);
/* The name of the op's k-th attribute, k from 0; NULL beyond the last. T.help says what each of them is. */
const char *pl_op_attr(const PlOp *op, int k);
/* Fills attributes with the op's defaults. */
void pl_attrs_init(const PlOp *op, PlAttrs *a);
/* Set one of them by its name, as T.help and the reference call it: an integer (also 0 or 1, a PlDtype, a dimension or an index
 * from 0, or one number in place of a list), a float, a list of n integers or of n floats, one of the words that the attribute
 * knows ("mean"), or none where it is optional. Errors: ARG, an unknown name (the message lists those that there are) or a
 * value of another kind; then nothing has changed. */
PlStatus pl_attrs_set_int(const PlOp *op, PlAttrs *a, const char *name, int64_t v);
PlStatus pl_attrs_set_float(const PlOp *op, PlAttrs *a, const char *name, double v);
PlStatus pl_attrs_set_list(const PlOp *op, PlAttrs *a, const char *name, int n, const int64_t *v);
PlStatus pl_attrs_set_floats(const PlOp *op, PlAttrs *a, const char *name, int n, const double *v);
PlStatus pl_attrs_set_word(const PlOp *op, PlAttrs *a, const char *name, const char *word);
PlStatus pl_attrs_set_none(const PlOp *op, PlAttrs *a, const char *name);
/* The same by position in the op's table, unchecked. */
void pl_attrs_int(PlAttrs *a, int k, int64_t v);
void pl_attrs_float(PlAttrs *a, int k, double v);
PlStatus pl_attrs_list(PlAttrs *a, int k, int n, const int64_t *v);
void pl_attrs_none(PlAttrs *a, int k);
/* Runs one op: infers, allocates, computes, records on the tapes of tracked inputs. `in` may hold NULL
 * for optional inputs; attrs may be NULL for the defaults; out receives op->nout tensors.
 * Errors: whatever the op's infer rule, its kernel or the allocator says; then nothing has changed. */
PlStatus pl_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
/* The same, written into existing tensors (out[i] must have the inferred shape; values are cast to its
 * dtype). In place when out[0] is in[0]: then history is rewritten and the version counter moves. */
PlStatus pl_apply_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out);

/* ---- gradients ------------------------------------------------------------------------------ */

/* Marks a floating leaf: ops on it are recorded under the ambient key, backward adds into its .grad. */
PlStatus pl_requires_grad(PlTensor *t, bool on);
bool pl_tensor_requires_grad(const PlTensor *t);
/* The accumulated gradient of a leaf, borrowed, or NULL. */
PlTensor *pl_grad(const PlTensor *t);
PlStatus pl_set_grad(PlTensor *t, PlTensor *grad_or_null);
/* Is .grad what a backward that failed has added to, be it wholly or in part? False again once it is set or written. A leaf that
 * had no gradient before such a backward has none after it. */
bool pl_grad_torn(const PlTensor *t);
/* Walks back from ys with gradients dys (NULL, or NULL entries: ones, for scalars only) and adds the
 * leaves' gradients to their .grad. */
PlStatus pl_backward(PlTensor *const *ys, PlTensor *const *dys, int n, bool retain_graph, bool create_graph);
/* The same for these leaves alone (nx 0: for all): what does not lead to one of them does not run and is not freed. STATE:
 * one does not require a gradient, or was computed. */
PlStatus pl_backward_into(PlTensor *const *ys, PlTensor *const *dys, int n, PlTensor *const *xs, int nx, bool retain_graph,
                          bool create_graph);
/* Gradients of ys with respect to xs, returned in out (NULL where unreachable if allow_unused). */
PlStatus pl_grad_of(PlTensor *const *ys, PlTensor *const *dys, int ny, PlTensor *const *xs, int nx, bool retain_graph, bool create_graph,
                    bool allow_unused, PlTensor **out);
/* Turns recording on or off in this thread; returns the previous state. */
bool pl_grad_enable(bool on);

/* ---- random numbers, memory, threads ------------------------------------------------------------ */

void pl_manual_seed(uint64_t seed);

typedef struct PlMemory {
  int64_t live, peak, reserved, budget; /* bytes; budget < 0: none */
  int64_t blocks;                       /* live allocations */
  int64_t allocations;                  /* since start */
} PlMemory;
void pl_memory(PlMemory *out);
void pl_memory_reset_peak(void);
void pl_memory_budget(int64_t bytes); /* < 0: none */
void pl_memory_trim(void);            /* gives cached blocks back to the system */
/* For tests: the n-th allocation from now fails (then `count` in a row); n < 0 turns it off. */
void pl_memory_fail_at(int64_t n, int64_t count);

const char *pl_version(void);

#endif
