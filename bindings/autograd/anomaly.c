/* SPDX-License-Identifier: MIT
 * T.anomaly: while it is on, the script's line is kept for every recorded node and every write, in a table of
 * C beside the engine; off, it costs a test of a pointer. In a coroutine the line is where it was resumed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"

enum { TEXT = 96 };

typedef struct Note {
  const void *what; /* node or storage */
  uint64_t seq;     /* of the node: addresses are used again */
  const char *op;   /* writes: by which op */
  uint32_t place;
} Note;

typedef struct Notes {
  lua_State *L; /* the main thread */
  char home[512];
  Note *slot;
  size_t cap, used;
  char (*place)[TEXT];
  uint32_t nplace, cap_place;
} Notes;

static const char notes_key = 0;
static _Thread_local Notes *notes; /* a userdata in the registry; NULL: off */

/* "file:line" of the first frame outside perilune's own files. Pushes nothing: the state may be anywhere. */
static void locate(char *text) {
  lua_Debug ar;
  *text = 0;
  if (l_locate(l_running ? l_running : notes->L, notes->home, &ar)) snprintf(text, TEXT, "%s:%d", ar.short_src, ar.currentline);
}

/* Number of a place, the latest first; 0 is nowhere (or no memory). */
static uint32_t place_number(void) {
  char text[TEXT];
  locate(text);
  for (uint32_t i = notes->nplace; i-- > 0;)
    if (strcmp(notes->place[i], text) == 0) return i + 1;
  if (notes->nplace == notes->cap_place) {
    uint32_t cap = notes->cap_place ? 2 * notes->cap_place : 64;
    char(*p)[TEXT] = realloc(notes->place, cap * sizeof *p);
    if (!p) return 0;
    notes->place = p;
    notes->cap_place = cap;
  }
  memcpy(notes->place[notes->nplace], text, TEXT);
  return ++notes->nplace;
}

static Note *lookup(Note *slot, size_t cap, const void *what) {
  size_t i = ((uintptr_t)what >> 4) * 0x9e3779b97f4a7c15u;
  for (i &= cap - 1; slot[i].what && slot[i].what != what; i = (i + 1) & (cap - 1)) {
  }
  return &slot[i];
}

static Note *note(const void *what) {
  if (notes->used * 4 >= notes->cap * 3) {
    size_t cap = notes->cap ? 2 * notes->cap : 1024;
    Note *slot = calloc(cap, sizeof *slot);
    if (!slot) return NULL;
    for (size_t i = 0; i < notes->cap; i++)
      if (notes->slot[i].what) *lookup(slot, cap, notes->slot[i].what) = notes->slot[i];
    free(notes->slot);
    notes->slot = slot;
    notes->cap = cap;
  }
  Note *n = lookup(notes->slot, notes->cap, what);
  if (!n->what) {
    n->what = what;
    notes->used++;
  }
  return n;
}

static void recorded(PlNode *node) {
  Note *n = note(node);
  if (!n) return;
  n->seq = node->seq;
  n->place = place_number();
}

static void wrote(const char *op, const PlStorage *st) {
  Note *n = note(st);
  if (!n) return;
  n->op = op;
  n->place = place_number();
}

static void where(const PlNode *node, char *text, size_t size) {
  const Note *n = notes && notes->cap ? lookup(notes->slot, notes->cap, node) : NULL;
  if (!n || !n->what || n->seq != node->seq || !n->place || !*notes->place[n->place - 1]) return;
  snprintf(text, size, " (recorded at %s)", notes->place[n->place - 1]);
}

static void writer(const PlStorage *st, char *text, size_t size) {
  const Note *n = notes && notes->cap ? lookup(notes->slot, notes->cap, st) : NULL;
  if (!n || !n->what || !n->op) return;
  snprintf(text, size, " by %s%s%s", n->op, n->place ? " at " : "", n->place ? notes->place[n->place - 1] : "");
}

static const PlWatch watch = {.recorded = recorded, .wrote = wrote, .where = where, .writer = writer};

static int notes_gc(lua_State *L) {
  Notes *n = lua_touserdata(L, 1);
  if (n == notes) {
    pl_set_watch(NULL);
    notes = NULL;
  }
  free(n->slot);
  free(n->place);
  n->slot = NULL;
  n->place = NULL;
  return 0;
}

static void start(lua_State *L) {
  Notes *n = lua_newuserdatauv(L, sizeof *n, 0);
  memset(n, 0, sizeof *n);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, notes_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.home");
  snprintf(n->home, sizeof n->home, "%s", lua_tostring(L, -1) ? lua_tostring(L, -1) : "");
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  n->L = lua_tothread(L, -1);
  lua_pop(L, 2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &notes_key);
  notes = n;
  pl_set_watch(&watch);
}

/* core.anomaly(on) → was it on? */
static int t_anomaly(lua_State *L) {
  bool was = pl_state.watch != NULL, on = lua_toboolean(L, 1);
  if (!lua_isnoneornil(L, 1) && on != was) {
    if (on) start(L);
    else {
      pl_set_watch(NULL);
      notes = NULL;
      lua_pushnil(L);
      lua_rawsetp(L, LUA_REGISTRYINDEX, &notes_key); /* its finalizer frees the rest */
    }
  }
  lua_pushboolean(L, was);
  return 1;
}

void l_anomaly_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"anomaly", t_anomaly}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
