/* SPDX-License-Identifier: MIT
 * Gradient rules as Lua closures: T.custom. T.override_gradient, made of it, is in override.c.
 *
 * One call makes one context table. The context is kept alive by the user values of the boxes that depend on
 * it; nodes find it through a weak table. So a cycle tensor ↔ closure ↔ tape lies in Lua entirely and is
 * collected. Context layout: [1 … n] saved tensors, [-1 … -n] their versions, [0] = n where the last is nil; under private keys the
 * inputs that want a gradient, the marks, and what the inputs' histories keep alive. */
#include <stdlib.h>
#include <string.h>

#include "bindings/lib.h"
#include "bindings/ops.h"
#include "engine/grad/walk.h"
#include "engine/state.h"

static const char contexts_key = 0; /* weak: light node → context */

enum { META_BACKWARD = 1, META_NAME = 2, META_ALWAYS = 3, META_FORWARD = 4, MAX_CUSTOM_IN = 56 };

/* Private keys of a context: addresses, so no field of the user's can clash. */
static const char non_diff_key = 0, dirty_key = 0, upstream_key = 0;

/* ---- the context ------------------------------------------------------------------------------------------ */

static int ctx_save(lua_State *L) {
  if (lua_type(L, 1) != LUA_TTABLE) return l_error(L, "ctx:save: called without its context; write ctx:save(...)");
  int n = lua_gettop(L) - 1;
  for (int i = 1; i <= n; i++) {
    PlTensor *t = l_to_tensor(L, i + 1);
    if (!t && !lua_isnil(L, i + 1))
      return l_error(L, "ctx:save: argument #%d must be a tensor or nil, got %s; keep other values as fields of ctx",
                     i, l_typename(L, i + 1));
    lua_pushvalue(L, i + 1);
    lua_rawseti(L, 1, i);
    lua_pushinteger(L, t ? (lua_Integer)t->storage->version : 0);
    lua_rawseti(L, 1, -i);
  }
  if (n > 0 && !lua_isnil(L, n + 1)) return 0; /* its length tells the count */
  lua_pushinteger(L, n);
  lua_rawseti(L, 1, 0);
  return 0;
}

static int ctx_saved(lua_State *L) {
  if (lua_type(L, 1) != LUA_TTABLE) return l_error(L, "ctx:saved: called without its context; write ctx:saved(...)");
  lua_settop(L, 1);
  lua_Integer count = lua_rawgeti(L, 1, 0) == LUA_TNUMBER ? lua_tointeger(L, -1) : (lua_Integer)lua_rawlen(L, 1);
  lua_settop(L, 1);
  if (count < 0 || count > 1 << 16) return l_error(L, "ctx:saved: ctx[0] was overwritten; it belongs to ctx:save");
  int n = (int)count;
  luaL_checkstack(L, n + 4, NULL);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    PlTensor *t = l_to_tensor(L, -1);
    if (!t) {
      if (l_box(L, -1)) return l_error(L, "ctx:saved: saved tensor %d was freed", i);
      continue;
    }
    lua_rawgeti(L, 1, -i);
    lua_Integer version = lua_tointeger(L, -1);
    lua_pop(L, 1);
    if (version != (lua_Integer)t->storage->version) {
      char by[160] = "";
      if (pl_state.watch) pl_state.watch->writer(t->storage, by, sizeof by);
      return l_error(L, "ctx:saved: saved tensor %d, %s, was modified in place afterwards%s (version %u, saved at %d); "
                        "save a clone", i, pl_desc_text(&t->a), by, t->storage->version, (int)version);
    }
  }
  return n;
}

/* Which inputs of the rule that is running want a gradient: flags below, their count above. */
static _Thread_local uint64_t running_needs;
static _Thread_local bool marks_made; /* the running forward has marked something */

static int mark(lua_State *L, const void *key, const char *fn) {
  if (lua_type(L, 1) != LUA_TTABLE) return l_error(L, "ctx:%s: called without its context; write ctx:%s(...)", fn, fn);
  int n = lua_gettop(L);
  marks_made = true;
  if (lua_rawgetp(L, 1, key) != LUA_TTABLE) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, 1, key);
  }
  for (int i = 2; i <= n; i++) {
    if (!l_box(L, i)) return l_error(L, "ctx:%s: argument #%d must be a tensor", fn, i - 1);
    lua_pushvalue(L, i);
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
  }
  return 0;
}
static int ctx_non_diff(lua_State *L) { return mark(L, &non_diff_key, "mark_non_differentiable"); }
static int ctx_dirty(lua_State *L) { return mark(L, &dirty_key, "mark_dirty"); }

/* What the table of methods lacks: needs_input_grad, as a list, while forward or backward runs. */
static int ctx_other(lua_State *L) {
  const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : NULL;
  if (!key || strcmp(key, "needs_input_grad") != 0) return 0;
  int n = (int)(running_needs >> MAX_CUSTOM_IN);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushboolean(L, (running_needs >> i) & 1);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* What the engine keeps of a rule, in one piece with the PlRule before it: ndim, dtype and sizes of every input. */
typedef struct RuleData {
  PlRule rule; /* first: the engine frees the piece through it */
  uint64_t needs;
  int64_t sizes[];
} RuleData;

static bool fits(const PlTensor *g, const int64_t *sizes) {
  if (g->a.ndim != sizes[0]) return false;
  for (int d = 0; d < g->a.ndim; d++)
    if (g->a.shape[d] != sizes[2 + d]) return false;
  return g->a.dtype == sizes[1];
}

static PlStatus take_gradient(lua_State *L, int at, const char *name, int i, const int64_t *sizes, PlTensor **out) {
  PlTensor *g = l_to_tensor(L, at);
  if (lua_isnil(L, at)) return PL_OK;
  if (!g) PL_FAIL(PL_ERR_ARG, "custom grad rule returned non-tensor: %s for input %d of %s", l_typename(L, at), i + 1, name);
  if (!fits(g, sizes)) {
    PlArray want = {.shape = sizes + 2, .ndim = (uint8_t)sizes[0], .dtype = (uint8_t)sizes[1]};
    PL_FAIL(PL_ERR_SHAPE, "custom grad rule of %s returned %s for input %d, which is %s", name, pl_desc_text(&g->a), i + 1,
            pl_desc_text(&want));
  }
  *out = pl_retain(g);
  return PL_OK;
}

/* Results above `top` on the stack → dx. */
static PlStatus read_results(lua_State *L, int top, PlNode *n, const int64_t *sizes, const bool *want, PlTensor **dx) {
  int got = lua_gettop(L) - top;
  if (got == 0 || (got == 1 && lua_isnil(L, top + 1))) return PL_OK;
  if (got != (int)n->nin)
    PL_FAIL(PL_ERR_ARG, "custom grad rule returned wrong number of grads: %s has %u tensor inputs, its backward returned %d",
            n->name, n->nin, got);
  for (uint32_t i = 0; i < n->nin; i++) {
    PlTensor *g = NULL;
    PL_TRY(take_gradient(L, top + 1 + (int)i, n->name, (int)i, sizes, &g));
    sizes += 2 + sizes[0];
    if (g && !want[i]) {
      pl_tensor_release(g);
      g = NULL;
    }
    dx[i] = g;
  }
  return PL_OK;
}

static PlStatus run_backward(lua_State *L, PlNode *n, const RuleData *r, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  l_push_weak_table(L, &contexts_key, "v");
  if (lua_rawgetp(L, -1, n) != LUA_TTABLE)
    PL_FAIL(PL_ERR_STATE, "backward of %s: its Lua rule was collected; keep a tensor that depends on it", n->name);
  int ctx = lua_gettop(L);
  if (!lua_getmetatable(L, ctx) || lua_rawgeti(L, -1, META_BACKWARD) == LUA_TNIL)
    PL_FAIL(PL_ERR_STATE, "backward of %s: it has no backward function", n->name);
  int top = lua_gettop(L) - 1;
  lua_pushvalue(L, ctx);
  for (uint32_t o = 0; o < n->nout; o++) {
    if (!dy[o]) {
      lua_pushnil(L);
      continue;
    }
    Box *b = l_new_box(L);
    b->t = pl_retain(dy[o]);
    l_default_anchor(L, -1);
  }
  lua_call(L, 1 + (int)n->nout, LUA_MULTRET);
  return read_results(L, top, n, r->sizes, want, dx);
}

typedef struct RuleRun {
  PlNode *n;
  const RuleData *r;
  PlTensor *const *dy;
  const bool *want;
  PlTensor **dx;
  PlStatus status;
} RuleRun;

static int backward_body(lua_State *L) {
  RuleRun *r = lua_touserdata(L, 1);
  luaL_checkstack(L, 24 + (int)r->n->nout + (int)r->n->nin, NULL);
  r->status = run_backward(L, r->n, r->r, r->dy, r->want, r->dx);
  return 0;
}

/* All of it under lua_pcall: nothing of Lua's may jump through the walk. */
static PlStatus rule_bwd(void *ud, PlNode *n, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  lua_State *L = l_running;
  RuleRun r = {n, ud, dy, want, dx, PL_OK};
  if (!L || !lua_checkstack(L, 4)) PL_FAIL(PL_ERR_STATE, "backward of %s: no room on the Lua stack", n->name);
  lua_pushcfunction(L, backward_body);
  lua_pushlightuserdata(L, &r);
  uint64_t outer = running_needs;
  running_needs = ((RuleData *)ud)->needs;
  PlStatus s = lua_pcall(L, 1, 0, 0) == LUA_OK ? r.status : l_keep_error(L);
  running_needs = outer;
  if (s != PL_OK)
    for (uint32_t i = 0; i < n->nin; i++) {
      pl_tensor_release(dx[i]);
      dx[i] = NULL;
    }
  return s;
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

typedef struct Making {
  lua_State *L;
  int ctx;
  bool always;
  PlTensor *const *in;
  uint32_t nin;
  uint64_t needs;
} Making;

/* contexts[node at 2] = context at 1 */
static int remember_context(lua_State *L) {
  l_push_weak_table(L, &contexts_key, "v");
  lua_pushvalue(L, 1);
  lua_rawsetp(L, -2, lua_touserdata(L, 2));
  return 0;
}

static PlRule *make_rule(void *p, PlNode *n) {
  Making *m = p;
  size_t count = 0;
  for (uint32_t i = 0; i < m->nin; i++) count += 2 + m->in[i]->a.ndim;
  RuleData *r = malloc(sizeof *r + count * sizeof *r->sizes);
  if (!r) return NULL;
  r->rule = (PlRule){.bwd = rule_bwd, .ud = r, .always = m->always};
  r->needs = m->needs;
  int64_t *at = r->sizes;
  for (uint32_t i = 0; i < m->nin; i++) {
    const PlArray *a = &m->in[i]->a;
    *at++ = a->ndim;
    *at++ = a->dtype;
    memcpy(at, a->shape, a->ndim * sizeof *at);
    at += a->ndim;
  }
  lua_pushcfunction(m->L, remember_context);
  lua_pushvalue(m->L, m->ctx);
  lua_pushlightuserdata(m->L, n);
  if (lua_pcall(m->L, 2, 0, 0) == LUA_OK) return &r->rule;
  lua_pop(m->L, 1);
  free(r);
  return NULL;
}

/* The context also keeps what its inputs' histories keep: one value, or a list of them. */
static void inherit_anchors(lua_State *L, int ctx, int from, int to) {
  int n = 0, list = 0;
  for (int i = from; i <= to; i++) {
    if (!l_box(L, i)) continue;
    if (lua_getiuservalue(L, i, 1) == LUA_TNIL) {
      lua_pop(L, 1);
      continue;
    }
    if (++n == 1) {
      lua_rawsetp(L, ctx, &upstream_key);
      continue;
    }
    if (!list) {
      lua_createtable(L, 2, 0);
      list = lua_gettop(L);
      lua_rawgetp(L, ctx, &upstream_key);
      lua_rawseti(L, list, 1);
      lua_pushvalue(L, list);
      lua_rawsetp(L, ctx, &upstream_key);
      lua_insert(L, -2); /* the list below the new anchor */
      list = lua_gettop(L) - 1;
    }
    lua_rawseti(L, list, n);
  }
  if (list) lua_pop(L, 1);
}

/* An output handle that is an input, or appears twice, becomes a fresh handle of the same memory. */
static int fresh_outputs(lua_State *L, int first, int n, int arg_from, int arg_to, PlTensor **outs, const char *name) {
  for (int o = 0; o < n; o++) {
    PlTensor *t = l_to_tensor(L, first + o);
    if (!t)
      return l_error(L, "%s: forward must return tensors, result %d is %s", name, o + 1, l_typename(L, first + o));
    bool alias = t->node || t->more;
    for (int i = arg_from; i <= arg_to; i++) alias |= l_to_tensor(L, i) == t;
    for (int j = 0; j < o; j++) alias |= outs[j] == t;
    if (alias) {
      Box *b = l_new_box(L);
      CALL(L, pl_tensor_alias(&b->t, t));
      t = b->t;
      lua_replace(L, first + o);
    }
    outs[o] = t;
  }
  return 0;
}

static bool marked(lua_State *L, int ctx, const void *key, int at) {
  bool yes = false;
  if (lua_rawgetp(L, ctx, key) == LUA_TTABLE) {
    lua_pushvalue(L, at);
    yes = lua_rawget(L, -2) != LUA_TNIL;
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return yes;
}

/* An input edited in place: its handle takes the new history. */
static int record(lua_State *L, int ctx, int meta, bool marks, uint64_t needs, PlTensor **ins, int nin, int first, int nout, int arg_from, int arg_to) {
  PlTensor *outs[MAX_CUSTOM_IN];
  bool diff[MAX_CUSTOM_IN];
  lua_rawgeti(L, meta, META_NAME);
  const char *name = lua_touserdata(L, -1); /* interned */
  lua_rawgeti(L, meta, META_ALWAYS);
  bool always = lua_toboolean(L, -1);
  lua_pop(L, 2);
  bool dirty[MAX_CUSTOM_IN];
  for (int o = 0; o < nout; o++) {
    diff[o] = !marks || !marked(L, ctx, &non_diff_key, first + o);
    dirty[o] = marks && marked(L, ctx, &dirty_key, first + o);
    if (dirty[o]) {
      PlTensor *t = l_to_tensor(L, first + o);
      if (t && t->node && t->node->kind == PL_NODE_LEAF && t->node->key && t->node->key->is_ambient)
        return l_error(L, "%s: %s is a leaf that requires a gradient; it cannot be edited in place", name, pl_desc_text(&t->a));
    }
  }
  int orig = lua_gettop(L); /* the boxes that forward returned, for dirty ones */
  for (int o = 0; o < nout; o++) lua_pushvalue(L, first + o);
  fresh_outputs(L, first, nout, arg_from, arg_to, outs, name);
  inherit_anchors(L, ctx, arg_from, arg_to);
  Making m = {.L = L, .ctx = ctx, .always = always, .in = ins, .nin = (uint32_t)nin, .needs = needs};
  CALL(L, pl_record_rule(ins, nin, outs, nout, diff, name, make_rule, &m));
  for (int o = 0; o < nout; o++) {
    if (dirty[o]) {
      PlTensor *t = l_to_tensor(L, orig + 1 + o);
      if (t != outs[o]) {
        CALL(L, pl_inplace_install(t, outs[o]));
        lua_pushvalue(L, orig + 1 + o);
        lua_replace(L, first + o);
      }
    }
    PlTensor *t = l_to_tensor(L, first + o);
    if (!t->node) continue;
    lua_pushvalue(L, ctx);
    lua_setiuservalue(L, first + o, 1);
  }
  lua_settop(L, orig);
  return 0;
}

/* Names of nodes must outlive them: interned in the registry for good; there are few. */
const char *l_intern(lua_State *L, const char *name) {
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.names");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "perilune.names");
  }
  lua_pushstring(L, name);
  lua_pushvalue(L, -1);
  lua_rawget(L, -3);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    lua_pushvalue(L, -2);
    lua_rawset(L, -4);
  } else
    lua_remove(L, -2); /* long strings are no single objects: take the table's */
  const char *s = lua_tostring(L, -1); /* the table holds the very same string object */
  lua_pop(L, 2);
  return s;
}

/* Upvalue 1: the metatable of contexts. Arguments are those of the user's forward. */
static int custom_call(lua_State *L) {
  int meta = lua_upvalueindex(1), nargs = lua_gettop(L);
  luaL_checkstack(L, nargs + 20, NULL);
  l_collect(L);
  PlTensor *ins[MAX_CUSTOM_IN];
  int nin = 0;
  bool tracked = false;
  uint64_t needs = 0;
  for (int i = 1; i <= nargs; i++) {
    Box *b = l_box(L, i);
    if (!b) continue;
    if (!b->t) return l_error(L, "custom: argument #%d: this tensor was freed", i);
    if (nin == MAX_CUSTOM_IN) return l_error(L, "custom: more than %d tensors", MAX_CUSTOM_IN);
    bool one = (b->t->node || b->t->more) && pl_tracked(b->t);
    needs |= (uint64_t)one << nin;
    tracked |= one;
    ins[nin++] = b->t;
  }
  lua_createtable(L, 1, 1); /* the context */
  int ctx = lua_gettop(L);
  lua_pushvalue(L, meta);
  lua_setmetatable(L, ctx);
  lua_rawgeti(L, meta, META_FORWARD);
  lua_pushvalue(L, ctx);
  for (int i = 1; i <= nargs; i++) lua_pushvalue(L, i);
  bool was = pl_grad_enable(false), outer_marks = marks_made;
  uint64_t outer = running_needs;
  running_needs = needs | (uint64_t)nin << MAX_CUSTOM_IN;
  marks_made = false;
  int rc = lua_pcall(L, nargs + 1, LUA_MULTRET, 0);
  bool marks = marks_made;
  marks_made = outer_marks;
  running_needs = outer;
  pl_grad_enable(was);
  if (rc != LUA_OK) return lua_error(L);
  int nout = lua_gettop(L) - ctx;
  luaL_checkstack(L, 2 * MAX_CUSTOM_IN + 20, NULL);
  for (int i = 1, k = 0; i <= nargs; i++) { /* forward is free to do anything, also to free its inputs */
    Box *b = l_box(L, i);
    if (!b) continue;
    if (!b->t) return l_error(L, "custom: forward freed its argument #%d", i);
    ins[k++] = b->t;
  }
  if (nout == 0 || nout > MAX_CUSTOM_IN) return l_error(L, "custom: forward must return 1 to %d tensors, got %d values", MAX_CUSTOM_IN, nout);
  if (tracked)
    record(L, ctx, meta, marks, needs | (uint64_t)nin << MAX_CUSTOM_IN, ins, nin, ctx + 1, nout, 1, nargs);
  else
    for (int o = 1; o <= nout; o++)
      if (!l_box(L, ctx + o)) return l_error(L, "custom: forward must return tensors, result %d is %s", o, l_typename(L, ctx + o));
  lua_settop(L, ctx + nout);
  return nout;
}

/* ---- T.custom ---------------------------------------------------------------------------------------------------------- */

static void push_ctx_methods(lua_State *L) {
  static const luaL_Reg methods[] = {{"save", ctx_save},
                                     {"saved", ctx_saved},
                                     {"mark_non_differentiable", ctx_non_diff},
                                     {"mark_dirty", ctx_dirty},
                                     {NULL, NULL}};
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
}

static void field_function(lua_State *L, int table, const char *key, const char *fn) {
  lua_getfield(L, table, key);
  if (lua_type(L, -1) != LUA_TFUNCTION) l_error(L, "%s: %s must be a function, got %s", fn, key, l_typename(L, -1));
}

/* T.custom{name=, forward=function(ctx, …), backward=function(ctx, g…), always=false, state=table} → function. The state
 * is one table for all calls, ctx.state; it may be an object with methods. */
static int t_custom(lua_State *L) {
  if (lua_type(L, 1) != LUA_TTABLE) return l_error(L, "custom: a table {name=, forward=, backward=} expected, got %s", l_typename(L, 1));
  l_check_options(L, 1, "custom", "name forward backward always state");
  lua_settop(L, 1);
  lua_createtable(L, 5, 2);
  field_function(L, 1, "backward", "custom");
  lua_rawseti(L, 2, META_BACKWARD);
  lua_getfield(L, 1, "name");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_pushliteral(L, "custom");
  } else if (lua_type(L, -1) != LUA_TSTRING)
    return l_error(L, "custom: name must be a string");
  lua_pushlightuserdata(L, (void *)(uintptr_t)l_intern(L, lua_tostring(L, -1)));
  lua_rawseti(L, 2, META_NAME);
  lua_pop(L, 1);
  lua_getfield(L, 1, "always");
  lua_rawseti(L, 2, META_ALWAYS);
  field_function(L, 1, "forward", "custom");
  lua_rawseti(L, 2, META_FORWARD);
  if (lua_getfield(L, 1, "state") != LUA_TNIL && lua_type(L, -1) != LUA_TTABLE)
    return l_error(L, "custom: state must be a table, got %s", l_typename(L, -1));
  int state = lua_gettop(L);
  push_ctx_methods(L);
  lua_pushvalue(L, state);
  lua_setfield(L, -2, "state");
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, ctx_other);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_setfield(L, 2, "__index");
  lua_settop(L, 2);
  lua_pushboolean(L, 0);
  lua_setfield(L, 2, "__metatable");
  lua_pushcclosure(L, custom_call, 1);
  return 1;
}

void l_custom_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"custom", t_custom}, {"override_raw", l_override_raw}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
