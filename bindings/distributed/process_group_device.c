/* SPDX-License-Identifier: MIT
 * Process groups whose tensors are on GPUs, from Lua: functions of core.group below those of process_group.c. */
#include <string.h>

#include "bindings/distributed/process_group.h"
#include "engine/distributed/process_group.h"

static void device_release(void *p) { pl_group_device_release(p); }
static const luaL_Reg no_methods[] = {{NULL, NULL}};
static const HandleType device_type = {
    .name = "perilune.group.device", .what = "process group", .release = device_release, .methods = no_methods};

/* group.device_library() → version; nil, why */
static int d_library(lua_State *L) {
  char version[32];
  PlStatus s = pl_group_device_library(version, sizeof version);
  if (s != PL_OK) return l_failure(L, s);
  lua_pushstring(L, version);
  return 1;
}

/* group.device_id() → a string that the others need */
static int d_id(lua_State *L) {
  PlkNcclId id;
  CALL(L, pl_group_device_id(&id));
  lua_pushlstring(L, id.bytes, sizeof id.bytes);
  return 1;
}

/* group.device_new(id, gpu, rank, n) → a group, once all have called it */
static int d_new(lua_State *L) {
  size_t size;
  PlkNcclId id;
  const char *bytes = luaL_checklstring(L, 1, &size);
  luaL_argcheck(L, size == sizeof id.bytes, 1, "an id of group.device_id is wanted");
  memcpy(id.bytes, bytes, sizeof id.bytes);
  const int64_t g64 = l_check_int(L, 2, "device_new", "gpu"), r64 = l_check_int(L, 3, "device_new", "rank"),
                n64 = l_check_int(L, 4, "device_new", "n");
  if (g64 < 0 || g64 >= PL_GPUS || n64 < 1 || n64 > 1 << 16 || r64 < 0 || r64 >= n64)
    return l_error(L, "device_new: GPU %lld, rank %lld of %lld: out of range", (long long)g64, (long long)r64, (long long)n64);
  const int gpu = (int)g64, rank = (int)r64, n = (int)n64;
  Handle *h = l_new_handle(L, &device_type);
  PlGroupDevice *g;
  CALL(L, pl_group_device_new(&g, &id, gpu, rank, n));
  h->p = g;
  return 1;
}

/* group.device_takes(kind, op, dtype) */
static int d_takes(lua_State *L) {
  const PlGroupKind kind = l_group_kind(L, 1);
  const PlGroupOp op = l_group_op(L, 2);
  lua_pushboolean(L, pl_group_device_takes(kind, op, l_check_dtype(L, 3, "takes")));
  return 1;
}

/* group.device_start(name, kind, group, src, dst, {op, peer, send, receive}, n): queued on the current stream */
static int d_start(lua_State *L) {
  lua_settop(L, 7);
  PlGroupDevice *g = l_check_handle(L, 3, &device_type);
  PlTensor *src, *dst;
  PlGroupCall c = {0};
  const int64_t n = l_check_int(L, 7, "device_start", "n");
  if (n < 1 || n > 1 << 16) return l_error(L, "device_start: %lld ranks: out of range", (long long)n);
  l_group_call(L, &c, (int)n, &src, &dst);
  CALL(L, pl_group_device_start(g, &c, src, dst));
  return 0;
}

void l_group_device_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"device_library", d_library}, {"device_id", d_id},       {"device_new", d_new},
                                       {"device_takes", d_takes},     {"device_start", d_start}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
