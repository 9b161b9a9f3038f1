/* SPDX-License-Identifier: MIT
 * Programs: what T.jit keeps of a traced function. A traced flow with its executor, and where gradients of real leaves go.
 * program.c makes and runs them, program_look.c tells about them. */
#ifndef PL_BINDINGS_PROGRAM_H
#define PL_BINDINGS_PROGRAM_H

#include "bindings/graph.h"
#include "engine/graph/exec.h"

typedef struct Program {
  PlFlow *f;
  int32_t nargs;    /* inputs that are tensors of the call; then come .grads of leaves */
  int32_t nuser;    /* outputs that the function returned; then come gradients of leaves */
  int32_t *leaf_at; /* per leaf: its output, -1: none */
  PlJoint *joint;   /* results have gradients; NULL: no */
  PlTensor **x;     /* joint: per x the captured leaf; NULL: input x_at */
  int32_t *x_at, nx;
  PlFVal *written;  /* inputs and captured tensors that a run writes */
  int32_t nwritten;
  bool *tracked;    /* per value of the flow: a captured tensor that required a gradient */
  PlExec *exec;     /* NULL: nothing was compiled (no outputs, or a joint, which has its own) */
} Program;

Program *l_check_program(lua_State *L, int i); /* raises */
/* Ends the trace that fills f. (jit.c) */
void l_trace_end(PlFlow *f);
void l_program_register(lua_State *L);
void l_program_look_register(lua_State *L);

#endif
