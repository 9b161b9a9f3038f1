/* SPDX-License-Identifier: MIT
 * Recurrent nets by a device's library, for lua/perilune/nn/functional/recurrent.lua: does it compute such a net, and do. */
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/node.h"
#include "engine/ops/names.h"
#include "engine/ops/recurrent/recurrent_net.h"
#include "engine/vmap/vmap.h"
#include "kernels/gemm.h"

/* Arguments at, …: mode, hidden, proj, layers, bidirectional, bias */
static void read_net(lua_State *L, int at, PlDtype dtype, bool train, PlAttrs *a) {
  static const char *const modes[] = {"relu", "tanh", "lstm", "gru", NULL};
  pl_attrs_init(&pl_op_recurrent, a);
  pl_attrs_int(a, PLK_RNN_MODE, luaL_checkoption(L, at, NULL, modes));
  for (int k = PLK_RNN_HIDDEN; k <= PLK_RNN_LAYERS; k++) pl_attrs_int(a, k, luaL_checkinteger(L, at + k));
  for (int k = PLK_RNN_BOTH; k <= PLK_RNN_BIAS; k++) pl_attrs_int(a, k, lua_toboolean(L, at + k));
  pl_attrs_int(a, PLK_RNN_TF32, dtype == PL_F32 && plk_matmul_precision() != PLK_PRECISION_HIGHEST);
  pl_attrs_int(a, PLK_RNN_TRAIN, train);
}

/* core.recurrent_takes(x [S,N,I], dtype, mode, hidden, proj, layers, bidirectional, bias) → boolean */
static int r_takes(lua_State *L) {
  PlTensor *x = l_check_tensor(L, 1);
  if (pl_on_gpu(x->a.device)) l_saw(x, PL_SAW_SHAPE);
  const char *dtype = luaL_checkstring(L, 2);
  PlArray a = x->a;
  a.dtype = (uint8_t)(strcmp(dtype, "f32") == 0    ? PL_F32
                      : strcmp(dtype, "f16") == 0  ? PL_F16
                      : strcmp(dtype, "bf16") == 0 ? PL_BF16
                                                   : PL_F64);
  bool yes = pl_on_gpu(a.device) && a.ndim == 3 && a.dtype != PL_F64 && !pl_state.batch && !pl_is_batched(x);
  if (yes) {
    PlkRecurrent n;
    PlAttrs at;
    read_net(L, 3, (PlDtype)a.dtype, lua_tointeger(L, 5) == 0, &at);
    yes = plk_recurrent_of(&n, &at, &a) && pl_recurrent_takes(a.device, &n);
  }
  lua_pushboolean(L, yes);
  return 1;
}

/* core.recurrent(x, state, w, lengths or nil, mode, hidden, proj, layers, bidirectional, bias) → y, the last states, or nil
 * where a gradient is wanted that there is none of */
static int r_run(lua_State *L) {
  PlTensor *in[4] = {l_check_tensor(L, 1), l_check_tensor(L, 2), l_check_tensor(L, 3), NULL}, *out[PL_MAX_OUT] = {NULL};
  if (!lua_isnil(L, 4)) in[3] = l_check_tensor(L, 4);
  PlAttrs a;
  bool graph = pl_state.trace != NULL;
  for (int i = 0; i < 3; i++) graph |= pl_behind(in[i])->a.symbolic;
  CALL(L, pl_history_current(in, 3));
  const bool train = !pl_state.grad_off && (graph || pl_may_record(in, 3));
  read_net(L, 5, (PlDtype)in[0]->a.dtype, train, &a);
  if (train && pl_attr_i(&a, PLK_RNN_PROJ) != 0) return 0;
  l_collect(L);
  Box *y = l_new_box(L), *state = l_new_box(L);
  CALL(L, l_apply(L, &pl_op_recurrent, in, 4, &a, out));
  y->t = out[0], state->t = out[1];
  pl_tensor_release(out[2]);
  return 2;
}

void l_recurrent_register(lua_State *L) {
  static const luaL_Reg functions[] = {{"recurrent_takes", r_takes}, {"recurrent", r_run}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
