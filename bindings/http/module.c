/* SPDX-License-Identifier: MIT
 * perilune.httpd, and the server as a Lua object; http.h says what there is. */
#include <string.h>

#include "bindings/http/http.h"

static const char TYPE[] = "perilune.http.server";
enum { MAX_HOSTS = 64 };

int luaopen_perilune_httpd(lua_State *L) __attribute__((visibility("default")));

static HttpServer *self(lua_State *L) {
  HttpServer **box = luaL_checkudata(L, 1, TYPE);
  if (!*box) luaL_error(L, "http: the server is closed");
  return *box;
}

/* The field of the table at 1, within bounds; def where it is absent. */
static double limit(lua_State *L, const char *name, double def, double least, double most) {
  double v = def;
  if (lua_getfield(L, 1, name) != LUA_TNIL) {
    v = luaL_checknumber(L, -1);
    if (!(v >= least && v <= most)) luaL_error(L, "http: %s must be from %f to %f, got %f", name, least, most, v);
  }
  lua_pop(L, 1);
  return v;
}

static HttpLimits read_limits(lua_State *L) {
  const double size = (double)(1 << 30), time = 1e6;
  return (HttpLimits){
      .connections = (int)limit(L, "connections", 256, 1, 10000),
      .queue = (int)limit(L, "queue", 64, 1, 10000),
      .header = (size_t)limit(L, "header", 32 << 10, 2048, 1 << 20),
      .body = (size_t)limit(L, "body", 8 << 20, 0, size),
      .bodies = (size_t)limit(L, "bodies", 64 << 20, 0, 16 * size),
      .buffer = (size_t)limit(L, "buffer", 256 << 10, 1, size),
      .idle = limit(L, "idle", 30, 1, time),
      .read = limit(L, "read", 30, 0.01, time),
      .write = limit(L, "write", 60, 0.01, time),
  };
}

static int listen_(lua_State *L) {
  const char *hosts[MAX_HOSTS];
  int nhosts = 0;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  const HttpLimits limits = read_limits(L);
  const int port = (int)limit(L, "port", 0, 0, 65535);
  lua_getfield(L, 1, "host"); /* at 2, keeps the text alive */
  const char *host = luaL_optstring(L, 2, "127.0.0.1");
  const bool any = lua_getfield(L, 1, "hosts") != LUA_TTABLE; /* at 3, and its texts above */
  for (; !any && lua_rawgeti(L, 3, nhosts + 1) != LUA_TNIL; nhosts++) {
    if (nhosts == MAX_HOSTS - 1) return luaL_error(L, "http: at most %d hosts", MAX_HOSTS - 1);
    luaL_checkstack(L, 4, "hosts");
    hosts[nhosts] = luaL_checkstring(L, -1);
  }
  HttpServer **box = lua_newuserdatauv(L, sizeof(HttpServer *), 0);
  *box = NULL;
  luaL_setmetatable(L, TYPE);
  const char *why = "";
  *box = http_listen(host, port, &limits, any ? NULL : hosts, nhosts, &why);
  if (*box) return 1;
  lua_pushnil(L);
  lua_pushfstring(L, "%s:%d: %s", host, port, why);
  lua_pushliteral(L, "io");
  return 3;
}

static int next(lua_State *L) {
  HttpServer *s = self(L);
  const double until = http_now() + luaL_optnumber(L, 2, 0.25);
  http_new_request_box(L);
  for (;;) {
    pthread_mutex_lock(&s->lock);
    HttpRequest *r = s->first;
    if (r) {
      s->first = r->next_waiting;
      if (!s->first) s->last = NULL;
      s->waiting--;
    }
    const bool gone = r && r->gone;
    pthread_mutex_unlock(&s->lock);
    if (gone) { /* nobody waits for an answer any more */
      http_request_release(r);
      continue;
    }
    if (r) {
      http_fill_request_box(L, r);
      return 1;
    }
    const double left = until - http_now();
    if (left <= 0 || !http_wait(s, left)) return 0;
  }
}

static int address(lua_State *L) {
  const HttpServer *s = self(L);
  lua_pushstring(L, s->host);
  lua_pushinteger(L, s->port);
  return 2;
}

static int counts(lua_State *L) {
  HttpServer *s = self(L);
  pthread_mutex_lock(&s->lock);
  const struct {
    const char *name;
    int64_t n;
  } all[] = {{"connections", s->nconnections}, {"waiting", s->waiting}, {"active", s->active},
             {"refused", s->refused},          {"cut", s->cut},         {"bodies", (int64_t)s->bodies}};
  pthread_mutex_unlock(&s->lock);
  lua_newtable(L);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    lua_pushinteger(L, all[i].n);
    lua_setfield(L, -2, all[i].name);
  }
  return 1;
}

static int close_(lua_State *L) {
  HttpServer **box = luaL_checkudata(L, 1, TYPE), *s = *box;
  const double seconds = lua_isnumber(L, 2) ? lua_tonumber(L, 2) : 0;
  *box = NULL;
  if (!s) return 0;
  http_close(s, seconds);
  http_server_release(s);
  return 0;
}

int luaopen_perilune_httpd(lua_State *L) {
  static const luaL_Reg functions[] = {{"listen", listen_}, {NULL, NULL}};
  static const luaL_Reg methods[] = {{"next", next},   {"address", address}, {"counts", counts}, {"close", close_},
                                     {"__gc", close_}, {"__close", close_},  {NULL, NULL}};
  http_request_class(L);
  luaL_newmetatable(L, TYPE);
  luaL_setfuncs(L, methods, 0);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  luaL_newlib(L, functions);
  return 1;
}
