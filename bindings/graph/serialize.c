/* SPDX-License-Identifier: MIT
 * What saving and loading graphs needs (lua/perilune/graph/file.lua): leaves, outputs and gradient passes as tables, and ops
 * applied by name with attributes by name. */
#include <stdlib.h>
#include <string.h>

#include "bindings/graph/graph.h"
#include "engine/call/thread_state.h"
#include "engine/graph/trace/symbolic.h"

static void set_string(lua_State *L, const char *key, const char *v) {
  lua_pushstring(L, v);
  lua_setfield(L, -2, key);
}

static void set_int(lua_State *L, const char *key, int64_t v) {
  lua_pushinteger(L, (lua_Integer)v);
  lua_setfield(L, -2, key);
}

static void set_bool(lua_State *L, const char *key, bool v) {
  lua_pushboolean(L, v);
  lua_setfield(L, -2, key);
}

static void push_leaf(lua_State *L, const PlGraph *f, PlGVal v) {
  const PlGValue *val = &f->vals[v];
  lua_createtable(L, 0, 8);
  set_int(L, "value", v);
  set_string(L, "dtype", pl_dtype_name((PlDtype)val->dtype));
  set_bool(L, "leaf", val->leaf);
  set_bool(L, "weak", val->weak != 0);
  lua_createtable(L, val->ndim, 0);
  for (int d = 0; d < val->ndim; d++) {
    lua_pushinteger(L, (lua_Integer)val->dims[d]);
    lua_rawseti(L, -2, d + 1);
  }
  lua_setfield(L, -2, "shape");
  if (val->name) set_string(L, "name", val->name);
  bool number = val->kind == PL_FV_CONST && val->ndim == 0;
  set_string(L, "kind", val->kind == PL_FV_INPUT ? "input" : number ? "number" : val->kind == PL_FV_CAPTURE ? "capture" : "constant");
  if (number) {
    if (pl_is_float((PlDtype)val->dtype)) lua_pushnumber(L, pl_read_f(&val->real->a, 0));
    else lua_pushinteger(L, (lua_Integer)pl_read_i(&val->real->a, 0));
    lua_setfield(L, -2, "number");
  } else if (val->real) {
    l_push_shared(L, val->real);
    lua_setfield(L, -2, "tensor");
  }
}

/* The first captured value with the memory of v, a detached p beside p itself; v where it is the first; -1: it has other parts of it. */
static PlGVal captured_as(const PlGraph *f, PlGVal v) {
  const PlGValue *val = &f->vals[v];
  const PlGVal first = f->stores[val->store].first;
  const PlArray *a = &val->real->a, *b = &f->vals[first].real->a;
  const bool same = a->data == b->data && a->dtype == b->dtype && pl_shape_equal(a, b) &&
                    memcmp(a->strides, b->strides, a->ndim * sizeof *a->strides) == 0;
  return same ? first : -1;
}

/* graph_leaves(graph) → list of {kind value name dtype shape leaf weak number tensor}; of a captured tensor that an earlier one is,
 * too: {kind = "same", value, of} */
static int graph_leaves(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  int n = 0;
  lua_newtable(L);
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_NODE) continue;
    const PlGVal of = val->kind == PL_FV_CAPTURE ? captured_as(f, v) : v;
    if (of < 0) return l_error(L, "save_graph: two captured tensors share memory; capture the whole and take views in the graph");
    if (of == v) push_leaf(L, f, v);
    else {
      lua_createtable(L, 0, 3);
      set_string(L, "kind", "same");
      lua_pushinteger(L, v);
      lua_setfield(L, -2, "value");
      lua_pushinteger(L, of);
      lua_setfield(L, -2, "of");
    }
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

/* graph_steps_beside(graph, node) → how many later and earlier steps of the same optimizer there are */
static int graph_steps_beside(lua_State *L) {
  const PlGraph *f = l_check_graph(L, 1);
  const lua_Integer node = luaL_checkinteger(L, 2);
  if (node < 1 || node > f->nnodes) return l_error(L, "save_graph: there is no such node");
  lua_pushinteger(L, pl_graph_steps_beside(f, (int32_t)node - 1, true));
  lua_pushinteger(L, pl_graph_steps_beside(f, (int32_t)node - 1, false));
  return 2;
}

/* graph_output_values(graph) → list of value numbers */
static int graph_output_values(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  lua_createtable(L, f->noutputs, 0);
  for (int32_t o = 0; o < f->noutputs; o++) {
    lua_pushinteger(L, f->outputs[o]);
    lua_rawseti(L, -2, o + 1);
  }
  return 1;
}

/* graph_number(graph, number, dtype, weak) → tensor: a constant */
static int graph_number(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  PlDtype d = l_check_dtype(L, 3, "load_graph");
  if (lua_type(L, 2) != LUA_TNUMBER) return l_error(L, "load_graph: a number expected, got %s", l_typename(L, 2));
  Box *b = l_new_box(L);
  (void)f;
  CALL(L, pl_tensor_empty(&b->t, d, 0, NULL));
  if (lua_isinteger(L, 2)) pl_write_i(d, b->t->a.data, (int64_t)lua_tointeger(L, 2));
  else pl_write_f(d, b->t->a.data, lua_tonumber(L, 2));
  b->t->a.weak = lua_toboolean(L, 4) != 0;
  b->t->flags |= PL_T_CONST;
  return 1;
}

/* The attributes of op from the table at `at`. */
static void file_attrs(lua_State *L, const PlOp *op, int at, PlAttrs *a) {
  for (lua_pushnil(L); lua_next(L, at); lua_pop(L, 1)) {
    int k = 0;
    const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    while (k < op->nattr && strcmp(op->attrs[k].name, name) != 0) k++;
    if (k == op->nattr) l_error(L, "load_graph: %s has no attribute '%s'", op->name, name);
  }
  pl_attrs_init(op, a);
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, at);
  lua_setfield(L, -2, "attrs");
  l_read_attrs(L, op, lua_gettop(L), a);
  lua_pop(L, 1);
}

/* Results go into the boxes of the list at `res`; false stands where there is none. */
static void file_results(lua_State *L, int res, PlTensor **out, int nout) {
  for (int o = 0; o < nout; o++) {
    lua_rawgeti(L, res, o + 1);
    l_box(L, -1)->t = out[o];
    lua_pop(L, 1);
    if (out[o]) continue;
    lua_pushboolean(L, 0);
    lua_rawseti(L, res, o + 1);
  }
}

/* graph_apply(graph, op, {tensor or false, …}, {attribute=…}, stage, name, origin or 0) → {tensor or false, …}, number of
 * its node */
static int graph_apply(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  const PlOp *op = lua_type(L, 2) == LUA_TSTRING ? pl_op_find(lua_tostring(L, 2)) : NULL;
  if (!op) return l_error(L, "load_graph: there is no op %s", lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : l_typename(L, 2));
  luaL_checktype(L, 3, LUA_TTABLE);
  luaL_checktype(L, 4, LUA_TTABLE);
  int nin = (int)lua_rawlen(L, 3);
  int64_t stage = l_check_int(L, 5, "load_graph", "stage");
  if (stage < 0 || stage > 255) return l_error(L, "load_graph: stage %d is out of range", (int)stage);
  const char *name = luaL_checkstring(L, 6);
  int64_t origin = l_check_int(L, 7, "load_graph", "origin");
  if (origin < 0 || origin > f->nnodes) return l_error(L, "load_graph: there is no node %lld", (long long)origin);
  lua_settop(L, 6);
  PlTensor **in = lua_newuserdatauv(L, (size_t)(nin + 1) * sizeof(PlTensor *), 0);
  for (int i = 0; i < nin; i++) {
    lua_rawgeti(L, 3, i + 1);
    in[i] = l_to_tensor(L, -1);
    lua_pop(L, 1); /* the list keeps it */
  }
  PlAttrs a;
  file_attrs(L, op, 4, &a);
  bool lists = (op->flags & PL_F_MUTATES) && op->nin == PL_VARIADIC;
  lua_createtable(L, op->nout, 0);
  int res = lua_gettop(L);
  for (int o = 0; o < op->nout && !lists; o++) {
    l_new_box(L);
    lua_rawseti(L, res, o + 1);
  }
  PlTensor *out[PL_MAX_OUT] = {NULL};
  const char *kept = pl_graph_string(f, name);
  if (!kept) return l_error(L, "load_graph: out of memory");
  CALL(L, pl_sym_emit(f, (int)stage, (int)origin - 1, kept, op, in, nin, &a, out));
  if (!lists) file_results(L, res, out, op->nout);
  else pl_release_all(out, op->nout);
  for (int i = 0; lists && i < nin; i++) { /* what was written keeps its handle */
    lua_rawgeti(L, 3, i + 1);
    lua_rawseti(L, res, i + 1);
  }
  lua_pushinteger(L, f->nnodes);
  return 2;
}

/* graph_whole(graph, node, piece): Ctrl-C does not part the writing nodes of a piece; pieces count from 1 */
static int graph_whole(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  const int64_t node = l_check_int(L, 2, "load_graph", "node"), piece = l_check_int(L, 3, "load_graph", "piece");
  if (node < 1 || node > f->nnodes || piece < 1 || piece > INT32_MAX) return l_error(L, "load_graph: there is no such piece of a node");
  pl_graph_piece(f, (int32_t)node - 1, (int32_t)piece);
  return 0;
}

/* graph_regions(graph) → list of {stage policy fraction bytes seeded heavy listed ys={values} choice={node → number}} */
static int graph_regions(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  lua_createtable(L, f->nregions, 0);
  for (int32_t r = 0; r < f->nregions; r++) {
    const PlGRegion *g = &f->regions[r];
    lua_createtable(L, 0, 9);
    set_int(L, "policy", g->recompute.policy);
    lua_pushnumber(L, g->recompute.fraction);
    lua_setfield(L, -2, "fraction");
    set_int(L, "bytes", g->recompute.bytes);
    set_bool(L, "seeded", g->recompute.seeded);
    set_bool(L, "heavy", g->recompute.heavy);
    set_bool(L, "listed", g->recompute.listed);
    lua_createtable(L, g->ny, 0);
    for (int32_t k = 0; k < g->ny; k++) {
      lua_pushinteger(L, g->ys[k]);
      lua_rawseti(L, -2, k + 1);
    }
    lua_setfield(L, -2, "ys");
    lua_newtable(L);
    for (int32_t k = 0; k < g->recompute.nchoice; k++)
      if (g->recompute.choice[k]) {
        lua_pushinteger(L, g->recompute.choice[k]);
        lua_rawseti(L, -2, k + 1);
      }
    lua_setfield(L, -2, "choice");
    lua_rawseti(L, -2, r + 1);
  }
  return 1;
}

/* graph_region(graph, table as above, with ys as tensors): one more */
static int graph_region(lua_State *L) {
  PlGraph *f = l_check_graph(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  PlRecomputeOptions m;
  int n = f->nnodes;
  lua_getfield(L, 2, "ys");
  luaL_checktype(L, -1, LUA_TTABLE);
  int ny = (int)lua_rawlen(L, -1), list = lua_gettop(L);
  PlGVal *ys = lua_newuserdatauv(L, (size_t)(ny + 1) * sizeof *ys, 0);
  for (int k = 0; k < ny; k++) {
    lua_rawgeti(L, list, k + 1);
    CALL(L, pl_sym_value_of(f, l_check_tensor(L, lua_gettop(L)), &ys[k]));
    lua_pop(L, 1);
  }
  l_read_recompute(L, 2, n, &m);
  PlStatus s = pl_graph_region(f, f->nnodes, ny, ys, &m);
  free(m.choice);
  CALL(L, s);
  return 0;
}

void l_graph_file_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"graph_leaves", graph_leaves},
                                  {"graph_steps_beside", graph_steps_beside},
                                  {"graph_output_values", graph_output_values},
                                  {"graph_number", graph_number},
                                  {"graph_apply", graph_apply},
                                  {"graph_whole", graph_whole},
                                  {"graph_regions", graph_regions},
                                  {"graph_region", graph_region},
                                  {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
