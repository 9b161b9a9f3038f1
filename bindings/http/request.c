/* SPDX-License-Identifier: MIT
 * A request as a Lua object: what it says, and its answer. Nothing here waits for a socket; request:room waits for news. */
#include <stdio.h>
#include <string.h>

#include "bindings/http/http.h"

static const char TYPE[] = "perilune.http.request";

int http_new_request_box(lua_State *L) {
  HttpRequest **box = lua_newuserdatauv(L, sizeof(HttpRequest *), 0);
  *box = NULL;
  luaL_setmetatable(L, TYPE);
  return 1;
}

void http_fill_request_box(lua_State *L, HttpRequest *r) { *(HttpRequest **)lua_touserdata(L, -1) = r; }

static HttpRequest *self(lua_State *L) {
  HttpRequest **box = luaL_checkudata(L, 1, TYPE);
  if (!*box) luaL_error(L, "http: the request is released");
  return *box;
}

static int closed(lua_State *L) {
  lua_pushnil(L);
  lua_pushliteral(L, "closed");
  return 2;
}

/* ---- what it says ------------------------------------------------------------------------------------ */

static int method(lua_State *L) {
  lua_pushstring(L, self(L)->method);
  return 1;
}

static int path(lua_State *L) {
  const HttpRequest *r = self(L);
  lua_pushlstring(L, r->path, r->npath);
  return 1;
}

static int peer(lua_State *L) {
  lua_pushstring(L, self(L)->peer);
  return 1;
}

static int body(lua_State *L) {
  const HttpRequest *r = self(L);
  lua_pushlstring(L, r->body.data ? r->body.data : "", r->body.to);
  return 1;
}

/* request:header(name) → its first value, or nil; the name in any letters */
static int header(lua_State *L) {
  const HttpRequest *r = self(L);
  char small[64];
  const char *name = luaL_checkstring(L, 2);
  size_t n = strlen(name);
  if (n >= sizeof small) return 0;
  for (size_t i = 0; i <= n; i++) small[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + ('a' - 'A') : name[i]);
  const char *value = http_header(r, small);
  if (!value) return 0;
  lua_pushstring(L, value);
  return 1;
}

/* request:headers() → name → value; of several with one name, joined by commas */
static int headers(lua_State *L) {
  const HttpRequest *r = self(L);
  const char *at = r->headers.data, *end = at ? at + r->headers.to : NULL;
  lua_newtable(L);
  while (at < end) {
    const char *value = at + strlen(at) + 1;
    if (lua_getfield(L, -1, at) == LUA_TSTRING) lua_pushfstring(L, "%s, %s", lua_tostring(L, -1), value);
    else lua_pushstring(L, value);
    lua_setfield(L, -3, at);
    lua_pop(L, 1);
    at = value + strlen(value) + 1;
  }
  return 1;
}

/* Pushes n bytes decoded; a malformed figure stays as it is written. */
static void push_decoded(lua_State *L, const char *text, size_t n) {
  luaL_Buffer b;
  char *out = luaL_buffinitsize(L, &b, n + 1);
  ptrdiff_t size = http_decode(text, n, true, out);
  if (size < 0) memcpy(out, text, n);
  luaL_pushresultsize(&b, size < 0 ? n : (size_t)size);
}

/* request:query() → name → value of what stands behind the ?; of several with one name, the first */
static int query(lua_State *L) {
  const HttpRequest *r = self(L);
  lua_newtable(L);
  const char *at = strchr(r->target, '?');
  while (at) {
    const char *from = at + 1;
    at = strchr(from, '&');
    const size_t n = at ? (size_t)(at - from) : strlen(from);
    const char *equal = memchr(from, '=', n);
    const size_t nname = equal ? (size_t)(equal - from) : n;
    if (n == 0) continue;
    push_decoded(L, from, nname);
    lua_pushvalue(L, -1);
    if (lua_rawget(L, -3) == LUA_TNIL) {
      lua_pop(L, 1);
      if (equal) push_decoded(L, equal + 1, n - nname - 1);
      else lua_pushliteral(L, "");
      lua_rawset(L, -3);
    } else {
      lua_pop(L, 2);
    }
  }
  return 1;
}

/* ---- its answer --------------------------------------------------------------------------------------- */

/* The table of headers at 3 into out: name → value. Raises where one would break the answer's form. */
static void read_headers(lua_State *L) {
  if (lua_isnoneornil(L, 3)) return;
  luaL_checktype(L, 3, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, 3); lua_pop(L, 1)) {
    size_t n = 0;
    if (lua_type(L, -2) != LUA_TSTRING || !http_is_token(lua_tostring(L, -2)))
      luaL_error(L, "http: the name of a header must be a word, got %s", luaL_tolstring(L, -2, NULL));
    lua_pushvalue(L, -1);
    const char *value = lua_tolstring(L, -1, &n);
    if (!value || strlen(value) != n || !http_is_value(value, n))
      luaL_error(L, "http: the header %s must be a text of one line", lua_tostring(L, -3));
    lua_pop(L, 1);
  }
}

/* Lock held. */
static bool keep_headers(lua_State *L, HttpRequest *r) {
  if (lua_isnoneornil(L, 3)) return true;
  for (lua_pushnil(L); lua_next(L, 3); lua_pop(L, 1)) {
    char figures[48];
    size_t nname = 0, n = 0;
    const char *name = lua_tolstring(L, -2, &nname), *value = figures;
    if (lua_type(L, -1) == LUA_TSTRING) value = lua_tolstring(L, -1, &n);
    else if (lua_isinteger(L, -1)) n = (size_t)snprintf(figures, sizeof figures, LUA_INTEGER_FMT, lua_tointeger(L, -1));
    else n = (size_t)snprintf(figures, sizeof figures, LUA_NUMBER_FMT, lua_tonumber(L, -1));
    if (!http_append(&r->answer_headers, name, nname + 1) || !http_append(&r->answer_headers, value, n) ||
        !http_append(&r->answer_headers, "", 1)) {
      lua_pop(L, 2);
      return false;
    }
  }
  return true;
}

/* Status and headers at 2 and 3, and bytes that are there already. */
static int begin_with(lua_State *L, bool whole) {
  HttpRequest *r = self(L);
  size_t n = 0;
  const lua_Integer status = luaL_checkinteger(L, 2);
  const char *bytes = whole ? luaL_optlstring(L, 4, "", &n) : "";
  if (status < 200 || status > 599) return luaL_error(L, "http: the status must be 200 to 599, got %I", (LUAI_UACINT)status);
  if ((status == 204 || status == 304) && (!whole || n > 0)) return luaL_error(L, "http: an answer %d has no body", (int)status);
  read_headers(L);
  pthread_mutex_lock(&r->server->lock);
  const bool again = r->begun, gone = r->gone;
  bool fits = true;
  if (!again && !gone) {
    fits = keep_headers(L, r) && http_append(&r->answer, bytes, n);
    r->status = (int)status;
    r->begun = fits;
    r->whole = r->finished = whole;
    http_resume(r);
  }
  pthread_mutex_unlock(&r->server->lock);
  if (again) return luaL_error(L, "http: the request is answered already");
  if (gone) return closed(L);
  if (!fits) return luaL_error(L, "http: out of memory");
  lua_pushboolean(L, 1);
  return 1;
}

static int respond(lua_State *L) { return begin_with(L, true); }
static int begin(lua_State *L) { return begin_with(L, false); }

static int push(lua_State *L) {
  HttpRequest *r = self(L);
  size_t n;
  const char *bytes = luaL_checklstring(L, 2, &n);
  pthread_mutex_lock(&r->server->lock);
  const bool ready = r->begun && !r->finished, gone = r->gone;
  const bool room = r->answer.to - r->answer.from < r->server->limits.buffer;
  bool fits = true;
  if (ready && !gone && room && n > 0) {
    fits = http_append(&r->answer, bytes, n);
    http_resume(r);
  }
  pthread_mutex_unlock(&r->server->lock);
  if (!ready) return luaL_error(L, r->begun ? "http: the answer is finished" : "http: push comes after begin");
  if (gone) return closed(L);
  if (!fits) return luaL_error(L, "http: out of memory");
  lua_pushboolean(L, room);
  return 1;
}

static int room(lua_State *L) {
  HttpRequest *r = self(L);
  const double until = http_now() + luaL_optnumber(L, 2, 0);
  for (;;) {
    pthread_mutex_lock(&r->server->lock);
    const bool gone = r->gone, is = r->answer.to - r->answer.from < r->server->limits.buffer;
    pthread_mutex_unlock(&r->server->lock);
    if (gone) return closed(L);
    const double left = until - http_now();
    lua_pushboolean(L, is);
    if (is || left <= 0 || !http_wait(r->server, left)) return 1;
    lua_pop(L, 1);
  }
}

static void end(HttpRequest *r, bool broken) {
  if (!r->begun || r->finished) return;
  r->finished = true;
  r->broken = broken;
  http_resume(r);
}

static int finish(lua_State *L) {
  HttpRequest *r = self(L);
  pthread_mutex_lock(&r->server->lock);
  const bool begun = r->begun, gone = r->gone;
  end(r, lua_toboolean(L, 2));
  pthread_mutex_unlock(&r->server->lock);
  if (!begun) return luaL_error(L, "http: finish comes after begin");
  if (gone) return closed(L);
  lua_pushboolean(L, 1);
  return 1;
}

static int is_open(lua_State *L) {
  HttpRequest *r = self(L);
  pthread_mutex_lock(&r->server->lock);
  const bool gone = r->gone;
  pthread_mutex_unlock(&r->server->lock);
  lua_pushboolean(L, !gone);
  return 1;
}

static int collect(lua_State *L) {
  HttpRequest **box = luaL_checkudata(L, 1, TYPE), *r = *box;
  *box = NULL;
  if (!r) return 0;
  pthread_mutex_lock(&r->server->lock);
  end(r, true);
  if (!r->begun && !r->gone) {
    r->status = 500;
    r->begun = r->whole = r->finished = true;
    http_resume(r);
  }
  pthread_mutex_unlock(&r->server->lock);
  http_request_release(r);
  return 0;
}

int http_request_class(lua_State *L) {
  static const luaL_Reg methods[] = {{"method", method},   {"path", path},    {"query", query},     {"header", header},
                                     {"headers", headers}, {"body", body},    {"peer", peer},       {"respond", respond},
                                     {"begin", begin},     {"push", push},    {"room", room},       {"finish", finish},
                                     {"is_open", is_open}, {"__gc", collect}, {"__close", collect}, {NULL, NULL}};
  luaL_newmetatable(L, TYPE);
  luaL_setfuncs(L, methods, 0);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  return 1;
}
