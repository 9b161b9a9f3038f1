/* SPDX-License-Identifier: MIT
 * Size-class allocator behind the perilune command's lua_State. Most Lua objects (boxes of tensors,
 * short strings, closures, small tables) have at most 256 bytes and live briefly: a free list per 16-byte
 * class serves them in a few instructions. Slabs go back to the system when the state is closed. */
#include "bindings/command/lua_alloc.h"

#include <stdlib.h>
#include <string.h>

/* A box ends with its tensor and the magic number; both are wiped, so that the next object in this block cannot be
 * taken for one. Other objects of a box's size are looked at, too: valgrind sees that their last bytes may never have been
 * written. */
static void release_box(const LuaRelease *r, void *p, size_t size) {
  struct {
    void *tensor;
    unsigned long long magic;
  } end;
  char *at = (char *)p + size - sizeof end;
  memcpy(&end, at, sizeof end);
  if (end.magic != r->magic) return;
  memset(at, 0, sizeof end);
  if (end.tensor) r->release(end.tensor);
}

#ifdef PL_ASAN

/* Every object is a block of its own, so the sanitizer sees each overrun and use after free. */
void *lua_alloc(void *arena, void *p, size_t old_size, size_t new_size) {
  LuaArena *a = arena;
  if (new_size) return realloc(p, new_size);
  if (p && old_size == a->boxes.box_size) release_box(&a->boxes, p, old_size);
  free(p);
  return NULL;
}

void lua_arena_clear(LuaArena *arena) { (void)arena; }

#else

enum { SLAB_BYTES = 64 * 1024, SLAB_HEADER = 16 };
_Static_assert(SLAB_HEADER >= sizeof(void *), "a slab's first word links to the next");
_Static_assert((int)SLAB_HEADER % (int)LUA_ALLOC_STEP == 0, "blocks keep malloc's alignment");

/* 1 … 256 bytes → 0 … 15 */
static size_t class_of(size_t size) { return (size - 1) / LUA_ALLOC_STEP; }

static void put(LuaArena *a, size_t cls, void *p) {
  memcpy(p, &a->free[cls], sizeof(void *));
  a->free[cls] = p;
}

/* Makes a fresh slab the newest one. What the last one had left is a block of one class: every cut is a
 * multiple of 16 bytes and the rest is smaller than the request, which is at most 256. */
static int add_slab(LuaArena *a) {
  char *slab = malloc(SLAB_BYTES);
  if (!slab) return 0;
  if (a->at < a->end) put(a, class_of((size_t)(a->end - a->at)), a->at);
  memcpy(slab, &a->slabs, sizeof(void *));
  a->slabs = slab;
  a->at = slab + SLAB_HEADER;
  a->end = slab + SLAB_BYTES;
  return 1;
}

/* Every slab is used up, or the free list of this class is empty. Apart, so that the usual way saves no registers. */
__attribute__((noinline)) static void *take_new(LuaArena *a, size_t cls) {
  size_t bytes = (cls + 1) * LUA_ALLOC_STEP;
  if ((size_t)(a->end - a->at) < bytes && !add_slab(a)) return NULL;
  void *p = a->at;
  a->at += bytes;
  return p;
}

static inline void *get(LuaArena *a, size_t size) {
  if (__builtin_expect(size > LUA_ALLOC_MAX, 0)) return malloc(size);
  const size_t cls = class_of(size);
  void *p = a->free[cls];
  if (__builtin_expect(!p, 0)) return take_new(a, cls);
  memcpy(&a->free[cls], p, sizeof(void *));
  return p;
}

static inline void give(LuaArena *a, void *p, size_t size) {
  if (size <= LUA_ALLOC_MAX) put(a, class_of(size), p);
  else free(p);
}

__attribute__((noinline)) static void *resize(LuaArena *a, void *p, size_t old_size, size_t new_size) {
  if (old_size > LUA_ALLOC_MAX && new_size > LUA_ALLOC_MAX) return realloc(p, new_size);
  if (old_size <= LUA_ALLOC_MAX && new_size <= LUA_ALLOC_MAX && class_of(old_size) == class_of(new_size)) return p;
  void *q = get(a, new_size);
  if (!q) return NULL;
  memcpy(q, p, old_size < new_size ? old_size : new_size);
  give(a, p, old_size);
  return q;
}

void *lua_alloc(void *arena, void *p, size_t old_size, size_t new_size) {
  LuaArena *a = arena;
  if (!p) return new_size ? get(a, new_size) : NULL; /* old_size is then a type tag */
  if (new_size) return resize(a, p, old_size, new_size);
  if (old_size == a->boxes.box_size) release_box(&a->boxes, p, old_size);
  give(a, p, old_size);
  return NULL;
}

void lua_arena_clear(LuaArena *a) {
  for (void *slab = a->slabs, *next; slab; slab = next) {
    memcpy(&next, slab, sizeof(void *));
    free(slab);
  }
  *a = (LuaArena){0};
}

#endif
