/* SPDX-License-Identifier: MIT
 * Gradients of a traced function that are differentiated themselves (create_graph). Backward then is a traced function of its
 * own: forward and the gradient pass together, from inputs and dys to dxs. It runs forward once more, with the random
 * numbers of then, and has a joint of its own; so the third derivative is a joint of that, and so on. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/graph/gradient/joint_internal.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a traced function"); }

/* Does node n write a leaf, or read one that forward writes? Another run would do so again, or find another value. */
static bool unrepeatable(const PlGraph *f, const PlGNode *n) {
  if (n->flags & PL_FN_MUTATES) return true;
  for (int32_t k = 0; k < n->nin; k++) {
    const PlGStore *s = n->in[k] < 0 ? NULL : &f->stores[f->vals[n->in[k]].store];
    if (s && s->version > 0 && f->vals[s->first].kind != PL_FV_NODE) return true;
  }
  return false;
}

/* Nodes that no output needs go, draws apart: those that write what forward has written already among them. */
static PlStatus drop_unneeded(PlGraph *f, const char *name) {
  uint8_t *need = calloc((size_t)f->nvals + 1, 1);
  if (!need) return no_memory();
  for (int32_t o = 0; o < f->noutputs; o++) need[f->outputs[o]] = 1;
  PlStatus s = PL_OK;
  for (int32_t i = f->nnodes - 1; i >= 0 && s == PL_OK; i--) {
    PlGNode *n = &f->nodes[i];
    bool live = n->draw >= 0;
    for (int32_t o = 0; o < n->nout && !live; o++) live = need[n->first + o];
    if (live && unrepeatable(f, n))
      s = pl_fail(PL_ERR_UNSUPPORTED,
                  "not twice differentiable: %s was compiled by jit, and %s works on a tensor that it writes in "
                  "place; another run would not find it as it was. Call the plain function for create_graph",
                  name, n->op->name);
    if (!live) n->flags |= PL_FN_DEAD;
    for (int32_t k = 0; k < n->nin && live; k++)
      if (n->in[k] >= 0) need[n->in[k]] = 1;
  }
  free(need);
  if (s == PL_OK) pl_graph_regions_drop(f);
  return s == PL_OK ? pl_graph_compact(f, NULL) : s;
}

/* g's outputs become dxs, then xs, then dys, so that all of them are numbered anew with it. */
static PlStatus reduce(const PlJoint *j, PlGraph *g, PlGVal *room, int32_t ndx) {
  PL_TRY(pl_graph_set_outputs(g, ndx + j->nx + j->ny, room));
  PL_TRY(drop_unneeded(g, j->name));
  memcpy(room, g->outputs, (size_t)(ndx + j->nx + j->ny) * sizeof *room);
  PL_TRY(pl_graph_set_outputs(g, ndx, room));
  return pl_graph_verify(g);
}

static PlStatus make_second(PlJoint *j) {
  int32_t nx = j->nx, ny = j->ny, ndx = 0;
  PlGVal *dx = malloc((size_t)(3 * nx + 2 * ny + 1) * sizeof *dx), *room = dx ? dx + nx : NULL;
  PlGraph *g = NULL;
  PlStatus s = dx ? PL_OK : no_memory();
  PlGVal *dys = room ? room + 2 * nx : NULL;
  if (s == PL_OK) s = pl_joint_differentiate(&g, j->forward, j, dys, dx);
  if (s == PL_OK) {
    for (int32_t i = 0; i < nx; i++)
      if (dx[i] >= 0) room[ndx++] = dx[i];
    memcpy(room + ndx, j->xs, (size_t)nx * sizeof *room);
    memmove(room + ndx + nx, dys, (size_t)ny * sizeof *room);
    s = reduce(j, g, room, ndx);
  }
  if (s == PL_OK) s = pl_joint_make(&j->second, g, ndx, nx + ny, room + ndx, j->name);
  pl_graph_release(g);
  free(dx);
  return s;
}

PlJointDraws pl_joint_draws(const PlJoint *j) {
  if (j->forward->ndraws) (void)pl_rng_take(0); /* seeds the generator */
  return (PlJointDraws){pl_state.seed, pl_state.stream, pl_state.offset};
}

static void restart(const PlJointDraws *d) {
  pl_state.seed = d->seed;
  pl_state.stream = d->stream;
  pl_state.offset = d->offset;
}

PlStatus pl_joint_again(PlJoint *j, const PlJointDraws *draws, PlTensor *const *in, PlTensor *const *outside, PlTensor **out) {
  if (!j->second) PL_TRY(make_second(j));
  const PlGraph *f = j->forward;
  PlTensor **x = malloc((size_t)(j->nx + j->ny + 1) * sizeof(PlTensor *));
  if (!x) return no_memory();
  for (int32_t i = 0; i < j->nx; i++) {
    const PlGValue *v = &f->vals[j->xs[i]];
    x[i] = v->kind == PL_FV_INPUT ? in[v->slot] : pl_joint_outside(j, i) ? *outside++ : v->real;
  }
  for (int32_t o = 0; o < j->ny; o++) x[j->nx + o] = in[j->nin + o];
  PlJointDraws now = pl_joint_draws(j);
  restart(draws);
  PlStatus s = pl_joint_run(j->second, in, x, out);
  restart(&now);
  free(x);
  return s;
}
