/* SPDX-License-Identifier: MIT
 * Programs (kernels/program.h) made of plans: what a thread of its own, or a program without the engine, can run. */
#ifndef PL_ENGINE_DEPLOY_PROGRAM_H
#define PL_ENGINE_DEPLOY_PROGRAM_H

#include "engine/graph/plan/plan.h"
#include "kernels/program.h"

typedef struct PlProgram PlProgram;

/* input_names[ninputs of the plan's graph], output_names[noutputs]: borrowed, as the plan is retained. Errors: UNSUPPORTED,
 * where a run would do more than compute outputs of inputs: write parameters, draw random numbers; OOM. */
PlStatus pl_program_new(PlProgram **out, PlPlan *plan, const char *const *input_names, const char *const *output_names);
void pl_program_free(PlProgram *p); /* NULL is fine */
const PlkProgram *pl_program_of(const PlProgram *p);

#endif
