/* SPDX-License-Identifier: MIT
 * Models of the C ABI: loading, and what they tell. See perilune_model.h. */
#include "engine/deploy/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "kernels/optim.h"

_Static_assert(PERILUNE_F32 == (int)PL_F32 && PERILUNE_F64 == (int)PL_F64 && PERILUNE_F16 == (int)PL_F16 && PERILUNE_BF16 == (int)PL_BF16 &&
                   PERILUNE_I8 == (int)PL_I8 && PERILUNE_I16 == (int)PL_I16 && PERILUNE_I32 == (int)PL_I32 && PERILUNE_I64 == (int)PL_I64 &&
                   PERILUNE_U8 == (int)PL_U8 && PERILUNE_BOOL == (int)PL_BOOL,
               "dtypes have the numbers of the ABI");
_Static_assert(PERILUNE_ERR_ARG == (int)PL_ERR_ARG && PERILUNE_ERR_SHAPE == (int)PL_ERR_SHAPE && PERILUNE_ERR_DTYPE == (int)PL_ERR_DTYPE &&
                   PERILUNE_ERR_INDEX == (int)PL_ERR_INDEX && PERILUNE_ERR_OOM == (int)PL_ERR_OOM &&
                   PERILUNE_ERR_STATE == (int)PL_ERR_STATE && PERILUNE_ERR_IO == (int)PL_ERR_IO &&
                   PERILUNE_ERR_FORMAT == (int)PL_ERR_FORMAT && PERILUNE_ERR_INTERRUPT == (int)PL_ERR_INTERRUPT &&
                   PERILUNE_ERR_UNSUPPORTED == (int)PL_ERR_UNSUPPORTED && PERILUNE_ERR_TRACE == (int)PL_ERR_TRACE &&
                   PERILUNE_ERR_DEVICE == (int)PL_ERR_DEVICE,
               "statuses, too");

int32_t perilune_abi_version(void) { return PERILUNE_ABI_VERSION; }
const char *perilune_release(void) { return pl_version(); }
const char *perilune_message(void) { return pl_message(); }
size_t perilune_dtype_size(perilune_dtype d) { return d < 0 ? 0 : pl_dtype_size((PlDtype)d); }
const char *perilune_dtype_name(perilune_dtype d) { return d < 0 ? "?" : pl_dtype_name((PlDtype)d); }
void perilune_stop(int32_t on) { plk_interrupt(on != 0); }

PlStatus pl_model_given(const char *function, const char *what, const void *p) {
  if (p) return PL_OK;
  pl_thread_watch();
  PL_FAIL(PL_ERR_ARG, "%s: %s is NULL", function, what);
}

/* ---- loading ---------------------------------------------------------------------------------------------------------- */

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a model"); }

/* Lists of its leaves. */
static PlStatus list(perilune_model *m) {
  const PlGraph *f = m->base->saved.graph;
  m->inputs = calloc((size_t)f->ninputs + 1, sizeof *m->inputs);
  m->weights = calloc((size_t)f->nvals + 1, sizeof *m->weights);
  if (!m->inputs || !m->weights) return no_memory();
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_INPUT) m->inputs[val->slot] = val->name;
    if (val->kind != PL_FV_CAPTURE) continue;
    m->weights[m->nweights++] = v;
    m->weight_bytes += val->numel * (int64_t)pl_dtype_size((PlDtype)val->dtype);
  }
  return PL_OK;
}

/* What stands for a step can be a step again only if its attributes say all of it. */
static PlStatus check_writes(perilune_model *m) {
  const PlGraph *f = m->base->saved.graph;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (!(n->flags & PL_FN_MUTATES)) continue;
    m->trains = true;
    const int rule = pl_graph_step_attr(n, "rule");
    if (rule >= 0 && !plk_optim_facts(pl_attr_i(n->attrs, rule)).settings)
      PL_FAIL(PL_ERR_UNSUPPORTED,
              "%s (%s): this optimizer's numbers of a step are computed by Lua; train with it there, or with another optimizer, such as "
              "AdamW",
              n->name, n->op->name);
  }
  return PL_OK;
}

static PlStatus plan(const perilune_model *m, PlModelAt *at) {
  PL_TRY(pl_graph_compile(&at->plan, at->saved.graph));
  if (m->trains || m->device != PL_CPU) return pl_exec_new(&at->exec, at->plan);
  at->refused = pl_program_new(&at->program, at->plan, m->inputs, at->saved.names);
  if (at->refused == PL_ERR_OOM) return at->refused;
  if (at->refused != PL_OK) snprintf(at->why, sizeof at->why, "%s", pl_message());
  return PL_OK;
}

static PlStatus prepare(perilune_model *m) {
  PL_TRY(list(m));
  PL_TRY(check_writes(m));
  return plan(m, m->base);
}

/* ---- at other sizes ------------------------------------------------------------------------------------------------------ */

static PlModelAt *at_new(void) {
  PlModelAt *at = calloc(1, sizeof *at);
  if (at) at->refs = 1;
  return at;
}

/* Under the lock, or by the last one. */
static void at_let_go(PlModelAt *at) {
  if (!at || --at->refs > 0) return;
  pl_program_free(at->program);
  pl_exec_release(at->exec);
  pl_plan_release(at->plan);
  if (at->saved.graph) pl_saved_graph_free(&at->saved);
  free(at);
}

static PlStatus make_at(perilune_model *m, const int64_t *value, PlModelAt **out) {
  PlModelAt *at = at_new();
  if (!at) return no_memory();
  memcpy(at->value, value, (size_t)m->base->saved.nsizes * sizeof *value);
  PlStatus s = pl_saved_graph_at(&at->saved, &m->base->saved, value, m->device);
  if (s == PL_OK) s = plan(m, at);
  if (s == PL_OK) *out = at;
  else at_let_go(at); /* changes no message */
  return s;
}

static PlStatus find_at(perilune_model *m, const int64_t *value, PlModelAt **out) {
  const size_t bytes = (size_t)m->base->saved.nsizes * sizeof *value;
  int place = 0;
  *out = m->base;
  if (bytes == 0 || memcmp(m->base->value, value, bytes) == 0) return PL_OK;
  for (int i = 0; i < PL_MODEL_AT; i++) {
    PlModelAt *at = m->others[i];
    *out = at;
    if (at && memcmp(at->value, value, bytes) == 0) return PL_OK;
    if (m->others[place] && (!at || at->used < m->others[place]->used)) place = i;
  }
  PL_TRY(make_at(m, value, out));
  at_let_go(m->others[place]);
  m->others[place] = *out;
  return PL_OK;
}

PlStatus pl_model_find(perilune_model *m, const int64_t *value, PlModelAt **out) {
  PL_TRY(find_at(m, value, out));
  (*out)->used = ++m->tick;
  return PL_OK;
}

int32_t pl_model_size_find(const perilune_model *m, const char *name) {
  const PlSavedGraph *g = &m->base->saved;
  for (int32_t k = 0; k < g->nsizes; k++)
    if (strcmp(g->sizes[k].name, name) == 0) return k;
  return -1;
}

PlStatus pl_model_size_check(const perilune_model *m, int32_t k, int64_t value) {
  const PlFreeSize *z = &m->base->saved.sizes[k];
  if (value < z->least || value > z->most)
    PL_FAIL(PL_ERR_SHAPE, "the size '%s' is %lld; the model was saved for %lld to %lld", z->name, (long long)value, (long long)z->least,
            (long long)z->most);
  return PL_OK;
}

PlStatus pl_model_at(perilune_model *m, const int64_t *value, PlModelAt **out) {
  pthread_mutex_lock(&m->lock);
  PlStatus s = find_at(m, value, out);
  if (s == PL_OK) {
    (*out)->refs++;
    (*out)->used = ++m->tick;
  }
  pthread_mutex_unlock(&m->lock);
  return s;
}

void pl_model_leave(perilune_model *m, PlModelAt *at) {
  pthread_mutex_lock(&m->lock);
  at_let_go(at);
  pthread_mutex_unlock(&m->lock);
}

/* ---- from a file ---------------------------------------------------------------------------------------------------------- */

/* A model that somebody wants to load as it came: what to do with it. */
static PlStatus check_path(const char *path) {
  const size_t n = strlen(path);
  if (n > 5 && strcmp(path + n - 5, ".onnx") == 0)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: ONNX files are read by the perilune command: perilune convert %s %.*s.graph", path, path, (int)(n - 5),
            path);
  if (n > 12 && strcmp(path + n - 12, ".safetensors") == 0)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: these are the tensors of a graph; its text is the file without .safetensors", path);
  return PL_OK;
}

static PlStatus device_of(const perilune_options *o, uint8_t *device) {
  *device = PL_CPU;
  if (!o || o->size < offsetof(perilune_options, device) + sizeof o->device || !o->device) return PL_OK;
  if (strcmp(o->device, "cpu") == 0) return PL_OK;
  const PlDeviceTable *t;
  if (pl_device_parse(o->device) < 0)
    PL_FAIL(PL_ERR_ARG, "there is no device '%s'; \"cpu\", \"cuda\" and \"cuda:1\" are names of some", o->device);
  PL_TRY(pl_device(&t));
  const int d = pl_device_parse(o->device);
  if (d < 0 || (pl_on_gpu(d) && pl_gpu_index(d) >= pl_device_count()))
    PL_FAIL(PL_ERR_UNSUPPORTED, "there is no device '%s': the process sees %d", o->device, pl_device_count());
  *device = (uint8_t)d;
  return PL_OK;
}

perilune_status perilune_model_load(const char *path, const perilune_options *options, perilune_model **out) {
  uint8_t device;
  PL_TRY(pl_model_given("perilune_model_load", "path", path));
  PL_TRY(pl_model_given("perilune_model_load", "out", (const void *)out));
  PL_TRY(check_path(path));
  PL_TRY(device_of(options, &device));
  perilune_model *m = calloc(1, sizeof *m);
  if (!m) return no_memory();
  atomic_init(&m->refs, 1);
  pthread_mutex_init(&m->lock, NULL);
  m->device = device;
  m->base = at_new();
  PlStatus s = m->base ? pl_saved_graph_read(&m->base->saved, path, device) : no_memory();
  if (s == PL_OK)
    for (int32_t i = 0; i < m->base->saved.nsizes; i++) m->step_value[i] = m->base->value[i] = m->base->saved.sizes[i].example;
  if (s == PL_OK) s = prepare(m);
  if (s != PL_OK) {
    char text[512];
    snprintf(text, sizeof text, "%s", pl_message());
    pl_model_drop(m);
    return pl_fail(s, "%s", text);
  }
  *out = m;
  return PL_OK;
}

/* The last one who lets go is the only one left. */
void pl_model_drop(perilune_model *m) {
  if (atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) > 1) return;
  for (int i = 0; i < PL_MODEL_AT; i++) at_let_go(m->others[i]);
  at_let_go(m->base);
  pthread_mutex_destroy(&m->lock);
  free(m->inputs);
  free(m->weights);
  free(m);
}

void perilune_model_release(perilune_model *m) {
  if (m) pl_model_drop(m);
}

/* ---- telling ----------------------------------------------------------------------------------------------------------- */

perilune_tensor_info pl_model_info(const PlGValue *v, const char *name) {
  return (perilune_tensor_info){
      .name = name, .shape = v->dims, .bytes = (size_t)pl_gvalue_bytes(v), .dtype = (perilune_dtype)v->dtype, .ndim = v->ndim};
}

/* As it is told of the model itself: a free size is -1. */
static perilune_tensor_info free_info(const PlGValue *v, const char *name, const int64_t *shape) {
  perilune_tensor_info info = pl_model_info(v, name);
  if (!shape) return info;
  info.shape = shape;
  info.bytes = 0;
  return info;
}

int32_t perilune_model_input_count(const perilune_model *m) { return m ? m->base->saved.graph->ninputs : 0; }
int32_t perilune_model_output_count(const perilune_model *m) { return m ? m->base->saved.graph->noutputs : 0; }
int32_t perilune_model_weight_count(const perilune_model *m) { return m ? m->nweights : 0; }
int64_t perilune_model_weight_bytes(const perilune_model *m) { return m ? m->weight_bytes : 0; }
int64_t perilune_model_arena_bytes(const perilune_model *m) { return m ? m->base->plan->arena_bytes : 0; }
int32_t perilune_model_trains(const perilune_model *m) { return m && m->trains; }

PlStatus pl_model_input_value(const PlSavedGraph *saved, int32_t i, const PlGValue **out) {
  const PlGraph *f = saved->graph;
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_INPUT && f->vals[v].slot == i) {
      *out = &f->vals[v];
      return PL_OK;
    }
  PL_FAIL(PL_ERR_ARG, "there is no input %d; there are %d, from 0", (int)i, (int)f->ninputs);
}

PlStatus pl_model_output_value(const PlSavedGraph *saved, int32_t i, const PlGValue **out) {
  const PlGraph *f = saved->graph;
  if (i < 0 || i >= f->noutputs) PL_FAIL(PL_ERR_ARG, "there is no output %d; there are %d, from 0", (int)i, (int)f->noutputs);
  *out = &f->vals[f->outputs[i]];
  return PL_OK;
}

perilune_status perilune_model_input(const perilune_model *m, int32_t i, perilune_tensor_info *out) {
  const PlGValue *v;
  PL_TRY(pl_model_given("perilune_model_input", "the model", m));
  PL_TRY(pl_model_given("perilune_model_input", "out", out));
  PL_TRY(pl_model_input_value(&m->base->saved, i, &v));
  *out = free_info(v, v->name, m->base->saved.input_shapes[i]);
  return PL_OK;
}

perilune_status perilune_model_output(const perilune_model *m, int32_t i, perilune_tensor_info *out) {
  const PlGValue *v;
  PL_TRY(pl_model_given("perilune_model_output", "the model", m));
  PL_TRY(pl_model_given("perilune_model_output", "out", out));
  PL_TRY(pl_model_output_value(&m->base->saved, i, &v));
  *out = free_info(v, m->base->saved.names[i], m->base->saved.output_shapes[i]);
  return PL_OK;
}

int32_t perilune_model_size_count(const perilune_model *m) { return m ? m->base->saved.nsizes : 0; }

perilune_status perilune_model_size(const perilune_model *m, int32_t i, perilune_size_info *out) {
  PL_TRY(pl_model_given("perilune_model_size", "the model", m));
  PL_TRY(pl_model_given("perilune_model_size", "out", out));
  const PlSavedGraph *saved = &m->base->saved;
  if (i < 0 || i >= saved->nsizes) PL_FAIL(PL_ERR_ARG, "there is no free size %d; there are %d, from 0", (int)i, (int)saved->nsizes);
  const PlFreeSize *s = &saved->sizes[i];
  *out = (perilune_size_info){.name = s->name, .example = s->example, .least = s->least, .most = s->most};
  return PL_OK;
}

/* What dimension d is called; NULL: there is none, or it is fixed. */
static const char *dim_name(const char *const *names, const PlGValue *v, int32_t d) {
  return names && d >= 0 && d < v->ndim ? names[d] : NULL;
}

const char *perilune_model_input_dim(const perilune_model *m, int32_t i, int32_t d) {
  const PlGValue *v;
  return m && pl_model_input_value(&m->base->saved, i, &v) == PL_OK ? dim_name(m->base->saved.input_dims[i], v, d) : NULL;
}

const char *perilune_model_output_dim(const perilune_model *m, int32_t i, int32_t d) {
  const PlGValue *v;
  return m && pl_model_output_value(&m->base->saved, i, &v) == PL_OK ? dim_name(m->base->saved.output_dims[i], v, d) : NULL;
}

static int32_t find(const char *const *names, int32_t n, const char *name) {
  for (int32_t i = 0; name && i < n; i++)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}

int32_t perilune_model_input_find(const perilune_model *m, const char *name) {
  return m ? find(m->inputs, m->base->saved.graph->ninputs, name) : -1;
}
int32_t perilune_model_output_find(const perilune_model *m, const char *name) {
  return m ? find(m->base->saved.names, m->base->saved.graph->noutputs, name) : -1;
}

perilune_status perilune_model_weight(const perilune_model *m, int32_t i, perilune_tensor_info *out, const void **data) {
  PL_TRY(pl_model_given("perilune_model_weight", "the model", m));
  PL_TRY(pl_model_given("perilune_model_weight", "out", out));
  if (i < 0 || i >= m->nweights) PL_FAIL(PL_ERR_ARG, "there is no weight %d; there are %d, from 0", (int)i, (int)m->nweights);
  if (m->device != PL_CPU && data) PL_FAIL(PL_ERR_UNSUPPORTED, "the model's weights are on a GPU");
  const PlGValue *v = &m->base->saved.graph->vals[m->weights[i]];
  *out = pl_model_info(v, v->name);
  if (data) *data = v->real->a.data;
  return PL_OK;
}
