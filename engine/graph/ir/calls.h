/* SPDX-License-Identifier: MIT
 * What a traced function asked of the engine, call by call, so that the trace can be made again for other sizes without the
 * function (docs/design/symbolic-sizes.md). trace/calls.c notes them, trace/replay.c makes them again.
 *
 * A call is noted where Lua's functions meet the engine: an op, a backward walk, a look at a .grad. What these do inside
 * (shape rules, expansions, gradients) is not noted: it runs again, for the sizes that there are then. What the function
 * saw of sizes is noted, too; where it would see something else the calls say nothing about it. */
#ifndef PL_ENGINE_GRAPH_IR_CALLS_H
#define PL_ENGINE_GRAPH_IR_CALLS_H

#include "engine/call/thread_state.h"
#include "engine/graph/ir/graph.h"

typedef enum PlCallKind {
  PL_CALL_OP,            /* pl_sym_apply */
  PL_CALL_INTO,          /* pl_sym_apply_into; the last input is what is written */
  PL_CALL_BACKWARD,      /* ys, dys, and the leaves where only some are meant */
  PL_CALL_GRAD_OF,       /* ys, dys, xs */
  PL_CALL_LOOK_GRAD,     /* .grad is read */
  PL_CALL_SET_GRAD,      /* .grad is set */
  PL_CALL_REQUIRES_GRAD, /* of a symbolic tensor */
  PL_CALL_DETACH,
  PL_CALL_AGAIN /* a function of the library's that looks at sizes: it is called again as a whole */
} PlCallKind;

typedef struct PlNotedCall {
  uint8_t kind;
  bool retain, create, unused; /* retain: of REQUIRES_GRAD, on or off */
  int8_t mark;
  PlScope scope; /* what the script had opened around it */
  const PlOp *op;
  PlAttrs *attrs; /* as they were given, in the graph's pool; NULL: none */
  int32_t nin, nout, ny, nx;
  int32_t *in, *out; /* numbers of tensors in PlCalls.t; -1: none */
  int32_t values;    /* how many the graph had before it */
} PlNotedCall;

/* What the function saw: a size, or more. */
enum {
  PL_SAW_SHAPE = -1,
  PL_SAW_STRIDES = -2,
  PL_SAW_NUMEL = -3,
  PL_SAW_LAYOUT = -4 /* row-major or channels last */,
  PL_SAW_SCRIPT_LAYOUT = -5 /* that, for the script */,
  PL_SAW_ONES = -6 /* which of its sizes are 1: those that broadcast */
};
typedef struct PlSaw {
  PlGVal v;
  int dim; /* from 0 on, or PL_SAW_… */
} PlSaw;

typedef struct PlCalls {
  const char *refused; /* why the calls cannot be made again; NULL: they can */
  PlNotedCall *list;
  PlSaw *saw;
  /* All tensors of the calls: arguments, results (NULL when the trace is over), and real ones from outside. Held while the
   * trace runs, so that an address means one tensor. */
  PlTensor **t;
  bool *real;
  int32_t *slots; /* hash of addresses */
  int32_t n, nsaw, nt, cap, cap_saw, cap_t, nslots;
  int32_t nargs;    /* the first of t are arguments: inputs of the graph */
  int32_t *grad_at; /* per argument: the argument that is its .grad, -1 */
  bool *wants;      /* per argument: it requires a gradient */
  int32_t depth, nodes;
  int32_t nagain;   /* functions that are called again */
  bool inside;      /* one runs */
  PlDtype floating; /* the default dtype */
} PlCalls;

/* Begins to note, for a graph with these inputs. */
PlStatus pl_calls_new(PlGraph *f, int n, PlTensor *const *args);
void pl_calls_free(PlCalls *c); /* NULL is fine */
/* The trace is over: symbolic tensors go. */
void pl_calls_close(PlGraph *f);
/* The calls cannot be made again: why (a format, as printf's). */
void pl_calls_refuse(PlGraph *f, const char *why, ...) __attribute__((format(printf, 2, 3)));
/* If a function runs that is to be called again: it cannot be. */
void pl_calls_spoil(PlGraph *f, const char *why);
/* The function sees a size of t. */
void pl_calls_saw(PlTensor *t, int dim);

/* Around a call: enter, then leave with what it was and gave. Only the outermost one is noted. */
typedef struct PlCalling {
  PlGraph *f; /* NULL: nothing is noted */
  int32_t values;
} PlCalling;
typedef struct PlCallIs {
  PlCallKind kind;
  const PlOp *op;
  const PlAttrs *attrs;
  PlTensor *const *in[3];
  int n[3];
  bool retain, create, unused;
  PlTensor *const *out;
  int nout;
} PlCallIs;
PlCalling pl_calls_enter(PlGraph *f);
PlStatus pl_calls_leave(const PlCalling *k, PlStatus s, const PlCallIs *is);

/* Around such a function. begin: false: it is not noted, as nothing is or as it is a part of another call. end: its number,
 * from 0 on; -1: it cannot be called again. ok: it returned. */
bool pl_calls_again_begin(PlGraph *f, PlCalling *k);
int32_t pl_calls_again_end(const PlCalling *k, bool ok, int nin, PlTensor *const *in, int nout, PlTensor *const *out);

/* Calls function `number` again. out[nout]: the caller's, as many as there were. */
typedef struct PlAgain {
  PlStatus (*call)(void *ud, int32_t number, int nin, PlTensor *const *in, int nout, PlTensor **out);
  void *ud;
} PlAgain;

/* The graph that the trace of f would have been with inputs of these shapes; the same numbers stand for the same nodes
 * and values. strict: what the engine made as a real tensor has to be the same, too. grads as pl_graph_leaf_grads gives them. *out NULL, and why: it would have been another one, or that cannot be known.
 * Errors: no memory, Ctrl-C. */
enum { PL_WHY = 400 };
PlStatus pl_graph_replay(PlGraph **out, const PlGraph *f, PlTensor *const *in, const PlAgain *again, bool strict, PlGVal *grads, char *why);

#endif
