/* SPDX-License-Identifier: MIT
 * Memory formats from Lua: x:is_contiguous(format), and the raw function below x:contiguous(format) and
 * x:to{memory_format =} (lua/perilune/tensor/methods.lua). */
#include "bindings/core/lib.h"

#include <string.h>

#include "engine/ops/names.h"
#include "engine/tensor/layout.h"

/* The format's dims, 0: row-major. */
static int format_at(lua_State *L, int at, const char *fn) {
  static const char *const names[] = {"contiguous", "channels_last", "channels_last_3d"};
  static const int dims[] = {0, 4, 5};
  const char *name = lua_type(L, at) == LUA_TSTRING ? lua_tostring(L, at) : NULL;
  for (int i = 0; name && i < 3; i++)
    if (strcmp(name, names[i]) == 0) return dims[i];
  return l_error(L, "%s: a memory format is wanted, \"contiguous\", \"channels_last\" or \"channels_last_3d\", got %s", fn,
                 name ? lua_pushfstring(L, "'%s'", name) : l_typename(L, at));
}

/* x:is_contiguous(format = "contiguous") */
int l_is_contiguous(lua_State *L) {
  PlTensor *t = l_self(L, "is_contiguous");
  l_saw(t, PL_SAW_SCRIPT_LAYOUT);
  CALL(L, pl_sym_layout_known(t, "is_contiguous"));
  const int dims = lua_isnoneornil(L, 2) ? 0 : format_at(L, 2, "is_contiguous");
  lua_pushboolean(L, dims ? t->a.ndim == dims && pl_is_channels_last(&t->a) : t->a.contiguous);
  return 1;
}

/* core.to_layout(x, format, exact) → x itself where it is so; exact: where that is open, by its strides too */
static int t_to_layout(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  l_saw(t, PL_SAW_LAYOUT);
  const int dims = format_at(L, 2, lua_toboolean(L, 3) ? "to" : "contiguous");
  const bool is = dims ? t->a.ndim == dims && pl_is_channels_last(&t->a) : t->a.contiguous;
  const bool exact = lua_toboolean(L, 3) && is && pl_channels_last(&t->a) != (dims != 0);
  if (is && !exact && !t->a.symbolic) { /* a graph knows what would be if it were not so */
    lua_settop(L, 1);
    return 1;
  }
  PlAttrs a;
  pl_attrs_init(&pl_op_to_layout, &a);
  pl_attrs_int(&a, 0, dims ? dims - 3 : 0);
  pl_attrs_int(&a, 1, exact);
  l_collect(L);
  Box *b = l_new_box(L);
  CALL(L, l_apply(L, &pl_op_to_layout, &t, 1, &a, &b->t));
  return 1;
}

/* core.layout_of(x) → "channels_last", "channels_last_3d", or nil: row-major, or any other */
static int t_layout_of(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  l_saw(t, PL_SAW_LAYOUT);
  if (!pl_channels_last(&t->a)) return 0;
  lua_pushstring(L, t->a.ndim == 4 ? "channels_last" : "channels_last_3d");
  return 1;
}

/* The same memory under those strides. */
static PlStatus restride(PlTensor *x, const int64_t *strides, PlTensor **out) {
  PlAttrs a;
  pl_attrs_init(&pl_op_as_strided, &a);
  PL_TRY(pl_attrs_list(&a, 0, x->a.ndim, x->a.shape));
  PL_TRY(pl_attrs_list(&a, 1, x->a.ndim, strides));
  pl_attrs_int(&a, 2, 0);
  return pl_apply(&pl_op_as_strided, &x, 1, &a, out);
}

/* t's elements in the order of memory that dense strides give, through ops: inside graphs and batches. Takes t. */
static PlStatus lie_by_ops(PlTensor **t, const int64_t *strides) {
  const int n = (*t)->a.ndim;
  int64_t to[PL_MAX_DIM], back[PL_MAX_DIM];
  int order[PL_MAX_DIM];
  PlAttrs a;
  PlTensor *whole = *t, *turned = NULL, *dense = NULL;
  *t = NULL;
  pl_layout_order(n, whole->a.shape, strides, order);
  for (int d = 0; d < n; d++) back[order[d]] = d, to[d] = order[d];
  pl_attrs_init(&pl_op_permute, &a);
  PlStatus s = pl_attrs_list(&a, 0, n, to);
  if (s == PL_OK) s = pl_apply(&pl_op_permute, &whole, 1, &a, &turned);
  if (s == PL_OK && turned->a.contiguous) s = restride(whole, strides, t); /* only sizes of 0 and 1 are elsewhere */
  else {
    if (s == PL_OK) s = pl_apply(&pl_op_contiguous, &turned, 1, NULL, &dense);
    if (s == PL_OK) s = pl_attrs_list(&a, 0, n, back);
    if (s == PL_OK) s = pl_apply(&pl_op_permute, &dense, 1, &a, t);
  }
  pl_tensor_release(whole);
  pl_tensor_release(turned);
  pl_tensor_release(dense);
  return s;
}

/* core.lie_as(t, x, uniform) → t, fresh and of x's shape, as x's clone lies in memory; uniform: its elements are all alike */
static int t_lie_as(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1), *x = l_check_tensor(L, 2);
  int64_t strides[PL_MAX_DIM];
  l_saw(x, PL_SAW_LAYOUT);
  lua_settop(L, 3);
  if (x->a.ndim != t->a.ndim || t->a.device != PL_CPU || pl_is_batched(x) || !pl_layout_permuted(&x->a, strides)) {
    lua_settop(L, 1);
    return 1;
  }
  if (!t->a.symbolic && lua_toboolean(L, 3)) {
    pl_layout_stride(t, strides);
    lua_settop(L, 1);
    return 1;
  }
  Box *b = l_new_box(L);
  if (t->a.symbolic) {
    b->t = pl_retain(t);
    CALL(L, lie_by_ops(&b->t, strides));
    return 1;
  }
  CALL(L, pl_tensor_empty(&b->t, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  pl_layout_stride(b->t, strides);
  CALL(L, pl_copy_data(b->t, t));
  return 1;
}

void l_layout_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"to_layout", t_to_layout}, {"layout_of", t_layout_of}, {"lie_as", t_lie_as}, {NULL, NULL}};
  static const luaL_Reg methods[] = {{"is_contiguous", l_is_contiguous}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  l_add_methods(L, methods);
}
