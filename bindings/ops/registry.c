/* SPDX-License-Identifier: MIT
 * Registering the ops: functions, methods, operators, and core.ops(), the descriptors as Lua tables, from which help,
 * reference pages and generated checks are made. */
#include <string.h>

#include "bindings/core/lib.h"
#include "bindings/ops/call.h"
#include "engine/ops/names.h"

/* ---- registering -------------------------------------------------------------------------------------------------- */

static void push_closure(lua_State *L, const PlOp *op, bool inplace, lua_CFunction f) {
  lua_pushlightuserdata(L, (void *)(uintptr_t)op);
  lua_pushboolean(L, inplace);
  l_result_metatable(L);
  lua_pushcclosure(L, f, 3);
}

static int push_attr_info(lua_State *L, const PlAttrDef *d) {
  static const char *const types[] = {"int",   "float", "bool",  "scalar", "dim",   "newdim", "dims",
                                      "index", "ints",  "shape", "floats", "dtype", "enum",   "index_base"};
  lua_createtable(L, 0, 6);
  lua_pushstring(L, d->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, types[d->type]);
  lua_setfield(L, -2, "type");
  lua_pushboolean(L, d->optional);
  lua_setfield(L, -2, "optional");
  if (d->choices) {
    lua_pushstring(L, d->choices);
    lua_setfield(L, -2, "choices");
  }
  if (d->has_def) {
    if (d->type == PL_A_FLOAT) lua_pushnumber(L, d->f);
    else if (d->type == PL_A_BOOL) lua_pushboolean(L, d->i != 0);
    else if (d->type == PL_A_DIM || d->type == PL_A_NEWDIM || d->type == PL_A_INDEX)
      lua_pushinteger(L, (lua_Integer)(d->i >= 0 ? d->i + 1 : d->i));
    else if (d->type == PL_A_DTYPE) lua_pushstring(L, pl_dtype_name((PlDtype)d->i));
    else lua_pushinteger(L, (lua_Integer)d->i);
    lua_setfield(L, -2, "default");
  }
  return 1;
}

static void flag(lua_State *L, const PlOp *op, uint32_t bit, const char *name) {
  lua_pushboolean(L, (op->flags & bit) != 0);
  lua_setfield(L, -2, name);
}

static void push_op_info(lua_State *L, const PlOp *op) {
  static const char *const classes[] = {"pointwise", "view", "reduction", "heavy", "indexing", "creation", "opaque"};
  lua_createtable(L, 0, 12);
  lua_pushstring(L, op->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, op->doc ? op->doc : "");
  lua_setfield(L, -2, "doc");
  if (op->example) {
    lua_pushstring(L, op->example);
    lua_setfield(L, -2, "example");
  }
  if (op->formula) {
    lua_pushstring(L, op->formula);
    lua_setfield(L, -2, "formula");
  }
  lua_pushinteger(L, op->nin);
  lua_setfield(L, -2, "nin");
  lua_pushinteger(L, op->nopt);
  lua_setfield(L, -2, "nopt");
  lua_pushinteger(L, op->nvisible ? op->nvisible : op->nout);
  lua_setfield(L, -2, "nout");
  lua_pushstring(L, classes[op->cls]);
  lua_setfield(L, -2, "class");
  lua_pushboolean(L, (op->grad || op->native || op->expand) && !(op->flags & PL_F_NOGRAD_OK));
  lua_setfield(L, -2, "differentiable");
  lua_newtable(L);
  for (int i = 0; i < (op->nin == PL_VARIADIC ? 1 : op->nin); i++) {
    lua_pushstring(L, op->args[i] ? op->args[i] : "x");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "args");
  lua_newtable(L);
  for (int k = 0; k < op->nattr; k++) {
    push_attr_info(L, &op->attrs[k]);
    lua_rawseti(L, -2, k + 1);
  }
  lua_setfield(L, -2, "attrs");
  lua_newtable(L);
  flag(L, op, PL_F_INPLACE, "inplace");
  flag(L, op, PL_F_INTERNAL, "internal");
  flag(L, op, PL_F_SCALAR, "scalar");
  flag(L, op, PL_F_SEEDED, "seeded");
  flag(L, op, PL_F_MUTATES, "mutates");
  flag(L, op, PL_F_NOMETHOD, "nomethod");
  flag(L, op, PL_F_NOGRAD_OK, "no_gradient");
  flag(L, op, PL_F_COMMUTES, "commutes");
  lua_setfield(L, -2, "flags");
}

static int core_ops(lua_State *L) {
  int n;
  const PlOp *const *ops = pl_ops(&n);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    push_op_info(L, ops[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static void set_meta(lua_State *L, const char *event, const PlOp *op, lua_CFunction f) {
  l_box_metatable(L);
  push_closure(L, op, false, f);
  lua_setfield(L, -2, event);
  lua_pop(L, 1);
}

void l_ops_register(lua_State *L) {
  int n, module = lua_gettop(L);
  const PlOp *const *ops = pl_ops(&n);
  l_box_metatable(L);
  lua_getfield(L, -1, "methods");
  int methods = lua_gettop(L);
  lua_newtable(L); /* every op by its name */
  int all = lua_gettop(L);
  for (int i = 0; i < n; i++) {
    const PlOp *op = ops[i];
    bool mutates = (op->flags & PL_F_MUTATES) != 0;
    push_closure(L, op, false, l_op_call);
    if (!(op->flags & PL_F_INTERNAL)) { /* internal ones trust their callers, the gradient makers */
      lua_pushvalue(L, -1);
      lua_setfield(L, all, op->name);
    }
    if (!(op->flags & PL_F_INTERNAL) && !mutates) {
      lua_pushvalue(L, -1);
      lua_setfield(L, module, op->name);
      if (op->nin != PL_VARIADIC && op->nin > 0 && !(op->flags & PL_F_NOMETHOD)) {
        lua_pushvalue(L, -1);
        lua_setfield(L, methods, op->name);
      }
    }
    if ((op->flags & PL_F_INPLACE) || (mutates && op->nin != PL_VARIADIC && !(op->flags & PL_F_INTERNAL))) {
      lua_pushfstring(L, "%s_", op->name);
      push_closure(L, op, !mutates, l_op_call);
      lua_pushvalue(L, -2);
      lua_pushvalue(L, -2);
      lua_settable(L, module);
      lua_settable(L, methods);
    }
    lua_pop(L, 1);
  }
  lua_pushvalue(L, all);
  lua_setfield(L, module, "op");
  lua_settop(L, module);
  lua_pushcfunction(L, core_ops);
  lua_setfield(L, module, "ops");
  for (const BinaryMeta *m = l_binary_meta; m->event; m++) set_meta(L, m->event, m->op, m->f);
  set_meta(L, "__unm", &pl_op_neg, l_op_unary);
  set_meta(L, "__bnot", &pl_op_bitwise_not, l_op_unary);
}
