/* SPDX-License-Identifier: MIT
 * When to collect. Lua cannot see tensor memory, so at op entry a full collection runs when 16 MB were
 * allocated since the last one and twenty times its duration has passed, and whenever live bytes have
 * doubled. Works in incremental and generational mode alike, and leaves the mode alone. */
#include <time.h>

#include "bindings/lib.h"

enum { STEP = 16 << 20, FLOOR = 4 << 20, RECHECK = 1 << 20 };

_Thread_local int64_t l_collect_at_alloc = STEP, l_collect_at_live = FLOOR;
static _Thread_local double last_end, last_took;

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void l_collect_full(lua_State *L) {
  double begin = seconds();
  lua_gc(L, LUA_GCCOLLECT);
  last_end = seconds();
  last_took = last_end - begin;
  int64_t live = pl_live_bytes();
  l_collect_at_alloc = pl_allocated_bytes() + STEP;
  l_collect_at_live = live < FLOOR / 2 ? FLOOR : 2 * live;
}

void l_collect_slow(lua_State *L) {
  if (pl_live_bytes() < l_collect_at_live && seconds() - last_end < 20 * last_took) {
    l_collect_at_alloc = pl_allocated_bytes() + RECHECK;
    return;
  }
  l_collect_full(L);
}
