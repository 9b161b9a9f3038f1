/* SPDX-License-Identifier: MIT
 * Which functions of C may get a traced function's tensors without being asked what they do with sizes. Those listed here were
 * read through: between Lua and the engine they do the same for all sizes, or say what they see of one (l_saw). Lua's own
 * know nothing of tensors. Any other that gets a tensor of the trace ends the hope that the trace says something about
 * other sizes (docs/design/symbolic-sizes.md); the trace itself is as good as ever. */
#include <stdlib.h>
#include <string.h>

#include "bindings/jit/program.h"
#include "bindings/ops/call.h"

enum { SLOTS = 1024, NEST = 2 };

struct LKnown {
  lua_CFunction slots[SLOTS];
  int n;
};

static uint32_t slot_of(const LKnown *k, lua_CFunction f) {
  uint32_t s = (uint32_t)(((uint64_t)(uintptr_t)f * UINT64_C(0x9E3779B97F4A7C15)) >> 40) % SLOTS;
  while (k->slots[s] && k->slots[s] != f) s = (s + 1) % SLOTS;
  return s;
}

static void add(LKnown *k, lua_CFunction f) {
  const uint32_t s = f ? slot_of(k, f) : 0;
  if (!f || k->slots[s] || k->n > SLOTS / 2) return;
  k->slots[s] = f;
  k->n++;
}

/* Fields of the table on top by name; NULL: all of them. */
static void add_fields(lua_State *L, LKnown *k, const char *const *names) {
  if (!lua_istable(L, -1)) return;
  for (; names && *names; names++) {
    lua_pushstring(L, *names);
    lua_rawget(L, -2);
    add(k, lua_tocfunction(L, -1));
    lua_pop(L, 1);
  }
  if (names) return;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) add(k, lua_tocfunction(L, -1));
}

/* Lua's own. */
static void add_lua(lua_State *L, LKnown *k) {
  static const char *const base[] = {"assert", "collectgarbage", "dofile",   "error",    "getmetatable", "ipairs",       "load",
                                     "next",   "pairs",          "pcall",    "print",    "rawequal",     "rawget",       "rawlen",
                                     "rawset", "require",        "select",   "tonumber", "tostring",     "setmetatable", "type",
                                     "warn",   "xpcall",         "loadfile", NULL};
  static const char *const libraries[] = {"string", "table", "math", "utf8", "os", "io", "coroutine", "debug", NULL};
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  for (int i = 0; libraries[i]; i++) {
    lua_getfield(L, -1, libraries[i]);
    add_fields(L, k, NULL);
    lua_pop(L, 1);
  }
  lua_getfield(L, -1, LUA_GNAME);
  add_fields(L, k, base);
  lua_getfield(L, -1, "ipairs"); /* what it iterates with */
  if (lua_iscfunction(L, -1)) {
    lua_newtable(L);
    if (lua_pcall(L, 1, 1, 0) == LUA_OK) add(k, lua_tocfunction(L, -1));
  }
  lua_pop(L, 3);
}

static void add_ours(lua_State *L, LKnown *k) {
  static const char *const core[] = {"is_tensor",       "is_symbolic",
                                     "grad_enabled",    "grad_of",
                                     "to_layout",       "layout_of",
                                     "recurrent",       "jit_value",
                                     "recurrent_takes", "jit_untraced",
                                     "is_one_object",   "same",
                                     "jit_root",        "jit_spent",
                                     "jit_detached",    "jit_finish",
                                     "jit_reads_after", "jit_written",
                                     "graph_value",     "graph_mark",
                                     "graph_pin",       "is_batched",
                                     "jit_again_begin", "jit_again_end",
                                     "floats",          "alike",
                                     "interruptible",   "is_freed",
                                     "attempt",         "raised",
                                     "around",          "open",
                                     "backward",        NULL};
  static const char *const device[] = {"follow", "groups", NULL};
  static const char *const methods[] = {"size",
                                        "shape",
                                        "stride",
                                        "dim",
                                        "numel",
                                        "dtype",
                                        "device",
                                        "is_cuda",
                                        "is_freed",
                                        "is_floating_point",
                                        "version",
                                        "describe",
                                        "shares_storage",
                                        "element_size",
                                        "is_contiguous",
                                        "detach",
                                        "backward",
                                        "requires_grad_",
                                        NULL};
  static const char *const meta[] = {"__index", "__newindex", "__len", "__lt", "__le", NULL};
  add(k, l_op_call);
  add(k, l_op_unary);
  add(k, l_jit_call());
  add(k, l_is_contiguous); /* a function of Lua stands for it */
  l_box_metatable(L);
  for (const BinaryMeta *b = l_binary_meta; b->event; b++) {
    lua_getfield(L, -1, b->event);
    add(k, lua_tocfunction(L, -1));
    lua_pop(L, 1);
  }
  add_fields(L, k, meta);
  lua_getfield(L, -1, "methods");
  add_fields(L, k, methods);
  lua_pop(L, 2);
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.core");
  add_fields(L, k, core);
  lua_getfield(L, -1, "device");
  add_fields(L, k, device);
  lua_pop(L, 2);
}

LKnown *l_known_functions(lua_State *L) {
  LKnown *k = calloc(1, sizeof *k);
  if (!k) return NULL;
  luaL_checkstack(L, 8, NULL);
  add_lua(L, k);
  add_ours(L, k);
  return k;
}

/* A tensor of g on top of the stack, or one in the table there? */
static PlTensor *tensor_of(lua_State *L, const PlGraph *g, int depth) {
  PlTensor *t = l_to_tensor(L, -1);
  if (t) {
    t = pl_behind(t);
    return t->a.symbolic && pl_sym_graph(t) == g ? t : NULL;
  }
  if (!lua_istable(L, -1) || depth == 0 || !lua_checkstack(L, 4)) return NULL;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1))
    if ((t = tensor_of(L, g, depth - 1))) {
      lua_pop(L, 2);
      return t;
    }
  return NULL;
}

void l_known_check(lua_State *L, lua_Debug *ar, const LKnown *k, lua_CFunction f, PlGraph *g) {
  if (!k || !g->calls || g->calls->refused || g->calls->inside || k->slots[slot_of(k, f)]) return;
  for (int i = 1; lua_getlocal(L, ar, i); i++) {
    PlTensor *t = tensor_of(L, g, NEST);
    lua_pop(L, 1);
    if (!t) continue;
    lua_getinfo(L, "n", ar);
    pl_calls_refuse(g, "%s, which may look at sizes, got %s", ar->name ? ar->name : "a function of C", pl_desc_text(&t->a));
    return;
  }
}
