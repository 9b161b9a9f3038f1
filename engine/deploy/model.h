/* SPDX-License-Identifier: MIT
 * Inside of models of the C ABI (perilune_model.h): model.c loads, session.c runs, train.c makes steps. */
#ifndef PL_ENGINE_DEPLOY_MODEL_H
#define PL_ENGINE_DEPLOY_MODEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/deploy/perilune_model.h"
#include "engine/deploy/program.h"
#include "engine/deploy/saved_graph.h"
#include "engine/graph/run/executor.h"

struct perilune_model {
  atomic_int refs; /* the caller's and the sessions' */
  PlSavedGraph saved;
  const char **inputs; /* names, by slot */
  PlGVal *weights;     /* captured values of the graph */
  int32_t nweights;
  int64_t weight_bytes;
  uint8_t device;
  bool trains;
  PlPlan *plan;
  PlProgram *program; /* what sessions of the CPU run; NULL: it trains, or is on a device, or why there is none */
  PlStatus refused;   /* … with this status */
  char why[256];
  pthread_mutex_t lock; /* what follows, and whatever the engine changes in tensors and plans */
  PlExec *exec;         /* steps, and runs on a device */
};

/* NULL arguments, by name. */
PlStatus pl_model_given(const char *function, const char *what, const void *p);
/* As many inputs and outputs as it has. */
PlStatus pl_model_counts(const perilune_model *m, int32_t nin, int32_t nout);
void pl_model_drop(perilune_model *m);
/* Runs the executor, under the lock: host memory to host memory. */
PlStatus pl_model_execute(perilune_model *m, int threads, const void *const *in, void *const *out);

#endif
