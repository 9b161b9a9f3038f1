/* SPDX-License-Identifier: MIT
 * The limit, and who gives memory up for it: of what can be computed again, the value with the least cost for each byte
 * and for the time since its last use (Kirisame et al., Dynamic Tensor Rematerialization, 2021). Of that time the root is
 * taken: measured on residual nets, cheap values then go before costly ones that are old. */
#include <math.h>
#include <stdlib.h>

#include "engine/grad/node.h"
#include "engine/remat/remat_internal.h"

/* The address of evicted memory has this bit: no processor maps such addresses, so an access that asks nobody stops, and
 * places of views can still be compared and computed. */
#define AWAY ((uintptr_t)1 << 53)

/* How many candidates are looked at, from the least recently used on. */
enum { LOOK_AT = 1024 };

void remat_evict(PlValue *v) {
  PlRematState *rs = remat();
  PlStorage *s = v->storage;
  rs->stats.evictions++;
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
    const double score = remat_estimate(v) / ((double)v->bytes * stale);
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

/* Who has the memory that is left, where nothing can be evicted any more. */
typedef struct Holders {
  int64_t leaves, grads, read;
} Holders;

static Holders holders(const PlRematState *rs) {
  const PlKey *k = pl_key_ambient();
  Holders h = {0};
  for (const PlNode *n = k->tape.next; n != &k->tape; n = n->next) {
    if (n->kind != PL_NODE_LEAF) continue;
    if (n->u.target && n->u.target->a.device == PL_CPU) h.leaves += (int64_t)n->u.target->storage->nbytes;
    if (n->grad && n->grad->a.device == PL_CPU) h.grads += (int64_t)n->grad->storage->nbytes;
  }
  for (const PlValue *v = rs->lru.next; v != &rs->lru; v = v->next)
    if (v->pins) h.read += (int64_t)v->bytes;
  return h;
}

PlStatus pl_remat_room(size_t n) {
  PlRematState *rs = remat();
  if ((uint64_t)n <= (uint64_t)rs->limit) {
    const int64_t room = rs->limit - (int64_t)n;
    if (shrink_to(rs, room - pl_scratch_of_others()) || in_use() <= room) return PL_OK;
  }
  const Holders h = holders(rs);
  const int64_t rest = in_use() - h.leaves - h.grads - h.read;
  PL_FAIL(PL_ERR_OOM,
          "%s%sthe memory limit of %lld bytes cannot be met: %zu more are needed, and nothing more can be evicted of the %lld in "
          "use: leaves that require gradients have %lld, their .grad %lld, results that this op is computed from %lld, and all "
          "else %lld (optimizer states, gradients on their way, data, what was made before the limit or written through views)",
          rs->op ? rs->op : "", rs->op ? ": " : "", (long long)rs->limit, n, (long long)in_use(), (long long)h.leaves, (long long)h.grads,
          (long long)h.read, (long long)(rest > 0 ? rest : 0));
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
  pl_set_remat(rs);
  pl_alloc_limited(true);
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
  pl_set_remat(NULL);
  pl_alloc_limited(false);
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
  pl_scratch_of_others_mark();
  if (shrink_to(rs, bytes)) return PL_OK;
  PlStatus s = pl_fail(PL_ERR_OOM, "memory_limit: %lld bytes cannot be met: %lld are in use that cannot be computed again",
                       (long long)bytes, (long long)in_use());
  rs->limit = was;
  rs->worth = (size_t)was >> 16;
  if (fresh) {
    pl_set_remat(NULL);
    pl_alloc_limited(false);
    free(rs);
  }
  return s;
}

bool pl_remat_is_tight(void) {
  const PlRematState *rs = remat();
  return rs && (rs->stats.evicted || in_use() > rs->limit / 4 * 3);
}

int64_t pl_remat_limit_get(void) { return remat() ? remat()->limit : -1; }

void pl_remat_stats(PlRematStats *out) { *out = remat() ? remat()->stats : (PlRematStats){0}; }
