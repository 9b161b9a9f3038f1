/* SPDX-License-Identifier: MIT
 * Graphs and plans from Lua, looked at: texts, nodes as tables, figures. Making and running are in graph.c. */
#include <stdlib.h>
#include <string.h>

#include "bindings/graph/graph.h"
#include "engine/call/thread_state.h"
#include "engine/graph/run/executor.h"
#include "engine/vmap/vmap.h"

/* ---- looking ----------------------------------------------------------------------------------------------- */

static int push_text(lua_State *L, char *text) {
  if (!text) return l_error(L, "graph: out of memory");
  lua_pushstring(L, text);
  free(text);
  return 1;
}

static int graph_text(lua_State *L) { return push_text(L, pl_graph_text(l_check_graph(L, 1), NULL)); }
static int graph_dot(lua_State *L) { return push_text(L, pl_graph_dot(l_check_graph(L, 1))); }

static int graph_verify(lua_State *L) {
  CALL(L, pl_graph_verify(l_check_graph(L, 1)));
  lua_pushboolean(L, 1);
  return 1;
}

static void push_type(lua_State *L, const PlGValue *v) {
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

void l_push_attr(lua_State *L, const PlAttrDef *d, const PlAttrs *a, int k) {
  int64_t i = a->v[k].i;
  switch (d->type) {
  case PL_A_FLOAT: lua_pushnumber(L, a->v[k].f); break;
  case PL_A_SCALAR:
    if ((a->isint >> k) & 1) lua_pushinteger(L, (lua_Integer)i);
    else lua_pushnumber(L, a->v[k].f);
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
      if (d->type == PL_A_FLOATS) lua_pushnumber(L, v);
      else lua_pushinteger(L, (lua_Integer)(d->type == PL_A_DIMS ? e + 1 : e));
      lua_rawseti(L, -2, j + 1);
    }
    break;
  default: lua_pushinteger(L, (lua_Integer)i);
  }
}

/* Pushes {name op attrs shapes dtypes bytes flops inputs outputs stage index after whole}: values and nodes by number. */
void l_push_fnode(lua_State *L, const PlGraph *f, int32_t i) {
  const PlGNode *n = &f->nodes[i];
  luaL_checkstack(L, 12, NULL);
  lua_createtable(L, 0, 12);
  lua_pushstring(L, n->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, n->op->name);
  lua_setfield(L, -2, "op");
  lua_createtable(L, 0, n->op->nattr);
  for (int k = 0; n->attrs && k < n->op->nattr; k++) {
    if (!pl_attr_has(n->attrs, k)) continue;
    l_push_attr(L, &n->op->attrs[k], n->attrs, k);
    lua_setfield(L, -2, n->op->attrs[k].name);
  }
  lua_setfield(L, -2, "attrs");
  lua_createtable(L, n->nout, 0);
  lua_createtable(L, n->nout, 0);
  lua_createtable(L, n->nout, 0);
  int64_t bytes = 0;
  for (int32_t o = 0; o < n->nout; o++) {
    const PlGValue *v = &f->vals[n->first + o];
    lua_pushinteger(L, n->first + o);
    lua_rawseti(L, -2, o + 1);
    lua_pushstring(L, v->dtype == PL_NDTYPE ? "none" : pl_dtype_name((PlDtype)v->dtype));
    lua_rawseti(L, -3, o + 1);
    push_type(L, v);
    lua_rawseti(L, -4, o + 1);
    if (!(n->flags & (PL_FN_VIEW | PL_FN_MUTATES))) bytes += pl_gvalue_bytes(v);
  }
  lua_setfield(L, -4, "outputs");
  lua_setfield(L, -3, "dtypes");
  lua_setfield(L, -2, "shapes");
  lua_createtable(L, n->nin, 0);
  for (int32_t k = 0; k < n->nin; k++) {
    if (n->in[k] < 0) lua_pushboolean(L, 0);
    else lua_pushinteger(L, n->in[k]);
    lua_rawseti(L, -2, k + 1);
  }
  lua_setfield(L, -2, "inputs");
  set_int(L, "bytes", bytes);
  lua_pushnumber(L, n->flops);
  lua_setfield(L, -2, "flops");
  set_int(L, "stage", n->stage);
  set_int(L, "index", i + 1);
  if (n->origin >= 0) set_int(L, "origin", n->origin + 1);
  if (n->nafter) {
    lua_createtable(L, n->nafter, 0);
    for (int32_t k = 0; k < n->nafter; k++) {
      lua_pushinteger(L, n->after[k] + 1);
      lua_rawseti(L, -2, k + 1);
    }
    lua_setfield(L, -2, "after");
  }
  if (n->whole > 0 && n->flags & PL_FN_MUTATES) set_int(L, "whole", n->whole);
  lua_pushboolean(L, (n->flags & PL_FN_RECOMPUTED) != 0);
  lua_setfield(L, -2, "mirror");
  lua_pushboolean(L, (n->flags & PL_FN_VIEW) != 0);
  lua_setfield(L, -2, "view");
}

/* graph_nodes(graph) → list of node tables */
static int graph_nodes(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  lua_createtable(L, f->nnodes, 0);
  for (int32_t i = 0; i < f->nnodes; i++) {
    l_push_fnode(L, f, i);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* graph_mark(mark, …) → mark before, number of nodes: nodes made from now on are marked so (PlRecomputeChoice) in the graph of the first symbolic
 * tensor among …, else in the one that is traced; nil if there is none. */
static int graph_mark(lua_State *L) {
  int64_t mark = l_check_int(L, 1, "graph_mark", "mark");
  if (mark < PL_RECOMPUTE_PIN || mark > PL_RECOMPUTE_FORCE) return l_error(L, "graph_mark: no such mark");
  PlGraph *f = pl_state.trace;
  for (int i = 2, n = lua_gettop(L); i <= n; i++) {
    PlTensor *t = l_to_tensor(L, i);
    if (!t || !pl_behind(t)->a.symbolic) continue;
    f = pl_sym_graph(pl_behind(t));
    break;
  }
  if (!f) return 0;
  lua_pushinteger(L, f->mark);
  f->mark = (int8_t)mark;
  lua_pushinteger(L, f->nnodes);
  return 2;
}

/* graph_pin_since(n, ask, …): of the nodes from number n on that are forced to be repeated, those of which ask(op, node) holds
 * are not repeated at all; the graph is that of graph_mark */
static int graph_pin_since(lua_State *L) {
  PlGraph *f = pl_state.trace;
  int64_t from = l_check_int(L, 1, "graph_pin_since", "n");
  luaL_checktype(L, 2, LUA_TFUNCTION);
  for (int i = 3, n = lua_gettop(L); i <= n; i++) {
    PlTensor *t = l_to_tensor(L, i);
    if (!t || !pl_behind(t)->a.symbolic) continue;
    f = pl_sym_graph(pl_behind(t));
    break;
  }
  for (int32_t i = (int32_t)(from > 0 ? from : 0); f && i < f->nnodes; i++) {
    if (f->nodes[i].mark != PL_RECOMPUTE_FORCE || !f->nodes[i].op) continue;
    lua_pushvalue(L, 2);
    lua_pushstring(L, f->nodes[i].op->name);
    l_push_fnode(L, f, i);
    lua_call(L, 2, 1);
    if (lua_toboolean(L, -1)) f->nodes[i].mark = PL_RECOMPUTE_PIN;
    lua_pop(L, 1);
  }
  return 0;
}

/* graph_pin(value): the node that computed it is not repeated; what is no symbolic tensor is left alone */
static int graph_pin(lua_State *L) {
  PlTensor *t = l_to_tensor(L, 1);
  if (!t || !pl_behind(t)->a.symbolic) return 0;
  t = pl_behind(t);
  PlGraph *f = pl_sym_graph(t);
  const PlGValue *v = &f->vals[f->stores[f->vals[pl_sym_value(t)].store].first];
  if (v->node >= 0) f->nodes[v->node].mark = PL_RECOMPUTE_PIN;
  return 0;
}

static int is_symbolic(lua_State *L) {
  PlTensor *t = l_to_tensor(L, 1);
  lua_pushboolean(L, t && t->a.symbolic);
  return 1;
}

/* readable(tensor) → a tensor whose values can be looked at, how many dimensions it has in front for vmap. It has no history;
 * inside vmap it holds all tensors that the argument stands for. nil instead of it while a graph is made. */
static int readable(lua_State *L) {
  const PlTensor *x = l_check_tensor(L, 1);
  PlTensor *t = pl_behind(l_check_tensor(L, 1));
  if (pl_state.trace || t->a.symbolic) lua_pushnil(L);
  else {
    Box *b = l_new_box(L);
    CALL(L, pl_tensor_detach(&b->t, t));
  }
  lua_pushinteger(L, t->a.ndim - x->a.ndim);
  return 2;
}

/* graph_value(tensor[, now]) → number of its value, number of its node (nil: a leaf). now: the one that it is after what was written into
 * its memory since it was made, which may be a new node's */
static int graph_value(lua_State *L) {
  PlTensor *t = l_check_tensor(L, 1);
  if (!t->a.symbolic) return l_error(L, "graph_value: %s is no symbolic tensor", pl_desc_text(&t->a));
  PlGVal v = pl_sym_value(t);
  if (lua_toboolean(L, 2)) CALL(L, pl_sym_value_of(pl_sym_graph(t), t, &v));
  lua_pushinteger(L, v);
  int32_t node = pl_sym_graph(t)->vals[v].node;
  if (node < 0) lua_pushnil(L);
  else lua_pushinteger(L, node + 1);
  return 2;
}

/* graph_maker(graph, tensor) → number of the node that computes its memory: views are nobody's work; nil: a leaf */
static int graph_maker(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  PlTensor *t = l_check_tensor(L, 2);
  if (!t->a.symbolic || pl_sym_graph(t) != f) return l_error(L, "graph: %s is no tensor of this graph", pl_desc_text(&t->a));
  PlGVal v = pl_sym_value(t);
  while (f->vals[v].node >= 0 && f->nodes[f->vals[v].node].flags & PL_FN_VIEW) v = f->nodes[f->vals[v].node].in[0]; /* ever earlier */
  if (f->vals[v].node < 0) return 0;
  lua_pushinteger(L, f->vals[v].node + 1);
  return 1;
}

/* graph_after(graph, node, before): node runs after `before`, which stands in front of it */
static int graph_after(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  int64_t i = l_check_int(L, 2, "after", "node"), b = l_check_int(L, 3, "after", "before");
  if (i < 1 || i > f->nnodes || b < 1 || b > f->nnodes)
    return l_error(L, "after: there is no node %lld", (long long)(i < 1 || i > f->nnodes ? i : b));
  const char *name = f->nodes[i - 1].name, *other = f->nodes[b - 1].name;
  if (i == b) return l_error(L, "after: %s cannot run after itself", name);
  if (b > i)
    return l_error(L, "after: %s was made after %s; nodes run in the order in which they were made, so make it first", other, name);
  CALL(L, pl_graph_after(f, (int32_t)i - 1, (int32_t)b - 1));
  return 0;
}

/* graph_inputs(graph) → names in order of declaration */
static int graph_inputs(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  lua_createtable(L, f->ninputs, 0);
  for (PlGVal v = 0; v < f->nvals; v++) {
    if (f->vals[v].kind != PL_FV_INPUT) continue;
    lua_pushstring(L, f->vals[v].name);
    lua_rawseti(L, -2, f->vals[v].slot + 1);
  }
  return 1;
}

/* graph_edition(graph) → a number that moves with every change */
static int graph_edition(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)l_check_graph(L, 1)->edition);
  return 1;
}

/* graph_name(graph, node number, name) */
static int graph_name(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  int64_t i = l_check_int(L, 2, "name", "node");
  const char *name = luaL_checkstring(L, 3);
  if (i < 1 || i > f->nnodes) return l_error(L, "name: there is no node %lld", (long long)i);
  const char *kept = pl_graph_string(f, name);
  if (!kept) return l_error(L, "name: out of memory");
  f->nodes[i - 1].name = kept;
  f->edition++;
  return 0;
}

/* ---- plans ------------------------------------------------------------------------------------------------- */

PlPlan *l_check_plan(lua_State *L, int i) {
  PlanBox *b = luaL_testudata(L, i, l_plan_meta);
  if (!b || !b->p) {
    l_error(L, "plan: argument #%d must be a plan, got %s", i, l_typename(L, i));
    return NULL;
  }
  return b->p;
}

static int plan_gc(lua_State *L) {
  PlanBox *b = luaL_testudata(L, 1, l_plan_meta);
  PlPlan *p = b ? b->p : NULL;
  if (!p) return 0;
  b->p = NULL;
  pl_exec_release(b->exec);
  b->exec = NULL;
  pl_plan_release(p);
  return 0;
}

/* graph_compile(graph) → plan */
static int graph_compile(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  PlanBox *b = lua_newuserdatauv(L, sizeof *b, 0);
  *b = (PlanBox){0};
  luaL_setmetatable(L, l_plan_meta);
  l_note_late(L);
  CALL(L, pl_graph_compile(&b->p, f));
  return 1;
}

static void set_number(lua_State *L, const char *key, double v) {
  lua_pushnumber(L, v);
  lua_setfield(L, -2, key);
}

/* Lists of the names of nodes that run as one. */
static void push_groups(lua_State *L, const PlPlan *p) {
  lua_newtable(L);
  for (int32_t i = 0; p->group && i < p->graph->nnodes; i++) {
    if (p->group[i] < 0 || (p->graph->nodes[i].flags & PL_FN_VIEW)) continue;
    if (p->group[i] == i) {
      lua_newtable(L);
      lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
    lua_rawgeti(L, -1, (lua_Integer)lua_rawlen(L, -1));
    lua_pushstring(L, p->graph->nodes[i].name);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    lua_pop(L, 1);
  }
}

/* plan_figures(plan) → {stash_bytes=, …, passes={name → {removed=, ran=}}, groups={{names}, …},
 * stage={per node of the graph: 0, 1}} */
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
  if (p->measured_bytes) {
    set_int(L, "measured_bytes", p->measured_bytes);
    set_int(L, "workspace_bytes", p->workspace_bytes);
  }
  set_int(L, "nodes", p->graph->nnodes);
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
  push_groups(L, p);
  lua_setfield(L, -2, "groups");
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
  lua_createtable(L, p->graph->nnodes, 0);
  for (int32_t i = 0; i < p->graph->nnodes; i++) {
    l_push_fnode(L, p->graph, i);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int plan_text(lua_State *L) { return push_text(L, pl_graph_text(l_check_plan(L, 1)->graph, NULL)); }

/* plan_buffers(plan) → list of {place="leaf", "output" or "arena", at=, bytes=, birth=, death=, name=}; nodes count from
 * 1, a death of nodes + 1 is the end. */
static int plan_buffers(lua_State *L) {
  static const char *const places[] = {"nothing", "leaf", "output", "arena"};
  const PlPlan *p = l_check_plan(L, 1);
  const PlGraph *f = p->graph;
  int n = 0;
  bool *listed = lua_newuserdatauv(L, (size_t)p->nbuffers + 1, 0);
  memset(listed, 0, (size_t)p->nbuffers);
  lua_newtable(L);
  for (int32_t s = 0; s < f->nstores; s++) { /* in the order of their first stores */
    const PlBuffer *b = &p->buffers[p->buffer[s]];
    const PlGValue *v = &f->vals[f->stores[s].first];
    if (b->place == PL_AT_NOTHING || listed[p->buffer[s]]) continue;
    listed[p->buffer[s]] = true;
    lua_createtable(L, 0, 6);
    lua_pushstring(L, places[b->place]);
    lua_setfield(L, -2, "place");
    lua_pushstring(L, v->kind == PL_FV_NODE ? f->nodes[v->node].name : v->name ? v->name : "captured");
    lua_setfield(L, -2, "name");
    set_int(L, "at", b->at);
    set_int(L, "bytes", b->bytes);
    set_int(L, "birth", b->birth + 1);
    set_int(L, "death", b->death + 1);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

static int plan_verify(lua_State *L) {
  CALL(L, pl_graph_verify(l_check_plan(L, 1)->graph));
  lua_pushboolean(L, 1);
  return 1;
}

void l_graph_look_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"graph_text", graph_text},
                                  {"graph_dot", graph_dot},
                                  {"graph_verify", graph_verify},
                                  {"graph_nodes", graph_nodes},
                                  {"graph_value", graph_value},
                                  {"graph_maker", graph_maker},
                                  {"graph_after", graph_after},
                                  {"graph_inputs", graph_inputs},
                                  {"graph_name", graph_name},
                                  {"graph_edition", graph_edition},
                                  {"graph_compile", graph_compile},
                                  {"plan_figures", plan_figures},
                                  {"plan_nodes", plan_nodes},
                                  {"plan_buffers", plan_buffers},
                                  {"plan_text", plan_text},
                                  {"plan_verify", plan_verify},
                                  {"is_symbolic", is_symbolic},
                                  {"readable", readable},
                                  {"graph_mark", graph_mark},
                                  {"graph_pin", graph_pin},
                                  {"graph_pin_since", graph_pin_since},
                                  {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
  luaL_newmetatable(L, l_plan_meta);
  lua_pushcfunction(L, plan_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}
