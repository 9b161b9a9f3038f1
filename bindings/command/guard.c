/* SPDX-License-Identifier: MIT
 * Ctrl-C during a call into Lua; see guard.h. */
#include "bindings/command/guard.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <lauxlib.h>

#include "bindings/command/coroutines.h"

/* Globals, because a signal handler gets no argument. */
static lua_State *volatile running;
static volatile sig_atomic_t presses_left;
static atomic_int pressed; /* never set back: another thread may compare what it saw, whatever calls began since */
static bool (*interrupt_kernels)(bool on);
static RunningCoroutine *coroutine; /* NULL: nobody tracks coroutines */

void *guard_slot(void) { return (void *)&interrupt_kernels; }

int guard_interrupted(void) { return atomic_load(&pressed); }

static void tell_kernels(bool on) {
  if (interrupt_kernels) interrupt_kernels(on);
}

/* Pushes "file:line: " of the script, wherever in perilune's own files its call is; "" where there is no script. */
static void push_place(lua_State *L) {
  lua_Debug ar;
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.home");
  const char *home = lua_tostring(L, -1);
  size_t n = home ? strlen(home) : 0;
  const char *place = NULL;
  for (int level = 0; place == NULL && lua_getstack(L, level, &ar) && lua_getinfo(L, "Sl", &ar); level++)
    if (ar.currentline > 0 && !(n > 0 && ar.source[0] == '@' && strncmp(ar.source + 1, home, n) == 0))
      place = lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
  if (place == NULL) lua_pushliteral(L, "");
  lua_remove(L, -2);
}

static void interrupt_hook(lua_State *L, lua_Debug *at) {
  (void)at;
  if (interrupt_kernels && interrupt_kernels(true)) return; /* asked again at the next instruction */
  lua_sethook(L, NULL, 0, 0);
  if (coroutine) {
    coroutine->pending = 0;
    coroutine->raised = 1;
  }
  tell_kernels(false);
  lua_pushboolean(L, true);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.interrupted"); /* for core.raised */
  push_place(L);
  lua_pushliteral(L, "interrupted!");
  lua_concat(L, 2);
  lua_error(L);
}

/* The next instruction of the script raises; kernels stop at their next poll. */
static void on_interrupt(int sig) {
  atomic_fetch_add(&pressed, 1);
  if (--presses_left <= 0) signal(sig, SIG_DFL);
  tell_kernels(true);
  lua_State *at = running;
  if (coroutine) {
    if (coroutine->at) at = coroutine->at;
    coroutine->hook = interrupt_hook;
    coroutine->pending = 1;
  }
  lua_sethook(at, interrupt_hook, INTERRUPT_MASK, 1);
}

/* Where the engine was loaded before this module, loader/loader.c left its switch in the registry; the command leaves there
 * which coroutine runs. */
static void find_switch(lua_State *L) {
  if (!coroutine) {
    lua_getfield(L, LUA_REGISTRYINDEX, "perilune.coroutine");
    coroutine = lua_touserdata(L, -1);
    lua_pop(L, 1);
  }
  if (interrupt_kernels) return;
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.interrupt");
  void *address = lua_touserdata(L, -1);
  if (address) memcpy(&interrupt_kernels, &address, sizeof address);
  lua_pop(L, 1);
}

int guard_call(lua_State *L, int nargs, int nresults, int handler, int presses, int flags) {
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = flags}, before;
  lua_State *outer = running, *outer_coroutine = NULL;
  handler = lua_absindex(L, handler);
  find_switch(L);
  running = L;
  if (coroutine) {
    outer_coroutine = coroutine->at;
    coroutine->at = NULL;
  }
  presses_left = presses;
  sigaction(SIGINT, &action, &before);
  int status = lua_pcall(L, nargs, nresults, handler);
  sigaction(SIGINT, &before, NULL);
  running = outer;
  if (coroutine) {
    coroutine->at = outer_coroutine;
    coroutine->pending = coroutine->raised = 0;
  }
  lua_sethook(L, NULL, 0, 0);
  tell_kernels(false);
  return status;
}

/* The level of the first frame that is the script's: for a message that names a place of the script, the frames inside
 * perilune before it are noise. */
static int first_level(lua_State *L, const char *message) {
  lua_Debug ar;
  int level = 1;
  const char *home = lua_getfield(L, LUA_REGISTRYINDEX, "perilune.home") == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
  size_t n = home ? strlen(home) : 0;
  if (n > 0 && strncmp(message, home, n) != 0)
    for (int k = 1; lua_getstack(L, k, &ar) && lua_getinfo(L, "Sl", &ar); k++) {
      if (ar.currentline < 0 || (*ar.source && strncmp(ar.source + 1, home, n) == 0)) continue;
      char place[LUA_IDSIZE + 16];
      snprintf(place, sizeof place, "%s:%d:", ar.short_src, ar.currentline);
      if (strncmp(message, place, strlen(place)) == 0) level = k;
      break;
    }
  lua_pop(L, 1);
  return level;
}

void guard_hint(lua_State *L) {
  const char *message = lua_tostring(L, -1);
  const bool syntax = strstr(message, " near ") != NULL;
  if (!lua_checkstack(L, 8)) return;
  int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  bool loaded = syntax || lua_getfield(L, -1, "perilune.core") != LUA_TNIL;
  lua_getglobal(L, "require");
  lua_pushliteral(L, "perilune.help.hints");
  if (loaded && lua_pcall(L, 1, 1, 0) == LUA_OK && lua_istable(L, -1) && lua_getfield(L, -1, "told") == LUA_TFUNCTION) {
    lua_pushvalue(L, top);
    if (lua_pcall(L, 1, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING) lua_replace(L, top);
  }
  lua_settop(L, top);
}

int guard_traceback(lua_State *L) {
  if (lua_type(L, 1) != LUA_TSTRING) {
    if (!luaL_callmeta(L, 1, "__tostring") || lua_type(L, -1) != LUA_TSTRING)
      lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  } else {
    lua_pushvalue(L, 1);
  }
  guard_hint(L);
  luaL_traceback(L, L, lua_tostring(L, -1), first_level(L, lua_tostring(L, -1)));
  return 1;
}
