/* SPDX-License-Identifier: MIT
 * Lua objects that the engine's nodes depend on: closures of rules, hooks and callbacks, and what they keep. They are in
 * one strong table of the state, so a history that backward may walk has what it needs, whenever Lua's collector runs. A
 * cycle through a node and such an object is found by tracing (cycles.c). */
#ifndef PL_BINDINGS_COLLECTOR_KEPT_H
#define PL_BINDINGS_COLLECTOR_KEPT_H

#include "bindings/core/lib.h"

/* One a state. Whoever keeps the pointer holds a reference: nodes may die after their state. */
typedef struct Kept {
  size_t refs;
  lua_State *main; /* NULL: the state is closed */
  int table;       /* reference of the table in the registry */
  int runner;      /* likewise of what runs rules of T.custom (autograd/custom_backward.c); 0: not made yet */
  int stayed;      /* places in use after the last tracing */
  int next;        /* places 1 … next were in use once */
  int nfree, nleft, room;
  int swept; /* since cycles were last looked for */
  int *list; /* free places from the front, those that are to be emptied from the back */
} Kept;

Kept *l_kept(lua_State *L); /* the state's, made at first use; raises when memory is out or the state closes */
void l_kept_release(Kept *k);
void l_kept_push_table(lua_State *L, const Kept *k);
int l_kept_put(lua_State *L, Kept *k);                          /* the value on top, popped, gets a place; raises when memory is out */
int l_kept_put_in(lua_State *L, Kept *k, int table, int value); /* the same with the table at hand; pops nothing */
void l_kept_push(lua_State *L, const Kept *k, int place);
/* For destructors, also inside Lua's collector: the place is emptied at the next chance, at the latest in the next
 * collection. */
void l_kept_leave(Kept *k, int place);
void l_kept_sweep(lua_State *L, Kept *k); /* that chance */
/* Does the object's state run here? */
static inline bool l_kept_here(lua_State *L, const Kept *k) {
  return k->main && (L == k->main || lua_topointer(L, LUA_REGISTRYINDEX) == lua_topointer(k->main, LUA_REGISTRYINDEX));
}
int l_kept_count(const Kept *k); /* places in use */

/* Empties the places whose objects only cycles through nodes keep alive (cycles.c). Returns how many; raises nothing. */
int l_cycles_cut(lua_State *L, Kept *k);
/* The same if the state has such objects at all, and empties the places that were left. Returns how many in all. */
int l_cycles_cut_any(lua_State *L);

#endif
