/* SPDX-License-Identifier: MIT
 * Graphs: whole programs as data. A graph is a list of nodes (calls of ops) over typed values, in an order in which
 * they may run. T.graph builds one by hand, T.jit by tracing; passes rewrite it, the planner places it in memory,
 * an executor runs it. The small PlGradGraph of engine/grad is what gradient makers emit for one op, without sizes;
 * it enters a graph by being run on symbolic tensors.
 *
 * Ownership: a graph is counted; whoever keeps one retains it. Nodes, values and stores are positions (int32) in the
 * graph's arrays, never pointers, since arrays grow; names, sizes and attributes live in the graph's pool until its end.
 * A symbolic tensor is an ordinary PlTensor whose array says `symbolic`: its shape, strides and dtype are real, its
 * data is no address but the value's position (pl_sym_value), its storage (PlSymStorage) retains the graph. Values never
 * refer to tensors, except leaves of kind CAPTURE and CONST, which retain the real tensor they represent.
 *
 * Order: nodes[0 …) is the order of execution. An input is a leaf or an output of an earlier node. A node that
 * `mutates` writes into the memory (store) of inputs and gives each of them a new value in the same store: who
 * reads after it reads the new value, who reads the old one runs before it (pl_graph_verify checks both). */
#ifndef PL_ENGINE_GRAPH_IR_GRAPH_H
#define PL_ENGINE_GRAPH_IR_GRAPH_H

#include <string.h>

#include "engine/tensor/tensor.h"

typedef int32_t PlGVal; /* position of a value; -1: none (an optional input not given) */

typedef enum PlGKind {
  PL_FV_NODE,    /* output `slot` of `node` */
  PL_FV_INPUT,   /* fed at each run; `slot` counts inputs */
  PL_FV_CAPTURE, /* a real tensor read, or written, by reference at each run: parameters, buffers */
  PL_FV_CONST    /* a real tensor that never changes: numbers of scripts, shapes */
} PlGKind;

/* dtype PL_NDTYPE: an output that this call does not have; nobody reads it. */
typedef struct PlGValue {
  uint8_t kind, dtype, ndim, weak, contiguous;
  uint8_t device; /* while building: its device in the call that is traced */
  bool leaf;      /* inputs declared as leaves (parameters); always true for captures */
  int32_t node, slot;
  int32_t store;
  int32_t version; /* of its store, when it was made */
  int64_t offset;  /* elements from the beginning of the store */
  int64_t numel;
  int64_t *dims;    /* shape, then strides in elements */
  const char *name; /* inputs; NULL: made from the node's */
  PlTensor *real;   /* CAPTURE, CONST */
} PlGValue;

/* One piece of memory. Views share the store of what they look at. */
typedef struct PlGStore {
  int64_t bytes;
  PlGVal first;              /* the value that came with it */
  PlGVal root;               /* while building: the newest value that covers it all; -1: nobody knows it */
  int32_t version;           /* moves with every write */
  uint8_t layout_notes;      /* while building: PL_LAYOUT_… */
  bool has_history;          /* while building: what the last storage object knew (PlStorage.has_history) */
  struct PlSymStorage *live; /* while building: the storage object of symbolic handles on it, weak */
} PlGStore;

/* Values of a graph are row-major, whatever they would be without it: what depends on that must be noticed (pl_sym_layout_known). */
enum {
  PL_LAYOUT_OF_ARGUMENT = 1, /* it would lie as an argument does */
  PL_LAYOUT_NAMED = 2,       /* it would not be row-major: the script asked for another memory format */
  PL_LAYOUT_TAKEN = 4,       /* something was taken from it, or it was taken, that is a view or a copy as an argument lies */
  PL_LAYOUT_UNKNOWN = 8      /* the same, as memory of a named format lies */
};

enum {
  PL_FN_MUTATES = 1,    /* output k is a new value in the store of its k-th written input (pl_graph_written) */
  PL_FN_RECOMPUTED = 2, /* repeats node `origin` for the backward half; never merged with it */
  PL_FN_DEAD = 4,       /* nobody needs it; the next pl_graph_compact drops it */
  PL_FN_VIEW = 8,       /* output 0 is a window of input 0's store: costs nothing */
  PL_FN_NAMED = 16,
  PL_FN_NO_GRAD = 32, /* the script ran it where gradients are off: none goes through it */
  PL_FN_PLACED = 128, /* makes something on the CPU, as the script says, though leaves are on a GPU */
  PL_FN_THROUGH = 64  /* a write that no history knows of: each output's gradient is that of the input that it overwrites */
};

typedef struct PlGNode {
  const PlOp *op;
  PlAttrs *attrs; /* normalized, in the pool; NULL: the op has none */
  int32_t nin, nout;
  PlGVal *in;
  PlGVal first; /* outputs are values first … first + nout - 1 */
  uint8_t flags;
  uint8_t stage;  /* 0: forward; n: emitted by the n-th gradient pass */
  int32_t origin; /* RECOMPUTED: the node repeated; gradient nodes: the forward node; else -1 */
  int32_t source; /* its number in the graph that was cloned (a recomputed one has its original's); -1: a pass made it */
  int8_t mark;    /* PlRecomputeChoice: what the script said where the node was made */
  int32_t whole;  /* nodes of one number are of one piece, which Ctrl-C does not part (pl_graph_hold); 0: it may */
  int32_t draw;   /* seeded ops: number of the draw, counted in program order; a recomputed one has its original's; else -1 */
  const char *name;
  const char *where; /* source line of the script, or NULL */
  double flops;
  int64_t window; /* VIEW: where output 0 begins, in elements behind input 0 */
  int32_t *after; /* nodes that must run before it though it reads nothing of theirs */
  int32_t nafter;
} PlGNode;

/* Which forward nodes may be computed again in the backward half, and how that is decided (recompute.h). */
typedef struct PlRecomputeOptions {
  int policy;         /* PlRecomputePolicy */
  double fraction;    /* budget as a fraction of the stash; < 0: none */
  int64_t bytes;      /* budget in bytes of planned peak; < 0: none */
  bool seeded, heavy; /* may random, may heavy ops be repeated */
  bool listed;        /* only nodes that `choice` names may */
  int8_t *choice;     /* per node of the graph: PlRecomputeChoice; or NULL */
  int32_t nchoice;
} PlRecomputeOptions;
typedef enum PlRecomputeChoice {
  PL_RECOMPUTE_PIN = -1,
  PL_RECOMPUTE_BY_POLICY = 0,
  PL_RECOMPUTE_MAY = 1,
  PL_RECOMPUTE_FORCE = 2
} PlRecomputeChoice;
typedef enum PlRecomputePolicy { PL_RECOMPUTE_NONE, PL_RECOMPUTE_GREEDY, PL_RECOMPUTE_MINCUT, PL_RECOMPUTE_AUTO } PlRecomputePolicy;

/* One gradient pass: which part of the graph it added (nodes of stage `stage`), and what may be recomputed. */
typedef struct PlGRegion {
  int32_t begin, end; /* its nodes when it was made; nodes of clones are found by stage and source */
  int32_t ny;
  PlGVal *ys;
  PlRecomputeOptions recompute;
} PlGRegion;

typedef struct PlChunk PlChunk;

/* What a traced function expects of a leaf's .grad. */
typedef enum PlGGrad {
  PL_FGRAD_NONE,  /* to be nil */
  PL_FGRAD_SOME,  /* to be there: it asks whether it is */
  PL_FGRAD_ANY,   /* nothing: it does not read it, or sets it to nil first */
  PL_FGRAD_INPUT, /* to be there: it reads whatever tensor it is, as input `slot` */
  PL_FGRAD_SAME   /* to be this very tensor */
} PlGGrad;

/* A real leaf that a trace met: its .grad belongs to what the traced function reads and leaves behind. */
typedef struct PlGLeaf {
  PlTensor *t;
  PlTensor *grad;   /* its .grad when it was first met, or NULL; after the trace only of SAME */
  bool zeroed;      /* the function set .grad to nil, or to another tensor, before it read the one that was there */
  bool looked;      /* it asked for .grad before that */
  bool had;         /* there was a .grad when it was first met */
  bool given;       /* a result is the .grad that was there, which a run gives back: it has to be that very one */
  bool cleared;     /* there was a .grad that the function read, and there is none when it has ended */
  bool torn;        /* while traced: its .grad was torn when it was first met (grad/leaf_sums.c); in a run: before it */
  bool asks;        /* the function asked whether a .grad is torn that has a part of the one that was there */
  bool keeps;       /* the .grad that it leaves has such a part */
  uint32_t torn_at; /* the node's, while traced */
  uint64_t hooks;   /* which hooks it had then (pl_graph_leaf_hooks) */
  PlGGrad expects;  /* known when the trace is over */
  int32_t slot;
} PlGLeaf;

/* A line of the script, and the record numbers of what it put on tapes. */
typedef struct PlGLine {
  uint64_t first, last;
  const char *where;
} PlGLine;

/* A captured value whose version the traced function asked for. */
typedef struct PlGVersion {
  PlGVal v;
  uint32_t version;
} PlGVersion;

/* A tensor from outside whose requires_grad the traced function changes: whether it required a gradient before, and when all was over. */
typedef struct PlGSwitch {
  PlTensor *t;
  bool was, now;
} PlGSwitch;

typedef struct PlGraph {
  uint32_t refs;
  struct PlGraph *base;  /* a clone retains what it was made from: it owns names, sizes and attributes */
  bool record;           /* tapes see ops on its symbolic tensors (tracing); T.graph: no */
  bool closed;           /* tracing is over: no more nodes */
  const char *opaque;    /* a gradient that only the tape knows (a hook, a rule of T.custom) was met; NULL: none */
  bool unsafe_math;      /* passes may use identities that hold for real numbers only */
  bool alone;            /* it will run where no library of products is: layouts of theirs would only be turned back */
  uint8_t stage;         /* of nodes added from now on */
  int32_t origin;        /* the same */
  int8_t mark;           /* the same */
  int32_t holding, held; /* how many holds are open (pl_graph_hold), and the number of the newest */
  const char *emit_name; /* base name of nodes added from now on, or NULL: after their ops */
  int32_t emit_count;
  uint64_t edition; /* moves with every change: what was compiled before is stale */
  PlGValue *vals;
  PlGNode *nodes;
  PlGStore *stores;
  int32_t nvals, nnodes, nstores, ninputs, ndraws;
  int32_t cap_vals, cap_nodes, cap_stores;
  PlGVal *outputs;
  int32_t noutputs;
  PlGRegion *regions;
  int32_t nregions;
  int32_t *captures; /* hash of (storage, window) → value */
  int32_t ncaptures, cap_captures;
  int32_t *counts;              /* per op: how many nodes were named after it */
  PlRecomputeOptions recompute; /* of backward walks that are traced; policy 0: none */
  PlGLeaf *leaves;              /* met while recording (trace.c) */
  int32_t nleaves, cap_leaves;
  PlGVersion *versions;
  int32_t nversions;
  PlGSwitch *switches;
  int32_t nswitches;
  PlGLine *lines; /* of what tapes recorded, in order (trace.c) */
  int32_t nlines, cap_lines;
  uint64_t began;        /* tracing: the tapes' newest record number when it began */
  uint64_t tape;         /* record number of the tape's node whose gradient is emitted now; 0: none */
  PlChunk *chunks;       /* the pool */
  int32_t asked;         /* of whom the traced function asked gradients by grad_of: 0 nobody, n argument tensor n alone, -1 others */
  bool gradients;        /* the traced function walks, or sets a .grad: so it matters which leaves its arguments are */
  bool reads_layout;     /* the traced function asked how a tensor lies in memory; arguments were taken as row-major */
  struct PlCalls *calls; /* what the traced function asked for (trace/calls.h); NULL: nobody notes it */
  /* Text of the script's current line, asked once per node; NULL: nobody knows. */
  const char *(*where)(void *ud);
  void *where_ud;
} PlGraph;

/* ---- making (graph.c) ---- */
PlStatus pl_graph_new(PlGraph **out);
PlGraph *pl_graph_retain(PlGraph *f);
void pl_graph_release(PlGraph *f);
void *pl_graph_alloc(PlGraph *f, size_t n);             /* from the pool, zeroed; NULL: out of memory */
const char *pl_graph_string(PlGraph *f, const char *s); /* a copy in the pool; NULL: out of memory */
/* A value with a store of its own (store < 0) or in an existing one. */
PlStatus pl_graph_value(PlGraph *f, PlGKind kind, const PlArray *type, int32_t store, int64_t offset, PlGVal *out);
PlStatus pl_graph_input(PlGraph *f, const char *name, PlDtype d, int ndim, const int64_t *shape, bool leaf, PlGVal *out);
/* The same, which lies in memory as that tensor does, on the CPU: runs copy what lies otherwise. like NULL: row-major. */
PlStatus pl_graph_input_like(PlGraph *f, const char *name, PlDtype d, int ndim, const int64_t *shape, const PlArray *like, bool leaf,
                             PlGVal *out);
/* A traced function asks whether t, from outside, has a history, or how often it was written: then it counts as captured. */
PlStatus pl_graph_saw_history(PlGraph *f, PlTensor *t);
PlStatus pl_graph_saw_version(PlGraph *f, PlTensor *t);
bool pl_graph_versions_same(const PlGraph *f);
/* The traced function is about to change whether t requires a gradient; the trace is over; do those of then require one as then?
 * (requires_grad.c) */
PlStatus pl_graph_switches(PlGraph *f, PlTensor *t);
void pl_graph_switches_end(PlGraph *f);
void pl_graph_switches_back(const PlGraph *f); /* of a trace that failed: as it was before */
bool pl_graph_switches_same(const PlGraph *f);
/* Does t, which the trace met, rest in all of it? Then results have no gradient for it. */
bool pl_graph_rests(const PlGraph *f, const PlTensor *t);
/* What has to be as it was for from counts for to, a trace for other sizes: their values have the same numbers. */
PlStatus pl_graph_guards_copy(PlGraph *to, const PlGraph *from);
/* A traced function asks for gradients of these. */
void pl_graph_asked(PlGraph *f, PlTensor *const *xs, int nx);
/* A number for the hooks of t that run when a walk comes to it, 0: t is no leaf, or has none. */
uint64_t pl_graph_leaf_hooks(const PlTensor *t);
/* The leaf that represents a real tensor: the same one each time, and another one for other histories in the same memory. */
PlStatus pl_graph_capture(PlGraph *f, PlTensor *t, PlGVal *out);
PlStatus pl_graph_const(PlGraph *f, PlTensor *t, PlGVal *out);
PlStatus pl_graph_node(PlGraph *f, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *attrs, const PlDesc *desc, uint8_t flags,
                       int32_t *node);
PlStatus pl_graph_set_outputs(PlGraph *f, int n, const PlGVal *v);
/* From here on (more = 1) to the matching -1 the script lets Ctrl-C wait, such as in an optimizer's step: so do runs. */
void pl_graph_hold(PlGraph *f, int more);
/* Node i is of that piece, by number from 1, of the graph that this one was saved from. */
void pl_graph_piece(PlGraph *f, int32_t i, int32_t piece);
/* How far a graph has come, to take back what was added since; `counts` is freed by the caller. */
typedef struct PlGMark {
  int32_t nvals, nnodes, nstores, ndraws, ncaptures;
  int32_t *counts;
} PlGMark;
PlStatus pl_graph_mark(const PlGraph *f, PlGMark *m);
/* What came since goes, unless somebody holds a tensor of it: then it stays, as nodes that no output needs. */
void pl_graph_back(PlGraph *f, const PlGMark *m);
PlStatus pl_graph_after(PlGraph *f, int32_t node, int32_t before); /* ordering edge */
/* ---- rewriting (rewrite.c) ---- */
/* A copy that passes may change; node and value numbers are the same, symbolic tensors of f do not belong to it. */
PlStatus pl_graph_clone(PlGraph **out, PlGraph *f);
/* Drops dead nodes, unread captures and constants, empty stores; renumbers. order[] (NULL: as they are) is a new order
 * of all nodes, dead ones included. */
PlStatus pl_graph_compact(PlGraph *f, const int32_t *order);
/* written[s] = 1 for stores that some node writes into. */
void pl_graph_written(const PlGraph *f, uint8_t *written);
/* All readers of v, outputs too, read map[v] instead. */
void pl_graph_rewire(PlGraph *f, const PlGVal *map);
/* A further node like node i, reading in[] instead; attributes and what it waits for are the same. Its outputs have new stores. */
PlStatus pl_graph_repeat(PlGraph *f, int32_t i, const PlGVal *in, const char *name, int32_t *node);
/* The same inputs give the same outputs, nothing else happens. */
bool pl_gnode_pure(const PlGNode *n);
/* How many of n's first inputs it writes. */
static inline int32_t pl_gnode_written(const PlGNode *n) { return n->flags & PL_FN_MUTATES ? n->nout : 0; }
/* Must n run after a node at `begin` or behind it that it reads nothing of? Then it is not fused with that one. */
static inline bool pl_gnode_waits(const PlGNode *n, int32_t begin) {
  for (int32_t k = 0; k < n->nafter; k++)
    if (n->after[k] >= begin) return true;
  return false;
}
static inline PlArray pl_gvalue_array(const PlGValue *v) {
  return (PlArray){.numel = v->numel,
                   .shape = v->dims,
                   .strides = v->dims ? v->dims + v->ndim : NULL,
                   .dtype = v->dtype,
                   .ndim = v->ndim,
                   .contiguous = v->contiguous,
                   .weak = v->weak,
                   .device = v->device,
                   .symbolic = 1};
}
/* Do a's elements lie where the plan has those of leaf v? */
static inline bool pl_graph_layout_fits(const PlGValue *v, const PlArray *a) {
  return v->contiguous ? a->contiguous : memcmp(a->strides, v->dims + v->ndim, v->ndim * sizeof *v->dims) == 0;
}
/* A copy of t that does. */
PlStatus pl_graph_laid(const PlGValue *v, PlTensor *t, PlTensor **out);
static inline int64_t pl_gvalue_bytes(const PlGValue *v) {
  return v->dtype == PL_NDTYPE ? 0 : v->numel * (int64_t)pl_dtype_size((PlDtype)v->dtype);
}

/* ---- symbolic tensors (symbolic.c) ---- */
typedef struct PlSymStorage {
  PlStorage s; /* first */
  PlGraph *graph;
  int32_t store;
} PlSymStorage;

static inline PlGraph *pl_sym_graph(const PlTensor *t) { return ((PlSymStorage *)(void *)t->storage)->graph; }
static inline PlGVal pl_sym_value(const PlTensor *t) { return (PlGVal)((uintptr_t)t->a.data - 1); }
/* Where t begins in base, in elements. */
int64_t pl_sym_offset(const PlTensor *t, const PlTensor *base);
/* A handle on value v. */
PlStatus pl_sym_tensor(PlTensor **out, PlGraph *f, PlGVal v);
/* Somebody, by the name of what, asks how t lies in memory: an error if that is not known. */
PlStatus pl_sym_layout_known(const PlTensor *t, const char *what);
/* The value that represents t in f: of a symbolic tensor, a captured real one, or a number. */
PlStatus pl_sym_value_of(PlGraph *f, PlTensor *t, PlGVal *out);
/* pl_apply and its kin come here when an input is symbolic or a trace runs. */
PlStatus pl_sym_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
PlStatus pl_sym_apply_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out);
bool pl_sym_constant(const PlTensor *t); /* in a trace: is t in memory that every run reads, such as the 1 of a backward? */

/* ---- gradients (gradient.c) ---- */
typedef struct PlGradientOptions {
  bool copy;           /* two xs with one gradient: the second is a copy, not an alias */
  const PlOp *copy_op; /* what makes it; NULL: clone */
  /* Ops whose results are zeros: gradients that are drop out of sums, and where all that arrive are, a node without a rule gives
   * zeros on. The first op makes those, of a node's input where it takes one. NULL: zeros. */
  const PlOp *const *zero_ops;
  int nzero_ops;
  bool allow_unused; /* unreachable xs give -1 */
  /* Replaces the sum of two and more gradients of one value; NULL: add in a chain. */
  PlStatus (*aggregate)(void *ud, PlGraph *f, int n, const PlGVal *v, PlGVal *out);
  void *ud;
  PlRecomputeOptions recompute; /* taken over (choice: malloc'ed) on success */
} PlGradientOptions;
/* Gradients of ys, seeded with dys (-1: ones), for xs. dx[i] is -1 for an unused x. */
PlStatus pl_graph_gradient(PlGraph *f, int ny, const PlGVal *ys, const PlGVal *dys, int nx, const PlGVal *xs, PlGradientOptions *opts,
                           PlGVal *dx);

/* Notes a gradient pass: nodes from `begin` on; takes over m->choice. */
void pl_graph_regions_drop(PlGraph *f);
PlStatus pl_graph_region(PlGraph *f, int32_t begin, int ny, const PlGVal *ys, PlRecomputeOptions *m);
/* ---- tracing (trace.c) ---- */
/* t is a real leaf whose gradient entry goes into the graph; zeroed: the script assigns another .grad. */
PlStatus pl_graph_leaf(PlGraph *f, PlTensor *t, bool zeroed);
/* The script reads its .grad. */
PlStatus pl_graph_leaf_look(PlGraph *f, PlTensor *t);
/* Ends the recording: symbolic .grads of leaves leave them and become grads[nleaves] (values, -1: none); real ones that
 * were read become inputs. On failure of the traced function call it too: no symbolic tensor stays in a leaf. */
PlStatus pl_graph_leaf_grads(PlGraph *f, PlGVal *grads);
void pl_graph_leaves_drop(PlGraph *f);
/* What was recorded from number `first` on belongs to the newest node's line; gradients of it will, too. */
PlStatus pl_graph_note_line(PlGraph *f, uint64_t first);
/* The line that the next node belongs to. */
const char *pl_graph_line(const PlGraph *f);
/* A backward walk runs while f is recorded: its nodes are a region, which f->recompute may have recomputed. */
int32_t pl_graph_backward_begin(PlGraph *f);
PlStatus pl_graph_backward_end(PlGraph *f, int32_t begin, int ny, PlTensor *const *ys);
/* A result of the traced function is t, a real tensor: perhaps the .grad of a leaf, which a later call may find another one in. */
void pl_graph_leaf_give(PlGraph *f, const PlTensor *t);
/* Would the function, called now, read the same .grads as when it was traced? */
/* pl_grad_torn in a trace: noted, so that a run on what is torn is the script's to refuse. */
bool pl_graph_leaf_torn(PlGraph *f, PlTensor *t);
/* Moves with each write to g, a leaf's .grad, that the graph knows of. */
uint32_t pl_graph_grad_version(const PlGraph *f, const PlTensor *g);
/* A run begins; it has ended: sums that the function only added to are still torn. */
void pl_graph_torn_note(PlGraph *f);
void pl_graph_torn_keep(PlGraph *f);
bool pl_graph_leaves_same(const PlGraph *f, const int32_t *given);

/* ---- programs whose results have gradients (joint.c) ---- */
/* A traced graph as a differentiable function: `forward` gives ys and then what backward keeps; `backward` takes the same
 * inputs, then dys, then what was kept, and gives gradients of xs. */
typedef struct PlJoint {
  uint32_t refs;
  PlGraph *forward, *backward;
  struct PlExec *run_forward, *run_backward;
  const char *name;                 /* outlives it */
  int32_t nin, ny, nout, nkept, nx; /* ny of the nout results have gradients */
  int32_t *dx_at;                   /* per x: output of backward, -1: no gradient goes there */
  bool *reach;                      /* [x][y]: does the gradient of y reach x? Where none of those that arrive does x has no gradient */
  bool *inside;                     /* [y]: another result is computed from it: only a part of its gradient arrives from outside */
  PlTensor **read;                  /* captured tensors, held by the graphs: those that backward reads, and what else forward does */
  int32_t nread_back, nread;
  bool *input_read;       /* which inputs backward reads */
  PlGVal *xs;             /* values of forward */
  int32_t noutside;       /* xs that are captured tensors with a history, of which the flows have handles without it */
  struct PlJoint *second; /* dxs as a function of inputs and dys, differentiable in turn; made when first asked for */
} PlJoint;
/* ys, xs: values of f. xs are inputs or captured leaves. outputs of f must be set; ys are the first of them, the
 * rest comes without a gradient. */
PlStatus pl_joint_make(PlJoint **out, PlGraph *f, int32_t ny, int32_t nx, const PlGVal *xs, const char *name);
void pl_joint_release(PlJoint *j);
/* Runs forward; where the tape of a key sees an x, the results are recorded on it. x[nx] are the real tensors of xs.
 * out[nout] owned by the caller. */
PlStatus pl_joint_run(PlJoint *j, PlTensor *const *in, PlTensor *const *x, PlTensor **out);

/* ---- looking (text.c, verify.c) ---- */
/* malloc'ed; NULL: out of memory. stage_of (per node: 1 recomputed) may be NULL. */
char *pl_graph_text(const PlGraph *f, const uint8_t *recomputed);
char *pl_graph_dot(const PlGraph *f);
/* Do node i's inputs and these attributes, in place of its own, still give what it gives? What was compiled relies on it. */
PlStatus pl_graph_node_takes(const PlGraph *f, int32_t i, const PlAttrs *attrs);
/* ---- steps of training (steps.c) ---- */
/* Is it an optimizer's? Other nodes write as well: running statistics, averages. */
bool pl_graph_is_step(const PlGNode *n);
/* Attribute of that name of an optimizer's node; -1: there is none. */
int pl_graph_step_attr(const PlGNode *n, const char *name);
/* Node i, which writes, has these attributes from now on. Errors: those of its op. */
PlStatus pl_graph_step_put(const PlGraph *f, int32_t i, const PlAttrs *now);
/* How many nodes behind node i (after = true), or before it, step the same tensors' same states: a run of the graph is as many steps of
 * one optimizer, of which each node's attributes tell its own. */
int32_t pl_graph_steps_beside(const PlGraph *f, int32_t i, bool after);
/* The next run is a step further than the newest. Where it failed, only the steps that it made count: ran(ud, i) asks, of a node of f, and
 * nothing can fail any more. NULL: the run came to its end. */
typedef struct PlGraphSteps PlGraphSteps;
typedef bool PlGraphRan(void *ud, int32_t node);
PlStatus pl_graph_steps_begin(PlGraphSteps **out, const PlGraph *f);
void pl_graph_steps_end(PlGraphSteps *s, PlGraphRan *ran, void *ud); /* frees s; NULL is fine */

/* Our own bugs only: a graph that any pass made must pass. */
PlStatus pl_graph_verify(const PlGraph *f);

/* ---- running (reference.c): node by node through pl_apply, the judge of faster executors ---- */
/* in[ninputs], out[noutputs] (owned by the caller). */
PlStatus pl_graph_run(const PlGraph *f, PlTensor *const *in, PlTensor **out);
/* Does running f do anything: has it outputs, or nodes that write into leaves? */
bool pl_graph_acts(const PlGraph *f);
/* Does the graph itself decide about devices: values move between them, or are made on a GPU though no leaf is on one? */
bool pl_graph_crosses(const PlGraph *f);
/* Where a node makes something out of nothing: with the leaves (the first device of theirs), or, as_traced (they are on
 * several GPUs, or the graph crosses), where it did so in the trace; on the CPU if that was asked for beside a GPU's leaves. */
uint8_t pl_graph_makes_on(const PlGraph *f, const PlGNode *n, uint8_t leaves, bool as_traced);

#endif
