/* SPDX-License-Identifier: MIT
 * See program.h. The program borrows lists, attributes and sizes from the plan's graph, which changes no more. */
#include "engine/deploy/program.h"

#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/graph/fuse/tile.h"

struct PlProgram {
  PlkProgram p;
  PlPlan *plan;
  PlFusion *fusion;
  PlkValue *vals;
  PlkCallStep *steps;
  PlkPort *ports; /* inputs, then outputs */
  PlkKept *kept;
  const void **weights;
  int64_t *weight_bytes;
  int32_t *ints, *node;
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a program"); }

void pl_program_free(PlProgram *p) {
  if (!p) return;
  pl_fusion_free(p->fusion);
  pl_plan_release(p->plan);
  free(p->vals);
  free(p->steps);
  free(p->ports);
  plk_kept_clear(p->kept, p->p.nsteps);
  free(p->kept);
  free((void *)p->weights);
  free(p->weight_bytes);
  free(p->ints);
  free(p->node);
  free(p);
}

const PlkProgram *pl_program_of(const PlProgram *p) { return &p->p; }
const PlPlan *pl_program_plan(const PlProgram *p) { return p->plan; }
int64_t pl_program_weight_bytes(const PlProgram *p, int32_t k) { return p->weight_bytes[k]; }
int32_t pl_program_node(const PlProgram *p, int32_t i) { return p->node[i]; }

/* Bytes from element (0, …, 0) to the end of the last one. */
static int64_t span(const PlArray *a) {
  int64_t last = 0;
  if (a->numel == 0) return 0;
  for (int d = 0; d < a->ndim; d++) last += (a->shape[d] - 1) * a->strides[d];
  return (last + 1) * (int64_t)pl_dtype_size((PlDtype)a->dtype);
}

/* Where value v lies: as executor.c's point() has it. */
static PlStatus place(PlProgram *p, PlGVal v) {
  const PlGraph *f = p->plan->graph;
  const PlGValue *val = &f->vals[v], *root = &f->vals[f->stores[val->store].first];
  const PlBuffer *b = &p->plan->buffers[p->plan->buffer[val->store]];
  const int64_t item = (int64_t)pl_dtype_size((PlDtype)val->dtype);
  PlkValue *to = &p->vals[v];
  *to = (PlkValue){.dims = val->dims, .numel = val->numel, .dtype = val->dtype, .ndim = val->ndim, .contiguous = val->contiguous};
  if (val->dtype == PL_NDTYPE) return PL_OK;
  if (val->kind == PL_FV_CAPTURE || val->kind == PL_FV_CONST) {
    to->place = PLK_AT_WEIGHT;
    to->which = p->p.nweights;
    to->dims = val->real->a.shape; /* as it lies in memory */
    to->contiguous = val->real->a.contiguous;
    p->weights[to->which] = val->real->a.data;
    p->weight_bytes[p->p.nweights++] = span(&val->real->a);
    if (val->real->a.device != PL_CPU) PL_FAIL(PL_ERR_UNSUPPORTED, "a captured tensor is on a GPU; a program's weights are the CPU's");
  } else if (val->kind == PL_FV_INPUT) {
    to->place = PLK_AT_INPUT;
    to->which = val->slot;
  } else if (b->place == PL_AT_ARENA) {
    to->place = PLK_AT_ARENA;
    to->at = b->at + val->offset * item;
  } else if (b->place == PL_AT_OUTPUT) {
    to->place = PLK_AT_OUTPUT;
    to->which = (int32_t)b->at;
    to->at = val->offset * item;
  } else if (b->place == PL_AT_LEAF) { /* a window of a leaf, which stands before it */
    const PlkValue *leaf = &p->vals[f->stores[val->store].first];
    to->place = leaf->place;
    to->which = leaf->which;
    to->at = (val->offset - root->offset) * item;
  }
  return PL_OK;
}

/* Can it run as a kernel on what is there? */
static PlStatus check_node(const PlGraph *f, const PlGNode *n) {
  if (n->flags & PL_FN_MUTATES)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s (%s) writes into a parameter; a program only computes outputs of inputs", n->name, n->op->name);
  if (n->draw >= 0 || n->op->flags & PL_F_SEEDED)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s (%s) draws random numbers; put the net into evaluation mode and save it again", n->name, n->op->name);
  if (!n->op->kernel[PL_CPU]) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: %s has no kernel of the CPU", n->name, n->op->name);
  if (n->op->flags & (PL_F_MOVES | PL_F_CROSSES))
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s (%s) moves tensors between devices", n->name, n->op->name);
  if (!(n->op->flags & PL_F_CONTIGUOUS)) return PL_OK;
  PlArray arr[PL_MAX_IN];
  PlCall c = {.op = n->op, .nin = n->nin, .device = PL_CPU};
  c.arr = c.few_arr;
  for (int32_t k = 0; k < n->nin && k < PL_MAX_IN; k++) {
    if (n->in[k] < 0) continue;
    arr[k] = pl_gvalue_array(&f->vals[n->in[k]]);
    c.arr[k] = &arr[k];
    if (!pl_call_layout_fits(&c, k))
      PL_FAIL(PL_ERR_UNSUPPORTED, "%s (%s) would have to copy its input %d", n->name, n->op->name, (int)k + 1);
  }
  for (int32_t k = PL_MAX_IN; k < n->nin; k++)
    if (n->in[k] >= 0 && !f->vals[n->in[k]].contiguous)
      PL_FAIL(PL_ERR_UNSUPPORTED, "%s (%s) would have to copy its input %d", n->name, n->op->name, (int)k + 1);
  return PL_OK;
}

/* Which inputs of step i are weights. */
static uint32_t fixed_inputs(const PlProgram *p, const PlGNode *d) {
  uint32_t fixed = 0;
  for (int32_t k = 0; k < d->nin && k < 32; k++)
    if (d->in[k] >= 0 && p->vals[d->in[k]].place == PLK_AT_WEIGHT) fixed |= UINT32_C(1) << k;
  return fixed;
}

static PlStatus make_steps(PlProgram *p) {
  const PlGraph *f = p->plan->graph;
  size_t n = 0;
  for (int32_t i = 0; i < f->nnodes; i++) n += (size_t)f->nodes[i].nin + (size_t)f->nodes[i].nout;
  p->steps = calloc((size_t)f->nnodes + 1, sizeof *p->steps);
  p->node = calloc((size_t)f->nnodes + 1, sizeof *p->node);
  int32_t *at = p->ints = malloc((n + 1) * sizeof *at);
  p->p.kept = p->kept = calloc((size_t)f->nnodes + 1, sizeof *p->kept);
  if (!p->steps || !p->node || !at || !p->kept) return no_memory();
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *d = &f->nodes[i];
    if (d->flags & PL_FN_VIEW) continue;
    const int32_t end = pl_fusion_end(p->fusion, i);
    p->node[p->p.nsteps] = i;
    PlkCallStep *s = &p->steps[p->p.nsteps++];
    for (int32_t k = i; k < end || k == i; k++)
      if (!(f->nodes[k].flags & PL_FN_VIEW)) PL_TRY(check_node(f, &f->nodes[k]));
    if (end > i) {
      *s = (PlkCallStep){.name = d->name, .group = pl_fusion_group(p->fusion, i)};
      i = end - 1;
      continue;
    }
    *s = (PlkCallStep){.name = d->op->name,
                       .kernel = d->op->kernel[PL_CPU],
                       .attrs = d->attrs,
                       .arg = at,
                       .code = d->op->kcode,
                       .nin = d->nin,
                       .nout = d->nout};
    if (d->op->prepares) p->kept[p->p.nsteps - 1].fixed = fixed_inputs(p, d);
    for (int32_t k = 0; k < d->nin; k++) *at++ = d->in[k];
    for (int32_t o = 0; o < d->nout; o++) *at++ = f->vals[d->first + o].dtype == PL_NDTYPE ? -1 : d->first + o;
  }
  p->p.steps = p->steps;
  return PL_OK;
}

static PlkPort port_of(const PlGValue *v, const char *name) {
  return (PlkPort){.name = name, .shape = v->dims, .bytes = pl_gvalue_bytes(v), .dtype = v->dtype, .ndim = v->ndim};
}

static PlStatus make_ports(PlProgram *p, const char *const *input_names, const char *const *output_names) {
  const PlGraph *f = p->plan->graph;
  p->ports = calloc((size_t)f->ninputs + (size_t)f->noutputs + 1, sizeof *p->ports);
  if (!p->ports) return no_memory();
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_INPUT) p->ports[f->vals[v].slot] = port_of(&f->vals[v], input_names[f->vals[v].slot]);
  for (int32_t o = 0; o < f->noutputs; o++) {
    const PlGValue *v = &f->vals[f->outputs[o]];
    if (!v->contiguous || v->offset != 0)
      PL_FAIL(PL_ERR_UNSUPPORTED, "output %d (%s) is not row-major; save the graph with its contiguous()", (int)o, output_names[o]);
    p->ports[f->ninputs + o] = port_of(v, output_names[o]);
  }
  p->p.in = p->ports;
  p->p.out = p->ports + f->ninputs;
  p->p.nin = f->ninputs;
  p->p.nout = f->noutputs;
  return PL_OK;
}

static PlStatus make(PlProgram *p, const char *const *input_names, const char *const *output_names) {
  const PlGraph *f = p->plan->graph;
  p->vals = calloc((size_t)f->nvals + 1, sizeof *p->vals);
  p->weights = calloc((size_t)f->nvals + 1, sizeof *p->weights);
  p->weight_bytes = calloc((size_t)f->nvals + 1, sizeof *p->weight_bytes);
  if (!p->vals || !p->weights || !p->weight_bytes) return no_memory();
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind != PL_FV_NODE) PL_TRY(place(p, v)); /* views of leaves ask where those are */
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_NODE) PL_TRY(place(p, v));
  p->p.vals = p->vals;
  p->p.nvals = f->nvals;
  p->p.weights = p->weights;
  p->p.arena = p->plan->arena_bytes;
  PL_TRY(make_ports(p, input_names, output_names));
  PL_TRY(pl_fusion_new(&p->fusion, p->plan));
  return make_steps(p);
}

PlStatus pl_program_new(PlProgram **out, PlPlan *plan, const char *const *input_names, const char *const *output_names) {
  PlProgram *p = calloc(1, sizeof *p);
  if (!p) return no_memory();
  p->plan = plan;
  plan->refs++;
  PlStatus s = make(p, input_names, output_names);
  if (s != PL_OK) {
    pl_program_free(p);
    return s;
  }
  *out = p;
  return PL_OK;
}
