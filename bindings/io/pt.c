/* SPDX-License-Identifier: MIT
 * PyTorch's files for lua/perilune/io/pt.lua: opcodes of their pickle and bytes of their storages. Each method gives its value,
 * or nil, message, code. */
#include "engine/io/pt.h"

#include <stdlib.h>

#include "bindings/core/lib.h"

typedef struct Reader {
  PlPt *file;
  PlPickle *pickle; /* borrowed from the file; NULL before begin */
} Reader;

static const HandleType pt_type; /* below the methods */
static Reader *check_pt(lua_State *L) { return l_check_handle(L, 1, &pt_type); }

static void release(void *p) {
  Reader *r = p;
  if (r) pl_pt_release(r->file);
  free(r);
}

static PlPickle *check_pickle(lua_State *L) {
  PlPickle *p = check_pt(L)->pickle;
  if (!p) l_error(L, "load_pt: no pickle has begun");
  return p;
}

/* open_pt(path) -> reader */
static int open_pt(lua_State *L) {
  const char *path = l_check_path(L, 1, "load_pt");
  Handle *h = l_new_handle(L, &pt_type);
  Reader *r = calloc(1, sizeof *r);
  h->p = r;
  if (!r) return l_fail(L, pl_fail(PL_ERR_OOM, "load_pt: out of memory"));
  PlStatus s = pl_pt_open(&r->file, path);
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

/* pt:is_zip() -> boolean */
static int pt_is_zip(lua_State *L) {
  lua_pushboolean(L, pl_pt_is_zip(check_pt(L)->file));
  return 1;
}

/* pt:begin([at]) -> true: the pickle is read from its start, in an old file from byte `at` */
static int pt_begin(lua_State *L) {
  Reader *r = check_pt(L);
  r->pickle = NULL;
  PlStatus s = pl_pt_begin(r->file, luaL_optinteger(L, 2, 0), &r->pickle);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushboolean(L, 1);
  return 1;
}

static const char *const names[] = {
#define NAME(name) #name,
    PL_PICKLE_OPS(NAME)
#undef NAME
};

/* pt:next() -> name of the opcode [, argument [, second argument]] */
static int pt_next(lua_State *L) {
  PlPickle *p = check_pickle(L);
  PlPickleOp op;
  PlStatus s = pl_pickle_next(p, &op);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushstring(L, names[op.kind]);
  switch (op.kind) {
  case PL_PICKLE_integer:
  case PL_PICKLE_tuple_of:
  case PL_PICKLE_get:
  case PL_PICKLE_put: lua_pushinteger(L, op.i); return 2;
  case PL_PICKLE_number: lua_pushnumber(L, op.f); return 2;
  case PL_PICKLE_text:
  case PL_PICKLE_big: lua_pushlstring(L, op.s, op.n); return 2;
  case PL_PICKLE_global:
    lua_pushlstring(L, op.s, op.n);
    lua_pushlstring(L, op.name, op.nname);
    return 3;
  default: return 1;
  }
}

/* pt:place() -> the byte behind the last opcode */
static int pt_place(lua_State *L) {
  lua_pushinteger(L, pl_pickle_place(check_pickle(L)));
  return 1;
}

/* pt:bad(why [, unsupported]) -> nil, message, code */
static int pt_bad(lua_State *L) {
  PlStatus code = lua_toboolean(L, 3) ? PL_ERR_UNSUPPORTED : PL_ERR_FORMAT;
  return l_io_failure(L, pl_pickle_bad(check_pickle(L), code, luaL_checkstring(L, 2)));
}

/* pt:storage(key, form, n, at) -> tensor [n], the byte behind it; form: an element in the file, as safetensors calls it */
static int pt_storage(lua_State *L) {
  const Reader *r = check_pt(L);
  size_t nkey, nform;
  const char *key = luaL_checklstring(L, 2, &nkey), *form = luaL_checklstring(L, 3, &nform);
  int64_t n = luaL_checkinteger(L, 4), at = luaL_optinteger(L, 5, 0);
  const PlWire *wire = pl_wire_find(form, nform);
  if (!wire || wire->dtype == PL_NDTYPE) return l_error(L, "load_pt: no element is called %s", form);
  l_collect(L);
  Box *b = l_new_box(L);
  PlStatus s = pl_pt_storage(r->file, key, nkey, wire, n, &at, &b->t);
  if (s != PL_OK) return l_io_failure(L, s);
  lua_pushinteger(L, at);
  return 2;
}

/* pt:view(storage, {size}, {stride}, offset from 0) -> tensor on the same memory; nil, message, code if it reaches outside */
static int pt_view(lua_State *L) {
  const PlPickle *p = check_pickle(L);
  PlTensor *whole = l_check_tensor(L, 2);
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  int ndim = l_check_shape(L, 3, "load_pt", shape), ns = l_check_shape(L, 4, "load_pt", strides);
  int64_t offset = luaL_checkinteger(L, 5);
  Box *b = l_new_box(L);
  PlStatus s = ndim == ns ? pl_tensor_view(&b->t, whole, ndim, shape, strides, offset) : PL_ERR_SHAPE;
  if (s == PL_ERR_SHAPE) s = pl_pickle_bad(p, PL_ERR_FORMAT, "a tensor that reaches outside its storage");
  return s == PL_OK ? 1 : l_io_failure(L, s);
}

static const luaL_Reg methods[] = {{"is_zip", pt_is_zip}, {"begin", pt_begin},     {"next", pt_next}, {"place", pt_place},
                                   {"bad", pt_bad},       {"storage", pt_storage}, {"view", pt_view}, {NULL, NULL}};
static const HandleType pt_type = {"perilune.pt", "pt", release, methods, 0};

void l_pt_register(lua_State *L) {
  lua_pushcfunction(L, open_pt);
  lua_setfield(L, -2, "open_pt");
}
