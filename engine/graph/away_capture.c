/* SPDX-License-Identifier: MIT
 * A graph on the device as one captured piece of work: see away.h. What is noted are kernels with addresses, so inputs
 * have tensors of their own that every call's are copied into, results are copied out, and captured tensors (parameters)
 * must lie where they lay: if one moved, the work is captured again. What would be frozen though it changes is no part of
 * such a graph, and then nodes run one by one: random numbers, host tensors that the script may change, ops that look at
 * values or run on the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph/away_inside.h"
#include "engine/state.h"
#include "kernels/capture.h"

enum { WARM = 3 }; /* runs one by one first: libraries choose their algorithms, kernels are loaded */

struct PlAwayCapture {
  const PlkCaptureTable *table; /* NULL: no further try */
  char why[160];                /* why not */
  int runs;
  PlkCaptured *work;
  PlTensor **in, **out; /* the tensors that stay */
  const void **at;      /* per value: the address of a captured leaf */
};

const char *pl_away_how(const PlAway *a) {
  if (!a->capture) return "not captured: it has not run";
  return a->capture->work ? "captured" : a->capture->why;
}

static void forget(PlAway *a) {
  struct PlAwayCapture *c = a->capture;
  if (c->table) c->table->release(c->work);
  c->work = NULL;
  for (int32_t i = 0; c->in && i < a->f->ninputs; i++) pl_tensor_release(c->in[i]);
  for (int32_t o = 0; c->out && o < a->f->noutputs; o++) pl_tensor_release(c->out[o]);
  free(c->in);
  free(c->out);
  c->in = c->out = NULL;
}

void pl_away_capture_free(PlAway *a) {
  if (!a->capture) return;
  forget(a);
  free(a->capture->at);
  free(a->capture);
}

static void never(PlAway *a, const char *what, const char *why) {
  forget(a);
  a->capture->table = NULL;
  snprintf(a->capture->why, sizeof a->capture->why, "not captured: %s%s", what, why);
}

/* ---- what can be captured ------------------------------------------------------------------------------------- */

static bool has_kernel(const PlFNode *n) {
  return n->op->cls == PL_VIEW || n->op->expand || n->op == &pl_op_copy || n->op == &pl_op_shape_of || pl_op_on_device(n->op);
}

/* Writes why not. */
static bool allowed(PlAway *a, PlTensor *const *in) {
  const PlFlow *f = a->f;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlFNode *n = &f->nodes[i];
    const char *why = n->draw >= 0                                         ? " draws random numbers"
                      : n->op->reads_values || (n->op->flags & PL_F_IMPURE) ? " looks at values"
                      : n->op == &pl_op_to_device                           ? " moves between devices"
                      : !has_kernel(n)                                      ? " runs on the CPU"
                                                                            : NULL;
    if (why) return never(a, n->op->name, why), false;
    for (int32_t k = 0; k < pl_fnode_written(n); k++)
      if (f->vals[f->stores[f->vals[n->in[k]].store].first].kind == PL_FV_INPUT)
        return never(a, n->op->name, " writes into an argument"), false;
  }
  for (PlFVal v = 0; v < f->nvals; v++) {
    const PlFValue *val = &f->vals[v];
    const PlTensor *t = val->kind == PL_FV_INPUT ? in[val->slot] : val->kind == PL_FV_CAPTURE ? val->real : NULL;
    if (!t || t->a.device != PL_CPU) continue;
    if (val->kind == PL_FV_CAPTURE) return never(a, "it reads a tensor on the CPU", ""), false;
    if (t->a.ndim > 0) return never(a, "an argument lies on the CPU", ""), false;
  }
  return true;
}

/* ---- capturing ------------------------------------------------------------------------------------------------- */

static PlStatus copy_in(PlAway *a, PlTensor *const *in) {
  for (int32_t i = 0; i < a->f->ninputs; i++) PL_TRY(pl_copy_arrays(&a->capture->in[i]->a, &in[i]->a));
  return PL_OK;
}

static PlStatus make_inputs(PlAway *a, PlTensor *const *in) {
  struct PlAwayCapture *c = a->capture;
  c->in = calloc((size_t)a->f->ninputs + 1, sizeof(PlTensor *));
  c->out = calloc((size_t)a->f->noutputs + 1, sizeof(PlTensor *));
  if (!c->in || !c->out) PL_FAIL(PL_ERR_OOM, "out of memory to capture a graph");
  for (int32_t i = 0; i < a->f->ninputs; i++)
    PL_TRY(pl_tensor_empty_on(&c->in[i], PL_CUDA, (PlDtype)in[i]->a.dtype, in[i]->a.ndim, in[i]->a.shape));
  return PL_OK;
}

/* Versions of what nodes write move as they run; that was for nothing if the work is not captured. */
static PlStatus capture(PlAway *a, PlTensor *const *in) {
  struct PlAwayCapture *c = a->capture;
  PL_TRY(make_inputs(a, in));
  PL_TRY(pl_away_choose(a, c->in)); /* groups are compiled before anything is noted */
  PL_TRY(c->table->begin());
  PlStatus s = pl_away_once(a, c->in, c->out);
  PlkCaptured *work = NULL;
  PlStatus e = c->table->end(&work);
  if (s == PL_OK) s = e;
  if (s != PL_OK) {
    c->table->release(work);
    return s;
  }
  c->work = work;
  for (PlFVal v = 0; v < a->f->nvals; v++) {
    const PlFValue *val = &a->f->vals[v];
    c->at[v] = val->kind == PL_FV_CAPTURE ? val->real->a.data : NULL;
  }
  return PL_OK;
}

static bool moved(const PlAway *a) {
  for (PlFVal v = 0; v < a->f->nvals; v++) {
    const PlFValue *val = &a->f->vals[v];
    if (val->kind == PL_FV_CAPTURE && val->real->a.data != a->capture->at[v]) return true;
  }
  return false;
}

/* ---- repeating --------------------------------------------------------------------------------------------------- */

/* Tensors that the work writes into have new contents. */
static void touch(const PlFlow *f) {
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlFNode *n = &f->nodes[i];
    for (int32_t k = 0; k < pl_fnode_written(n); k++) {
      const PlFValue *root = &f->vals[f->stores[f->vals[n->in[k]].store].first];
      if (root->kind == PL_FV_CAPTURE) root->real->storage->version++;
    }
  }
}

static PlStatus repeat(PlAway *a, PlTensor *const *in, PlTensor **out) {
  struct PlAwayCapture *c = a->capture;
  PL_TRY(copy_in(a, in));
  PL_TRY(c->table->launch(c->work));
  touch(a->f);
  for (int32_t o = 0; o < a->f->noutputs; o++) {
    PlStatus s = pl_tensor_moved(&out[o], c->out[o], c->out[o]->a.device);
    if (s == PL_OK) continue;
    while (o > 0) pl_tensor_release(out[--o]);
    return s;
  }
  return PL_OK;
}

static PlStatus begin(PlAway *a, PlTensor *const *in) {
  const char *off = getenv("PERILUNE_CUDA_GRAPHS");
  struct PlAwayCapture *c = calloc(1, sizeof *c);
  if (!c) PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device");
  a->capture = c;
  c->at = calloc((size_t)a->f->nvals + 1, sizeof *c->at);
  if (!c->at) PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device");
  c->table = pl_device_open()->extension("capture");
  if (!c->table)
    never(a, "this plug-in cannot", "");
  else if (off && strcmp(off, "0") == 0)
    never(a, "PERILUNE_CUDA_GRAPHS=0", "");
  else if (allowed(a, in))
    snprintf(c->why, sizeof c->why, "not captured: the first %d runs go one by one", WARM);
  return PL_OK;
}

PlStatus pl_away_captured(PlAway *a, PlTensor *const *in, PlTensor **out, bool *done) {
  *done = false;
  if (!a->capture) PL_TRY(begin(a, in));
  struct PlAwayCapture *c = a->capture;
  if (!c->table || pl_state.profile || pl_device_open()->get(PL_DEVICE_SYNC)) return PL_OK;
  if (c->runs < WARM) {
    c->runs++;
    return PL_OK;
  }
  for (int32_t i = 0; i < a->f->ninputs; i++)
    if (in[i]->a.device == PL_CPU && in[i]->a.ndim > 0) return PL_OK; /* this once */
  if (c->work && moved(a)) forget(a);
  if (!c->work) {
    PlStatus s = capture(a, in);
    if (s == PL_ERR_INTERRUPT) return s;
    if (s != PL_OK) {
      never(a, pl_message(), "");
      return PL_OK;
    }
  }
  PL_TRY(repeat(a, in, out));
  *done = true;
  return PL_OK;
}
