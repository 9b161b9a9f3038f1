/* SPDX-License-Identifier: MIT
 * When to collect. Lua cannot see tensor memory, so at op entry:
 *   - every 16 MB allocated: one Lua collection step, which in generational mode frees young garbage at a cost
 *     that does not depend on what is old; then a full collection once 20 times the duration of the last one has
 *     passed (so at most 5 % of the time goes there), and up to 320 times where full ones free next to nothing more;
 *   - when live bytes have grown by a third (twice, while they are few) in spite of that: a full collection.
 * The mode of the collector is the host's and stays as it is. */
#include <time.h>

#include "bindings/lib.h"

enum { STEP = 16 << 20, FLOOR = 4 << 20, FEW = 24 << 20, SOON = 20, LATE = 320 };

_Thread_local int64_t l_collect_at_alloc = STEP, l_collect_at_live = FLOOR;
static _Thread_local double last_end, last_took;
static _Thread_local int patience = SOON; /* in durations of the last full collection */
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
  const int64_t before = pl_live_bytes();
  double begin = seconds();
  lua_gc(L, LUA_GCCOLLECT);
  last_end = seconds();
  last_took = last_end - begin;
  collecting = false;
  if (before - pl_live_bytes() > before / 16)
    patience = SOON;
  else if (patience < LATE)
    patience *= 2;
  l_collect_at_alloc = pl_allocated_bytes() + STEP;
  l_collect_at_live = limit_from(pl_live_bytes());
}

void l_collect_slow(lua_State *L) {
  if (collecting) return;
  collecting = true;
  lua_gc(L, LUA_GCSTEP, 0);
  collecting = false;
  l_collect_at_alloc = pl_allocated_bytes() + STEP;
  if (pl_live_bytes() >= l_collect_at_live || seconds() - last_end >= patience * last_took) l_collect_full(L);
}
