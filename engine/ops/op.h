/* SPDX-License-Identifier: MIT
 * What an op is: one const descriptor, next to its formula. Bindings, help, gradients, checks and the
 * fuzzer are generated from it. Add one: write the descriptor in its family's file, name it in ops.def. */
#ifndef PL_ENGINE_OPS_OP_H
#define PL_ENGINE_OPS_OP_H

#include "engine/perilune.h"
#include "kernels/program.h"

enum { PL_MAX_IN = 8, PL_MAX_OUT = 4, PL_VARIADIC = -1, PL_MAX_VARIADIC = 65536 };

/* ---- attributes ---------------------------------------------------------------------------------- */

typedef enum PlAttrType {
  PL_A_INT,    /* v.i */
  PL_A_FLOAT,  /* v.f */
  PL_A_BOOL,   /* v.i 0 or 1 */
  PL_A_SCALAR, /* a number that keeps its kind: v.i if the isint bit is set, else v.f */
  PL_A_DIM,    /* v.i: a dimension of input 0; 1-based in Lua, here 0 … ndim-1 once pl_apply has begun */
  PL_A_NEWDIM, /* the same over ndim+1 (unsqueeze, stack) */
  PL_A_DIMS,   /* list of distinct dimensions of input 0; none or empty: all. Same normalization */
  PL_A_INDEX,  /* v.i: a position; 1-based in Lua, 0-based here; negative counts from the end (op resolves) */
  PL_A_INTS,   /* list of plain integers; a single number means a list of one */
  PL_A_SHAPE,  /* list of sizes; in Lua also as several arguments: x:view(2, -1) */
  PL_A_FLOATS, /* list of doubles, bit-copied into the pool */
  PL_A_DTYPE,  /* v.i: a PlDtype */
  PL_A_ENUM,   /* v.i: position in `choices`, "none|mean|sum" */
  PL_A_BASE    /* v.i: index_base, what the first index VALUE is called; 1 by default, as in Lua */
} PlAttrType;

typedef struct PlAttrDef {
  const char *name;
  PlAttrType type;
  bool optional; /* may be none; without it and without has_def the attribute must be given */
  bool has_def;
  int64_t i; /* default: integers, bools, dims (0-based, negative allowed), enum position */
  double f;  /* default: floats */
  const char *choices;
  bool truth; /* PL_A_SCALAR: may be true or false as well */
  bool flat;  /* PL_A_DIMS: none means the one dim of the flattened input, not all dims */
} PlAttrDef;

/* Shorthands for attribute tables. REQ: must be given. OPT: may be none. */
/* clang-format off */
#define A_INT(n, d) {.name = n, .type = PL_A_INT, .has_def = true, .i = d}
#define A_INT_REQ(n) {.name = n, .type = PL_A_INT}
#define A_INT_OPT(n) {.name = n, .type = PL_A_INT, .optional = true}
#define A_FLOAT(n, d) {.name = n, .type = PL_A_FLOAT, .has_def = true, .f = d}
#define A_FLOAT_REQ(n) {.name = n, .type = PL_A_FLOAT}
#define A_FLOAT_OPT(n) {.name = n, .type = PL_A_FLOAT, .optional = true}
#define A_BOOL(n, d) {.name = n, .type = PL_A_BOOL, .has_def = true, .i = d}
#define A_SCALAR_REQ(n) {.name = n, .type = PL_A_SCALAR}
#define A_VALUE_REQ(n) {.name = n, .type = PL_A_SCALAR, .truth = true}
#define A_SCALAR_OPT(n) {.name = n, .type = PL_A_SCALAR, .optional = true}
#define A_DIM(n, d) {.name = n, .type = PL_A_DIM, .has_def = true, .i = d}
#define A_DIM_REQ(n) {.name = n, .type = PL_A_DIM}
#define A_DIM_OPT(n) {.name = n, .type = PL_A_DIM, .optional = true}
#define A_NEWDIM(n, d) {.name = n, .type = PL_A_NEWDIM, .has_def = true, .i = d}
#define A_NEWDIM_REQ(n) {.name = n, .type = PL_A_NEWDIM}
#define A_DIMS_OPT(n) {.name = n, .type = PL_A_DIMS, .optional = true}
#define A_DIMS_FLAT(n) {.name = n, .type = PL_A_DIMS, .optional = true, .flat = true}
#define A_DIMS_REQ(n) {.name = n, .type = PL_A_DIMS}
#define A_INDEX_REQ(n) {.name = n, .type = PL_A_INDEX}
#define A_INTS_REQ(n) {.name = n, .type = PL_A_INTS}
#define A_INTS_OPT(n) {.name = n, .type = PL_A_INTS, .optional = true}
#define A_INTS(n, d) {.name = n, .type = PL_A_INTS, .has_def = true, .i = d} /* list of one: d */
#define A_SHAPE_REQ(n) {.name = n, .type = PL_A_SHAPE}
#define A_DTYPE_REQ(n) {.name = n, .type = PL_A_DTYPE}
#define A_DTYPE_OPT(n) {.name = n, .type = PL_A_DTYPE, .optional = true}
#define A_ENUM(n, c, d) {.name = n, .type = PL_A_ENUM, .has_def = true, .i = d, .choices = c}
#define A_BASE {.name = "index_base", .type = PL_A_BASE, .has_def = true, .i = 1}
/* clang-format on */

/* ---- shape and dtype rule ---------------------------------------------------------------------------- */

/* The layout of memory (engine/tensor/layout.h). A rule says MAY_FOLLOW of output 0 where the op's kernel on a device takes images,
 * inputs and outputs of 4 or 5 dims, that are all channels last; pointwise ops need not. */
typedef enum PlLayout { PL_ROW_MAJOR, PL_CHANNELS_LAST, PL_MAY_FOLLOW, PL_STRIDED } PlLayout;

/* What infer says of one output. For views also strides and offset (elements from input 0's first one). Rules need not speak of
 * layouts but for PL_MAY_FOLLOW: pointwise results get PL_STRIDED with their strides, dense in another order, behind the rule. */
typedef struct PlDesc {
  uint8_t dtype, ndim;
  bool is_view;
  uint8_t layout; /* the layout of memory of its own (a PlLayout) */
  int64_t shape[PL_MAX_DIM];
  int64_t strides[PL_MAX_DIM]; /* of views, and with PL_STRIDED */
  int64_t offset;              /* views only */
} PlDesc;

/* One call of an infer rule. in[i] is NULL for an optional input not given. Inputs are already promoted to
 * a common dtype where the op asks for that (`compute`). Attributes are normalized (dims ≥ 0). Reads
 * shapes only, except of inputs named in PlOp.reads_values (shape tensors, masks). */
typedef struct PlInfer {
  const PlOp *op;
  const PlAttrs *attrs;
  int nin;
  const PlArray *const *in;
  PlDtype compute; /* the promoted dtype; of input 0 where the op does not promote */
  PlDesc *out;     /* op->nout entries, zeroed */
} PlInfer;

/* ---- gradient makers ------------------------------------------------------------------------------------- */

typedef int32_t PlVal; /* a value of a graph under construction */
#define PL_NONE ((PlVal)-1)

/* A maker emits ops that compute dx[i] for every i with want[i], from x (inputs), y (outputs), dy (their
 * gradients; PL_NONE where no gradient arrives: treat as zero). Leaves dx[i] = PL_NONE for "no gradient".
 * Errors stick in `status`, so emitters can be nested without checks. Reading a value makes it saved for
 * backward; reading only its shape (pl_g_sum_to, pl_g_like) does not.
 * Ops without PL_F_POLY: in[i]->shape holds real sizes and the graph is cached per shape. With it: only dtype,
 * ndim and `same` (input has the shape of output 0) may be looked at. */
typedef struct PlMaker {
  struct PlGradGraph *graph;
  const PlOp *op;
  const PlAttrs *attrs;
  int nin, nout;
  const PlArray *const *in; /* descriptions of the inputs, NULL entries for missing ones */
  const PlDesc *outd;       /* descriptions of the outputs */
  const bool *want;
  const bool *same;
  const PlVal *x, *y, *dy;
  PlVal *dx;
  PlStatus status;
} PlMaker;

/* Emits op(in…; attrs) and returns its first output; outs (may be NULL) receives all. attrs NULL: defaults. */
PlVal pl_g_op(PlMaker *g, const PlOp *op, int nin, const PlVal *in, const PlAttrs *attrs, PlVal *outs);
PlVal pl_g1(PlMaker *g, const PlOp *op, PlVal a);
PlVal pl_g2(PlMaker *g, const PlOp *op, PlVal a, PlVal b);
PlVal pl_g3(PlMaker *g, const PlOp *op, PlVal a, PlVal b, PlVal c);
PlVal pl_g_num(PlMaker *g, double v);                /* a weak number */
PlVal pl_g_sum_to(PlMaker *g, PlVal dy, int i);      /* dy summed down to the shape of input i */
PlVal pl_g_zeros_like(PlMaker *g, int i);            /* zeros of the shape and dtype of input i */
PlVal pl_g_expand_like(PlMaker *g, PlVal v, int i);  /* v broadcast to the shape of input i (dtype kept) */
PlVal pl_g_reshape_like(PlMaker *g, PlVal v, int i); /* v reshaped to the shape of input i */
PlVal pl_g_cast(PlMaker *g, PlVal v, PlDtype d);
void pl_g_fail(PlMaker *g, PlStatus s);
/* A maker for the last op in a row of gradients, op -> its gradient's -> the gradient of that, the first of which is composed
 * (PlOp.composed). Arguments are told by their names: those that an op has and the one before has not are first the gradients
 * of that one's results. Result i is the gradient for input i of the op before. Or for an op that is composed itself. */
PlStatus pl_grad_by_composition(PlMaker *g);
/* An op's results by its composition (PlOp.composed): what `expand` is for one that has kernels on the CPU alone. */
PlStatus pl_expand_composed(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);

/* ---- native rules ----------------------------------------------------------------------------------------- */

/* A hand-written gradient of an op with one or two inputs, kept only where measured. `ok` decides before any side effect whether it applies;
 * if not, the generic graph does. bwd computes
 * dx[i] (owned by the caller) through pl_apply, so higher orders work. */
typedef struct PlNative {
  uint8_t reads[2]; /* bit j of reads[i]: the gradient of input i reads input j. Saved is what gradients that are wanted read */
  bool (*ok)(PlTensor *const *in, int nin, PlTensor *const *out, const PlAttrs *attrs);
  /* saved[j]: input j, NULL where no wanted gradient reads it */
  PlStatus (*bwd)(const PlAttrs *attrs, PlTensor *const *saved, PlTensor *const *dy, const bool *want, PlTensor **dx);
} PlNative;

/* ---- batching rules (engine/vmap) ------------------------------------------------------------------------ */

/* How the op is computed for many inputs at once (PlOp.batch). Without a rule elementwise ops broadcast and all others
 * go through their elements one by one. */
typedef struct PlBatchCall PlBatchCall;
void pl_batch_leading(PlBatchCall *c); /* shapes line up from the last dimension */
void pl_batch_each(PlBatchCall *c);    /* takes any number of dims in front */
void pl_batch_dims(PlBatchCall *c);    /* attributes dim…, shape move up by one */
void pl_batch_rows(PlBatchCall *c);    /* the same, input 1 being shared: an index, counts */
void pl_batch_list(PlBatchCall *c);    /* the same for lists of tensors */
void pl_batch_masked_fill(PlBatchCall *c);
void pl_batch_first(PlBatchCall *c); /* only input 0 may be batched, of any shape; second: input 1 */
void pl_batch_second(PlBatchCall *c);
void pl_batch_shape(PlBatchCall *c);  /* x under the result's shape */
void pl_batch_expand(PlBatchCall *c); /* x repeated to the result's shape */
void pl_batch_sum_to(PlBatchCall *c);
void pl_batch_sizes(PlBatchCall *c); /* only the shape of x counts */
void pl_batch_transpose2(PlBatchCall *c);
void pl_batch_permute(PlBatchCall *c);
void pl_batch_strided(PlBatchCall *c);
void pl_batch_strided_put(PlBatchCall *c);
void pl_batch_strided_bwd(PlBatchCall *c);
void pl_batch_tile(PlBatchCall *c);
void pl_batch_max_all(PlBatchCall *c);
void pl_batch_min_all(PlBatchCall *c);
void pl_batch_solve(PlBatchCall *c);
void pl_batch_samples(PlBatchCall *c);  /* the batch joins the first dim */
void pl_batch_channels(PlBatchCall *c); /* the batch joins the second dim */
void pl_batch_matmul(PlBatchCall *c);
void pl_batch_matmul_t(PlBatchCall *c);
void pl_batch_flat_t(PlBatchCall *c);
void pl_batch_linear(PlBatchCall *c);
void pl_batch_addmm(PlBatchCall *c);
void pl_batch_addr(PlBatchCall *c);
void pl_batch_outer(PlBatchCall *c);
void pl_batch_conv(PlBatchCall *c);
void pl_batch_conv_input(PlBatchCall *c);
void pl_batch_conv_weight(PlBatchCall *c);
void pl_batch_row_norm(PlBatchCall *c);
void pl_batch_row_norm_bwd(PlBatchCall *c);
void pl_batch_loss(PlBatchCall *c);
void pl_batch_loss_bwd(PlBatchCall *c);
void pl_batch_class_loss(PlBatchCall *c);
void pl_batch_index(PlBatchCall *c);
void pl_batch_index_bwd(PlBatchCall *c);
void pl_batch_embedding_bwd(PlBatchCall *c);

/* ---- the descriptor --------------------------------------------------------------------------------------- */

typedef enum PlClass {
  PL_POINTWISE,
  PL_VIEW,
  PL_REDUCTION,
  PL_HEAVY, /* matmul, convolution, attention: never recomputed unasked */
  PL_INDEXING,
  PL_CREATION,
  PL_OPAQUE
} PlClass;

typedef enum PlPromote {
  PL_PROMOTE_NONE = 0, /* inputs keep their dtypes; infer checks them */
  PL_PROMOTE_ALL,      /* inputs named in promote_mask get their common dtype */
  PL_PROMOTE_FLOAT     /* … and integers become the default float */
} PlPromote;

/* Ops that treat every row of the trailing dims by itself, with bits that do not depend on the other rows; graphs run
 * them tile by tile (fuse/tile.h). Roles of inputs, ':', of outputs: f all elements, r one row, c one value a row, s one row
 * that is a sum over all of them (`pieces` adds it up); '?' behind an output: the kernel can do without. Ops with roles f:c
 * and `pieces` may also reduce the leading dims or all. Which dims make a row: */
typedef enum PlRowsRule {
  PL_ROWS_NONE = 0,
  PL_ROWS_DIM,   /* attribute `attr` */
  PL_ROWS_DIMS,  /* those in the list `attr`; none: all */
  PL_ROWS_SHAPE, /* as many as the list `attr` has */
  PL_ROWS_TO     /* those that output 0 lacks, or has as 1 */
} PlRowsRule;
typedef struct PlRows {
  PlRowsRule rule;
  int attr;
  const char *roles; /* NULL: no such op */
  const PlkPiecewise *pieces;
} PlRows;

/* What a region of mixed precision does with floating inputs (engine/call/autocast.h); PyTorch's lists for the CPU. */
typedef enum PlCast {
  PL_CAST_NONE = 0,
  PL_CAST_LOW,    /* the region's dtype: products, where the time goes */
  PL_CAST_F32,    /* losses, factorizations: what narrow floats spoil */
  PL_CAST_RESULT, /* none, but the op's attribute "dtype", its last, is f32: it computes in f32 what it reads as it is */
  PL_CAST_WIDEST  /* the widest among them: ops that take one dtype only */
} PlCast;

/* PlOp.flags: facts that the rest of the engine asks for, so that nothing outside engine/ops names an op to know one. */
enum {
  /* what Lua gets */
  PL_F_INTERNAL = 1 << 0, /* no function of its own in Lua (backward helpers) */
  PL_F_NOMETHOD = 1 << 1, /* function only, no tensor method */
  PL_F_INPLACE = 1 << 2,  /* has an in-place form name_ (output 0 over input 0) */

  /* its inputs */
  PL_F_SCALAR = 1 << 3,  /* inputs may be numbers */
  PL_F_NO_BOOL = 1 << 4, /* refuses bool tensors */
  PL_F_NATURAL = 1 << 5, /* of integers: input 1, given as a number, must not be negative */
  PL_F_STORES = 1 << 6,  /* its attributes or its last input, given as numbers, become elements of input 0 and must fit its dtype */

  /* what it does besides computing outputs of inputs */
  PL_F_MUTATES = 1 << 7, /* always works on input 0 in place; output 0 is input 0 */
  PL_F_SETS = 1 << 8,    /* with PL_F_MUTATES: input 0 becomes input 1, broadcast, or attribute 0, or without either zero */
  PL_F_SEEDED = 1 << 9,  /* draws random numbers; `draws` says how many counters */
  PL_F_IMPURE = 1 << 10, /* looks at values to decide its shape, or has side effects */
  PL_F_LATE = 1 << 11,   /* the kernel may refuse a value when part of the output is written: an integer divisor of 0, an index, a
                           * matrix of a batch. So a tensor that is there gets the result when it is whole; what works in place and is
                           * not pointwise looks first */

  /* its memory */
  PL_F_CONTIGUOUS = 1 << 12,  /* the kernel wants contiguous inputs and outputs; the engine copies where needed */
  PL_F_REPEATED = 1 << 13,    /* with PL_F_CONTIGUOUS: an optional input may repeat one element (strides 0), as missing
                               * gradients do, which are zeros */
  PL_F_SPREAD = 1 << 14,      /* with PL_F_CONTIGUOUS: input 1, an index, may be expanded: strides 0 along some dims */
  PL_F_ANY_STRIDES = 1 << 15, /* with PL_F_CONTIGUOUS: the device's kernel reads images that are channels last in place */
  PL_F_OVER = 1 << 16,        /* in a planned graph output 0 may use the memory of input 0: each element is read before its place is
                               * written, none later. Without an in-place form for users */
  PL_F_BY_MEMORY = 1 << 17,   /* a view that depends on the strides of input 0: graphs give it those that were planned */

  /* its gradient */
  PL_F_NOGRAD_OK = 1 << 18, /* no gradient by nature (comparisons, indices): outputs are never tracked */
  PL_F_STOPS = 1 << 19,     /* has a gradient, which is zero by intent: nothing before it is differentiated */
  PL_F_POLY = 1 << 20,      /* the gradient maker looks at no sizes */
  PL_F_LINEAR = 1 << 21,    /* linear in all its floating inputs together: the tangent of op(x) is op(tangent of x) */

  /* what graphs may count on */
  PL_F_COMMUTES = 1 << 22, /* of two inputs: the same bits when they are exchanged */
  PL_F_ZEROS = 1 << 23,    /* all elements of its output are 0 */
  PL_F_SIZES = 1 << 24,    /* the sizes of input 0 as a tensor on the CPU: a constant wherever sizes are known */
  PL_F_COSTLY = 1 << 25,   /* recomputed as seldom as a PL_HEAVY op */

  /* devices */
  PL_F_MOVES = 1 << 26,   /* its result is on the device that attribute 0 says */
  PL_F_CROSSES = 1 << 27, /* copies between devices by itself: inputs and output may be on different ones */

  PL_F_STRIDED = 1 << 28, /* with PL_F_CONTIGUOUS: the CPU's kernel takes any strides of input 0 */
  PL_F_KEEPS = 1 << 29,   /* a copy: its result lies as input 0 does, also where sizes of 0 and 1 leave that open */

  PL_F_WIDE = 1 << 30 /* arithmetic: beside f16 or bf16 a number, or a 0-d tensor of the CPU, is not rounded to that, but is an f32 input */
};

/* PlOp.wraps of comparisons. */
enum { PL_WIDENS = 1 << 7 };

struct PlOp {
  const char *name;
  const char *doc;     /* one or two sentences: what, shapes, errors. help() and the reference print it */
  const char *example; /* a few lines of Lua, each result behind `-->`: help() and the reference show it, a spec runs it */
  const char *formula; /* optional */
  int8_t nin;          /* number of inputs, PL_VARIADIC: a list of tensors */
  int8_t nopt;         /* the last nopt inputs are optional */
  int8_t nout;
  uint8_t nvisible; /* results that Lua shows, the first ones; 0: all. The rest is kept for backward */
  uint8_t spare;    /* of the rest, those that the kernels can do without, where nobody will read them (bit mask) */
  uint8_t nattr;
  const char *args[PL_MAX_IN]; /* input names; a variadic op names its list */
  PlAttrDef attrs[PL_MAX_ATTR];
  PlClass cls;
  uint32_t flags;
  PlPromote promote;
  uint8_t promote_mask; /* 0: all */
  uint8_t autocast;     /* a PlCast */
  uint8_t reads_values; /* inputs whose values infer reads (bit mask) */
  uint8_t over;         /* 1 + the input whose memory output 0 may use on a device, where nobody else wants that input: each element is
                         * read before its place is written, none later. 0: none. Of pointwise ops nobody asks */
  uint8_t sizes;        /* inputs that are sizes (bit mask): small integer tensors, on the CPU whatever the device of the others */
  uint8_t wraps;        /* inputs that may be numbers beyond the dtype of the integers computed with: modulo its range the result is right
                         * (bit mask). Elsewhere such numbers are refused; or PL_WIDENS: there it computes in i64, being of another dtype */
  uint8_t conditions;   /* inputs that choose among the others' elements (bit mask): bool, whatever the others are */
  int kcode;            /* the kernel family's member */
  int16_t fused[2];     /* 1 + its code as a member of a fused kernel on a device, PLK_EW_… or along rows PLK_FUSED_… (kernels/fused.h);
                         * the second one where attribute 0, otherwise not looked at, is not 0. 0: it runs alone */
  PlRows rows;
  PlStatus (*infer)(PlInfer *c);
  /* Whether infer needs of `in`, an input in reads_values, no more than dtype and shape. attrs NULL: defaults. NULL: never */
  bool (*by_shape)(const PlArray *in, const PlAttrs *attrs);
  const struct PlOp
      *sized; /* of an op one of whose inputs, in `sizes` or not, only gives sizes: its twin with these in attribute 0, for graphs */
  PlStatus (*grad)(PlMaker *g);   /* NULL: no gradient */
  const struct PlOp *gradient_of; /* of a gradient's op that has none itself: whose it is, for the message; its own has one, too */
  /* The op by others that have gradients of any order: emits its results into dx[o] from x, with the shapes in outd; attrs and op are
   * those of the gradient's op that asks. Real sizes are in in[i]. Only for those, pl_grad_by_composition: it is slower, and rounds otherwise. NULL: not needed. */
  PlStatus (*composed)(PlMaker *g);
  const PlNative *native;
  /* Of an op that is the gradient of <d, f(x)> for its inputs x: a letter for every input, d: linear in it, x: output k is
   * the gradient of the k-th of these; '.': neither. Its derivative in x is symmetric, so that what `grad` makes of it, with
   * the tangents of x as gradients of the outputs, is the tangent: no third derivative is needed (forward mode). NULL else. */
  const char *hessian;
  /* A maker for tangents, kept only where what forward mode finds by itself was measured to be slower: dy[i] is the tangent of
   * input i (PL_NONE: none), dx[o] becomes that of output o. It may decline: no dx at all. */
  PlStatus (*tangent)(PlMaker *g);
  /* The op together with the tangent of output 0, where input 0 alone has one, in one pass: that goes behind the inputs that must
   * be there, its result behind the outputs; attributes are the first ones of this op. It may refuse anything. NULL: none. */
  const struct PlOp *dual;
  /* The kernel that computes the results with the bits of `kernel` and, beside them, the tangent of output 0 where input 0 alone has one,
   * in one pass: that of the input comes behind all inputs, that of the output goes behind all outputs, a tensor like output 0. All floats
   * are f32 or f64, dense. It may refuse anything: PL_ERR_UNSUPPORTED. Only a faster way to what forward mode finds anyhow. */
  PlKernel with_tangent;
  /* The op in terms of others, run when the device has no kernel. */
  PlStatus (*expand)(PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
  void (*batch)(PlBatchCall *c);          /* NULL: broadcast if elementwise, else one element after the other */
  uint64_t (*draws)(const PlkCall *call); /* PL_F_SEEDED: counters consumed */
  double (*flops)(const PlInfer *c);      /* floating-point operations; NULL: elements of the outputs */
  PlKernel kernel[1];                     /* [PL_CPU] */
  const char *symbol;                     /* that function's name, by which programs link it (engine/deploy/emit.c); NULL: they cannot */
  bool prepares;                          /* the CPU's kernel keeps forms of inputs that stay the same: PlkKept */
  const char *family;                     /* what a device plug-in calls its kernel; NULL: the op's name. See PL_KERNEL */
};

/* The CPU kernel of an op with its family. An op whose kernel is another function, such as one around plk_cpu_NAME, is a
 * family of its own, called like the op. */
#define PL_KERNEL(NAME)         .kernel = {[PL_CPU] = plk_cpu_##NAME}, .symbol = "plk_cpu_" #NAME, .family = #NAME
#define PL_KERNEL_OWN(FUNCTION) .kernel = {[PL_CPU] = FUNCTION}, .symbol = #FUNCTION
/* The head of such a function in engine/ops, named pl_host_OP. */
#define PL_HOST_KERNEL(FUNCTION)          \
  PlStatus FUNCTION(const PlkCall *call); \
  PlStatus FUNCTION(const PlkCall *call)

/* One of the elementwise family: CODE says which, alone and in fused kernels. PL_COPY: a copy, which may convert. */
#define PL_ELEMENTWISE(CODE) .kcode = CODE, .fused = {1 + (CODE)}, PL_KERNEL(elementwise)
#define PL_COPY              .fused = {1 + PLK_EW_CAST}, PL_KERNEL(copy)

/* Defines an op: PL_OP(softmax, .doc = …, .nin = 1, …) is pl_op_softmax, called "softmax". Its fields are PlOp's. */
#define PL_OP(NAME, ...) const PlOp pl_op_##NAME = {.name = #NAME, __VA_ARGS__}

int pl_op_id(const PlOp *op); /* position in the table */

/* ---- helpers for infer rules (engine/ops/infer_rules.c) ------------------------------------------------------------- */

/* A message's description of an array, "f32[2,3]"; uses one of four rotating thread-local buffers. */
const char *pl_desc_text(const PlArray *a);
void pl_desc_text_end(void);             /* frees the buffers: this thread ends */
PlStatus pl_infer_same(PlInfer *c);      /* output 0 like input 0 */
PlStatus pl_infer_broadcast(PlInfer *c); /* all inputs broadcast; dtype = compute */
PlStatus pl_infer_predicate(PlInfer *c); /* the same with dtype bool */
/* Attributes 0 = DIMS (none: all), 1 = keepdim: the reduced shape, dtype as given. */
PlStatus pl_infer_reduced(PlInfer *c, PlDtype dtype);
PlStatus pl_check_float(const PlInfer *c, int i);              /* input i must be floating */
PlStatus pl_check_fits(const PlInfer *c, PlDtype d, double v); /* v, to be an element of dtype d, must not be beyond its integers */
/* The number attribute k, where it is given, meets elements of dtype d as one of them: without a fraction where these are integers. */
PlStatus pl_check_whole(const PlInfer *c, PlDtype d, int k);
PlStatus pl_check_dtype(const PlInfer *c, int i, PlDtype d); /* … exactly d */
PlStatus pl_check_ndim(const PlInfer *c, int i, int lo, int hi);
/* Input i has the shape of input j, or this shape; the dtype of input j. An optional one that is not given passes. */
PlStatus pl_check_like(const PlInfer *c, int i, int j);
PlStatus pl_check_shape(const PlInfer *c, int i, int ndim, const int64_t *shape);
PlStatus pl_check_same_dtype(const PlInfer *c, int i, int j);
/* The integer attribute k, where it is given, is a dimension of a tensor of ndim dims, 0-based. Internal ops have such
 * attributes: their makers resolved them. */
PlStatus pl_check_axis(const PlInfer *c, int k, int ndim);
void pl_desc_set(PlDesc *d, PlDtype dtype, int ndim, const int64_t *shape);
PlDtype pl_promote2(PlDtype a, PlDtype b);
/* Is every element of its results made of the inputs' elements at that place alone, wherever they lie? A pointwise op whose kernel wants
 * contiguous arrays may look at the place (tril, triu): other layouts, and other dims, are not for it. */
static inline bool pl_op_each(const PlOp *op) { return op->cls == PL_POINTWISE && !(op->flags & PL_F_CONTIGUOUS); }
static inline bool pl_is_half(PlDtype d) { return d == PL_F16 || d == PL_BF16; }
/* The common dtype of inputs that are promoted already: that of input 0, but that of halves where others are f32 beside them (PL_F_WIDE). */
PlDtype pl_compute_dtype(const PlOp *op, int nin, const PlArray *const *in);
PlDtype pl_default_float(void);
void pl_set_default_float(PlDtype d);

#endif
