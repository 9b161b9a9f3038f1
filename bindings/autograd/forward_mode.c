/* SPDX-License-Identifier: MIT
 * Forward mode from Lua: keys of tangents for lua/perilune/autograd/forward_mode.lua, and the jvp of a rule of T.custom, which the
 * engine calls while the rule's call is recorded (engine/grad/forward_mode_custom.c). Not public but for T.custom. */
#include "engine/grad/forward_mode.h"
#include "bindings/autograd/backward.h"
#include "bindings/autograd/custom_context.h"
#include "bindings/ops/call.h"
#include "engine/call/thread_state.h"
#include "engine/ops/names.h"

/* ---- the jvp of a rule --------------------------------------------------------------------------------------------- */

typedef struct JvpRun {
  const PlNode *n;
  const RuleData *r;
  PlTensor *const *v, *const *out;
  PlTensor **t;
  Running *running;
  PlStatus status;
} JvpRun;

/* Results above `top` on the stack → tangents. */
static PlStatus read_tangents(lua_State *L, int top, const JvpRun *run) {
  const PlNode *n = run->n;
  int got = lua_gettop(L) - top;
  if (got == 0 || (got == 1 && lua_isnil(L, top + 1))) return PL_OK;
  if (got != (int)n->nout)
    PL_FAIL(PL_ERR_ARG, "custom jvp rule returned wrong number of tangents: %s has %u results, its jvp returned %d", n->name, n->nout, got);
  for (uint32_t o = 0; o < n->nout; o++) {
    const int at = top + 1 + (int)o;
    PlTensor *t = l_to_tensor(L, at);
    if (!t && lua_isnil(L, at)) continue;
    if (!t) PL_FAIL(PL_ERR_ARG, "custom jvp rule returned non-tensor: %s for result %u of %s", l_typename(L, at), o + 1, n->name);
    if (!pl_shape_equal(&t->a, &run->out[o]->a) || t->a.dtype != run->out[o]->a.dtype)
      PL_FAIL(PL_ERR_SHAPE, "custom jvp rule of %s returned %s for result %u, which is %s", n->name, pl_desc_text(&t->a), o + 1,
              pl_desc_text(&run->out[o]->a));
    run->t[o] = pl_retain(t);
  }
  return PL_OK;
}

static PlStatus run_jvp(lua_State *L, const JvpRun *run) {
  l_kept_push(L, run->r->kept, run->r->rule.kept);
  if (!lua_istable(L, -1)) PL_FAIL(PL_ERR_STATE, "jvp of %s: its context was collected", run->n->name);
  const int ctx = lua_gettop(L);
  if (!lua_getmetatable(L, ctx) || lua_rawgeti(L, -1, META_JVP) == LUA_TNIL)
    PL_FAIL(PL_ERR_STATE, "jvp of %s: it has no jvp function", run->n->name);
  const int top = ctx + 1;
  run->running->ctx = lua_topointer(L, ctx);
  lua_pushvalue(L, ctx);
  for (uint32_t i = 0; i < run->n->nin; i++) {
    if (!run->v[i]) {
      lua_pushnil(L);
      continue;
    }
    Box *b = l_new_box(L);
    b->t = pl_retain(run->v[i]);
  }
  lua_call(L, 1 + (int)run->n->nin, LUA_MULTRET);
  return read_tangents(L, top, run);
}

static int jvp_runner(lua_State *L) {
  JvpRun *run = lua_touserdata(L, 1);
  luaL_checkstack(L, 24 + (int)run->n->nout + (int)run->n->nin, NULL);
  run->status = run_jvp(L, run);
  return 0;
}

PlStatus l_rule_jvp(void *ud, PlNode *n, PlTensor *const *v, PlTensor *const *out, PlTensor **t) {
  lua_State *L = l_running;
  RuleData *r = ud;
  if (!L || !lua_checkstack(L, 4)) PL_FAIL(PL_ERR_STATE, "jvp of %s: no room on the Lua stack", n->name);
  if (!l_kept_here(L, r->kept)) PL_FAIL(PL_ERR_STATE, "jvp of %s: its rule belongs to another Lua state", n->name);
  uint64_t needs = 0;
  for (uint32_t i = 0; i < n->nin; i++) needs |= (uint64_t)(v[i] != NULL) << i;
  Running now = {.needs = needs, .nin = r->nin, .node = n, .nils = r->nils}, *outer = l_rule_running;
  JvpRun run = {n, r, v, out, t, &now, PL_OK};
  lua_pushcfunction(L, jvp_runner);
  l_rule_running = &now;
  PlStatus s = l_call_in_modes(L, &run) == LUA_OK ? run.status : l_keep_error(L);
  l_rule_running = outer;
  if (s != PL_OK) pl_release_all(t, (int)n->nout);
  return s;
}

/* ---- keys of tangents ---------------------------------------------------------------------------------------------- */

/* Upvalue of the functions below: the metatable of keys. */
enum { UP_KEYS = 1 };

static PlKey *to_key(lua_State *L) {
  PlKey **k = lua_touserdata(L, 1);
  if (k && lua_getmetatable(L, 1)) {
    if (!lua_rawequal(L, -1, lua_upvalueindex(UP_KEYS))) k = NULL;
    lua_pop(L, 1);
  } else k = NULL;
  if (!k || !*k || !(*k)->forward) l_error(L, "a key of tangents expected, got %s", l_typename(L, 1));
  return *k;
}

static int push_key(lua_State *L) {
  PlKey **k = lua_newuserdatauv(L, sizeof *k, 0);
  *k = NULL;
  lua_pushvalue(L, lua_upvalueindex(UP_KEYS));
  lua_setmetatable(L, -2);
  CALL(L, pl_forward_key_new(k, pl_key_top_level() + 1));
  return 1;
}

/* core.forward_key() → a key above all others; it closes like a GradKey */
static int t_forward_key(lua_State *L) {
  l_interrupt_spare();
  return push_key(L);
}

/* Pushes another handle of t without what k recorded. */
static int push_alias(lua_State *L, PlTensor *t, const PlKey *k) {
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_alias(&b->t, t));
  CALL(L, pl_entries_copy(b->t, t, k));
  return 1;
}

static bool is_plain(const Box *b) { return b && b->t && !b->t->a.symbolic && pl_is_float((PlDtype)b->t->a.dtype); }

/* ---- T.jvp ------------------------------------------------------------------------------------------------------------ */

/* Upvalues of T.jvp: what makes keys, then the function for all calls but the common one, what it ends with where a result is not the
 * common one, and a key's userdata that no call uses. */
enum { UP_GENERAL = 2, UP_REST, UP_SPARE };
/* The stack of the common call. */
enum { AT_F = 1, AT_X, AT_V, AT_KEY, AT_ALIAS, AT_Y };

static int jvp_return(lua_State *L, int status, lua_KContext from) {
  (void)status;
  return lua_gettop(L) - (int)from;
}

/* Is it one tensor and its tangent, for a plain function, with gradients on? */
static bool is_common(lua_State *L) {
  const Box *x = l_box(L, AT_X), *v = l_box(L, AT_V);
  return !pl_state.grad_off && lua_type(L, AT_F) == LUA_TFUNCTION && is_plain(x) && is_plain(v) && x->t->a.dtype == v->t->a.dtype &&
         pl_shape_equal(&x->t->a, &v->t->a);
}

/* Pushes a key that closes with its place on the stack. */
static int open_key(lua_State *L) {
  PlKey **k = lua_touserdata(L, lua_upvalueindex(UP_SPARE));
  if (k && !*k) {
    lua_pushvalue(L, lua_upvalueindex(UP_SPARE));
    CALL(L, pl_forward_key_new(k, pl_key_top_level() + 1));
  } else {
    push_key(L);
    lua_pushvalue(L, -1);
    lua_replace(L, lua_upvalueindex(UP_SPARE)); /* the next call's, unless it runs inside of this one */
  }
  lua_toclose(L, -1);
  return 1;
}

/* y has a dense tangent in memory that v does not have, and f made both: pushes the tangent. */
static bool push_common(lua_State *L, const PlKey *k) {
  const Box *y = l_box(L, AT_Y), *given = l_box(L, AT_V);
  PlTensor *t;
  if (pl_state.grad_off || !is_plain(y) || !is_plain(given)) return false;
  CALL(L, pl_forward_tangent(k, y->t, &t));
  if (!t || !t->a.contiguous || t->a.symbolic || t->storage == given->t->storage) return false;
  if (y->t->more || t->more || t->node || y->t->base || t->base) { /* others track them */
    push_alias(L, t, k);
    push_alias(L, y->t, k);
    lua_replace(L, AT_Y); /* now: y holds the tangent until it has a box */
    return true;
  }
  Box *b = l_new_box(L);
  b->t = pl_retain(t);
  return true;
}

/* The same as S.one of lua/perilune/autograd/function_arguments.lua. */
static void one_result(lua_State *L) {
  const Box *more = l_box(L, AT_Y + 1);
  if (more && more->t && pl_is_float((PlDtype)more->t->a.dtype))
    l_error(L, "jvp: the function returned several tensors, of which only the first would be differentiated; return a list of them, "
               "{ y1, y2 }, or only the first");
  lua_settop(L, AT_Y);
}

static int jvp_end(lua_State *L, int status, lua_KContext ctx) {
  (void)status, (void)ctx;
  one_result(L);
  PlKey **k = lua_touserdata(L, AT_KEY);
  if (push_common(L, *k)) {
    PlKey *ended = *k;
    *k = NULL;
    pl_key_close(ended);
    pl_key_release(ended);
    l_kept_sweep(L, l_kept(L));
    return 2;
  }
  lua_pushvalue(L, lua_upvalueindex(UP_REST));
  lua_pushvalue(L, AT_KEY);
  lua_pushvalue(L, AT_Y);
  lua_pushvalue(L, AT_V);
  lua_callk(L, 3, 2, 0, NULL);
  return 2;
}

static int t_jvp(lua_State *L) {
  l_check_count(L, "jvp", 3, "f, x, v");
  if (!is_common(L)) {
    lua_pushvalue(L, lua_upvalueindex(UP_GENERAL));
    lua_insert(L, 1);
    lua_callk(L, lua_gettop(L) - 1, LUA_MULTRET, 0, jvp_return);
    return jvp_return(L, LUA_OK, 0);
  }
  lua_settop(L, AT_V);
  open_key(L);
  PlTensor *x = l_box(L, AT_X)->t;
  CALL(L, pl_history_refresh(x));
  push_alias(L, x, NULL);
  CALL(L, pl_forward_attach(*(PlKey **)lua_touserdata(L, AT_KEY), l_box(L, AT_ALIAS)->t, l_box(L, AT_V)->t));
  lua_pushvalue(L, AT_F);
  lua_pushvalue(L, AT_ALIAS);
  lua_callk(L, 1, 2, 0, jvp_end);
  return jvp_end(L, LUA_OK, 0);
}

/* core.jvp_function(general, rest) → T.jvp: bookkeeping of the common call is here, general(f, primals, tangents) makes all others;
 * rest(key, y, v) → y, its tangent, where y is not one tensor with a dense tangent of its own */
static int t_jvp_function(lua_State *L) {
  lua_settop(L, 2);
  lua_pushvalue(L, lua_upvalueindex(UP_KEYS));
  lua_insert(L, 1);
  lua_pushnil(L);
  lua_pushcclosure(L, t_jvp, UP_SPARE);
  return 1;
}

/* core.forward_attach(key, x, v): v is the tangent of x */
static int t_forward_attach(lua_State *L) {
  PlKey *k = to_key(L);
  CALL(L, pl_forward_attach(k, l_check_tensor(L, 2), l_check_tensor(L, 3)));
  lua_settop(L, 2);
  return 1;
}

/* core.tangent(key, y, {tangents that were given} or nil) → its tangent, a copy of what was given itself, nil: it has none, which means
 * zero */
static int t_tangent(lua_State *L) {
  PlKey *k = to_key(L);
  PlTensor *t;
  lua_settop(L, 3);
  Box *b = l_new_box(L);
  CALL(L, pl_forward_tangent(k, l_check_tensor(L, 2), &t));
  if (!t) return 0;
  CALL(L, pl_tensor_alias(&b->t, t));
  CALL(L, pl_entries_copy(b->t, t, k));
  for (lua_Integer i = 1, n = lua_istable(L, 3) ? (lua_Integer)lua_rawlen(L, 3) : 0; i <= n; i++) {
    lua_rawgeti(L, 3, i);
    const PlTensor *given = l_to_tensor(L, -1);
    lua_pop(L, 1);
    if (!given || given->storage != t->storage) continue;
    Box *own = l_new_box(L);
    CALL(L, l_apply(L, &pl_op_clone, &b->t, 1, NULL, &own->t));
    break;
  }
  return 1;
}

/* core.forward_runs() → does a key of tangents record? */
static int t_forward_runs(lua_State *L) {
  lua_pushboolean(L, pl_forward_runs());
  return 1;
}

void l_forward_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"forward_key", t_forward_key},   {"forward_attach", t_forward_attach}, {"tangent", t_tangent},
                                       {"forward_runs", t_forward_runs}, {"jvp_function", t_jvp_function},     {NULL, NULL}};
  luaL_newmetatable(L, "perilune.GradKey"); /* or the one that is there */
  luaL_setfuncs(L, functions, UP_KEYS);
}
