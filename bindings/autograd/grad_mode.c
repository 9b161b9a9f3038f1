/* SPDX-License-Identifier: MIT
 * Whether ops record, with which managers, through which functions what they save passes, and in what precision they compute,
 * belongs to the coroutine. A scope (local _ <close> = T.no_grad(), T.autocast("bf16"), T.saved_tensors{…}, gm:record()) that a
 * coroutine opened holds while that coroutine runs, and what it resumes: not for who resumed it, when it yields or is abandoned
 * inside. Other coroutines have the modes of the innermost one that resumed them.
 *
 * The engine knows one set of modes. A table of the registry keeps, for every coroutine with open scopes and for the main
 * thread, its modes, the number of scopes and when it last ran; what enters an op looks whether another coroutine than
 * the last one runs (l_modes_follow, one comparison), and then sets the modes. Nothing of this costs anything until a
 * coroutine opens a scope. */
#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/grad/saved_tensors_hooks.h"
#include "engine/vmap/vmap.h"

static const char modes_key = 0;

typedef struct Modes {
  uint64_t when;   /* it last ran */
  uint64_t number; /* of the coroutine, while it has scopes open: PlKey.owner */
  int64_t nscopes; /* that it has open */
  PlAutocast autocast;
  bool recording;
  PlPacking *packing; /* held */
} Modes;

static void put(Modes *m, Modes now) {
  PlPacking *was = m->packing;
  pl_packing_retain(now.packing);
  *m = now;
  pl_packing_release(was);
}

static int modes_gc(lua_State *L) {
  put(lua_touserdata(L, 1), (Modes){.recording = true});
  return 0;
}

/* Those of the thread as they are now. */
static Modes now_on(uint64_t number, int64_t nscopes) {
  return (Modes){.when = ++pl_state.mode_turn,
                 .number = number,
                 .nscopes = nscopes,
                 .autocast = pl_autocast_now(),
                 .recording = !pl_state.grad_off,
                 .packing = pl_state.packing};
}

/* Is co running, or waiting for one that it resumed? Not where it yielded, ended or has not begun. */
static bool in_chain(lua_State *co) {
  lua_Debug ar;
  return lua_status(co) == LUA_OK && lua_getstack(co, 0, &ar);
}

/* L's own modes, or NULL. The table is at `at`, and holds them. */
static Modes *own(lua_State *L, int at) {
  lua_pushthread(L);
  lua_rawget(L, at);
  Modes *m = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return m;
}

/* Those of the coroutine at the top of the stack, which it takes; made where it has none. */
static Modes *make(lua_State *L, int at) {
  Modes *m = lua_newuserdatauv(L, sizeof *m, 0);
  *m = (Modes){.number = ++pl_state.mode_turn, .recording = true};
  if (luaL_newmetatable(L, "perilune.modes")) {
    lua_pushcfunction(L, modes_gc);
    lua_setfield(L, -2, "__gc");
  }
  lua_setmetatable(L, -2);
  lua_rawset(L, at);
  return m;
}

/* Those of the innermost coroutine of those that resumed L. */
static Modes inherited(lua_State *L, int at) {
  Modes best = {.recording = true};
  for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
    lua_State *co = lua_tothread(L, -2);
    const Modes *m = lua_touserdata(L, -1);
    if (co != L && in_chain(co) && m->when >= best.when) best = *m;
  }
  return best;
}

typedef struct Who {
  lua_State *L;
  int at; /* the table */
} Who;

/* Does the coroutine with that number run, or wait for one that it resumed? */
static bool runs(void *ud, uint64_t number) {
  const Who *who = ud;
  lua_State *L = who->L;
  const int at = who->at;
  bool found = false;
  for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
    lua_State *co = lua_tothread(L, -2);
    const Modes *m = lua_touserdata(L, -1);
    found |= m->number == number && (co == L || in_chain(co));
  }
  return found;
}

void l_modes_switch(lua_State *L) {
  luaL_checkstack(L, 8, NULL);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modes_key) != LUA_TTABLE) { /* another state of the same thread */
    lua_pop(L, 1);
    return;
  }
  const int at = lua_gettop(L);
  Modes *mine = own(L, at);
  if (mine) mine->when = ++pl_state.mode_turn;
  const Modes m = mine ? *mine : inherited(L, at);
  pl_state.mode_owner = L;
  pl_state.grad_off = !m.recording;
  pl_autocast_set(m.autocast);
  pl_packing_use(m.packing);
  Who who = {.L = L, .at = at};
  for (PlKey *k = pl_state.keys; k; k = k->next)
    if (k->owner) pl_key_away(k, !runs(&who, k->owner));
  pl_batches_turn(runs, &who);
  lua_pop(L, 1);
}

/* The table, made at the first scope that a coroutine opens; pushed. False: none is needed yet. */
static bool push_modes(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modes_key) == LUA_TTABLE) return true;
  lua_pop(L, 1);
  const bool main = lua_pushthread(L);
  lua_pop(L, 1);
  if (main) return false;
  lua_createtable(L, 0, 2);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD); /* has its modes as they are, for good */
  Modes *m = make(L, lua_gettop(L) - 1);
  put(m, now_on(m->number, 1));
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &modes_key);
  pl_state.mode_owner = L;
  return true;
}

void l_modes_set(lua_State *L, int step, bool recording, PlAutocast autocast) {
  luaL_checkstack(L, 8, NULL);
  if (push_modes(L)) {
    const int at = lua_gettop(L);
    const bool main = lua_pushthread(L);
    Modes *m = own(L, at);
    if (!m) m = make(L, at); /* takes the thread */
    else lua_pop(L, 1);
    Modes now = now_on(m->number, m->nscopes + step);
    now.autocast = autocast;
    now.recording = recording;
    put(m, now);
    if (main && m->nscopes < 1) m->nscopes = 1;
    if (m->nscopes < 1) { /* none is open: it goes with who resumes it */
      lua_pushthread(L);
      lua_pushnil(L);
      lua_rawset(L, at);
    }
    lua_pop(L, 1);
  }
  pl_grad_enable(recording);
  pl_autocast_set(autocast);
}

bool l_modes_kept(lua_State *L) {
  if (PL_LIKELY(!pl_state.mode_owner)) { /* as at every walk of a script without coroutines */
    const bool main = lua_pushthread(L);
    lua_pop(L, 1);
    if (main) return false;
  }
  luaL_checkstack(L, 8, NULL);
  const bool kept = push_modes(L);
  if (kept) lua_pop(L, 1);
  return kept;
}

typedef struct Restored {
  Modes own;
  bool had;
} Restored;

/* L's modes are what they were before the call. */
static int restore_body(lua_State *L) {
  const Restored *r = lua_touserdata(L, 1);
  luaL_checkstack(L, 8, NULL);
  if (!push_modes(L)) return 0;
  const int at = lua_gettop(L);
  Modes *m = own(L, at);
  lua_pushthread(L);
  if (!r->had) {
    lua_pushnil(L);
    lua_rawset(L, at);
    return 0;
  }
  if (!m) m = make(L, at);
  else lua_pop(L, 1);
  put(m, r->own);
  return 0;
}

/* L's modes are those of the thread as they are, also for coroutines that it resumes. */
static int enter_body(lua_State *L) {
  l_modes_set(L, 1, !pl_state.grad_off, pl_autocast_now());
  return 0;
}

/* Those of the main thread where no coroutine has opened a scope yet: the engine may have changed those of the script. */
static Modes of_main(void) {
  const PlScope *s = &pl_state.around;
  Modes m = now_on(++pl_state.mode_turn, 1);
  if (!pl_state.changed) return m;
  m.autocast = (PlAutocast){.dtype = s->autocast, .cache = s->autocast_cache, .depth = (int16_t)s->autocast_depth};
  m.recording = !s->grad_off;
  m.packing = pl_state.around_packing;
  return m;
}

int l_call_in_modes(lua_State *L, void *ud) {
  const bool was = !pl_state.grad_off;
  const PlAutocast autocast = pl_autocast_now();
  const void *owner = pl_state.mode_owner;
  const PlScope around = pl_state.around;
  const bool changed = pl_state.changed;
  PlPacking *around_packing = pl_state.around_packing, *packing = pl_packing_retain(pl_state.packing);
  Restored r = {.had = !owner};
  put(&r.own, of_main());
  if (PL_UNLIKELY(owner != NULL) && lua_checkstack(L, 4)) {
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modes_key) == LUA_TTABLE) {
      const Modes *m = own(L, lua_gettop(L));
      if ((r.had = m != NULL)) put(&r.own, *m);
    }
    lua_pop(L, 1);
    lua_pushcfunction(L, enter_body);
    if (lua_pcall(L, 0, 0, 0) != LUA_OK) lua_pop(L, 1);
  }
  pl_state.changed = false;
  const uint64_t floor = pl_state.key_floor, ceiling = pl_state.key_ceiling; /* of an op; keys that ud makes are another matter */
  pl_state.key_floor = pl_state.key_ceiling = 0;
  lua_pushlightuserdata(L, ud);
  const int rc = lua_pcall(L, 1, 0, 0);
  pl_state.key_floor = floor;
  pl_state.key_ceiling = ceiling;
  pl_state.around = around;
  pl_state.around_packing = around_packing;
  pl_state.changed = changed;
  const PlAutocast now = pl_autocast_now();
  if (PL_UNLIKELY(pl_state.mode_owner != NULL)) {
    lua_pushcfunction(L, restore_body);
    lua_pushlightuserdata(L, &r);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK) lua_pop(L, 1);
    if (owner) pl_state.mode_owner = owner;
  }
  put(&r.own, (Modes){.recording = true});
  pl_packing_use(packing);
  pl_packing_release(packing);
  pl_grad_enable(was);
  if (now.dtype != autocast.dtype || now.cache != autocast.cache || now.depth != autocast.depth) pl_autocast_set(autocast);
  return rc;
}

/* core.grad_enter(on) → what it was: a scope begins. core.grad_leave(was): it ends. core.grad_mode() → recording? */
static int set_mode(lua_State *L, int step) {
  const bool on = lua_toboolean(L, 1);
  l_modes_follow(L);
  const bool was = !pl_state.grad_off;
  l_modes_set(L, step, on, pl_autocast_now());
  lua_pushboolean(L, was);
  return 1;
}

static int grad_enter(lua_State *L) { return set_mode(L, 1); }
static int grad_leave(lua_State *L) { return set_mode(L, -1); }

static int grad_mode(lua_State *L) {
  l_modes_follow(L);
  lua_pushboolean(L, !pl_state.grad_off);
  return 1;
}

/* core.records() → are ops recorded now? Not while a backward without create_graph runs, whatever scopes are open. */
static int grad_records(lua_State *L) {
  l_modes_follow(L);
  lua_pushboolean(L, !pl_state.grad_off && !(pl_state.in_backward && pl_key_ambient()->muted));
  return 1;
}

uint64_t l_owner_begins(lua_State *L) {
  luaL_checkstack(L, 12, NULL);
  l_modes_follow(L);
  if (!push_modes(L)) return 0;
  const int at = lua_gettop(L);
  const bool main = lua_pushthread(L);
  lua_pop(L, 1);
  if (!main) l_modes_set(L, 1, !pl_state.grad_off, pl_autocast_now());
  const uint64_t number = main ? 0 : own(L, at)->number;
  lua_settop(L, at - 1);
  return number;
}

void l_owner_ends(lua_State *L, uint64_t owner) {
  if (!owner || !lua_checkstack(L, 8)) return;
  const int top = lua_gettop(L), at = top + 1;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modes_key) == LUA_TTABLE)
    for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
      Modes *m = lua_touserdata(L, -1);
      if (m->number != owner) continue;
      if (--m->nscopes > 0) break;
      lua_pop(L, 1);
      lua_pushnil(L);
      lua_rawset(L, at);
      break;
    }
  lua_settop(L, top);
}

/* core.key_begins(key): it records what this coroutine computes, and those that it resumes; until core.key_ends(key). */
static int key_begins(lua_State *L) {
  PlKey **k = luaL_checkudata(L, 1, "perilune.GradKey"); /* the first field of grad_key.c's box */
  if (*k) (*k)->owner = l_owner_begins(L);
  return 0;
}

static int key_ends(lua_State *L) {
  PlKey **k = luaL_checkudata(L, 1, "perilune.GradKey");
  if (!*k) return 0;
  const uint64_t owner = (*k)->owner;
  (*k)->owner = 0;
  l_owner_ends(L, owner);
  return 0;
}

/* core.key_rest(key): it records no more, and can still be walked: what only waits for its walks is in nobody's way. */
static int key_rest(lua_State *L) {
  PlKey **k = luaL_checkudata(L, 1, "perilune.GradKey"); /* the first field of grad_key.c's box */
  if (*k) (*k)->recording = false;
  return 0;
}

void l_modes_register(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"grad_enter", grad_enter}, {"grad_leave", grad_leave}, {"grad_mode", grad_mode}, {"records", grad_records},
      {"key_rest", key_rest},     {"key_begins", key_begins}, {"key_ends", key_ends},   {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
