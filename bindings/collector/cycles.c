/* SPDX-License-Identifier: MIT
 * Cycles that neither Lua's collector nor the engine's counts can see: tensor → node → kept Lua object → tensor. The nodes
 * hold such objects in a strong table (kept.h), so nothing that backward needs can be lost; what only such cycles hold is
 * found here.
 *
 *   1. Everything that Lua can reach is marked, from the registry (without the table of kept objects) and the stacks of its
 *      threads; a box leads to its tensor, and from there over the engine's pointers to nodes and what those keep.
 *   2. From every kept object that is not marked, the rest of its cluster is followed, and for each tensor and node of the
 *      engine is counted how many references come from there. So is it from objects whose node is gone already: what they
 *      hold in turn goes in the same round, whatever the length of the chain.
 *   3. One with more references than that is held by something that tracing does not know (a walk, a C program, a box whose
 *      finalizer has not run yet): it is marked, with all that it leads to.
 *   4. What is not marked now, and whose node was seen in step 2, is garbage: its place in the table is emptied, and Lua's
 *      collector and the counts do the rest.
 *
 * No Lua code runs here, and the collector is stopped meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "bindings/collector/kept.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/node.h"
#include "engine/grad/saved_tensors_hooks.h"
#include "engine/vmap/vmap.h"

typedef enum Kind { NOTHING, LUA, TENSOR, NODE, CHECKPOINT } Kind;

typedef struct Object {
  const void *p;
  uint32_t refs; /* of an object of the engine: counted in step 2 */
  uint8_t kind;
  bool live, seen; /* seen: in step 2 */
} Object;

typedef struct Place {
  bool live, seen; /* seen: its node was, in step 2 */
} Place;

typedef struct Trace {
  lua_State *L;
  Kept *kept;
  int work, weak; /* stack positions: list of Lua objects to look at; tables with weak keys */
  lua_Integer nwork, nweak;
  bool live;         /* marking what is live; else step 2 */
  Object *at;        /* hash table */
  size_t n, cap;     /* cap: a power of two */
  const void **todo; /* tensors and nodes to look at */
  size_t ntodo, todo_cap;
  Place *places;
  bool failed; /* out of memory: nothing is cut */
} Trace;

/* ---- the set of objects -------------------------------------------------------------------------------------------- */

static size_t place_of(const Trace *t, const void *p) {
  uint64_t h = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15ULL;
  size_t i = (size_t)(h >> 20) & (t->cap - 1);
  while (t->at[i].p && t->at[i].p != p) i = (i + 1) & (t->cap - 1);
  return i;
}

static bool grow(Trace *t) {
  const size_t cap = t->cap ? 2 * t->cap : 1 << 14;
  Object *old = t->at, *at = calloc(cap, sizeof *at);
  if (!at) {
    t->failed = true;
    return false;
  }
  const size_t was = t->cap;
  t->at = at;
  t->cap = cap;
  for (size_t i = 0; i < was; i++)
    if (old[i].p) t->at[place_of(t, old[i].p)] = old[i];
  free(old);
  return true;
}

static Object *object(Trace *t, const void *p, Kind kind) {
  if (2 * t->n >= t->cap && !grow(t)) return NULL;
  Object *o = &t->at[place_of(t, p)];
  if (!o->p) {
    *o = (Object){.p = p, .kind = (uint8_t)kind};
    t->n++;
  }
  return o;
}

/* Is this the first time that o is met in this step? */
static bool first(const Trace *t, Object *o) {
  if (o->live) return false;
  if (t->live) return o->live = true;
  if (o->seen) return false;
  return o->seen = true;
}

/* ---- visiting -------------------------------------------------------------------------------------------------------- */

static void later(Trace *t, const void *p) {
  if (t->ntodo == t->todo_cap) {
    const size_t cap = t->todo_cap ? 2 * t->todo_cap : 1024;
    const void **more = realloc(t->todo, cap * sizeof *more);
    if (!more) {
      t->failed = true;
      return;
    }
    t->todo = more;
    t->todo_cap = cap;
  }
  t->todo[t->ntodo++] = p;
}

static void meet(Trace *t, const void *p, Kind kind) {
  if (!p || t->failed) return;
  Object *o = object(t, p, kind);
  if (!o) return;
  if (!t->live) o->refs++;
  if (first(t, o)) later(t, p);
}

/* The value on top, popped. */
static void meet_value(Trace *t) {
  lua_State *L = t->L;
  const int type = lua_type(L, -1);
  const bool traced = type == LUA_TTABLE || type == LUA_TUSERDATA || type == LUA_TTHREAD || type == LUA_TFUNCTION;
  const void *p = traced ? lua_topointer(L, -1) : NULL;
  Object *o = p && !t->failed ? object(t, p, LUA) : NULL;
  if (o && first(t, o)) lua_rawseti(L, t->work, ++t->nwork);
  else lua_pop(L, 1);
}

static void meet_kept(Trace *t, int place) {
  if (place <= 0 || place > t->kept->next) return;
  Place *p = &t->places[place];
  if (!t->live) p->seen = true;
  if (p->live) return;
  if (t->live) p->live = true;
  l_kept_push(t->L, t->kept, place);
  meet_value(t);
}

static void look_at_tensor(Trace *t, const PlTensor *x) {
  meet(t, x->node, NODE);
  for (const PlEntry *e = x->more; e; e = e->next) meet(t, e->node, NODE);
  meet(t, x->base, TENSOR);
  if (pl_is_batched(x)) meet(t, pl_batched(x)->full, TENSOR);
}

static void look_at_node(Trace *t, const PlNode *n) {
  for (uint32_t i = 0; i < n->nin; i++) meet(t, n->dests[i].node, NODE);
  for (uint32_t i = 0; i < n->nsaved; i++)
    if (n->saved[i].t) meet(t, n->saved[i].t, TENSOR);
    else if (n->saved[i].packed) meet(t, pl_packed_shell(n->saved[i].packed->value), TENSOR);
  for (uint32_t o = 0; o < n->nout; o++) {
    meet(t, n->slots[o].grad, TENSOR);
    meet(t, n->slots[o].shape, TENSOR);
    for (const PlHook *h = n->slots[o].hooks; h; h = h->next) meet_kept(t, h->kept);
  }
  meet(t, n->grad, TENSOR);
  if (n->kind == PL_NODE_RULE && n->u.rule) meet_kept(t, n->u.rule->kept);
  meet(t, n->checkpoint, CHECKPOINT);
}

static void meet_tensor(void *t, PlTensor *x) { meet(t, x, TENSOR); }
static void meet_checkpoint(void *t, PlCheckpoint *c) { meet(t, c, CHECKPOINT); }

static void look_at(Trace *t, const void *p) {
  switch ((Kind)t->at[place_of(t, p)].kind) {
  case TENSOR: look_at_tensor(t, p); break;
  case NODE: look_at_node(t, p); break;
  case CHECKPOINT:
    meet_kept(t, pl_checkpoint_kept(p));
    pl_checkpoint_each(p, meet_tensor, meet_checkpoint, t);
    break;
  case LUA:
  case NOTHING: break;
  }
}

static uint32_t references(const Object *o) {
  switch ((Kind)o->kind) {
  case TENSOR: return ((const PlTensor *)o->p)->refs;
  case NODE: return ((const PlNode *)o->p)->refs;
  case CHECKPOINT: return pl_checkpoint_refs(o->p);
  case LUA:
  case NOTHING: break;
  }
  return 0;
}

static int count_upvalues(lua_State *L, int at) {
  lua_Debug ar;
  lua_pushvalue(L, at);
  return lua_getinfo(L, ">u", &ar) ? ar.nups : 0;
}

/* ---- Lua objects ------------------------------------------------------------------------------------------------------- */

static void look_at_metatable(Trace *t, int at) {
  if (lua_getmetatable(t->L, at)) meet_value(t);
}

static void look_at_table(Trace *t, int at) {
  lua_State *L = t->L;
  bool weak_keys = false, weak_values = false;
  if (lua_getmetatable(L, at)) {
    lua_pushliteral(L, "__mode");
    lua_rawget(L, -2);
    const char *mode = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    weak_keys = strchr(mode, 'k') != NULL;
    weak_values = strchr(mode, 'v') != NULL;
    lua_pop(L, 1);
    meet_value(t);
  }
  if (weak_keys && !weak_values) {
    lua_pushvalue(L, at);
    lua_rawseti(L, t->weak, ++t->nweak);
  }
  if (weak_keys) return;
  for (lua_pushnil(L); lua_next(L, at);) {
    if (weak_values) lua_pop(L, 1);
    else meet_value(t);
    lua_pushvalue(L, -1);
    meet_value(t);
  }
}

/* A table with weak keys holds the values of keys that are live, or seen. true: it led to something new. */
static bool look_at_weak(Trace *t, int at) {
  lua_State *L = t->L;
  const size_t before = t->n;
  const lua_Integer work = t->nwork;
  for (lua_pushnil(L); lua_next(L, at);) {
    const int type = lua_type(L, -2);
    bool held = true;
    if (type == LUA_TTABLE || type == LUA_TUSERDATA || type == LUA_TTHREAD || type == LUA_TFUNCTION) {
      const Object *o = &t->at[place_of(t, lua_topointer(L, -2))];
      held = o->p && (t->live ? o->live : o->live || o->seen);
      if (lua_iscfunction(L, -2)) held |= count_upvalues(L, -2) == 0; /* no object: always there */
    }
    if (held) meet_value(t);
    else lua_pop(L, 1);
  }
  return t->n != before || t->nwork != work;
}

/* Locals and temporaries of every active function. Those of this function's own frame are no roots. */
static void look_at_thread(Trace *t, lua_State *co) {
  lua_State *L = t->L;
  lua_Debug ar;
  int level = co == L ? 1 : 0;
  if (!lua_checkstack(co, 4)) {
    t->failed = true;
    return;
  }
  if (co != L && !lua_getstack(co, 0, &ar)) /* not started, or ended */
    for (int i = 1, n = lua_gettop(co); i <= n; i++) {
      lua_pushvalue(co, i);
      lua_xmove(co, L, 1);
      meet_value(t);
    }
  for (; lua_getstack(co, level, &ar); level++) {
    if (lua_getinfo(co, "f", &ar)) {
      if (co != L) lua_xmove(co, L, 1);
      meet_value(t);
    }
    for (int sign = 1; sign >= -1; sign -= 2)
      for (int i = 1; lua_getlocal(co, &ar, sign * i); i++) {
        if (co != L) lua_xmove(co, L, 1);
        meet_value(t);
      }
  }
}

static void look_at_lua(Trace *t, int at) {
  lua_State *L = t->L;
  switch (lua_type(L, at)) {
  case LUA_TTABLE: look_at_table(t, at); break;
  case LUA_TFUNCTION:
    for (int i = 1, n = count_upvalues(L, at); i <= n; i++) /* that of a function which is being parsed is not there yet */
      if (lua_upvalueid(L, at, i) && lua_getupvalue(L, at, i)) meet_value(t);
    break;
  case LUA_TUSERDATA:
    look_at_metatable(t, at);
    for (int i = 1; lua_getiuservalue(L, at, i) != LUA_TNONE; i++) meet_value(t);
    lua_pop(L, 1);
    meet(t, l_to_tensor(L, at), TENSOR);
    break;
  case LUA_TTHREAD: look_at_thread(t, lua_tothread(L, at)); break;
  default: break;
  }
}

/* Until nothing is left to look at. */
static void follow(Trace *t) {
  lua_State *L = t->L;
  bool more = true;
  while (more && !t->failed) {
    while ((t->ntodo || t->nwork) && !t->failed) {
      if (t->ntodo) {
        look_at(t, t->todo[--t->ntodo]);
        continue;
      }
      lua_rawgeti(L, t->work, t->nwork);
      lua_pushnil(L);
      lua_rawseti(L, t->work, t->nwork--);
      const int at = lua_gettop(L);
      look_at_lua(t, at);
      lua_settop(L, at - 1);
    }
    more = false;
    for (lua_Integer i = 1; i <= t->nweak && !t->failed; i++) {
      lua_rawgeti(L, t->weak, i);
      more |= look_at_weak(t, lua_gettop(L));
      lua_pop(L, 1);
    }
  }
}

/* ---- the steps -------------------------------------------------------------------------------------------------------- */

static void mark_roots(Trace *t) {
  lua_State *L = t->L;
  const int not_roots[] = {t->work, t->weak};
  for (size_t i = 0; i < sizeof not_roots / sizeof *not_roots; i++) object(t, lua_topointer(L, not_roots[i]), LUA)->live = true;
  l_kept_push_table(L, t->kept);
  object(t, lua_topointer(L, -1), LUA)->live = true; /* met already: never looked at */
  lua_pop(L, 1);
  lua_pushvalue(L, LUA_REGISTRYINDEX);
  meet_value(t);
  lua_pushthread(L);
  meet_value(t);
  lua_pushnil(L);
  look_at_metatable(t, lua_gettop(L));
  lua_pushboolean(L, 1);
  look_at_metatable(t, lua_gettop(L));
  lua_pushinteger(L, 0);
  look_at_metatable(t, lua_gettop(L));
  lua_pushliteral(L, "");
  look_at_metatable(t, lua_gettop(L));
  lua_pushcfunction(L, NULL);
  look_at_metatable(t, lua_gettop(L));
  lua_pushlightuserdata(L, t);
  look_at_metatable(t, lua_gettop(L));
  lua_pop(L, 6);
}

/* What is held from elsewhere is live after all: objects with more references than were counted, and what kept objects that
 * belong to none of the nodes seen lead to, such as values of T.saved_tensors. */
static void mark_held(Trace *t) {
  t->live = true;
  for (size_t i = 0; i < t->cap; i++) {
    Object *o = &t->at[i];
    if (!o->p || o->live || !o->seen || o->kind == LUA || references(o) <= o->refs) continue;
    o->live = true;
    later(t, o->p);
  }
  for (int place = 1; place <= t->kept->next; place++)
    if (!t->places[place].seen) meet_kept(t, place);
  follow(t);
}

static int trace_body(lua_State *L) {
  Trace *t = lua_touserdata(L, 1);
  int cut = 0;
  luaL_checkstack(L, 40, NULL);
  t->L = L;
  lua_newtable(L);
  t->work = lua_gettop(L);
  lua_newtable(L);
  t->weak = lua_gettop(L);
  t->live = true;
  if (!grow(t)) return 0;
  mark_roots(t);
  follow(t);
  t->live = false;
  for (int i = 0; i < t->kept->nleft; i++) t->places[t->kept->list[t->kept->room - 1 - i]].seen = true;
  for (int place = 1; place <= t->kept->next && !t->failed; place++) {
    if (t->places[place].live) continue;
    l_kept_push(L, t->kept, place);
    if (lua_toboolean(L, -1)) meet_value(t);
    else lua_pop(L, 1);
  }
  follow(t);
  mark_held(t);
  if (t->failed) return 0;
  l_kept_push_table(L, t->kept);
  for (int place = 1; place <= t->kept->next; place++) {
    if (t->places[place].live || !t->places[place].seen) continue;
    lua_rawgeti(L, -1, place);
    if (lua_toboolean(L, -1)) {
      lua_pushboolean(L, 0);
      lua_rawseti(L, -3, place);
      cut++;
    }
    lua_pop(L, 1);
  }
  lua_pushinteger(L, cut);
  return 1;
}

int l_cycles_cut(lua_State *L, Kept *k) {
  Trace t = {.kept = k};
  int cut = 0;
  if (!lua_checkstack(L, 4)) return 0;
  t.places = calloc((size_t)k->next + 1, sizeof *t.places);
  if (!t.places) return 0;
  const bool stopped = lua_gc(L, LUA_GCISRUNNING) == 0; /* < 0 in a finalizer: nothing runs then, either */
  lua_gc(L, LUA_GCSTOP);
  lua_pushcfunction(L, trace_body);
  lua_pushlightuserdata(L, &t);
  if (lua_pcall(L, 1, 1, 0) == LUA_OK) cut = (int)lua_tointeger(L, -1);
  lua_pop(L, 1);
  if (!stopped) lua_gc(L, LUA_GCRESTART);
  k->stayed = l_kept_count(k) - cut;
  free(t.at);
  free(t.todo);
  free(t.places);
  return cut;
}
