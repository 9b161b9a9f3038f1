/* SPDX-License-Identifier: MIT
 * Large blocks under a limit of memory (engine/remat/). There, what is freed is as a rule of another size than what is
 * wanted next, and giving it back to the system for fresh pages would cost a page fault and a cleared page each time. So
 * these blocks lie side by side in one range of addresses: free neighbours are one place, whose pages stay. Not locked. */
#ifndef PL_ENGINE_TENSOR_ARENA_H
#define PL_ENGINE_TENSOR_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A part of the range; neighbours differ, or are in use. */
typedef struct PlExtent {
  size_t at, size; /* bytes, whole pages */
  bool used;
  bool absent; /* free, and without pages */
} PlExtent;

typedef struct PlArena {
  char *base; /* NULL: there is none */
  size_t size;
  PlExtent *part; /* in the order of addresses */
  int n, room;
  int nused;
  int64_t idle; /* bytes of free extents with pages */
} PlArena;

/* `size` bytes, a multiple of the page; NULL: there is no place. `room` is the size of the range where none is there yet. */
void *pl_arena_take(PlArena *a, size_t size, size_t room);
static inline bool pl_arena_has(const PlArena *a, const void *p) { return a->base && (uintptr_t)p - (uintptr_t)a->base < a->size; }
void pl_arena_give(PlArena *a, void *p);
/* Gives pages back to the system until at most `keep` bytes (and less than a huge page in each place) are idle. */
void pl_arena_trim(PlArena *a, int64_t keep);
/* The range goes, where nothing in it is used. */
void pl_arena_end(PlArena *a);

#endif
