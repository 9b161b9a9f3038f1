/* SPDX-License-Identifier: MIT
 * Runs programs: see kernels/program.h. */
#include "kernels/program.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/scratch.h"

struct PlkSession {
  const PlkProgram *p;
  PlArray *arrays; /* per value */
  PlArray **vals;  /* their addresses; NULL: nothing there */
  PlArray **args;  /* of all steps, one behind the other */
  char *arena;
  PlkScratchPool pool;
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a session"); }

static void set_up(PlkSession *s) {
  const PlkProgram *p = s->p;
  for (int32_t v = 0; v < p->nvals; v++) {
    const PlkValue *val = &p->vals[v];
    PlArray *a = &s->arrays[v];
    if (val->dtype == PL_NDTYPE) continue; /* an output that a call does not have */
    s->vals[v] = a;
    *a = (PlArray){.numel = val->numel,
                   .shape = val->dims,
                   .strides = val->dims ? val->dims + val->ndim : NULL,
                   .dtype = val->dtype,
                   .ndim = val->ndim,
                   .contiguous = val->contiguous};
    /* kernels read weights, and write none: see program.c of engine/deploy, which refuses plans that do */
    if (val->place == PLK_AT_WEIGHT) a->data = (char *)(uintptr_t)p->weights[val->which] + val->at;
    if (val->place == PLK_AT_ARENA) a->data = s->arena + val->at;
  }
  PlArray **arg = s->args;
  for (int32_t i = 0; i < p->nsteps; i++)
    for (int32_t k = 0; k < p->steps[i].nin + p->steps[i].nout; k++) {
      const int32_t v = p->steps[i].arg[k];
      *arg++ = v < 0 ? NULL : s->vals[v];
    }
}

PlStatus plk_session_new(PlkSession **out, const PlkProgram *p) {
  size_t nargs = 0;
  for (int32_t i = 0; i < p->nsteps; i++) nargs += (size_t)p->steps[i].nin + (size_t)p->steps[i].nout;
  PlkSession *s = calloc(1, sizeof *s);
  if (!s) return no_memory();
  s->p = p;
  s->arrays = calloc((size_t)p->nvals + 1, sizeof *s->arrays);
  s->vals = calloc((size_t)p->nvals + 1, sizeof *s->vals);
  s->args = calloc(nargs + 1, sizeof *s->args);
  s->arena = aligned_alloc(64, plk_round64((size_t)p->arena + 64));
  if (!s->arrays || !s->vals || !s->args || !s->arena) {
    plk_session_free(s);
    return no_memory();
  }
  set_up(s);
  *out = s;
  return PL_OK;
}

void plk_session_free(PlkSession *s) {
  if (!s) return;
  plk_scratch_pool_free(&s->pool);
  free(s->arrays);
  free(s->vals);
  free(s->args);
  free(s->arena);
  free(s);
}

int64_t plk_session_bytes(const PlkSession *s) { return s->p->arena + (int64_t)plk_scratch_pool_bytes(&s->pool); }

static PlStatus run_steps(PlkSession *s) {
  static const PlAttrs none;
  const PlkProgram *p = s->p;
  PlArray **arg = s->args;
  for (int32_t i = 0; i < p->nsteps; i++) {
    const PlkCallStep *t = &p->steps[i];
    PL_TRY(plk_poll());
    if (t->group) PL_TRY(plk_tiles_run(t->group, s->vals));
    else {
      const PlkCall call = {.name = t->name,
                            .code = t->code,
                            .nin = t->nin,
                            .nout = t->nout,
                            .in = (const PlArray *const *)arg,
                            .out = arg + t->nin,
                            .attrs = t->attrs ? t->attrs : &none,
                            .kept = p->kept ? &p->kept[i] : NULL};
      PL_TRY(t->kernel(&call));
    }
    arg += t->nin + t->nout;
  }
  return PL_OK;
}

/* Do two pieces of memory overlap? */
static bool overlap(const char *a, int64_t na, const char *b, int64_t nb) {
  return na > 0 && nb > 0 && (uintptr_t)a < (uintptr_t)b + (uintptr_t)nb && (uintptr_t)b < (uintptr_t)a + (uintptr_t)na;
}

static PlStatus check(const char *what, int32_t k, const PlkPort *port, const void *data) {
  if (port->bytes > 0 && !data) PL_FAIL(PL_ERR_ARG, "%s %d (%s): no memory was given", what, (int)k, port->name);
  if ((uintptr_t)data % pl_dtype_size((PlDtype)port->dtype))
    PL_FAIL(PL_ERR_ARG, "%s %d (%s): its address must be a multiple of %zu, the size of %s", what, (int)k, port->name,
            pl_dtype_size((PlDtype)port->dtype), pl_dtype_name((PlDtype)port->dtype));
  return PL_OK;
}

static PlStatus check_all(const PlkProgram *p, const void *const *in, void *const *out) {
  for (int32_t k = 0; k < p->nin; k++) PL_TRY(check("input", k, &p->in[k], in[k]));
  for (int32_t o = 0; o < p->nout; o++) {
    PL_TRY(check("output", o, &p->out[o], out[o]));
    for (int32_t k = 0; k < p->nin; k++)
      if (overlap(out[o], p->out[o].bytes, in[k], p->in[k].bytes))
        PL_FAIL(PL_ERR_ARG, "output %d (%s) shares memory with input %d (%s)", (int)o, p->out[o].name, (int)k, p->in[k].name);
    for (int32_t k = 0; k < o; k++)
      if (overlap(out[o], p->out[o].bytes, out[k], p->out[k].bytes))
        PL_FAIL(PL_ERR_ARG, "output %d (%s) shares memory with output %d (%s)", (int)o, p->out[o].name, (int)k, p->out[k].name);
  }
  return PL_OK;
}

PlStatus plk_session_run(PlkSession *s, int threads, const void *const *in, void *const *out) {
  const PlkProgram *p = s->p;
  PL_TRY(check_all(p, in, out));
  for (int32_t v = 0; v < p->nvals; v++) {
    const PlkValue *val = &p->vals[v];
    if (val->place == PLK_AT_INPUT) s->arrays[v].data = (char *)(uintptr_t)in[val->which] + val->at;
    else if (val->place == PLK_AT_OUTPUT) s->arrays[v].data = (char *)out[val->which] + val->at;
  }
  const int were = plk_threads();
  if (threads > 0) plk_set_threads(threads);
  PlkScratchPool *outer = plk_scratch_pool(&s->pool);
  PlStatus st = run_steps(s);
  (void)plk_scratch_pool(outer);
  if (threads > 0) plk_set_threads(were);
  return st;
}
