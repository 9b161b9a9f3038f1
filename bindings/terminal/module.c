/* SPDX-License-Identifier: MIT
 * perilune.terminal: terminals, signals, time and files for the REPL. Only perilune's own Lua files use it. */
#include "bindings/terminal/terminal.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "bindings/command/guard.h"

/* terminal.pending() → whether more input is there already, as behind each line of a text that is pasted */
static int pending(lua_State *L) {
  struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
  lua_pushboolean(L, poll(&in, 1, 0) > 0);
  return 1;
}

int luaopen_perilune_terminal(lua_State *L) __attribute__((visibility("default")));

/* terminal.is_terminal(0 | 1 | 2) */
static int is_terminal(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
  return 1;
}

/* terminal.width() → columns of the terminal on standard output, or nil */
static int width(lua_State *L) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 0;
  lua_pushinteger(L, size.ws_col);
  return 1;
}

/* terminal.now() → seconds of a clock that only goes forward */
static int now(lua_State *L) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  lua_pushnumber(L, (lua_Number)t.tv_sec + (lua_Number)t.tv_nsec * 1e-9);
  return 1;
}

/* terminal.guard(handler, f, …) → as xpcall(f, handler, …), with Ctrl-C as an error inside f */
static int guard(lua_State *L) {
  enum { PRESSES = 3 };
  luaL_checktype(L, 1, LUA_TFUNCTION);
  luaL_checkany(L, 2);
  int status = guard_call(L, lua_gettop(L) - 2, LUA_MULTRET, 1, PRESSES, 0);
  lua_pushboolean(L, status == LUA_OK);
  lua_replace(L, 1);
  return lua_gettop(L);
}

/* terminal.die(signal): ends the process as that signal does by default. */
static int die(lua_State *L) {
  int sig = (int)luaL_checkinteger(L, 1);
  signal(sig, SIG_DFL);
  raise(sig);
  return 0;
}

int luaopen_perilune_terminal(lua_State *L) {
  static const luaL_Reg functions[] = {{"is_terminal", is_terminal},
                                       {"width", width},
                                       {"now", now},
                                       {"pending", pending},
                                       {"guard", guard},
                                       {"die", die},
                                       {"list", terminal_list},
                                       {"make_dirs", terminal_make_dirs},
                                       {"history_load", terminal_history_load},
                                       {"history_append", terminal_history_append},
#ifdef PL_HAVE_EDIT
                                       {"editor", terminal_editor},
#endif
                                       {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
