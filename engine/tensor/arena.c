/* SPDX-License-Identifier: MIT
 * See arena.h. A place is the free extents from one on that suffice; the best needs the fewest fresh pages, and of several
 * such the one in the shortest run of free extents, so that long runs stay. */
#include "engine/tensor/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

static bool begin(PlArena *a, size_t room) {
  const size_t size = room & ~(size_t)(HUGE_PAGE - 1);
  PlExtent *part = size ? malloc(64 * sizeof *part) : NULL;
  if (!part) return false;
  char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    free(part);
    return false;
  }
  const size_t skip = (size_t)(-(uintptr_t)p & (HUGE_PAGE - 1));
  if (skip) munmap(p, skip);
  if (skip != HUGE_PAGE) munmap(p + skip + size, HUGE_PAGE - skip);
  *a = (PlArena){.base = p + skip, .size = size, .part = part, .n = 1, .room = 64};
  part[0] = (PlExtent){.size = size, .absent = true};
#ifdef MADV_HUGEPAGE
  madvise(a->base, size, MADV_HUGEPAGE);
#endif
  return true;
}

void pl_arena_end(PlArena *a) {
  if (!a->base || a->nused) return;
  munmap(a->base, a->size);
  free(a->part);
  *a = (PlArena){0};
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

static void erase(PlArena *a, int i, int k) {
  if (k <= 0) return;
  memmove(&a->part[i], &a->part[i + k], (size_t)(a->n - i - k) * sizeof *a->part);
  a->n -= k;
}

/* Room for two more. */
static bool grow(PlArena *a) {
  if (a->n + 2 <= a->room) return true;
  PlExtent *m = realloc(a->part, 2 * (size_t)a->room * sizeof *m);
  if (!m) return false;
  a->part = m;
  a->room *= 2;
  return true;
}

/* Cuts extent i after `size` bytes; there is room for one more. */
static void cut(PlArena *a, int i, size_t size) {
  PlExtent *e = &a->part[i];
  memmove(e + 1, e, (size_t)(a->n - i) * sizeof *e);
  e->size = size;
  e[1].at += size;
  e[1].size -= size;
  a->n++;
}

static bool alike(const PlExtent *x, const PlExtent *y) { return !x->used && !y->used && x->absent == y->absent; }

/* One extent of i and those of its neighbours that are like it. */
static void join(PlArena *a, int i) {
  if (i + 1 < a->n && alike(&a->part[i], &a->part[i + 1])) {
    a->part[i].size += a->part[i + 1].size;
    erase(a, i + 1, 1);
  }
  if (i > 0 && alike(&a->part[i - 1], &a->part[i])) {
    a->part[i - 1].size += a->part[i].size;
    erase(a, i, 1);
  }
}

/* ---- places ------------------------------------------------------------------------------------------------------- */

/* Bytes without pages of the first `size` bytes from extent i on; SIZE_MAX: they are not all free. */
static size_t fresh_from(const PlArena *a, int i, size_t size) {
  size_t fresh = 0;
  for (; i < a->n && !a->part[i].used; i++) {
    const size_t here = a->part[i].size < size ? a->part[i].size : size;
    if (a->part[i].absent) fresh += here;
    size -= here;
    if (!size) return fresh;
  }
  return SIZE_MAX;
}

static int best_place(const PlArena *a, size_t size) {
  int best = -1;
  size_t least = SIZE_MAX, shortest = 0;
  for (int i = 0, next; i < a->n; i = next + 1) {
    size_t run = 0;
    for (next = i; next < a->n && !a->part[next].used; next++) run += a->part[next].size;
    for (int k = i; k < next; k++) {
      const size_t fresh = fresh_from(a, k, size);
      if (fresh == SIZE_MAX || fresh > least || (fresh == least && run >= shortest)) continue;
      best = k;
      least = fresh;
      shortest = run;
    }
  }
  return best;
}

void *pl_arena_take(PlArena *a, size_t size, size_t room) {
  if (!a->base && !begin(a, room)) return NULL;
  if (!grow(a)) return NULL;
  const int i = best_place(a, size);
  if (i < 0) return NULL;
  size_t left = size;
  int k = i;
  for (;; k++) {
    PlExtent *e = &a->part[k];
    if (e->size > left) cut(a, k, left);
    if (!a->part[k].absent) a->idle -= (int64_t)a->part[k].size;
    left -= a->part[k].size;
    if (!left) break;
  }
  a->part[i].size = size;
  a->part[i].used = true;
  a->part[i].absent = false;
  erase(a, i + 1, k - i);
  a->nused++;
  return a->base + a->part[i].at;
}

void pl_arena_give(PlArena *a, void *p) {
  const size_t at = (size_t)((char *)p - a->base);
  int low = 0, high = a->n - 1;
  while (low < high) {
    const int mid = low + (high - low + 1) / 2;
    if (a->part[mid].at <= at) low = mid;
    else high = mid - 1;
  }
  a->part[low].used = false;
  a->idle += (int64_t)a->part[low].size;
  a->nused--;
  join(a, low);
}

/* ---- giving back --------------------------------------------------------------------------------------------------- */

/* The free extent with the fewest whole huge pages: what is least likely to serve. */
static int least_useful(const PlArena *a, size_t *from, size_t *to) {
  int best = -1;
  for (int i = 0; i < a->n; i++) {
    const PlExtent *e = &a->part[i];
    if (e->used || e->absent) continue;
    const size_t b = (e->at + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1), c = (e->at + e->size) & ~(size_t)(HUGE_PAGE - 1);
    if (b >= c || (best >= 0 && c - b >= *to - *from)) continue;
    best = i;
    *from = b;
    *to = c;
  }
  return best;
}

void pl_arena_trim(PlArena *a, int64_t keep) {
  size_t from = 0, to = 0;
  while (a->idle > keep) {
    int i = least_useful(a, &from, &to);
    if (i < 0 || !grow(a)) return;
    const size_t excess = ((size_t)(a->idle - keep) + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
    if (to - from > excess) from = to - excess;
    madvise(a->base + from, to - from, MADV_DONTNEED);
    a->idle -= (int64_t)(to - from);
    if (a->part[i].at + a->part[i].size > to) cut(a, i, to - a->part[i].at);
    if (a->part[i].at < from) {
      cut(a, i, from - a->part[i].at);
      i++;
    }
    a->part[i].absent = true;
    join(a, i);
  }
}
