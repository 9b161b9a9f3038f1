/* SPDX-License-Identifier: MIT
 * Models of the C ABI: loading, and what they tell. See perilune_model.h. */
#include "engine/deploy/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"

_Static_assert(PERILUNE_F32 == (int)PL_F32 && PERILUNE_F64 == (int)PL_F64 && PERILUNE_F16 == (int)PL_F16 && PERILUNE_BF16 == (int)PL_BF16 &&
                   PERILUNE_I8 == (int)PL_I8 && PERILUNE_I16 == (int)PL_I16 && PERILUNE_I32 == (int)PL_I32 && PERILUNE_I64 == (int)PL_I64 &&
                   PERILUNE_U8 == (int)PL_U8 && PERILUNE_BOOL == (int)PL_BOOL,
               "dtypes have the numbers of the ABI");
_Static_assert(PERILUNE_ERR_ARG == (int)PL_ERR_ARG && PERILUNE_ERR_SHAPE == (int)PL_ERR_SHAPE && PERILUNE_ERR_DTYPE == (int)PL_ERR_DTYPE &&
                   PERILUNE_ERR_INDEX == (int)PL_ERR_INDEX && PERILUNE_ERR_OOM == (int)PL_ERR_OOM &&
                   PERILUNE_ERR_STATE == (int)PL_ERR_STATE && PERILUNE_ERR_IO == (int)PL_ERR_IO &&
                   PERILUNE_ERR_FORMAT == (int)PL_ERR_FORMAT && PERILUNE_ERR_INTERRUPT == (int)PL_ERR_INTERRUPT &&
                   PERILUNE_ERR_UNSUPPORTED == (int)PL_ERR_UNSUPPORTED && PERILUNE_ERR_TRACE == (int)PL_ERR_TRACE,
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
  const PlGraph *f = m->saved.graph;
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
  const PlGraph *f = m->saved.graph;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (!(n->flags & PL_FN_MUTATES)) continue;
    m->trains = true;
    for (int k = 0; k < n->op->nattr; k++)
      if (strcmp(n->op->attrs[k].name, "numbers") == 0)
        PL_FAIL(PL_ERR_UNSUPPORTED,
                "%s (%s): this optimizer's numbers of a step are computed by Lua; train with it there, or with SGD, Adam, AdamW or RMSprop",
                n->name, n->op->name);
  }
  return PL_OK;
}

static PlStatus prepare(perilune_model *m) {
  PL_TRY(list(m));
  PL_TRY(check_writes(m));
  PL_TRY(pl_graph_compile(&m->plan, m->saved.graph));
  if (m->trains || m->device != PL_CPU) return pl_exec_new(&m->exec, m->plan);
  m->refused = pl_program_new(&m->program, m->plan, m->inputs, m->saved.names);
  if (m->refused == PL_ERR_OOM) return m->refused;
  if (m->refused != PL_OK) snprintf(m->why, sizeof m->why, "%s", pl_message());
  return PL_OK;
}

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
  PlStatus s = pl_saved_graph_read(&m->saved, path, device);
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
  pl_program_free(m->program);
  pl_exec_release(m->exec);
  pl_plan_release(m->plan);
  if (m->saved.graph) pl_saved_graph_free(&m->saved);
  pthread_mutex_destroy(&m->lock);
  free(m->inputs);
  free(m->weights);
  free(m);
}

void perilune_model_release(perilune_model *m) {
  if (m) pl_model_drop(m);
}

/* ---- telling ----------------------------------------------------------------------------------------------------------- */

static perilune_tensor_info info_of(const PlGValue *v, const char *name) {
  return (perilune_tensor_info){
      .name = name, .shape = v->dims, .bytes = (size_t)pl_gvalue_bytes(v), .dtype = (perilune_dtype)v->dtype, .ndim = v->ndim};
}

int32_t perilune_model_input_count(const perilune_model *m) { return m ? m->saved.graph->ninputs : 0; }
int32_t perilune_model_output_count(const perilune_model *m) { return m ? m->saved.graph->noutputs : 0; }
int32_t perilune_model_weight_count(const perilune_model *m) { return m ? m->nweights : 0; }
int64_t perilune_model_weight_bytes(const perilune_model *m) { return m ? m->weight_bytes : 0; }
int64_t perilune_model_arena_bytes(const perilune_model *m) { return m ? m->plan->arena_bytes : 0; }
int32_t perilune_model_trains(const perilune_model *m) { return m && m->trains; }

perilune_status perilune_model_input(const perilune_model *m, int32_t i, perilune_tensor_info *out) {
  PL_TRY(pl_model_given("perilune_model_input", "the model", m));
  PL_TRY(pl_model_given("perilune_model_input", "out", out));
  const PlGraph *f = m->saved.graph;
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_INPUT && f->vals[v].slot == i) {
      *out = info_of(&f->vals[v], f->vals[v].name);
      return PL_OK;
    }
  PL_FAIL(PL_ERR_ARG, "there is no input %d; there are %d, from 0", (int)i, (int)f->ninputs);
}

perilune_status perilune_model_output(const perilune_model *m, int32_t i, perilune_tensor_info *out) {
  PL_TRY(pl_model_given("perilune_model_output", "the model", m));
  PL_TRY(pl_model_given("perilune_model_output", "out", out));
  const PlGraph *f = m->saved.graph;
  if (i < 0 || i >= f->noutputs) PL_FAIL(PL_ERR_ARG, "there is no output %d; there are %d, from 0", (int)i, (int)f->noutputs);
  *out = info_of(&f->vals[f->outputs[i]], m->saved.names[i]);
  return PL_OK;
}

static int32_t find(const char *const *names, int32_t n, const char *name) {
  for (int32_t i = 0; name && i < n; i++)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}

int32_t perilune_model_input_find(const perilune_model *m, const char *name) {
  return m ? find(m->inputs, m->saved.graph->ninputs, name) : -1;
}
int32_t perilune_model_output_find(const perilune_model *m, const char *name) {
  return m ? find(m->saved.names, m->saved.graph->noutputs, name) : -1;
}

perilune_status perilune_model_weight(const perilune_model *m, int32_t i, perilune_tensor_info *out, const void **data) {
  PL_TRY(pl_model_given("perilune_model_weight", "the model", m));
  PL_TRY(pl_model_given("perilune_model_weight", "out", out));
  if (i < 0 || i >= m->nweights) PL_FAIL(PL_ERR_ARG, "there is no weight %d; there are %d, from 0", (int)i, (int)m->nweights);
  if (m->device != PL_CPU && data) PL_FAIL(PL_ERR_UNSUPPORTED, "the model's weights are on a GPU");
  const PlGValue *v = &m->saved.graph->vals[m->weights[i]];
  *out = info_of(v, v->name);
  if (data) *data = v->real->a.data;
  return PL_OK;
}
