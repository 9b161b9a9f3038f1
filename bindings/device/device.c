/* SPDX-License-Identifier: MIT
 * Devices from Lua: the raw functions below core.device that lua/perilune/device/cuda.lua wraps, and what other bindings need to
 * read elements of tensors that are elsewhere. */
#include "bindings/core/lib.h"

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/ops/names.h"
#include "engine/tensor/presence.h"

#include <string.h>

/* For functions that do not return what Lua wants. */
#define RAISE(L, expr)                                   \
  do {                                                   \
    PlStatus raise_ = (expr);                            \
    if (PL_UNLIKELY(raise_ != PL_OK)) l_fail(L, raise_); \
  } while (0)

/* ---- reading from other bindings ------------------------------------------------------------------------------ */

PlTensor *l_on_host(lua_State *L, PlTensor *t) {
  if (PL_LIKELY(t->a.device == PL_CPU)) return t;
  Box *b = l_new_box(L);
  RAISE(L, pl_tensor_on_host(&b->t, t));
  return b->t;
}

/* The tensor on top of the stack, made on the CPU, goes to `device`. */
void l_put_on(lua_State *L, int device) {
  Box *b = l_box(L, -1);
  PlTensor *there;
  if (PL_LIKELY(b->t->a.device == device)) return;
  RAISE(L, pl_tensor_moved(&there, b->t, device));
  pl_tensor_release(b->t);
  b->t = there;
}

PlArray l_element(lua_State *L, const PlTensor *t, int64_t byte_offset, uint64_t *room) {
  RAISE(L, pl_present(t));
  PlArray a = {.numel = 1, .dtype = t->a.dtype, .contiguous = 1, .data = (char *)t->a.data + byte_offset};
  if (PL_LIKELY(t->a.device == PL_CPU)) return a;
  RAISE(L, pl_device_open()->download(pl_gpu_index(t->a.device), room, a.data, pl_dtype_size((PlDtype)a.dtype)));
  a.data = room;
  return a;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

const PlDeviceTable *l_device_table(lua_State *L) {
  const PlDeviceTable *t = NULL;
  RAISE(L, pl_device(&t));
  return t;
}

static void no_such_gpu(lua_State *L, const char *fn, const char *name) {
  const int n = pl_device_count();
  if (n == 1) l_error(L, "%s: there is no device \"%s\"; this process has one GPU, \"cuda\" (CUDA_VISIBLE_DEVICES says which)", fn, name);
  l_error(L, "%s: there is no device \"%s\"; this process has %d GPUs, \"cuda:0\" to \"cuda:%d\" (CUDA_VISIBLE_DEVICES says which)", fn,
          name, n, n - 1);
}

int l_check_device(lua_State *L, int at, const char *fn) {
  const char *name = lua_type(L, at) == LUA_TSTRING ? lua_tostring(L, at) : NULL;
  int d = name ? pl_device_parse(name) : -1;
  if (d == PL_CPU) return d;
  if (d < 0 && name && strncmp(name, "cuda", 4) == 0)
    return l_error(L, "%s: there is no device \"%s\"; GPUs are \"cuda\", \"cuda:0\", \"cuda:1\", …", fn, name);
  if (d < 0) return l_error(L, "%s: a device is wanted, \"cpu\", \"cuda\" or \"cuda:1\", got %s", fn, name ? name : l_typename(L, at));
  (void)l_device_table(L);
  if (pl_gpu_index(d) >= pl_device_count()) no_such_gpu(L, fn, name);
  return d;
}

/* The GPU that argument `at` says: its number, or a name such as "cuda:1"; nil: the thread's current one. */
int l_check_gpu(lua_State *L, int at, const char *fn) {
  if (lua_isnoneornil(L, at)) return pl_state.gpu;
  if (lua_type(L, at) == LUA_TSTRING && !lua_isinteger(L, at)) {
    int d = l_check_device(L, at, fn);
    if (pl_on_gpu(d)) return pl_gpu_index(d);
  }
  if (!lua_isinteger(L, at)) l_error(L, "%s: a GPU's number from 0 on, or its name, is wanted, got %s", fn, l_typename(L, at));
  const lua_Integer i = lua_tointeger(L, at);
  (void)l_device_table(L);
  if (i < 0 || i >= pl_device_count()) {
    lua_pushfstring(L, "cuda:%I", i);
    no_such_gpu(L, fn, lua_tostring(L, -1));
  }
  return (int)i;
}

/* device.count() → GPUs */
static int d_count(lua_State *L) {
  const PlDeviceTable *t;
  lua_pushinteger(L, pl_device(&t) == PL_OK ? pl_device_count() : 0);
  return 1;
}

/* device.current([gpu]) → the number before */
static int d_current(lua_State *L) {
  (void)l_device_table(L);
  lua_pushinteger(L, pl_state.gpu);
  if (!lua_isnoneornil(L, 1)) pl_state.gpu = (uint8_t)l_check_gpu(L, 1, "set_device");
  return 1;
}

/* device.within(gpu, f, …): f(…) with that GPU as the current one, whatever happens in it */
static int d_within(lua_State *L) {
  const uint8_t was = pl_state.gpu, now = (uint8_t)l_check_gpu(L, 1, "device");
  int top = lua_gettop(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  pl_state.gpu = now;
  int bad = lua_pcall(L, top - 2, LUA_MULTRET, 0);
  pl_state.gpu = was;
  if (bad) return lua_error(L);
  return lua_gettop(L) - 1;
}

/* device.available() → true, or false and why not */
static int d_available(lua_State *L) {
  const PlDeviceTable *t;
  bool yes = pl_device(&t) == PL_OK;
  lua_pushboolean(L, yes);
  if (yes) return 1;
  lua_pushstring(L, pl_message());
  return 2;
}

/* device.default([name]) → the name before */
static int d_default(lua_State *L) {
  const char *was = pl_device_name(pl_state.device);
  if (!lua_isnoneornil(L, 1)) pl_state.device = (uint8_t)l_check_device(L, 1, "set_default_device");
  lua_pushstring(L, was);
  return 1;
}

/* device.with(name, f, …): f(…) with that default device, whatever happens in it */
static int d_with(lua_State *L) {
  uint8_t was = pl_state.device, now = (uint8_t)l_check_device(L, 1, "device");
  int top = lua_gettop(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  pl_state.device = now;
  int bad = lua_pcall(L, top - 2, LUA_MULTRET, 0);
  pl_state.device = was;
  if (bad) return lua_error(L);
  return lua_gettop(L) - 1;
}

/* The device of the tensors at i, which may be one, a list or a table of them: < 0 if there is none. */
static int device_at(lua_State *L, int i, bool inside) {
  if (lua_type(L, i) == LUA_TUSERDATA) {
    const PlTensor *t = l_to_tensor(L, i);
    return t ? t->a.device : -1;
  }
  int found = -1, looked = 0;
  if (inside || lua_type(L, i) != LUA_TTABLE || !lua_checkstack(L, 4)) return -1;
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
    int d = device_at(L, lua_gettop(L), true);
    found = found <= PL_CPU && d > found ? d : found;
    if (found <= PL_CPU && ++looked < 32) continue;
    lua_pop(L, 2);
    break;
  }
  return found;
}

static int followed(lua_State *L, int status, lua_KContext ctx) {
  (void)ctx;
  lua_pushboolean(L, status == LUA_OK || status == LUA_YIELD);
  lua_replace(L, 1);
  return lua_gettop(L);
}

/* device.follow(f, …): pcall(f, …) with the device that tensors among the arguments are on as the default one: "cuda" if
 * any does, the first of several such. */
static int d_follow(lua_State *L) {
  int n = lua_gettop(L), to = -1;
  luaL_checkany(L, 1);
  for (int i = 2; i <= n && to < PL_CUDA; i++) {
    int d = device_at(L, i, false);
    to = d > to ? d : to;
  }
  lua_pushboolean(L, 1);
  lua_insert(L, 1); /* its place is for how it went */
  uint8_t was = pl_state.device;
  if (PL_LIKELY(to < 0 || to == was)) return followed(L, lua_pcallk(L, n - 1, LUA_MULTRET, 0, 0, followed), 0);
  pl_state.device = (uint8_t)to;
  int status = lua_pcall(L, n - 1, LUA_MULTRET, 0);
  pl_state.device = was;
  return followed(L, status, 0);
}

/* device.groups(list) → nil if its tensors are together, else a list of lists, one a device, in their order */
static int d_groups(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  int first = -1;
  bool apart = false;
  for (lua_Integer i = 1; i <= n && !apart; i++) {
    lua_rawgeti(L, 1, i);
    const PlTensor *t = l_to_tensor(L, -1);
    apart = t && first >= 0 && t->a.device != first;
    if (t && first < 0) first = t->a.device;
    lua_pop(L, 1);
  }
  if (!apart) return 0;
  int at[PL_GPUS + 1] = {0}, groups = 0;
  lua_newtable(L);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    const PlTensor *t = l_to_tensor(L, -1);
    const int d = t ? t->a.device : PL_CPU;
    if (at[d] == 0) {
      lua_newtable(L);
      lua_rawseti(L, 2, at[d] = ++groups);
    }
    lua_rawgeti(L, 2, at[d]);
    lua_insert(L, -2);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    lua_pop(L, 1);
  }
  return 1;
}

static PlStatus moved_later(lua_State *L, PlTensor *t, int device, PlTensor **out, bool *done) {
  PlStatus s = pl_tensor_moved_later(out, t, device, done);
  if (s != PL_ERR_OOM) return s;
  l_collect_full(L);
  return pl_tensor_moved_later(out, t, device, done);
}

/* device.move(x, name[, non_blocking]) → x itself where it is there already */
static int d_move(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  int d = l_check_device(L, 2, "to");
  if (t->a.device == d) {
    lua_settop(L, 1);
    return 1;
  }
  if (lua_toboolean(L, 3)) {
    bool done = false;
    l_collect(L);
    Box *later = l_new_box(L);
    CALL(L, moved_later(L, t, d, &later->t, &done));
    if (done) return 1;
    lua_settop(L, 2);
  }
  PlAttrs a;
  pl_attrs_init(&pl_op_to_device, &a);
  pl_attrs_int(&a, 0, d);
  l_collect(L);
  Box *b = l_new_box(L);
  CALL(L, l_apply(L, &pl_op_to_device, &t, 1, &a, &b->t));
  return 1;
}

/* device.pin(x) → a copy in pinned memory, without history; x itself if it is there */
static int d_pin(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  (void)l_concrete(L, t, "pin_memory");
  if (t->a.device != PL_CPU)
    return l_error(L, "pin_memory: %s is on %s; memory of the host can be pinned: x:cpu():pin_memory()", pl_desc_text(&t->a),
                   pl_device_name(t->a.device));
  lua_settop(L, 1);
  if (t->storage->owns == PL_OWNS_PINNED) return 1;
  l_collect(L);
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_empty_pinned(&b->t, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  CALL(L, pl_copy_data(b->t, t));
  return 1;
}
static int d_is_pinned(lua_State *L) {
  const PlTensor *t = l_check_tensor(L, 1);
  lua_pushboolean(L, t->storage && t->storage->owns == PL_OWNS_PINNED);
  return 1;
}

/* device.info([gpu[, open]]) → {name, libraries, kind, major, minor, processors, memory, available}. It opens nothing unless it
 * is told to; available is nil of a GPU that is not open. */
static int d_info(lua_State *L) {
  const PlDeviceTable *t = l_device_table(L);
  const int gpu = l_check_gpu(L, 1, "device");
  PlDeviceInfo info;
  if (lua_toboolean(L, 2)) CALL(L, t->use(gpu));
  CALL(L, t->describe(gpu, &info));
  lua_createtable(L, 0, 8);
  lua_pushstring(L, info.name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, info.libraries);
  lua_setfield(L, -2, "libraries");
  lua_pushstring(L, t->kind);
  lua_setfield(L, -2, "kind");
  const struct {
    const char *name;
    int64_t v;
  } n[] = {{"major", info.major},
           {"minor", info.minor},
           {"processors", info.processors},
           {"memory", info.memory},
           {"available", info.available}};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
    if (n[i].v < 0) continue;
    lua_pushinteger(L, (lua_Integer)n[i].v);
    lua_setfield(L, -2, n[i].name);
  }
  return 1;
}

/* device.memory([gpu]) → {live, peak, reserved, limit, blocks, allocations, retries}; nothing is opened for it */
static int d_memory(lua_State *L) {
  const PlDeviceTable *t = pl_device_open();
  PlDeviceMemory m = {.limit = -1};
  if (t) t->memory(l_check_gpu(L, 1, "memory"), &m);
  const struct {
    const char *name;
    int64_t v;
  } n[] = {{"live", m.live},      {"peak", m.peak}, {"reserved", m.reserved}, {"blocks", m.blocks}, {"allocations", m.allocations},
           {"retries", m.retries}};
  lua_createtable(L, 0, 7);
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
    lua_pushinteger(L, (lua_Integer)n[i].v);
    lua_setfield(L, -2, n[i].name);
  }
  if (m.limit >= 0) {
    lua_pushinteger(L, (lua_Integer)m.limit);
    lua_setfield(L, -2, "limit");
  }
  return 1;
}

static int d_reset_peak(lua_State *L) {
  if (pl_device_open()) pl_device_open()->reset_peak(l_check_gpu(L, 1, "reset_peak_memory_stats"));
  return 0;
}
static int d_trim(lua_State *L) {
  lua_gc(L, LUA_GCCOLLECT);
  for (int i = 0; i < pl_device_count(); i++) pl_device_open()->trim(i);
  return 0;
}
static int d_limit(lua_State *L) {
  const PlDeviceTable *t = l_device_table(L);
  CALL(L, t->limit(l_check_gpu(L, 2, "set_memory_limit"), lua_isnoneornil(L, 1) ? -1 : l_check_int(L, 1, "set_memory_limit", "bytes")));
  return 0;
}
static int d_synchronize(lua_State *L) {
  const PlDeviceTable *t = l_device_table(L);
  CALL(L, t->synchronize(l_check_gpu(L, 1, "synchronize")));
  return 0;
}

/* device.is_open() → has anything asked for a GPU yet, and is there one? */
static int d_is_open(lua_State *L) {
  lua_pushboolean(L, pl_device_open() != NULL);
  return 1;
}

/* device.setting(name[, on]) → what it was */
static int d_setting(lua_State *L) {
  static const char *const names[] = {"deterministic", "sync", "cudnn", "benchmark", NULL};
  int k = luaL_checkoption(L, 1, NULL, names);
  const PlDeviceTable *t = l_device_table(L);
  lua_pushboolean(L, t->get((PlDeviceSetting)k) != 0);
  if (!lua_isnoneornil(L, 2)) t->set((PlDeviceSetting)k, lua_toboolean(L, 2));
  return 1;
}

/* device.has(op name) → "kernel", "expand", "host"; for the table of ops */
static int d_has(lua_State *L) {
  const PlOp *op = pl_op_find(luaL_checkstring(L, 1));
  if (!op) return l_error(L, "device.has: no such op");
  (void)l_device_table(L);
  lua_pushstring(L, (op->flags & (PL_F_SIZES | PL_F_CROSSES)) || pl_op_on_device(op) ? "kernel"
                    : op->cls == PL_VIEW && !op->kernel[PL_CPU]                      ? "view"
                    : op->expand                                                     ? "expand"
                                                                                     : "host");
  return 1;
}

void l_device_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"available", d_available},
                                       {"count", d_count},
                                       {"current", d_current},
                                       {"within", d_within},
                                       {"groups", d_groups},
                                       {"default", d_default},
                                       {"with", d_with},
                                       {"follow", d_follow},
                                       {"move", d_move},
                                       {"info", d_info},
                                       {"memory", d_memory},
                                       {"reset_peak", d_reset_peak},
                                       {"trim", d_trim},
                                       {"limit", d_limit},
                                       {"synchronize", d_synchronize},
                                       {"setting", d_setting},
                                       {"is_open", d_is_open},
                                       {"has", d_has},
                                       {"pin", d_pin},
                                       {"is_pinned", d_is_pinned},
                                       {NULL, NULL}};
  lua_newtable(L);
  luaL_setfuncs(L, functions, 0);
  l_device_streams(L);
  lua_setfield(L, -2, "device");
}
