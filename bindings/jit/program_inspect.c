/* SPDX-License-Identifier: MIT
 * What T.jit tells about its programs (program.h): lines of the script, what is read and written. */
#include <string.h>

#include "bindings/jit/program.h"
#include "engine/grad/node.h"
#include "engine/graph/run/device_run.h"
#include "engine/tensor/presence.h"

/* What runs: one executor, or forward and backward of a joint. NULL: none. */
static void executors(const Program *p, const PlExec *e[2]) {
  e[0] = p->joint ? p->joint->run_forward : p->exec;
  e[1] = p->joint ? p->joint->run_backward : NULL;
}

/* jit_plans(program) → the plan that runs, and of a function whose results have gradients the backward half's, too */
static int jit_plans(lua_State *L) {
  const PlExec *e[2];
  executors(l_check_program(L, 1), e);
  lua_settop(L, 1);
  for (int k = 0; k < 2 && e[k]; k++) {
    PlanBox *b = lua_newuserdatauv(L, sizeof *b, 0);
    *b = (PlanBox){.p = pl_exec_plan(e[k])};
    b->p->refs++;
    luaL_setmetatable(L, l_plan_meta);
  }
  return lua_gettop(L) - 1;
}

/* jit_device_groups(program) → for the half that runs forward, and then for backward's, if they ran on the device: how many
 * groups of nodes run as one kernel there, how many nodes these are, and whether all of it is captured, or why not */
static int jit_device_groups(lua_State *L) {
  const PlExec *e[2];
  executors(l_check_program(L, 1), e);
  lua_settop(L, 1);
  for (int k = 0; k < 2 && e[k] && pl_exec_device_run(e[k]); k++) {
    int32_t members = 0;
    lua_pushinteger(L, pl_device_run_groups(pl_exec_device_run(e[k]), &members));
    lua_pushinteger(L, members);
    lua_pushstring(L, pl_device_run_how(pl_exec_device_run(e[k])));
  }
  return lua_gettop(L) - 1;
}

/* Node i's share of the time of the group that it runs in: by its operations. */
static double seconds_of(const PlExec *e, int32_t i) {
  const PlPlan *p = pl_exec_plan(e);
  int32_t begin = p->group ? p->group[i] : -1, n = 0;
  double all = 0;
  if (begin < 0) return pl_exec_seconds(e, i);
  for (int32_t k = begin; k < p->graph->nnodes && p->group[k] == begin; k++, n++) all += p->graph->nodes[k].flops;
  return pl_exec_seconds(e, begin) * (all > 0 ? p->graph->nodes[i].flops / all : 1.0 / n);
}

static void set_entry(lua_State *L, const PlExec *e, int32_t i) {
  const PlPlan *p = pl_exec_plan(e);
  const PlGNode *n = &p->graph->nodes[i];
  int64_t bytes = 0;
  for (int32_t o = 0; o < n->nout && !(n->flags & PL_FN_MUTATES); o++)
    if (!p->inner || !p->inner[n->first + o]) bytes += pl_gvalue_bytes(&p->graph->vals[n->first + o]);
  lua_createtable(L, 0, 6);
  lua_pushstring(L, n->where ? n->where : "results");
  lua_setfield(L, -2, "line");
  lua_pushstring(L, n->op->name);
  lua_setfield(L, -2, "op");
  lua_pushinteger(L, (lua_Integer)bytes);
  lua_setfield(L, -2, "bytes");
  lua_pushnumber(L, n->flops);
  lua_setfield(L, -2, "flops");
  lua_pushnumber(L, seconds_of(e, i));
  lua_setfield(L, -2, "seconds");
  lua_pushboolean(L, n->stage > 0 || (n->flags & PL_FN_RECOMPUTED));
  lua_setfield(L, -2, "backward");
  lua_pushboolean(L, (n->flags & PL_FN_RECOMPUTED) != 0);
  lua_setfield(L, -2, "again");
}

/* jit_lines(program) → list of {line, op, bytes, flops, seconds, backward, again: recomputed}, one for each op that runs, in order */
static int jit_lines(lua_State *L) {
  const PlExec *e[2];
  executors(l_check_program(L, 1), e);
  lua_newtable(L);
  for (int k = 0; k < 2 && e[k]; k++) {
    const PlGraph *f = pl_exec_plan(e[k])->graph;
    for (int32_t i = 0; i < f->nnodes; i++) {
      if (f->nodes[i].flags & PL_FN_VIEW) continue;
      set_entry(L, e[k], i);
      lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
  }
  return 1;
}

/* jit_leaves(program) → list of the real leaves whose gradients the trace dealt with */
static int jit_leaves(lua_State *L) {
  const PlGraph *f = l_check_program(L, 1)->f;
  lua_createtable(L, f->nleaves, 0);
  for (int32_t i = 0; i < f->nleaves; i++) {
    l_push_shared(L, f->leaves[i].t);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* jit_origin(program, k) → "name at file:line" of the node that makes output k, or nil */
static int jit_origin(lua_State *L) {
  const PlGraph *f = l_check_program(L, 1)->f;
  int64_t k = l_check_int(L, 2, "jit_origin", "output");
  if (k < 1 || k > f->noutputs || f->vals[f->outputs[k - 1]].node < 0) return 0;
  const PlGNode *n = &f->nodes[f->vals[f->outputs[k - 1]].node];
  lua_pushfstring(L, "%s at %s", n->name, n->where ? n->where : "?");
  return 1;
}

/* jit_writes_inputs(program) → numbers of the arguments' tensors that a run writes */
static int jit_writes_inputs(lua_State *L) {
  const Program *p = l_check_program(L, 1);
  lua_newtable(L);
  for (int32_t v = 0; v < p->f->nvals; v++) {
    const PlGValue *val = &p->f->vals[v];
    if (val->kind != PL_FV_INPUT || val->slot >= p->nargs || p->f->stores[val->store].version == 0) continue;
    lua_pushinteger(L, val->slot + 1);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  }
  return 1;
}

/* jit_writes(program) → list of the real tensors that a run writes */
static int jit_writes(lua_State *L) {
  const PlGraph *f = l_check_program(L, 1)->f;
  lua_newtable(L);
  for (int32_t v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind != PL_FV_CAPTURE || f->stores[val->store].version == 0) continue;
    l_push_shared(L, val->real);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  }
  for (int32_t i = 0; i < f->nleaves; i++) { /* gradients, as they are now */
    const PlGLeaf *l = &f->leaves[i];
    if (l->expects != PL_FGRAD_INPUT || !l->t->node || !l->t->node->grad) continue;
    l_push_shared(L, l->t->node->grad);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  }
  return 1;
}

/* ---- where two traces of a function part -------------------------------------------------------------------- */

/* Pushes what value v is: a number itself, or its description. */
static void push_value(lua_State *L, const PlGraph *f, PlGVal v) {
  const PlGValue *a = v < 0 ? NULL : &f->vals[v];
  PlArray type = a ? pl_gvalue_array(a) : (PlArray){.numel = 0};
  if (!a) lua_pushliteral(L, "absent");
  else if (a->kind == PL_FV_CONST && a->numel == 1 && pl_is_float((PlDtype)a->dtype))
    lua_pushfstring(L, "%f", (LUAI_UACNUMBER)pl_read_f(&a->real->a, 0));
  else if (a->kind == PL_FV_CONST && a->numel == 1) lua_pushfstring(L, "%I", (LUAI_UACINT)pl_read_i(&a->real->a, 0));
  else if (a->kind == PL_FV_NODE) lua_pushfstring(L, "%s of %s", pl_desc_text(&type), f->nodes[a->node].name);
  else lua_pushfstring(L, "%s %s", a->kind == PL_FV_INPUT ? "an argument" : "a tensor", pl_desc_text(&type));
}

static bool same_value(const PlGraph *f, PlGVal v, const PlGraph *g, PlGVal w) {
  if (v < 0 || w < 0) return v == w;
  const PlGValue *a = &f->vals[v], *b = &g->vals[w];
  if (a->kind != b->kind || a->dtype != b->dtype || a->numel != b->numel) return false;
  if (a->kind == PL_FV_NODE) return a->node == b->node && v - f->nodes[a->node].first == w - g->nodes[b->node].first;
  if (a->kind == PL_FV_INPUT) return a->slot == b->slot;
  if (a->kind == PL_FV_CAPTURE) return a->real->a.data == b->real->a.data && a->real->storage == b->real->storage;
  if (a->numel == 1 && (pl_present(a->real) != PL_OK || pl_present(b->real) != PL_OK)) return false;
  return a->numel != 1 || memcmp(a->real->a.data, b->real->a.data, pl_dtype_size((PlDtype)a->dtype)) == 0;
}

/* jit_differ(graph, other) → text: the first node that is another one, or has another operand; nil if there is none */
static int jit_differ(lua_State *L) {
  const PlGraph *f = l_check_graph(L, 1), *g = l_check_graph(L, 2);
  int32_t n = f->nnodes < g->nnodes ? f->nnodes : g->nnodes;
  for (int32_t i = 0; i < n; i++) {
    const PlGNode *a = &f->nodes[i], *b = &g->nodes[i];
    const char *where = b->where ? b->where : "?";
    if (a->op != b->op || a->nin != b->nin) {
      lua_pushfstring(L, "%s at %s is a call of %s in the graph, of %s in the script now", a->name, where, a->op->name, b->op->name);
      return 1;
    }
    for (int32_t k = 0; k < a->nin; k++) {
      if (same_value(f, a->in[k], g, b->in[k])) continue;
      push_value(L, f, a->in[k]);
      push_value(L, g, b->in[k]);
      lua_pushfstring(L, "%s at %s: operand %d is %s in the graph, %s in the script now", a->name, where, (int)k + 1, lua_tostring(L, -2),
                      lua_tostring(L, -1));
      return 1;
    }
    if (!a->attrs || (a->flags & PL_FN_MUTATES)) continue; /* settings that are asked before each run */
    if (pl_attrs_size(a->attrs) != pl_attrs_size(b->attrs) || memcmp(a->attrs, b->attrs, pl_attrs_size(a->attrs)) != 0) {
      lua_pushfstring(L, "%s at %s has other options in the graph than in the script now", a->name, where);
      return 1;
    }
  }
  if (f->nnodes == g->nnodes) return 0;
  const PlGraph *longer = f->nnodes > g->nnodes ? f : g;
  lua_pushfstring(L, "%s at %s is in %s alone", longer->nodes[n].name, longer->nodes[n].where ? longer->nodes[n].where : "?",
                  longer == f ? "the graph" : "the script now");
  return 1;
}

void l_program_look_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"jit_differ", jit_differ},
                                  {"jit_lines", jit_lines},
                                  {"jit_plans", jit_plans},
                                  {"jit_leaves", jit_leaves},
                                  {"jit_origin", jit_origin},
                                  {"jit_writes", jit_writes},
                                  {"jit_writes_inputs", jit_writes_inputs},
                                  {"jit_device_groups", jit_device_groups},
                                  {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
