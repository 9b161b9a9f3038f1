/* SPDX-License-Identifier: MIT
 * The limit, and who gives memory up for it: of what can be computed again, the value with the least cost for each byte
 * and for the time since its last use (Kirisame et al., Dynamic Tensor Rematerialization, 2021). Of that time the root is
 * taken: measured on residual nets, cheap values then go before dear ones that are old. */
#include <math.h>
#include <stdlib.h>

#include "engine/remat/remat_internal.h"

/* The address of evicted memory has this bit: no processor maps such addresses, so an access that asks nobody stops, and
 * places of views can still be compared and computed. */
#define AWAY ((uintptr_t)1 << 53)

/* How many candidates are looked at, from the least recently used on; how much dearer a gradient is than it looks: the
 * walk frees what it was computed from. */
enum { LOOK_AT = 1024, WALKED = 1000 };

void remat_evict(PlValue *v) {
  PlRematState *rs = remat();
  PlStorage *s = v->storage;
  rs->stats.evictions++;
  v->chain = remat_estimate(v);
  if (v->held) {
    void *data = s->data;
    remat_let_go(v);
    pl_block_free(data);
    pl_pool_put(s->block, s->piece);
    rs->stats.dead++;
    return;
  }
  remat_lru_remove(v);
  pl_block_free(s->data);
  v->evicted = true;
  remat_move(v, (void *)((uintptr_t)s->data | AWAY));
  v->next = &rs->away;
  v->prev = rs->away.prev;
  v->prev->next = v;
  rs->away.prev = v;
  rs->stats.evicted++;
  rs->stats.evicted_bytes += (int64_t)v->bytes;
}

static PlValue *choose(PlRematState *rs) {
  PlValue *best = NULL;
  double least = 0;
  int looked = 0;
  for (PlValue *v = rs->lru.next; v != &rs->lru && looked < LOOK_AT; v = v->next) {
    if (v->pins || v->bytes < rs->worth) continue;
    looked++;
    const double stale = sqrt(rs->clock - v->used + 1000);
    const double score = remat_estimate(v) / ((double)v->bytes * stale) * (v->walked ? WALKED : 1);
    if (best && score >= least) continue;
    best = v;
    least = score;
  }
  return best;
}

static int64_t in_use(void) { return pl_live_bytes(); }

static bool shrink_to(PlRematState *rs, int64_t bytes) {
  while (in_use() > bytes) {
    PlValue *v = choose(rs);
    if (!v) return false;
    remat_evict(v);
  }
  return true;
}

PlStatus pl_remat_room(size_t n) {
  PlRematState *rs = remat();
  if ((uint64_t)n <= (uint64_t)rs->limit && shrink_to(rs, rs->limit - (int64_t)n)) return PL_OK;
  PL_FAIL(PL_ERR_OOM,
          "%s%sthe memory limit of %lld bytes cannot be met: %zu more are needed, and %lld are in use that cannot "
          "be computed again or are being read",
          rs->op ? rs->op : "", rs->op ? ": " : "", (long long)rs->limit, n, (long long)in_use());
}

void pl_remat_evict_all(bool always) {
  PlRematState *rs = remat();
  if (!rs) return;
  rs->always = always;
  for (PlValue *v = rs->lru.next, *next; v != &rs->lru; v = next) {
    next = v->next;
    if (!v->pins) remat_evict(v);
  }
}

/* ---- the limit ---------------------------------------------------------------------------------------------- */

static PlStatus begin(int64_t bytes) {
  PlRematState *rs = calloc(1, sizeof *rs);
  if (!rs) PL_FAIL(PL_ERR_OOM, "memory_limit: out of memory");
  rs->lru.next = rs->lru.prev = &rs->lru;
  rs->away.next = rs->away.prev = &rs->away;
  rs->limit = bytes;
  pl_state.remat = rs;
  return PL_OK;
}

/* Everything live is computed, then all notes go. */
static PlStatus end(PlRematState *rs) {
  const int64_t limit = rs->limit;
  rs->limit = INT64_MAX;
  while (rs->away.next != &rs->away) {
    PlStatus s = remat_bring(rs->away.next);
    if (s == PL_OK) continue;
    rs->limit = limit;
    return s;
  }
  while (rs->lru.next != &rs->lru) {
    PlValue *v = rs->lru.next;
    remat_drop_recipe(v);
  }
  pl_state.remat = NULL;
  free(rs);
  return PL_OK;
}

PlStatus pl_remat_limit(int64_t bytes) {
  PlRematState *rs = remat();
  if (bytes < 0) return rs ? end(rs) : PL_OK;
  const bool fresh = !rs;
  if (fresh) {
    PL_TRY(begin(bytes));
    rs = remat();
  }
  const int64_t was = rs->limit;
  rs->limit = bytes;
  rs->worth = (size_t)bytes >> 16;
  if (shrink_to(rs, bytes)) return PL_OK;
  PlStatus s = pl_fail(PL_ERR_OOM, "memory_limit: %lld bytes cannot be met: %lld are in use that cannot be computed again",
                       (long long)bytes, (long long)in_use());
  rs->limit = was;
  rs->worth = (size_t)was >> 16;
  if (fresh) {
    pl_state.remat = NULL;
    free(rs);
  }
  return s;
}

int64_t pl_remat_limit_get(void) { return remat() ? remat()->limit : -1; }

void pl_remat_stats(PlRematStats *out) { *out = remat() ? remat()->stats : (PlRematStats){0}; }
