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

/* A model at some sizes; one that leaves none free is there once. Nothing changes but the executor. */
typedef struct PlModelAt {
  int32_t refs; /* under the model's lock */
  uint64_t used;
  int64_t value[PL_MOST_FREE_SIZES];
  PlSavedGraph saved;
  PlPlan *plan;
  PlProgram *program; /* what sessions of the CPU run; NULL: it trains, or is on a device, or why there is none */
  PlStatus refused;   /* … with this status */
  char why[256];
  PlExec *exec; /* steps, and runs on a device; under the model's lock */
} PlModelAt;

enum { PL_MODEL_AT = 16 }; /* sizes that a model has plans for at a time, besides those that sessions use */

/* A generator of random numbers: where it is. */
typedef struct PlModelDraws {
  uint64_t seed, stream, offset;
  bool seeded; /* else by the clock, at the first draw */
} PlModelDraws;

struct perilune_model {
  atomic_int refs;     /* the caller's and the sessions' */
  PlModelAt *base;     /* as it was saved */
  const char **inputs; /* names, by slot */
  PlGVal *weights;     /* captured values of the graph */
  int32_t nweights;
  int64_t weight_bytes;
  uint8_t device;
  bool trains;
  pthread_mutex_t lock; /* what follows, and whatever the engine changes in tensors and plans */
  PlModelAt *others[PL_MODEL_AT];
  uint64_t tick;
  PlModelDraws draws;
  int64_t step_value[PL_MOST_FREE_SIZES]; /* free sizes of the steps to come */
};

/* The model at these sizes, which are within their bounds; made if need be. Give it back with pl_model_leave. Takes the lock. */
PlStatus pl_model_at(perilune_model *m, const int64_t *value, PlModelAt **out);
void pl_model_leave(perilune_model *m, PlModelAt *at);
/* The same under the lock, for who holds it: not to be given back, and there until the next call. */
PlStatus pl_model_find(perilune_model *m, const int64_t *value, PlModelAt **out);
/* Number of the free size of that name; -1: there is none. */
int32_t pl_model_size_find(const perilune_model *m, const char *name);
/* Is it within the bounds of free size k? Errors: SHAPE. */
PlStatus pl_model_size_check(const perilune_model *m, int32_t k, int64_t value);
/* NULL arguments, by name. */
PlStatus pl_model_given(const char *function, const char *what, const void *p);
/* As many inputs and outputs as it has. */
PlStatus pl_model_counts(const perilune_model *m, int32_t nin, int32_t nout);
void pl_model_drop(perilune_model *m);
/* Runs the executor, under the lock: host memory to host memory. *ended (or NULL): the run came to its end. */
PlStatus pl_model_execute(perilune_model *m, PlModelAt *at, int threads, const void *const *in, void *const *out, bool *ended);
/* What the value is, at the sizes it was made for. */
perilune_tensor_info pl_model_info(const PlGValue *v, const char *name);
PlStatus pl_model_input_value(const PlSavedGraph *saved, int32_t i, const PlGValue **out);
PlStatus pl_model_output_value(const PlSavedGraph *saved, int32_t i, const PlGValue **out);

#endif
