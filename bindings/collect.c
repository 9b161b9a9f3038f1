/* SPDX-License-Identifier: MIT
 * When to collect. Lua cannot see tensor memory, so at op entry:
 *   - every 16 MB allocated: one Lua collection step, which in generational mode frees young garbage at a cost
 *     that does not depend on what is old;
 *   - then, where much is live, a full collection once 20 times the duration of the last one has passed (so at most
 *     5 % of the time goes there);
 *   - when live bytes have grown by a third (twice, while they are few) in spite of that: a full collection. They grow
 *     from what the last full one left, or the ones shortly before: a training step's memory swells and shrinks, and
 *     what one of them found in use at its widest will be in use again.
 * The mode of the collector is the host's and stays as it is. */
#include <time.h>

#include "bindings/lib.h"

enum { STEP = 16 << 20, FLOOR = 4 << 20, FEW = 24 << 20, MUCH = 64 << 20 };

_Thread_local int64_t l_collect_at_alloc = STEP, l_collect_at_live = FLOOR;
static _Thread_local double last_end, last_took;
static _Thread_local int64_t in_use; /* after full collections: the last one, or an eighth less for each since */
static _Thread_local bool collecting; /* finalizers run inside: they must not start another collection */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How far live bytes may grow from here before a full collection. */
static int64_t limit_from(int64_t live) {
  int64_t room = live <= FEW ? live : live / 3 > FEW ? live / 3 : FEW;
  return live + (room < FLOOR ? FLOOR : room);
}

void l_collect_full(lua_State *L) {
  if (collecting) return;
  collecting = true;
  double begin = seconds();
  lua_gc(L, LUA_GCCOLLECT);
  last_end = seconds();
  last_took = last_end - begin;
  collecting = false;
  l_collect_at_alloc = pl_allocated_bytes() + STEP;
  in_use -= in_use / 8;
  if (in_use < pl_live_bytes()) in_use = pl_live_bytes();
  l_collect_at_live = limit_from(in_use);
}

void l_collect_slow(lua_State *L) {
  if (collecting) return;
  collecting = true;
  lua_gc(L, LUA_GCSTEP, 0);
  collecting = false;
  l_collect_at_alloc = pl_allocated_bytes() + STEP;
  const int64_t live = pl_live_bytes();
  if (live >= l_collect_at_live || (live >= MUCH && seconds() - last_end >= 20 * last_took)) l_collect_full(L);
}
