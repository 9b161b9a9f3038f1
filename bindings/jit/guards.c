/* SPDX-License-Identifier: MIT
 * What every call of a jitted function asks: which trace its arguments belong to, and the common answer of the guards
 * (lua/perilune/jit/guards.lua), all is as it was. Tables are walked in the order in which they were noted; whatever is not
 * where it was, also if only that order is another, is for Lua to look at. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bindings/core/lib.h"
#include "bindings/jit/program.h"
#include "engine/call/autocast.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/node.h"
#include "engine/tensor/layout.h"

enum { UPVALUES, FIELDS, GLOBALS, FIELDS_AND_SCRATCH };

/* A value as it was. Objects are told by their address: the list that the watch was made from keeps them where they are. */
typedef struct Seen {
  int type; /* LUA_T…; integers: WHOLE */
  union {
    const void *p;
    int64_t i;
    double d;
  } v;
} Seen;
enum { WHOLE = 100 };

/* One place: an object, entry `at` of the list, and what was there, n pairs from `first` on: name, value. */
typedef struct Place {
  lua_Integer at;
  int kind;
  int32_t n, first;
  const void *meta; /* the metatable of a table, NULL: none */
} Place;

struct LWatch {
  int32_t nplaces, npairs;
  Place *places; /* behind the struct, then the pairs */
  Seen *pairs;
};

static const char watch_meta[] = "perilune.watch";

static Seen see(lua_State *L, int i) {
  Seen s = {.type = lua_type(L, i), .v.i = 0};
  switch (s.type) {
  case LUA_TNIL: break;
  case LUA_TBOOLEAN: s.v.i = lua_toboolean(L, i); break;
  case LUA_TNUMBER:
    if (lua_isinteger(L, i)) {
      s.type = WHOLE;
      s.v.i = lua_tointeger(L, i);
    } else s.v.d = lua_tonumber(L, i);
    break;
  default:
    s.v.p = lua_topointer(L, i);
    if (s.type == LUA_TLIGHTUSERDATA && !s.v.p) s.type = LUA_TNIL; /* how the list says nothing */
  }
  return s;
}

/* Is the value at i the one that was seen? 1 and 1.0 are not, nor 0.0 and -0.0; not a number is itself. */
static inline bool same(lua_State *L, int i, const Seen *s) {
  if (s->type == LUA_TSTRING || s->type >= LUA_TTABLE) {
    if (s->type != WHOLE) return lua_topointer(L, i) == s->v.p;
    return lua_isinteger(L, i) && lua_tointeger(L, i) == s->v.i;
  }
  Seen now = see(L, i);
  if (now.type != s->type) return false;
  return now.v.i == s->v.i || (now.type == LUA_TNUMBER && now.v.d != now.v.d && s->v.d != s->v.d);
}

/* Replaces the name on top by the field of that name of the table at `at`, through __index where that is a table. */
static void field_of(lua_State *L, int at) {
  lua_pushvalue(L, at);
  for (int depth = 0; depth < 8; depth++) { /* name, table */
    lua_pushvalue(L, -2);
    lua_rawget(L, -2);
    if (!lua_isnil(L, -1) || !lua_getmetatable(L, -2)) break;
    lua_pushliteral(L, "__index");
    lua_rawget(L, -2);
    lua_copy(L, -1, -4); /* the next table */
    bool more = lua_istable(L, -1);
    lua_settop(L, -4);
    if (!more) {
      lua_pushnil(L);
      break;
    }
    if (depth == 7) lua_pushnil(L);
  }
  lua_replace(L, -3);
  lua_pop(L, 1);
}

/* All fields of the table on top, in the order in which they were noted; with scratch all but a module's scratch table. */
static bool same_fields(lua_State *L, const Seen *pair, int32_t n, bool scratch) {
  int top = lua_gettop(L);
  int32_t k = 0;
  lua_pushnil(L);
  while (lua_next(L, top)) {
    if (k < n && same(L, top + 1, &pair[2 * k])) {
      if (!same(L, top + 2, &pair[2 * k + 1])) return false;
      k++;
    } else if (!scratch || lua_type(L, top + 1) != LUA_TSTRING || strcmp(lua_tostring(L, top + 1), "_opts") != 0) return false;
    lua_settop(L, top + 1);
  }
  return k == n;
}

/* The metatable of the table on top, by its address; nothing else has one that a script may change. */
static const void *meta_of(lua_State *L) {
  if (!lua_istable(L, -1) || !lua_getmetatable(L, -1)) return NULL;
  const void *meta = lua_topointer(L, -1);
  lua_pop(L, 1);
  return meta;
}

/* The object of the place is on top, the list at `list`. */
static bool same_place(lua_State *L, const Place *p, const Seen *pair, int list) {
  int top = lua_gettop(L);
  if (meta_of(L) != p->meta) return false;
  if (p->kind == FIELDS || p->kind == FIELDS_AND_SCRATCH) return same_fields(L, pair, p->n, p->kind == FIELDS_AND_SCRATCH);
  for (int32_t k = 0; k < p->n; k++, pair += 2) {
    if (p->kind == UPVALUES) {
      if (!lua_getupvalue(L, top, (int)pair[0].v.i)) return false;
    } else {
      lua_rawgeti(L, list, p->at + 3 + 2 * k);
      field_of(L, top);
    }
    if (!same(L, top + 1, &pair[1])) return false;
    lua_settop(L, top);
  }
  return true;
}

LWatch *l_to_watch(lua_State *L, int i) { return luaL_testudata(L, i, watch_meta); }

bool l_watch_holds(lua_State *L, int i) {
  const LWatch *w = lua_touserdata(L, i);
  int top = lua_gettop(L);
  luaL_checkstack(L, 12, NULL);
  lua_getiuservalue(L, i, 1);
  bool holds = true;
  for (int32_t k = 0; holds && k < w->nplaces; k++) {
    lua_settop(L, top + 1);
    lua_rawgeti(L, top + 1, w->places[k].at);
    holds = same_place(L, &w->places[k], w->pairs + 2 * w->places[k].first, top + 1);
  }
  lua_settop(L, top);
  return holds;
}

/* jit_watch({object, kind, n, n times name and value, …}) → what jit_unchanged takes. kind 0: a function's upvalues, names are
 * their numbers; 1: all fields of a table, 3: but for the
 * scratch table of a module; 2: fields of a table or of those behind it by __index. The list is kept. */
static int jit_watch(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_Integer len = (lua_Integer)lua_rawlen(L, 1), n;
  size_t places = 0, pairs = 0;
  for (lua_Integer i = 1; i <= len; i += 3 + 2 * n, places++) {
    lua_rawgeti(L, 1, i + 2);
    n = lua_tointeger(L, -1);
    lua_pop(L, 1);
    if (n < 0 || n > len) return l_error(L, "jit_watch: no such list");
    pairs += (size_t)n;
  }
  LWatch *w = lua_newuserdatauv(L, sizeof *w + places * sizeof(Place) + 2 * pairs * sizeof(Seen), 1);
  *w = (LWatch){.places = (Place *)(void *)(w + 1)};
  w->pairs = (Seen *)(void *)(w->places + places);
  luaL_setmetatable(L, watch_meta);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, 2, 1);
  for (lua_Integer i = 1; i <= len; i += 3 + 2 * n) {
    lua_rawgeti(L, 1, i + 1);
    lua_rawgeti(L, 1, i + 2);
    n = lua_tointeger(L, -1);
    lua_rawgeti(L, 1, i);
    w->places[w->nplaces++] = (Place){.at = i, .kind = (int)lua_tointeger(L, -3), .n = (int32_t)n, .first = w->npairs, .meta = meta_of(L)};
    for (lua_Integer k = 0; k < n; k++, w->npairs++) {
      lua_rawgeti(L, 1, i + 3 + 2 * k);
      lua_rawgeti(L, 1, i + 4 + 2 * k);
      w->pairs[2 * w->npairs] = see(L, -2);
      w->pairs[2 * w->npairs + 1] = see(L, -1);
      lua_pop(L, 2);
    }
    lua_settop(L, 2);
  }
  return 1;
}

/* jit_unchanged(watch) → is all as it was? */
static int jit_unchanged(lua_State *L) {
  luaL_checkudata(L, 1, watch_meta);
  lua_pushboolean(L, l_watch_holds(L, 1));
  return 1;
}

/* Does a repeat its elements along dim d? Such a dim has no say in how results lie. */
static bool repeated(const PlArray *a, int d) { return a->strides[d] == 0 && a->shape[d] > 1 && a->numel > 0; }

/* How t's dims lie in memory, from the outermost, where a trace has to know: it is not row-major, or elements repeat. */
bool l_layout_permuted(const PlArray *a, uint8_t *order) {
  int64_t strides[PL_MAX_DIM];
  int dims[PL_MAX_DIM];
  bool any = false;
  if (a->device != PL_CPU || a->ndim == 0 || PL_LIKELY(pl_layout_row_major(a))) return false;
  for (int d = 0; d < a->ndim; d++) any = any || repeated(a, d), dims[d] = d;
  if (pl_layout_permuted(a, strides)) pl_layout_order(a->ndim, a->shape, strides, dims);
  else if (!any) return false;
  for (int d = 0; d < a->ndim; d++) order[d] = (uint8_t)(dims[d] | (repeated(a, dims[d]) ? L_REPEATED : 0));
  return true;
}

/* jit_repeated(t) → list of the dims along which its elements repeat, nil: none */
static int jit_repeated(lua_State *L) {
  const PlTensor *t = l_check_tensor(L, 1);
  uint8_t order[PL_MAX_DIM];
  int n = 0;
  if (!l_layout_permuted(&t->a, order)) return 0;
  lua_newtable(L);
  for (int d = 0; d < t->a.ndim; d++) {
    if (!repeated(&t->a, d)) continue;
    lua_pushinteger(L, d + 1);
    lua_rawseti(L, -2, ++n);
  }
  return n > 0;
}

/* ---- the key of a call --------------------------------------------------------------------------------------- */

/* f32[2,3], ~ and the order of its dims in memory where that is not row-major (capital: elements repeat), on a GPU with its name, then g for a leaf that requires a gradient, G for one that has a .grad, h for a tensor with a history → that .grad */
static PlTensor *add_tensor(luaL_Buffer *b, const PlTensor *t, bool sizes) {
  char text[40 + 25 * PL_MAX_DIM];
  int n = snprintf(text, sizeof text, sizes ? "%s[" : "%s[%dd", pl_dtype_name((PlDtype)t->a.dtype), t->a.ndim);
  for (int d = 0; sizes && d < t->a.ndim; d++)
    n += snprintf(text + n, sizeof text - (size_t)n, d ? ",%" PRId64 : "%" PRId64, t->a.shape[d]);
  text[n++] = ']';
  uint8_t order[PL_MAX_DIM];
  if (PL_UNLIKELY(l_layout_permuted(&t->a, order))) {
    text[n++] = '~';
    for (int d = 0; d < t->a.ndim; d++) text[n++] = (char)((order[d] & L_REPEATED ? 'A' : 'a') + (order[d] & ~L_REPEATED));
  }
  PlNode *node = NULL;
  PlTensor *grad = NULL;
  uint32_t slot;
  if ((t->node || t->more) && pl_entry_get(t, pl_key_ambient(), &node, &slot)) { /* else nothing tracks it */
    grad = node->kind == PL_NODE_LEAF ? node->grad : NULL;
    text[n++] = grad ? 'G' : node->kind == PL_NODE_LEAF ? 'g' : 'h';
  }
  luaL_addlstring(b, text, (size_t)n);
  if (PL_UNLIKELY(t->a.device != PL_CPU)) luaL_addstring(b, pl_device_name(t->a.device));
  return grad;
}

/* jit_key({}, text_of, what, …) → a text of all that a trace depends on in these arguments and, unless what is false or 1, in the modes
 * of the moment; sizes apart if what is 1 or 2. Tensors, each with its .grad behind it, are appended to the list. text_of(value, list) is asked about strings, tables and the like. */
static int jit_key(lua_State *L) {
  l_modes_follow(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  int top = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  const bool sizes = !lua_isinteger(L, 3), modes = sizes ? lua_toboolean(L, 3) : lua_tointeger(L, 3) == 2;
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (int i = 4; i <= top; i++) {
    PlTensor *t = l_to_tensor(L, i);
    char text[64];
    if (t) {
      CALL(L, pl_history_current(&t, 1)); /* of a view whose base was written since */
      PlTensor *grad = add_tensor(&b, t, sizes);
      lua_pushvalue(L, i);
      lua_rawseti(L, 1, ++n);
      if (grad) {
        l_push_shared(L, grad);
        lua_rawseti(L, 1, ++n);
      }
    } else if (lua_type(L, i) == LUA_TNUMBER) {
      int len = lua_isinteger(L, i) ? snprintf(text, sizeof text, "integer:%" PRId64, (int64_t)lua_tointeger(L, i))
                                    : snprintf(text, sizeof text, "float:%a", lua_tonumber(L, i));
      luaL_addlstring(&b, text, (size_t)len);
    } else if (lua_isnil(L, i) || lua_isboolean(L, i)) luaL_addstring(&b, lua_isnil(L, i) ? "nil" : lua_toboolean(L, i) ? "true" : "false");
    else {
      lua_pushvalue(L, 2);
      lua_pushvalue(L, i);
      lua_pushvalue(L, 1);
      lua_call(L, 2, 1);
      n = (lua_Integer)lua_rawlen(L, 1);
      luaL_addvalue(&b);
    }
    luaL_addchar(&b, ' ');
  }
  if (!modes) {
    luaL_pushresult(&b);
    return 1;
  }
  luaL_addstring(&b, pl_state.grad_off ? "no grad " : "grad ");
  if (pl_autocast_dtype() != PL_NDTYPE) {
    luaL_addstring(&b, pl_dtype_name(pl_autocast_dtype()));
    luaL_addchar(&b, ' ');
  }
  if (pl_state.rules) {
    char text[48];
    snprintf(text, sizeof text, "rules %" PRIu64 " ", pl_state.rules);
    luaL_addstring(&b, text);
  }
  luaL_addstring(&b, pl_dtype_name(pl_default_float()));
  luaL_addchar(&b, ' ');
  luaL_addstring(&b, pl_device_name(pl_state.device));
  if (pl_device_modes()) { /* how exact products are, and what libraries may do */
    char text[24];
    snprintf(text, sizeof text, " %" PRIu32, pl_device_modes());
    luaL_addstring(&b, text);
  }
  luaL_pushresult(&b);
  return 1;
}

void l_jit_guards_register(lua_State *L) {
  lua_pushcfunction(L, jit_key);
  lua_setfield(L, -2, "jit_key");
  lua_pushcfunction(L, jit_repeated);
  lua_setfield(L, -2, "jit_repeated");
  lua_pushcfunction(L, jit_unchanged);
  lua_setfield(L, -2, "jit_unchanged");
  lua_pushcfunction(L, jit_watch);
  lua_setfield(L, -2, "jit_watch");
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "jit_nothing");
  luaL_newmetatable(L, watch_meta);
  lua_pop(L, 1);
}
