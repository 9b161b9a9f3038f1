/* SPDX-License-Identifier: MIT
 * Which coroutine runs, for Ctrl-C: Lua's debug hooks belong to one thread of a state, and a signal handler has to
 * set the one that runs. */
#ifndef PL_BINDINGS_COMMAND_COROUTINES_H
#define PL_BINDINGS_COMMAND_COROUTINES_H

#include <signal.h>

#include <lua.h>

/* Shared by the perilune command and its modules through the registry (light userdata "perilune.coroutine"). */
typedef struct RunningCoroutine {
  lua_State *volatile at;        /* NULL: the thread that guard_call was entered with */
  volatile sig_atomic_t pending; /* a hook was set that has not raised yet */
  volatile sig_atomic_t raised;  /* the error of an interrupt is on its way */
  lua_Hook hook;                 /* that hook */
} RunningCoroutine;

/* The events on which an interrupting hook fires: at the next instruction. Not at calls and returns, which are those of what
 * closes scopes, too: it would not begin, and the scope stay open. */
enum { INTERRUPT_MASK = LUA_MASKCOUNT };

/* Replaces coroutine.resume and coroutine.wrap by ones that keep track; call after luaL_openlibs. */
void coroutines_track(lua_State *L);

#endif
