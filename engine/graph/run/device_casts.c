/* SPDX-License-Identifier: MIT
 * Casts between f32 and a half, many a launch. Under autocast a network has one for each weight and one for each weight's
 * gradient: small ones, which cost more to launch than to run. Those of leaves that nothing before has written are made with the
 * first of them; others wait until somebody reads what they make, or what they read, until something is written
 * in place, or until the run ends. Either keeps memory longer than one after the other would: not more than MOST at a time. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/graph/run/device_run_internal.h"
#include "engine/tensor/layout.h"
#include "kernels/elementwise_codes.h"

enum { NO, EARLY, LATE };
#define MOST ((int64_t)64 << 20) /* bytes of halves */

static bool half(int d) { return d == PL_F16 || d == PL_BF16; }

/* By the plan: what is found at the run is looked at there. */
static bool is_cast(const PlDeviceRun *a, const PlGNode *n) {
  if (n->op->fused[0] != 1 + PLK_EW_CAST || n->nin != 1 || n->nout != 1 || (n->flags & (PL_FN_VIEW | PL_FN_MUTATES))) return false;
  const PlGValue *x = &a->f->vals[n->in[0]], *y = &a->f->vals[n->first];
  const bool floats = (x->dtype == PL_F32 && half(y->dtype)) || (half(x->dtype) && y->dtype == PL_F32);
  return floats && pl_on_gpu(a->device[n->first]) && a->device[n->in[0]] == a->device[n->first] && x->numel == y->numel &&
         a->last[n->first] >= 0;
}

/* Inputs 0 … writes(n)-1 are written; of a list any may be. */
static int32_t writes(const PlGNode *n) { return !(n->flags & PL_FN_MUTATES) ? 0 : n->op->nin == PL_VARIADIC ? n->nin : n->nout; }
static void note_writes(PlDeviceRun *a, const PlGNode *n) {
  for (int32_t k = 0; k < writes(n) && k < n->nin; k++)
    if (n->in[k] >= 0) a->written[a->f->vals[n->in[k]].store] = 1;
}

void pl_device_casts_choose(PlDeviceRun *a) {
  const PlGraph *f = a->f;
  memset(a->cast, NO, (size_t)f->nnodes);
  memset(a->written, 0, (size_t)f->nstores);
  a->nleaf_casts = 0;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (a->at[i] >= 0) {
      for (const int32_t end = a->groups[a->at[i]].end; i < end; i++) note_writes(a, &f->nodes[i]);
      i--;
      continue;
    }
    note_writes(a, n);
    if (!is_cast(a, n)) continue;
    const PlGValue *x = &f->vals[n->in[0]];
    a->cast[i] = x->kind == PL_FV_NODE ? LATE : a->written[x->store] ? NO : EARLY;
    if (a->cast[i] == EARLY) a->leaf_cast[a->nleaf_casts++] = i;
  }
}

/* Leaves that share memory: of one store the order of writes is known, of two it is not. So where a leaf that is written has the
 * memory of another one that is cast, casts of leaves come in their turn. Asked while all leaves are there. */
void pl_device_casts_begin(PlDeviceRun *a) {
  const PlGraph *f = a->f;
  a->early = true;
  for (PlGVal w = 0; w < f->nvals && a->early && a->nleaf_casts > 0; w++) {
    if (f->vals[w].kind == PL_FV_NODE || !a->written[f->vals[w].store] || !a->vals[w]) continue;
    for (int32_t i = 0; i < a->nleaf_casts && a->early; i++) {
      const PlGVal v = f->nodes[a->leaf_cast[i]].in[0];
      a->early = f->vals[v].store == f->vals[w].store || !a->vals[v] || a->vals[v]->storage != a->vals[w]->storage;
    }
  }
}

static int64_t bytes_of(const PlDeviceRun *a, int32_t i) { return 2 * a->f->vals[a->f->nodes[i].first].numel; }

/* Is what it reads there, and dense, in either layout? */
static bool fits(const PlDeviceRun *a, int32_t i) {
  const PlTensor *x = a->vals[a->f->nodes[i].in[0]];
  return x && (x->a.contiguous || pl_channels_last(&x->a)) && x->a.numel > 0 && x->a.dtype == a->f->vals[a->f->nodes[i].in[0]].dtype;
}

/* Of n nodes, in one call. */
static PlStatus make(PlDeviceRun *a, const int32_t *node, int32_t n) {
  static const PlAttrs none;
  const PlArray **in = malloc((size_t)n * sizeof *in);
  PlArray **out = malloc((size_t)n * sizeof *out);
  PlStatus s = in && out ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to run a graph on the device");
  const uint8_t device = a->device[a->f->nodes[node[0]].first];
  for (int32_t k = 0; k < n && s == PL_OK; k++) {
    const PlGNode *c = &a->f->nodes[node[k]];
    const PlTensor *x = a->vals[c->in[0]];
    s = pl_tensor_empty_as(&a->vals[c->first], x->a.contiguous ? PL_ROW_MAJOR : PL_CHANNELS_LAST, device,
                           (PlDtype)a->f->vals[c->first].dtype, x->a.ndim, x->a.shape);
    if (s != PL_OK) break;
    in[k] = &x->a;
    out[k] = &a->vals[c->first]->a;
  }
  if (s == PL_OK && a->noting) a->noting->settings(NULL);
  const PlkCall call = {.name = "cast", .code = PLK_EW_CAST, .nin = n, .nout = n, .in = in, .out = out, .attrs = &none};
  if (s == PL_OK) s = pl_device_family(device, "foreach_cast", &call);
  free(in);
  free(out);
  return s;
}

PlStatus pl_device_casts_flush(PlDeviceRun *a) {
  const int32_t n = a->nwaiting;
  if (n == 0) return PL_OK;
  a->nwaiting = 0;
  a->waiting_bytes = 0;
  PlStatus s = make(a, a->waiting, n);
  for (int32_t k = 0; k < n; k++) {
    const PlGNode *c = &a->f->nodes[a->waiting[k]];
    a->waits[c->in[0]] = a->waits[c->first] = 0;
    if (s == PL_OK) pl_device_run_drop_behind(a, a->waiting[k]);
  }
  return s;
}

PlStatus pl_device_casts_before(PlDeviceRun *a, int32_t begin, int32_t end) {
  if (a->nwaiting == 0) return PL_OK;
  for (int32_t i = begin; i < end; i++) {
    const PlGNode *n = &a->f->nodes[i];
    bool meets = (n->flags & PL_FN_MUTATES) != 0;
    for (int32_t k = 0; k < n->nin && !meets; k++) meets = n->in[k] >= 0 && a->waits[n->in[k]];
    if (meets) return pl_device_casts_flush(a);
  }
  return PL_OK;
}

static PlStatus take_early(PlDeviceRun *a, int32_t i, int32_t to, bool *taken) {
  int32_t n = 0, *node = malloc((size_t)(to - i) * sizeof *node);
  if (!node) PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device");
  const uint8_t device = a->device[a->f->nodes[i].first];
  int64_t bytes = 0;
  for (int32_t k = i; k < to && bytes < MOST; k++)
    if (a->cast[k] == EARLY && !a->vals[a->f->nodes[k].first] && a->device[a->f->nodes[k].first] == device && fits(a, k))
      node[n++] = k, bytes += bytes_of(a, k);
  *taken = n > 1 && node[0] == i;
  PlStatus s = *taken ? make(a, node, n) : PL_OK;
  free(node);
  return s;
}

PlStatus pl_device_casts_take(PlDeviceRun *a, int32_t i, int32_t to, bool *taken) {
  const PlGNode *n = &a->f->nodes[i];
  *taken = false;
  if (a->cast[i] == NO || pl_state.profile) return PL_OK; /* a profile has every op by itself */
  if (a->vals[n->first]) *taken = true;                   /* made with an earlier one */
  else if (a->cast[i] == EARLY) PL_TRY(a->early ? take_early(a, i, to, taken) : PL_OK);
  else {
    if (a->nwaiting > 0 && (a->waits[n->in[0]] || a->device[a->f->nodes[a->waiting[0]].first] != a->device[n->first]))
      PL_TRY(pl_device_casts_flush(a));
    if (!fits(a, i)) return PL_OK;
    a->waits[n->in[0]] = a->waits[n->first] = 1;
    a->waiting[a->nwaiting++] = i;
    a->waiting_bytes += bytes_of(a, i);
    *taken = true; /* what it reads is dropped when it was made */
    return a->waiting_bytes < MOST ? PL_OK : pl_device_casts_flush(a);
  }
  if (*taken) pl_device_run_drop_behind(a, i);
  return PL_OK;
}
