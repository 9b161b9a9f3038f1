/* SPDX-License-Identifier: MIT
 * Reading the arguments of an op call by its descriptor: operands (tensors, numbers, a list), attributes by position
 * or by name, options. See arguments.h. */
#include <string.h>

#include "bindings/ops/arguments.h"

/* ---- operands ------------------------------------------------------------------------------------------- */

static int bad_tensor(lua_State *L, const PlOp *op, int i, int at) {
  const char *arg = op->nin == PL_VARIADIC ? op->args[0] : op->args[i];
  return l_error(L, "%s: argument %s (#%d) must be a tensor%s, got %s", op->name, arg ? arg : "x", at,
                 (op->flags & PL_F_SCALAR) ? " or a number" : "", l_typename(L, at));
}

/* The tensor at `at`; a number becomes a boxed one on top of the stack. NULL: neither. */
static PlTensor *operand(lua_State *L, const PlOp *op, int at, bool *boolean) {
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
  *boolean |= type == LUA_TBOOLEAN;
  if (type == LUA_TBOOLEAN) {
    bool v = lua_toboolean(L, at);
    s = pl_tensor_full(&b->t, PL_BOOL, 0, NULL, v);
    if (s == PL_OK) b->t->a.weak = 1;
  } else s = pl_tensor_number(&b->t, lua_isinteger(L, at), lua_isinteger(L, at) ? (int64_t)lua_tointeger(L, at) : 0, lua_tonumber(L, at));
  if (s != PL_OK) l_fail(L, s);
  return b->t;
}

static int read_list(lua_State *L, const PlOp *op, Parsed *p) {
  int top = lua_gettop(L), n = 0, next = 2;
  bool table = lua_type(L, 1) == LUA_TTABLE;
  if (table) n = (int)lua_rawlen(L, 1);
  else {
    while (n < top && l_box(L, n + 1)) n++;
    next = n + 1;
  }
  if (table && l_push_stray(L, 1, n))
    return l_error(L, "%s: takes a list of tensors; it has the key '%s' (options stand in a table behind it)", op->name,
                   lua_tostring(L, -1));
  if (n < 1) return l_error(L, "%s: takes a list of at least one tensor, got %s", op->name, table ? "an empty one" : l_typename(L, 1));
  if (n > PL_MAX_VARIADIC) return l_error(L, "%s: takes at most %d tensors", op->name, PL_MAX_VARIADIC);
  if (n > PL_MAX_IN) p->in = lua_newuserdatauv(L, (size_t)n * sizeof *p->in, 0);
  for (int i = 0; i < n; i++) {
    if (table) lua_rawgeti(L, 1, i + 1);
    int at = table ? -1 : i + 1;
    p->in[i] = l_to_tensor(L, at);
    if (!p->in[i]) return l_error(L, "%s: entry %d of the list must be a tensor, got %s", op->name, i + 1, l_typename(L, at));
    if (table) lua_pop(L, 1);
  }
  p->nin = n;
  return next;
}

/* x:gather(dim, index): PyTorch's order, where the dimension stands before the other tensors. */
static bool dim_first(lua_State *L, const PlOp *op) {
  return op->nattr > 0 && op->attrs[0].type == PL_A_DIM && lua_type(L, 2) == LUA_TNUMBER && l_box(L, 3);
}

int l_read_operands(lua_State *L, const PlOp *op, Parsed *p) {
  int top = lua_gettop(L), at = 1;
  p->in = p->few;
  p->boolean = false;
  if (op->nin == PL_VARIADIC) return read_list(L, op, p);
  p->dim_at = 0;
  for (int i = 0; i < op->nin; i++) {
    bool optional = i >= op->nin - op->nopt;
    if (i == 1 && dim_first(L, op)) p->dim_at = at++;
    p->in[i] = at <= top ? operand(L, op, at, &p->boolean) : NULL;
    if (p->in[i]) at++;
    else if (optional) at += at <= top && lua_isnil(L, at);
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
  if (table && l_push_stray(L, at, count))
    return l_error(L, "%s: argument %s is a list of %s; it has the key '%s' (options stand in one table, the last argument)", op->name,
                   d->name, is_float ? "numbers" : "integers", lua_tostring(L, -1));
  if (!table && lua_type(L, at) != LUA_TNUMBER) return bad_attr(L, op, d, "an integer or a list of integers", at);
  if (table && count == 0 && d->has_def) return 0; /* an empty list stands for the default */
  if (count > PL_ATTR_POOL / 2) return l_error(L, "%s: argument %s has %d entries, too many", op->name, d->name, count);
  for (; n < count; n++) {
    if (table) lua_rawgeti(L, at, n + 1);
    else lua_pushvalue(L, at);
    if (is_float) {
      double f = lua_tonumber(L, -1);
      if (lua_type(L, -1) != LUA_TNUMBER) return bad_attr(L, op, d, "a list of numbers", lua_gettop(L));
      memcpy(&list[n], &f, sizeof f);
    } else list[n] = attr_int(L, op, d, lua_gettop(L), one_based);
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
    if (lua_type(L, at) == LUA_TBOOLEAN && d->truth) pl_attrs_int(a, k, lua_toboolean(L, at));
    else if (lua_type(L, at) != LUA_TNUMBER) return bad_attr(L, op, d, "a number", at);
    else if (lua_isinteger(L, at)) pl_attrs_int(a, k, (int64_t)lua_tointeger(L, at));
    else pl_attrs_float(a, k, lua_tonumber(L, at));
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

/* A table that cannot be a list of numbers: named options. An empty one is a list where one has to be given. */
static bool is_options(lua_State *L, int at, const PlAttrDef *next) {
  if (lua_type(L, at) != LUA_TTABLE) return false;
  if (!takes_list(next->type)) return true;
  if (lua_rawlen(L, at) > 0) return false;
  lua_pushnil(L);
  if (!lua_next(L, at)) return next->type != PL_A_SHAPE && next->type != PL_A_DIMS && (next->optional || next->has_def);
  lua_pop(L, 2);
  return true;
}

static int unknown_option(lua_State *L, const PlOp *op, const char *key) {
  char allowed[400] = "";
  size_t n = 0;
  for (int k = 0; k < op->nattr + PL_MAX_IN; k++) {
    const char *name = k < op->nattr                                       ? op->attrs[k].name
                       : op->nin != PL_VARIADIC && k - op->nattr < op->nin ? op->args[k - op->nattr]
                                                                           : NULL;
    if (!name || n + strlen(name) + 8 > sizeof allowed) continue;
    n += strlen(strcat(strcat(allowed + n, n ? " " : ""), name));
    n = strlen(allowed);
  }
  if (op->nout == 1 && !(op->flags & PL_F_MUTATES)) strcat(allowed, n ? " out" : "out");
  return l_error(L, "%s: unknown option '%s'%s; allowed: %s", op->name, key, l_did_you_mean(L, key, allowed), allowed);
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

/* given: bits of the attributes that came by position. */
static int read_options(lua_State *L, const PlOp *op, Parsed *p, int at, uint32_t given) {
  for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) return l_error(L, "%s: the option table has a positional entry; options are named", op->name);
    const char *key = lua_tostring(L, -2);
    int k = 0, v = lua_gettop(L);
    while (k < op->nattr && strcmp(op->attrs[k].name, key) != 0) k++;
    if (k < op->nattr) {
      if ((given >> k) & 1) return l_error(L, "%s: argument %s is given twice", op->name, key);
      set_attr(L, op, &p->attrs, k, v);
      continue;
    }
    int i = op->nin == PL_VARIADIC ? 0 : op->nin;
    while (--i >= 0 && !(op->args[i] && strcmp(op->args[i], key) == 0)) {
    }
    if (i >= 0) {
      if (p->in[i]) return l_error(L, "%s: argument %s is given twice", op->name, key);
      int top = lua_gettop(L);
      p->in[i] = operand(L, op, v, &p->boolean); /* a tensor the table keeps alive, or a boxed number on top … */
      if (!p->in[i]) return bad_tensor(L, op, i, v);
      if (lua_gettop(L) > top) lua_insert(L, -3); /* … which stays below key and value */
    } else if (strcmp(key, "out") == 0 && op->nout == 1 && !(op->flags & PL_F_MUTATES)) {
      p->out = l_to_tensor(L, v);
      if (!p->out) return l_error(L, "%s: out must be a tensor, got %s", op->name, l_typename(L, v));
    } else return unknown_option(L, op, key);
  }
  return 0;
}

/* A number that is written into a tensor of integers must have a place there. */
static void check_stored(lua_State *L, const Parsed *p, const PlOp *op) {
  const PlDtype d = (PlDtype)p->in[0]->a.dtype;
  for (int k = 0; k < op->nattr; k++) {
    if ((op->attrs[k].type != PL_A_SCALAR && op->attrs[k].type != PL_A_INT) || !pl_attr_has(&p->attrs, k)) continue;
    if (op->attrs[k].type == PL_A_INT || ((p->attrs.isint >> k) & 1)) lua_pushinteger(L, pl_attr_i(&p->attrs, k));
    else lua_pushnumber(L, pl_attr_f(&p->attrs, k));
    l_check_stored(L, -1, d, op->name);
    lua_pop(L, 1);
  }
  const PlTensor *v = op->nin > 1 ? p->in[op->nin - 1] : NULL;
  if (!v || !v->a.weak || v->a.symbolic) return;
  if (pl_is_float((PlDtype)v->a.dtype)) lua_pushnumber(L, pl_read_f(&v->a, 0));
  else lua_pushinteger(L, pl_read_i(&v->a, 0));
  l_check_stored(L, -1, d, op->name);
  lua_pop(L, 1);
}

/* true and false stand beside bool tensors only, or beside a condition: elsewhere one came of Lua's ==, which compares objects. */
static int check_booleans(lua_State *L, const Parsed *p, const PlOp *op) {
  bool fits = true, any = op->conditions & 1;
  for (int i = 0; fits && i < p->nin; i++) {
    if (!p->in[i]) continue;
    if ((op->conditions >> i) & 1) fits = i > 0 || !p->in[i]->a.weak;
    else {
      fits = p->in[i]->a.dtype == PL_BOOL;
      any = any || !p->in[i]->a.weak;
    }
  }
  if (fits && any) return 0;
  return l_error(L,
                 "%s: a boolean stands where a tensor or a number is wanted; == and ~= compare Lua objects, elementwise it is "
                 "a:eq(b), a:ne(b)",
                 op->name);
}

int l_read_attr_args(lua_State *L, const PlOp *op, Parsed *p, int at, int top) {
  pl_attrs_init(op, &p->attrs);
  int k = 0;
  uint32_t given = 0;
  if (p->dim_at) {
    given = 1;
    set_attr(L, op, &p->attrs, k++, p->dim_at);
  }
  for (; k < op->nattr && at <= top; k++) {
    PlAttrType type = op->attrs[k].type;
    if (at == top && is_options(L, at, &op->attrs[k])) break;
    if (lua_isnil(L, at)) {
      at++;
      continue;
    }
    given |= 1u << k;
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
    } else set_attr(L, op, &p->attrs, k, at++);
  }
  while (at < top && lua_isnil(L, at)) at++;
  if (at == top && lua_type(L, at) == LUA_TTABLE) read_options(L, op, p, at++, given);
  else if (at == top && lua_isnil(L, at)) at++;
  if (at <= top) return l_error(L, "%s: too many arguments: #%d is %s", op->name, at, l_typename(L, at));
  for (int i = 0; op->nin != PL_VARIADIC && i < op->nin - op->nopt; i++)
    if (!p->in[i]) return l_error(L, "%s: argument %s is missing", op->name, op->args[i]);
  if (PL_UNLIKELY(op->nin != PL_VARIADIC && p->boolean)) check_booleans(L, p, op);
  if (PL_UNLIKELY(op->flags & PL_F_STORES) && pl_is_int((PlDtype)p->in[0]->a.dtype)) check_stored(L, p, op);
  return 0;
}
