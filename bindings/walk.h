/* SPDX-License-Identifier: MIT
 * Entering the engine's walks from Lua, and what hooks and keys share. */
#ifndef PL_BINDINGS_WALK_H
#define PL_BINDINGS_WALK_H

#include "bindings/lib.h"

/* Rules and callbacks need a state to run in: makes L the running one, returns the outer one to put back. */
lua_State *l_enter_walk(lua_State *L);
/* Around the walk of a backward() that accumulates; the second runs what core.after_backward was given, and may raise. */
void l_backward_begins(void);
void l_backward_ends(lua_State *L, bool ok);
/* What l_default_anchor gives: pushed to be put back after a walk; set from the list at `list`, or the tensor at `one`. */
int l_keep_anchor(lua_State *L);
void l_restore_anchor(lua_State *L, int kept);
void l_push_default_anchor(lua_State *L);
/* After a recording backward of y: what l_default_anchor gives goes to the .grad of every leaf that has rules written in
 * Lua in its gradient's history. */
void l_anchor_leaves(lua_State *L, const PlTensor *y);
void l_set_anchor(lua_State *L, int list, int one);
/* Tensors of a list (or one tensor) at `at` into `out`; nil entries allowed if `holes`; n_want < 0: any count. */
int l_tensor_list(lua_State *L, int at, const char *fn, const char *arg, int n_want, bool holes, PlTensor ***out);

/* A hook finds its function in the user value of the box it was registered on, a callback in that of its key. */
typedef struct HookData {
  PlKey *key;       /* callbacks: whose */
  PlTensor *tensor; /* hooks: on which handle (weak) */
  lua_Integer index;
} HookData;

/* A key's callback, found through the weak table of keys under l_keys_key. */
PlStatus l_callback_call(void *ud, PlTensor *grad, PlTensor **replaced);
extern const char l_keys_key;
int l_register_hook(lua_State *L);       /* x:register_hook */
void l_key_register(lua_State *L);       /* module table on top */

#endif
