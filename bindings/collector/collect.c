/* SPDX-License-Identifier: MIT
 * When to collect. Lua cannot see the memory of tensors, so at op entry:
 *   - every LEAST to OFTEN bytes allocated, few enough for the cache to hold what results are written over: one Lua collection
 *     step, which in generational mode frees young garbage at a cost that does not depend on what is old. Half as many bytes
 *     where a step gave back nearly all that was made, and cost little; twice as many where it did not: what lives through two
 *     steps is old, and stays until a full collection, as a training step's values would;
 *   - then, where much is live, a full collection once 20 times the duration of the last one has passed (so at most
 *     5 % of the time goes there);
 *   - where a checkpoint has run its function, and nearly all that it made is garbage: a step, and a full one after half that time,
 *     though little is live, for what lived through two steps there is garbage as well; after as long as the last one took where more than half of a budget is in use, as what the engine
 *     makes in a backward cannot wait for a collection;
 *   - when live bytes have grown by a third (twice, while they are few) in spite of that: a full collection. They grow
 *     from what the last full one left, or the ones shortly before: a training step's memory swells and shrinks, and
 *     what one of them found in use at its widest will be in use again.
 * Devices' memory counts the same way, apart and in larger steps: it is larger, and filled faster. Of several GPUs the
 * memory of all counts as one, in steps of what the smallest has.
 * Where memory is out, everything is collected and the allocation tried again: at whole calls of ops (ops/call.c), and
 * below them, in the middle of a backward or of a run, where the engine asks (pl_reclaim): all that C works with there is
 * counted or on the stack of the state that it works for.
 * The mode of the collector is the host's and stays as it is. */
#include <time.h>

#include "bindings/collector/kept.h"
#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/tensor/alloc.h"

enum { STEP = 16 << 20, OFTEN = 8 << 20, LEAST = 1 << 20, SMALLEST = 4096, PARTS = 512 };

/* One kind of memory. */
typedef struct Place {
  int64_t step;
  int64_t in_use;  /* after full collections: the last one, or an eighth less for each since */
  int64_t at_live; /* a full collection when so much is live */
} Place;

_Thread_local int64_t l_collect_at_alloc = OFTEN, l_collect_at_live = STEP / 4, l_collect_at_device = 1;
static _Thread_local Place host = {.step = STEP, .at_live = STEP / 4}, there;
static int64_t memory_there[PL_GPUS];       /* of each GPU in use, for all threads; 0: not asked yet */
static _Thread_local int64_t often = OFTEN; /* from one step to the next */
static _Thread_local double last_end, last_took, step_end;
static _Thread_local bool collecting; /* finalizers run inside: they must not start another collection */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How far live bytes may grow from here before a full collection. On a device at least by a 16th of its memory: kernels fill a
 * step in some 50 us, a full collection takes milliseconds and gives nothing that the steps have not given already. */
static int64_t limit_from(const Place *p) {
  const int64_t few = p->step + p->step / 2, third = p->in_use / 3, least = p == &there ? PARTS / 16 * p->step : p->step / 4;
  const int64_t room = p->in_use <= few ? p->in_use : third > few ? third : few;
  return p->in_use + (room < least ? least : room);
}
static void collected(Place *p, int64_t live) {
  p->in_use -= p->in_use / 8;
  if (p->in_use < live) p->in_use = live;
  p->at_live = limit_from(p);
}
static bool too_much(const Place *p, int64_t live) {
  return live >= p->at_live || (live >= 4 * p->step && seconds() - last_end >= 20 * last_took);
}

/* Bytes that live on GPUs; the step is a part of the memory of one in use, or of the limit that was set. */
static int64_t live_there(void) {
  const PlDeviceTable *t = pl_device_open();
  int64_t live = 0, least = INT64_MAX;
  for (int i = 0; i < pl_device_count(); i++) {
    PlDeviceInfo info;
    PlDeviceMemory m;
    t->memory(i, &m);
    if (m.allocations == 0) continue; /* not in use */
    int64_t memory = __atomic_load_n(&memory_there[i], __ATOMIC_RELAXED);
    if (memory == 0) {
      memory = t->describe(i, &info) == PL_OK ? info.memory : 1;
      __atomic_store_n(&memory_there[i], memory, __ATOMIC_RELAXED);
    }
    const int64_t all = m.limit >= 0 && m.limit < memory ? m.limit : memory;
    live += m.live;
    least = all < least ? all : least;
  }
  if (least != INT64_MAX) there.step = least / PARTS < SMALLEST ? SMALLEST : least / PARTS;
  return live;
}

static void next_steps(void) {
  l_collect_at_alloc = pl_allocated_bytes() + often;
  l_collect_at_live = host.at_live;
  if (there.step) l_collect_at_device = __atomic_load_n(&pl_device_handed_out, __ATOMIC_RELAXED) + there.step;
}

static void step(lua_State *L) {
  const double begin = seconds();
  const int64_t made = pl_allocated_bytes() - (l_collect_at_alloc - often), live = pl_live_bytes();
  collecting = true;
  lua_gc(L, LUA_GCSTEP, 0);
  collecting = false;
  const double end = seconds();
  const bool pays = live - pl_live_bytes() >= made - made / 4 && end - begin <= (begin - step_end) / 8;
  const int64_t next = pays ? often / 2 : often * 2;
  often = next < LEAST ? LEAST : next > OFTEN ? OFTEN : next;
  step_end = end;
}

/* What a collection lets the engine free may have kept Lua objects, which the next one finds, and so on. */
static void collect(lua_State *L, int rounds) {
  if (collecting) return;
  collecting = true;
  double begin = seconds();
  lua_gc(L, LUA_GCCOLLECT);
  while (l_cycles_cut_any(L) && rounds-- > 0) lua_gc(L, LUA_GCCOLLECT);
  last_end = seconds();
  last_took = last_end - begin;
  collecting = false;
  collected(&host, pl_live_bytes());
  if (pl_device_open()) collected(&there, live_there());
  if (PL_LIKELY(!l_collect_tested)) next_steps();
}

void l_collect_full(lua_State *L) { collect(L, 8); }
void l_collect_once(lua_State *L) { collect(L, 1); }

_Thread_local lua_State *l_working_for;

/* Finalizers of scripts run inside. They see the modes of the script, but would be traced, computed in batches or run with a limit's notes half
 * made: then nothing is collected. */
static bool reclaim(void) {
  lua_State *L = l_working_for;
  if (!L || collecting || pl_state.trace || pl_state.batch || pl_state.remat || !lua_checkstack(L, 8)) return false;
  if (PL_UNLIKELY(pl_reclaim_tested) && !l_collect_storage_due()) return false;
  const bool changes = pl_changes_begin();
  struct PlPacking *packing = pl_set_packing(NULL);
  struct PlCheckpoint *checkpoint = pl_set_checkpoint(NULL);
  l_collect_full(L);
  pl_set_packing(packing);
  pl_set_checkpoint(checkpoint);
  pl_changes_end(changes);
  return true;
}

void l_reclaim_register(lua_State *L) {
  (void)L;
  pl_reclaim = reclaim;
}

void l_collect_dropped(lua_State *L, int64_t allocated_before) {
  if (collecting || l_collect_tested || pl_allocated_bytes() - allocated_before < OFTEN / 4) return;
  step(L);
  next_steps();
  PlMemory m;
  pl_memory(&m);
  const bool tight = m.budget >= 0 && m.live > m.budget / 2;
  if (seconds() - last_end >= (tight ? 1 : 10) * last_took) l_collect_once(L);
}

void l_collect_slow(lua_State *L) {
  if (collecting) return;
  if (PL_UNLIKELY(l_collect_tested)) {
    l_collect_point(L);
    return;
  }
  step(L);
  const int64_t device = live_there();
  next_steps();
  if (too_much(&host, pl_live_bytes()) || (there.step && too_much(&there, device))) l_collect_once(L);
}
