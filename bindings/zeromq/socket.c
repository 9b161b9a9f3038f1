/* SPDX-License-Identifier: MIT
 * ZeroMQ's contexts and sockets as Lua objects. A message is a list of strings. */
#include "bindings/zeromq/zeromq.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include <zmq.h>

/* The frame that is being taken is kept here, so that a Lua error leaks nothing. */
typedef struct Socket {
  void *zmq; /* NULL: closed */
  zmq_msg_t frame;
  bool holds;
} Socket;

enum { LINGER_MS = 1000, MAX_POLLED = 16 };
static const int64_t MAX_MESSAGE = 256 << 20; /* bytes a frame; who sends more is disconnected */
static const char context_name[] = "zeromq.context", socket_name[] = "zeromq.socket";

int zeromq_failure(lua_State *L, const char *what) {
  int code = errno;
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", what, zmq_strerror(code));
  return 2;
}

/* ---- contexts ----------------------------------------------------------------------------------------------------- */

Context *zeromq_check_context(lua_State *L, int i) {
  Context *c = luaL_checkudata(L, i, context_name);
  luaL_argcheck(L, c->zmq, i, "the context has ended");
  return c;
}

static Context *new_context(lua_State *L) {
  Context *c = lua_newuserdatauv(L, sizeof *c, 0);
  *c = (Context){.borrowed = true};
  luaL_setmetatable(L, context_name);
  return c;
}

void zeromq_push_borrowed(lua_State *L, void *zmq) { new_context(L)->zmq = zmq; }

/* zeromq.context() → a context */
int zeromq_context(lua_State *L) {
  Context *c = new_context(L);
  c->zmq = zmq_ctx_new();
  if (!c->zmq) return zeromq_failure(L, "zeromq.context");
  c->borrowed = false;
  return 1;
}

/* context:shutdown(): every call with one of its sockets fails from now on, so threads that wait there go on. */
static int context_shutdown(lua_State *L) {
  Context *c = luaL_checkudata(L, 1, context_name);
  if (c->zmq) zmq_ctx_shutdown(c->zmq);
  return 0;
}

/* context:close(): waits until all sockets are closed and have sent what they had, at most their linger time. */
static int context_close(lua_State *L) {
  Context *c = luaL_checkudata(L, 1, context_name);
  while (c->zmq && !c->borrowed && zmq_ctx_term(c->zmq) != 0 && errno == EINTR) continue;
  c->zmq = NULL;
  return 0;
}

static bool set_int(void *socket, int option, int value) { return zmq_setsockopt(socket, option, &value, sizeof value) == 0; }

/* context:socket(kind, name) → a socket, under that name for routers; or nil, message */
static int context_socket(lua_State *L) {
  static const char *const kinds[] = {"pair", "sub", "xpub", "router", "dealer", "req", NULL};
  static const int types[] = {ZMQ_PAIR, ZMQ_SUB, ZMQ_XPUB, ZMQ_ROUTER, ZMQ_DEALER, ZMQ_REQ};
  Context *c = zeromq_check_context(L, 1);
  int type = types[luaL_checkoption(L, 2, NULL, kinds)];
  size_t n;
  const char *name = luaL_optlstring(L, 3, "", &n);
  Socket *s = lua_newuserdatauv(L, sizeof *s, 1);
  *s = (Socket){.zmq = NULL};
  luaL_setmetatable(L, socket_name);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1); /* the context stays as long */
  s->zmq = zmq_socket(c->zmq, type);
  if (!s->zmq) return zeromq_failure(L, "socket");
  set_int(s->zmq, ZMQ_LINGER, LINGER_MS);
  set_int(s->zmq, ZMQ_SNDHWM, 0); /* a status that is dropped leaves a front end waiting for ever */
  set_int(s->zmq, ZMQ_RCVHWM, 0);
  zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &MAX_MESSAGE, sizeof MAX_MESSAGE);
  if (n > 0) zmq_setsockopt(s->zmq, ZMQ_ROUTING_ID, name, n);
  if (type == ZMQ_ROUTER) set_int(s->zmq, ZMQ_ROUTER_HANDOVER, 1); /* who connects anew under the same name goes on */
  if (type == ZMQ_XPUB) set_int(s->zmq, ZMQ_XPUB_VERBOSE, 1);      /* tells of every subscription */
  if (type == ZMQ_SUB) zmq_setsockopt(s->zmq, ZMQ_SUBSCRIBE, "", 0);
  return 1;
}

/* ---- sockets ------------------------------------------------------------------------------------------------------- */

static Socket *check_socket(lua_State *L, int i) {
  Socket *s = luaL_checkudata(L, i, socket_name);
  luaL_argcheck(L, s->zmq, i, "the socket is closed");
  return s;
}

void *zeromq_check_socket(lua_State *L, int i) { return check_socket(L, i)->zmq; }

static void drop_frame(Socket *s) {
  if (s->holds) zmq_msg_close(&s->frame);
  s->holds = false;
}

/* socket:bind(address) → true; or nil, message */
static int socket_bind(lua_State *L) {
  const char *address = luaL_checkstring(L, 2);
  if (zmq_bind(check_socket(L, 1)->zmq, address) != 0) return zeromq_failure(L, address);
  lua_pushboolean(L, 1);
  return 1;
}

/* socket:connect(address) → true; or nil, message */
static int socket_connect(lua_State *L) {
  const char *address = luaL_checkstring(L, 2);
  if (zmq_connect(check_socket(L, 1)->zmq, address) != 0) return zeromq_failure(L, address);
  lua_pushboolean(L, 1);
  return 1;
}

/* socket:send(list of strings) → true; or nil, message */
static int socket_send(lua_State *L) {
  Socket *s = check_socket(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_Integer n = luaL_len(L, 2);
  luaL_argcheck(L, n > 0, 2, "no frames");
  for (lua_Integer i = 1; i <= n; i++)
    if (lua_rawgeti(L, 2, i) != LUA_TSTRING) return luaL_error(L, "frame %d is no string", (int)i);
    else lua_pop(L, 1);
  for (lua_Integer i = 1; i <= n; i++) {
    size_t size;
    int sent;
    lua_rawgeti(L, 2, i);
    const char *text = lua_tolstring(L, -1, &size);
    do sent = zmq_send(s->zmq, text, size, i < n ? ZMQ_SNDMORE : 0);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) return zeromq_failure(L, "send");
    lua_pop(L, 1);
  }
  lua_pushboolean(L, 1);
  return 1;
}

/* socket:receive(wait = true) → list of strings; or nil, "nothing" (when it does not wait), "interrupted" or a message */
static int socket_receive(lua_State *L) {
  Socket *s = check_socket(L, 1);
  int flags = lua_isnone(L, 2) || lua_toboolean(L, 2) ? 0 : ZMQ_DONTWAIT, more = 1;
  lua_newtable(L);
  for (lua_Integer i = 1; more; i++) {
    drop_frame(s);
    zmq_msg_init(&s->frame);
    s->holds = true;
    int got;
    do got = zmq_msg_recv(&s->frame, s->zmq, flags);
    while (got < 0 && errno == EINTR && i > 1); /* the frames of a message come together */
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) return zeromq_failure(L, "receive");
      lua_pushnil(L);
      lua_pushstring(L, errno == EAGAIN ? "nothing" : "interrupted");
      return 2;
    }
    lua_pushlstring(L, zmq_msg_data(&s->frame), zmq_msg_size(&s->frame));
    lua_rawseti(L, -2, i);
    more = zmq_msg_more(&s->frame);
  }
  drop_frame(s);
  return 1;
}

/* socket:close() */
static int socket_close(lua_State *L) {
  Socket *s = luaL_checkudata(L, 1, socket_name);
  drop_frame(s);
  if (s->zmq) zmq_close(s->zmq);
  s->zmq = NULL;
  return 0;
}

/* zeromq.wait(list of sockets and file descriptors, milliseconds) → list of booleans: which can be read */
int zeromq_wait(lua_State *L) {
  zmq_pollitem_t items[MAX_POLLED];
  luaL_checktype(L, 1, LUA_TTABLE);
  int n = (int)luaL_len(L, 1);
  long ms = (long)luaL_checkinteger(L, 2);
  luaL_argcheck(L, n <= MAX_POLLED, 1, "too many");
  for (int i = 0; i < n; i++) {
    items[i] = (zmq_pollitem_t){.events = ZMQ_POLLIN};
    if (lua_rawgeti(L, 1, i + 1) == LUA_TNUMBER) items[i].fd = (int)lua_tointeger(L, -1);
    else items[i].socket = check_socket(L, -1)->zmq;
    lua_pop(L, 1);
  }
  int ready = zmq_poll(items, n, ms);
  if (ready < 0 && errno != EINTR) return zeromq_failure(L, "wait");
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushboolean(L, ready > 0 && items[i].revents != 0);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static void metatable(lua_State *L, const char *name, const luaL_Reg *methods, lua_CFunction close) {
  if (luaL_newmetatable(L, name)) {
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, close);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
}

void zeromq_sockets(lua_State *L) {
  static const luaL_Reg of_context[] = {{"socket", context_socket}, {"shutdown", context_shutdown}, {"close", context_close}, {NULL, NULL}};
  static const luaL_Reg of_socket[] = {{"bind", socket_bind},       {"connect", socket_connect}, {"send", socket_send},
                                       {"receive", socket_receive}, {"close", socket_close},     {NULL, NULL}};
  metatable(L, context_name, of_context, context_close);
  metatable(L, socket_name, of_socket, socket_close);
}
