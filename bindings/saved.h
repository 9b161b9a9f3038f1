/* SPDX-License-Identifier: MIT
 * Tensors that ctx:save keeps, as T.saved_tensors wants them (saved.c). */
#ifndef PL_BINDINGS_SAVED_H
#define PL_BINDINGS_SAVED_H

#include "bindings/lib.h"

/* Inside T.saved_tensors: replaces the tensor at `at` by what stands for it. Raises what pack raises. */
int l_saved_pack(lua_State *L, int at);
/* Is the value at `at` one of these? */
bool l_is_packed(lua_State *L, int at);
/* Replaces it by the tensor. Raises what unpack raises. */
int l_saved_unpack(lua_State *L, int at);

#endif
