/* SPDX-License-Identifier: MIT
 * The strong table of kept objects, and when cycles through it are looked for: with every full collection of ours, with
 * every collectgarbage() of the script, and otherwise when they have doubled, in a twentieth of the time at most. */
#include "bindings/collector/kept.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MANY = 256 };
static const char kept_key = 0, collect_key = 0;
static _Thread_local int left_here; /* about how many places were left on this thread since the last sweep */

void l_kept_release(Kept *k) {
  if (!k || --k->refs) return;
  free(k->list);
  free(k);
}

int l_kept_count(const Kept *k) { return k->next - k->nfree - k->nleft; }

/* A place for which there is no memory stays taken. */
void l_kept_leave(Kept *k, int place) {
  if (!k->main || place <= 0) return;
  if (k->nfree + k->nleft == k->room) {
    const int room = k->room ? 2 * k->room : 32;
    int *list = realloc(k->list, (size_t)room * sizeof *list);
    if (!list) return;
    memmove(list + room - k->nleft, list + k->room - k->nleft, (size_t)k->nleft * sizeof *list);
    k->list = list;
    k->room = room;
  }
  k->list[k->room - ++k->nleft] = place;
  left_here++;
}

void l_kept_push_table(lua_State *L, const Kept *k) { lua_rawgeti(L, LUA_REGISTRYINDEX, k->table); }

/* Assigning nil to a key that is there allocates nothing. */
void l_kept_sweep(lua_State *L, Kept *k) {
  if (!k->nleft || !lua_checkstack(L, 3)) return;
  left_here = 0;
  k->swept += k->nleft;
  l_kept_push_table(L, k);
  while (k->nleft) {
    const int place = k->list[k->room - k->nleft--];
    lua_pushnil(L);
    lua_rawseti(L, -2, place);
    k->list[k->nfree++] = place;
  }
  lua_pop(L, 1);
}

/* What was left and is not emptied yet serves first: its old value is overwritten. The place is taken off the list before
 * anything can run that adds to it; where the assignment raises, the place is not used again. */
int l_kept_put_in(lua_State *L, Kept *k, int table, int value) {
  const int place = k->nleft ? k->list[k->room - k->nleft--] : k->nfree ? k->list[--k->nfree] : ++k->next;
  lua_pushvalue(L, value);
  lua_rawseti(L, table, place);
  return place;
}

int l_kept_put(lua_State *L, Kept *k) {
  l_kept_push_table(L, k);
  const int place = l_kept_put_in(L, k, lua_gettop(L), lua_gettop(L) - 1);
  lua_pop(L, 2);
  return place;
}

void l_kept_push(lua_State *L, const Kept *k, int place) {
  l_kept_push_table(L, k);
  lua_rawgeti(L, -1, place);
  lua_remove(L, -2);
}

/* ---- when ------------------------------------------------------------------------------------------------------ */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Inside a finalizer: was it collectgarbage that ran the collector? */
static bool asked_for(lua_State *L) {
  lua_Debug ar;
  if (!lua_getstack(L, 1, &ar) || !lua_getinfo(L, "f", &ar)) return false;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &collect_key);
  const bool yes = lua_rawequal(L, -1, -2) != 0;
  lua_pop(L, 2);
  return yes;
}

/* Runs at the end of every collection, and marks itself for the next one. */
static int pulse_gc(lua_State *L) {
  static _Thread_local double last_end, last_took;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kept_key) == LUA_TUSERDATA) {
    Kept *k = *(Kept **)lua_touserdata(L, -1);
    const int count = k ? l_kept_count(k) : 0;
    const bool many = count > 2 * (k ? k->stayed : 0) + MANY;
    const double begin = many || (count && asked_for(L)) ? seconds() : 0;
    if (begin > 0 && (!many || begin - last_end >= 20 * last_took || asked_for(L))) {
      l_cycles_cut(L, k);
      last_end = seconds();
      last_took = last_end - begin;
    }
    if (k) l_kept_sweep(L, k); /* after tracing, which begins at what was left, too */
  }
  if (lua_getmetatable(L, 1)) lua_setmetatable(L, 1);
  return 0;
}

static int kept_close(lua_State *L) {
  Kept **box = lua_touserdata(L, 1), *k = *box;
  *box = NULL;
  if (k) {
    k->main = NULL;
    l_kept_release(k);
  }
  return 0;
}

static void push_object(lua_State *L, size_t size, lua_CFunction gc) {
  memset(lua_newuserdatauv(L, size, 0), 0, size);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
}

Kept *l_kept(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kept_key) == LUA_TUSERDATA) {
    Kept **box = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (!*box) l_error(L, "the Lua state is closing");
    return *box;
  }
  lua_pop(L, 1);
  push_object(L, sizeof(Kept *), kept_close);
  Kept **box = lua_touserdata(L, -1), *k = *box = calloc(1, sizeof *k);
  if (!k) {
    l_error(L, "out of memory for a gradient rule");
    return NULL;
  }
  k->refs = 1;
  lua_createtable(L, 64, 0);
  k->table = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  k->main = lua_tothread(L, -1);
  lua_pop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &kept_key);
  lua_getglobal(L, "collectgarbage");
  lua_rawsetp(L, LUA_REGISTRYINDEX, &collect_key);
  push_object(L, 1, pulse_gc);
  lua_pop(L, 1);
  return k;
}

int l_cycles_cut_any(lua_State *L) {
  int cut = 0;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kept_key) == LUA_TUSERDATA) {
    Kept *k = *(Kept **)lua_touserdata(L, -1);
    if (k && l_kept_count(k)) cut = l_cycles_cut(L, k);
    if (k) l_kept_sweep(L, k);
    if (k) cut += k->swept;
    if (k) k->swept = 0;
  }
  lua_pop(L, 1);
  return cut;
}

void l_kept_settle(lua_State *L, int few) {
  if (left_here <= few) return;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &kept_key) == LUA_TUSERDATA) {
    Kept *k = *(Kept **)lua_touserdata(L, -1);
    if (k) l_kept_sweep(L, k);
  }
  lua_pop(L, 1);
}
