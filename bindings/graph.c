/* SPDX-License-Identifier: MIT
 * Graphs from Lua: the raw functions under T.graph (lua/perilune/graph.lua). A graph is a userdata that retains a
 * PlFlow; tensors of it are ordinary tensor userdata. */
#include <stdlib.h>
#include <string.h>

#include "bindings/graph.h"
#include "engine/state.h"

static const char flow_meta[] = "perilune.flow";
static const char plan_meta[] = "perilune.plan";

PlFlow *l_check_flow(lua_State *L, int i) {
  FlowBox *b = luaL_testudata(L, i, flow_meta);
  if (!b || !b->f) {
    l_error(L, "graph: argument #%d must be a graph, got %s", i, l_typename(L, i));
    return NULL;
  }
  return b->f;
}

FlowBox *l_new_flow(lua_State *L) {
  FlowBox *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->f = NULL;
  luaL_setmetatable(L, flow_meta);
  l_note_late(L);
  return b;
}

static int flow_gc(lua_State *L) {
  FlowBox *b = luaL_testudata(L, 1, flow_meta);
  PlFlow *f = b ? b->f : NULL;
  if (!f) return 0;
  b->f = NULL;
  pl_flow_release(f);
  return 0;
}

/* graph_new() → flow */
static int graph_new(lua_State *L) {
  FlowBox *b = l_new_flow(L);
  CALL(L, pl_flow_new(&b->f));
  return 1;
}

/* The value of tensor t in f. Raises: of another graph. */
static PlFVal value_at(lua_State *L, PlFlow *f, int i) {
  PlFVal v = -1;
  PlStatus s = pl_sym_value_of(f, l_check_tensor(L, i), &v);
  if (s != PL_OK) l_fail(L, s);
  return v;
}

/* graph_input(flow, name, shape, dtype, leaf) → tensor */
static int graph_input(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  int64_t shape[PL_MAX_DIM];
  if (lua_type(L, 2) != LUA_TSTRING) return l_error(L, "input: the name must be a string, got %s", l_typename(L, 2));
  if (lua_type(L, 3) != LUA_TTABLE) return l_error(L, "input: the shape must be a list of sizes, got %s", l_typename(L, 3));
  int n = l_check_shape(L, 3, "input", shape);
  PlDtype d = lua_isnoneornil(L, 4) ? pl_default_float() : l_check_dtype(L, 4, "input");
  PlFVal v;
  Box *b = l_new_box(L);
  CALL(L, pl_flow_input(f, lua_tostring(L, 2), d, n, shape, lua_toboolean(L, 5), &v));
  CALL(L, pl_sym_tensor(&b->t, f, v));
  return 1;
}

/* The list of tensors at i as values, on a userdata pushed onto the stack; entries that are false become -1. */
static PlFVal *values(lua_State *L, PlFlow *f, int i, const char *what, int *n) {
  if (lua_type(L, i) != LUA_TTABLE) l_error(L, "%s must be a list of tensors, got %s", what, l_typename(L, i));
  *n = (int)lua_rawlen(L, i);
  PlFVal *v = lua_newuserdatauv(L, (size_t)(*n + 1) * sizeof *v, 0);
  for (int k = 0; k < *n; k++) {
    v[k] = -1;
    if (lua_rawgeti(L, i, k + 1) != LUA_TBOOLEAN) {
      if (!l_to_tensor(L, -1)) l_error(L, "%s: entry %d must be a tensor, got %s", what, k + 1, l_typename(L, -1));
      v[k] = value_at(L, f, lua_gettop(L));
    }
    lua_pop(L, 1);
  }
  return v;
}

/* graph_outputs(flow, list) */
static int graph_outputs(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  int n;
  PlFVal *v = values(L, f, 2, "outputs", &n);
  for (int k = 0; k < n; k++)
    if (v[k] < 0) return l_error(L, "outputs: entry %d must be a tensor", k + 1);
  CALL(L, pl_flow_set_outputs(f, n, v));
  return 0;
}

/* ---- gradient ---------------------------------------------------------------------------------------------- */

typedef struct Aggregate {
  lua_State *L;
  int fn;
} Aggregate;

typedef struct AggregateCall {
  Aggregate *a;
  PlFlow *f;
  int n;
  const PlFVal *v;
  PlFVal out;
  PlStatus status;
} AggregateCall;

static int aggregate_body(lua_State *L) {
  AggregateCall *c = lua_touserdata(L, 1);
  lua_settop(L, 2); /* the function */
  lua_createtable(L, c->n, 0);
  for (int k = 0; k < c->n; k++) {
    Box *b = l_new_box(L);
    c->status = pl_sym_tensor(&b->t, c->f, c->v[k]);
    if (c->status != PL_OK) return 0;
    lua_rawseti(L, 3, k + 1);
  }
  lua_call(L, 1, 1);
  PlTensor *t = l_to_tensor(L, -1);
  PlArray want = pl_fvalue_array(&c->f->vals[c->v[0]]);
  if (!t)
    c->status = pl_fail(PL_ERR_ARG, "gradient: aggregate must return one tensor, got %s", l_typename(L, -1));
  else if (!pl_shape_equal(&t->a, &want))
    c->status = pl_fail(PL_ERR_SHAPE, "gradient: aggregate returned %s for gradients of %s", pl_desc_text(&t->a), pl_desc_text(&want));
  else
    c->status = pl_sym_value_of(c->f, t, &c->out);
  return 0;
}

static PlStatus aggregate(void *ud, PlFlow *f, int n, const PlFVal *v, PlFVal *out) {
  Aggregate *a = ud;
  AggregateCall c = {.a = a, .f = f, .n = n, .v = v, .status = PL_OK};
  lua_pushcfunction(a->L, aggregate_body);
  lua_pushlightuserdata(a->L, &c);
  lua_pushvalue(a->L, a->fn);
  if (lua_pcall(a->L, 2, 0, 0) != LUA_OK) return l_keep_error(a->L);
  if (c.status == PL_OK) *out = c.out;
  return c.status;
}

static double opt_number(lua_State *L, int t, const char *key, double def) {
  lua_getfield(L, t, key);
  double v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : def;
  lua_pop(L, 1);
  return v;
}

/* Options that graph.lua has checked: {policy=0…3, fraction=, bytes=, seeded=, heavy=, copy=, allow_unused=,
 * choice={per node: -1 pin, 0, 1 may, 2 force}, listed=}. */
static void read_gradient_options(lua_State *L, int t, PlFlow *f, PlGradientOptions *o) {
  *o = (PlGradientOptions){.copy = l_opt_bool(L, t, "copy", false), .allow_unused = l_opt_bool(L, t, "allow_unused", false)};
  o->mirror = (PlMirrorOptions){.policy = (int)opt_number(L, t, "policy", 0), .fraction = opt_number(L, t, "fraction", -1),
                                .bytes = (int64_t)opt_number(L, t, "bytes", -1), .seeded = l_opt_bool(L, t, "seeded", false),
                                .heavy = l_opt_bool(L, t, "heavy", false), .listed = l_opt_bool(L, t, "listed", false)};
  lua_getfield(L, t, "choice");
  if (lua_type(L, -1) == LUA_TTABLE && f->nnodes) {
    int32_t n = f->nnodes;
    o->mirror.choice = calloc((size_t)n, 1);
    o->mirror.nchoice = o->mirror.choice ? n : 0;
    for (int32_t k = 0; o->mirror.choice && k < n; k++) {
      lua_rawgeti(L, -1, k + 1);
      o->mirror.choice[k] = (int8_t)lua_tointeger(L, -1);
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
}

/* graph_gradient(flow, ys, xs, dys or nil, options, aggregate or nil) → list; false where unused */
static int graph_gradient(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  int ny, nx, nd = 0;
  luaL_checktype(L, 5, LUA_TTABLE);
  lua_settop(L, 6);
  PlFVal *ys = values(L, f, 2, "gradient: the outputs", &ny), *xs = values(L, f, 3, "gradient: the inputs", &nx), *dys = NULL;
  if (!lua_isnil(L, 4)) dys = values(L, f, 4, "gradient: out_grads", &nd);
  if (dys && nd != ny) return l_error(L, "gradient: %d outputs, but %d out_grads", ny, nd);
  PlFVal *dx = lua_newuserdatauv(L, (size_t)(nx + 1) * sizeof *dx, 0);
  PlGradientOptions o;
  Aggregate ag = {L, 6};
  lua_createtable(L, nx, 0);
  int res = lua_gettop(L);
  luaL_checkstack(L, 16, NULL);
  read_gradient_options(L, 5, f, &o);
  if (lua_type(L, 6) == LUA_TFUNCTION) {
    o.aggregate = aggregate;
    o.ud = &ag;
  }
  PlStatus s = pl_flow_gradient(f, ny, ys, dys, nx, xs, &o, dx);
  free(o.mirror.choice);
  CALL(L, s);
  for (int i = 0; i < nx; i++) {
    if (dx[i] < 0)
      lua_pushboolean(L, 0);
    else {
      Box *b = l_new_box(L);
      CALL(L, pl_sym_tensor(&b->t, f, dx[i]));
    }
    lua_rawseti(L, res, i + 1);
  }
  lua_settop(L, res);
  return 1;
}

/* graph_trace(flow, f, …) → what f returns. Meanwhile every op becomes a node, also those on real tensors alone. */
static int graph_trace(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1), *was = pl_state.trace;
  luaL_checktype(L, 2, LUA_TFUNCTION);
  pl_state.trace = f;
  int status = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0);
  pl_state.trace = was;
  if (status != LUA_OK) return lua_error(L);
  return lua_gettop(L) - 1;
}

/* ---- running ----------------------------------------------------------------------------------------------- */

/* graph_run(flow or plan, {tensor per input, in order of declaration}) → list of outputs */
static int graph_run(lua_State *L) {
  PlFlow *f = luaL_testudata(L, 1, plan_meta) ? l_check_plan(L, 1)->flow : l_check_flow(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  luaL_checkstack(L, 16, NULL);
  PlTensor **in = lua_newuserdatauv(L, (size_t)(f->ninputs + 1) * sizeof(PlTensor *), 0);
  PlTensor **out = lua_newuserdatauv(L, (size_t)(f->noutputs + 1) * sizeof(PlTensor *), 0);
  l_collect(L);
  for (PlFVal v = 0; v < f->nvals; v++) {
    const PlFValue *val = &f->vals[v];
    if (val->kind != PL_FV_INPUT) continue;
    lua_rawgeti(L, 2, val->slot + 1); /* stays alive through the table */
    PlTensor *t = l_to_tensor(L, -1);
    PlArray want = pl_fvalue_array(val);
    if (!t) return l_error(L, "run: input %s must be a tensor, got %s", val->name, l_typename(L, -1));
    (void)l_concrete(L, t, "run");
    if (t->a.dtype != want.dtype || !pl_shape_equal(&t->a, &want))
      return l_error(L, "run: input %s is %s, the graph was made for %s", val->name, pl_desc_text(&t->a), pl_desc_text(&want));
    in[val->slot] = t;
    lua_pop(L, 1);
  }
  lua_createtable(L, f->noutputs, 0);
  int res = lua_gettop(L);
  for (int32_t o = 0; o < f->noutputs; o++) {
    l_new_box(L);
    lua_rawseti(L, res, o + 1);
  }
  PlStatus s = pl_flow_run(f, in, out);
  if (s == PL_ERR_OOM) {
    l_collect_full(L);
    s = pl_flow_run(f, in, out);
  }
  CALL(L, s);
  for (int32_t o = 0; o < f->noutputs; o++) {
    lua_rawgeti(L, res, o + 1);
    l_box(L, -1)->t = out[o];
    lua_pop(L, 1);
  }
  return 1;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

static int push_text(lua_State *L, char *text) {
  if (!text) return l_error(L, "graph: out of memory");
  lua_pushstring(L, text);
  free(text);
  return 1;
}

static int graph_text(lua_State *L) { return push_text(L, pl_flow_text(l_check_flow(L, 1), NULL)); }
static int graph_dot(lua_State *L) { return push_text(L, pl_flow_dot(l_check_flow(L, 1))); }

static int graph_verify(lua_State *L) {
  CALL(L, pl_flow_verify(l_check_flow(L, 1)));
  lua_pushboolean(L, 1);
  return 1;
}

static void push_type(lua_State *L, const PlFValue *v) {
  lua_createtable(L, v->ndim, 0);
  for (int d = 0; d < v->ndim; d++) {
    lua_pushinteger(L, (lua_Integer)v->dims[d]);
    lua_rawseti(L, -2, d + 1);
  }
}

static void set_int(lua_State *L, const char *key, int64_t v) {
  lua_pushinteger(L, (lua_Integer)v);
  lua_setfield(L, -2, key);
}

static void push_attr(lua_State *L, const PlAttrDef *d, const PlAttrs *a, int k) {
  int64_t i = a->v[k].i;
  switch (d->type) {
  case PL_A_FLOAT: lua_pushnumber(L, a->v[k].f); break;
  case PL_A_SCALAR:
    if ((a->isint >> k) & 1)
      lua_pushinteger(L, (lua_Integer)i);
    else
      lua_pushnumber(L, a->v[k].f);
    break;
  case PL_A_BOOL: lua_pushboolean(L, i != 0); break;
  case PL_A_DTYPE: lua_pushstring(L, pl_dtype_name((PlDtype)i)); break;
  case PL_A_DIM:
  case PL_A_NEWDIM:
  case PL_A_INDEX: lua_pushinteger(L, (lua_Integer)(i >= 0 ? i + 1 : i)); break;
  case PL_A_ENUM: {
    const char *p = d->choices;
    for (; i > 0 && *p; p++) i -= *p == '|';
    lua_pushlstring(L, p, strcspn(p, "|"));
    break;
  }
  case PL_A_DIMS:
  case PL_A_INTS:
  case PL_A_SHAPE:
  case PL_A_FLOATS:
    lua_createtable(L, pl_attr_n(a, k), 0);
    for (int j = 0; j < pl_attr_n(a, k); j++) {
      int64_t e = pl_attr_list(a, k)[j];
      double v;
      memcpy(&v, &e, sizeof v);
      if (d->type == PL_A_FLOATS)
        lua_pushnumber(L, v);
      else
        lua_pushinteger(L, (lua_Integer)(d->type == PL_A_DIMS ? e + 1 : e));
      lua_rawseti(L, -2, j + 1);
    }
    break;
  default: lua_pushinteger(L, (lua_Integer)i);
  }
}

/* Pushes {name op attrs shapes dtypes bytes flops inputs outputs stage index}: values by number. */
void l_push_fnode(lua_State *L, const PlFlow *f, int32_t i) {
  const PlFNode *n = &f->nodes[i];
  luaL_checkstack(L, 12, NULL);
  lua_createtable(L, 0, 12);
  lua_pushstring(L, n->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, n->op->name);
  lua_setfield(L, -2, "op");
  lua_createtable(L, 0, n->op->nattr);
  for (int k = 0; n->attrs && k < n->op->nattr; k++) {
    if (!pl_attr_has(n->attrs, k)) continue;
    push_attr(L, &n->op->attrs[k], n->attrs, k);
    lua_setfield(L, -2, n->op->attrs[k].name);
  }
  lua_setfield(L, -2, "attrs");
  lua_createtable(L, n->nout, 0);
  lua_createtable(L, n->nout, 0);
  lua_createtable(L, n->nout, 0);
  int64_t bytes = 0;
  for (int32_t o = 0; o < n->nout; o++) {
    const PlFValue *v = &f->vals[n->first + o];
    lua_pushinteger(L, n->first + o);
    lua_rawseti(L, -2, o + 1);
    lua_pushstring(L, v->dtype == PL_NDTYPE ? "none" : pl_dtype_name((PlDtype)v->dtype));
    lua_rawseti(L, -3, o + 1);
    push_type(L, v);
    lua_rawseti(L, -4, o + 1);
    if (!(n->flags & (PL_FN_VIEW | PL_FN_MUTATES))) bytes += pl_fvalue_bytes(v);
  }
  lua_setfield(L, -4, "outputs");
  lua_setfield(L, -3, "dtypes");
  lua_setfield(L, -2, "shapes");
  lua_createtable(L, n->nin, 0);
  for (int32_t k = 0; k < n->nin; k++) {
    if (n->in[k] < 0)
      lua_pushboolean(L, 0);
    else
      lua_pushinteger(L, n->in[k]);
    lua_rawseti(L, -2, k + 1);
  }
  lua_setfield(L, -2, "inputs");
  set_int(L, "bytes", bytes);
  lua_pushnumber(L, n->flops);
  lua_setfield(L, -2, "flops");
  set_int(L, "stage", n->stage);
  set_int(L, "index", i + 1);
  lua_pushboolean(L, (n->flags & PL_FN_MIRROR) != 0);
  lua_setfield(L, -2, "mirror");
  lua_pushboolean(L, (n->flags & PL_FN_VIEW) != 0);
  lua_setfield(L, -2, "view");
}

/* graph_nodes(flow) → list of node tables */
static int graph_nodes(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  lua_createtable(L, f->nnodes, 0);
  for (int32_t i = 0; i < f->nnodes; i++) {
    l_push_fnode(L, f, i);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int is_symbolic(lua_State *L) {
  PlTensor *t = l_to_tensor(L, 1);
  lua_pushboolean(L, t && t->a.symbolic);
  return 1;
}

/* graph_value(tensor) → number of its value, number of its node (nil: a leaf) */
static int graph_value(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  if (!t->a.symbolic) return l_error(L, "graph_value: %s is no symbolic tensor", pl_desc_text(&t->a));
  PlFVal v = pl_sym_value(t);
  lua_pushinteger(L, v);
  int32_t node = pl_sym_flow(t)->vals[v].node;
  if (node < 0)
    lua_pushnil(L);
  else
    lua_pushinteger(L, node + 1);
  return 2;
}

/* graph_inputs(flow) → names in order of declaration */
static int graph_inputs(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  lua_createtable(L, f->ninputs, 0);
  for (PlFVal v = 0; v < f->nvals; v++) {
    if (f->vals[v].kind != PL_FV_INPUT) continue;
    lua_pushstring(L, f->vals[v].name);
    lua_rawseti(L, -2, f->vals[v].slot + 1);
  }
  return 1;
}

/* graph_edition(flow) → a number that moves with every change */
static int graph_edition(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)l_check_flow(L, 1)->edition);
  return 1;
}

/* graph_name(flow, node number, name) */
static int graph_name(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  int64_t i = l_check_int(L, 2, "name", "node");
  const char *name = luaL_checkstring(L, 3);
  if (i < 1 || i > f->nnodes) return l_error(L, "name: there is no node %lld", (long long)i);
  const char *kept = pl_flow_string(f, name);
  if (!kept) return l_error(L, "name: out of memory");
  f->nodes[i - 1].name = kept;
  f->edition++;
  return 0;
}

/* ---- plans ------------------------------------------------------------------------------------------------- */


PlPlan *l_check_plan(lua_State *L, int i) {
  PlanBox *b = luaL_testudata(L, i, plan_meta);
  if (!b || !b->p) {
    l_error(L, "plan: argument #%d must be a plan, got %s", i, l_typename(L, i));
    return NULL;
  }
  return b->p;
}

static int plan_gc(lua_State *L) {
  PlanBox *b = luaL_testudata(L, 1, plan_meta);
  PlPlan *p = b ? b->p : NULL;
  if (!p) return 0;
  b->p = NULL;
  pl_plan_release(p);
  return 0;
}

/* graph_compile(flow) → plan */
static int graph_compile(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  PlanBox *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->p = NULL;
  luaL_setmetatable(L, plan_meta);
  l_note_late(L);
  CALL(L, pl_flow_compile(&b->p, f));
  return 1;
}

static void set_number(lua_State *L, const char *key, double v) {
  lua_pushnumber(L, v);
  lua_setfield(L, -2, key);
}

/* plan_figures(plan) → {stash_bytes=, …, passes={name → {removed=, ran=}}, stage={per node of the graph: 0, 1}} */
static int plan_figures(lua_State *L) {
  const PlPlan *p = l_check_plan(L, 1);
  lua_createtable(L, 0, 20);
  set_int(L, "stash_bytes", p->stash_bytes);
  set_int(L, "recomputed", p->copies);
  set_int(L, "peak_bytes", p->peak_bytes);
  set_int(L, "arena_bytes", p->arena_bytes);
  set_int(L, "lower_bound_bytes", p->lower_bound_bytes);
  set_int(L, "leaf_bytes", p->leaf_bytes);
  set_int(L, "output_bytes", p->output_bytes);
  set_int(L, "inplace", p->inplace);
  set_int(L, "nodes", p->flow->nnodes);
  set_number(L, "flops", p->flops);
  set_number(L, "extra_flops", p->extra_flops);
  lua_pushstring(L, p->policy);
  lua_setfield(L, -2, "policy");
  lua_createtable(L, 0, p->npasses);
  for (int32_t k = 0; k < p->npasses; k++) {
    lua_createtable(L, 0, 2);
    set_int(L, "removed", p->passes[k].removed);
    lua_pushboolean(L, p->passes[k].ran);
    lua_setfield(L, -2, "ran");
    lua_setfield(L, -2, p->passes[k].name);
  }
  lua_setfield(L, -2, "passes");
  lua_createtable(L, p->nsource, 0);
  for (int32_t i = 0; i < p->nsource; i++) {
    lua_pushinteger(L, p->recomputed[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "stage");
  return 1;
}

/* plan_nodes(plan) → the nodes that run, in order, as graph_nodes gives them */
static int plan_nodes(lua_State *L) {
  const PlPlan *p = l_check_plan(L, 1);
  lua_createtable(L, p->flow->nnodes, 0);
  for (int32_t i = 0; i < p->flow->nnodes; i++) {
    l_push_fnode(L, p->flow, i);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int plan_text(lua_State *L) { return push_text(L, pl_flow_text(l_check_plan(L, 1)->flow, NULL)); }

static int plan_verify(lua_State *L) {
  CALL(L, pl_flow_verify(l_check_plan(L, 1)->flow));
  lua_pushboolean(L, 1);
  return 1;
}

void l_graph_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"graph_new", graph_new}, {"graph_input", graph_input}, {"graph_outputs", graph_outputs},
                                  {"graph_gradient", graph_gradient}, {"graph_run", graph_run}, {"graph_trace", graph_trace}, {"graph_text", graph_text},
                                  {"graph_dot", graph_dot}, {"graph_verify", graph_verify}, {"graph_nodes", graph_nodes},
                                  {"graph_value", graph_value}, {"graph_inputs", graph_inputs}, {"graph_name", graph_name}, {"graph_edition", graph_edition},
                                  {"graph_compile", graph_compile}, {"plan_figures", plan_figures}, {"plan_nodes", plan_nodes},
                                  {"plan_text", plan_text}, {"plan_verify", plan_verify}, {"is_symbolic", is_symbolic}, {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
  luaL_newmetatable(L, flow_meta);
  lua_pushcfunction(L, flow_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  luaL_newmetatable(L, plan_meta);
  lua_pushcfunction(L, plan_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 2);
}
