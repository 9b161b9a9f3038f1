/* SPDX-License-Identifier: MIT
 * Programs (kernels/program.h) made of plans: what a thread of its own, or a program without the engine, can run. */
#ifndef PL_ENGINE_DEPLOY_PROGRAM_H
#define PL_ENGINE_DEPLOY_PROGRAM_H

#include <stdio.h>

#include "engine/graph/plan/plan.h"
#include "kernels/program.h"

typedef struct PlProgram PlProgram;

/* input_names[ninputs of the plan's graph], output_names[noutputs]: borrowed, as the plan is retained. Errors: UNSUPPORTED,
 * where a run would do more than compute outputs of inputs: write parameters, draw random numbers; OOM. */
PlStatus pl_program_new(PlProgram **out, PlPlan *plan, const char *const *input_names, const char *const *output_names);
void pl_program_free(PlProgram *p); /* NULL is fine */
const PlkProgram *pl_program_of(const PlProgram *p);
const PlPlan *pl_program_plan(const PlProgram *p);
/* Bytes of weight k from its first element on. */
int64_t pl_program_weight_bytes(const PlProgram *p, int32_t k);
/* The node of the plan's graph that step i begins with. */
int32_t pl_program_node(const PlProgram *p, int32_t i);
/* Writes it as C, which includes kernels/program.h and links kernels by their names, and its weights as bytes, each from a
 * multiple of 64 on. The C defines `static const PlkProgram program`, and reads the weights at `prefix`_weights. Errors: IO,
 * UNSUPPORTED (a kernel that has no name to link), OOM. (emit.c) */
PlStatus pl_program_emit(const PlProgram *p, const char *prefix, FILE *source, FILE *weights);

#endif
