/* SPDX-License-Identifier: MIT
 * What T.jit tells about its programs (program.h): lines of the script, what is read and written. */
#include "bindings/program.h"

/* jit_lines(program) → list of {line, ops, bytes, flops} per line of the script, in order of first appearance */
static int jit_lines(lua_State *L) {
  const PlFlow *f = l_check_program(L, 1)->f;
  lua_newtable(L);
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlFNode *n = &f->nodes[i];
    if (n->flags & PL_FN_VIEW) continue;
    int64_t bytes = 0;
    for (int32_t o = 0; o < n->nout; o++) bytes += pl_fvalue_bytes(&f->vals[n->first + o]);
    lua_createtable(L, 0, 4);
    lua_pushstring(L, n->where ? n->where : "?");
    lua_setfield(L, -2, "line");
    lua_pushstring(L, n->op->name);
    lua_setfield(L, -2, "op");
    lua_pushinteger(L, (lua_Integer)bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushnumber(L, n->flops);
    lua_setfield(L, -2, "flops");
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  }
  return 1;
}

/* jit_leaves(program) → list of the real leaves whose gradients the trace dealt with */
static int jit_leaves(lua_State *L) {
  const PlFlow *f = l_check_program(L, 1)->f;
  lua_createtable(L, f->nleaves, 0);
  for (int32_t i = 0; i < f->nleaves; i++) {
    l_push_shared(L, f->leaves[i].t);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* jit_origin(program, k) → "name at file:line" of the node that makes output k, or nil */
static int jit_origin(lua_State *L) {
  const PlFlow *f = l_check_program(L, 1)->f;
  int64_t k = l_check_int(L, 2, "jit_origin", "output");
  if (k < 1 || k > f->noutputs || f->vals[f->outputs[k - 1]].node < 0) return 0;
  const PlFNode *n = &f->nodes[f->vals[f->outputs[k - 1]].node];
  lua_pushfstring(L, "%s at %s", n->name, n->where ? n->where : "?");
  return 1;
}

/* jit_writes(program) → list of the real tensors that a run writes */
static int jit_writes(lua_State *L) {
  const PlFlow *f = l_check_program(L, 1)->f;
  lua_newtable(L);
  for (int32_t v = 0; v < f->nvals; v++) {
    const PlFValue *val = &f->vals[v];
    if (val->kind != PL_FV_CAPTURE || f->stores[val->store].version == 0) continue;
    l_push_shared(L, val->real);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  }
  return 1;
}

void l_program_look_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"jit_lines", jit_lines}, {"jit_leaves", jit_leaves}, {"jit_origin", jit_origin},
                                  {"jit_writes", jit_writes}, {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
