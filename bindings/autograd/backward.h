/* SPDX-License-Identifier: MIT
 * Entering the engine's walks from Lua, and what hooks and keys share. */
#ifndef PL_BINDINGS_AUTOGRAD_BACKWARD_H
#define PL_BINDINGS_AUTOGRAD_BACKWARD_H

#include "bindings/collector/kept.h"
#include "bindings/core/lib.h"

/* Rules and callbacks need a state to run in: makes L the running one, returns the outer one to restore. */
lua_State *l_enter_walk(lua_State *L);
/* Around the walk of a backward() that accumulates; the second runs what core.after_backward was given, and may raise. */
void l_backward_begins(void);
void l_backward_ends(lua_State *L, bool ok);
/* Tensors of a list (or one tensor) at `at` into `out`; nil entries allowed if `holes`; n_want < 0: any count. */
int l_tensor_list(lua_State *L, int at, const char *fn, const char *arg, int n_want, bool holes, PlTensor ***out);
/* The gradients of n tensors: a tensor, or a list in which false stands for ones (nil, too, with `holes`). Returns the largest
 * position given, which the caller compares with n; `out` has room for n. */
int l_gradient_list(lua_State *L, int at, const char *fn, const char *arg, int n, bool holes, PlTensor ***out);

/* A hook of that kind without its function; raises when memory is out. */
PlHook *l_hook_new(lua_State *L, PlHookKind kind, const char *fn);
void l_hook_free(PlHook *hook);
PlStatus l_hook_keep(lua_State *L, PlHook *hook); /* what it runs, on top: popped. A callback: {function, tensor} */
bool l_callable(lua_State *L, int at);            /* a function, or an object with __call */
int l_register_accumulated_hook(lua_State *L);
int l_register_retained_hook(lua_State *L);
int l_register_hook(lua_State *L); /* x:register_hook */
void l_key_register(lua_State *L); /* module table on top */

#endif
