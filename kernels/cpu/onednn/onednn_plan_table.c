/* SPDX-License-Identifier: MIT
 * See onednn_plan_table.h. */
#include "kernels/cpu/onednn/onednn_plan_table.h"

#ifdef PLK_HAVE_ONEDNN

#include <stdlib.h>
#include <string.h>

enum { CHANGING = -1 };

static void *key_of(PlkPlanHead *p) { return p + 1; }

static uint64_t hash_of(const PlkPlanTable *t, const void *key) {
  const int64_t *v = key;
  uint64_t h = 1;
  for (size_t i = 0; i < t->key_bytes / sizeof *v; i++) h = (h ^ (uint64_t)v[i]) * UINT64_C(0x9e3779b97f4a7c15);
  return h ? h : 1; /* 0: nothing was here yet */
}

static PlkPlanSlot *set_of(const PlkPlanTable *t, uint64_t hash) { return t->slots + (int)((hash >> 40) % (uint64_t)t->sets) * t->ways; }

static bool enter(PlkPlanSlot *s) {
  int n = atomic_load_explicit(&s->users, memory_order_relaxed);
  while (n != CHANGING)
    if (atomic_compare_exchange_weak_explicit(&s->users, &n, n + 1, memory_order_acquire, memory_order_relaxed)) return true;
  return false;
}

static void leave(PlkPlanSlot *s) { atomic_fetch_sub_explicit(&s->users, 1, memory_order_release); }

static uint64_t now(PlkPlanTable *t) { return atomic_fetch_add_explicit(&t->tick, 1, memory_order_relaxed) + 1; }

/* The plan of that key, entered; false: it is not there. */
static bool look(PlkPlanTable *t, const void *key, uint64_t hash, PlkPlanHead **out) {
  PlkPlanSlot *set = set_of(t, hash);
  for (int i = 0; i < t->ways; i++) {
    PlkPlanSlot *s = &set[i];
    if (atomic_load_explicit(&s->hash, memory_order_relaxed) != hash || !enter(s)) continue;
    if (s->plan && memcmp(key_of(s->plan), key, t->key_bytes) == 0) {
      atomic_store_explicit(&s->tick, now(t), memory_order_relaxed);
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
static PlkPlanSlot *take_slot(PlkPlanTable *t, uint64_t hash) {
  PlkPlanSlot *set = set_of(t, hash);
  for (int tries = 0; tries < 4; tries++) {
    PlkPlanSlot *best = NULL;
    for (int i = 0; i < t->ways; i++) {
      PlkPlanSlot *s = &set[i];
      if (atomic_load_explicit(&s->users, memory_order_relaxed) != 0) continue;
      if (!best || atomic_load_explicit(&s->tick, memory_order_relaxed) < atomic_load_explicit(&best->tick, memory_order_relaxed)) best = s;
    }
    int nobody = 0;
    if (!best) return NULL;
    if (atomic_compare_exchange_strong_explicit(&best->users, &nobody, CHANGING, memory_order_acquire, memory_order_relaxed)) return best;
  }
  return NULL;
}

void plk_plan_free(const PlkPlanTable *t, PlkPlanHead *plan) {
  if (!plan) return;
  t->clear(plan);
  free(plan);
}

PlStatus plk_plan_make(const PlkPlanTable *t, const void *key, PlkPlanHead **out) {
  PlkPlanHead *p = calloc(1, t->plan_bytes);
  if (!p) PL_FAIL(PL_ERR_OOM, "out of memory for %s", t->what);
  p->slot = -1;
  memcpy(key_of(p), key, t->key_bytes);
  PlStatus s = t->build(p);
  if (s == PL_OK) *out = p;
  else plk_plan_free(t, p);
  return s;
}

/* Under the lock. */
static PlStatus make(PlkPlanTable *t, const void *key, uint64_t hash, PlkPlanHead **out) {
  PlkPlanSlot *s = take_slot(t, hash);
  PlkPlanHead *p = NULL;
  if (s) {
    plk_plan_free(t, s->plan);
    s->plan = NULL;
  }
  PlStatus st = plk_plan_make(t, key, &p);
  const bool used = p && !p->none;
  *out = used ? p : NULL;
  if (!s) {
    if (!used) plk_plan_free(t, p);
    return st;
  }
  if (p) p->slot = s - t->slots;
  s->plan = p;
  atomic_store_explicit(&s->tick, p ? now(t) : 0, memory_order_relaxed);
  atomic_store_explicit(&s->hash, p ? hash : 0, memory_order_relaxed);
  atomic_store_explicit(&s->users, used, memory_order_release);
  return st;
}

PlStatus plk_plan_get(PlkPlanTable *t, const void *key, PlkPlanHead **out) {
  const uint64_t hash = hash_of(t, key);
  PlStatus s = PL_OK;
  *out = NULL;
  if (look(t, key, hash, out)) return PL_OK;
  pthread_mutex_lock(&t->lock);
  if (!look(t, key, hash, out)) s = make(t, key, hash, out); /* another thread may have made it meanwhile */
  pthread_mutex_unlock(&t->lock);
  return s;
}

void plk_plan_put(PlkPlanTable *t, PlkPlanHead *plan) {
  if (!plan) return;
  if (plan->slot < 0) plk_plan_free(t, plan);
  else leave(&t->slots[plan->slot]);
}

#endif
