/* SPDX-License-Identifier: MIT
 * Graphs from Lua: the raw functions under T.graph (lua/perilune/graph/init.lua). A graph is a userdata that retains a
 * PlGraph; tensors of it are ordinary tensor userdata. */
#include <stdlib.h>
#include <string.h>

#include "bindings/graph/graph.h"
#include "bindings/jit/program.h"
#include "engine/call/thread_state.h"
#include "engine/graph/run/executor.h"

const char l_graph_meta[] = "perilune.graph_ir", l_plan_meta[] = "perilune.plan";

PlGraph *l_check_graph(lua_State *L, int i) {
  GraphBox *b = luaL_testudata(L, i, l_graph_meta);
  if (!b || !b->f) {
    l_error(L, "graph: argument #%d must be a graph, got %s", i, l_typename(L, i));
    return NULL;
  }
  return b->f;
}

GraphBox *l_new_graph(lua_State *L) {
  GraphBox *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->f = NULL;
  luaL_setmetatable(L, l_graph_meta);
  l_note_late(L);
  return b;
}

static int graph_gc(lua_State *L) {
  GraphBox *b = luaL_testudata(L, 1, l_graph_meta);
  PlGraph *f = b ? b->f : NULL;
  if (!f) return 0;
  b->f = NULL;
  l_trace_lost(f);
  pl_graph_release(f);
  return 0;
}

/* graph_new(unsafe_math) → graph */
static int graph_new(lua_State *L) {
  bool unsafe_math = lua_toboolean(L, 1);
  GraphBox *b = l_new_graph(L);
  CALL(L, pl_graph_new(&b->f));
  b->f->unsafe_math = unsafe_math;
  return 1;
}

/* The value of tensor t in f. Raises: of another graph. */
static PlGVal value_at(lua_State *L, PlGraph *f, int i) {
  PlGVal v = -1;
  PlStatus s = pl_sym_value_of(f, l_check_tensor(L, i), &v);
  if (s != PL_OK) l_fail(L, s);
  return v;
}

/* graph_input(graph, name, shape, dtype, leaf[, device[, like]]) → tensor; like: one that lies in memory as it will */
static int graph_input(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  int64_t shape[PL_MAX_DIM];
  if (lua_type(L, 2) != LUA_TSTRING) return l_error(L, "input: the name must be a string, got %s", l_typename(L, 2));
  if (lua_type(L, 3) != LUA_TTABLE) return l_error(L, "input: the shape must be a list of sizes, got %s", l_typename(L, 3));
  int n = l_check_shape(L, 3, "input", shape);
  PlDtype d = lua_isnoneornil(L, 4) ? pl_default_float() : l_check_dtype(L, 4, "input");
  int device = lua_isnoneornil(L, 6) ? pl_state.device : l_check_device(L, 6, "input");
  PlGVal v;
  Box *b = l_new_box(L);
  const PlTensor *like = l_to_tensor(L, 7);
  CALL(L, pl_graph_input_like(f, lua_tostring(L, 2), d, n, shape, like && like->a.ndim == n ? &like->a : NULL, lua_toboolean(L, 5), &v));
  f->vals[v].device = (uint8_t)device;
  CALL(L, pl_sym_tensor(&b->t, f, v));
  return 1;
}

/* The list of tensors at i as values, on a userdata pushed onto the stack; with holes, entries that are false become -1. */
static PlGVal *values(lua_State *L, PlGraph *f, int i, const char *what, bool holes, int *n) {
  if (lua_type(L, i) != LUA_TTABLE) l_error(L, "%s must be a list of tensors, got %s", what, l_typename(L, i));
  *n = (int)lua_rawlen(L, i);
  PlGVal *v = lua_newuserdatauv(L, (size_t)(*n + 1) * sizeof *v, 0);
  for (int k = 0; k < *n; k++) {
    v[k] = -1;
    if (lua_rawgeti(L, i, k + 1) != LUA_TBOOLEAN || lua_toboolean(L, -1) || !holes) {
      if (!l_to_tensor(L, -1)) l_error(L, "%s: entry %d must be a tensor, got %s", what, k + 1, l_typename(L, -1));
      v[k] = value_at(L, f, lua_gettop(L));
    }
    lua_pop(L, 1);
  }
  return v;
}

/* graph_outputs(graph, list) */
static int graph_outputs(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  int n;
  PlGVal *v = values(L, f, 2, "outputs", false, &n);
  CALL(L, pl_graph_set_outputs(f, n, v));
  return 0;
}

/* ---- gradient ---------------------------------------------------------------------------------------------- */

typedef struct Aggregate {
  lua_State *L;
  int fn;
} Aggregate;

typedef struct AggregateCall {
  Aggregate *a;
  PlGraph *f;
  int n;
  const PlGVal *v;
  PlGVal out;
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
  PlArray want = pl_gvalue_array(&c->f->vals[c->v[0]]);
  if (!t) c->status = pl_fail(PL_ERR_ARG, "gradient: aggregate must return one tensor, got %s", l_typename(L, -1));
  else if (!pl_shape_equal(&t->a, &want))
    c->status = pl_fail(PL_ERR_SHAPE, "gradient: aggregate returned %s for gradients of %s", pl_desc_text(&t->a), pl_desc_text(&want));
  else c->status = pl_sym_value_of(c->f, t, &c->out);
  return 0;
}

static PlStatus aggregate(void *ud, PlGraph *f, int n, const PlGVal *v, PlGVal *out) {
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

void l_read_recompute(lua_State *L, int t, int n, PlRecomputeOptions *m) {
  const double policy = opt_number(L, t, "policy", 0), bytes = opt_number(L, t, "bytes", -1);
  if (!(policy >= PL_RECOMPUTE_NONE && policy <= PL_RECOMPUTE_AUTO)) l_error(L, "gradient: there is no policy %g", policy);
  if (bytes != bytes) l_error(L, "gradient: budget.bytes is not a number");
  *m = (PlRecomputeOptions){.policy = (int)policy,
                            .fraction = opt_number(L, t, "fraction", -1),
                            .bytes = bytes >= 0x1p62 ? (int64_t)1 << 62
                                     : bytes < 0     ? -1
                                                     : (int64_t)bytes,
                            .seeded = l_opt_bool(L, t, "seeded", false),
                            .heavy = l_opt_bool(L, t, "heavy", false),
                            .listed = l_opt_bool(L, t, "listed", false)};
  lua_getfield(L, t, "choice");
  if (lua_type(L, -1) == LUA_TTABLE && n) {
    m->choice = calloc((size_t)n, 1);
    m->nchoice = m->choice ? n : 0;
    for (int k = 0; m->choice && k < n; k++) {
      lua_rawgeti(L, -1, k + 1);
      const lua_Integer choice = lua_tointeger(L, -1);
      m->choice[k] = choice >= PL_RECOMPUTE_PIN && choice <= PL_RECOMPUTE_FORCE ? (int8_t)choice : PL_RECOMPUTE_BY_POLICY;
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
}

/* The op whose name is on top: one tensor in, one out; zeros makes them of nothing. */
static const PlOp *named_op(lua_State *L, const char *option, bool zeros) {
  if (lua_type(L, -1) != LUA_TSTRING) l_error(L, "gradient: %s: the name of an op expected, got %s", option, l_typename(L, -1));
  const PlOp *op = pl_op_find(lua_tostring(L, -1));
  if (!op) l_error(L, "gradient: %s: there is no op %s", option, lua_tostring(L, -1));
  const bool made = zeros && op->nin == 0 && (op->flags & PL_F_ZEROS);
  bool fits = !(op->flags & (PL_F_MUTATES | PL_F_IMPURE | PL_F_SEEDED)) && op->nout == 1 && (op->nin == 1 || made);
  if (!fits) l_error(L, "gradient: %s: %s is no op of one tensor that gives another", option, op->name);
  return op;
}

/* The ops of options zero_ops and copy_op; their list is on a userdata that is pushed. */
static void read_ops(lua_State *L, int t, PlGradientOptions *o) {
  if (lua_getfield(L, t, "copy_op") != LUA_TNIL) o->copy_op = named_op(L, "copy_op", false);
  lua_pop(L, 1);
  if (lua_getfield(L, t, "zero_ops") == LUA_TTABLE) {
    int n = (int)lua_rawlen(L, -1), list = lua_gettop(L);
    const PlOp **ops = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *ops, 0);
    for (int k = 0; k < n; k++) {
      lua_rawgeti(L, list, k + 1);
      ops[k] = named_op(L, "zero_ops", true);
      lua_pop(L, 1);
    }
    o->zero_ops = ops;
    o->nzero_ops = n;
  }
}

/* graph_gradient(graph, ys, xs, dys or nil, options, aggregate or nil) → list; false where unused */
static int graph_gradient(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  int ny, nx, nd = 0;
  luaL_checktype(L, 5, LUA_TTABLE);
  lua_settop(L, 6);
  PlGVal *ys = values(L, f, 2, "gradient: the outputs", false, &ny), *xs = values(L, f, 3, "gradient: the inputs", false, &nx), *dys = NULL;
  if (!lua_isnil(L, 4)) dys = values(L, f, 4, "gradient: out_grads", true, &nd);
  if (dys && nd != ny) return l_error(L, "gradient: %d outputs, but %d out_grads", ny, nd);
  PlGVal *dx = lua_newuserdatauv(L, (size_t)(nx + 1) * sizeof *dx, 0);
  PlGradientOptions o;
  Aggregate ag = {L, 6};
  lua_createtable(L, nx, 0);
  int res = lua_gettop(L);
  luaL_checkstack(L, 16, NULL);
  o = (PlGradientOptions){.copy = l_opt_bool(L, 5, "copy", false), .allow_unused = l_opt_bool(L, 5, "allow_unused", false)};
  read_ops(L, 5, &o);
  l_read_recompute(L, 5, f->nnodes, &o.recompute);
  if (lua_type(L, 6) == LUA_TFUNCTION) {
    o.aggregate = aggregate;
    o.ud = &ag;
  }
  PlStatus s = pl_graph_gradient(f, ny, ys, dys, nx, xs, &o, dx);
  free(o.recompute.choice);
  CALL(L, s);
  for (int i = 0; i < nx; i++) {
    if (dx[i] < 0) lua_pushboolean(L, 0);
    else {
      Box *b = l_new_box(L);
      CALL(L, pl_sym_tensor(&b->t, f, dx[i]));
    }
    lua_rawseti(L, res, i + 1);
  }
  lua_settop(L, res);
  return 1;
}

/* graph_trace(graph, f, …) → what f returns. Meanwhile every op becomes a node, also those on real tensors alone. */
static int graph_trace(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1), *was = pl_state.trace;
  luaL_checktype(L, 2, LUA_TFUNCTION);
  pl_set_trace(f);
  int status = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0);
  pl_set_trace(was);
  if (status != LUA_OK) return lua_error(L);
  return lua_gettop(L) - 1;
}

/* ---- running ----------------------------------------------------------------------------------------------- */

static bool writes(const PlGraph *f) {
  for (int32_t i = 0; i < f->nnodes; i++)
    if (f->nodes[i].flags & PL_FN_MUTATES) return true;
  return false;
}

/* Where a tensor's memory ends. */
static const char *end_of(const PlArray *a) {
  int64_t last = a->numel > 0 ? 1 : 0;
  for (int d = 0; d < a->ndim && a->numel > 0; d++) last += (a->shape[d] - 1) * a->strides[d];
  return (const char *)a->data + last * (int64_t)pl_dtype_size((PlDtype)a->dtype);
}

/* May one be written while the other is read? Two rows of one tensor may. */
static bool share(const PlTensor *x, const PlTensor *y) {
  return x->storage == y->storage && x->a.numel > 0 && y->a.numel > 0 && (const char *)x->a.data < end_of(&y->a) &&
         (const char *)y->a.data < end_of(&x->a);
}

/* A run writes into input v, as x is: what is copied first would not be written, and the order of nodes knows of no memory that two leaves
 * share. */
static int check_written(lua_State *L, const PlGraph *f, PlTensor *const *in, PlGVal v, const PlTensor *x) {
  const PlGValue *val = &f->vals[v];
  if (!pl_graph_layout_fits(val, &x->a))
    return l_error(L, "run: the graph writes into input %s, which has to be contiguous, got %s; give x:contiguous()", val->name,
                   pl_desc_text(&x->a));
  for (PlGVal w = 0; w < f->nvals; w++) {
    const PlGValue *b = &f->vals[w];
    if (w == v || b->kind == PL_FV_NODE || b->kind == PL_FV_CONST || b->store == val->store) continue;
    if (share(b->kind == PL_FV_INPUT ? in[b->slot] : b->real, x))
      return l_error(L, "run: the graph writes into input %s, which shares its memory with %s; give a copy", val->name,
                     b->kind == PL_FV_INPUT ? b->name : "a captured tensor");
  }
  return 0;
}

/* Had node i of the graph that the plan is of run, when the plan's newest run failed? */
typedef struct RanIn {
  const PlExec *exec;
  const PlGraph *f;
} RanIn;

static bool ran_in(void *ud, int32_t i) {
  const RanIn *r = ud;
  return pl_exec_ran(r->exec, r->f->nodes[i].attrs);
}

/* graph_run(graph or plan, {tensor per input, in order of declaration}, steps) → list of outputs. A graph runs node by node. steps:
 * optimizers count on. */
static int graph_run(lua_State *L) {
  PlanBox *plan = luaL_testudata(L, 1, l_plan_meta);
  PlGraph *f = plan ? l_check_plan(L, 1)->graph : l_check_graph(L, 1);
  if (plan && !plan->exec) CALL(L, pl_exec_new(&plan->exec, plan->p));
  if (plan) pl_exec_forget(plan->exec);
  luaL_checktype(L, 2, LUA_TTABLE);
  const bool steps = lua_toboolean(L, 3);
  lua_settop(L, 2);
  luaL_checkstack(L, 16, NULL);
  PlTensor **in = lua_newuserdatauv(L, (size_t)(f->ninputs + 1) * sizeof(PlTensor *), 0);
  PlTensor **out = lua_newuserdatauv(L, (size_t)(f->noutputs + 1) * sizeof(PlTensor *), 0);
  l_collect(L);
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_CAPTURE && (val->real->flags & PL_T_LEFT))
      return l_error(L,
                     "run: the graph reads the memory that %s was in before its network was converted (net:to); make the "
                     "graph again",
                     pl_desc_text(&val->real->a));
    if (val->kind != PL_FV_INPUT) continue;
    lua_rawgeti(L, 2, val->slot + 1); /* stays alive through the table */
    PlTensor *t = l_to_tensor(L, -1);
    PlArray want = pl_gvalue_array(val);
    if (!t) return l_error(L, "run: input %s must be a tensor, got %s", val->name, l_typename(L, -1));
    (void)l_concrete(L, t, "run");
    if (t->a.dtype != want.dtype || !pl_shape_equal(&t->a, &want))
      return l_error(L, "run: input %s is %s, the graph was made for %s", val->name, pl_desc_text(&t->a), pl_desc_text(&want));
    in[val->slot] = t;
    lua_pop(L, 1);
  }
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_INPUT && f->stores[f->vals[v].store].version > 0) check_written(L, f, in, v, in[f->vals[v].slot]);
  lua_createtable(L, f->noutputs, 0);
  int res = lua_gettop(L);
  for (int32_t o = 0; o < f->noutputs; o++) {
    l_new_box(L);
    lua_rawseti(L, res, o + 1);
  }
  PlGraphSteps *counts = NULL;
  if (steps) CALL(L, pl_graph_steps_begin(&counts, f));
  PlStatus s;
  const uint64_t offset = pl_state.offset;
  WORK(L, s, plan ? pl_exec_run(plan->exec, in, out) : pl_graph_run(f, in, out));
  if (s == PL_ERR_OOM && !(plan ? pl_exec_wrote(plan->exec) : writes(f))) { /* else it would be written twice */
    l_collect_full(L);
    pl_state.offset = offset;
    WORK(L, s, plan ? pl_exec_run(plan->exec, in, out) : pl_graph_run(f, in, out));
  }
  pl_graph_steps_end(counts, s != PL_OK && plan ? ran_in : NULL, &(RanIn){plan ? plan->exec : NULL, f});
  CALL(L, s);
  for (int32_t o = 0; o < f->noutputs; o++) {
    lua_rawgeti(L, res, o + 1);
    l_box(L, -1)->t = out[o];
    lua_pop(L, 1);
  }
  return 1;
}

/* graph_ran(plan, graph, node) → had that node of the graph that the plan is of run, when the plan's newest run failed? */
static int graph_ran(lua_State *L) {
  const PlanBox *plan = luaL_checkudata(L, 1, l_plan_meta);
  const PlGraph *f = l_check_graph(L, 2);
  int64_t i = l_check_int(L, 3, "graph_ran", "node");
  lua_pushboolean(L, plan->exec && i >= 1 && i <= f->nnodes && pl_exec_ran(plan->exec, f->nodes[i - 1].attrs));
  return 1;
}

void l_graph_register(lua_State *L) {
  static const luaL_Reg regs[] = {
      {"graph_new", graph_new}, {"graph_input", graph_input}, {"graph_outputs", graph_outputs}, {"graph_gradient", graph_gradient},
      {"graph_run", graph_run}, {"graph_ran", graph_ran},     {"graph_trace", graph_trace},     {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
  l_graph_look_register(L);
  l_graph_file_register(L);
  l_graph_deploy_register(L);
  luaL_newmetatable(L, l_graph_meta);
  lua_pushcfunction(L, graph_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}
