/* SPDX-License-Identifier: MIT
 * Buffers with lifetimes into one arena (dynamic storage allocation). Several orders are tried and the smallest arena
 * wins: in order of birth with best fit, which is linear in practice, and, where there are not too many buffers, by size
 * and by lifetime into the tightest gap. Most of the time one of them meets the lower bound: what is alive at once. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/plan/plan.h"

enum { SLOW_LIMIT = 3000 }; /* quadratic orders up to here */

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* ---- sorting (stable order by key, ties by birth, then as given) ------------------------------------------- */

typedef struct Item {
  int64_t key;
  int32_t i;
} Item;

static int compare(const void *a, const void *b) {
  const Item *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->i < y->i ? -1 : x->i > y->i;
}

typedef enum Order { BY_BIRTH, BY_DEATH, BY_SIZE, BY_LIFETIME, BY_AREA, NORDERS } Order;

static void sort(int32_t n, PlBuffer *const *b, Order by, Item *items) {
  for (int32_t i = 0; i < n; i++) {
    int64_t life = (int64_t)b[i]->death - b[i]->birth + 1;
    items[i].i = i;
    items[i].key = by == BY_BIRTH      ? b[i]->birth
                   : by == BY_DEATH    ? b[i]->death
                   : by == BY_SIZE     ? -b[i]->bytes
                   : by == BY_LIFETIME ? -life
                                       : -(b[i]->bytes / 64) * life;
  }
  qsort(items, (size_t)n, sizeof *items, compare);
}

/* ---- lower bound ------------------------------------------------------------------------------------------- */

static int64_t most_alive(int32_t n, PlBuffer *const *b, const Item *birth, const Item *death) {
  int64_t now = 0, most = 0;
  for (int32_t i = 0, d = 0; i < n; i++) {
    const PlBuffer *x = b[birth[i].i];
    while (d < n && b[death[d].i]->death < x->birth) now -= b[death[d++].i]->bytes;
    now += x->bytes;
    if (now > most) most = now;
  }
  return most;
}

/* ---- in order of birth: a heap of free blocks -------------------------------------------------------------- */

typedef struct Gap {
  int64_t at, size;
} Gap;

typedef struct Heap {
  Gap *gap; /* by address */
  int32_t n;
  int64_t top; /* everything above is free */
} Heap;

static int64_t heap_take(Heap *h, int64_t size) {
  int32_t best = -1;
  for (int32_t i = 0; i < h->n; i++)
    if (h->gap[i].size >= size && (best < 0 || h->gap[i].size < h->gap[best].size)) best = i;
  if (best >= 0) {
    int64_t at = h->gap[best].at;
    h->gap[best].at += size;
    h->gap[best].size -= size;
    if (h->gap[best].size == 0) {
      memmove(&h->gap[best], &h->gap[best + 1], (size_t)(h->n - best - 1) * sizeof *h->gap);
      h->n--;
    }
    return at;
  }
  int64_t at = h->top; /* a gap that ends at the top grows */
  if (h->n && h->gap[h->n - 1].at + h->gap[h->n - 1].size == h->top) at = h->gap[--h->n].at;
  h->top = at + size;
  return at;
}

static void heap_give(Heap *h, int64_t at, int64_t size) {
  int32_t lo = 0, hi = h->n;
  while (lo < hi) {
    int32_t mid = (lo + hi) / 2;
    if (h->gap[mid].at < at) lo = mid + 1;
    else hi = mid;
  }
  bool left = lo > 0 && h->gap[lo - 1].at + h->gap[lo - 1].size == at;
  bool right = lo < h->n && at + size == h->gap[lo].at;
  if (left && right) {
    h->gap[lo - 1].size += size + h->gap[lo].size;
    memmove(&h->gap[lo], &h->gap[lo + 1], (size_t)(h->n - lo - 1) * sizeof *h->gap);
    h->n--;
  } else if (left) h->gap[lo - 1].size += size;
  else if (right) {
    h->gap[lo].at = at;
    h->gap[lo].size += size;
  } else {
    memmove(&h->gap[lo + 1], &h->gap[lo], (size_t)(h->n - lo) * sizeof *h->gap);
    h->gap[lo] = (Gap){at, size};
    h->n++;
  }
}

static int64_t by_birth(int32_t n, PlBuffer *const *b, const Item *birth, const Item *death, Heap *h, int64_t *at) {
  int64_t most = 0;
  h->n = 0;
  h->top = 0;
  for (int32_t i = 0, d = 0; i < n; i++) {
    const PlBuffer *x = b[birth[i].i];
    for (; d < n && b[death[d].i]->death < x->birth; d++) heap_give(h, at[death[d].i], b[death[d].i]->bytes);
    at[birth[i].i] = heap_take(h, x->bytes);
    if (h->top > most) most = h->top;
  }
  return most;
}

/* ---- by any order into the tightest gap -------------------------------------------------------------------- */

static int by_address(const void *a, const void *b) {
  const Gap *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

static PlStatus by_order(int32_t n, PlBuffer *const *b, const Item *order, Gap *busy, int64_t *at, int64_t *size) {
  int64_t top = 0;
  for (int32_t j = 0; j < n; j++) {
    PL_TRY(plk_poll());
    const PlBuffer *x = b[order[j].i];
    int32_t m = 0;
    for (int32_t k = 0; k < j; k++) {
      const PlBuffer *y = b[order[k].i];
      if (y->birth <= x->death && x->birth <= y->death) busy[m++] = (Gap){at[order[k].i], y->bytes};
    }
    qsort(busy, (size_t)m, sizeof *busy, by_address);
    int64_t best = -1, best_size = INT64_MAX, end = 0;
    for (int32_t k = 0; k < m; k++) {
      if (busy[k].at > end && busy[k].at - end >= x->bytes && busy[k].at - end < best_size) {
        best = end;
        best_size = busy[k].at - end;
      }
      if (busy[k].at + busy[k].size > end) end = busy[k].at + busy[k].size;
    }
    at[order[j].i] = best >= 0 ? best : end;
    if (at[order[j].i] + x->bytes > top) top = at[order[j].i] + x->bytes;
  }
  *size = top;
  return PL_OK;
}

typedef struct Room {
  Item *birth, *death, *order;
  Gap *gaps;
  int64_t *at, *best;
} Room;

static void keep(int32_t n, Room *r, int64_t got, int64_t *size) {
  if (got >= *size) return;
  *size = got;
  memcpy(r->best, r->at, (size_t)n * sizeof *r->at);
}

PlStatus pl_arena_place(int32_t n, PlBuffer *const *b, int64_t *size, int64_t *lower_bound) {
  *size = *lower_bound = 0;
  if (n == 0) return PL_OK;
  size_t k = (size_t)n + 1;
  Room r = {.birth = malloc(3 * k * sizeof(Item)), .gaps = malloc(k * sizeof(Gap)), .at = malloc(2 * k * sizeof(int64_t))};
  PlStatus s = r.birth && r.gaps && r.at ? PL_OK : no_memory();
  if (s == PL_OK) {
    r.death = r.birth + k;
    r.order = r.death + k;
    r.best = r.at + k;
    sort(n, b, BY_BIRTH, r.birth);
    sort(n, b, BY_DEATH, r.death);
    *lower_bound = most_alive(n, b, r.birth, r.death);
    Heap h = {.gap = r.gaps};
    *size = INT64_MAX;
    keep(n, &r, by_birth(n, b, r.birth, r.death, &h, r.at), size);
    for (int by = BY_SIZE; by < NORDERS && n <= SLOW_LIMIT && *size > *lower_bound && s == PL_OK; by++) {
      int64_t got;
      sort(n, b, (Order)by, r.order);
      s = by_order(n, b, r.order, r.gaps, r.at, &got);
      if (s == PL_OK) keep(n, &r, got, size);
    }
    for (int32_t i = 0; i < n; i++) b[i]->at = r.best[i];
  }
  free(r.birth);
  free(r.gaps);
  free(r.at);
  return s;
}
