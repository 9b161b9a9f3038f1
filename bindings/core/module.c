/* SPDX-License-Identifier: MIT
 * The module that Lua loads: puts the parts together. `perilune.core` is for perilune's own Lua files. */
#include "bindings/core/lib.h"

/* core.set_home(dir): files below it are perilune's own; errors blame the first frame outside. */
static int set_home(lua_State *L) {
  luaL_checkstring(L, 1);
  lua_settop(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.home");
  return 0;
}

/* core.fail(message): raises at the caller's line, as the engine's errors do. */
static int fail(lua_State *L) { return l_error(L, "%s", luaL_checkstring(L, 1)); }

/* core.metatable(): the tensors' metatable, for methods written in Lua. */
static int metatable(lua_State *L) { return l_box_metatable(L); }

/* core.did_you_mean(word, "a b c") → "; did you mean a?" or "" */
static int did_you_mean(lua_State *L) {
  l_did_you_mean(L, luaL_checkstring(L, 1), luaL_checkstring(L, 2));
  return 1;
}

int luaopen_perilune_engine(lua_State *L) {
  static const luaL_Reg functions[] = {{"set_home", set_home},
                                       {"fail", fail},
                                       {"metatable", metatable},
                                       {"seal", l_seal},
                                       {"did_you_mean", did_you_mean},
                                       {"nearest", l_nearest},
                                       {"in_modules", l_in_modules},
                                       {"same", l_same},
                                       {"speak", l_speak},
                                       {"parameters", l_parameters},
                                       {"is_one_object", l_is_one_object},
                                       {"raised", l_raised},
                                       {"attempt", l_attempt},
                                       {NULL, NULL}};
  lua_newtable(L);
  luaL_setfuncs(L, functions, 0);
  l_errors_register(L);
  l_system_register(L);
  l_ops_register(L);
  l_tensor_register(L);
  l_layout_register(L);
  l_tensor_new_register(L);
  l_device_register(L);
  l_group_register(L);
  l_recurrent_register(L);
  l_index_register(L);
  l_grad_register(L);
  l_autocast_register(L);
  l_custom_register(L);
  l_debug_register(L);
  l_profile_register(L);
  l_tools_register(L);
  l_io_register(L);
  l_reader_register(L);
  l_readline_register(L);
  l_files_register(L);
  l_facts_register(L);
  l_workers_register(L);
  l_graph_register(L);
  l_csv_register(L);
  l_image_register(L);
  l_jit_register(L);
  l_jit_guards_register(L);
  l_characters_register(L);
  l_tokenizer_register(L);
  l_t7_register(L);
  l_pt_register(L);
  l_gguf_register(L);
  l_trainer_register(L);
  l_rebind_register(L);
  l_saved_register(L);
  l_modes_register(L);
  l_remat_register(L);
  l_reclaim_register(L);
  l_collect_test_register(L);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.core"); /* package.loaded may be emptied */
  return 1;
}
