/* SPDX-License-Identifier: MIT
 * Regions of mixed precision from Lua; lua/perilune/autograd/autocast.lua makes scope objects of them. */
#include "engine/call/autocast.h"

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "kernels/gemm.h"

/* core.autocast_enter(dtype or nil, cache) → a number for core.autocast_leave; nil: a region without casts. A region is the
 * coroutine's, as in bindings/autograd/grad_mode.c. */
static int a_enter(lua_State *L) {
  const PlDtype d = lua_isnoneornil(L, 1) ? PL_NDTYPE : l_check_dtype(L, 1, "autocast");
  if (d != PL_NDTYPE && !pl_is_float(d)) return l_error(L, "autocast: dtype must be floating, got %s", pl_dtype_name(d));
  const bool cache = lua_toboolean(L, 2) != 0;
  l_modes_follow(L);
  const PlAutocast was = pl_autocast_now();
  if (was.depth == INT16_MAX) return l_error(L, "autocast: %d regions are open within each other; close some", was.depth);
  l_modes_set(L, 1, !pl_state.grad_off,
              (PlAutocast){.dtype = d == PL_NDTYPE ? 0 : (uint8_t)(d + 1), .cache = cache, .depth = (int16_t)(was.depth + 1)});
  lua_pushinteger(L, was.dtype | (was.cache ? 256 : 0) | was.depth << 9);
  return 1;
}

static int a_leave(lua_State *L) {
  const int64_t was = l_check_int(L, 1, "autocast", "state"), d = was & 255;
  if (was < 0 || was >> 9 > INT16_MAX || d > PL_NDTYPE || (d > 0 && !pl_is_float((PlDtype)(d - 1))))
    return l_error(L, "autocast: %lld is not what autocast_enter gave", (long long)was);
  l_modes_follow(L);
  l_modes_set(L, -1, !pl_state.grad_off, (PlAutocast){.dtype = (uint8_t)d, .cache = (was & 256) != 0, .depth = (int16_t)(was >> 9)});
  return 0;
}

/* core.autocast_dtype() → "bf16" …, or nil outside regions */
static int a_dtype(lua_State *L) {
  l_modes_follow(L);
  const PlDtype d = pl_autocast_dtype();
  if (d == PL_NDTYPE) return 0;
  lua_pushstring(L, pl_dtype_name(d));
  return 1;
}

/* core.autocast_cast(x, dtype) → x as an op of that dtype would get it; anything but a floating tensor as it is */
static int a_cast(lua_State *L) {
  PlTensor *t = l_to_tensor(L, 1);
  const PlDtype d = l_check_dtype(L, 2, "autocast");
  if (!pl_is_float(d)) return l_error(L, "autocast: dtype must be floating, got %s", pl_dtype_name(d));
  if (!t || t->a.dtype == d || t->a.dtype == PL_F64 || !pl_is_float((PlDtype)t->a.dtype)) {
    lua_settop(L, 1);
    return 1;
  }
  l_collect(L);
  Box *b = l_new_box(L);
  PlTensor *out;
  CALL(L, pl_autocast_one(&out, t, d));
  b->t = out;
  return 1;
}

/* core.matmul_precision([name]) → its name; with one it is set first, for the calling thread */
static int a_precision(lua_State *L) {
  static const char *const name[] = {"highest", "high", "medium", NULL};
  if (!lua_isnoneornil(L, 1)) plk_set_matmul_precision((PlkPrecision)luaL_checkoption(L, 1, NULL, name));
  lua_pushstring(L, name[plk_matmul_precision()]);
  return 1;
}

void l_autocast_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"autocast_enter", a_enter}, {"autocast_leave", a_leave},       {"autocast_dtype", a_dtype},
                                       {"autocast_cast", a_cast},   {"matmul_precision", a_precision}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
