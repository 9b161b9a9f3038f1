/* SPDX-License-Identifier: MIT
 * One generic caller for every op: it reads the descriptor, so an op needs no binding of its own. Function
 * and method are the same closure. */
#include <string.h>

#include "bindings/core/lib.h"
#include "bindings/ops/arguments.h"
#include "bindings/ops/call.h"
#include "engine/call/call.h"
#include "engine/grad/gradient_graph.h"
#include "engine/ops/names.h"

enum { UP_OP = 1, UP_INPLACE = 2, UP_RESULT = 3, MAX_ARGS = 250 };

/* The same for results that are shown: those behind op->nvisible may be missing. */
static PlStatus apply_shown(lua_State *L, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *a, PlTensor **out) {
  PlStatus s;
  WORK(L, s, pl_apply_shown(op, in, nin, a, out));
  if (PL_UNLIKELY(s == PL_ERR_OOM)) {
    l_collect_full(L);
    WORK(L, s, pl_apply_shown(op, in, nin, a, out));
  }
  return s;
}

PlStatus l_apply(lua_State *L, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *a, PlTensor **out) {
  PlStatus s;
  WORK(L, s, pl_apply(op, in, nin, a, out));
  if (PL_UNLIKELY(s == PL_ERR_OOM)) { /* operands are anchored on the stack: collecting is safe here */
    l_collect_full(L);
    WORK(L, s, pl_apply(op, in, nin, a, out));
  }
  return s;
}

static PlStatus apply_into(lua_State *L, const PlOp *op, const Parsed *p, PlTensor **y) {
  PlStatus s;
  WORK(L, s, pl_apply_into(op, p->in, p->nin, &p->attrs, y));
  if (s == PL_ERR_OOM) {
    l_collect_full(L);
    WORK(L, s, pl_apply_into(op, p->in, p->nin, &p->attrs, y));
  }
  return s;
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
    } else if (o < n && b->t) pushed = o + 1;
  }
  lua_settop(L, first + pushed - 1);
  return pushed;
}

/* Whole numbers have no negative powers; a table of exponents is the kernel's affair, where 1 and -1 have them. */
static int check_power(lua_State *L, const PlTensor *x, int64_t e) {
  if (e >= 0 || pl_is_float((PlDtype)x->a.dtype) || x->a.dtype == PL_BOOL) return 0;
  return l_error(L, "pow: integers, %s, have no negative powers such as %lld; use x:float() ^ %lld", pl_desc_text(&x->a), (long long)e,
                 (long long)e);
}

static int call_general(lua_State *L, const PlOp *op, bool inplace) {
  int top = lua_gettop(L);
  if (top > MAX_ARGS) return l_error(L, "%s: too many arguments", op->name);
  luaL_checkstack(L, PL_MAX_IN + PL_MAX_OUT + 16, NULL);
  Parsed p = {.out = NULL};
  int at = l_read_operands(L, op, &p);
  l_read_attr_args(L, op, &p, at, top);
  if (PL_UNLIKELY(inplace && p.out)) return l_error(L, "%s_: it writes its first argument, and takes no out", op->name);
  const bool writes = op->nin != PL_VARIADIC && (inplace || (op->flags & PL_F_MUTATES));
  if (PL_UNLIKELY(writes && p.in[0] != l_to_tensor(L, 1)))
    return l_error(L, "%s_: argument %s (#1) is written, so it must be a tensor, got %s", op->name, op->args[0], l_typename(L, 1));
  if (PL_UNLIKELY(op->flags & PL_F_NATURAL) && p.in[1]->a.weak && pl_is_int((PlDtype)p.in[1]->a.dtype) && !p.in[1]->a.symbolic)
    check_power(L, p.in[0], pl_read_i(&p.in[1]->a, 0));
  if (PL_UNLIKELY(l_overridden_count) && l_override_call(L, op, p.in, p.nin, top,
                                                         inplace ? PL_OVERRIDE_INPLACE
                                                         : p.out ? PL_OVERRIDE_OUT
                                                                 : PL_OVERRIDE_NEW))
    return lua_gettop(L) - top;
  l_collect(L);
  if (op->flags & PL_F_MUTATES) {
    PlTensor *out[PL_MAX_OUT] = {NULL};
    CALL(L, l_apply(L, op, p.in, p.nin, &p.attrs, out));
    for (int o = 0; o < op->nout; o++) pl_tensor_release(out[o]);
    if (op->nin == PL_VARIADIC) return 0;
    lua_pushvalue(L, 1);
    return 1;
  }
  if (inplace || p.out) {
    PlTensor *y = inplace ? p.in[0] : p.out;
    CALL(L, apply_into(L, op, &p, &y));
    if (inplace) lua_pushvalue(L, 1);
    else {
      lua_pushliteral(L, "out");
      lua_rawget(L, top);
    }
    return 1;
  }
  int first = lua_gettop(L) + 1;
  for (int o = 0; o < op->nout; o++) l_new_box(L);
  PlTensor *out[PL_MAX_OUT];
  CALL(L, apply_shown(L, op, p.in, p.nin, &p.attrs, out));
  for (int o = 0; o < op->nout; o++) l_box(L, first + o)->t = out[o];
  return push_results(L, op, first);
}

/* One or two tensors and nothing else: most calls of a training step. */
static PL_ALWAYS_INLINE int call_fast(lua_State *L, const PlOp *op, PlTensor **in, int n) {
  l_collect(L);
  Box *b = l_new_result(L, lua_upvalueindex(UP_RESULT));
  PlTensor *out;
  PlStatus s;
  WORK(L, s, pl_apply(op, in, n, NULL, &out));
  if (PL_UNLIKELY(s != PL_OK)) CALL(L, s == PL_ERR_OOM ? l_apply(L, op, in, n, NULL, &out) : s);
  b->t = out;
  return 1;
}

/* x op number: the number takes the dtype that promotion would give it anyway, x's or f32, so nothing is cast. */
static int call_number(lua_State *L, const PlOp *op, PlTensor *x, int num) {
  PlDtype d = (PlDtype)x->a.dtype;
  if (pl_is_half(d) && (op->flags & PL_F_WIDE)) d = PL_F32;
  const double v = lua_tonumber(L, num);
  if (PL_UNLIKELY(op->flags & PL_F_NATURAL) && num == 2 && lua_isinteger(L, 2)) check_power(L, x, lua_tointeger(L, 2));
  l_collect(L);
  Box *b = l_new_result(L, lua_upvalueindex(UP_RESULT)); /* first: from here on nothing of Lua's can raise before the number is released */
  PlStatus s;
  WORK(L, s, pl_apply_number(op, x, v, num == 1, &b->t));
  if (PL_LIKELY(s == PL_OK && b->t)) return 1; /* and nothing recorded */
  const bool whole = lua_isinteger(L, num);
  const lua_Integer w = whole ? lua_tointeger(L, num) : 0;
  const bool held = whole && pl_is_int(d) && w >= pl_int_least(d) && w <= pl_int_most(d); /* else promotion has a say */
  PlTensor *t;
  PlNumber room;
  bool local = false;
  if (pl_is_float(d) || (held && op->promote == PL_PROMOTE_ALL)) {
    local = op->kernel[PL_CPU] && !op->expand && !x->a.symbolic && !pl_state.trace && !(x->flags & PL_T_BATCHED) &&
            (pl_state.grad_off || !pl_may_record(&x, 1));
    if (local) /* only a record of the call would keep the number */
      t = pl_number_local(&room, d);
    else CALL(L, pl_tensor_empty(&t, d, 0, NULL));
    if (whole) pl_write_i(d, t->a.data, (int64_t)w);
    else pl_write_f(d, t->a.data, v);
    t->a.weak = 1;
  } else CALL(L, pl_tensor_number(&t, whole, (int64_t)w, v));
  PlTensor *in[2] = {num == 1 ? t : x, num == 1 ? x : t};
  WORK(L, s, pl_apply(op, in, 2, NULL, &b->t));
  if (PL_UNLIKELY(s == PL_ERR_OOM)) s = l_apply(L, op, in, 2, NULL, &b->t);
  if (!local) pl_tensor_release(t);
  CALL(L, s);
  return 1;
}

/* Two operands, at 1 and 2, of an op that changes neither: < 0 if that is not the fast case. */
static PL_ALWAYS_INLINE int call_two(lua_State *L, const PlOp *op) {
  PlTensor *in[2] = {l_to_tensor(L, 1), l_to_tensor(L, 2)};
  if (in[0] && in[1]) return call_fast(L, op, in, 2);
  if (!(op->flags & PL_F_SCALAR) || op->nattr || op->nopt) return -1;
  if (in[0] && lua_type(L, 2) == LUA_TNUMBER) return call_number(L, op, in[0], 2);
  if (in[1] && lua_type(L, 1) == LUA_TNUMBER) return call_number(L, op, in[1], 1);
  return -1;
}

int l_op_call(lua_State *L) {
  const PlOp *op = lua_touserdata(L, lua_upvalueindex(UP_OP));
  bool inplace = lua_toboolean(L, lua_upvalueindex(UP_INPLACE));
  int n = lua_gettop(L);
  if (n == op->nin && n <= 2 && op->nout == 1 && !inplace && !l_overridden_count && !(op->flags & (PL_F_MUTATES | PL_F_SEEDED))) {
    PlTensor *x = n == 1 ? l_to_tensor(L, 1) : NULL;
    if (x) return call_fast(L, op, &x, 1);
    int results = n == 2 ? call_two(L, op) : -1;
    if (results >= 0) return results;
  }
  return call_general(L, op, inplace);
}

/* How long the name of an op is that text begins with, a colon behind it; 0 without. *named: whether there is any
 * word with a colon. */
static size_t leading_name(const char *text, bool *named) {
  const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
  const bool library = strncmp(text, "cuda:", 5) == 0 || strncmp(text, "cudnn:", 6) == 0 || strncmp(text, "cublasLt:", 9) == 0;
  *named = n > 0 && text[n] == ':' && !library; /* whose words they are, not what was called */
  int count;
  const PlOp *const *ops = pl_ops(&count);
  for (int i = 0; text[n] == ':' && i < count; i++) {
    if (strncmp(ops[i]->name, text, n) == 0 && ops[i]->name[n] == '\0') return n;
  }
  return 0;
}

bool l_push_op_name(lua_State *L, PlStatus s, const char *text, size_t *skip) {
  lua_Debug ar;
  if (!lua_getstack(L, 0, &ar) || !lua_getinfo(L, "f", &ar)) return false;
  const int f = lua_gettop(L);
  const lua_CFunction running = lua_tocfunction(L, f);
  const PlOp *op = NULL;
  bool inplace = false;
  if ((running == l_op_call || running == l_op_unary) && lua_getupvalue(L, f, UP_OP) && lua_getupvalue(L, f, UP_INPLACE)) {
    op = lua_touserdata(L, -2);
    inplace = lua_toboolean(L, -1) || ((op->flags & PL_F_MUTATES) && op->nin != PL_VARIADIC);
  }
  lua_settop(L, f - 1);
  if (!op) return false;
  bool named;
  *skip = leading_name(text, &named);
  if (*skip == 0 && (named || s == PL_ERR_INTERRUPT)) return false;
  lua_pushfstring(L, *skip > 0 ? "%s%s" : "%s%s: ", op->name, inplace ? "_" : "");
  return true;
}

/* The arithmetic metamethods, a function for each: an op in an upvalue would have to be asked for. Lua passes both
 * operands, for unary ones the operand twice. */
static int binary(lua_State *L, const PlOp *op) {
  int results = PL_LIKELY(!l_overridden_count) ? call_two(L, op) : -1;
  if (results >= 0) return results;
  for (int i = 1; i <= 2; i++)
    if (!l_box(L, i) && lua_type(L, i) != LUA_TNUMBER)
      return l_error(L, "%s: operand #%d must be a tensor or a number, got %s%s", op->name, i, l_typename(L, i),
                     lua_type(L, i) == LUA_TBOOLEAN ? "; == and ~= compare Lua objects, elementwise it is a:eq(b), a:ne(b)" : "");
  return call_general(L, op, false);
}

/* clang-format off */
#define BINARY(X)                                                                                                      \
  X(add, add) X(sub, sub) X(mul, mul) X(div, div) X(pow, pow) X(mod, remainder) X(idiv, floor_divide)                  \
  X(band, bitwise_and) X(bor, bitwise_or) X(bxor, bitwise_xor) X(shl, bitwise_left_shift) X(shr, bitwise_right_shift)
/* clang-format on */
#define X(event, op) \
  static int meta_##event(lua_State *L) { return binary(L, &pl_op_##op); }
BINARY(X)
#undef X

const BinaryMeta l_binary_meta[] = {
#define X(event, op) {"__" #event, &pl_op_##op, meta_##event},
    BINARY(X)
#undef X
        {NULL, NULL, NULL}};

int l_op_unary(lua_State *L) {
  lua_settop(L, 1);
  return l_op_call(L);
}
