/* SPDX-License-Identifier: MIT
 * Looking into tensors: shape, dtype, item, totable, get, set, free … Making them of Lua values is in construct.c. */
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"
#include "engine/tensor/presence.h"

/* ---- looking ----------------------------------------------------------------------------------------------- */

/* Argument 1 of method fn, which takes n arguments. */
static PlTensor *self_only(lua_State *L, int n, const char *fn) {
  PlTensor *t = l_self(L, fn);
  if (PL_UNLIKELY(lua_gettop(L) > n)) l_at_most(L, n, fn);
  return t;
}

static int push_list(lua_State *L, const int64_t *v, int n) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, (lua_Integer)v[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int dim_arg(lua_State *L, PlTensor *t, const char *fn) {
  int64_t d = l_check_int(L, 2, fn, "dim");
  int n = t->a.ndim;
  if (d == 0 || d > n || d < -n)
    return l_error(L, "%s: dim %d is out of range for %s (dimensions start at 1)", fn, (int)d, pl_desc_text(&t->a));
  return (int)(d > 0 ? d - 1 : d + n);
}

static int m_size(lua_State *L) {
  PlTensor *t = self_only(L, 2, "size");
  if (lua_isnoneornil(L, 2)) {
    l_saw(t, PL_SAW_SHAPE);
    return push_list(L, t->a.shape, t->a.ndim);
  }
  const int d = dim_arg(L, t, "size");
  l_saw(t, d);
  lua_pushinteger(L, (lua_Integer)t->a.shape[d]);
  return 1;
}

static int m_stride(lua_State *L) {
  PlTensor *t = self_only(L, 2, "stride");
  CALL(L, pl_sym_layout_known(t, "stride"));
  l_saw(t, PL_SAW_STRIDES);
  if (lua_isnoneornil(L, 2)) return push_list(L, t->a.strides, t->a.ndim);
  lua_pushinteger(L, (lua_Integer)t->a.strides[dim_arg(L, t, "stride")]);
  return 1;
}

static int m_dim(lua_State *L) {
  lua_pushinteger(L, self_only(L, 1, "dim")->a.ndim);
  return 1;
}

static int m_numel(lua_State *L) {
  PlTensor *t = self_only(L, 1, "numel");
  l_saw(t, PL_SAW_NUMEL);
  lua_pushinteger(L, (lua_Integer)t->a.numel);
  return 1;
}

static int m_dtype(lua_State *L) {
  lua_pushstring(L, pl_dtype_name((PlDtype)self_only(L, 1, "dtype")->a.dtype));
  return 1;
}

static int m_is_cuda(lua_State *L) {
  lua_pushboolean(L, pl_on_gpu(self_only(L, 1, "is_cuda")->a.device));
  return 1;
}
static int m_device(lua_State *L) {
  lua_pushstring(L, pl_device_name(self_only(L, 1, "device")->a.device));
  return 1;
}

static int m_is_floating_point(lua_State *L) {
  lua_pushboolean(L, pl_is_float((PlDtype)self_only(L, 1, "is_floating_point")->a.dtype));
  return 1;
}

static int m_element_size(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pl_dtype_size((PlDtype)self_only(L, 1, "element_size")->a.dtype));
  return 1;
}

static int m_storage_offset(lua_State *L) {
  PlTensor *t = l_concrete(L, self_only(L, 1, "storage_offset"), "storage_offset");
  lua_pushinteger(L, (lua_Integer)(((char *)t->a.data - (char *)t->storage->data) / (ptrdiff_t)pl_dtype_size((PlDtype)t->a.dtype)));
  return 1;
}

static int m_version(lua_State *L) {
  PlTensor *t = self_only(L, 1, "version");
  if (pl_state.trace) CALL(L, pl_graph_saw_version(pl_state.trace, t));
  lua_pushinteger(L, t->storage->version);
  return 1;
}

static int m_shares(lua_State *L) {
  PlTensor *t = self_only(L, 2, "shares_storage"), *o = l_to_tensor(L, 2);
  if (!o) return l_error(L, "shares_storage: argument #2 must be a tensor, got %s", l_typename(L, 2));
  lua_pushboolean(L, t->storage == o->storage);
  return 1;
}

static void push_element(lua_State *L, const PlTensor *t, int64_t byte_offset) {
  uint64_t room;
  PlArray a = l_element(L, t, byte_offset, &room);
  if (t->a.dtype == PL_BOOL) lua_pushboolean(L, pl_read_i(&a, 0) != 0);
  else if (pl_is_float((PlDtype)t->a.dtype)) lua_pushnumber(L, pl_read_f(&a, 0));
  else lua_pushinteger(L, (lua_Integer)pl_read_i(&a, 0));
}

static int m_item(lua_State *L) {
  PlTensor *t = l_concrete(L, self_only(L, 1, "item"), "item");
  if (t->a.numel != 1)
    return l_error(L, "item: %s has %d elements, not one; use x:totable(), or x:get(i, j)", pl_desc_text(&t->a), (int)t->a.numel);
  push_element(L, t, 0);
  return 1;
}

/* Byte offset of the element named by the 1-based indices first … first+ndim-1. */
static int64_t element_at(lua_State *L, PlTensor *t, const char *fn, int first) {
  int64_t at = 0;
  if (lua_gettop(L) - first + 1 < t->a.ndim)
    l_error(L, "%s: %s needs %d indices, got %d", fn, pl_desc_text(&t->a), t->a.ndim, lua_gettop(L) - first + 1);
  for (int d = 0; d < t->a.ndim; d++) {
    int64_t i = l_check_int(L, first + d, fn, "index"), n = t->a.shape[d];
    if (i == 0 || i > n || i < -n)
      l_error(L, "%s: index %lld is out of range for dimension %d of %s%s", fn, (long long)i, d + 1, pl_desc_text(&t->a),
              i == 0 ? "; indices start at 1" : "");
    at += (i > 0 ? i - 1 : i + n) * t->a.strides[d];
  }
  return at * (int64_t)pl_dtype_size((PlDtype)t->a.dtype);
}

static int m_get(lua_State *L) {
  PlTensor *t = l_concrete(L, l_self(L, "get"), "get");
  if (lua_gettop(L) - 1 > t->a.ndim)
    return l_error(L, "get: %s takes %d indices, got %d", pl_desc_text(&t->a), t->a.ndim, lua_gettop(L) - 1);
  push_element(L, t, element_at(L, t, "get", 2));
  return 1;
}

/* t:set(i, j, value) */
static int m_set(lua_State *L) {
  PlTensor *t = l_concrete(L, l_self(L, "set"), "set");
  int top = lua_gettop(L);
  if (top != t->a.ndim + 2)
    return l_error(L, "set: %s takes %d indices and a value, got %d arguments", pl_desc_text(&t->a), t->a.ndim, top - 1);
  if (lua_type(L, top) != LUA_TNUMBER && lua_type(L, top) != LUA_TBOOLEAN)
    return l_error(L, "set: the value must be a number or a boolean, got %s", l_typename(L, top));
  if ((t->node || t->more) && !pl_leaf_rests(t))
    return l_error(L, "set: %s is tracked for gradients; assign inside T.no_grad() to a detached tensor", pl_desc_text(&t->a));
  int64_t at = element_at(L, t, "set", 2);
  if (PL_UNLIKELY(pl_watched())) CALL(L, pl_checkpoint_writes("set", t));
  l_check_stored(L, top, (PlDtype)t->a.dtype, "set");
  CALL(L, pl_writes(t->storage));
  CALL(L, pl_own(t->storage));
  if (PL_UNLIKELY(t->a.device != PL_CPU)) {
    uint64_t v = 0;
    l_write_value(L, top, (PlDtype)t->a.dtype, &v);
    CALL(L, pl_device_open()->upload(pl_gpu_index(t->a.device), (char *)t->a.data + at, &v, pl_dtype_size((PlDtype)t->a.dtype)));
  } else l_write_value(L, top, (PlDtype)t->a.dtype, (char *)t->a.data + at);
  t->storage->version++;
  if (PL_UNLIKELY(pl_watched())) pl_checkpoint_wrote(t);
  lua_settop(L, 1);
  return 1;
}

static void push_nested(lua_State *L, const PlTensor *t, int d, int64_t at) {
  if (d == t->a.ndim) {
    push_element(L, t, at);
    return;
  }
  luaL_checkstack(L, 4, NULL);
  int64_t n = t->a.shape[d], step = t->a.strides[d] * (int64_t)pl_dtype_size((PlDtype)t->a.dtype);
  lua_createtable(L, n < 1 << 20 ? (int)n : 0, 0);
  for (int64_t i = 0; i < n; i++) {
    push_nested(L, t, d + 1, at + i * step);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
    if (PL_UNLIKELY(i % L_POLL == L_POLL - 1) && plk_poll() != PL_OK) l_fail(L, PL_ERR_INTERRUPT);
  }
}

/* x:totable() → nested tables (a number or boolean for 0-d). */
static int m_totable(lua_State *L) {
  PlTensor *t = l_on_host(L, l_concrete(L, self_only(L, 1, "totable"), "totable"));
  push_nested(L, t, 0, 0);
  return 1;
}

/* x:to_string() → the elements as bytes, row-major, little-endian. */
static int m_to_string(lua_State *L) {
  PlTensor *t = l_on_host(L, l_concrete(L, self_only(L, 1, "to_string"), "to_string"));
  Box *b = NULL;
  if (!t->a.contiguous) {
    b = l_new_box(L);
    CALL(L, pl_tensor_copy(&b->t, t));
    t = b->t;
  }
  CALL(L, pl_present(t));
  lua_pushlstring(L, t->a.data, (size_t)t->a.numel * pl_dtype_size((PlDtype)t->a.dtype));
  return 1;
}

/* x:free() releases the memory now; every later use of x is an error. */
static int m_free(lua_State *L) {
  Box *b = l_box(L, 1);
  if (!b) return l_error(L, "free: argument #1 must be a tensor, got %s", l_typename(L, 1));
  l_at_most(L, 1, "free");
  if (!b->t) return l_error(L, "free: this tensor was freed before");
  /* Inside a finalizer (then lua_gc refuses) an op further down the stack may be about to use it: leave the
   * tensor to the collector. */
  if (lua_gc(L, LUA_GCCOUNT) < 0) return 0;
  l_empty_box(L);
  return 0;
}

/* core.is_freed(x): for perilune's own functions, which ask in order not to fail. */
static int t_is_freed(lua_State *L) {
  const Box *b = l_box(L, 1);
  lua_pushboolean(L, b && !b->t);
  return 1;
}

static int m_is_freed(lua_State *L) {
  const Box *b = l_box(L, 1);
  if (!b) return l_error(L, "is_freed: argument #1 must be a tensor, got %s", l_typename(L, 1));
  l_at_most(L, 1, "is_freed");
  if (pl_state.trace && b->t && !pl_behind(b->t)->a.symbolic)
    return l_error_as(L, PL_ERR_TRACE,
                      "is_freed: of a tensor from outside of the traced function, which a graph would not ask again; ask outside");
  return t_is_freed(L);
}

/* Same shape and same elements; NaN equals nothing. Dtypes must agree. */
static int m_equal(lua_State *L) {
  PlTensor *a = l_concrete(L, self_only(L, 2, "equal"), "equal"), *b = l_to_tensor(L, 2);
  if (!b) return l_error(L, "equal: argument #2 must be a tensor, got %s", l_typename(L, 2));
  (void)l_concrete(L, b, "equal");
  if (a->a.dtype != b->a.dtype || !pl_shape_equal(&a->a, &b->a)) {
    lua_pushboolean(L, 0);
    return 1;
  }
  if (a->a.numel == 0) {
    lua_pushboolean(L, 1);
    return 1;
  }
  PlTensor *in[2] = {a, b};
  Box *eq = l_new_box(L), *all = l_new_box(L);
  bool was = pl_grad_enable(false);
  PlStatus s = pl_apply(&pl_op_eq, in, 2, NULL, &eq->t);
  if (s == PL_OK) s = pl_apply(&pl_op_all, &eq->t, 1, NULL, &all->t);
  pl_grad_enable(was);
  CALL(L, s);
  uint64_t room;
  PlArray whole = l_element(L, all->t, 0, &room);
  lua_pushboolean(L, pl_read_i(&whole, 0) != 0);
  return 1;
}

static int m_len(lua_State *L) {
  PlTensor *t = l_self(L, "#");
  if (t->a.ndim == 0) return l_error(L, "#: a 0-d tensor has no length; use x:item()");
  l_saw(t, 0);
  lua_pushinteger(L, (lua_Integer)t->a.shape[0]);
  return 1;
}

/* Lua turns x > y into y < x: which of the two was written cannot be told, but that of a tensor and a number the tensor's method
 * is meant, and which one. */
static int not_ordered(lua_State *L, const char *op, bool or_equal, int wrong) {
  const char *less = or_equal ? "le" : "lt", *greater = or_equal ? "ge" : "gt", *sign = or_equal ? ">=" : ">";
  const char *what = l_typename(L, wrong);
  if (lua_type(L, 1) == LUA_TNUMBER)
    return l_error(L, "'%s' and '%s' compare 0-dim tensors and numbers, not %s; elementwise: x:%s(%s) for x %s %s", op, sign, what, greater,
                   luaL_tolstring(L, 1, NULL), sign, luaL_tolstring(L, 1, NULL));
  if (lua_type(L, 2) == LUA_TNUMBER)
    return l_error(L, "'%s' and '%s' compare 0-dim tensors and numbers, not %s; elementwise: x:%s(%s) for x %s %s", op, sign, what, less,
                   luaL_tolstring(L, 2, NULL), op, luaL_tolstring(L, 2, NULL));
  return l_error(L, "'%s' and '%s' compare 0-dim tensors and numbers, not %s; elementwise: x:%s(y) for x %s y, x:%s(y) for x %s y", op,
                 sign, what, less, op, greater, sign);
}

/* `<` and `<=` order 0-d tensors and numbers only: Lua turns the result into one boolean. */
static int compare(lua_State *L, const char *op, bool or_equal) {
  for (int i = 1; i <= 2; i++) {
    PlTensor *t = l_to_tensor(L, i);
    if (t && t->a.ndim == 0) {
      push_element(L, l_concrete(L, t, op), 0);
      if (lua_isboolean(L, -1)) lua_pushinteger(L, lua_toboolean(L, -1));
    } else if (lua_type(L, i) == LUA_TNUMBER) lua_pushvalue(L, i);
    else return not_ordered(L, op, or_equal, i);
    if (i == 1) lua_insert(L, 3); /* below what a bool left */
  }
  lua_pushboolean(L, lua_compare(L, 3, -1, or_equal ? LUA_OPLE : LUA_OPLT)); /* integers exactly, as Lua does */
  return 1;
}
static int m_lt(lua_State *L) { return compare(L, "<", false); }
static int m_le(lua_State *L) { return compare(L, "<=", true); }

static int t_is_tensor(lua_State *L) {
  l_at_most(L, 1, "is_tensor");
  lua_pushboolean(L, l_box(L, 1) != NULL);
  return 1;
}

/* x:describe() → "f32[2,3]" */
static int m_describe(lua_State *L) {
  l_at_most(L, 1, "describe");
  if (l_to_tensor(L, 1)) l_saw(l_to_tensor(L, 1), PL_SAW_SHAPE);
  lua_pushstring(L, l_typename(L, 1));
  return 1;
}

void l_tensor_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"is_tensor", t_is_tensor}, {"is_freed", t_is_freed}, {NULL, NULL}};
  static const luaL_Reg methods[] = {{"size", m_size},
                                     {"shape", m_size},
                                     {"stride", m_stride},
                                     {"dim", m_dim},
                                     {"numel", m_numel},
                                     {"dtype", m_dtype},
                                     {"device", m_device},
                                     {"is_cuda", m_is_cuda},
                                     {"is_floating_point", m_is_floating_point},
                                     {"element_size", m_element_size},
                                     {"storage_offset", m_storage_offset},
                                     {"version", m_version},
                                     {"shares_storage", m_shares},
                                     {"item", m_item},
                                     {"get", m_get},
                                     {"set", m_set},
                                     {"totable", m_totable},
                                     {"to_string", m_to_string},
                                     {"free", m_free},
                                     {"is_freed", m_is_freed},
                                     {"equal", m_equal},
                                     {"describe", m_describe},
                                     {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  l_add_methods(L, methods);
  l_box_metatable(L);
  lua_pushcfunction(L, m_len);
  lua_setfield(L, -2, "__len");
  lua_pushcfunction(L, m_lt);
  lua_setfield(L, -2, "__lt");
  lua_pushcfunction(L, m_le);
  lua_setfield(L, -2, "__le");
  lua_pop(L, 1);
}
