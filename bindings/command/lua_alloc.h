/* SPDX-License-Identifier: MIT
 * The allocator of the perilune command's Lua objects: size classes for small ones, malloc above. */
#ifndef PL_BINDINGS_COMMAND_LUA_ALLOC_H
#define PL_BINDINGS_COMMAND_LUA_ALLOC_H

#include <stddef.h>

enum { LUA_ALLOC_MAX = 256, LUA_ALLOC_STEP = 16, LUA_ALLOC_CLASSES = LUA_ALLOC_MAX / LUA_ALLOC_STEP };

/* What frees the tensor of a dead box: the engine fills this in, and the allocator calls `release` when Lua
 * gives back a block of box_size bytes that ends in magic. Such objects need no finalizer, which would cost
 * them a second collection cycle and a protected call each. */
typedef struct LuaRelease {
  size_t box_size; /* of the whole object as Lua allocates it; 0: not in use */
  unsigned long long magic;
  void (*release)(void *tensor);
} LuaRelease;

/* One per Lua state, for that state's thread alone. Zero-initialize, then give it to lua_newstate as the
 * user pointer of lua_alloc; clear it after lua_close. */
typedef struct LuaArena {
  void *free[LUA_ALLOC_CLASSES]; /* free blocks of (class + 1) * 16 bytes, linked by their first word */
  char *at, *end;                /* the uncut rest of the newest slab */
  void *slabs;                   /* all slabs, linked by their first word */
  LuaRelease boxes;
} LuaArena;

/* lua_Alloc's contract; arena is a LuaArena. */
void *lua_alloc(void *arena, void *p, size_t old_size, size_t new_size);
void lua_arena_clear(LuaArena *arena);

#endif
