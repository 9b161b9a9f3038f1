/* SPDX-License-Identifier: MIT
 * Tracing for T.jit (lua/perilune/jit/): entering and leaving a trace, and what runs in between. What a trace becomes is
 * in program.c. */
#include <stdio.h>
#include <string.h>

#include "bindings/ops.h"
#include "bindings/program.h"
#include "engine/state.h"

typedef struct Where {
  lua_State *L;
  char home[512];
} Where;
static _Thread_local Where tracing;

/* Line of the script that runs now, kept in the flow's pool. Consecutive nodes share it. */
static const char *script_line(void *ud) {
  PlFlow *f = ud;
  lua_Debug ar;
  char text[LUA_IDSIZE + 16];
  if (!tracing.L || !l_locate(l_running ? l_running : tracing.L, tracing.home, &ar)) return NULL;
  snprintf(text, sizeof text, "%s:%d", ar.short_src, ar.currentline);
  const char *last = f->nnodes ? f->nodes[f->nnodes - 1].where : NULL;
  return last && strcmp(last, text) == 0 ? last : pl_flow_string(f, text);
}

/* jit_enter(flow, mirror options or nil): every op goes into it until jit_finish or jit_abort */
static int jit_enter(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  if (pl_state.trace) return l_error(L, "jit: a trace is running already; a jitted function cannot trace inside of another trace");
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.home");
  const char *home = lua_tostring(L, -1);
  tracing.L = L;
  snprintf(tracing.home, sizeof tracing.home, "%s", home ? home : "");
  f->record = true;
  f->mirror = (PlMirrorOptions){.fraction = -1, .bytes = -1};
  if (lua_type(L, 2) == LUA_TTABLE) l_read_mirror(L, 2, 0, &f->mirror);
  f->where = script_line;
  f->where_ud = f;
  pl_state.trace = f;
  return 0;
}

void l_trace_end(PlFlow *f) {
  pl_state.trace = NULL;
  tracing.L = NULL;
  f->where = NULL;
}

/* jit_abort(flow): ends a trace that failed */
static int jit_abort(lua_State *L) {
  PlFlow *f = l_check_flow(L, 1);
  l_trace_end(f);
  f->stage = 0;
  (void)pl_flow_leaf_grads(f, NULL);
  f->closed = true;
  return 0;
}

/* jit_pause() → token for jit_resume; in between ops run */
static int jit_pause(lua_State *L) {
  lua_pushlightuserdata(L, pl_state.trace);
  pl_state.trace = NULL;
  return 1;
}
static int jit_resume(lua_State *L) {
  pl_state.trace = lua_touserdata(L, 1);
  return 0;
}
/* jit_tracing() → does a trace run? */
static int jit_tracing(lua_State *L) {
  lua_pushboolean(L, pl_state.trace != NULL);
  return 1;
}
/* jit_node() → number of the trace's newest node */
static int jit_node(lua_State *L) {
  lua_pushinteger(L, pl_state.trace ? pl_state.trace->nnodes : 0);
  return 1;
}

/* jit_reads_after(flow, node, tensor) → does a node behind that one read the real tensor? */
static int jit_reads_after(lua_State *L) {
  const PlFlow *f = l_check_flow(L, 1);
  const PlTensor *t = l_check_tensor(L, 3);
  bool found = false;
  for (int64_t i = l_check_int(L, 2, "jit_reads_after", "node"); i < f->nnodes && !found; i++)
    for (int32_t k = 0; k < f->nodes[i].nin && !found; k++) {
      PlFVal v = f->nodes[i].in[k];
      found = v >= 0 && f->vals[v].kind == PL_FV_CAPTURE && f->vals[v].real->storage == t->storage;
    }
  lua_pushboolean(L, found);
  return 1;
}

void l_jit_register(lua_State *L) {
  static const luaL_Reg regs[] = {{"jit_enter", jit_enter}, {"jit_abort", jit_abort}, {"jit_pause", jit_pause},
                                  {"jit_resume", jit_resume}, {"jit_tracing", jit_tracing}, {"jit_node", jit_node},
                                  {"jit_reads_after", jit_reads_after}, {NULL, NULL}};
  luaL_setfuncs(L, regs, 0);
  l_program_register(L);
  l_program_look_register(L);
}
