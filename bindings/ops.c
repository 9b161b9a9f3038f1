/* SPDX-License-Identifier: MIT
 * One generic caller for every op: it reads the descriptor, so an op needs no binding of its own. Function
 * and method are the same closure. */
#include <string.h>

#include "bindings/lib.h"
#include "bindings/ops.h"
#include "engine/grad/graph.h"

enum { UP_OP = 1, UP_INPLACE = 2, MAX_ARGS = 250 };

/* What a call looks like once parsed. Numbers given for tensors sit in boxes on the stack, so nothing is lost
 * when a later argument raises. */
typedef struct Parsed {
  int nin;
  PlTensor **in, *few[PL_MAX_IN];
  int first_box, last_box; /* stack range of the operands, for anchors */
  PlTensor *out;           /* out= */
  int out_at;
  PlAttrs attrs;
} Parsed;

PlStatus l_apply(lua_State *L, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *a, PlTensor **out) {
  PlStatus s = pl_apply(op, in, nin, a, out);
  if (PL_UNLIKELY(s == PL_ERR_OOM)) { /* operands are anchored on the stack: collecting is safe here */
    l_collect_full(L);
    s = pl_apply(op, in, nin, a, out);
  }
  return s;
}

/* ---- operands ------------------------------------------------------------------------------------------- */

static int bad_tensor(lua_State *L, const PlOp *op, int i, int at) {
  const char *arg = op->nin == PL_VARIADIC ? op->args[0] : op->args[i];
  return l_error(L, "%s: argument %s (#%d) must be a tensor%s, got %s", op->name, arg ? arg : "x", at,
                 (op->flags & PL_F_SCALAR) ? " or a number" : "", l_typename(L, at));
}

/* The tensor at `at`; a number becomes a boxed one on top of the stack. NULL: neither. */
static PlTensor *operand(lua_State *L, const PlOp *op, int at) {
  Box *b = l_box(L, at);
  if (b) {
    if (!b->t) l_error(L, "%s: argument #%d: this tensor was freed", op->name, at);
    return b->t;
  }
  if (!(op->flags & PL_F_SCALAR)) return NULL;
  int type = lua_type(L, at);
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN) return NULL;
  PlStatus s;
  b = l_new_box(L);
  if (type == LUA_TBOOLEAN) {
    bool v = lua_toboolean(L, at);
    s = pl_tensor_full(&b->t, PL_BOOL, 0, NULL, v);
    if (s == PL_OK) b->t->a.weak = 1;
  } else
    s = pl_tensor_number(&b->t, lua_isinteger(L, at), lua_isinteger(L, at) ? (int64_t)lua_tointeger(L, at) : 0,
                         lua_tonumber(L, at));
  if (s != PL_OK) l_fail(L, s);
  return b->t;
}

static int read_list(lua_State *L, const PlOp *op, Parsed *p) {
  int top = lua_gettop(L), n = 0, next = 2;
  bool table = lua_type(L, 1) == LUA_TTABLE;
  if (table)
    n = (int)lua_rawlen(L, 1);
  else {
    while (n < top && l_box(L, n + 1)) n++;
    next = n + 1;
  }
  if (n < 1) return l_error(L, "%s: takes a list of at least one tensor, got %s", op->name, table ? "an empty one" : l_typename(L, 1));
  if (n > PL_MAX_VARIADIC) return l_error(L, "%s: takes at most %d tensors", op->name, PL_MAX_VARIADIC);
  if (n > PL_MAX_IN) p->in = lua_newuserdatauv(L, (size_t)n * sizeof *p->in, 0);
  for (int i = 0; i < n; i++) {
    if (table) lua_rawgeti(L, 1, i + 1);
    int at = table ? -1 : i + 1;
    p->in[i] = l_to_tensor(L, at);
    if (!p->in[i])
      return l_error(L, "%s: entry %d of the list must be a tensor, got %s", op->name, i + 1, l_typename(L, at));
    if (table) lua_pop(L, 1);
  }
  p->nin = n;
  return next;
}

static int read_operands(lua_State *L, const PlOp *op, Parsed *p) {
  int top = lua_gettop(L), at = 1;
  p->in = p->few;
  if (op->nin == PL_VARIADIC) return read_list(L, op, p);
  for (int i = 0; i < op->nin; i++) {
    bool optional = i >= op->nin - op->nopt;
    p->in[i] = at <= top ? operand(L, op, at) : NULL;
    if (p->in[i])
      at++;
    else if (optional)
      at += at <= top && lua_isnil(L, at);
    else {
      /* options may name operands: T.linear{…} is not a form, but {other = y} is */
      if (at <= top && !(lua_type(L, at) == LUA_TTABLE && at == top && i > 0)) return bad_tensor(L, op, i, at);
      p->in[i] = NULL;
    }
  }
  p->nin = op->nin;
  return at;
}

/* ---- attributes --------------------------------------------------------------------------------------------- */

static int bad_attr(lua_State *L, const PlOp *op, const PlAttrDef *d, const char *want, int at) {
  return l_error(L, "%s: argument %s must be %s, got %s", op->name, d->name, want, l_typename(L, at));
}

static int64_t attr_int(lua_State *L, const PlOp *op, const PlAttrDef *d, int at, bool one_based) {
  int64_t v;
  if (!l_to_int(L, at, &v)) {
    if (lua_type(L, at) == LUA_TNUMBER)
      return l_error(L, "%s: argument %s must be an integer, got %g", op->name, d->name, lua_tonumber(L, at));
    return bad_attr(L, op, d, "an integer", at);
  }
  if (!one_based) return v;
  if (v == 0)
    return l_error(L, "%s: argument %s is 0; %s start at 1 (-1 is the last)", op->name, d->name,
                   d->type == PL_A_INDEX ? "indices" : "dimensions");
  return v > 0 ? v - 1 : v;
}

static int attr_list(lua_State *L, const PlOp *op, const PlAttrDef *d, PlAttrs *a, int k, int at) {
  int64_t list[PL_ATTR_POOL];
  int n = 0;
  bool one_based = d->type == PL_A_DIMS, is_float = d->type == PL_A_FLOATS;
  bool table = lua_type(L, at) == LUA_TTABLE;
  int count = table ? (int)lua_rawlen(L, at) : 1;
  if (!table && lua_type(L, at) != LUA_TNUMBER) return bad_attr(L, op, d, "an integer or a list of integers", at);
  if (table && count == 0 && d->has_def) return 0; /* an empty list stands for the default */
  if (count > PL_ATTR_POOL / 2) return l_error(L, "%s: argument %s has %d entries, too many", op->name, d->name, count);
  for (; n < count; n++) {
    if (table)
      lua_rawgeti(L, at, n + 1);
    else
      lua_pushvalue(L, at);
    if (is_float) {
      double f = lua_tonumber(L, -1);
      if (lua_type(L, -1) != LUA_TNUMBER) return bad_attr(L, op, d, "a list of numbers", lua_gettop(L));
      memcpy(&list[n], &f, sizeof f);
    } else
      list[n] = attr_int(L, op, d, lua_gettop(L), one_based);
    lua_pop(L, 1);
  }
  a->isint = (uint16_t)(a->isint & ~(1 << k));
  CALL(L, pl_attrs_list(a, k, n, list));
  return 0;
}

static int attr_enum(lua_State *L, const PlOp *op, const PlAttrDef *d, int at) {
  if (lua_type(L, at) != LUA_TSTRING) return bad_attr(L, op, d, d->choices, at);
  const char *s = lua_tostring(L, at);
  size_t n = strlen(s);
  int pos = 0;
  for (const char *p = d->choices; *p; pos++) {
    size_t m = strcspn(p, "|");
    if (m == n && strncmp(p, s, n) == 0) return pos;
    p += m;
    p += *p == '|';
  }
  return l_error(L, "%s: argument %s is \"%s\"; it must be one of %s", op->name, d->name, s, d->choices);
}

static int set_attr(lua_State *L, const PlOp *op, PlAttrs *a, int k, int at) {
  const PlAttrDef *d = &op->attrs[k];
  switch (d->type) {
  case PL_A_INT: pl_attrs_int(a, k, attr_int(L, op, d, at, false)); break;
  case PL_A_DIM:
  case PL_A_NEWDIM:
  case PL_A_INDEX: pl_attrs_int(a, k, attr_int(L, op, d, at, true)); break;
  case PL_A_BASE: {
    int64_t v = attr_int(L, op, d, at, false);
    if (v != 0 && v != 1) return l_error(L, "%s: index_base must be 0 or 1, got %d", op->name, (int)v);
    pl_attrs_int(a, k, v);
    break;
  }
  case PL_A_FLOAT:
    if (lua_type(L, at) != LUA_TNUMBER) return bad_attr(L, op, d, "a number", at);
    pl_attrs_float(a, k, lua_tonumber(L, at));
    break;
  case PL_A_SCALAR:
    if (lua_type(L, at) == LUA_TBOOLEAN)
      pl_attrs_int(a, k, lua_toboolean(L, at));
    else if (lua_type(L, at) != LUA_TNUMBER)
      return bad_attr(L, op, d, "a number", at);
    else if (lua_isinteger(L, at))
      pl_attrs_int(a, k, (int64_t)lua_tointeger(L, at));
    else
      pl_attrs_float(a, k, lua_tonumber(L, at));
    break;
  case PL_A_BOOL:
    if (lua_type(L, at) != LUA_TBOOLEAN) return bad_attr(L, op, d, "true or false", at);
    pl_attrs_int(a, k, lua_toboolean(L, at));
    break;
  case PL_A_DTYPE: pl_attrs_int(a, k, l_check_dtype(L, at, op->name)); break;
  case PL_A_ENUM: pl_attrs_int(a, k, attr_enum(L, op, d, at)); break;
  case PL_A_DIMS:
  case PL_A_INTS:
  case PL_A_SHAPE:
  case PL_A_FLOATS: return attr_list(L, op, d, a, k, at);
  }
  return 0;
}

static bool takes_list(PlAttrType t) { return t == PL_A_DIMS || t == PL_A_INTS || t == PL_A_SHAPE || t == PL_A_FLOATS; }

/* A table that cannot be a list of numbers: named options. */
static bool is_options(lua_State *L, int at, PlAttrType next) {
  if (lua_type(L, at) != LUA_TTABLE) return false;
  if (!takes_list(next)) return true;
  if (lua_rawlen(L, at) > 0) return false;
  lua_pushnil(L);
  if (!lua_next(L, at)) return next != PL_A_SHAPE && next != PL_A_DIMS;
  lua_pop(L, 2);
  return true;
}

static int unknown_option(lua_State *L, const PlOp *op, const char *key) {
  char allowed[400] = "";
  size_t n = 0;
  for (int k = 0; k < op->nattr + PL_MAX_IN; k++) {
    const char *name = k < op->nattr ? op->attrs[k].name
                       : op->nin != PL_VARIADIC && k - op->nattr < op->nin ? op->args[k - op->nattr]
                                                                          : NULL;
    if (!name || n + strlen(name) + 8 > sizeof allowed) continue;
    n += strlen(strcat(strcat(allowed + n, n ? " " : ""), name));
    n = strlen(allowed);
  }
  if (op->nout == 1 && !(op->flags & PL_F_MUTATES)) strcat(allowed, n ? " out" : "out");
  return l_error(L, "%s: unknown option '%s'%s; allowed: %s", op->name, key, l_did_you_mean(key, allowed), allowed);
}

void l_read_attrs(lua_State *L, const PlOp *op, int options, PlAttrs *a) {
  lua_getfield(L, options, "attrs");
  int at = lua_gettop(L);
  for (int k = 0; k < op->nattr && lua_type(L, at) == LUA_TTABLE; k++) {
    lua_getfield(L, at, op->attrs[k].name);
    if (!lua_isnil(L, -1)) set_attr(L, op, a, k, at + 1);
    lua_settop(L, at);
  }
  lua_settop(L, at - 1);
}

static int read_options(lua_State *L, const PlOp *op, Parsed *p, int at) {
  for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING)
      return l_error(L, "%s: the option table has a positional entry; options are named", op->name);
    const char *key = lua_tostring(L, -2);
    int k = 0, v = lua_gettop(L);
    while (k < op->nattr && strcmp(op->attrs[k].name, key) != 0) k++;
    if (k < op->nattr) {
      set_attr(L, op, &p->attrs, k, v);
      continue;
    }
    int i = op->nin == PL_VARIADIC ? 0 : op->nin;
    while (--i >= 0 && !(op->args[i] && strcmp(op->args[i], key) == 0)) {}
    if (i >= 0) {
      if (p->in[i]) return l_error(L, "%s: argument %s is given twice", op->name, key);
      int top = lua_gettop(L);
      p->in[i] = operand(L, op, v); /* a tensor the table keeps alive, or a boxed number on top … */
      if (!p->in[i]) return bad_tensor(L, op, i, v);
      if (lua_gettop(L) > top) lua_insert(L, -3); /* … which stays below key and value */
    } else if (strcmp(key, "out") == 0 && op->nout == 1 && !(op->flags & PL_F_MUTATES)) {
      p->out = l_to_tensor(L, v);
      if (!p->out) return l_error(L, "%s: out must be a tensor, got %s", op->name, l_typename(L, v));
    } else
      return unknown_option(L, op, key);
  }
  return 0;
}

static int read_attrs(lua_State *L, const PlOp *op, Parsed *p, int at, int top) {
  pl_attrs_init(op, &p->attrs);
  int k = 0;
  for (; k < op->nattr && at <= top; k++) {
    PlAttrType type = op->attrs[k].type;
    if (at == top && is_options(L, at, type)) break;
    if (lua_isnil(L, at)) {
      at++;
      continue;
    }
    if (type == PL_A_SHAPE && lua_type(L, at) == LUA_TNUMBER) { /* x:view(2, -1) */
      int64_t shape[PL_MAX_DIM];
      int n = 0;
      for (; at <= top && lua_type(L, at) == LUA_TNUMBER; at++) {
        if (n == PL_MAX_DIM) return l_error(L, "%s: more than %d sizes", op->name, PL_MAX_DIM);
        shape[n++] = attr_int(L, op, &op->attrs[k], at, false);
      }
      CALL(L, pl_attrs_list(&p->attrs, k, n, shape));
    } else if (type == PL_A_DIMS && lua_type(L, at) == LUA_TNUMBER && k + 1 == op->nattr) { /* x:permute(2, 1) */
      int64_t dims[PL_MAX_DIM];
      int n = 0;
      for (; at <= top && lua_type(L, at) == LUA_TNUMBER; at++) {
        if (n == PL_MAX_DIM) return l_error(L, "%s: more than %d dimensions", op->name, PL_MAX_DIM);
        dims[n++] = attr_int(L, op, &op->attrs[k], at, true);
      }
      CALL(L, pl_attrs_list(&p->attrs, k, n, dims));
    } else
      set_attr(L, op, &p->attrs, k, at++);
  }
  while (at < top && lua_isnil(L, at)) at++;
  if (at == top && lua_type(L, at) == LUA_TTABLE)
    read_options(L, op, p, at++);
  else if (at == top && lua_isnil(L, at))
    at++;
  if (at <= top)
    return l_error(L, "%s: too many arguments: #%d is %s", op->name, at, l_typename(L, at));
  for (int i = 0; op->nin != PL_VARIADIC && i < op->nin - op->nopt; i++)
    if (!p->in[i]) return l_error(L, "%s: argument %s is missing", op->name, op->args[i]);
  return 0;
}

/* ---- calling -------------------------------------------------------------------------------------------------- */

static int push_results(lua_State *L, const PlOp *op, int first) {
  int n = op->nvisible ? op->nvisible : op->nout, pushed = 0;
  for (int o = 0; o < op->nout; o++) {
    Box *b = l_box(L, first + o);
    if (o >= n && b->t) {
      PlTensor *t = b->t;
      b->t = NULL;
      pl_tensor_release(t);
    } else if (o < n && b->t)
      pushed = o + 1;
  }
  lua_settop(L, first + pushed - 1);
  return pushed;
}

static int call_general(lua_State *L, const PlOp *op, bool inplace) {
  int top = lua_gettop(L);
  if (top > MAX_ARGS) return l_error(L, "%s: too many arguments", op->name);
  luaL_checkstack(L, PL_MAX_IN + PL_MAX_OUT + 16, NULL);
  Parsed p = {.out = NULL};
  int at = read_operands(L, op, &p);
  read_attrs(L, op, &p, at, top);
  if (PL_UNLIKELY(l_overridden_count) && l_override_call(L, op, p.in, p.nin, top)) return lua_gettop(L) - top;
  l_collect(L);
  if (op->flags & PL_F_MUTATES) {
    PlTensor *out[PL_MAX_OUT] = {NULL};
    CALL(L, l_apply(L, op, p.in, p.nin, &p.attrs, out));
    for (int o = 0; o < op->nout; o++) pl_tensor_release(out[o]);
    if (op->nin == PL_VARIADIC) return 0;
    l_anchor(L, 1, 1, top);
    lua_pushvalue(L, 1);
    return 1;
  }
  if (inplace || p.out) {
    PlTensor *y = inplace ? p.in[0] : p.out;
    PlStatus s = pl_apply_into(op, p.in, p.nin, &p.attrs, &y);
    if (s == PL_ERR_OOM) {
      l_collect_full(L);
      s = pl_apply_into(op, p.in, p.nin, &p.attrs, &y);
    }
    CALL(L, s);
    if (inplace)
      lua_pushvalue(L, 1);
    else {
      lua_pushliteral(L, "out");
      lua_rawget(L, top);
    }
    l_anchor(L, -1, 1, top);
    return 1;
  }
  int first = lua_gettop(L) + 1;
  for (int o = 0; o < op->nout; o++) l_new_box(L);
  PlTensor *out[PL_MAX_OUT];
  CALL(L, l_apply(L, op, p.in, p.nin, &p.attrs, out));
  for (int o = 0; o < op->nout; o++) l_box(L, first + o)->t = out[o];
  for (int o = 0; o < op->nout; o++) {
    if (out[o] && out[o]->node && out[o]->node->has_lua) l_anchor(L, first + o, 1, top);
  }
  return push_results(L, op, first);
}

/* An empty box with the metatable from the upvalue: no registry look-up. */
static Box *new_result(lua_State *L) {
  Box *b = lua_newuserdatauv(L, sizeof(Box), 1);
  b->t = NULL;
  b->magic = BOX_MAGIC;
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_setmetatable(L, -2);
  l_note_late(L);
  return b;
}

/* One or two tensors and nothing else: most calls of a training step. */
static int call_fast(lua_State *L, const PlOp *op, PlTensor **in, int n) {
  l_collect(L);
  Box *b = new_result(L);
  PlTensor *out;
  PlStatus s = pl_apply(op, in, n, NULL, &out);
  if (PL_UNLIKELY(s == PL_ERR_OOM)) s = l_apply(L, op, in, n, NULL, &out);
  CALL(L, s);
  b->t = out;
  if (PL_UNLIKELY(out->node && out->node->has_lua)) l_anchor(L, n + 1, 1, n);
  return 1;
}

/* x op number: the number takes x's dtype where promotion would give it that anyway, so nothing is cast. */
static int call_number(lua_State *L, const PlOp *op, PlTensor *x, int num) {
  PlDtype d = (PlDtype)x->a.dtype;
  bool whole = lua_isinteger(L, num);
  l_collect(L);
  Box *b = new_result(L); /* first: from here on nothing of Lua's can raise before the number is released */
  PlTensor *t;
  if (pl_is_float(d) || (whole && d != PL_BOOL && op->promote == PL_PROMOTE_ALL)) {
    CALL(L, pl_tensor_empty(&t, d, 0, NULL));
    if (whole)
      pl_write_i(d, t->a.data, (int64_t)lua_tointeger(L, num));
    else
      pl_write_f(d, t->a.data, lua_tonumber(L, num));
    t->a.weak = 1;
  } else
    CALL(L, pl_tensor_number(&t, whole, whole ? (int64_t)lua_tointeger(L, num) : 0, lua_tonumber(L, num)));
  PlTensor *in[2] = {num == 1 ? t : x, num == 1 ? x : t};
  PlStatus s = pl_apply(op, in, 2, NULL, &b->t);
  if (PL_UNLIKELY(s == PL_ERR_OOM)) s = l_apply(L, op, in, 2, NULL, &b->t);
  pl_tensor_release(t);
  CALL(L, s);
  if (PL_UNLIKELY(b->t->node && b->t->node->has_lua)) l_anchor(L, 3, 1, 2);
  return 1;
}

int l_op_call(lua_State *L) {
  const PlOp *op = lua_touserdata(L, lua_upvalueindex(UP_OP));
  bool inplace = lua_toboolean(L, lua_upvalueindex(UP_INPLACE));
  int n = lua_gettop(L);
  if (n == op->nin && n <= 2 && op->nout == 1 && !inplace && !l_overridden_count &&
      !(op->flags & (PL_F_MUTATES | PL_F_SEEDED))) {
    PlTensor *in[2];
    in[0] = l_to_tensor(L, 1);
    if (in[0] && n == 1) return call_fast(L, op, in, 1);
    if (n == 2) {
      in[1] = l_to_tensor(L, 2);
      if (in[0] && in[1]) return call_fast(L, op, in, 2);
      if ((op->flags & PL_F_SCALAR) && op->nattr == 0 && !op->nopt) {
        if (in[0] && lua_type(L, 2) == LUA_TNUMBER) return call_number(L, op, in[0], 2);
        if (in[1] && lua_type(L, 1) == LUA_TNUMBER) return call_number(L, op, in[1], 1);
      }
    }
  }
  return call_general(L, op, inplace);
}

/* The arithmetic metamethods: Lua passes both operands, for unary ones the operand twice. */
static int unary_meta(lua_State *L) {
  lua_settop(L, 1);
  return l_op_call(L);
}

/* ---- registering -------------------------------------------------------------------------------------------------- */

static void push_closure(lua_State *L, const PlOp *op, bool inplace, lua_CFunction f) {
  lua_pushlightuserdata(L, (void *)(uintptr_t)op);
  lua_pushboolean(L, inplace);
  l_result_metatable(L);
  lua_pushcclosure(L, f, 3);
}

static int push_attr_info(lua_State *L, const PlAttrDef *d) {
  static const char *const types[] = {"int",  "float", "bool",  "scalar", "dim",    "newdim", "dims",
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
    if (d->type == PL_A_FLOAT)
      lua_pushnumber(L, d->f);
    else if (d->type == PL_A_BOOL)
      lua_pushboolean(L, d->i != 0);
    else if (d->type == PL_A_DIM || d->type == PL_A_NEWDIM || d->type == PL_A_INDEX)
      lua_pushinteger(L, (lua_Integer)(d->i >= 0 ? d->i + 1 : d->i));
    else
      lua_pushinteger(L, (lua_Integer)d->i);
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
  static const struct {
    const char *event;
    const PlOp *op;
  } binary[] = {{"__add", &pl_op_add}, {"__sub", &pl_op_sub}, {"__mul", &pl_op_mul}, {"__div", &pl_op_div},
                {"__pow", &pl_op_pow}, {"__mod", &pl_op_remainder}, {"__idiv", &pl_op_floor_divide},
                {"__band", &pl_op_bitwise_and}, {"__bor", &pl_op_bitwise_or}, {"__bxor", &pl_op_bitwise_xor},
                {"__shl", &pl_op_bitwise_left_shift}, {"__shr", &pl_op_bitwise_right_shift}};
  for (size_t k = 0; k < sizeof binary / sizeof *binary; k++) set_meta(L, binary[k].event, binary[k].op, l_op_call);
  set_meta(L, "__unm", &pl_op_neg, unary_meta);
  set_meta(L, "__bnot", &pl_op_bitwise_not, unary_meta);
}
