/* SPDX-License-Identifier: MIT
 * perilune.zeromq: what the Jupyter kernel needs of ZeroMQ and of the system, and Lua lacks. A module of its own, so that
 * nothing else loads libzmq and libsodium. module.c puts the parts together. */
#ifndef PL_BINDINGS_ZEROMQ_ZEROMQ_H
#define PL_BINDINGS_ZEROMQ_ZEROMQ_H

#include <stdbool.h>

#include <lauxlib.h>
#include <lua.h>

/* ZeroMQ's context. One thread owns it and ends it; services borrow it. */
typedef struct Context {
  void *zmq; /* NULL: ended */
  bool borrowed;
} Context;

void zeromq_sockets(lua_State *L); /* socket.c: metatables of contexts and sockets */
int zeromq_context(lua_State *L);
int zeromq_wait(lua_State *L);
Context *zeromq_check_context(lua_State *L, int i);
void zeromq_push_borrowed(lua_State *L, void *zmq); /* pushes a context that is another state's */
void *zeromq_check_socket(lua_State *L, int i);     /* ZeroMQ's own; raises for a closed one */
int zeromq_failure(lua_State *L, const char *what); /* pushes nil, "what: why"; returns 2 */

void zeromq_threads(lua_State *L); /* thread.c: metatable of threads */
int zeromq_service(lua_State *L);
int zeromq_heartbeat(lua_State *L);

int zeromq_capture(lua_State *L); /* stream.c */
int zeromq_release(lua_State *L);
int zeromq_input(lua_State *L);
int zeromq_read(lua_State *L);
int zeromq_write(lua_State *L);
int zeromq_flush(lua_State *L);

#endif
