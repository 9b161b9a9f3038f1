/* SPDX-License-Identifier: MIT
 * Looking inside: backward graphs of single ops, tapes, cache figures. */
#include <stdlib.h>
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/grad/forward_mode.h"

typedef struct DescIn {
  PlArray a[PL_MAX_IN];
  int64_t shape[PL_MAX_IN][PL_MAX_DIM], strides[PL_MAX_IN][PL_MAX_DIM];
  const PlArray *ptr[PL_MAX_IN];
  int n;
} DescIn;

static int read_descs(lua_State *L, int at, DescIn *d) {
  if (lua_type(L, at) != LUA_TTABLE)
    return l_error(L, "backward_graph: a list of inputs {shape=, dtype=} expected, got %s", l_typename(L, at));
  d->n = (int)lua_rawlen(L, at);
  if (d->n > PL_MAX_IN) return l_error(L, "backward_graph: at most %d inputs", PL_MAX_IN);
  for (int i = 0; i < d->n; i++) {
    lua_rawgeti(L, at, i + 1);
    int e = lua_gettop(L);
    if (lua_type(L, e) != LUA_TTABLE) return l_error(L, "backward_graph: input %d must be {shape=, dtype=}", i + 1);
    lua_getfield(L, e, "dtype");
    PlDtype dt = lua_isnil(L, -1) ? PL_F32 : l_check_dtype(L, lua_gettop(L), "backward_graph");
    lua_getfield(L, e, "shape");
    int ndim = l_check_shape(L, lua_gettop(L), "backward_graph", d->shape[i]);
    size_t bytes;
    PlArray *a = &d->a[i];
    *a = (PlArray){.shape = d->shape[i], .strides = d->strides[i], .dtype = (uint8_t)dt, .ndim = (uint8_t)ndim, .contiguous = 1};
    CALL(L, pl_count(ndim, d->shape[i], dt, &a->numel, &bytes));
    int64_t stride = 1;
    for (int k = ndim - 1; k >= 0; k--) {
      d->strides[i][k] = stride;
      stride *= d->shape[i][k];
    }
    d->ptr[i] = a;
    lua_settop(L, e - 1);
  }
  return 0;
}

static void push_mask(lua_State *L, const uint8_t *m, int n) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, m[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* A graph made for inspection; what push_made leaves unfinished when Lua raises, its caller frees. */
typedef struct Made {
  const PlBackward *b;
  const PlGradGraph *whole;
  char *text;
  PlStatus status;
} Made;

static void set_text(lua_State *L, Made *m, const PlGradGraph *g, const char *field) {
  m->text = g ? pl_grad_graph_text(g) : NULL;
  if (m->text) {
    lua_pushstring(L, m->text);
    lua_setfield(L, -2, field);
  }
  free(m->text);
  m->text = NULL;
}

/* Runs split and unsplit graph on the same tensors: results under `split` and `unsplit`. */
static PlStatus run_both(const PlBackward *b, const PlGradGraph *whole, PlTensor **all, PlTensor **split, PlTensor **unsplit) {
  PlTensor *args[64], *pre[64];
  int k = 0, total = b->nin + 2 * b->nout;
  PL_TRY(pl_grad_graph_run(whole, all, unsplit));
  if (b->precomp) {
    PL_TRY(pl_grad_graph_run(b->precomp, all, pre));
    for (; k < b->precomp->nresults; k++) args[k] = pre[k];
  }
  for (int v = 0; v < total && k < 64; v++)
    if (b->save[v]) args[k++] = all[v];
  PlStatus s = pl_grad_graph_run(b->backward, args, split);
  for (int i = 0; b->precomp && i < b->precomp->nresults; i++) pl_tensor_release(pre[i]);
  return s;
}

/* A list of n empty boxes, left on the stack. */
static void push_boxes(lua_State *L, int n) {
  lua_createtable(L, n, 0);
  for (int r = 0; r < n; r++) {
    l_new_box(L);
    lua_rawseti(L, -2, r + 1);
  }
}

static void fill_boxes(lua_State *L, int list, PlTensor **t, int n) {
  for (int r = 0; r < n; r++) {
    lua_rawgeti(L, list, r + 1);
    l_box(L, -1)->t = t[r];
    lua_pop(L, 1);
  }
}

/* Boxes first: nothing can raise between the results and their owners. */
static PlStatus push_runs(lua_State *L, const PlBackward *b, const PlGradGraph *whole, int values) {
  PlTensor *all[3 * PL_MAX_IN], *split[PL_MAX_IN], *unsplit[PL_MAX_IN] = {NULL};
  int total = b->nin + 2 * b->nout, n = whole->nresults, res = lua_gettop(L);
  for (int v = 0; v < total; v++) {
    lua_rawgeti(L, values, v + 1);
    all[v] = l_to_tensor(L, -1);
    lua_pop(L, 1);
    if (!all[v]) PL_FAIL(PL_ERR_ARG, "backward_graph: values must list inputs, outputs and gradients: %d tensors", total);
  }
  push_boxes(L, n);
  push_boxes(L, n);
  PlStatus s = run_both(b, whole, all, split, unsplit);
  for (int r = 0; s != PL_OK && r < n; r++) pl_tensor_release(unsplit[r]);
  PL_TRY(s);
  fill_boxes(L, res + 1, split, n);
  fill_boxes(L, res + 2, unsplit, n);
  lua_setfield(L, res, "unsplit");
  lua_setfield(L, res, "split");
  return PL_OK;
}

static void read_flags(lua_State *L, int at, bool *out, int n, bool def) {
  if (lua_type(L, at) == LUA_TTABLE && (int64_t)lua_rawlen(L, at) > n)
    l_error(L, "backward_graph: %d flags where there are %d", (int)lua_rawlen(L, at), n);
  for (int i = 0; i < n; i++) {
    out[i] = def;
    if (lua_type(L, at) != LUA_TTABLE) continue;
    lua_rawgeti(L, at, i + 1);
    out[i] = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
}

/* (light Made, options) → the table. Called under lua_pcall: graphs are C's to free. */
static int push_made(lua_State *L) {
  Made *m = lua_touserdata(L, 1);
  const PlBackward *b = m->b;
  lua_createtable(L, 0, 8);
  push_mask(L, b->save, b->nin + 2 * b->nout);
  lua_setfield(L, -2, "save");
  push_mask(L, b->has_grad, b->nin);
  lua_setfield(L, -2, "input_has_grad");
  set_text(L, m, b->precomp, "precomp");
  set_text(L, m, b->backward, "backward");
  set_text(L, m, m->whole, "whole");
  lua_pushinteger(L, b->precomp ? b->precomp->nresults : 0);
  lua_setfield(L, -2, "precomp_outputs");
  if (lua_type(L, 2) == LUA_TTABLE) {
    int res = lua_gettop(L);
    lua_getfield(L, 2, "values");
    if (lua_type(L, -1) == LUA_TTABLE) {
      int values = lua_gettop(L);
      lua_pushvalue(L, res);
      m->status = push_runs(L, b, m->whole, values);
    }
    lua_settop(L, res);
  }
  return 1;
}

/* Every name in the options' attrs is an attribute of op. */
static void check_attr_names(lua_State *L, const PlOp *op) {
  if (lua_getfield(L, 4, "attrs") == LUA_TTABLE)
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
      int k = 0;
      const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
      while (k < op->nattr && strcmp(op->attrs[k].name, name) != 0) k++;
      if (k == op->nattr) l_error(L, "backward_graph: %s has no attribute '%s'", op->name, name);
    }
  lua_pop(L, 1);
}

/* debug.backward_graph(op, {{shape=, dtype=}…}, requires_grad, {has_grad=, polymorphic=, values=}) → {save, input_has_grad,
 * precomp, precomp_outputs, backward, whole}; nil if the op has no gradient for these inputs */
static int d_backward_graph(lua_State *L) {
  const PlOp *op = lua_type(L, 1) == LUA_TSTRING ? pl_op_find(lua_tostring(L, 1)) : NULL;
  if (!op) return l_error(L, "backward_graph: there is no op '%s'", lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : l_typename(L, 1));
  if (!op->grad) return l_error(L, "backward_graph: %s has no gradient", op->name);
  lua_settop(L, 4);
  l_check_options(L, 4, "backward_graph", "has_grad polymorphic values attrs");
  DescIn *dp = lua_newuserdatauv(L, sizeof *dp, 0); /* freed with this call, also by an error */
  lua_insert(L, 5);
  read_descs(L, 2, dp);
  for (int i = dp->n; i < op->nin; i++) dp->ptr[i] = NULL;
  int nin = op->nin > 0 ? op->nin : dp->n;
  if (dp->n < (op->nin > 0 ? op->nin - op->nopt : 1) || dp->n > nin)
    return l_error(L, "backward_graph: %s does not take %d inputs", op->name, dp->n);
  if (op->reads_values) return l_error(L, "backward_graph: the result of %s depends on values", op->name);
  bool want[PL_MAX_IN], given[PL_MAX_OUT], same[PL_MAX_IN];
  read_flags(L, 3, want, nin, true);
  int flags = 0;
  if (lua_type(L, 4) == LUA_TTABLE) {
    lua_getfield(L, 4, "has_grad");
    flags = lua_gettop(L);
  }
  read_flags(L, flags ? flags : 6, given, op->nout, true);
  PlAttrs given_attrs, attrs;
  pl_attrs_init(op, &given_attrs);
  if (flags) {
    check_attr_names(L, op);
    l_read_attrs(L, op, 4, &given_attrs);
  }
  CALL(L, pl_attrs_normalize(op, &given_attrs, dp->ptr[0], &attrs));
  PlDesc out[PL_MAX_OUT];
  memset(out, 0, sizeof out);
  PlInfer inf = {.op = op, .attrs = &attrs, .nin = nin, .in = dp->ptr, .compute = (PlDtype)dp->a[0].dtype, .out = out};
  CALL(L, op->infer(&inf));
  bool poly = l_opt_bool(L, 4, "polymorphic", false);
  for (int i = 0; i < nin; i++) {
    PlArray o = {.shape = out[0].shape, .ndim = out[0].ndim};
    same[i] = !poly && dp->ptr[i] && pl_shape_equal(dp->ptr[i], &o);
  }
  PlMakeArgs a = {op, nin, dp->ptr, &attrs, out, want, given, same};
  PlBackward *b;
  PlGradGraph *whole = NULL;
  CALL(L, pl_backward_graph_make(&a, &b, &whole));
  if (!b) return 0;
  Made made = {.b = b, .whole = whole, .status = PL_OK};
  lua_pushcfunction(L, push_made);
  lua_pushlightuserdata(L, &made);
  lua_pushvalue(L, 4);
  int rc = lua_pcall(L, 2, 1, 0);
  free(made.text);
  pl_grad_graph_free(whole);
  pl_backward_graph_release(b);
  if (rc != LUA_OK) return lua_error(L);
  CALL(L, made.status);
  return 1;
}

typedef struct TapeRow {
  const char *name;
  int64_t bytes;
  uint64_t seq;
  int kind;
  bool spent;
} TapeRow;

static TapeRow row_of(const PlNode *p) {
  TapeRow r = {.name = p->name, .seq = p->seq, .kind = p->kind, .spent = p->spent};
  for (uint32_t s = 0; s < p->nsaved; s++)
    if (p->saved[s].t) r.bytes += (int64_t)p->saved[s].t->storage->nbytes;
  return r;
}

static int push_rows(lua_State *L, const TapeRow *rows, int64_t n) {
  static const char *const kinds[] = {"leaf", "identity", "native", "graph", "rule"};
  lua_createtable(L, n < 1 << 20 ? (int)n : 0, 0);
  for (int64_t i = 0; i < n; i++) {
    lua_createtable(L, 0, 5);
    lua_pushstring(L, rows[i].name ? rows[i].name : "?");
    lua_setfield(L, -2, "name");
    lua_pushstring(L, kinds[rows[i].kind]);
    lua_setfield(L, -2, "kind");
    lua_pushinteger(L, (lua_Integer)rows[i].bytes);
    lua_setfield(L, -2, "saved_bytes");
    lua_pushinteger(L, (lua_Integer)rows[i].seq);
    lua_setfield(L, -2, "seq");
    lua_pushboolean(L, rows[i].spent);
    lua_setfield(L, -2, "spent");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int by_number(const void *a, const void *b) {
  uint64_t x = ((const TapeRow *)a)->seq, y = ((const TapeRow *)b)->seq;
  return x < y ? -1 : x > y;
}

/* Notes a node as seen (table at 2) and to be looked at (list at 3); y keeps them all alive meanwhile. */
static void note_node(lua_State *L, PlNode *n) {
  if (!n || lua_rawgetp(L, 2, n) != LUA_TNIL) {
    lua_settop(L, 3);
    return;
  }
  lua_settop(L, 3);
  lua_pushboolean(L, 1);
  lua_rawsetp(L, 2, n);
  lua_pushlightuserdata(L, n);
  lua_rawseti(L, 3, (lua_Integer)lua_rawlen(L, 3) + 1);
}

/* What y's history reaches, of every key. */
static int tape_of(lua_State *L, const PlTensor *y) {
  lua_settop(L, 1);
  lua_newtable(L);
  lua_newtable(L);
  PlEntry first = {.next = y->more, .node = y->node};
  for (const PlEntry *e = &first; e; e = e->next) note_node(L, e->node);
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, 3); i++) {
    lua_rawgeti(L, 3, i);
    PlNode *n = lua_touserdata(L, -1);
    lua_settop(L, 3);
    for (uint32_t d = 0; d < n->nin; d++) note_node(L, n->dests[d].node);
  }
  size_t count = lua_rawlen(L, 3);
  TapeRow *rows = lua_newuserdatauv(L, (count + 1) * sizeof *rows, 0);
  for (size_t i = 0; i < count; i++) {
    lua_rawgeti(L, 3, (lua_Integer)i + 1);
    rows[i] = row_of(lua_touserdata(L, -1));
    lua_pop(L, 1);
  }
  qsort(rows, count, sizeof *rows, by_number);
  return push_rows(L, rows, (int64_t)count);
}

/* debug.tape([y]): what y's history reaches, of all keys; without y the ambient key's nodes. In record order, a list of
 * {name, kind, saved_bytes, seq, spent} */
static int d_tape(lua_State *L) {
  if (!lua_isnoneornil(L, 1)) {
    PlTensor *y = l_check_tensor(L, 1);
    CALL(L, pl_history_current(&y, 1));
    return tape_of(L, y);
  }
  PlKey *k = pl_key_ambient();
  int64_t count = 0, n = 0;
  for (PlNode *p = k->tape.next; p != &k->tape; p = p->next) count++;
  /* Copied first: making Lua objects may collect tensors, and so nodes. */
  TapeRow *rows = lua_newuserdatauv(L, (size_t)(count + 1) * sizeof *rows, 0);
  for (PlNode *p = k->tape.next; p != &k->tape && n < count; p = p->next) rows[n++] = row_of(p);
  return push_rows(L, rows, n);
}

/* debug.cache_stats("tangents" or "pointwise"?) → {hits, misses, entries} of the cache of backward graphs, of graphs of tangents, or
 * of pointwise ops that run with their tangents in one pass */
static int d_cache_stats(lua_State *L) {
  int64_t hits, misses, entries;
  const char *which = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : "";
  if (strcmp(which, "tangents") == 0) pl_forward_cache_stats(&hits, &misses, &entries);
  else if (strcmp(which, "pointwise") == 0) pl_forward_pointwise_stats(&hits, &misses, &entries);
  else if (lua_isnoneornil(L, 1)) pl_backward_cache_stats(&hits, &misses, &entries);
  else return l_error(L, "cache_stats: nil, \"tangents\" or \"pointwise\" expected, got %s", l_typename(L, 1));
  lua_createtable(L, 0, 3);
  lua_pushinteger(L, (lua_Integer)hits);
  lua_setfield(L, -2, "hits");
  lua_pushinteger(L, (lua_Integer)misses);
  lua_setfield(L, -2, "misses");
  lua_pushinteger(L, (lua_Integer)entries);
  lua_setfield(L, -2, "entries");
  return 1;
}

static int d_cache_clear(lua_State *L) {
  (void)L;
  pl_backward_cache_clear();
  pl_forward_cache_clear();
  return 0;
}

/* debug.split(on) → what it was. Off: backward graphs keep everything they read; to measure what the split saves. */
static int d_split(lua_State *L) {
  if (lua_type(L, 1) != LUA_TBOOLEAN) return l_error(L, "split: true or false expected, got %s", l_typename(L, 1));
  lua_pushboolean(L, pl_backward_split_enable(lua_toboolean(L, 1)));
  return 1;
}

void l_debug_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"backward_graph", d_backward_graph}, {"tape", d_tape},   {"cache_stats", d_cache_stats},
                                       {"cache_clear", d_cache_clear},       {"split", d_split}, {NULL, NULL}};
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "debug");
}
