/* SPDX-License-Identifier: MIT
 * What every call of a jitted function asks: which trace its arguments belong to, and the common answer of the guards
 * (lua/perilune/jit/guards.lua), all is as it was. Tables are walked in the order in which they were noted; whatever is not
 * where it was, also if only that order is another, is for Lua to look at. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bindings/lib.h"
#include "engine/autocast.h"
#include "engine/device.h"
#include "engine/grad/node.h"
#include "engine/state.h"

enum { UPVALUES, FIELDS, GLOBALS };

/* The two on top are numbers: the same to a trace? 1 and 1.0 are not, nor 0.0 and -0.0; not a number is itself. */
static bool same_number(lua_State *L) {
  if (lua_isinteger(L, -1) || lua_isinteger(L, -2)) return lua_isinteger(L, -1) && lua_isinteger(L, -2) && lua_rawequal(L, -1, -2);
  double a = lua_tonumber(L, -1), b = lua_tonumber(L, -2);
  return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

/* Is the value on top what entry i of the list says? Pops it. A value that was not there is noted as a NULL pointer. */
static bool same_value(lua_State *L, lua_Integer i) {
  int type = lua_rawgeti(L, 1, i);
  bool same;
  if (type == LUA_TNUMBER && lua_type(L, -2) == LUA_TNUMBER)
    same = same_number(L);
  else
    same = lua_isnil(L, -2) ? type == LUA_TLIGHTUSERDATA && !lua_touserdata(L, -1) : lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

/* Field `name` (on top) of the table at 2, through __index where that is a table. Replaces the name. */
static void field_of(lua_State *L) {
  lua_pushvalue(L, 2);
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

static bool same_fields(lua_State *L, lua_Integer at, lua_Integer n) {
  lua_Integer k = 0;
  lua_pushnil(L);
  while (lua_next(L, 2)) {
    lua_rawgeti(L, 1, at + 2 * k);
    bool here = k < n && lua_rawequal(L, -1, -3);
    lua_pop(L, 1);
    if (!here) {
      if (lua_type(L, -2) != LUA_TSTRING || strcmp(lua_tostring(L, -2), "_opts") != 0) return false;
      lua_pop(L, 1); /* a module's scratch table */
      continue;
    }
    if (!same_value(L, at + 2 * k + 1)) return false;
    k++;
  }
  return k == n;
}

static bool same(lua_State *L, lua_Integer at, lua_Integer kind, lua_Integer n) {
  if (kind == FIELDS) return same_fields(L, at, n);
  for (lua_Integer k = 0; k < n; k++, at += 2) {
    lua_rawgeti(L, 1, at);
    if (kind == UPVALUES) {
      int i = (int)lua_tointeger(L, -1);
      lua_pop(L, 1);
      if (!lua_getupvalue(L, 2, i)) return false;
    } else
      field_of(L);
    if (!same_value(L, at + 1)) return false;
  }
  return true;
}

/* jit_unchanged({object, kind, n, n times name and value, …}) → is all as it was? kind 0: a function's upvalues, names are
 * their numbers; 1: all fields of a table; 2: fields of a table or of those behind it by __index */
static int jit_unchanged(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_Integer len = (lua_Integer)lua_rawlen(L, 1), n;
  for (lua_Integer i = 1; i <= len; i += 3 + 2 * n) {
    lua_settop(L, 1);
    lua_rawgeti(L, 1, i + 1);
    lua_rawgeti(L, 1, i + 2);
    lua_Integer kind = lua_tointeger(L, 2);
    n = lua_tointeger(L, 3);
    lua_settop(L, 1);
    lua_rawgeti(L, 1, i);
    if (!same(L, i + 3, kind, n)) {
      lua_pushboolean(L, 0);
      return 1;
    }
  }
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- the key of a call --------------------------------------------------------------------------------------- */

/* f32[2,3], then g for a leaf that requires a gradient, G for one that has a .grad, h for a tensor with a history → that .grad */
static PlTensor *add_tensor(luaL_Buffer *b, const PlTensor *t) {
  char text[32 + 24 * PL_MAX_DIM];
  int n = snprintf(text, sizeof text, "%s[", pl_dtype_name((PlDtype)t->a.dtype));
  for (int d = 0; d < t->a.ndim; d++)
    n += snprintf(text + n, sizeof text - (size_t)n, d ? ",%" PRId64 : "%" PRId64, t->a.shape[d]);
  text[n++] = ']';
  PlNode *node = NULL;
  PlTensor *grad = NULL;
  uint32_t slot;
  if ((t->node || t->more) && pl_entry_get(t, pl_key_ambient(), &node, &slot)) { /* else nothing tracks it */
    grad = node->kind == PL_NODE_LEAF ? node->grad : NULL;
    text[n++] = grad ? 'G' : node->kind == PL_NODE_LEAF ? 'g' : 'h';
  }
  luaL_addlstring(b, text, (size_t)n);
  return grad;
}

/* jit_key({}, text_of, modes, …) → a text of all that a trace depends on in these arguments and, if asked for, in the modes of
 * the moment. Tensors, each with its .grad behind it, are appended to the list. text_of(value, list) is asked about strings, tables and the like. */
static int jit_key(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  int top = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (int i = 4; i <= top; i++) {
    PlTensor *t = l_to_tensor(L, i);
    char text[64];
    if (t) {
      PlTensor *grad = add_tensor(&b, t);
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
    } else if (lua_isnil(L, i) || lua_isboolean(L, i))
      luaL_addstring(&b, lua_isnil(L, i) ? "nil" : lua_toboolean(L, i) ? "true" : "false");
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
  if (!lua_toboolean(L, 3)) {
    luaL_pushresult(&b);
    return 1;
  }
  luaL_addstring(&b, pl_state.grad_off ? "no grad " : "grad ");
  if (pl_autocast_dtype() != PL_NDTYPE) {
    luaL_addstring(&b, pl_dtype_name(pl_autocast_dtype()));
    luaL_addchar(&b, ' ');
  }
  luaL_addstring(&b, pl_dtype_name(pl_default_float()));
  luaL_addchar(&b, ' ');
  luaL_addstring(&b, pl_device_name(pl_state.device));
  luaL_pushresult(&b);
  return 1;
}

void l_jit_guards_register(lua_State *L) {
  lua_pushcfunction(L, jit_key);
  lua_setfield(L, -2, "jit_key");
  lua_pushcfunction(L, jit_unchanged);
  lua_setfield(L, -2, "jit_unchanged");
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "jit_nothing");
}
