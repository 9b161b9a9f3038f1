/* SPDX-License-Identifier: MIT
 * Threads beside the one that runs cells: the heartbeat, which answers whatever happens, and a service, a Lua state of its own
 * that talks to the front ends. Signals are left to the main thread. */
#include "bindings/zeromq/zeromq.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <lualib.h>
#include <zmq.h>

typedef struct Thread {
  pthread_t id;
  bool running;
  void *zmq;         /* the context */
  void *echo;        /* the heartbeat's socket */
  char *words[4];    /* of a service: its module, its argument, package.path, package.cpath */
  char failure[400]; /* what ended a service, or "" */
} Thread;

enum { MODULE, ARGUMENT, PATH, CPATH };
static const char thread_name[] = "zeromq.thread";

static Thread *new_thread(lua_State *L, void *zmq) {
  Thread *t = lua_newuserdatauv(L, sizeof *t, 1);
  *t = (Thread){.zmq = zmq};
  luaL_setmetatable(L, thread_name);
  lua_pushvalue(L, 1); /* the context */
  lua_setiuservalue(L, -2, 1);
  return t;
}

static int start(lua_State *L, Thread *t, void *(*body)(void *)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = pthread_create(&t->id, NULL, body, t);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  t->running = code == 0;
  errno = code;
  return code == 0 ? 1 : zeromq_failure(L, "thread");
}

static void forget(Thread *t) {
  for (size_t i = 0; i < sizeof t->words / sizeof *t->words; i++) {
    free(t->words[i]);
    t->words[i] = NULL;
  }
}

/* thread:join() → true; or nil and what ended it */
static int thread_join(lua_State *L) {
  Thread *t = luaL_checkudata(L, 1, thread_name);
  if (t->running) pthread_join(t->id, NULL);
  t->running = false;
  forget(t);
  if (*t->failure) {
    lua_pushnil(L);
    lua_pushstring(L, t->failure);
    return 2;
  }
  lua_pushboolean(L, 1);
  return 1;
}

/* The state ends: whatever the thread waits for fails. */
static int thread_gc(lua_State *L) {
  Thread *t = luaL_checkudata(L, 1, thread_name);
  if (t->running) zmq_ctx_shutdown(t->zmq);
  return thread_join(L);
}

/* ---- the heartbeat --------------------------------------------------------------------------------------------------- */

static void *beat(void *argument) {
  Thread *t = argument;
  zmq_proxy(t->echo, t->echo, NULL); /* until the context ends */
  zmq_close(t->echo);
  return NULL;
}

/* zeromq.heartbeat(context, address) → thread that sends back what it gets; or nil, message */
int zeromq_heartbeat(lua_State *L) {
  Context *c = zeromq_check_context(L, 1);
  const char *address = luaL_checkstring(L, 2);
  Thread *t = new_thread(L, c->zmq);
  int linger = 0;
  t->echo = zmq_socket(c->zmq, ZMQ_ROUTER);
  if (!t->echo) return zeromq_failure(L, address);
  zmq_setsockopt(t->echo, ZMQ_LINGER, &linger, sizeof linger);
  int failed = zmq_bind(t->echo, address) != 0 ? zeromq_failure(L, address) : 0;
  int results = failed ? failed : start(L, t, beat);
  if (!t->running) zmq_close(t->echo);
  return results;
}

/* ---- a service ------------------------------------------------------------------------------------------------------- */

static int service_body(lua_State *L) {
  Thread *t = lua_touserdata(L, 1);
  luaL_openlibs(L);
  lua_getglobal(L, "package");
  lua_pushstring(L, t->words[PATH]);
  lua_setfield(L, -2, "path");
  lua_pushstring(L, t->words[CPATH]);
  lua_setfield(L, -2, "cpath");
  lua_getglobal(L, "require");
  lua_pushstring(L, "perilune.zeromq"); /* the metatables */
  lua_call(L, 1, 0);
  lua_getglobal(L, "require");
  lua_pushstring(L, t->words[MODULE]);
  lua_call(L, 1, 1);
  zeromq_push_borrowed(L, t->zmq);
  lua_pushstring(L, t->words[ARGUMENT]);
  lua_call(L, 2, 0);
  return 0;
}

static int with_traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

static void *serve(void *argument) {
  Thread *t = argument;
  lua_State *L = luaL_newstate();
  if (!L) {
    strcpy(t->failure, "out of memory");
    return NULL;
  }
  lua_pushcfunction(L, with_traceback);
  lua_pushcfunction(L, service_body);
  lua_pushlightuserdata(L, t);
  if (lua_pcall(L, 1, 0, 1) != LUA_OK) {
    const char *message = lua_tostring(L, -1);
    strncpy(t->failure, message ? message : "out of memory", sizeof t->failure - 1);
  }
  lua_close(L);
  return NULL;
}

/* zeromq.service(context, module, argument) → thread that runs require(module)(context, argument) in a Lua state of its own;
 * or nil, message */
int zeromq_service(lua_State *L) {
  Context *c = zeromq_check_context(L, 1);
  const char *words[] = {luaL_checkstring(L, 2), luaL_checkstring(L, 3), NULL, NULL};
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  lua_getfield(L, -2, "cpath");
  words[PATH] = luaL_checkstring(L, -2);
  words[CPATH] = luaL_checkstring(L, -1);
  Thread *t = new_thread(L, c->zmq);
  for (int i = 0; i < 4; i++)
    if (!(t->words[i] = strdup(words[i]))) return zeromq_failure(L, "thread");
  return start(L, t, serve);
}

void zeromq_threads(lua_State *L) {
  if (luaL_newmetatable(L, thread_name)) {
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, thread_join);
    lua_setfield(L, -2, "join");
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, thread_gc);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
}
