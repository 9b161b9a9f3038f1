/* SPDX-License-Identifier: MIT
 * What T.profile measures: for every op its time, the bytes it allocated and the script's line, in a growing array of
 * C. On a GPU, where calls return before their work is done, two events of the stream are around an op's kernels, from its first to
 * its end; they are asked when all is over. Off, it costs pl_apply a test of a pointer. In a coroutine the line is where it was
 * resumed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/tensor/alloc.h"

enum { TEXT = 96, PLACES = 4096 /* a power of two; lines beyond it share the last entry */ };

typedef struct Event {
  const PlOp *op;
  double begin, end, inner; /* seconds; inner: of the ops it is made of */
  double flops;             /* of its own kernels */
  int64_t bytes, inner_bytes;
  int64_t parent;     /* index, -1: none */
  void *first, *last; /* a GPU's events around its kernels; NULL: it has none */
  int64_t within;     /* the event between whose kernels these are, -1: none */
  double gpu;         /* seconds between them, for its own kernels */
  uint32_t place;
  int32_t count; /* ops that ran as one */
  bool backward;
  uint8_t device; /* of `first` */
} Event;

typedef struct Place {
  char text[TEXT];
  const char *source; /* Lua's own string, compared as a pointer */
  int line;
} Place;

typedef struct Profile {
  lua_State *L;
  char home[512];
  Event *event;
  size_t n, cap;
  int64_t open;    /* the innermost event that has not ended, -1: none */
  int64_t dropped; /* for lack of memory; `skip` of them are open now */
  int64_t skip;
  Place *place; /* hash table; entry 0 is nowhere */
} Profile;

static _Thread_local Profile *measuring; /* a userdata on the stack of `profile`; NULL: off */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Bytes of the CPU's and of a device's memory, until now. */
static int64_t handed_out(void) { return pl_allocated_bytes() + __atomic_load_n(&pl_device_handed_out, __ATOMIC_RELAXED); }

static uint32_t place_number(Profile *p) {
  lua_Debug ar;
  if (!l_locate(l_running ? l_running : p->L, p->home, &ar)) return 0;
  uint32_t i = (uint32_t)(((uintptr_t)ar.source >> 4) * 31 + (uintptr_t)ar.currentline) * 2654435761u;
  for (uint32_t tries = 0; tries < 16; tries++) {
    i = (i & (PLACES - 1)) + (i % PLACES == 0);
    Place *q = &p->place[i];
    if (!*q->text) {
      snprintf(q->text, TEXT, "%s:%d", ar.short_src, ar.currentline);
      q->source = ar.source;
      q->line = ar.currentline;
      return i;
    }
    if (q->source == ar.source && q->line == ar.currentline) return i;
    i++;
  }
  return 0;
}

static void begin(const PlOp *op, int count) {
  Profile *p = measuring;
  if (p->skip || p->n == p->cap) {
    size_t cap = p->cap ? 2 * p->cap : 4096;
    Event *more = p->skip ? NULL : realloc(p->event, cap * sizeof *more);
    if (!more) {
      p->dropped++;
      p->skip++;
      return;
    }
    p->event = more;
    p->cap = cap;
  }
  Event *e = &p->event[p->n];
  *e = (Event){.op = op, .parent = p->open, .count = count, .backward = pl_state.in_backward > 0};
  e->place = place_number(p);
  p->open = (int64_t)p->n++;
  e->bytes = handed_out();
  e->begin = seconds();
}

static void *note_event(int device) {
  const PlDeviceTable *t = pl_device_open();
  const int gpu = pl_gpu_index(device);
  void *e = NULL;
  if (t->event_new(&e, true) != PL_OK) return NULL;
  if (t->event_record(e, gpu, t->stream_get(gpu)) == PL_OK) return e;
  t->event_free(e);
  return NULL;
}

static void launch(int device) {
  Profile *p = measuring;
  if (p->skip || p->open < 0 || p->event[p->open].first) return;
  Event *e = &p->event[p->open];
  e->first = note_event(device);
  e->device = (uint8_t)device;
  for (e->within = e->parent; e->within >= 0 && !p->event[e->within].first;) e->within = p->event[e->within].parent;
}

/* When all is over: the GPU's times. What a kernel found is said by the first wait alone, so that it is returned. */
static PlStatus ask_events(Profile *p) {
  const PlDeviceTable *t = NULL;
  PlStatus found = PL_OK;
  for (size_t i = p->n; i-- > 0;) {
    Event *e = &p->event[i];
    double ms = 0;
    if (!e->first) continue;
    t = pl_device_open();
    PlStatus s = e->last ? t->event_synchronize(e->last) : PL_ERR_STATE;
    if (s == PL_ERR_DEVICE) found = s; /* its message stays until the next failure */
    if ((s == PL_OK || s == PL_ERR_DEVICE) && t->event_elapsed(e->first, e->last, &ms) == PL_OK) e->gpu += 1e-3 * ms;
    if (e->within >= 0) p->event[e->within].gpu -= 1e-3 * ms;
  }
  return found;
}
static void free_events(Profile *p) {
  for (size_t i = 0; i < p->n; i++) {
    Event *e = &p->event[i];
    if (e->first) pl_device_open()->event_free(e->first);
    if (e->last) pl_device_open()->event_free(e->last);
    e->first = e->last = NULL;
  }
}

static void end(void) {
  double now = seconds();
  Profile *p = measuring;
  if (p->skip > 0) {
    p->skip--;
    return;
  }
  Event *e = &p->event[p->open];
  if (e->first) e->last = note_event(e->device);
  e->end = now;
  e->bytes = handed_out() - e->bytes;
  p->open = e->parent;
  if (e->parent < 0) return;
  p->event[e->parent].inner += e->end - e->begin;
  p->event[e->parent].inner_bytes += e->bytes;
}

static void work(double flops) {
  Profile *p = measuring;
  if (p->skip == 0 && p->open >= 0) p->event[p->open].flops += flops;
}

static const PlProfile hooks = {.begin = begin, .work = work, .launch = launch, .end = end};

static void off(Profile *p) {
  if (p != measuring) return;
  pl_set_profile(NULL);
  measuring = NULL;
}

static int profile_gc(lua_State *L) {
  Profile *p = lua_touserdata(L, 1);
  off(p);
  free_events(p);
  free(p->event);
  free(p->place);
  p->event = NULL;
  p->place = NULL;
  return 0;
}

static void start(lua_State *L) {
  if (measuring) l_error(L, "profile: already measuring; profiles do not nest");
  Profile *p = lua_newuserdatauv(L, sizeof *p, 0);
  memset(p, 0, sizeof *p);
  p->open = -1;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, profile_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  p->place = calloc(PLACES, sizeof *p->place);
  if (!p->place) l_error(L, "profile: out of memory");
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.home");
  snprintf(p->home, sizeof p->home, "%s", lua_tostring(L, -1) ? lua_tostring(L, -1) : "");
  lua_pop(L, 1);
  p->L = L;
  measuring = p;
  pl_set_profile(&hooks);
}

/* The event as fields of a table, pushed. Times are seconds of core.clock(). */
static void push_event(lua_State *L, const Profile *p, const Event *e) {
  lua_createtable(L, 0, 11);
  lua_pushstring(L, e->op->name);
  lua_setfield(L, -2, "name");
  lua_pushnumber(L, e->begin);
  lua_setfield(L, -2, "begin");
  lua_pushnumber(L, e->end - e->begin);
  lua_setfield(L, -2, "time");
  lua_pushnumber(L, e->end - e->begin - e->inner);
  lua_setfield(L, -2, "self");
  lua_pushinteger(L, (lua_Integer)e->bytes);
  lua_setfield(L, -2, "bytes");
  lua_pushinteger(L, (lua_Integer)(e->bytes - e->inner_bytes));
  lua_setfield(L, -2, "self_bytes");
  lua_pushnumber(L, e->flops);
  lua_setfield(L, -2, "flops");
  lua_pushnumber(L, e->gpu > 0 ? e->gpu : 0);
  lua_setfield(L, -2, "gpu");
  lua_pushinteger(L, e->count);
  lua_setfield(L, -2, "count");
  lua_pushboolean(L, e->backward);
  lua_setfield(L, -2, "backward");
  if (e->place) {
    lua_pushstring(L, p->place[e->place].text);
    lua_setfield(L, -2, "line");
  }
}

/* core.profile(f, …) → events in the order in which they began, number of events lost, did f succeed?, f's results or
 * its error. f cannot yield out of it, so the state whose lines are noted is always running. */
static int profile(lua_State *L) {
  luaL_checkany(L, 1);
  start(L);
  lua_insert(L, 1); /* it stays alive on the stack */
  Profile *p = lua_touserdata(L, 1);
  bool ok = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0) == LUA_OK;
  off(p);
  const PlStatus found = ask_events(p);
  free_events(p);
  if (found != PL_OK) return l_fail(L, found); /* f failed after it, if it did */
  luaL_checkstack(L, 8, NULL);
  lua_createtable(L, p->n < 1 << 28 ? (int)p->n : 0, 0);
  for (size_t i = 0; i < p->n; i++) {
    push_event(L, p, &p->event[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_insert(L, 2);
  lua_pushinteger(L, (lua_Integer)p->dropped);
  lua_insert(L, 3);
  lua_pushboolean(L, ok);
  lua_insert(L, 4);
  return lua_gettop(L) - 1;
}

void l_profile_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"profile", profile}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
