/* SPDX-License-Identifier: MIT
 * What the two files of process groups share. */
#ifndef PL_BINDINGS_DISTRIBUTED_PROCESS_GROUP_H
#define PL_BINDINGS_DISTRIBUTED_PROCESS_GROUP_H

#include "bindings/core/lib.h"
#include "engine/distributed/process_group.h"

PlGroupKind l_group_kind(lua_State *L, int at); /* by name */
PlGroupOp l_group_op(lua_State *L, int at);     /* nil: the sum */
/* The call that the arguments 1 … 6 (name, kind, -, src, dst, options) describe, on a group of n; leaves values on the stack. */
void l_group_call(lua_State *L, PlGroupCall *c, int n, PlTensor **src, PlTensor **dst);
void l_group_device_register(lua_State *L); /* the table of functions on top */

#endif
