/* SPDX-License-Identifier: MIT
 * Programs of T.jit (program.h): traced graphs that are run with new inputs, put gradients into leaves, and take live
 * attributes such as an optimizer's learning rate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/jit/program.h"
#include "bindings/ops/arguments.h"
#include "bindings/ops/call.h"
#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/grad/node.h"
#include "engine/graph/trace/symbolic.h"

static const char program_meta[] = "perilune.program";

Program *l_check_program(lua_State *L, int i) {
  Program *p = luaL_testudata(L, i, program_meta);
  if (!p || !p->f) {
    l_error(L, "jit: argument #%d must be a program, got %s", i, l_typename(L, i));
    return NULL;
  }
  return p;
}

Program *l_new_program(lua_State *L) {
  Program *p = lua_newuserdatauv(L, sizeof *p, 0);
  *p = (Program){0};
  luaL_setmetatable(L, program_meta);
  l_note_late(L);
  return p;
}

static int program_gc(lua_State *L) {
  Program *p = luaL_testudata(L, 1, program_meta);
  if (!p) return 0;
  PlGraph *f = p->f;
  p->f = NULL;
  for (int32_t i = 0; p->x && i < p->nx; i++) pl_tensor_release(p->x[i]);
  free(p->leaf_at);
  for (int32_t i = 0; i < p->ncaptured; i++) pl_tensor_release(p->real[i]);
  free(p->real);
  free(p->tracked);
  free(p->captured);
  free(p->inputs);
  free(p->written);
  free(p->x);
  free(p->x_at);
  free(p->after);
  pl_joint_release(p->joint);
  pl_exec_release(p->exec);
  *p = (Program){0};
  pl_graph_release(f);
  return 0;
}

static bool is_written(const PlGraph *f, const PlGValue *v) { return f->stores[v->store].version > 0; }

static bool is_leaf(const PlTensor *t) {
  PlNode *node;
  uint32_t slot;
  return t->node && pl_entry_get(t, pl_key_ambient(), &node, &slot) && node->kind == PL_NODE_LEAF;
}

/* Does a backward go on here? A leaf that no longer requires a gradient keeps its .grad, in a node of its own. */
static inline bool is_tracked(const PlTensor *t) { return (t->node || t->more) && pl_tensor_requires_grad(t); }

/* Notes captured value k, whose tensor becomes the program's. A node that the program records holds the flow: a tensor that is
 * written with its results must not be held by the flow in turn. Leaves are never written so. */
static PlStatus keep_real(Program *p, PlGraph *f, PlGVal k) {
  PlTensor *real = f->vals[k].real, *alias;
  if (is_leaf(real)) pl_retain(real);
  else {
    PL_TRY(pl_tensor_alias(&alias, real));
    alias->a.weak = real->a.weak;
    f->vals[k].real = alias;
  }
  p->real[p->ncaptured] = real;
  p->tracked[p->ncaptured] = is_tracked(real);
  p->captured[p->ncaptured++] = k;
  return PL_OK;
}

PlStatus l_program_settle(Program *p, PlGraph *f) {
  p->tracked = calloc((size_t)f->nvals + 1, sizeof *p->tracked);
  p->captured = calloc((size_t)f->nvals + 1, sizeof *p->captured);
  p->real = calloc((size_t)f->nvals + 1, sizeof(PlTensor *));
  p->written = calloc((size_t)f->nvals + 1, sizeof *p->written);
  p->inputs = calloc((size_t)f->ninputs + 1, sizeof *p->inputs);
  PlStatus s = PL_OK;
  if (!(p->tracked && p->captured && p->real && p->written && p->inputs)) s = pl_fail(PL_ERR_OOM, "jit: out of memory");
  for (PlGVal k = 0; s == PL_OK && k < f->nvals; k++) {
    const PlGValue *a = &f->vals[k];
    if (a->kind == PL_FV_INPUT) p->inputs[a->slot] = k;
    if (a->kind == PL_FV_CAPTURE) s = keep_real(p, f, k);
    if ((a->kind == PL_FV_CAPTURE || a->kind == PL_FV_INPUT) && is_written(f, a)) p->written[p->nwritten++] = k;
  }
  return s;
}

static PlStatus collect_outputs(PlGraph *f, PlTensor *const *t, int n, Program *p) {
  PlGVal *v = malloc((size_t)(n + 2 * f->nleaves + 1) * sizeof *v), *grads = v ? v + n + f->nleaves : NULL;
  p->leaf_at = malloc((size_t)(f->nleaves + 1) * sizeof *p->leaf_at);
  if (!v || !p->leaf_at) {
    free(v);
    PL_FAIL(PL_ERR_OOM, "jit: out of memory");
  }
  PlStatus s = PL_OK;
  for (int i = 0; i < n && s == PL_OK; i++) s = pl_sym_value_of(f, t[i], &v[i]);
  p->nargs = f->ninputs;
  PlStatus end = pl_graph_leaf_grads(f, grads);
  if (s == PL_OK) s = end;
  p->nuser = n;
  for (int32_t i = 0; i < f->nleaves && s == PL_OK; i++) {
    p->leaf_at[i] = grads[i] < 0 ? -1 : n;
    if (grads[i] >= 0) v[n++] = grads[i];
  }
  if (s == PL_OK) s = pl_graph_set_outputs(f, n, v);
  free(v);
  return s == PL_OK ? l_program_settle(p, f) : s;
}

/* jit_finish(graph, {tensors}) → program: the trace is over, these are its outputs */
static int jit_finish(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  int n = (int)lua_rawlen(L, 2);
  Program *p = l_new_program(L);
  PlTensor **t = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof(PlTensor *), 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    t[i] = l_check_tensor(L, -1);
    lua_pop(L, 1);
  }
  PlStatus s = collect_outputs(f, t, n, p);
  l_trace_end(f);
  f->closed = true;
  CALL(L, s);
  p->f = pl_graph_retain(f);
  lua_pop(L, 1);
  return 1;
}

/* Captured leaves that a key may record, captured tensors that were computed from some, and the inputs listed at `at` (numbers)
 * are what gradients go to. */
PlStatus l_program_joint(lua_State *L, Program *p, int at, const char *name, int32_t ny) {
  PlGraph *f = p->f;
  if (f->opaque)
    PL_FAIL(PL_ERR_TRACE,
            "%s: its results' gradient goes through %s, which the graph would lose; call backward inside of "
            "the traced function, or do not trace this part",
            name, f->opaque);
  int32_t ntracked = (int32_t)lua_rawlen(L, at), n = f->nleaves + ntracked + p->ncaptured;
  PlGVal *xs = malloc((size_t)(n + 1) * sizeof *xs);
  p->x = calloc((size_t)n + 1, sizeof(PlTensor *));
  p->x_at = calloc((size_t)n + 1, sizeof *p->x_at);
  if (!xs || !p->x || !p->x_at) {
    free(xs);
    PL_FAIL(PL_ERR_OOM, "jit: out of memory");
  }
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < f->nleaves && s == PL_OK; i++) {
    PlTensor *t = f->leaves[i].t;
    PlGVal v = -1;
    if (pl_graph_rests(f, t)) continue;
    for (PlGVal k = 0; k < f->nvals && v < 0; k++)
      if (f->vals[k].kind == PL_FV_CAPTURE && f->vals[k].real->node == t->node && f->vals[k].real->a.data == t->a.data) v = k;
    if (v < 0) continue; /* met, but not read */
    xs[p->nx] = v;
    p->x[p->nx++] = pl_retain(t);
  }
  for (int32_t k = 0; k < p->ncaptured; k++)
    if (p->real[k]->node && !is_leaf(p->real[k]) && !pl_graph_rests(f, p->real[k]) && pl_is_float((PlDtype)p->real[k]->a.dtype)) {
      xs[p->nx] = p->captured[k];
      p->x[p->nx++] = pl_retain(p->real[k]);
    }
  for (int32_t i = 0; i < ntracked && s == PL_OK; i++) {
    lua_rawgeti(L, at, i + 1);
    const lua_Integer slot = lua_tointeger(L, -1) - 1;
    lua_pop(L, 1);
    PlGVal v = -1;
    for (PlGVal k = 0; k < f->nvals; k++)
      if (f->vals[k].kind == PL_FV_INPUT && f->vals[k].slot == slot && slot < p->nargs) v = k;
    if (v < 0) {
      s = pl_fail(PL_ERR_ARG, "jit_joint: there is no argument %lld", (long long)slot + 1);
      break;
    }
    xs[p->nx] = v;
    p->x_at[p->nx++] = (int32_t)slot;
  }
  if (s == PL_OK) s = pl_joint_make(&p->joint, f, ny, p->nx, xs, name);
  free(xs);
  return s;
}

/* jit_joint(program, {numbers of inputs that want gradients}, name, n): its first n results are differentiable from now
 * on */
static int jit_joint(lua_State *L) {
  Program *p = l_check_program(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  int64_t ny = l_check_int(L, 4, "jit_joint", "n");
  if (p->joint || p->exec || p->x) return l_error(L, "jit_joint: this program is finished");
  if (ny < 0 || ny > p->nuser) return l_error(L, "jit_joint: %d of %d results", (int)ny, (int)p->nuser);
  CALL(L, l_program_joint(L, p, 2, l_intern(L, luaL_checkstring(L, 3)), (int32_t)ny));
  return 0;
}

static PlStatus run_joint(const Program *p, PlTensor *const *in, PlTensor **out) {
  PlTensor **x = malloc((size_t)(p->nx + 1) * sizeof(PlTensor *));
  if (!x) PL_FAIL(PL_ERR_OOM, "jit: out of memory");
  for (int32_t i = 0; i < p->nx; i++) x[i] = p->x[i] ? p->x[i] : in[p->x_at[i]];
  bool *woken = NULL;
  PlStatus s = PL_UNLIKELY(p->f->nswitches > 0) ? pl_graph_switches_wake(p->f, &woken) : PL_OK;
  if (s == PL_OK) s = pl_joint_run(p->joint, in, x, out);
  if (PL_UNLIKELY(woken != NULL)) {
    const PlStatus rest = pl_graph_switches_rest(p->f, woken);
    if (s == PL_OK && rest != PL_OK) pl_release_all(out, p->f->noutputs);
    if (s == PL_OK) s = rest;
  }
  free(x);
  return s;
}

static PlStatus run_program(const Program *p, PlTensor *const *in, PlTensor **out) {
  return p->joint ? run_joint(p, in, out) : p->exec ? pl_exec_run(p->exec, in, out) : pl_graph_run(p->f, in, out);
}

/* jit_compile(program): plans it and prepares the executor */
static int jit_compile(lua_State *L) {
  Program *p = l_check_program(L, 1);
  PlPlan *plan;
  if (p->exec || p->joint || !pl_graph_acts(p->f)) return 0;
  CALL(L, pl_graph_compile(&plan, p->f));
  PlStatus s = pl_exec_new(&p->exec, plan);
  pl_plan_release(plan);
  CALL(L, s);
  return 0;
}

bool l_program_same(const Program *p) {
  const PlGraph *f = p->f;
  if (f->nversions > 0 && !pl_graph_versions_same(f)) return false;
  if (PL_UNLIKELY(f->nswitches > 0) && !pl_graph_switches_same(f)) return false;
  if (!pl_graph_leaves_same(f, p->joint ? p->leaf_at : NULL)) return false; /* with a joint, backward may run outside */
  for (int32_t k = 0; k < p->ncaptured; k++) {
    if (pl_history_current(&p->real[k], 1) != PL_OK) return false; /* the new trace says why */
    if (p->tracked[k] != is_tracked(p->real[k])) return false;
  }
  return true;
}

/* jit_same(program) → as l_program_same */
static int jit_same(lua_State *L) {
  lua_pushboolean(L, l_program_same(l_check_program(L, 1)));
  return 1;
}

bool l_program_inputs(const Program *p, PlTensor **in) {
  for (int32_t slot = p->nargs; slot < p->f->ninputs; slot++) in[slot] = NULL;
  for (int32_t i = 0; i < p->f->nleaves && p->nargs < p->f->ninputs; i++) {
    const PlGLeaf *l = &p->f->leaves[i];
    if (l->expects == PL_FGRAD_INPUT && l->t->node) in[l->slot] = l->t->node->grad;
  }
  for (int32_t slot = p->nargs; slot < p->f->ninputs; slot++)
    if (!in[slot]) return false;
  return true;
}

/* May input v and leaf w be given, one of which is written? Not if they share memory. */
static bool share(const PlGraph *f, PlTensor *const *in, const PlTensor *x, PlGVal v, PlGVal w) {
  const PlGValue *b = &f->vals[w];
  if (w == v || b->kind == PL_FV_NODE || b->kind == PL_FV_CONST || b->store == f->vals[v].store) return false;
  return (b->kind == PL_FV_INPUT ? in[b->slot] : b->real)->storage == x->storage;
}

/* A function that asked for strides was told those of row-major arguments. */
static bool layout_as_traced(const PlGraph *f, PlTensor *const *in) {
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *a = &f->vals[v];
    if (a->kind != PL_FV_INPUT) continue;
    const PlArray want = pl_gvalue_array(a), *is = &in[a->slot]->a;
    if (is->ndim != want.ndim || memcmp(is->strides, want.strides, want.ndim * sizeof *want.strides) != 0) return false;
  }
  return true;
}

/* Is none of the leaves among the arguments met twice, as another argument or as a captured one? */
static bool leaves_apart(const Program *p, PlTensor *const *in, int32_t nleaves) {
  const PlGraph *f = p->f;
  const PlNode *few[64], **at = few;
  size_t room = sizeof few / sizeof *few;
  while (room < 2 * ((size_t)nleaves + (size_t)f->nleaves)) room *= 2;
  if (room > sizeof few / sizeof *few && !(at = malloc(room * sizeof *at))) return false;
  for (size_t i = 0; i < room; i++) at[i] = NULL;
  bool apart = true;
  for (int32_t i = 0; i < f->nleaves + p->nargs && apart; i++) {
    const PlTensor *t = i < f->nleaves ? f->leaves[i].t : in[i - f->nleaves];
    if (!t->node || (i >= f->nleaves && !(is_tracked(t) && is_leaf(t)))) continue;
    size_t h = ((uintptr_t)t->node >> 4) * 0x9e3779b97f4a7c15ULL >> 20;
    for (h &= room - 1; at[h] && at[h] != t->node;) h = (h + 1) & (room - 1);
    apart = !at[h] || i < f->nleaves;
    at[h] = t->node;
  }
  if (at != few) free(at);
  return apart;
}

/* Are the histories of the arguments what the trace took them for: apart from each other, from captured leaves, and from what the
 * function asked gradients of? Where it takes gradients itself, a leaf that comes in twice would get those of one of both, and hooks of
 * arguments are not those of the tensors that the function was traced with. A backward outside sees them as they are. */
static bool histories_apart(const Program *p, PlTensor *const *in) {
  const PlGraph *f = p->f;
  if (!f->gradients) return true;
  int32_t nleaves = 0;
  for (int32_t i = 0; i < p->nargs; i++) {
    if (PL_LIKELY(!in[i]->node) || !is_tracked(in[i])) continue;
    if (in[i]->node->hooked) return false;
    if (is_leaf(in[i])) nleaves++;
    else if (f->asked != 0 && f->asked != i + 1) return false;
  }
  return nleaves == 0 || leaves_apart(p, in, nleaves);
}

bool l_program_apart(const Program *p, PlTensor *const *in) {
  const PlGraph *f = p->f;
  if (!histories_apart(p, in)) return false;
  if (PL_UNLIKELY(f->reads_layout) && !layout_as_traced(f, in)) return false;
  if (p->nwritten == 0) return true;
  bool apart = true;
  for (PlGVal v = 0; apart && v < f->nvals; v++) {
    const PlGValue *a = &f->vals[v];
    if (a->kind != PL_FV_INPUT) continue;
    const PlTensor *x = in[a->slot];
    if (is_written(f, a)) {
      apart = pl_graph_layout_fits(a, &x->a) && !pl_view_unseen(x) && !(x->flags & PL_T_FOREIGN);
      if (PL_UNLIKELY(p->after != NULL) && p->after[a->slot] == L_AFTER_DETACHED && x->base) return false;
      for (PlGVal w = 0; apart && w < f->nvals; w++) apart = !share(f, in, x, v, w);
    } else
      for (int32_t k = 0; apart && k < p->nwritten; k++) apart = !share(f, in, x, v, p->written[k]);
  }
  return apart;
}

/* The inputs of a run from the list at stack index 2, which keeps them alive, and leaves; pushes the array, with room for
 * `more`. */
static PlTensor **inputs_of(lua_State *L, const Program *p, int32_t more) {
  luaL_checktype(L, 2, LUA_TTABLE);
  PlTensor **in = lua_newuserdatauv(L, (size_t)(p->f->ninputs + more + 1) * sizeof(PlTensor *), 0);
  for (int32_t i = 0; i < p->nargs; i++) {
    lua_rawgeti(L, 2, i + 1);
    in[i] = l_check_tensor(L, -1);
    lua_pop(L, 1);
  }
  for (int32_t i = 0; i < p->nargs; i++) { /* kernels and plan rely on it */
    const PlArray want = pl_gvalue_array(&p->f->vals[p->inputs[i]]);
    if (in[i]->a.symbolic || in[i]->a.dtype != want.dtype || !pl_shape_equal(&in[i]->a, &want))
      l_error(L, "jit: argument tensor %d is %s, the program was made for %s", (int)i + 1, pl_desc_text(&in[i]->a), pl_desc_text(&want));
  }
  if (!l_program_inputs(p, in)) l_error(L, "jit: a gradient that is read is gone");
  return in;
}

/* jit_apart(program, {inputs}) → as l_program_apart */
static int jit_apart(lua_State *L) {
  const Program *p = l_check_program(L, 1);
  lua_pushboolean(L, l_program_apart(p, inputs_of(L, p, 0)));
  return 1;
}

/* The function sets these .grads to nil before it makes new ones, so they need not live next to those. */
static PlStatus clear_leaf_grads(const Program *p) {
  for (int32_t i = 0; i < p->f->nleaves; i++)
    if (p->f->leaves[i].zeroed) PL_TRY(pl_set_grad(p->f->leaves[i].t, NULL));
  return PL_OK;
}

static PlStatus set_leaf_grads(const Program *p, PlTensor **out) {
  for (int32_t i = 0; i < p->f->nleaves; i++)
    if (p->leaf_at[i] >= 0 || p->f->leaves[i].cleared)
      PL_TRY(pl_set_grad(p->f->leaves[i].t, p->leaf_at[i] >= 0 ? out[p->leaf_at[i]] : NULL));
  return PL_OK;
}

static PlExec *exec_of(const Program *p) { return p->joint ? p->joint->run_forward : p->exec; }

void l_program_begin(const Program *p) {
  if (exec_of(p)) pl_exec_forget(exec_of(p));
}

/* Out of memory: what the collector holds is given back, and the run begins again, unless it has written something that
 * would be written twice. */
static PlStatus run_or_collect(lua_State *L, const Program *p, PlTensor *const *in, PlTensor **out) {
  uint64_t offset = pl_state.offset;
  PlStatus s;
  WORK(L, s, run_program(p, in, out));
  if (s != PL_ERR_OOM) return s;
  const PlExec *e = exec_of(p);
  l_collect_full(L);
  if (!e || (pl_exec_wrote(e) && p->nwritten > 0)) return s;
  pl_state.offset = offset;
  WORK(L, s, run_program(p, in, out));
  return s;
}

PlStatus l_program_run(lua_State *L, const Program *p, PlTensor *const *in, PlTensor **out) {
  const bool torn = PL_UNLIKELY(pl_state.torn);
  if (torn) pl_graph_torn_note(p->f);
  PL_TRY(clear_leaf_grads(p));
  PlStatus s = run_or_collect(L, p, in, out);
  const bool ran = s == PL_OK;
  if (ran) s = set_leaf_grads(p, out);
  if (torn) pl_graph_torn_keep(p->f);
  if (!ran) return s;
  if (s == PL_OK) s = l_program_spend(p, in, out);
  for (int32_t o = s == PL_OK ? p->nuser : 0; o < p->f->noutputs; o++) pl_tensor_release(out[o]);
  return s;
}

/* jit_ran(program, node) → had that node run when the newest run failed? */
static int jit_ran(lua_State *L) {
  const Program *p = l_check_program(L, 1);
  const PlExec *e = exec_of(p);
  int64_t i = l_check_int(L, 2, "jit_ran", "node");
  lua_pushboolean(L, e && i >= 1 && i <= p->f->nnodes && pl_exec_ran(e, p->f->nodes[i - 1].attrs));
  return 1;
}

int l_program_failed(lua_State *L, PlStatus s, int undo, int trace) {
  char text[512];
  snprintf(text, sizeof text, "%s", pl_message());
  if (lua_isfunction(L, undo)) { /* Ctrl-C must not stop that half way */
    lua_Hook hook = lua_gethook(L);
    int mask = lua_gethookmask(L), count = lua_gethookcount(L);
    lua_pushvalue(L, undo);
    lua_pushvalue(L, trace);
    lua_sethook(L, NULL, 0, 0);
    int status = lua_pcall(L, 1, 0, 0);
    lua_sethook(L, hook, mask, count);
    if (status != LUA_OK) return lua_error(L);
    if (s != PL_ERR_CALLBACK) s = pl_fail(s, "%s", text);
  }
  return l_fail(L, s);
}

void l_call_held(lua_State *L, int nargs, int nresults) {
  plk_interrupt_hold(1);
  const int status = lua_pcall(L, nargs, nresults, 0);
  plk_interrupt_hold(-1);
  if (status != LUA_OK) lua_error(L);
}

/* jit_run(program, {inputs in order}, undo, trace, before) → list of the outputs that the function returned; before(trace)
 * first, undo(trace) if it fails. Ctrl-C in the first one stops the run. */
static int jit_run(lua_State *L) {
  Program *p = l_check_program(L, 1);
  l_program_begin(p);
  lua_settop(L, 5);
  lua_pushvalue(L, 4);
  l_call_held(L, 1, 0);
  l_collect(L);
  PlTensor **in = inputs_of(L, p, p->f->noutputs), **out = in + p->f->ninputs;
  lua_createtable(L, p->nuser, 0);
  int list = lua_gettop(L);
  for (int32_t o = 0; o < p->nuser; o++) {
    l_new_box(L);
    lua_rawseti(L, list, o + 1);
  }
  PlStatus s = l_program_run(L, p, in, out);
  if (s != PL_OK) return l_program_failed(L, s, 3, 4);
  for (int32_t o = 0; o < p->nuser; o++) {
    lua_rawgeti(L, list, o + 1);
    l_box(L, -1)->t = out[o];
    lua_pop(L, 1);
  }
  return 1;
}

/* jit_attrs(program, node, options): the attributes of that node from now on, as in a call of its op */
static int jit_attrs(lua_State *L) {
  Program *p = l_check_program(L, 1);
  int64_t i = l_check_int(L, 2, "jit_attrs", "node");
  if (i < 1 || i > p->f->nnodes || !p->f->nodes[i - 1].attrs) return l_error(L, "jit_attrs: node %d has no attributes", (int)i);
  const PlGNode *n = &p->f->nodes[i - 1];
  Parsed now = {.nin = 0};
  PlTensor *none = NULL;
  now.in = &none;
  lua_settop(L, 3);
  l_read_attr_args(L, n->op, &now, 3, 3);
  CALL(L, pl_graph_node_takes(p->f, (int32_t)i - 1, &now.attrs));
  if (pl_attrs_size(&now.attrs) != pl_attrs_size(n->attrs)) return l_error(L, "jit_attrs: %s has lists of other lengths", n->op->name);
  memcpy(n->attrs, &now.attrs, pl_attrs_size(&now.attrs));
  return 0;
}

void l_program_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"jit_finish", jit_finish}, {"jit_joint", jit_joint}, {"jit_compile", jit_compile},
                                  {"jit_same", jit_same},     {"jit_apart", jit_apart}, {"jit_run", jit_run},
                                  {"jit_attrs", jit_attrs},   {"jit_ran", jit_ran},     {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
  luaL_newmetatable(L, program_meta);
  lua_pushcfunction(L, program_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}
