/* SPDX-License-Identifier: MIT
 * Tracing for T.jit (lua/perilune/jit/): entering and leaving a trace, and what runs in between. What a trace becomes is
 * in program.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/jit/program.h"
#include "bindings/ops/call.h"
#include "engine/call/thread_state.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/tensor/layout.h"

enum { NCHANGING = 8 };

/* Functions whose next result is another one: a graph would repeat what they gave while it was traced. */
static const char *const changing[NCHANGING][2] = {{"math", "random"},       {"os", "time"},           {"os", "clock"},
                                                   {"os", "date"},           {"io", "read"},           {"io", "lines"},
                                                   {LUA_FILEHANDLE, "read"}, {LUA_FILEHANDLE, "lines"}};

typedef struct Where {
  lua_State *L;   /* kept by the registry */
  PlGraph *graph; /* held: a script that lets go of it would leave pl_state.trace dangling */
  char home[512];
  lua_CFunction changing[NCHANGING];
  lua_CFunction yield, resume, wrapped; /* of coroutines; what coroutine.wrap gives */
  LKnown *known;                        /* functions that say what they see of sizes */
  struct PlCheckpoint *checkpoint;      /* whose function runs around the trace, and the clock of its memory */
  uint64_t clock;
  lua_Hook before; /* the hook that was there, a debugger's or a profiler's: it goes on */
  int before_mask, before_count;
} Where;
static _Thread_local Where *tracing; /* NULL: no trace runs */

static int nothing(lua_State *L) {
  (void)L;
  return 0;
}

/* Field `name` of the table on top, as a C function. */
static lua_CFunction function_in(lua_State *L, const char *name) {
  if (!lua_istable(L, -1)) return NULL;
  lua_getfield(L, -1, name);
  lua_CFunction f = lua_tocfunction(L, -1);
  lua_pop(L, 1);
  return f;
}

static void find_changing(lua_State *L) {
  int top = lua_gettop(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  for (int i = 0; i < NCHANGING; i++) {
    if (strcmp(changing[i][0], LUA_FILEHANDLE) == 0) {
      if (luaL_getmetatable(L, LUA_FILEHANDLE) == LUA_TTABLE) lua_getfield(L, -1, "__index");
    } else lua_getfield(L, top + 1, changing[i][0]);
    tracing->changing[i] = function_in(L, changing[i][1]);
    lua_settop(L, top + 1);
  }
  lua_getfield(L, -1, "coroutine");
  tracing->yield = function_in(L, "yield");
  tracing->resume = function_in(L, "resume");
  if (lua_istable(L, -1) && lua_getfield(L, -1, "wrap") == LUA_TFUNCTION) {
    lua_pushcfunction(L, nothing);
    lua_call(L, 1, 1);
    tracing->wrapped = lua_tocfunction(L, -1);
  }
  lua_settop(L, top);
}

static void watch_calls(lua_State *L, lua_Debug *ar);

/* The C function f, on top, is about to run: is it a coroutine that leaves the trace, or one from before it? What that
 * does and yields would be frozen. Those that begin inside have our hook. */
static void check_coroutine(lua_State *L, lua_Debug *ar, lua_CFunction f) {
  lua_State *other = NULL;
  /* nor could a function that is called again as a whole give and get there what it did */
  if (f == tracing->yield || f == tracing->wrapped || f == tracing->resume)
    pl_calls_spoil(tracing->graph, "it runs a coroutine inside of a function");
  if (f == tracing->yield && L == tracing->L)
    l_error_as(L, PL_ERR_TRACE, "coroutine.yield in a traced function would leave the trace open; yield outside of it");
  if (f == tracing->wrapped && lua_getupvalue(L, -1, 1)) {
    other = lua_tothread(L, -1);
    lua_pop(L, 1);
  } else if (f == tracing->resume && lua_getlocal(L, ar, 1)) {
    other = lua_tothread(L, -1);
    lua_pop(L, 1);
  }
  if (other && lua_gethook(other) != watch_calls)
    l_error_as(L, PL_ERR_TRACE,
               "a coroutine from outside is resumed in a traced function: a graph would repeat what it gives now; resume it "
               "outside, and pass its value as an argument");
}

/* Called before every function that the traced one calls, however it came by it. */
static void watch_calls(lua_State *L, lua_Debug *ar) {
  bool call = ar->event == LUA_HOOKCALL || ar->event == LUA_HOOKTAILCALL;
  if (!tracing) { /* a coroutine that was made while the trace ran */
    lua_sethook(L, NULL, 0, 0);
    return;
  }
  if (call) {
    lua_getinfo(L, "f", ar);
    lua_CFunction f = lua_tocfunction(L, -1);
    if (f && pl_state.trace) check_coroutine(L, ar, f);
    lua_pop(L, 1);
    if (f) l_known_check(L, ar, tracing->known, f, tracing->graph);
    for (int i = 0; f && pl_state.trace && i < NCHANGING; i++)
      if (f == tracing->changing[i])
        l_error_as(L, PL_ERR_TRACE, "%s.%s in a traced function: a graph would repeat this one value; %s",
                   strcmp(changing[i][0], LUA_FILEHANDLE) == 0 ? "file" : changing[i][0], changing[i][1],
                   i == 0 ? "draw with T.rand or T.randint, or pass the number as an argument"
                          : "call it outside, or pass the value as an argument");
  }
  if (tracing->before && (!call || (tracing->before_mask & LUA_MASKCALL))) tracing->before(L, ar);
}

static void watch(lua_State *L) {
  find_changing(L);
  tracing->before = lua_gethook(L);
  tracing->before_mask = lua_gethookmask(L);
  tracing->before_count = lua_gethookcount(L);
  lua_sethook(L, watch_calls, tracing->before_mask | LUA_MASKCALL, tracing->before_count);
}

/* Somebody else's hook that came meanwhile stays: Ctrl-C's. */
static void unwatch(void) {
  if (lua_gethook(tracing->L) == watch_calls) lua_sethook(tracing->L, tracing->before, tracing->before_mask, tracing->before_count);
}

/* Line of the script that runs now, kept in the graph's pool. Consecutive nodes share it. */
static const char *script_line(void *ud) {
  PlGraph *f = ud;
  lua_Debug ar;
  char text[LUA_IDSIZE + 16];
  if (!tracing || !l_locate(l_running ? l_running : tracing->L, tracing->home, &ar)) return NULL;
  snprintf(text, sizeof text, "%s:%d", ar.short_src, ar.currentline);
  const char *last = f->nnodes ? f->nodes[f->nnodes - 1].where : NULL;
  return last && strcmp(last, text) == 0 ? last : pl_graph_string(f, text);
}

static const char thread_key = 0;

static void drop(void) {
  if (tracing) {
    pl_graph_release(tracing->graph);
    free(tracing->known);
  }
  free(tracing);
  tracing = NULL;
}

/* Notes what the function asks of the engine, to make the trace again for other sizes; the list at `at` has the arguments. */
static int note_calls(lua_State *L, PlGraph *f, int at) {
  const int n = (int)lua_rawlen(L, at);
  PlTensor **args = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *args, 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, at, i + 1);
    args[i] = l_check_tensor(L, -1);
    lua_pop(L, 1);
  }
  tracing->known = l_known_functions(L);
  CALL(L, tracing->known ? pl_calls_new(f, n, args) : pl_fail(PL_ERR_OOM, "jit: out of memory"));
  lua_pop(L, 1);
  return 0;
}

/* jit_enter(graph, mirror options or nil, arguments or nil): every op goes into it until jit_finish or jit_abort. arguments, symbolic
 * ones in the order of the inputs: the trace may be made again for other sizes (jit_replay). */
static int jit_enter(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  if (pl_state.trace) return l_error(L, "jit: a trace is running already; a jitted function cannot trace inside of another trace");
  if (f->closed) return l_error(L, "jit: this graph's trace is over");
  drop();
  lua_pushthread(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &thread_key);
  tracing = calloc(1, sizeof *tracing);
  if (!tracing) return l_error(L, "jit: out of memory");
  tracing->graph = pl_graph_retain(f);
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.home");
  const char *home = lua_tostring(L, -1);
  tracing->L = L;
  snprintf(tracing->home, sizeof tracing->home, "%s", home ? home : "");
  f->record = true;
  f->began = pl_state.seq;
  f->recompute = (PlRecomputeOptions){.fraction = -1, .bytes = -1};
  if (lua_type(L, 2) == LUA_TTABLE) l_read_recompute(L, 2, 0, &f->recompute);
  if (lua_type(L, 3) == LUA_TTABLE) note_calls(L, f, 3);
  f->where = script_line;
  f->where_ud = f;
  watch(L); /* may raise */
  /* A checkpoint's function runs the graph. The trace is no part of it: when it runs again there is none, and what was made
   * in there, such as constants of the graph, is from outside. */
  tracing->checkpoint = pl_set_checkpoint(NULL);
  tracing->clock = pl_clock;
  pl_clock = PL_CLOCK_TRACE;
  pl_set_trace(f);
  return 0;
}

void l_trace_end(PlGraph *f) {
  f->where = NULL;
  pl_calls_close(f);
  if (tracing && tracing->graph != f) return; /* it was not f that was traced */
  pl_set_trace(NULL);
  if (tracing) {
    pl_set_checkpoint(tracing->checkpoint);
    pl_clock = tracing->clock;
    unwatch();
  }
  drop();
}

void l_trace_lost(PlGraph *f) {
  if (!tracing || tracing->graph != f) return;
  pl_calls_refuse(f, "it failed");
  f->closed = true;
  (void)pl_graph_leaf_grads(f, NULL);
  l_trace_end(f);
  pl_graph_switches_back(f);
}

/* jit_abort(graph): ends a trace that failed */
static int jit_abort(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  pl_calls_refuse(f, "it failed");
  l_trace_end(f);
  f->stage = 0;
  (void)pl_graph_leaf_grads(f, NULL);
  f->closed = true;
  pl_graph_switches_back(f);
  return 0;
}

/* jit_untraced(f, …) → what f returns; ops in it run, whatever is traced */
static int jit_untraced(lua_State *L) {
  PlGraph *was = pl_state.trace;
  luaL_checktype(L, 1, LUA_TFUNCTION);
  if (was) pl_graph_retain(was); /* f may end the trace */
  pl_set_trace(NULL);
  int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  pl_set_trace(was && !was->closed ? was : NULL);
  if (was) pl_graph_release(was);
  return status == LUA_OK ? lua_gettop(L) : lua_error(L);
}
/* jit_tracing() → does a trace run? */
static int jit_tracing(lua_State *L) {
  lua_pushboolean(L, pl_state.trace != NULL);
  return 1;
}
/* Must a jitted function run as it was written? Inside of a trace, which sees its ops; and while T.vmap or a GradKey (T.vjp,
 * T.jvp, T.gradcheck, …) follows tensors that a graph would not carry on. */
bool l_jit_as_written(void) {
  if (pl_state.trace || pl_state.batch) return true;
  for (const PlKey *k = pl_state.keys; k; k = k->next)
    if (k->active && pl_key_records(k)) return true;
  return false;
}

/* jit_as_written() → as l_jit_as_written */
static int jit_as_written(lua_State *L) {
  lua_pushboolean(L, l_jit_as_written());
  return 1;
}

static const char on_hook = 0;

/* jit_on_hook(f): f(hook) is called before a hook of a tensor runs in a trace */
static int jit_on_hook(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &on_hook);
  return 0;
}

void l_jit_hook_runs(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &on_hook) != LUA_TFUNCTION) {
    lua_pop(L, 1);
    return;
  }
  if (lua_istable(L, -2)) lua_rawgeti(L, -2, 1); /* of a callback: with its tensor */
  else lua_pushvalue(L, -2);
  lua_call(L, 1, 0);
}

/* jit_node([writing]) → number of the trace's newest node, or of the newest that writes in place: aliases of what it wrote,
 * made anew, are behind it */
static int jit_node(lua_State *L) {
  const PlGraph *f = pl_state.trace;
  int32_t n = f ? f->nnodes : 0;
  while (lua_toboolean(L, 1) && n > 0 && !(f->nodes[n - 1].flags & PL_FN_MUTATES)) n--;
  lua_pushinteger(L, n);
  return 1;
}

/* jit_value(graph, tensor) → number of the value that stands for it now */
static int jit_value(lua_State *L) {
  PlTensor *h;
  PlGVal v = -1;
  CALL(L, pl_sym_enter(l_check_graph(L, 1), l_check_tensor(L, 2), &h));
  PlStatus s = pl_sym_value_of(l_check_graph(L, 1), h, &v);
  pl_tensor_release(h);
  CALL(L, s);
  lua_pushinteger(L, v);
  return 1;
}

/* jit_reads_after(graph, node, tensor) → does a node behind that one read the real tensor? */
static int jit_reads_after(lua_State *L) {
  const PlGraph *f = l_check_graph(L, 1);
  const PlTensor *t = l_check_tensor(L, 3);
  bool found = false;
  int64_t i = l_check_int(L, 2, "jit_reads_after", "node");
  if (i < 0) return l_error(L, "jit_reads_after: there is no node %lld", (long long)i);
  for (; i < f->nnodes && !found; i++)
    for (int32_t k = 0; k < f->nodes[i].nin && !found; k++) {
      PlGVal v = f->nodes[i].in[k];
      found = v >= 0 && f->vals[v].kind == PL_FV_CAPTURE && f->vals[v].real->storage == t->storage;
    }
  lua_pushboolean(L, found);
  return 1;
}

/* jit_written(tensor) → has the trace that runs written into the real tensor's memory? */
static int jit_written(lua_State *L) {
  const PlGraph *f = pl_state.trace;
  const PlTensor *t = l_check_tensor(L, 1);
  bool found = false;
  for (PlGVal v = 0; f && v < f->nvals && !found; v++)
    found = f->vals[v].kind == PL_FV_CAPTURE && f->vals[v].real->storage == t->storage && f->stores[f->vals[v].store].version > 0;
  lua_pushboolean(L, found);
  return 1;
}

/* jit_mirror(graph, options): those of all backward walks of a trace that is over, with a choice for each node */
static int jit_mirror(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  for (int32_t r = 0; r < f->nregions; r++) {
    PlRecomputeOptions m = {.fraction = -1, .bytes = -1};
    l_read_recompute(L, 2, f->nnodes, &m);
    free(f->regions[r].recompute.choice);
    f->regions[r].recompute = m;
  }
  free(f->recompute.choice); /* for a walk that comes later, outside */
  f->recompute = (PlRecomputeOptions){.fraction = -1, .bytes = -1};
  l_read_recompute(L, 2, f->nnodes, &f->recompute);
  return 0;
}

/* ---- views that are results ---------------------------------------------------------------------------------- */

/* jit_root(graph, symbolic tensor) → "argument", its number, or "captured", the real tensor, or "result", a tensor that is no
 * view; and the nodes (numbers, in order) that take the tensor's view of it, nil if there are none; and whether the tensor shows all of a
 * result, in another order of its dims: where nobody else has that, it may be given instead */
static int jit_root(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  PlGVal v;
  int n = 0;
  CALL(L, pl_sym_value_of(f, l_check_tensor(L, 2), &v));
  PlGVal whole = v;
  bool written = false;
  lua_settop(L, 2);
  lua_newtable(L);
  for (;;) {
    const PlGValue *val = &f->vals[v];
    const PlGNode *node = val->kind == PL_FV_NODE ? &f->nodes[val->node] : NULL;
    if (!node) break;
    if ((node->flags & PL_FN_MUTATES) && val->slot < pl_gnode_written(node)) {
      v = node->in[val->slot]; /* the same memory */
      written = true;
    } else if ((node->flags & PL_FN_VIEW) && node->nin == 1 && node->nout == 1) {
      lua_pushinteger(L, val->node + 1);
      lua_rawseti(L, 3, ++n);
      v = node->in[0];
    } else break;
  }
  for (int i = 1; 2 * i <= n; i++) { /* from the root on */
    lua_rawgeti(L, 3, i);
    lua_rawgeti(L, 3, n + 1 - i);
    lua_rawseti(L, 3, i);
    lua_rawseti(L, 3, n + 1 - i);
  }
  const PlGValue *root = &f->vals[v];
  if (root->kind == PL_FV_INPUT) {
    lua_pushliteral(L, "argument");
    lua_pushinteger(L, root->slot + 1);
  } else if (root->kind == PL_FV_CAPTURE && (root->real->node || !l_check_tensor(L, 2)->node)) {
    pl_graph_leaf_give(f, root->real);
    lua_pushliteral(L, "captured");
    l_push_shared(L, root->real);
  } else {
    if (root->kind != PL_FV_NODE) { /* a number, whose memory nobody has; or met without its history first */
      v = whole;
      n = 0;
    }
    lua_pushliteral(L, "result");
    Box *b = l_new_box(L);
    CALL(L, pl_sym_tensor(&b->t, f, v));
  }
  if (root->kind == PL_FV_NODE && (f->stores[root->store].layout_notes & PL_LAYOUT_TAKEN) && f->nodes[root->node].op->cls == PL_VIEW)
    f->reads_layout = true; /* a copy that for other arguments would be a view of one */
  if (n == 0) lua_pushnil(L);
  else lua_pushvalue(L, 3);
  const PlGValue *shown = &f->vals[whole];
  const PlArray a = pl_gvalue_array(shown);
  lua_pushboolean(L, n > 0 && !written && root->kind == PL_FV_NODE && a.device == PL_CPU && shown->offset == 0 &&
                         shown->version == f->stores[shown->store].version && pl_gvalue_bytes(shown) == f->stores[shown->store].bytes &&
                         pl_layout_dense(&a));
  return 4;
}

/* jit_give(graph, real tensor): a result is that */
static int jit_give(lua_State *L) {
  pl_graph_leaf_give(l_check_graph(L, 1), l_check_tensor(L, 2));
  return 0;
}

/* jit_views(graph, tensor, {nodes}, record) → that view of the real tensor, recorded like the script's */
static int jit_views(lua_State *L) {
  const PlGraph *f = l_check_graph(L, 1);
  l_check_tensor(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  int count = (int)lua_rawlen(L, 3);
  lua_pushvalue(L, 2);
  for (int i = 1; i <= count; i++) {
    lua_rawgeti(L, 3, i);
    lua_Integer k = lua_tointeger(L, -1);
    lua_pop(L, 1);
    if (k < 1 || k > f->nnodes) return l_error(L, "jit_views: there is no node %d", (int)k);
    const PlGNode *n = &f->nodes[k - 1];
    if (!(n->flags & PL_FN_VIEW) || n->nin != 1 || n->nout != 1) return l_error(L, "jit_views: node %d takes no view", (int)k);
    Box *b = l_new_box(L);
    PlTensor *in = l_check_tensor(L, -2), *out[PL_MAX_OUT] = {NULL};
    bool was = pl_grad_enable(false);
    pl_grad_enable(was && lua_toboolean(L, 4));
    /* what the script detached may be written wherever it is */
    PlStatus s = n->op->flags & PL_F_STOPS ? pl_tensor_detach(out, in) : pl_apply(n->op, &in, 1, n->attrs, out);
    pl_grad_enable(was);
    CALL(L, s);
    b->t = out[0];
    lua_remove(L, -2);
  }
  return 1;
}

void l_jit_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"jit_enter", jit_enter},
                                  {"jit_abort", jit_abort},
                                  {"jit_untraced", jit_untraced},
                                  {"jit_tracing", jit_tracing},
                                  {"jit_refused", l_jit_refused},
                                  {"jit_as_written", jit_as_written},
                                  {"jit_node", jit_node},
                                  {"jit_on_hook", jit_on_hook},
                                  {"jit_reads_after", jit_reads_after},
                                  {"jit_written", jit_written},
                                  {"jit_value", jit_value},
                                  {"jit_mirror", jit_mirror},
                                  {"jit_root", jit_root},
                                  {"jit_give", jit_give},
                                  {"jit_views", jit_views},
                                  {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
  l_program_register(L);
  l_program_look_register(L);
  l_program_resize_register(L);
  l_program_spent_register(L);
  l_jit_quick_register(L);
}
