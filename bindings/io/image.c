/* SPDX-License-Identifier: MIT
 * Pictures for lua/perilune/data/transforms.lua: u8 or f32 tensors [C, H, W] of any strides. Results are views on
 * interleaved memory, but for to_float, whose are contiguous. */
#include "kernels/image.h"
#include "bindings/core/lib.h"
#include "engine/tensor/presence.h"

/* The tensor at i as a picture. One on a device is computed on the CPU: its copy is pushed, *device says where results
 * belong. */
static PlkImage check_image(lua_State *L, int i, const char *fn, int *device) {
  PlTensor *t = l_to_tensor(L, i);
  bool ok = t && t->a.ndim == 3 && (t->a.dtype == PL_U8 || t->a.dtype == PL_F32) && t->a.shape[0] >= 1 &&
            t->a.shape[0] <= PLK_IMAGE_CHANNELS && t->a.shape[1] > 0 && t->a.shape[2] > 0;
  if (!ok) l_error(L, "%s: an image is wanted, u8 or f32 [C, H, W] with C 1 to 4, got %s", fn, l_typename(L, i));
  *device = t->a.device;
  t = l_on_host(L, t);
  const PlStatus s = pl_writes(t->storage); /* its address is used while others are allocated */
  if (s != PL_OK) l_fail(L, s);
  PlkImage m = {.data = t->a.data,
                .is_float = t->a.dtype == PL_F32,
                .c = t->a.shape[0],
                .h = t->a.shape[1],
                .w = t->a.shape[2],
                .sc = t->a.strides[0],
                .sh = t->a.strides[1],
                .sw = t->a.strides[2]};
  return m;
}

/* Pushes a fresh [c, h, w] on interleaved memory; its memory is at *data. */
static PlStatus push_pixels(lua_State *L, const PlkImage *like, int64_t h, int64_t w, void **data) {
  const int64_t shape[3] = {h, w, like->c}, seen[3] = {like->c, h, w}, strides[3] = {1, w * like->c, like->c};
  l_collect(L);
  Box *b = l_new_box(L);
  PlTensor *whole;
  PL_TRY(pl_tensor_empty(&whole, like->is_float ? PL_F32 : PL_U8, 3, shape));
  PlStatus st = pl_tensor_view(&b->t, whole, 3, seen, strides, 0);
  *data = pl_tensor_data(whole);
  pl_tensor_release(whole);
  return st;
}

/* image_resize(x, h, w, filter, antialias, flip): filter 0 nearest, 1 bilinear, 2 bicubic */
static int image_resize(lua_State *L) {
  int64_t h = l_check_int(L, 2, "resize", "height"), w = l_check_int(L, 3, "resize", "width");
  int64_t filter = l_check_int(L, 4, "resize", "filter");
  lua_settop(L, 6); /* a copy may be pushed */
  int device;
  PlkImage m = check_image(L, 1, "resize", &device);
  if (h < 1 || w < 1 || h > 1 << 24 || w > 1 << 24 || m.h > 1 << 24 || m.w > 1 << 24)
    return l_error(L, "resize: sizes must be 1 to %d, got %lld x %lld", 1 << 24, (long long)h, (long long)w);
  void *to;
  bool antialias = lua_toboolean(L, 5), flip = lua_toboolean(L, 6);
  CALL(L, push_pixels(L, &m, h, w, &to));
  CALL(L, plk_image_resize(&m, to, h, w, filter == 0 ? PLK_NEAREST : filter == 2 ? PLK_BICUBIC : PLK_BILINEAR, antialias, flip));
  l_put_on(L, device);
  return 1;
}

/* image_to_float(x, {scale…}, {shift…}): f32 [C, H, W] = x * scale + shift, by channel; one entry serves all */
static int image_to_float(lua_State *L) {
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  int device;
  PlkImage m = check_image(L, 1, "to_tensor", &device);
  float v[2][PLK_IMAGE_CHANNELS];
  for (int t = 0; t < 2; t++) {
    int64_t n = (int64_t)lua_rawlen(L, 2 + t);
    if (n != 1 && n != m.c) return l_error(L, "normalize: %d values for an image of %d channels", (int)n, (int)m.c);
    for (int64_t k = 0; k < m.c; k++) {
      lua_rawgeti(L, 2 + t, n == 1 ? 1 : k + 1);
      v[t][k] = (float)luaL_checknumber(L, -1);
      lua_pop(L, 1);
    }
  }
  const int64_t shape[3] = {m.c, m.h, m.w};
  l_collect(L);
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_empty(&b->t, PL_F32, 3, shape));
  plk_image_to_float(&m, pl_tensor_data(b->t), v[0], v[1]);
  l_put_on(L, device);
  return 1;
}

/* image_adjust(x, kind, factor, kind, factor, …): a changed copy; kinds: 0 brightness, 1 contrast, 2 saturation, 3 hue */
static int image_adjust(lua_State *L) {
  int n = lua_gettop(L);
  for (int i = 2; i <= n; i++) luaL_checknumber(L, i);
  int device;
  PlkImage m = check_image(L, 1, "color_jitter", &device);
  void *to;
  CALL(L, push_pixels(L, &m, m.h, m.w, &to));
  plk_image_interleave(&m, to);
  for (int i = 2; i + 1 <= n; i += 2)
    plk_image_adjust(to, m.is_float, m.h * m.w, m.c, (PlkAdjust)lua_tointeger(L, i), (float)lua_tonumber(L, i + 1));
  l_put_on(L, device);
  return 1;
}

void l_image_register(lua_State *L) {
  static const luaL_Reg regs[] = {
      {"image_resize", image_resize}, {"image_to_float", image_to_float}, {"image_adjust", image_adjust}, {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
