/* SPDX-License-Identifier: MIT
 * GGUF files for lua/perilune/io/gguf.lua: a reader whose tensors are read one at a time, and the writer. Failures of the environment are
 * nil, message, code, errno. */
#include "engine/io/gguf/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bindings/core/lib.h"

static const HandleType gguf_type; /* below the methods */
static PlGguf *check(lua_State *L) { return l_check_handle(L, 1, &gguf_type); }

static int64_t check_entry(lua_State *L, const PlGguf *g) {
  int64_t i = l_check_int(L, 2, "gguf", "i");
  if (i < 1 || i > pl_gguf_count(g)) return l_error(L, "gguf: there is no tensor %lld", (long long)i);
  return i - 1;
}

/* open_gguf(path [, map]) -> reader */
static int open_gguf(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_gguf");
  Handle *h = l_new_handle(L, &gguf_type);
  PlGguf *file = NULL;
  PlStatus s = pl_gguf_open(&file, path);
  h->p = file;
  if (s == PL_OK && lua_toboolean(L, 2)) pl_gguf_map(file);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* gguf:names() -> list in the file's order */
static int gguf_names(lua_State *L) {
  const PlGguf *g = check(L);
  const int64_t n = pl_gguf_count(g);
  lua_createtable(L, (int)n, 0);
  for (int64_t i = 0; i < n; i++) {
    const PlText name = pl_gguf_name(g, i);
    lua_pushlstring(L, name.s, name.n);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* gguf:describe(i) -> dtype that it is read as, {size, …}, ggml's type, bytes in the file */
static int gguf_describe(lua_State *L) {
  const PlGguf *g = check(L);
  int64_t i = check_entry(L, g), shape[PL_MAX_DIM], bytes;
  PlDtype dtype;
  int ndim;
  const char *type = pl_gguf_describe(g, i, &dtype, &ndim, shape, &bytes);
  lua_pushstring(L, pl_dtype_name(dtype));
  lua_createtable(L, ndim, 0);
  for (int d = 0; d < ndim; d++) {
    lua_pushinteger(L, shape[d]);
    lua_rawseti(L, -2, d + 1);
  }
  lua_pushstring(L, type);
  lua_pushinteger(L, bytes);
  return 4;
}

/* gguf:part(i, {start}, {count} [, dtype]) -> tensor of so many elements from start (0-based) on along each dimension */
static int gguf_part(lua_State *L) {
  PlGguf *g = check(L);
  int64_t i = check_entry(L, g), start[PL_MAX_DIM], count[PL_MAX_DIM], shape[PL_MAX_DIM], bytes;
  PlDtype dtype;
  int ndim;
  (void)pl_gguf_describe(g, i, &dtype, &ndim, shape, &bytes);
  if (l_check_shape(L, 3, "slice", start) != ndim || l_check_shape(L, 4, "slice", count) != ndim)
    return l_error(L, "slice: the tensor has %d dimensions", ndim);
  dtype = lua_isnoneornil(L, 5) ? PL_NDTYPE : l_check_dtype(L, 5, "read");
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_gguf_part(g, i, start, count, dtype, &b->t);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* gguf:bytes(i) -> u8 [rows, bytes of a row]: the tensor as it is in the file */
static int gguf_bytes(lua_State *L) {
  PlGguf *g = check(L);
  int64_t i = check_entry(L, g);
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_gguf_bytes(g, i, &b->t);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* ---- metadata ------------------------------------------------------------------------------------------------------- */

static void push_item(lua_State *L, PlGgufItem *item);

/* Integers of 64 bits that are none of Lua's are texts of their digits. */
static void push_u64(lua_State *L, int64_t v) {
  char text[24];
  if (v >= 0) {
    lua_pushinteger(L, v);
  } else {
    snprintf(text, sizeof text, "%" PRIu64, (uint64_t)v);
    lua_pushstring(L, text);
  }
}

static void push_list(lua_State *L, PlGgufValue list) {
  PlGgufItem item;
  luaL_checkstack(L, 4, "metadata");
  lua_createtable(L, list.n < 1 << 20 ? (int)list.n : 1 << 20, 0);
  for (lua_Integer i = 1; pl_gguf_next(&list, &item); i++) {
    push_item(L, &item);
    lua_rawseti(L, -2, i);
  }
}

static void push_item(lua_State *L, PlGgufItem *item) {
  switch (item->kind) {
  case PL_GGUF_F32:
  case PL_GGUF_F64: lua_pushnumber(L, item->f); break;
  case PL_GGUF_BOOL: lua_pushboolean(L, item->i != 0); break;
  case PL_GGUF_TEXT: lua_pushlstring(L, item->text.s, item->text.n); break;
  case PL_GGUF_LIST: push_list(L, item->list); break;
  case PL_GGUF_U64: push_u64(L, item->i); break;
  default: lua_pushinteger(L, item->i); break;
  }
}

/* "u32", "[text]", "[[f32]]": a list of lists by its first element. */
static void push_kind(lua_State *L, const PlGgufItem *item) {
  char text[2 * PL_GGUF_MAX_DEPTH + 16];
  PlGgufItem inner = *item;
  int depth = 0;
  while (inner.kind == PL_GGUF_LIST && depth < PL_GGUF_MAX_DEPTH) {
    PlGgufValue list = inner.list;
    depth++;
    inner.kind = list.kind;
    if (list.kind == PL_GGUF_LIST && !pl_gguf_next(&list, &inner)) break;
  }
  memset(text, '[', (size_t)depth);
  int n = depth + snprintf(text + depth, 16, "%s", pl_gguf_kind_name(inner.kind));
  memset(text + n, ']', (size_t)depth);
  lua_pushlstring(L, text, (size_t)(n + depth));
}

/* gguf:metadata() -> {key = value}, {key = kind}, {key, …} in the file's order */
static int gguf_metadata(lua_State *L) {
  const PlGguf *g = check(L);
  lua_settop(L, 1);
  lua_newtable(L);
  lua_newtable(L);
  lua_newtable(L);
  for (int64_t i = 0; i < pl_gguf_keys(g); i++) {
    PlGgufItem item;
    const PlText key = pl_gguf_key(g, i, &item);
    lua_pushlstring(L, key.s, key.n);
    lua_pushvalue(L, -1);
    push_kind(L, &item);
    lua_rawset(L, 3);
    lua_pushvalue(L, -1);
    lua_rawseti(L, 4, i + 1);
    push_item(L, &item);
    lua_rawset(L, 2);
  }
  return 3;
}

static int gguf_alignment(lua_State *L) {
  lua_pushinteger(L, pl_gguf_alignment(check(L)));
  return 1;
}

static void release(void *p) { pl_gguf_release(p); }
static const luaL_Reg methods[] = {{"names", gguf_names},       {"describe", gguf_describe},   {"part", gguf_part}, {"bytes", gguf_bytes},
                                   {"metadata", gguf_metadata}, {"alignment", gguf_alignment}, {NULL, NULL}};
static const HandleType gguf_type = {"perilune.gguf", "gguf", release, methods, 0};

/* ---- writing -------------------------------------------------------------------------------------------------------- */

/* save_gguf(path, {name, …}, {tensor, …}, {type, …}, {raw, …}, count of keys, their bytes, alignment) -> true */
static int save_gguf(lua_State *L) {
  const char *path = l_check_path(L, 1, "save_gguf");
  for (int i = 2; i <= 5; i++) luaL_checktype(L, i, LUA_TTABLE);
  int64_t nkeys = l_check_int(L, 6, "save_gguf", "keys"), alignment = l_check_int(L, 8, "save_gguf", "alignment");
  PlText keys;
  keys.s = luaL_checklstring(L, 7, &keys.n);
  lua_settop(L, 8);
  const int64_t n = (int64_t)lua_rawlen(L, 2);
  PlGgufTensor *list = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *list, 0);
  lua_newtable(L);
  const int copies = lua_gettop(L);
  for (int64_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    list[i].name.s = luaL_checklstring(L, -1, &list[i].name.n);
    lua_rawgeti(L, 4, i + 1);
    list[i].type = luaL_checkstring(L, -1);
    lua_rawgeti(L, 5, i + 1);
    list[i].raw = lua_toboolean(L, -1);
    lua_rawgeti(L, 3, i + 1);
    PlTensor *t = l_to_tensor(L, -1);
    if (!t) return l_error(L, "save_gguf: '%s' is %s, not a tensor", list[i].name.s, l_typename(L, -1));
    (void)l_concrete(L, t, "save_gguf");
    if (t->a.device != PL_CPU) { /* the copy here takes its place in a list of our own */
      t = l_on_host(L, t);
      lua_rawseti(L, copies, i + 1);
    }
    list[i].t = t;
    lua_settop(L, copies);
  }
  PlStatus s = pl_gguf_save(path, n, list, nkeys, keys, alignment);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, 1);
  return 1;
}

/* block_formats() -> list of {name=, id=, elements=, bytes=, reads=, writes=} */
static int block_formats(lua_State *L) {
  lua_newtable(L);
  const PlkBlockFormat *f;
  for (int i = 0; (f = plk_block_format_at(i)) != NULL; i++) {
    lua_createtable(L, 0, 6);
    lua_pushstring(L, f->name);
    lua_setfield(L, -2, "name");
    lua_pushinteger(L, f->id);
    lua_setfield(L, -2, "id");
    lua_pushinteger(L, f->elements);
    lua_setfield(L, -2, "elements");
    lua_pushinteger(L, f->bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushboolean(L, f->dequantize != NULL);
    lua_setfield(L, -2, "reads");
    lua_pushboolean(L, f->quantize != NULL);
    lua_setfield(L, -2, "writes");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* packed_weights(qweight, qzeros, scales, g_idx or nil, {bits, in, out, group_size, awq, less_one, numbers}) -> blocks, their format;
 * or numbers. The list has integers, the last three 0 or 1. */
static int packed_weights(lua_State *L) {
  PlTensor *t[4];
  for (int k = 0; k < 4; k++) t[k] = k == 3 && lua_isnoneornil(L, 4) ? NULL : l_check_tensor(L, k + 1);
  int64_t v[7];
  luaL_checktype(L, 5, LUA_TTABLE);
  for (int k = 0; k < 7; k++) {
    lua_rawgeti(L, 5, k + 1);
    v[k] = l_check_int(L, -1, "packed_weights", "of the list");
    lua_pop(L, 1);
  }
  for (int k = 0; k < 4; k++)
    if (t[k] && (!t[k]->a.contiguous || t[k]->a.dtype != (k == 2 ? PL_F32 : PL_I32) || !pl_tensor_data(t[k])))
      return l_error(L, "packed_weights: tensor %d must be contiguous, i32, scales f32", k + 1);
  const PlPackedWeights p = {.bits = (int)v[0], .in = v[1], .out = v[2], .group_size = v[3], .awq = v[4] != 0, .less_one = v[5] != 0};
  l_collect(L);
  Box *b = l_new_box(L);
  const char *format = NULL;
  CALL(L, pl_packed_weights(&p, t[0], t[1], t[2], t[3], v[6] != 0, &b->t, &format));
  if (!format) return 1;
  lua_pushstring(L, format);
  return 2;
}

void l_gguf_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"open_gguf", open_gguf},
                                  {"save_gguf", save_gguf},
                                  {"block_formats", block_formats},
                                  {"packed_weights", packed_weights},
                                  {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
