/* SPDX-License-Identifier: MIT
 * Collections forced at chosen points, for tests. Whether a program is right must not depend on when Lua collects, and
 * left alone the collector runs at few of the points where it may. PERILUNE_COLLECT, or core.debug_collect(text), says:
 *
 *   N or N+K        a full collection, finalizers included, at every N-th point from the K-th on: where an op begins,
 *                   and where a tensor's userdata is made
 *   alloc:N or N+K  an emergency collection, which runs no finalizer, at every N-th object that Lua makes for anybody
 *   storage:N or N+K  a full collection before every N-th memory for a tensor that the engine makes, wherever it is in a call
 *   stop            none at all, but those that scripts ask for
 *   off             as usual
 *
 * Off costs nothing: where an op begins l_collect compares with numbers that are set so that it comes here, a new
 * box asks one flag that it asks anyway, and the allocator is only put in front of Lua's when it is wanted. */
#include <stdlib.h>
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/tensor/alloc.h"

unsigned char l_box_notes;
_Thread_local bool l_collect_tested;

typedef struct Points {
  int64_t every, count; /* every: 0 for off */
} Points;

static _Thread_local Points points, storages;

static bool due(Points *p) {
  if (++p->count < p->every) return false;
  p->count = 0;
  return true;
}

void l_collect_point(lua_State *L) {
  if (points.every && due(&points)) l_collect_once(L);
}

bool l_collect_storage_due(void) { return storages.every && due(&storages); }

/* ---- emergency collections ------------------------------------------------------------------------------ */

/* Lua's way to say that memory is out is to collect and to ask once more. So a first refusal is a collection. Only new
 * objects are refused: other blocks are asked for by buffers of lauxlib too, which do not ask twice. */
typedef struct Refuse {
  lua_Alloc f;
  void *ud;
  Points points;
  bool again;
} Refuse;

static const char refuse_key = 0;

static void *refusing(void *ud, void *p, size_t old_size, size_t new_size) {
  Refuse *r = ud;
  if (!p && old_size != 0 && new_size != 0 && r->points.every) {
    if (!r->again && due(&r->points)) {
      r->again = true;
      return NULL;
    }
    r->again = false;
  }
  return r->f(r->ud, p, old_size, new_size);
}

/* The state closes, and this userdata goes before the state itself does. */
static int refuse_gc(lua_State *L) {
  Refuse *r = lua_touserdata(L, 1);
  void *ud;
  if (lua_getallocf(L, &ud) == refusing && ud == r) lua_setallocf(L, r->f, r->ud);
  return 0;
}

static Refuse *refuse_of(lua_State *L, bool make) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &refuse_key);
  Refuse *r = lua_touserdata(L, -1);
  lua_pop(L, 1);
  if (r || !make) return r;
  r = lua_newuserdatauv(L, sizeof *r, 0);
  memset(r, 0, sizeof *r);
  r->f = lua_getallocf(L, &r->ud);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, refuse_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &refuse_key);
  lua_setallocf(L, refusing, r);
  return r;
}

/* ---- the switch ------------------------------------------------------------------------------------------- */

static bool read_points(const char *text, Points *out) {
  char *end;
  const long long every = strtoll(text, &end, 10), first = *end == '+' ? strtoll(end + 1, &end, 10) : every;
  if (end == text || *end || every < 1 || every > INT32_MAX || first < 1 || first > every) return false;
  *out = (Points){.every = every, .count = every - first};
  return true;
}

static bool set(lua_State *L, const char *text) {
  Points calls = {0}, objects = {0}, memory = {0};
  const bool stop = strcmp(text, "stop") == 0, off = strcmp(text, "off") == 0, alloc = strncmp(text, "alloc:", 6) == 0,
             storage = strncmp(text, "storage:", 8) == 0;
  if (!stop && !off && !(alloc ? read_points(text + 6, &objects) : storage ? read_points(text + 8, &memory) : read_points(text, &calls)))
    return false;
  points = calls;
  storages = memory;
  pl_reclaim_tested = storages.every != 0;
  Refuse *r = refuse_of(L, objects.every != 0);
  if (r) r->points = objects;
  if (points.every) __atomic_or_fetch(&l_box_notes, L_NOTE_POINT, __ATOMIC_RELAXED);
  if (stop) lua_gc(L, LUA_GCSTOP);
  else if (l_collect_tested) lua_gc(L, LUA_GCRESTART);
  l_collect_tested = stop || points.every;
  l_collect_at_alloc = l_collect_at_live = stop ? INT64_MAX : 0;
  l_collect_at_device = stop           ? INT64_MAX
                        : points.every ? 0
                                       : 1; /* 1: until something is made there; nothing moves a 0 where there is no GPU */
  return true;
}

/* core.debug_collect(text): from here on, as PERILUNE_COLLECT=text from the start. */
static int t_debug_collect(lua_State *L) {
  const char *text = luaL_checkstring(L, 1);
  if (!set(L, text))
    return l_error(L, "debug_collect: N (N+K with K from 1 to N), alloc:N, storage:N, each with +K, stop or off expected, got '%s'", text);
  return 0;
}

void l_collect_test_register(lua_State *L) {
  const char *text = getenv("PERILUNE_COLLECT");
  lua_pushcfunction(L, t_debug_collect);
  lua_setfield(L, -2, "debug_collect");
  if (text && *text && !set(L, text))
    l_error(L, "PERILUNE_COLLECT: N (N+K with K from 1 to N), alloc:N, storage:N, each with +K, stop or off expected, got '%s'", text);
}
