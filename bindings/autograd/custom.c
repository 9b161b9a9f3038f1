/* SPDX-License-Identifier: MIT
 * Gradient rules as Lua closures: T.custom. T.override_gradient, made of it, is in override_gradient.c.
 *
 * One call makes one context table (custom_context.h), which the nodes that record the call keep (collector/kept.h). What it saves the
 * nodes hold themselves. How the engine runs a rule's backward is in custom_backward.c. */
#include <string.h>

#include "bindings/autograd/custom_context.h"
#include "bindings/collector/kept.h"
#include "bindings/ops/call.h"
#include "engine/call/thread_state.h"
#include "engine/graph/ir/graph.h"
#include "engine/vmap/vmap.h"

/* Upvalues of a rule's function. */
enum { UP_META = 1, UP_FORWARD = 2, UP_INFO = 3, UP_KEPT = 4 };

typedef struct RuleInfo {
  Kept *kept;       /* held by the state */
  const char *name; /* interned */
  bool always, has_jvp;
  int room; /* how much the last call's context kept, which the next one will likely, too */
} RuleInfo;

/* ---- forward ------------------------------------------------------------------------------------------------------- */

/* One call of a rule while it is being recorded. */
typedef struct Making {
  lua_State *L;
  RuleInfo *info;
  const Running *running;
  int ctx;                      /* stack position of the context */
  uint64_t nils;                /* bit i: ctx:save got nil at i */
  int place;                    /* that keeps the context already; 0: used up */
  Box *args[MAX_CUSTOM];        /* the tensors among the arguments … */
  int arg_at[MAX_CUSTOM];       /* … and where they are on the stack */
  uint32_t version[MAX_CUSTOM]; /* … and their versions before forward */
  PlTensor *in[MAX_CUSTOM], *out[MAX_CUSTOM];
  int nin, nout, first; /* outputs are on the stack from `first` */
  uint64_t born;        /* the innermost batch among the arguments; 0: none */
  bool outside;         /* keys outside of that track some of them */
} Making;

static int take_place(lua_State *L) {
  Making *m = lua_touserdata(L, 2);
  lua_settop(L, 1);
  m->place = l_kept_put(L, m->info->kept);
  return 0;
}

/* A second key that records the same call needs a place of its own; this runs below the engine, so protected. */
static bool take_place_protected(Making *m) {
  lua_pushcfunction(m->L, take_place);
  lua_pushvalue(m->L, m->ctx);
  lua_pushlightuserdata(m->L, m);
  if (lua_pcall(m->L, 2, 0, 0) == LUA_OK) return true;
  lua_pop(m->L, 1);
  return false;
}

static void drop_rule(void *ud) {
  RuleData *r = ud;
  l_kept_leave(r->kept, r->rule.kept);
  l_kept_release(r->kept);
}

static PlRule *make_rule(void *p, PlNode *n) {
  Making *m = p;
  size_t count = 0;
  (void)n;
  for (int i = 0; i < m->nin; i++) count += 2 + (size_t)m->in[i]->a.ndim;
  const size_t size = sizeof(RuleData) + count * sizeof(int64_t);
  RuleData *r = pl_pool_get(size);
  if (!r) return NULL;
  if (!m->place && !take_place_protected(m)) {
    pl_pool_put(r, size);
    return NULL;
  }
  *r = (RuleData){.rule = {.bwd = l_rule_backward,
                           .drop = drop_rule,
                           .ud = r,
                           .jvp = m->info->has_jvp ? l_rule_jvp : NULL,
                           .always = m->info->always,
                           .again = true,
                           .kept = m->place,
                           .piece = (uint32_t)size},
                  .kept = m->info->kept,
                  .nin = m->running->nin,
                  .nils = m->nils};
  m->info->kept->refs++;
  m->place = 0;
  int64_t *at = r->sizes;
  for (int i = 0; i < m->nin; i++) {
    const PlArray *a = &m->in[i]->a;
    *at++ = a->ndim;
    *at++ = a->dtype;
    for (int d = 0; d < a->ndim; d++) *at++ = a->shape[d];
  }
  return &r->rule;
}

/* An output handle that is an input, or appears twice, becomes a fresh handle of the same memory. */
static int fresh_outputs(Making *m, const char *name) {
  lua_State *L = m->L;
  for (int o = 0; o < m->nout; o++) {
    PlTensor *t = l_to_tensor(L, m->first + o);
    if (!t) return l_error(L, "%s: forward must return tensors, result %d is %s", name, o + 1, l_typename(L, m->first + o));
    bool alias = t->node || t->more;
    for (int i = 0; i < m->nin; i++) alias |= m->in[i] == t;
    for (int j = 0; j < o; j++) alias |= m->out[j] == t;
    if (alias) {
      Box *b = l_new_box(L);
      CALL(L, pl_tensor_alias(&b->t, t));
      t = b->t;
      lua_replace(L, m->first + o);
    }
    m->out[o] = t;
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

/* written[o]: the argument that was edited in place and is output o now, which is what ctx:save was given there; NULL: no such ones. */
static int record_rule(Making *m, const bool *diff, PlTensor *const *written, const char *name) {
  lua_State *L = m->L;
  PlTensor *saved[MAX_CUSTOM];
  uint32_t version[MAX_CUSTOM];
  PlRuleSaved list = {.t = saved, .version = version};
  const int all = m->running->nsaved;
  m->nils = 0;
  int last = 0;
  for (int i = 0; i < all; i++) {
    const Box *b = m->running->saved[i];
    PlTensor *t = b ? b->t : NULL;
    bool none = false;
    if (!b) {
      none = lua_rawgeti(L, m->ctx, i + 1) == LUA_TNIL; /* the context keeps them until the nodes do */
      t = l_to_tensor(L, -1);
      last = i + 1;
      lua_pop(L, 1);
    }
    if (!t && !none) return l_error(L, "%s: saved tensor %d was freed", name, i + 1);
    if (!t) m->nils |= (uint64_t)1 << i;
    for (int o = 0; written && t && o < m->nout; o++)
      if (written[o] == t) t = m->out[o];
    version[list.n] = m->running->versions[i];
    if (t) saved[list.n++] = t;
  }
  m->info->room = last;
  if (pl_state.trace) pl_state.trace->opaque = "a rule of T.custom or a module's backward hook";
  m->place = l_kept_put_in(L, m->info->kept, lua_upvalueindex(UP_KEPT), m->ctx);
  lua_State *was = l_running; /* for tangents the rule runs at once */
  l_running = L;
  const uint64_t floor = pl_state.key_floor;
  if (m->born > floor) pl_state.key_floor = m->born; /* keys outside of the batch have recorded it on full tensors */
  PlStatus s = pl_record_rule(m->in, m->nin, m->out, m->nout, diff, list.n ? &list : NULL, name, make_rule, m);
  pl_state.key_floor = floor;
  l_running = was;
  if (PL_UNLIKELY(m->place != 0)) l_kept_leave(m->info->kept, m->place); /* nobody wanted it */
  CALL(L, s);
  for (int i = 1; i <= last; i++) {
    lua_pushnil(L);
    lua_rawseti(L, m->ctx, i);
  }
  return 0;
}

/* Marks of the context at work: outputs without gradient, and inputs edited in place, whose handles take the new
 * history. The boxes that forward returned are kept on the stack meanwhile. */
static int record_marked(Making *m, const char *name) {
  lua_State *L = m->L;
  bool diff[MAX_CUSTOM];
  PlTensor *written[MAX_CUSTOM];
  for (int o = 0; o < m->nout; o++) {
    diff[o] = !marked(L, m->ctx, &l_non_diff_key, m->first + o);
    PlTensor *t = written[o] = marked(L, m->ctx, &l_dirty_key, m->first + o) ? l_to_tensor(L, m->first + o) : NULL;
    if (t && t->node && t->node->kind == PL_NODE_LEAF && t->node->key && t->node->key->is_ambient) CALL(L, pl_inplace_leaf(name, t, false));
  }
  int orig = lua_gettop(L);
  for (int o = 0; o < m->nout; o++) lua_pushvalue(L, m->first + o);
  fresh_outputs(m, name);
  record_rule(m, diff, written, name);
  for (int o = 0; o < m->nout; o++) {
    PlTensor *t = written[o];
    if (!t || t == m->out[o]) continue;
    CALL(L, pl_inplace_install(t, m->out[o]));
    m->out[o] = t;
    lua_pushvalue(L, orig + 1 + o);
    lua_replace(L, m->first + o);
  }
  lua_settop(L, orig);
  return 0;
}

static int record(Making *m) {
  const char *name = m->info->name;
  if (m->running->marks) record_marked(m, name);
  else {
    fresh_outputs(m, name);
    record_rule(m, NULL, NULL, name);
  }
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
  } else lua_remove(L, -2);            /* long strings are no single objects: take the table's */
  const char *s = lua_tostring(L, -1); /* the table holds the very same string object */
  lua_pop(L, 2);
  return s;
}

/* The tensors among the arguments 1 … nargs, and which of them are tracked; sets m->born, and whether keys outside of that batch
 * track any, one that is the same for all elements, too. */
static int read_arguments(Making *m, int nargs, uint64_t *needs) {
  lua_State *L = m->L;
  uint32_t flags = 0;
  m->born = 0;
  m->outside = false;
  for (int i = 1; i <= nargs; i++) {
    Box *b = l_box(L, i);
    if (!b) continue;
    if (!b->t) return l_error(L, "custom: argument #%d: this tensor was freed", i);
    if (PL_UNLIKELY(pl_behind(b->t)->a.symbolic) && !pl_sym_graph(pl_behind(b->t))->record)
      return l_error(L,
                     "custom: %s is a tensor of T.graph, whose gradient pass would not see this rule; write the "
                     "function with ops alone there, or trace it with T.jit",
                     pl_desc_text(&b->t->a));
    if (m->nin == MAX_CUSTOM) return l_error(L, "custom: more than %d tensors", MAX_CUSTOM);
    CALL(L, pl_history_current(&b->t, 1));
    *needs |= (uint64_t)((b->t->node || b->t->more) && pl_tracked(b->t)) << m->nin;
    flags |= b->t->flags;
    m->args[m->nin] = b;
    m->version[m->nin] = b->t->storage ? b->t->storage->version : 0;
    m->arg_at[m->nin++] = i;
  }
  if (PL_LIKELY(!(flags & PL_T_BATCHED))) return 0;
  for (int i = 0; i < m->nin; i++) {
    const PlTensor *t = m->args[i]->t;
    if (pl_is_batched(t) && pl_batched(t)->born > m->born) m->born = pl_batched(t)->born;
  }
  for (int i = 0; i < m->nin && !m->outside; i++) m->outside = l_outer_tracked(m->args[i]->t, m->born);
  return 0;
}

/* The history of an input says what it was before forward; only record_marked rewrites it. */
static int check_unedited(const Making *m, uint64_t needs) {
  lua_State *L = m->L;
  for (int i = 0; i < m->nin; i++) {
    const PlTensor *t = m->in[i];
    if (PL_LIKELY(!(needs >> i & 1) || !t->storage || t->storage->version == m->version[i])) continue;
    bool known = m->running->marks && marked(L, m->ctx, &l_dirty_key, m->arg_at[i]), back = false;
    for (int o = 0; o < m->nout; o++) back |= lua_rawequal(L, m->arg_at[i], m->first + o) != 0;
    if (known && back) continue;
    const char *fix = known ? "it must return it" : "work on a copy, x:clone(), or say ctx:mark_dirty(x) and return x";
    return l_error(L, "%s: forward edited its argument #%d, %s, in place, and gradients pass through it; %s", m->info->name, m->arg_at[i],
                   pl_desc_text(&t->a), fix);
  }
  return 0;
}

/* Pushes what runs forward and how many arguments stand before the user's. Inside vmap, where keys outside of it track
 * an input, that is a function of lua/perilune/autograd/vmap.lua. */
static int push_forward(Making *m) {
  lua_State *L = m->L;
  const bool outside = m->outside;
  int top = lua_gettop(L);
  if (outside) lua_getfield(L, LUA_REGISTRYINDEX, "perilune.custom_batched");
  lua_pushvalue(L, lua_upvalueindex(UP_FORWARD));
  if (outside) {
    const RuleInfo *info = lua_touserdata(L, lua_upvalueindex(UP_INFO));
    lua_rawgeti(L, lua_upvalueindex(UP_META), META_BACKWARD);
    lua_pushstring(L, info->name);
    lua_pushboolean(L, info->always);
    lua_rawgeti(L, lua_upvalueindex(UP_META), META_JVP);
  }
  lua_pushvalue(L, m->ctx);
  return lua_gettop(L) - top - 1;
}

/* Arguments are those of the user's forward. */
static int custom_call(lua_State *L) {
  int nargs = lua_gettop(L);
  luaL_checkstack(L, nargs + 2 * MAX_CUSTOM + 20, NULL);
  l_collect(L);
  Making m;
  uint32_t versions[MAX_CUSTOM];
  Box *saved[MAX_CUSTOM];
  Running now = {.forward = true, .versions = versions, .saved = saved, .args = m.args}, *outer = l_rule_running;
  m.L = L;
  m.nin = 0;
  m.running = &now;
  m.ctx = nargs + 1;
  read_arguments(&m, nargs, &now.needs);
  now.nin = (uint32_t)m.nin;
  m.info = lua_touserdata(L, lua_upvalueindex(UP_INFO));
  lua_createtable(L, m.info->room, 0); /* the context */
  lua_pushvalue(L, lua_upvalueindex(UP_META));
  lua_setmetatable(L, m.ctx);
  now.ctx = lua_topointer(L, m.ctx);
  int before = push_forward(&m);
  for (int i = 1; i <= nargs; i++) lua_pushvalue(L, i);
  const bool was = !pl_state.grad_off, kept = l_modes_kept(L);
  const PlAutocast autocast = pl_autocast_now();
  if (kept) l_modes_set(L, 1, false, autocast);
  else pl_grad_enable(false);
  l_rule_running = &now;
  const uint64_t floor = pl_state.key_floor, ceiling = pl_state.key_ceiling;
  pl_state.key_floor = 0;
  pl_state.key_ceiling = m.outside ? ~m.born : 0; /* keys inside see handles, below; what forward itself makes are no matter of ours */
  int rc = lua_pcall(L, nargs + before, LUA_MULTRET, 0);
  pl_state.key_floor = floor;
  pl_state.key_ceiling = ceiling;
  l_rule_running = outer;
  if (pl_state.mode_owner) l_modes_set(L, kept ? -1 : 0, was, autocast);
  else pl_grad_enable(was);
  if (rc != LUA_OK) return lua_error(L);
  m.first = m.ctx + 1;
  m.nout = lua_gettop(L) - m.ctx;
  if (m.nout == 0 || m.nout > MAX_CUSTOM)
    return l_error(L, "custom: forward must return 1 to %d tensors, got %d values", MAX_CUSTOM, m.nout);
  for (int i = 0; i < m.nin; i++) /* forward is free to do anything, also to free its inputs */
    if (!(m.in[i] = m.args[i]->t)) return l_error(L, "custom: forward freed its argument #%d", m.arg_at[i]);
  if (now.needs) {
    check_unedited(&m, now.needs);
    record(&m);
  } else
    for (int o = 0; o < m.nout; o++)
      if (!l_box(L, m.first + o))
        return l_error(L, "custom: forward must return tensors, result %d is %s", o + 1, l_typename(L, m.first + o));
  return m.nout;
}

/* ---- T.custom ---------------------------------------------------------------------------------------------------------- */

static void field_function(lua_State *L, int table, const char *key, const char *fn) {
  lua_getfield(L, table, key);
  if (lua_type(L, -1) != LUA_TFUNCTION) l_error(L, "%s: %s must be a function, got %s", fn, key, l_typename(L, -1));
}

/* T.custom{name=, forward=function(ctx, …), backward=function(ctx, g…), jvp=function(ctx, t…), always=false, state=table} → function. The state
 * is one table for all calls, ctx.state; it may be an object with methods. */
static int t_custom(lua_State *L) {
  if (lua_type(L, 1) != LUA_TTABLE) return l_error(L, "custom: a table {name=, forward=, backward=} expected, got %s", l_typename(L, 1));
  l_check_options(L, 1, "custom", "name forward backward jvp always state");
  lua_settop(L, 1);
  lua_createtable(L, 1, 2); /* 2: metatable of contexts */
  field_function(L, 1, "backward", "custom");
  lua_rawseti(L, 2, META_BACKWARD);
  field_function(L, 1, "forward", "custom");              /* 3 */
  RuleInfo *info = lua_newuserdatauv(L, sizeof *info, 0); /* 4 */
  info->room = 0;
  info->kept = l_kept(L);
  l_rule_runner_ref(L, info->kept);
  if (lua_getfield(L, 1, "jvp") != LUA_TNIL && lua_type(L, -1) != LUA_TFUNCTION)
    return l_error(L, "custom: jvp must be a function, got %s", l_typename(L, -1));
  info->has_jvp = !lua_isnil(L, -1);
  lua_rawseti(L, 2, META_JVP);
  if (lua_getfield(L, 1, "name") != LUA_TNIL && lua_type(L, -1) != LUA_TSTRING)
    return l_error(L, "custom: name must be a string, got %s", l_typename(L, -1));
  info->name = l_intern(L, lua_isnil(L, -1) ? "custom" : lua_tostring(L, -1));
  if (lua_getfield(L, 1, "always") != LUA_TNIL && lua_type(L, -1) != LUA_TBOOLEAN)
    return l_error(L, "custom: always must be true or false, got %s", l_typename(L, -1));
  info->always = lua_toboolean(L, -1);
  if (lua_getfield(L, 1, "state") != LUA_TNIL && lua_type(L, -1) != LUA_TTABLE)
    return l_error(L, "custom: state must be a table, got %s", l_typename(L, -1));
  int state = lua_gettop(L);
  l_push_context_methods(L);
  lua_pushvalue(L, state);
  lua_setfield(L, -2, "state");
  lua_setfield(L, 2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, 2, "__metatable");
  lua_settop(L, 4);
  l_kept_push_table(L, info->kept);
  lua_pushcclosure(L, custom_call, 4); /* upvalues: what is at 2 to 5 */
  return 1;
}

void l_custom_register(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"rule_marked", l_rule_marked}, {"custom", t_custom}, {"override_raw", l_override_raw}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
