/* SPDX-License-Identifier: MIT
 * The table of convolution plans for all threads: who looks for one that is there takes no lock, so that threads which serve a
 * model do not meet here. Making one takes the mutex; the least recently used goes first, one in use never. */
#include "kernels/cpu/onednn/onednn_conv_plan.h"

#ifdef PLK_HAVE_ONEDNN

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER; /* of those who change the table */

static void fork_prepare(void) { pthread_mutex_lock(&plans_lock); }
static void fork_done(void) { pthread_mutex_unlock(&plans_lock); }

bool plk_dnnl_watch_forks(void) { return pthread_atfork(fork_prepare, fork_done, fork_done) == 0; }

enum { NPLANS = 256 }; /* a step of ResNet-50 uses about 100 */

/* A place of the table. Who counts himself among its users may read the plan, until he leaves; who changes it makes the count
 * CHANGING where it is 0. The hash tells at a glance that it is another plan; it may be behind, so the key is compared, too. */
typedef struct Slot {
  atomic_int users;
  _Atomic uint64_t hash, tick;
  PlkConvPlan *plan;
} Slot;
enum { CHANGING = -1 };
static Slot slots[NPLANS];
static _Atomic uint64_t plans_tick;

static uint64_t hash_of(const PlkConvKey *key) {
  const int64_t *v = (const int64_t *)(const void *)key;
  uint64_t h = 1;
  for (size_t i = 0; i < sizeof *key / sizeof *v; i++) h = (h ^ (uint64_t)v[i]) * UINT64_C(0x9e3779b97f4a7c15);
  return h ? h : 1; /* 0: nothing was here yet */
}
_Static_assert(sizeof(PlkConvKey) % sizeof(int64_t) == 0, "a key is a list of integers");

static bool enter(Slot *s) {
  int n = atomic_load_explicit(&s->users, memory_order_relaxed);
  while (n != CHANGING)
    if (atomic_compare_exchange_weak_explicit(&s->users, &n, n + 1, memory_order_acquire, memory_order_relaxed)) return true;
  return false;
}

static void leave(Slot *s) { atomic_fetch_sub_explicit(&s->users, 1, memory_order_release); }

/* The plan of that key, entered; false: it is not there. */
static bool look(const PlkConvKey *key, uint64_t hash, PlkConvPlan **out) {
  for (int i = 0; i < NPLANS; i++) {
    Slot *s = &slots[i];
    if (atomic_load_explicit(&s->hash, memory_order_relaxed) != hash || !enter(s)) continue;
    if (s->plan && memcmp(&s->plan->key, key, sizeof *key) == 0) {
      const uint64_t now = atomic_fetch_add_explicit(&plans_tick, 1, memory_order_relaxed) + 1;
      atomic_store_explicit(&s->tick, now, memory_order_relaxed);
      *out = s->plan;
      if (!s->plan->none) return true;
      *out = NULL;
      leave(s);
      return true;
    }
    leave(s);
  }
  return false;
}

/* A place that nobody uses, empty or the one that was used longest ago, ready to be changed; NULL: all are in use. */
static Slot *take_slot(void) {
  for (int tries = 0; tries < 4; tries++) {
    Slot *best = NULL;
    for (int i = 0; i < NPLANS; i++) {
      Slot *s = &slots[i];
      if (atomic_load_explicit(&s->users, memory_order_relaxed) != 0) continue;
      if (!best || atomic_load_explicit(&s->tick, memory_order_relaxed) < atomic_load_explicit(&best->tick, memory_order_relaxed)) best = s;
    }
    int nobody = 0;
    if (!best) return NULL;
    if (atomic_compare_exchange_strong_explicit(&best->users, &nobody, CHANGING, memory_order_acquire, memory_order_relaxed)) return best;
  }
  return NULL;
}

static void plan_free(PlkConvPlan *p) {
  if (!p) return;
  plk_conv_plan_clear(p);
  free(p);
}

/* Under plans_lock. */
static PlStatus make(const PlkConvKey *key, uint64_t hash, PlkConvPlan **out) {
  Slot *s = take_slot();
  if (!s) PL_FAIL(PL_ERR_STATE, "too many convolutions at once");
  plan_free(s->plan);
  s->plan = NULL;
  PlkConvPlan *p = calloc(1, sizeof *p);
  PlStatus st = p ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory for a convolution plan");
  if (st == PL_OK) {
    p->key = *key;
    p->slot = (int)(s - slots);
    st = plk_conv_plan_build(p);
  }
  if (st != PL_OK) {
    plan_free(p);
    p = NULL;
  }
  s->plan = p;
  atomic_store_explicit(&s->tick, p ? atomic_fetch_add_explicit(&plans_tick, 1, memory_order_relaxed) + 1 : 0, memory_order_relaxed);
  atomic_store_explicit(&s->hash, p ? hash : 0, memory_order_relaxed);
  const bool used = p && !p->none;
  *out = used ? p : NULL;
  atomic_store_explicit(&s->users, used, memory_order_release);
  return st;
}

PlStatus plk_onednn_conv_get(const PlkConvKey *key, PlkConvPlan **out) {
  const uint64_t hash = hash_of(key);
  PlStatus s = PL_OK;
  if (look(key, hash, out)) return PL_OK;
  pthread_mutex_lock(&plans_lock);
  if (!look(key, hash, out)) s = make(key, hash, out); /* another thread may have made it meanwhile */
  pthread_mutex_unlock(&plans_lock);
  return s;
}

void plk_onednn_conv_put(PlkConvPlan *plan) {
  if (plan) leave(&slots[plan->slot]);
}

#endif
