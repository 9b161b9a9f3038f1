/* SPDX-License-Identifier: MIT
 * Streams and events of GPUs from Lua, for lua/perilune/device/cuda.lua. */
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"

typedef struct CudaHandle {
  void *p;
  bool event;
} CudaHandle;

static CudaHandle *handle(lua_State *L, int at, bool event, const char *fn) {
  CudaHandle *h = luaL_testudata(L, at, event ? "perilune.cuda.Event" : "perilune.cuda.Stream");
  if (!h) l_error(L, "%s: a %s is wanted, got %s", fn, event ? "T.cuda.Event" : "T.cuda.Stream", l_typename(L, at));
  return h;
}
static int h_gc(lua_State *L) {
  CudaHandle *h = luaL_testudata(L, 1, "perilune.cuda.Event");
  if (!h) h = luaL_testudata(L, 1, "perilune.cuda.Stream");
  if (!h) return 0;
  const PlDeviceTable *t = pl_device_open();
  if (t && h->p) (h->event ? t->event_free : t->stream_free)(h->p);
  h->p = NULL;
  return 0;
}
static CudaHandle *new_handle(lua_State *L, bool event) {
  CudaHandle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->p = NULL;
  h->event = event;
  if (luaL_newmetatable(L, event ? "perilune.cuda.Event" : "perilune.cuda.Stream")) {
    lua_pushcfunction(L, h_gc);
    lua_setfield(L, -2, "__gc");
    lua_newtable(L);
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
  }
  lua_setmetatable(L, -2);
  l_note_late(L);
  return h;
}
static int d_stream(lua_State *L) {
  const PlDeviceTable *t = l_device_table(L);
  CudaHandle *h = new_handle(L, false);
  CALL(L, t->stream_new(l_check_gpu(L, 2, "Stream"), &h->p, (int)luaL_optinteger(L, 1, 0)));
  return 1;
}
static int d_event(lua_State *L) {
  const PlDeviceTable *t = l_device_table(L);
  CudaHandle *h = new_handle(L, true);
  CALL(L, t->event_new(&h->p, lua_toboolean(L, 1)));
  return 1;
}
/* device.methods("Stream" | "Event") → the table that their objects look methods up in */
static int d_methods(lua_State *L) {
  bool event = strcmp(luaL_checkstring(L, 1), "Event") == 0;
  (void)new_handle(L, event);
  lua_getmetatable(L, -1);
  lua_getfield(L, -1, "__index");
  return 1;
}
/* The stream at `at`, NULL for the compute stream of the current GPU; *gpu: whose it is. */
static void *stream_arg(lua_State *L, int at, const char *fn, int *gpu) {
  *gpu = pl_state.gpu;
  if (lua_isnoneornil(L, at)) return NULL;
  void *s = handle(L, at, false, fn)->p;
  *gpu = l_device_table(L)->stream_gpu(s);
  return s;
}
/* device.on_stream(stream, f, …): f(…) with that stream as the current one, and its GPU */
static int d_on_stream(lua_State *L) {
  const PlDeviceTable *t = l_device_table(L);
  int gpu;
  void *now = stream_arg(L, 1, "stream", &gpu), *was = t->stream_get(gpu);
  const uint8_t gpu_was = pl_state.gpu;
  luaL_checktype(L, 2, LUA_TFUNCTION);
  int top = lua_gettop(L);
  t->stream_set(gpu, now);
  pl_state.gpu = (uint8_t)gpu;
  int bad = lua_pcall(L, top - 2, LUA_MULTRET, 0);
  pl_state.gpu = gpu_was;
  t->stream_set(gpu, was);
  if (bad) return lua_error(L);
  return lua_gettop(L) - 1;
}
static int d_stream_synchronize(lua_State *L) {
  int gpu;
  void *s = stream_arg(L, 1, "synchronize", &gpu);
  CALL(L, l_device_table(L)->stream_synchronize(gpu, s));
  return 0;
}
static int d_stream_query(lua_State *L) {
  bool done = false;
  int gpu;
  void *s = stream_arg(L, 1, "query", &gpu);
  CALL(L, l_device_table(L)->stream_query(gpu, s, &done));
  lua_pushboolean(L, done);
  return 1;
}
static int d_stream_wait(lua_State *L) {
  int gpu;
  void *s = stream_arg(L, 1, "wait_event", &gpu);
  CALL(L, l_device_table(L)->stream_wait(gpu, s, handle(L, 2, true, "wait_event")->p));
  return 0;
}
/* device.stream_gpu(stream) → the number of its GPU */
static int d_stream_gpu(lua_State *L) {
  int gpu;
  (void)stream_arg(L, 1, "device", &gpu);
  lua_pushinteger(L, gpu);
  return 1;
}
static int d_event_record(lua_State *L) {
  const PlDeviceTable *t = l_device_table(L);
  CudaHandle *e = handle(L, 1, true, "record");
  int gpu;
  void *s = stream_arg(L, 2, "record", &gpu);
  CALL(L, t->event_record(e->p, gpu, lua_isnoneornil(L, 2) ? t->stream_get(gpu) : s));
  return 0;
}
static int d_event_synchronize(lua_State *L) {
  CALL(L, l_device_table(L)->event_synchronize(handle(L, 1, true, "synchronize")->p));
  return 0;
}
static int d_event_query(lua_State *L) {
  bool done = false;
  CALL(L, l_device_table(L)->event_query(handle(L, 1, true, "query")->p, &done));
  lua_pushboolean(L, done);
  return 1;
}
static int d_event_elapsed(lua_State *L) {
  double ms = 0;
  CALL(L, l_device_table(L)->event_elapsed(handle(L, 1, true, "elapsed_time")->p, handle(L, 2, true, "elapsed_time")->p, &ms));
  lua_pushnumber(L, ms);
  return 1;
}

/* Into the table on top. */
void l_device_streams(lua_State *L) {
  static const luaL_Reg functions[] = {{"stream", d_stream},
                                       {"event", d_event},
                                       {"methods", d_methods},
                                       {"on_stream", d_on_stream},
                                       {"stream_gpu", d_stream_gpu},
                                       {"stream_synchronize", d_stream_synchronize},
                                       {"stream_query", d_stream_query},
                                       {"stream_wait", d_stream_wait},
                                       {"event_record", d_event_record},
                                       {"event_synchronize", d_event_synchronize},
                                       {"event_query", d_event_query},
                                       {"event_elapsed", d_event_elapsed},
                                       {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
