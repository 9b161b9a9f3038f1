/* SPDX-License-Identifier: MIT
 * The table of convolution plans: a small LRU cache behind one mutex, for all threads. A plan in use is never
 * evicted. */
#include "kernels/cpu/onednn/onednn_conv_plan.h"

#ifdef PLK_HAVE_ONEDNN

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the table */

static void fork_prepare(void) { pthread_mutex_lock(&plans_lock); }
static void fork_done(void) { pthread_mutex_unlock(&plans_lock); }

bool plk_dnnl_watch_forks(void) { return pthread_atfork(fork_prepare, fork_done, fork_done) == 0; }

/* The cache: at most this many plans, the least recently used goes first. Guarded by
 * plans_lock. */
enum { NPLANS = 256 }; /* a step of ResNet-50 uses about 100 */
static PlkConvPlan *plans[NPLANS];
static uint64_t plans_tick;

static void plan_free(PlkConvPlan *p) {
  plk_conv_plan_clear(p);
  free(p);
}

/* A slot for a new plan, or -1 when all are in use. */
static int slot_find(void) {
  int best = -1;
  for (int i = 0; i < NPLANS; i++) {
    if (!plans[i]) return i;
    if (plans[i]->users == 0 && (best < 0 || plans[i]->tick < plans[best]->tick)) best = i;
  }
  if (best >= 0) {
    plan_free(plans[best]);
    plans[best] = NULL;
  }
  return best;
}

static PlStatus plan_make(const PlkConvKey *key, PlkConvPlan **out) {
  int slot = slot_find();
  if (slot < 0) PL_FAIL(PL_ERR_STATE, "too many convolutions at once");
  PlkConvPlan *p = calloc(1, sizeof *p);
  if (!p) PL_FAIL(PL_ERR_OOM, "out of memory for a convolution plan");
  p->key = *key;
  PlStatus s = plk_conv_plan_build(p);
  if (s != PL_OK) {
    plan_free(p);
    return s;
  }
  plans[slot] = *out = p;
  return PL_OK;
}

PlStatus plk_onednn_conv_get(const PlkConvKey *key, PlkConvPlan **out) {
  PlkConvPlan *p = NULL;
  PlStatus s = PL_OK;
  pthread_mutex_lock(&plans_lock);
  for (int i = 0; i < NPLANS && !p; i++)
    if (plans[i] && memcmp(&plans[i]->key, key, sizeof *key) == 0) p = plans[i];
  if (!p) s = plan_make(key, &p);
  if (s == PL_OK) {
    p->tick = ++plans_tick;
    if (!p->none) p->users++;
    *out = p->none ? NULL : p;
  }
  pthread_mutex_unlock(&plans_lock);
  return s;
}

void plk_onednn_conv_put(PlkConvPlan *plan) {
  if (!plan) return;
  pthread_mutex_lock(&plans_lock);
  plan->users--;
  pthread_mutex_unlock(&plans_lock);
}

#endif
