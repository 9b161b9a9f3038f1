/* SPDX-License-Identifier: MIT
 * Gradients from Lua: requires_grad_, backward, grad_of, detach; and entering walks (backward.h). Hooks are in hooks.c,
 * explicit keys in grad_key.c. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/autograd/backward.h"
#include "engine/call/thread_state.h"
#include "engine/graph/ir/graph.h"
#include "engine/remat/remat.h"
#include "engine/vmap/vmap.h"

_Thread_local lua_State *l_running;

/* ---- entering the engine's walk --------------------------------------------------------------------------- */

/* Rules and callbacks need a state to run in; nested walks put the outer one back. Under a limit of memory garbage goes
 * first: a walk makes next to no Lua objects, so the collector would not run before its end, and what only waits for it
 * would be kept, and with it all that it can be computed again from. */
lua_State *l_enter_walk(lua_State *L) {
  lua_State *was = l_running;
  (void)l_modes_kept(L); /* a walk has others, hooks may open scopes */
  if (PL_UNLIKELY(pl_state.remat != NULL) && !was && pl_remat_is_tight()) l_collect_full(L);
  l_running = L;
  return was;
}

/* ---- after it ---------------------------------------------------------------------------------------------- */

static const char after_key = 0;
static _Thread_local int backward_depth, after_count;

/* core.after_backward(f) → whether it will: f(true) runs once the outermost backward() that is under way has ended,
 * f(false) if it failed. Other walks (grad_of) accumulate nothing, so nothing comes after them. */
static int t_after_backward(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_pushboolean(L, backward_depth > 0);
  if (!backward_depth) return 1;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &after_key) != LUA_TTABLE) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &after_key);
  }
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, ++after_count);
  lua_pushboolean(L, 1);
  return 1;
}

/* core.backward_depth() → how many backward() are under way, each inside of a rule or hook of the one before */
static int t_backward_depth(lua_State *L) {
  lua_pushinteger(L, backward_depth);
  return 1;
}

void l_backward_begins(void) { backward_depth++; }

void l_backward_ends(lua_State *L, bool ok) {
  l_kept_settle(L, 64);
  if (--backward_depth || PL_LIKELY(!after_count)) return;
  const int n = after_count;
  after_count = 0;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &after_key);
  lua_pushnil(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &after_key);
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, -1, i);
    lua_pushboolean(L, ok);
    if (ok) lua_call(L, 1, 0);
    else if (lua_pcall(L, 1, 0, 0) != LUA_OK) /* the failure itself is what is raised */ lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

void l_push_weak_table(lua_State *L, const void *key, const char *mode) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, key) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, mode);
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

/* Tensors of a list (or one tensor) at `at` into `out`; nil entries allowed if `holes`. Returns the count. */
int l_tensor_list(lua_State *L, int at, const char *fn, const char *arg, int n_want, bool holes, PlTensor ***out) {
  if (l_box(L, at)) {
    PlTensor **v = lua_newuserdatauv(L, sizeof *v, 0);
    v[0] = l_check_tensor(L, at);
    *out = v;
    return 1;
  }
  if (lua_type(L, at) != LUA_TTABLE) return l_error(L, "%s: %s must be a tensor or a list of tensors, got %s", fn, arg, l_typename(L, at));
  int n = n_want >= 0 ? n_want : (int)lua_rawlen(L, at);
  PlTensor **v = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *v, 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, at, i + 1);
    v[i] = l_to_tensor(L, -1);
    if (!v[i] && !(holes && (lua_isnil(L, -1) || lua_isboolean(L, -1))))
      return l_error(L, "%s: entry %d of %s must be a tensor, got %s", fn, i + 1, arg, l_typename(L, -1));
    lua_pop(L, 1);
  }
  *out = v;
  return n;
}

int l_gradient_list(lua_State *L, int at, const char *fn, const char *arg, int n, bool holes, PlTensor ***out) {
  if (l_box(L, at)) return l_tensor_list(L, at, fn, arg, -1, false, out);
  if (lua_type(L, at) != LUA_TTABLE) return l_error(L, "%s: %s must be a tensor or a list of tensors, got %s", fn, arg, l_typename(L, at));
  lua_Integer largest = 0;
  for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
    if (!lua_isinteger(L, -2) || lua_tointeger(L, -2) < 1)
      return l_error(L, "%s: %s must be a list of tensors; its field '%s' belongs to none", fn, arg, luaL_tolstring(L, -2, NULL));
    if (lua_tointeger(L, -2) > largest) largest = lua_tointeger(L, -2);
  }
  PlTensor **v = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *v, 0);
  for (int i = 0; i < n && largest == n; i++) {
    const int type = lua_rawgeti(L, at, i + 1);
    v[i] = l_to_tensor(L, -1);
    if (!v[i] && !(type == LUA_TBOOLEAN && !lua_toboolean(L, -1)) && !(type == LUA_TNIL && holes))
      return l_error(L, "%s: entry %d of %s must be a tensor, or false for ones, got %s", fn, i + 1, arg, l_typename(L, -1));
    lua_pop(L, 1);
  }
  *out = v;
  return largest > INT_MAX ? INT_MAX : (int)largest;
}

/* ---- leaves ---------------------------------------------------------------------------------------------------- */

static int m_requires_grad_(lua_State *L) {
  l_check_count(L, "requires_grad_", 2, "x, on");
  PlTensor *t = l_self(L, "requires_grad_");
  if (!lua_isnoneornil(L, 2) && !lua_isboolean(L, 2))
    return l_error(L, "requires_grad_: on must be true or false, got %s", l_typename(L, 2));
  bool on = lua_isnoneornil(L, 2) || lua_toboolean(L, 2);
  CALL(L, pl_requires_grad(t, on));
  l_remember_box(L, 1);
  lua_settop(L, 1);
  return 1;
}

typedef struct Backward {
  PlTensor *dy, **inputs; /* NULL: ones; all leaves */
  int ninputs;
  bool create_graph, retain_graph;
} Backward;

static int read_options(lua_State *L, int opt, const char *known, Backward *b) {
  l_check_options(L, opt, "backward", known);
  b->create_graph = l_opt_bool(L, opt, "create_graph", false);
  b->retain_graph = l_opt_bool(L, opt, "retain_graph", b->create_graph);
  if (lua_getfield(L, opt, "inputs") == LUA_TNIL) return 0;
  b->ninputs = l_tensor_list(L, lua_gettop(L), "backward", "inputs", -1, false, &b->inputs);
  if (!b->ninputs) return l_error(L, "backward: inputs has no tensor; leave it out for all leaves");
  return 0;
}

/* The arguments of x:backward that are more than a tensor. */
static int read_backward(lua_State *L, Backward *b) {
  PlTensor *dy = b->dy;
  int opt = 3;
  if (lua_type(L, 2) == LUA_TTABLE) opt = 2;
  else if (!dy && !lua_isnoneornil(L, 2)) return l_error(L, "backward: the gradient must be a tensor, got %s", l_typename(L, 2));
  lua_settop(L, 3);
  if (lua_isnil(L, opt)) return 0;
  read_options(L, opt, "gradient inputs retain_graph create_graph", b);
  lua_getfield(L, opt, "gradient");
  if (!dy && !(b->dy = l_to_tensor(L, -1)) && !lua_isnil(L, -1))
    return l_error(L, "backward: the gradient must be a tensor, got %s", l_typename(L, -1));
  return 0;
}

static const char recording_key = 0;

/* core.recording_off(f): f() → "FILE:LINE" of the scope that turned recording off, or nil */
static int t_recording_off(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &recording_key);
  return 0;
}

/* Where nothing is recorded the fault is there, not in the tensor: the message says which line turned recording off. */
static int backward_failed(lua_State *L, PlStatus s) {
  if (s != PL_ERR_STATE || !pl_state.grad_off) return l_fail(L, s);
  char text[512];
  snprintf(text, sizeof text, "%s", pl_message());
  luaL_checkstack(L, 8, NULL);
  const char *place = NULL;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &recording_key) == LUA_TFUNCTION && lua_pcall(L, 0, 1, 0) == LUA_OK) place = lua_tostring(L, -1);
  if (!place) return l_error_as(L, s, "%s", text);
  return l_error_as(L, s, "%s since %s", text, place);
}

static int run_backward(lua_State *L, PlTensor **ys, PlTensor **dys, int n, const Backward *b) {
  l_collect(L);
  lua_State *was = l_enter_walk(L);
  l_backward_begins();
  PlStatus s;
  WORK(L, s, pl_backward_into(ys, dys, n, b->inputs, b->ninputs, b->retain_graph, b->create_graph));
  l_running = was;
  l_backward_ends(L, s == PL_OK);
  if (PL_UNLIKELY(s != PL_OK)) return backward_failed(L, s);
  return 0;
}

/* x:backward(dy, {inputs=, retain_graph=, create_graph=}) */
static int m_backward(lua_State *L) {
  l_check_count(L, "backward", 3, "x, gradient, options");
  PlTensor *y = l_self(L, "backward");
  Backward b = {.dy = l_to_tensor(L, 2)};
  if (!b.dy || lua_gettop(L) != 2) read_backward(L, &b);
  return run_backward(L, &y, &b.dy, 1, &b);
}

/* The gradients of `ny` outputs, tensors or false, at `at`, which messages call `arg`; NULL, ones, for nil. */
static PlTensor **read_gradients(lua_State *L, int at, const char *fn, const char *arg, int ny) {
  PlTensor **dys = NULL;
  if (lua_isnil(L, at)) return NULL;
  const int m = l_gradient_list(L, at, fn, arg, ny, false, &dys);
  if (m != ny) l_error(L, "%s: %d outputs, but %d %s; give one for each, false stands for ones", fn, ny, m, arg);
  return dys;
}

/* T.backward(ys, dys, {gradient=, inputs=, retain_graph=, create_graph=}) */
static int t_backward(lua_State *L) {
  l_check_count(L, "backward", 3, "ys, gradients, options");
  lua_settop(L, 3);
  PlTensor **ys;
  Backward b = {.dy = NULL};
  const int n = l_tensor_list(L, 1, "backward", "ys", -1, false, &ys);
  if (!n) return l_error(L, "backward: ys has no tensor");
  const bool list = l_box(L, 2) || lua_rawlen(L, 2) > 0;
  if (lua_istable(L, 2) && !list && lua_isnil(L, 3)) { /* options without gradients */
    lua_pushnil(L);
    lua_insert(L, 2);
    lua_remove(L, 4);
  }
  lua_pushnil(L);
  if (!lua_isnil(L, 3)) {
    read_options(L, 3, "gradient inputs retain_graph create_graph", &b);
    lua_getfield(L, 3, "gradient");
    if (!lua_isnil(L, 2) && !lua_isnil(L, -1)) return l_error(L, "backward: the gradients stand twice, as an argument and as gradient=");
  }
  PlTensor **dys = read_gradients(L, lua_isnil(L, 2) ? lua_gettop(L) : 2, "backward", "gradients", n);
  return run_backward(L, ys, dys, n, &b);
}

/* T.grad_of(ys, xs, {grad_outputs=, retain_graph=, create_graph=, allow_unused=}) → list of gradients (one tensor for
 * one tensor); accumulates nothing. */
static int t_grad_of(lua_State *L) {
  lua_settop(L, 3);
  l_check_options(L, 3, "grad_of", "grad_outputs retain_graph create_graph allow_unused");
  PlTensor **ys, **xs, **dys;
  bool one = l_box(L, 2) != NULL;
  int ny = l_tensor_list(L, 1, "grad_of", "ys", -1, false, &ys);
  int nx = l_tensor_list(L, 2, "grad_of", "xs", -1, false, &xs);
  lua_pushnil(L);
  if (lua_type(L, 3) == LUA_TTABLE) lua_getfield(L, 3, "grad_outputs");
  dys = read_gradients(L, lua_gettop(L), "grad_of", "grad_outputs", ny);
  bool create = l_opt_bool(L, 3, "create_graph", false);
  bool retain = l_opt_bool(L, 3, "retain_graph", create);
  PlTensor **out = lua_newuserdatauv(L, (size_t)(nx + 1) * sizeof *out, 0);
  lua_createtable(L, nx, 0);
  int res = lua_gettop(L);
  for (int i = 0; i < nx; i++) {
    l_new_box(L);
    lua_rawseti(L, res, i + 1);
  }
  l_collect(L);
  lua_State *was = l_enter_walk(L);
  const bool allow_unused = l_opt_bool(L, 3, "allow_unused", false);
  PlStatus s;
  WORK(L, s, pl_grad_of(ys, dys, ny, xs, nx, retain, create, allow_unused, out));
  l_running = was;
  CALL(L, s);
  for (int i = 0; i < nx; i++) {
    lua_rawgeti(L, res, i + 1);
    if (out[i]) {
      l_box(L, -1)->t = out[i];
      lua_pop(L, 1);
    } else {
      lua_pop(L, 1);
      lua_pushnil(L);
      lua_rawseti(L, res, i + 1);
    }
  }
  lua_settop(L, res);
  if (one) lua_rawgeti(L, res, 1);
  return 1;
}

static int m_detach(lua_State *L) {
  l_check_count(L, "detach", 1, "x");
  PlTensor *t = l_self(L, "detach");
  Box *b = l_new_box(L);
  CALL(L, pl_tensor_detach(&b->t, t));
  return 1;
}

/* Leaves its family, as what x:detach() returns: a later write to the base does not bring a history back. In a trace and
 * inside vmap histories are elsewhere, in the graph and in the tensor that stands behind; there the object goes on with the
 * detached handle. */
static int m_detach_(lua_State *L) {
  l_check_count(L, "detach_", 1, "x");
  PlTensor *t = l_self(L, "detach_");
  if (PL_UNLIKELY(t->a.symbolic || pl_is_batched(t))) {
    PlTensor *d;
    if (t->a.symbolic && pl_sym_graph(t)->vals[pl_sym_value(t)].kind == PL_FV_INPUT)
      return l_error_as(L, PL_ERR_TRACE,
                        "detach_: %s is an argument of the traced function, whose own history would stay; detach it before "
                        "the call, or use x = x:detach()",
                        pl_desc_text(&t->a));
    CALL(L, pl_tensor_detach(&d, t));
    l_empty_box(L);
    l_box(L, 1)->t = d;
    return 1;
  }
  CALL(L, pl_history_drop(t));
  return 1;
}

/* core.grad_enabled([on]) → previous state */
static int t_grad_enabled(lua_State *L) {
  l_modes_follow(L);
  if (lua_isnoneornil(L, 1)) {
    lua_pushboolean(L, !pl_state.grad_off);
    return 1;
  }
  lua_pushboolean(L, pl_grad_enable(lua_toboolean(L, 1)));
  return 1;
}

void l_grad_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"grad_of", t_grad_of},
                                       {"backward", t_backward},
                                       {"grad_enabled", t_grad_enabled},
                                       {"after_backward", t_after_backward},
                                       {"backward_depth", t_backward_depth},
                                       {"recording_off", t_recording_off},
                                       {"register_retained_hook", l_register_retained_hook},
                                       {NULL, NULL}};
  static const luaL_Reg methods[] = {{"requires_grad_", m_requires_grad_},
                                     {"backward", m_backward},
                                     {"detach", m_detach},
                                     {"detach_", m_detach_},
                                     {"register_hook", l_register_hook},
                                     {"register_post_accumulate_grad_hook", l_register_accumulated_hook},
                                     {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  l_add_methods(L, methods);
  l_pull_register(L);
  l_anomaly_register(L);
  l_key_register(L);
}
