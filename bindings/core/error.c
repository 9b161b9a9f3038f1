/* SPDX-License-Identifier: MIT
 * The one door: how a status becomes a Lua error at the line of the first caller outside perilune's files. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bindings/core/lib.h"
#include "bindings/ops/call.h"
#include "engine/call/thread_state.h"

static const char error_key = 0;

static bool own_file(lua_State *L, const char *source) {
  if (source[0] != '@') return false;
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.home");
  size_t n = 0;
  const char *home = lua_tolstring(L, -1, &n);
  bool own = home && n > 0 && strncmp(source + 1, home, n) == 0;
  lua_pop(L, 1);
  return own;
}

bool l_locate(lua_State *L, const char *home, lua_Debug *ar) {
  size_t n = strlen(home);
  for (int level = 0; lua_getstack(L, level, ar); level++) {
    lua_getinfo(L, "Sl", ar);
    if (ar->currentline > 0 && !(n && ar->source[0] == '@' && strncmp(ar->source + 1, home, n) == 0)) return true;
  }
  return false;
}

int l_where(lua_State *L) {
  lua_Debug ar;
  for (int level = 0; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline <= 0 || own_file(L, ar.source)) continue;
    lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
    return 1;
  }
  lua_pushliteral(L, "");
  return 1;
}

static const char public_key = 0;

/* core.speak(public, rename): names of public functions of Lua by function, and what puts one in front of a message */
int l_speak(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  lua_createtable(L, 2, 0);
  lua_insert(L, 1);
  lua_rawseti(L, 1, 2);
  lua_rawseti(L, 1, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &public_key);
  return 0;
}

/* core.parameters(f) → how many parameters a function of perilune's own Lua files has, and whether it takes more; nothing
 * for functions of C and of scripts. All public functions are asked for when perilune loads: debug.getinfo makes a table
 * for each. */
int l_parameters(lua_State *L) {
  lua_Debug ar;
  if (!lua_isfunction(L, 1) || lua_iscfunction(L, 1)) return 0;
  lua_settop(L, 1);
  lua_getinfo(L, ">Su", &ar);
  if (!own_file(L, ar.source)) return 0;
  lua_pushinteger(L, ar.nparams);
  lua_pushboolean(L, ar.isvararg);
  return 2;
}

/* core.is_one_object(...) → whether that is a single userdata: nearly every call of a module */
int l_is_one_object(lua_State *L) {
  lua_pushboolean(L, lua_gettop(L) == 1 && lua_type(L, 1) == LUA_TUSERDATA);
  return 1;
}

/* The text on top in the name of the public function that the caller called, if it is one of Lua's. */
static void speak(lua_State *L) {
  lua_Debug ar;
  int level = 0, top = lua_gettop(L);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &public_key) != LUA_TTABLE) goto done;
  for (; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline > 0 && !own_file(L, ar.source)) break;
  }
  if (level == 0 || !lua_getstack(L, level - 1, &ar)) goto done;
  lua_rawgeti(L, top + 1, 1);
  lua_rawgeti(L, top + 1, 2);
  lua_getinfo(L, "f", &ar);
  if (lua_rawget(L, top + 2) != LUA_TSTRING) goto done;
  lua_pushvalue(L, top);
  if (lua_pcall(L, 2, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING) lua_replace(L, top);
done:
  lua_settop(L, top);
}

static const char modules_key = 0;

/* core.in_modules(f): f() → "; in out: Linear(…)", the module of a network that is being called; nn/module.lua */
int l_in_modules(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &modules_key);
  return 0;
}

/* Puts that behind the text on top. */
static void add_module(lua_State *L) {
  const int top = lua_gettop(L);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &modules_key) == LUA_TFUNCTION && lua_pcall(L, 0, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING)
    lua_concat(L, 2);
  else lua_settop(L, top);
}

/* core.same(...) → ...: `return same(f(x))` keeps the caller's frame, which a tail call would take away. */
int l_same(lua_State *L) { return lua_gettop(L); }

/* Since T.jit's last trace began: did Lua get an error with PL_ERR_TRACE? */
static _Thread_local bool refused;

int l_jit_refused(lua_State *L) {
  lua_pushboolean(L, refused);
  if (!lua_isnone(L, 1)) refused = lua_toboolean(L, 1);
  return 1;
}

/* The status of the last error that this thread raised since l_raised(false); one that must be reported stays, whatever is
 * raised and caught while the stack unwinds. */
static _Thread_local PlStatus raised;

/* The command's hook for Ctrl-C, which knows nothing of this module, leaves its mark in the registry. */
static PlStatus take_raised(lua_State *L) {
  luaL_checkstack(L, 2, NULL);
  if (lua_getfield(L, LUA_REGISTRYINDEX, "perilune.interrupted") != LUA_TNIL) {
    raised = PL_ERR_INTERRUPT;
    lua_pushnil(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "perilune.interrupted");
  }
  lua_pop(L, 1);
  return raised;
}

int l_raised(lua_State *L) {
  const PlStatus s = take_raised(L);
  if (lua_isboolean(L, 1)) raised = lua_toboolean(L, 1) ? PL_ERR_INTERRUPT : PL_OK;
  if (s == PL_OK) lua_pushnil(L);
  else lua_pushstring(L, l_status_name(s));
  return 1;
}

static int attempted(lua_State *L, int status, lua_KContext was) {
  const bool ok = status == LUA_OK || status == LUA_YIELD;
  const PlStatus s = status == LUA_ERRMEM ? PL_ERR_OOM : take_raised(L);
  raised = !ok && pl_must_report(s) ? s : (PlStatus)was;
  if (!ok && pl_must_report(s)) return lua_error(L);
  lua_pushboolean(L, ok);
  if (!ok) lua_insert(L, -2);
  else lua_replace(L, 1);
  return ok ? lua_gettop(L) : 2;
}

int l_attempt(lua_State *L) {
  luaL_checkany(L, 1);
  const PlStatus was = take_raised(L);
  raised = PL_OK;
  lua_pushnil(L); /* true, once it has returned */
  lua_insert(L, 1);
  return attempted(L, lua_pcallk(L, lua_gettop(L) - 2, LUA_MULTRET, 0, (lua_KContext)was, attempted), (lua_KContext)was);
}

static int raise(lua_State *L, PlStatus s, const char *text) {
  /* the script may catch it, look at its text, and do something else */
  if (PL_UNLIKELY(pl_state.trace != NULL)) pl_calls_refuse(pl_state.trace, "an error was raised in it");
  luaL_checkstack(L, 16, NULL);
  refused = refused || s == PL_ERR_TRACE;
  if (!pl_must_report(raised)) raised = s;
  l_where(L);
  size_t skip = 0;
  /* an earlier call's error, which this one's wait found: neither this function nor this module made it */
  const bool other = s == PL_ERR_DEVICE;
  if (!other && l_push_op_name(L, s, text, &skip)) {
    lua_pushstring(L, text + skip);
    lua_concat(L, 2);
  } else lua_pushstring(L, text);
  if (!other) speak(L);
  if (s != PL_ERR_INTERRUPT && !other) add_module(L);
  lua_concat(L, 2);
  return lua_error(L);
}

#define FORMAT(TEXT, FMT)                  \
  char TEXT[2048];                         \
  va_list args;                            \
  va_start(args, FMT);                     \
  vsnprintf(TEXT, sizeof TEXT, FMT, args); \
  va_end(args)

int l_error(lua_State *L, const char *fmt, ...) {
  FORMAT(text, fmt);
  return raise(L, PL_ERR_ARG, text);
}

int l_error_as(lua_State *L, PlStatus s, const char *fmt, ...) {
  FORMAT(text, fmt);
  return raise(L, s, text);
}

/* The kept error is in a user value made beforehand: keeping one allocates nothing, so it cannot raise. */
void l_errors_register(lua_State *L) {
  lua_newuserdatauv(L, 0, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
}

PlStatus l_keep_error(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &error_key);
  lua_insert(L, -2);
  lua_setiuservalue(L, -2, 1);
  lua_pop(L, 1);
  return pl_fail(PL_ERR_CALLBACK, "error in a Lua function");
}

/* Ctrl-C stops what computes and has the next Lua instruction raise: that one comes here, so that it is one error, which the
 * caller's pcall gets, and none that strikes in the middle of what cleans up after it. */
static void take_interrupt(lua_State *L) {
  if (luaL_loadbufferx(L, "", 0, "=interrupt", "t") == LUA_OK) (void)lua_pcall(L, 0, 0, 0);
}

int l_fail(lua_State *L, PlStatus s) {
  luaL_checkstack(L, 8, NULL);
  if (s == PL_ERR_INTERRUPT) {
    char text[512];
    int top = lua_gettop(L);
    snprintf(text, sizeof text, "%s", pl_message());
    take_interrupt(L);
    lua_settop(L, top);
    return raise(L, s, text);
  }
  if (s == PL_ERR_CALLBACK) { /* the same object that was raised inside */
    lua_rawgetp(L, LUA_REGISTRYINDEX, &error_key);
    lua_getiuservalue(L, -1, 1);
    lua_pushnil(L);
    lua_setiuservalue(L, -3, 1);
    return lua_error(L);
  }
  return l_error_as(L, s, "%s", pl_message());
}

const char *l_status_name(PlStatus s) {
  static const char *const names[] = {"ok", "argument", "shape",    "dtype",     "index",       "memory", "state",
                                      "io", "format",   "callback", "interrupt", "unsupported", "trace",  "device"};
  return (size_t)s < sizeof names / sizeof *names ? names[s] : "error";
}

int l_failure(lua_State *L, PlStatus s) {
  lua_pushnil(L);
  lua_pushstring(L, pl_message());
  lua_pushstring(L, l_status_name(s));
  return 3;
}
