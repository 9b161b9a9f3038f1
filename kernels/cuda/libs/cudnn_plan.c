/* SPDX-License-Identifier: MIT
 * Which of cuDNN's engines runs a graph, and the plans that were made: see cudnn_graph.h. */
#include "kernels/cuda/libs/cudnn_graph.h"
#include "kernels/cuda/libs/fastest.h"
#include "kernels/cuda/runtime/locked.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct Way {
  PlcDesc plan, config; /* the plan reads its configuration and the graph as long as it lives */
  size_t workspace;
} Way;
struct PlcPlan {
  const PlcDnnApi *api;
  atomic_int refs;
  Way way[PLC_PLAN_WAYS];
  int nway, most, best; /* most: that it was asked for; nway is 1 once `best` is decided */
  int ndesc;
  PlcDesc desc[PLC_G_DESC + 1];
};
static atomic_int most_ways = 1;

enum { CANDIDATES = 24, NOTES = 16, CACHE = 512 };

/* ---- choosing ------------------------------------------------------------------------------------------------- */

/* True if the engine of a configuration keeps the rules: what it says of itself in notes. */
static bool keeps(const PlcDnnApi *api, PlcDesc config, const PlcRules *rules) {
  PlcDesc engine = NULL;
  int64_t n = 0;
  if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) return false;
  cudnnBackendNumericalNote_t note[NOTES];
  bool ok = api->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) ==
                CUDNN_STATUS_SUCCESS &&
            api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES, &n, note) ==
                CUDNN_STATUS_SUCCESS;
  for (int64_t k = 0; ok && k < n && k < NOTES; k++) {
    if (rules->deterministic && note[k] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ok = false;
    if (rules->exact && (note[k] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || note[k] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) ok = false;
    if ((rules->exact || rules->once) && note[k] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) ok = false;
  }
  (void)api->cudnnBackendDestroyDescriptor(engine);
  return ok;
}

/* The plan of a configuration, if the library can make it and its workspace is no more than allowed. */
static PlcDesc plan_of(const PlcDnnApi *api, PlcDnnTarget target, PlcDesc config, const PlcRules *rules, size_t *bytes) {
  PlcDesc plan = NULL;
  int64_t n = 0, need = 0;
  if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS) return NULL;
  cudnnStatus_t s =
      target.handle
          ? api->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle)
          : api->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target.device);
  if (s == CUDNN_STATUS_SUCCESS)
    s = api->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
  if (s == CUDNN_STATUS_SUCCESS) s = api->cudnnBackendFinalize(plan);
  if (s == CUDNN_STATUS_SUCCESS)
    s = api->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &need);
  if (s == CUDNN_STATUS_SUCCESS && (size_t)need <= rules->workspace) {
    *bytes = (size_t)need;
    return plan;
  }
  (void)api->cudnnBackendDestroyDescriptor(plan);
  return NULL;
}

/* Asks for configurations in one mode; takes the first that will do. Its descriptors go into p. */
static bool try_mode(PlcGraph *g, PlcDesc graph, cudnnBackendHeurMode_t mode, const PlcRules *rules, PlcPlan *p) {
  const PlcDnnApi *api = g->api;
  PlcDesc heur = NULL, config[CANDIDATES] = {NULL};
  int made = 0;
  int64_t n = 0;
  bool ok = api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heur) == CUDNN_STATUS_SUCCESS;
  ok = ok && api->cudnnBackendSetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph) ==
                 CUDNN_STATUS_SUCCESS;
  ok = ok && api->cudnnBackendSetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) == CUDNN_STATUS_SUCCESS;
  if (ok && !g->target.handle)
    ok = api->cudnnBackendSetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->target.device) ==
         CUDNN_STATUS_SUCCESS;
  ok = ok && api->cudnnBackendFinalize(heur) == CUDNN_STATUS_SUCCESS;
  for (; ok && made < CANDIDATES; made++)
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[made]) != CUDNN_STATUS_SUCCESS) break;
  ok = ok && made > 0 &&
       api->cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &n, config) ==
           CUDNN_STATUS_SUCCESS;
  for (int k = 0; ok && k < made && k < n && p->nway < p->most; k++) {
    Way *w = &p->way[p->nway];
    if (!keeps(api, config[k], rules)) continue;
    w->plan = plan_of(api, g->target, config[k], rules, &w->workspace);
    if (!w->plan) continue;
    w->config = config[k];
    config[k] = NULL;
    p->nway++;
  }
  for (int k = 0; k < made; k++)
    if (config[k]) (void)api->cudnnBackendDestroyDescriptor(config[k]);
  if (heur) (void)api->cudnnBackendDestroyDescriptor(heur);
  return p->nway > 0;
}

static PlStatus operation_graph(PlcGraph *g, PlcDesc *out) {
  static const char doing[] = "joining operations to a graph";
  const PlcDnnApi *api = g->api;
  PL_TRY(g->status);
  PlcDesc d = NULL;
  PLC_DNN_TRY(api, cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &d), doing);
  cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
  if (g->target.handle) s = api->cudnnBackendSetAttribute(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->target.handle);
  if (s == CUDNN_STATUS_SUCCESS)
    s = api->cudnnBackendSetAttribute(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->nops, g->ops);
  if (s == CUDNN_STATUS_SUCCESS) s = api->cudnnBackendFinalize(d);
  if (s != CUDNN_STATUS_SUCCESS) {
    PlStatus st = plc_dnn_fail(s, doing);
    (void)api->cudnnBackendDestroyDescriptor(d);
    return st;
  }
  *out = d;
  return PL_OK;
}

PlStatus plc_graph_plan(PlcGraph *g, const PlcRules *rules, PlcPlan **out) {
  PlcDesc graph = NULL;
  PL_TRY(operation_graph(g, &graph));
  PlcPlan *p = calloc(1, sizeof *p);
  if (!p) {
    (void)g->api->cudnnBackendDestroyDescriptor(graph);
    PL_FAIL(PL_ERR_OOM, "out of memory to plan a cuDNN graph");
  }
  p->api = g->api;
  atomic_init(&p->refs, 1);
  p->most = atomic_load(&most_ways);
  if (!try_mode(g, graph, CUDNN_HEUR_MODE_A, rules, p)) (void)try_mode(g, graph, CUDNN_HEUR_MODE_FALLBACK, rules, p);
  p->desc[p->ndesc++] = graph; /* the descriptors live as long as the plan that was made of them */
  memcpy(p->desc + p->ndesc, g->desc, (size_t)g->ndesc * sizeof *g->desc);
  p->ndesc += g->ndesc;
  g->ndesc = 0;
  if (p->nway == 0) {
    plc_plan_release(p);
    PL_FAIL(PL_ERR_UNSUPPORTED, "cudnn: no engine computes this%s%s within %zu MiB", rules->deterministic ? " reproducibly" : "",
            rules->exact ? " in full f32" : "", rules->workspace >> 20);
  }
  *out = p;
  return PL_OK;
}

void plc_plan_release(PlcPlan *p) {
  if (!p || atomic_fetch_sub(&p->refs, 1) > 1) return;
  for (int k = 0; k < PLC_PLAN_WAYS; k++) {
    if (p->way[k].plan) (void)p->api->cudnnBackendDestroyDescriptor(p->way[k].plan);
    if (p->way[k].config) (void)p->api->cudnnBackendDestroyDescriptor(p->way[k].config);
  }
  for (int k = 0; k < p->ndesc; k++) (void)p->api->cudnnBackendDestroyDescriptor(p->desc[k]);
  free(p);
}

void plc_plans_measure(bool on) { atomic_store(&most_ways, on ? PLC_PLAN_WAYS : 1); }
int plc_plan_ways(const PlcPlan *p) { return p->nway; }
size_t plc_plan_workspace(const PlcPlan *p, int way) { return p->way[way < 0 ? p->best : way].workspace; }

void plc_plan_decide(PlcPlan *p, const double *times) {
  p->best = plc_ways_choose(p->nway, times);
  p->nway = 1;
}

PlStatus plc_plan_run(const PlcPlan *p, int way, cudnnHandle_t handle, int n, const int64_t *uid, void *const *at, void *workspace) {
  static const char doing[] = "starting a plan";
  PlcDesc pack = NULL;
  PLC_DNN_TRY(p->api, cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), doing);
  cudnnStatus_t s = p->api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
  if (s == CUDNN_STATUS_SUCCESS)
    s = p->api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at);
  if (s == CUDNN_STATUS_SUCCESS)
    s = p->api->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  if (s == CUDNN_STATUS_SUCCESS) s = p->api->cudnnBackendFinalize(pack);
  if (s == CUDNN_STATUS_SUCCESS) s = p->api->cudnnBackendExecute(handle, p->way[way < 0 ? p->best : way].plan, pack);
  PlStatus st = s == CUDNN_STATUS_SUCCESS ? PL_OK : plc_dnn_fail(s, doing);
  (void)p->api->cudnnBackendDestroyDescriptor(pack);
  return st;
}

/* ---- keeping ---------------------------------------------------------------------------------------------------- */

typedef struct Entry {
  void *key;
  size_t size;
  cudnnHandle_t handle; /* plans belong to the one that they were made for */
  uint64_t hash, used;
  PlcPlan *plan; /* NULL: no engine takes it */
} Entry;

static struct {
  pthread_mutex_t lock;
  Entry entry[CACHE];
  int n;
  uint64_t clock;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash_of(const void *key, size_t size) {
  uint64_t h = 0xCBF29CE484222325u;
  for (size_t k = 0; k < size; k++) h = (h ^ ((const unsigned char *)key)[k]) * 0x100000001B3u;
  return h;
}

static void drop(Entry *e) {
  plc_plan_release(e->plan);
  free(e->key);
}

static Entry *place(const void *key, size_t size, cudnnHandle_t handle, uint64_t hash) {
  void *copy = malloc(size);
  if (!copy) return NULL;
  memcpy(copy, key, size);
  Entry *e = &cache.entry[0];
  if (cache.n < CACHE) e = &cache.entry[cache.n++];
  else {
    for (int k = 1; k < CACHE; k++)
      if (cache.entry[k].used < e->used) e = &cache.entry[k];
    drop(e);
  }
  *e = (Entry){.key = copy, .size = size, .handle = handle, .hash = hash};
  return e;
}

PlStatus plc_plan_get(const void *key, size_t size, PlcDnnTarget target, PlcPlanMake make, PlcPlan **out) {
  uint64_t hash = hash_of(key, size);
  Entry *e = NULL;
  PlStatus s = PL_OK;
  *out = NULL;
  plc_lock(&cache.lock);
  for (int k = 0; k < cache.n && !e; k++) {
    Entry *c = &cache.entry[k];
    if (c->hash == hash && c->size == size && c->handle == target.handle && memcmp(c->key, key, size) == 0) e = c;
  }
  if (e && e->plan && e->plan->most < atomic_load(&most_ways)) { /* made when nobody measured */
    drop(e);
    *e = cache.entry[--cache.n];
    e = NULL;
  }
  if (!e) {
    PlcPlan *plan = NULL;
    s = make(key, target, &plan);
    if (s == PL_OK || s == PL_ERR_UNSUPPORTED || s == PL_ERR_ARG) e = place(key, size, target.handle, hash);
    if (e) e->plan = plan;
    else if (plan) { /* no memory to keep it: the caller has the only reference */ *out = plan;
      plan = NULL;
    }
  } else if (!e->plan) s = pl_fail(PL_ERR_UNSUPPORTED, "cudnn: no engine computes this");
  if (e) {
    e->used = ++cache.clock;
    if (e->plan) atomic_fetch_add(&e->plan->refs, 1);
    *out = e->plan;
  }
  plc_unlock(&cache.lock);
  return s;
}

void plc_plans_clear(void) {
  plc_lock(&cache.lock);
  for (int k = 0; k < cache.n; k++) drop(&cache.entry[k]);
  cache.n = 0;
  plc_unlock(&cache.lock);
}
