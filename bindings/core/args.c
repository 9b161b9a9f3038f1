/* SPDX-License-Identifier: MIT
 * Arguments from Lua: strict integers, dtypes, shapes, option tables with "did you mean". */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bindings/core/lib.h"

bool l_to_int(lua_State *L, int i, int64_t *out) {
  if (lua_type(L, i) != LUA_TNUMBER) return false; /* numeric strings do not count */
  int ok = 0;
  *out = (int64_t)lua_tointegerx(L, i, &ok);
  return ok != 0;
}

const char *l_typename(lua_State *L, int i) {
  Box *b = l_box(L, i);
  if (b) return b->t ? pl_desc_text(&b->t->a) : "a freed tensor";
  if (lua_type(L, i) == LUA_TNUMBER) return lua_isinteger(L, i) ? "an integer" : "a number";
  if (lua_isnone(L, i)) return "nothing";
  return luaL_typename(L, i);
}

int64_t l_check_int(lua_State *L, int i, const char *fn, const char *arg) {
  int64_t v;
  if (l_to_int(L, i, &v)) return v;
  if (lua_type(L, i) == LUA_TNUMBER) return l_error(L, "%s: argument %s must be an integer, got %g", fn, arg, lua_tonumber(L, i));
  return l_error(L, "%s: argument %s must be an integer, got %s", fn, arg, l_typename(L, i));
}

bool l_dtype_by_name(const char *s, PlDtype *out) {
  static const struct {
    const char *name;
    PlDtype d;
  } alias[] = {{"float", PL_F32},   {"float32", PL_F32},   {"double", PL_F64},  {"float64", PL_F64}, {"half", PL_F16},
               {"float16", PL_F16}, {"bfloat16", PL_BF16}, {"long", PL_I64},    {"int64", PL_I64},   {"int", PL_I32},
               {"int32", PL_I32},   {"short", PL_I16},     {"int16", PL_I16},   {"char", PL_I8},     {"int8", PL_I8},
               {"byte", PL_U8},     {"uint8", PL_U8},      {"boolean", PL_BOOL}};
  for (int d = 0; d < PL_NDTYPE; d++)
    if (strcmp(s, pl_dtype_name((PlDtype)d)) == 0) {
      *out = (PlDtype)d;
      return true;
    }
  for (size_t k = 0; k < sizeof alias / sizeof *alias; k++)
    if (strcmp(s, alias[k].name) == 0) {
      *out = alias[k].d;
      return true;
    }
  return false;
}

/* What others call a GPU. */
static bool is_device_word(const char *s) {
  static const char *const words[] = {"gpu", "GPU", "CUDA", "mps", "xpu", "hip", "rocm"};
  for (size_t k = 0; k < sizeof words / sizeof *words; k++)
    if (strncmp(s, words[k], strlen(words[k])) == 0) return true;
  return false;
}

PlDtype l_check_dtype(lua_State *L, int i, const char *fn) {
  PlDtype d = PL_F32;
  if (lua_type(L, i) != LUA_TSTRING) l_error(L, "%s: dtype must be a string such as \"f32\", got %s", fn, l_typename(L, i));
  else if (!l_dtype_by_name(lua_tostring(L, i), &d))
    l_error(L, "%s: unknown dtype \"%s\"; there are f32 f64 f16 bf16 i8 i16 i32 i64 u8 bool%s", fn, lua_tostring(L, i),
            is_device_word(lua_tostring(L, i)) ? "; a GPU is the device \"cuda\"" : "");
  return d;
}

int l_check_shape(lua_State *L, int i, const char *fn, int64_t *shape) {
  int n = 0;
  if (lua_type(L, i) == LUA_TTABLE) {
    lua_Integer len = (lua_Integer)lua_rawlen(L, i);
    if (l_push_stray(L, i, len)) l_error(L, "%s: the shape is a list of sizes; it has the key '%s'", fn, lua_tostring(L, -1));
    if (len > PL_MAX_DIM) l_error(L, "%s: a tensor has at most %d dimensions, not %d", fn, PL_MAX_DIM, (int)len);
    for (; n < len; n++) {
      lua_rawgeti(L, i, n + 1);
      shape[n] = l_check_int(L, -1, fn, "shape");
      lua_pop(L, 1);
    }
    return n;
  }
  for (; i <= lua_gettop(L) && lua_type(L, i) == LUA_TNUMBER; i++) {
    if (n == PL_MAX_DIM) l_error(L, "%s: a tensor has at most %d dimensions", fn, PL_MAX_DIM);
    shape[n++] = l_check_int(L, i, fn, "shape");
  }
  return n;
}

int l_at_most(lua_State *L, int n, const char *fn) {
  int extra = n + 1, top = lua_gettop(L);
  while (extra <= top && lua_isnil(L, extra)) extra++;
  if (extra > top) return 0; /* nothing, written out */
  if (lua_type(L, extra) == LUA_TTABLE) {
    lua_pushnil(L);
    if (lua_next(L, extra) && lua_type(L, -2) == LUA_TSTRING)
      return l_error(L, "%s: unknown option '%s'; it takes no options", fn, lua_tostring(L, -2));
  }
  return l_error(L, "%s: takes at most %d argument%s, got %s as #%d", fn, n, n == 1 ? "" : "s", l_typename(L, extra), extra);
}

bool l_push_stray(lua_State *L, int i, lua_Integer n) {
  i = lua_absindex(L, i);
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
    if (lua_isinteger(L, -2) && lua_tointeger(L, -2) >= 1 && lua_tointeger(L, -2) <= n) continue;
    lua_pop(L, 1);
    luaL_tolstring(L, -1, NULL);
    lua_remove(L, -2);
    return true;
  }
  return false;
}

int l_check_fits(lua_State *L, int i, PlDtype d, const char *fn) {
  if (lua_type(L, i) != LUA_TNUMBER || !pl_is_int(d)) return 0;
  const int64_t least = pl_int_least(d), most = pl_int_most(d);
  if (lua_isinteger(L, i)) {
    const int64_t v = lua_tointeger(L, i);
    if (v >= least && v <= most) return 0;
    return l_error(L, "%s: %lld does not fit into %s, which holds %lld to %lld", fn, (long long)v, pl_dtype_name(d), (long long)least,
                   (long long)most);
  }
  const double v = lua_tonumber(L, i);
  if (d == PL_I64 ? v >= -0x1p63 && v < 0x1p63 : v > (double)least - 1 && v < (double)most + 1) return 0;
  return l_error(L, "%s: %g does not fit into %s", fn, v, pl_dtype_name(d));
}

int l_check_stored(lua_State *L, int i, PlDtype d, const char *fn) {
  l_check_fits(L, i, d, fn);
  if (!pl_is_int(d) || lua_type(L, i) != LUA_TNUMBER || lua_isinteger(L, i) || lua_tonumber(L, i) == floor(lua_tonumber(L, i))) return 0;
  return l_error(L, "%s: %g has a fraction, which %s cannot hold; give an integer, or convert first: x:to(\"f32\")", fn, lua_tonumber(L, i),
                 pl_dtype_name(d));
}

bool l_opt_bool(lua_State *L, int table, const char *key, bool def) {
  if (lua_type(L, table) != LUA_TTABLE) return def;
  lua_pushstring(L, key);
  lua_rawget(L, table);
  if (!lua_isnil(L, -1) && !lua_isboolean(L, -1)) l_error(L, "option %s must be true or false, got %s", key, l_typename(L, -1));
  bool v = lua_isnil(L, -1) ? def : lua_toboolean(L, -1);
  lua_pop(L, 1);
  return v;
}

static const char nearest_key = 0;

/* core.nearest(f): f(word, "a b c") → the one that is meant, or nil; options.nearest of Lua, which judges for all. */
int l_nearest(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &nearest_key);
  return 0;
}

/* "; did you mean a?" or "", on top of the stack. */
const char *l_did_you_mean(lua_State *L, const char *word, const char *allowed) {
  const int top = lua_gettop(L) + 1;
  luaL_checkstack(L, 8, NULL);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &nearest_key) == LUA_TFUNCTION) {
    lua_pushstring(L, word);
    lua_pushstring(L, allowed);
    if (lua_pcall(L, 2, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING) {
      lua_pushfstring(L, "; did you mean %s?", lua_tostring(L, -1));
      lua_replace(L, top);
      lua_settop(L, top);
      return lua_tostring(L, top);
    }
  }
  lua_settop(L, top - 1);
  return lua_pushliteral(L, "");
}

void l_check_options(lua_State *L, int i, const char *fn, const char *allowed) {
  if (lua_isnoneornil(L, i)) return;
  if (lua_type(L, i) != LUA_TTABLE) {
    l_error(L, "%s: the last argument must be a table of options (%s), got %s", fn, allowed, l_typename(L, i));
    return;
  }
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) {
      l_error(L, "%s: options are named (%s), got a positional entry", fn, allowed);
      return;
    }
    const char *key = lua_tostring(L, -2);
    size_t n = strlen(key);
    bool found = false;
    for (const char *p = allowed; *p && !found;) {
      size_t m = strcspn(p, " ");
      found = m == n && strncmp(p, key, n) == 0;
      p += m;
      p += *p == ' ';
    }
    if (!found) l_error(L, "%s: unknown option '%s'%s; allowed: %s", fn, key, l_did_you_mean(L, key, allowed), allowed);
  }
}

/* The same words as in lua/perilune/surface.lua. */
void l_too_many(lua_State *L, const char *fn, int n, const char *names) {
  int extra = 0;
  const int given = lua_gettop(L);
  for (int i = n + 1; i <= given && !extra; i++)
    if (!lua_isnil(L, i)) extra = i;
  if (!extra) {
    lua_settop(L, n); /* nothing, written out */
    return;
  }
  if (lua_type(L, extra) == LUA_TTABLE && !lua_getmetatable(L, extra)) {
    lua_pushnil(L);
    if (lua_next(L, extra) && lua_type(L, -2) == LUA_TSTRING)
      l_error(L, "%s: takes at most %d argument%s (%s): unknown option '%s'", fn, n, n == 1 ? "" : "s", names, lua_tostring(L, -2));
    lua_settop(L, given);
  }
  l_error(L, "%s: takes at most %d argument%s (%s), got %d; the last is %s", fn, n, n == 1 ? "" : "s", names, given, l_typename(L, given));
}
