/* SPDX-License-Identifier: MIT
 * Tensor userdata: making, finding again, releasing. */
#include <string.h>

#include "bindings/command/lua_alloc.h"
#include "bindings/core/lib.h"

static const char meta_key = 0, light_key = 0, boxes_key = 0, late_key = 0, sentinel_key = 0;

/* Becomes true for good with the first state of the process whose new boxes have __gc. */
bool l_boxes_have_gc;

/* A leaf whose .grad has a history of its own (create_graph) is part of a cycle: leaf -> grad -> nodes -> saved
 * leaf. When its last Lua object goes, nobody can ask for its .grad any more: cut there, and let later walks give
 * it none. */
static void cut_cycle(const PlTensor *t) {
  PlNode *n;
  uint32_t slot;
  if (t->boxes) return;
  if (!pl_entry_get(t, pl_key_ambient(), &n, &slot) && !(pl_state.holder && pl_entry_get(t, pl_state.holder, &n, &slot))) return;
  if (n->kind != PL_NODE_LEAF || n->u.target != t) return;
  n->u.target = NULL;
  PlTensor *g = n->grad;
  n->grad = NULL;
  pl_tensor_release(g);
}

/* Is the box at i the tensor's object, rather than a result of an op that nobody has looked at? It has the full metatable. */
static bool is_remembered(lua_State *L, int i) {
  if (!lua_getmetatable(L, i)) return false;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &meta_key);
  const bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

static void forget(lua_State *L, int i, PlTensor *t) {
  if (!is_remembered(L, i)) return;
  t->boxes--;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &light_key);
  lua_setmetatable(L, i);
}

void l_empty_box(lua_State *L) {
  Box *b = l_box(L, 1);
  PlTensor *t = b->t;
  b->t = NULL;
  forget(L, 1, t);
  if (PL_UNLIKELY(t->node)) cut_cycle(t);
  pl_tensor_release(t);
}

void l_box_moves(lua_State *L, PlTensor *to) {
  Box *b = l_box(L, 1);
  PlTensor *from = b->t;
  forget(L, 1, from);
  b->t = pl_retain(to);
  l_remember_box(L, 1);
  pl_tensor_release(from);
}

static int box_gc(lua_State *L) {
  Box *b = l_box(L, 1);
  if (!b || !b->t) return 0;
  if (PL_UNLIKELY(b->t->boxes)) {
    l_empty_box(L);
    return 0;
  }
  PlTensor *t = b->t;
  b->t = NULL;
  pl_tensor_release(t);
  return 0;
}

static void make_sentinel(lua_State *L);

/* ---- boxes without finalizers ------------------------------------------------------------------------- */

typedef struct Probe {
  lua_Alloc f;
  void *ud;
  size_t size;
} Probe;

static void *probe(void *ud, void *p, size_t old_size, size_t new_size) {
  Probe *pr = ud;
  if (!p && old_size == LUA_TUSERDATA) pr->size = new_size;
  return pr->f(pr->ud, p, old_size, new_size);
}

static void release(void *tensor) { pl_tensor_release(tensor); }

/* Results have a metatable of their own; l_remember_box gives them the full one. The perilune command's allocator can tell
 * when a box dies (command/lua_alloc.h), so the results' has no __gc there. The size of a box is asked, not guessed. */
static bool connect_release(lua_State *L) {
  lua_getfield(L, LUA_REGISTRYINDEX, "perilune.release.slot");
  LuaRelease *r = lua_touserdata(L, -1);
  lua_pop(L, 1);
  if (!r) return false;
  Probe pr = {.size = 0};
  pr.f = lua_getallocf(L, &pr.ud);
  lua_setallocf(L, probe, &pr);
  lua_newuserdatauv(L, sizeof(Box), 0); /* raises only when memory is out at start: then nothing runs anyway */
  lua_setallocf(L, pr.f, pr.ud);
  memset(lua_touserdata(L, -1), 0, sizeof(Box));
  lua_pop(L, 1);
  if (!pr.size) return false;
  *r = (LuaRelease){.box_size = pr.size, .magic = BOX_MAGIC, .release = release};
  return true;
}

/* core.seal(): the results' metatable becomes a copy of the full one but for __gc, once all metamethods are there. */
int l_seal(lua_State *L) {
  l_box_metatable(L);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &light_key) != LUA_TTABLE) return 0;
  for (lua_pushnil(L); lua_next(L, -3); lua_pop(L, 1)) {
    if (lua_type(L, -2) == LUA_TSTRING && strcmp(lua_tostring(L, -2), "__gc") == 0) continue;
    lua_pushvalue(L, -2);
    lua_pushvalue(L, -2);
    lua_rawset(L, -5);
  }
  return 0;
}

int l_result_metatable(lua_State *L) {
  l_box_metatable(L);
  lua_pop(L, 1);
  return lua_rawgetp(L, LUA_REGISTRYINDEX, &light_key), 1;
}

int l_box_metatable(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &meta_key) == LUA_TTABLE) return 1;
  lua_pop(L, 1);
  lua_createtable(L, 0, 40);
  lua_pushcfunction(L, box_gc);
  lua_setfield(L, -2, "__gc");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pushliteral(L, "tensor");
  lua_setfield(L, -2, "__name");
  lua_newtable(L); /* methods */
  lua_setfield(L, -2, "methods");
  make_sentinel(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &meta_key);
  const bool released = connect_release(L);
  lua_newtable(L); /* filled by l_seal */
  if (!released) {
    __atomic_store_n(&l_boxes_have_gc, true, __ATOMIC_RELAXED);
    __atomic_or_fetch(&l_box_notes, L_NOTE_LATE, __ATOMIC_RELAXED);
    lua_pushcfunction(L, box_gc);
    lua_setfield(L, -2, "__gc");
  }
  lua_rawsetp(L, LUA_REGISTRYINDEX, &light_key);
  return 1;
}

/* ---- closing the state -------------------------------------------------------------------------------- */

/* Lua never finalizes what a finalizer makes while the state closes. Objects made in finalizers are therefore
 * kept in a weak table, and a sentinel made with the module, finalized after nearly everything else, calls
 * their finalizers. */
void l_made_late(lua_State *L) {
  luaL_checkstack(L, 6, NULL);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &sentinel_key) == LUA_TNIL) l_error(L, "the Lua state is closing: no more tensors");
  lua_pop(L, 1);
  l_push_weak_table(L, &late_key, "k");
  lua_pushvalue(L, -2);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

static int sentinel_gc(lua_State *L) {
  lua_pushnil(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &sentinel_key);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &late_key) != LUA_TTABLE) return 0;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
    if (luaL_getmetafield(L, -2, "__gc") != LUA_TFUNCTION) continue;
    lua_pushvalue(L, -3);
    lua_call(L, 1, 0);
  }
  return 0;
}

/* Made once, before any tensor. */
static void make_sentinel(lua_State *L) {
  lua_newuserdatauv(L, 1, 0);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, sentinel_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &sentinel_key);
}

Box *l_new_box(lua_State *L) {
  Box *b = lua_newuserdatauv(L, sizeof(Box), 0);
  b->t = NULL;
  b->magic = BOX_MAGIC;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &light_key);
  lua_setmetatable(L, -2);
  l_note_box(L);
  return b;
}

/* Weak-valued: light userdata of the handle → its box. */
static void push_boxes(lua_State *L) { l_push_weak_table(L, &boxes_key, "v"); }

void l_remember_box(lua_State *L, int i) {
  Box *b = l_box(L, i);
  i = lua_absindex(L, i);
  if (!b || !b->t) return;
  if (!is_remembered(L, i)) b->t->boxes++;
  l_box_metatable(L); /* with __gc: a leaf may have a cycle to cut */
  lua_setmetatable(L, i);
  if (PL_UNLIKELY(!l_boxes_have_gc)) {
    lua_pushvalue(L, i);
    l_note_late(L);
    lua_pop(L, 1);
  }
  push_boxes(L);
  lua_pushvalue(L, i);
  lua_rawsetp(L, -2, b->t);
  lua_pop(L, 1);
  b->t->flags |= PL_T_BOXED;
}

void l_push_boxes(lua_State *L) { push_boxes(L); }

bool l_push_known(lua_State *L, int boxes, PlTensor *t) {
  if (lua_rawgetp(L, boxes, t) == LUA_TUSERDATA && l_to_tensor(L, -1) == t) return true;
  lua_pop(L, 1);
  return false;
}

/* Pushes t's living box; false if there is none. */
static bool push_known(lua_State *L, PlTensor *t) {
  if (!(t->flags & PL_T_BOXED)) return false;
  push_boxes(L);
  const bool known = l_push_known(L, -1, t);
  lua_remove(L, known ? -2 : -1);
  return known;
}

int l_push_shared(lua_State *L, PlTensor *t) {
  if (!t) lua_pushnil(L);
  else if (!push_known(L, t)) {
    Box *b = l_new_box(L);
    b->t = pl_retain(t);
    l_remember_box(L, -1);
  }
  return 1;
}

int l_push_grad(lua_State *L, int i) {
  i = lua_absindex(L, i);
  PlTensor *g = pl_grad(l_box(L, i)->t);
  if (!g) lua_pushnil(L);
  else if (!push_known(L, g)) {
    Box *b = l_new_box(L); /* may run a finalizer that assigns another gradient: look again */
    b->t = pl_grad(l_box(L, i)->t);
    if (b->t) pl_retain(b->t);
    if (b->t && push_known(L, b->t)) return 1;
    if (b->t) l_remember_box(L, -1);
    else lua_pushnil(L);
  }
  return 1;
}

PlTensor *l_self(lua_State *L, const char *fn) {
  Box *b = l_box(L, 1);
  if (!b) {
    l_error(L, "%s: argument #1 must be a tensor, got %s; call it as x:%s()", fn, l_typename(L, 1), fn);
    return NULL;
  }
  if (!b->t) l_error(L, "%s: this tensor was freed", fn);
  return b->t;
}

PlTensor *l_concrete(lua_State *L, PlTensor *t, const char *fn) {
  if (PL_UNLIKELY(t->flags & PL_T_BATCHED))
    l_error(L, "%s: %s stands for many tensors inside vmap, which differ; use tensor operations, such as T.where", fn, pl_desc_text(&t->a));
  if (PL_UNLIKELY(t->a.symbolic))
    l_error_as(L, PL_ERR_TRACE,
               "%s: %s is symbolic: it has no values until its graph runs; make it an output and read what run returns "
               "(in T.jit: return it, and decide outside)",
               fn, pl_desc_text(&t->a));
  if (PL_UNLIKELY(pl_state.trace != NULL))
    l_error_as(L, PL_ERR_TRACE,
               "%s: %s is read while a function is traced: it has no values that would stay; read it outside and pass "
               "the number as an argument",
               fn, pl_desc_text(&t->a));
  return t;
}

PlTensor *l_check_tensor(lua_State *L, int i) {
  Box *b = l_box(L, i);
  if (b && b->t) return b->t;
  lua_Debug ar;
  const char *name = lua_getstack(L, 0, &ar) && lua_getinfo(L, "n", &ar) ? ar.name : NULL;
  const char *colon = name ? ": " : "";
  if (!name) name = "";
  if (b) l_error(L, "%s%sargument %d: this tensor was freed", name, colon, i);
  l_error(L, "%s%sargument %d: a tensor expected, got %s", name, colon, i, l_typename(L, i));
  return NULL;
}

void l_add_methods(lua_State *L, const luaL_Reg *regs) {
  l_box_metatable(L);
  lua_getfield(L, -1, "methods");
  luaL_setfuncs(L, regs, 0);
  lua_pop(L, 2);
}
