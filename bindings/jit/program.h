/* SPDX-License-Identifier: MIT
 * Programs: what T.jit keeps of a traced function. A traced graph with its executor, and where gradients of real leaves go.
 * program.c makes and runs them, program_inspect.c tells about them. */
#ifndef PL_BINDINGS_JIT_PROGRAM_H
#define PL_BINDINGS_JIT_PROGRAM_H

#include "bindings/graph/graph.h"
#include "engine/graph/run/executor.h"

/* What a function did with an argument that a graph does not say: it wrote it in place with a value that a backward went through, or
 * detached it then, so that it is no view any more. */
typedef enum LAfter { L_AFTER_NOTHING, L_AFTER_SPENT, L_AFTER_DETACHED } LAfter;

typedef struct Program {
  PlGraph *f;
  int32_t nargs;                /* inputs that are tensors of the call; then come .grads of leaves */
  int32_t nuser;                /* outputs that the function returned; then come gradients of leaves */
  int32_t spent_from, spent_to; /* of these, what a backward in the function went through: they get a freed history (spent.c) */
  uint8_t *after;               /* per argument a LAfter; NULL: nothing of the kind */
  const char *spent_name;       /* of which errors say that it was freed here */
  int32_t *leaf_at;             /* per leaf: its output, -1: none */
  PlJoint *joint;               /* results have gradients; NULL: no */
  PlTensor **x;                 /* joint: per x the captured tensor; NULL: input x_at */
  int32_t *x_at, nx;
  PlGVal *inputs;  /* per argument: its value */
  PlGVal *written; /* inputs and captured tensors that a run writes */
  int32_t nwritten;
  PlGVal *captured; /* values of tensors from outside */
  PlTensor **real;  /* … themselves: the flow has handles without a history in place of all but leaves */
  bool *tracked;    /* … and whether they required a gradient */
  int32_t ncaptured;
  PlExec *exec; /* NULL: nothing was compiled (no outputs, or a joint, which has its own) */
} Program;

Program *l_check_program(lua_State *L, int i); /* raises */
/* in[ninputs]: those of the call are set; .grads of leaves are filled in behind them. false: one that is read is gone. */
bool l_program_inputs(const Program *p, PlTensor **in);
/* Are the .grads, and what requires a gradient, as the trace found them? */
bool l_program_same(const Program *p);
/* May the graph run with these? Not if one that is written is not contiguous (a copy would be written), or if one of two
 * that share memory is written: the graph's order knows nothing of that. Nor if the function asked how something lies in memory and
 * one is not row-major, as the trace took it. */
bool l_program_apart(const Program *p, PlTensor *const *in);
/* Runs it and puts gradients into leaves; out[noutputs], of which the first nuser are the caller's. */
PlStatus l_program_run(lua_State *L, const Program *p, PlTensor *const *in, PlTensor **out);

/* A run failed with s: calls the function at `undo`, if it is one, with the trace at `trace`, and raises. */
/* A call begins: what jit_ran says is of its run. */
void l_program_begin(const Program *p);
int l_program_failed(lua_State *L, PlStatus s, int undo, int trace);
/* lua_call while which Ctrl-C waits. */
void l_call_held(lua_State *L, int nargs, int nresults);

/* Functions of C that a traced function may call with its tensors: what they see of sizes they say (l_saw). (watched.c) */
typedef struct LKnown LKnown;
LKnown *l_known_functions(lua_State *L); /* malloc'ed; NULL: no memory */
/* f is about to be called; if it is none of them and gets a tensor of the trace, the trace stands for its own sizes only. */
void l_known_check(lua_State *L, lua_Debug *ar, const LKnown *k, lua_CFunction f, PlGraph *g);
/* What guards found, for the quick answer (guards.c). */
typedef struct LWatch LWatch;
LWatch *l_to_watch(lua_State *L, int i); /* NULL: it is none */
bool l_watch_holds(lua_State *L, int i);
void l_jit_quick_register(lua_State *L);
lua_CFunction l_jit_call(void);     /* the function of C that a call of a jitted function is */
bool l_jit_as_written(void);        /* (trace.c) */
void l_jit_hook_runs(lua_State *L); /* the function of a hook is on top, and a trace runs: what it can see counts (trace.c) */
/* Ends the trace that fills f. (trace.c) */
void l_trace_end(PlGraph *f);
void l_trace_lost(PlGraph *f); /* nobody can end it any more */
void l_program_register(lua_State *L);
void l_program_spent_register(lua_State *L);
/* After a run: results and arguments whose history a backward of the function went through get a freed one. (spent.c) */
PlStatus l_program_spend(const Program *p, PlTensor *const *in, PlTensor *const *out);
PlStatus l_program_spend_like(Program *to, const Program *p);
void l_program_look_register(lua_State *L);
void l_program_resize_register(lua_State *L);
/* A program, empty, on the stack. */
Program *l_new_program(lua_State *L);
/* Arrays for f's inputs, captures and what is written; p->f is not set. */
PlStatus l_program_settle(Program *p, PlGraph *f);
/* As jit_joint does: gradients for the inputs listed at `at`. */
PlStatus l_program_joint(lua_State *L, Program *p, int at, const char *name, int32_t ny);

/* Does a lie in memory otherwise than row-major, or repeat its elements? Then order[d] says so: traces know it, and results do as it
 * does. */
enum { L_REPEATED = 0x80 }; /* beside a dim: along it elements repeat */
bool l_layout_permuted(const PlArray *a, uint8_t *order);

#endif
