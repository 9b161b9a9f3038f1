/* SPDX-License-Identifier: MIT
 * Histories that a backward of a traced function went through, without retain_graph. Its results, and arguments that it wrote in
 * place, have a freed one after each run, as outside: another backward that gets there is an error, where it would leave out a part of
 * the gradients without a word. */
#include <stdlib.h>
#include <string.h>

#include "bindings/jit/program.h"
#include "bindings/ops/arguments.h"
#include "engine/call/thread_state.h"
#include "engine/grad/node.h"

/* Node n, if new, behind the list at 3, which is also a set. */
static void note_node(lua_State *L, PlNode *n) {
  if (n && lua_rawgetp(L, 3, n) == LUA_TNIL) {
    lua_pushboolean(L, 1);
    lua_rawsetp(L, 3, n);
    lua_pushlightuserdata(L, n);
    lua_rawseti(L, 3, (lua_Integer)lua_rawlen(L, 3) + 1);
  }
  lua_settop(L, 3);
}

/* jit_spent(graph, tensor) → has a backward run in the trace through some of its history, so that every other is an error; and through
 * all of it, so that nothing leads to a leaf, or to what was recorded before the trace? */
static int jit_spent(lua_State *L) {
  const PlGraph *f = l_check_graph(L, 1);
  PlNode *first = l_check_tensor(L, 2)->node;
  bool reaches = !first, spent = false;
  lua_settop(L, 2);
  lua_newtable(L);
  note_node(L, first);
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, 3); i++) {
    lua_rawgeti(L, 3, i);
    const PlNode *n = lua_touserdata(L, -1);
    lua_settop(L, 3);
    const bool ends = n->kind == PL_NODE_LEAF || n->seq <= f->began;
    reaches |= ends;
    spent |= n->spent && !ends;
    for (uint32_t d = 0; !ends && !n->spent && d < n->nin; d++) note_node(L, n->dests[d].node);
  }
  lua_pushboolean(L, spent);
  lua_pushboolean(L, !reaches);
  return 2;
}

/* The arguments whose numbers are listed at `at`. */
static void note_arguments(lua_State *L, Program *p, int at, LAfter what) {
  luaL_checktype(L, at, LUA_TTABLE);
  const lua_Integer n = (lua_Integer)lua_rawlen(L, at);
  if (n && !p->after && !(p->after = calloc((size_t)p->nargs + 1, 1))) l_error(L, "jit_spend: out of memory");
  for (lua_Integer i = 1; i <= n; i++, lua_pop(L, 1)) {
    lua_rawgeti(L, at, i);
    const lua_Integer k = lua_tointeger(L, -1);
    if (k < 1 || k > p->nargs) l_error(L, "jit_spend: there is no argument %d", (int)k);
    p->after[k - 1] = (uint8_t)what;
  }
}

/* jit_spend(program, name, from, to, {numbers of arguments}, {numbers of arguments}): results from + 1 … to, and arguments that it wrote
 * so, have a freed history after a run; others it detached. */
static int jit_spend(lua_State *L) {
  Program *p = l_check_program(L, 1);
  const int64_t from = l_check_int(L, 3, "jit_spend", "from"), to = l_check_int(L, 4, "jit_spend", "to");
  if (from < 0 || from > to || to > p->nuser || p->spent_name)
    return l_error(L, "jit_spend: %d to %d of %d results", (int)from, (int)to, (int)p->nuser);
  p->spent_name = l_intern(L, luaL_checkstring(L, 2));
  p->spent_from = (int32_t)from;
  p->spent_to = (int32_t)to;
  note_arguments(L, p, 5, L_AFTER_SPENT);
  note_arguments(L, p, 6, L_AFTER_DETACHED);
  return 0;
}

/* jit_detached(tensor) → has detach_ been called on it in the trace? */
static int jit_detached(lua_State *L) {
  lua_pushboolean(L, (l_check_tensor(L, 1)->flags & PL_T_DETACHED) != 0);
  return 1;
}

PlStatus l_program_spend_like(Program *to, const Program *p) {
  if (p->after) {
    to->after = malloc((size_t)p->nargs + 1);
    if (!to->after) PL_FAIL(PL_ERR_OOM, "jit: out of memory");
    memcpy(to->after, p->after, (size_t)p->nargs + 1);
  }
  to->spent_from = p->spent_from;
  to->spent_to = p->spent_to;
  to->spent_name = p->spent_name;
  return PL_OK;
}

static PlStatus freed(const Program *p, PlTensor *t) {
  PlNode *n;
  PL_TRY(pl_node_new(&n, pl_key_ambient(), PL_NODE_NATIVE, 0, 1, 0));
  n->name = p->spent_name;
  pl_node_clear(n);
  const PlStatus s = pl_entry_set(t, n, 0);
  pl_node_release(n);
  return s;
}

/* As a write in place does: what t is a view of, and its other views, know of it. */
static PlStatus spend_written(const Program *p, PlTensor *t) {
  PlTensor *fresh;
  PL_TRY(pl_tensor_alias(&fresh, t));
  PlStatus s = freed(p, fresh);
  if (s == PL_OK) s = pl_inplace_install(t, fresh);
  pl_tensor_release(fresh);
  return s;
}

PlStatus l_program_spend(const Program *p, PlTensor *const *in, PlTensor *const *out) {
  PlStatus s = PL_OK;
  if (pl_state.grad_off) return s;
  for (int32_t o = p->spent_from; o < p->spent_to && s == PL_OK; o++) s = freed(p, out[o]);
  for (int32_t i = 0; p->after && i < p->nargs && s == PL_OK; i++)
    if (p->after[i] == L_AFTER_SPENT) s = spend_written(p, in[i]);
  return s;
}

void l_program_spent_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"jit_spent", jit_spent}, {"jit_spend", jit_spend}, {"jit_detached", jit_detached}, {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
}
