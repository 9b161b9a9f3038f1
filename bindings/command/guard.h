/* SPDX-License-Identifier: MIT
 * Calls that Ctrl-C can stop: the script's next instruction raises "interrupted!", running kernels stop at their
 * next poll. Used by the perilune command and by the modules terminal and zeromq; each has its own copy of guard.c. */
#ifndef PL_BINDINGS_COMMAND_GUARD_H
#define PL_BINDINGS_COMMAND_GUARD_H

#include <lua.h>

/* Where loader/loader.c may put the engine's switch once it is loaded (registry "perilune.interrupt.slot"). */
void *guard_slot(void);

/* lua_pcall with message handler at stack index `handler`, stoppable by `presses` Ctrl-C; one more than these, all
 * unanswered, ends the process. flags: of sigaction, 0 or SA_RESTART. Restores what SIGINT did before. */
int guard_call(lua_State *L, int nargs, int nresults, int handler, int presses, int flags);

/* How often did Ctrl-C come during guard_calls, all of them? Any thread may ask. */
int guard_interrupted(void);

/* The message on top, a string, with a hint behind it where Lua names a fault and perilune knows what is meant. */
void guard_hint(lua_State *L);

/* A message handler: the message with a traceback. */
int guard_traceback(lua_State *L);

#endif
