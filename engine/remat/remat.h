/* SPDX-License-Identifier: MIT
 * Rematerialization: eager programs under a limit of memory. While a limit is set, ops note how their results were made;
 * when memory would pass the limit, results that can be computed again give their memory up, and any access brings them
 * back with the same bits. docs/design/rematerialization.md has the reasons. */
#ifndef PL_ENGINE_REMAT_H
#define PL_ENGINE_REMAT_H

#include "engine/call/call.h"
#include "engine/call/thread_state.h"

typedef struct PlValue PlValue;

/* Values that stay in memory until they are unpinned. */
typedef struct PlPins {
  int n, room;
  PlValue **at, *few[PL_MAX_IN];
} PlPins;

/* Bytes that all live blocks of the process, and this thread's handles, may come to; < 0: no limit, everything is computed
 * and nothing noted any more. Errors: OOM where so few cannot be met; then the old limit holds. */
PlStatus pl_remat_limit(int64_t bytes);
int64_t pl_remat_limit_get(void);
bool pl_remat_is_tight(void); /* something had to be evicted, or will be soon */

typedef struct PlRematStats {
  int64_t values, evicted, evicted_bytes; /* noted results that are alive; those of them without memory */
  int64_t evictions, recomputed;          /* since the limit was set */
  int64_t dead;                           /* noted results of which only the recipe is left */
} PlRematStats;
void pl_remat_stats(PlRematStats *out);
/* Evicts all that can be computed again; for tests. always: and again before every op from now on. */
void pl_remat_evict_all(bool always);

/* ---- for those who read and write memory; cheap where no limit is set ---- */

PlStatus pl_remat_bring(PlStorage *s);
/* The values of t are in memory when this returns, until something is allocated. */
static inline PlStatus pl_present(const PlTensor *t) {
  return PL_UNLIKELY(t->storage->owns == PL_OWNS_REMAT) ? pl_remat_bring(t->storage) : PL_OK;
}
PlStatus pl_remat_detach(PlStorage *s);
/* Before s is written, or its address is given away for good: what is computed from its old contents does not depend on
 * it any more, and it stays in memory from now on. */
static inline PlStatus pl_writes(PlStorage *s) { return PL_UNLIKELY(s->owns == PL_OWNS_REMAT) ? pl_remat_detach(s) : PL_OK; }
/* The same where nothing is written: it shall not be evicted, since it is wanted as it is. */
PlStatus pl_remat_settle(PlStorage *s);
static inline PlStatus pl_settle(const PlTensor *t) {
  return PL_UNLIKELY(t->storage->owns == PL_OWNS_REMAT) ? pl_remat_settle(t->storage) : PL_OK;
}
/* Brings the inputs of a call and keeps them there; name: for messages. Unpin what succeeded. NULL entries are skipped. */
PlStatus pl_remat_pin(PlPins *p, const char *name, PlTensor *const *t, int n);
void pl_remat_unpin(PlPins *p);

/* ---- hooks of call.c, tensor.c and alloc.c ---- */
typedef struct PlDrawn {
  uint64_t seed, stream, offset;
} PlDrawn;
PlDrawn pl_remat_drawn(const PlOp *op); /* before the call draws */
/* The call has made these results. What cannot be noted, for want of memory too, stays in memory. */
void pl_remat_note(const PlCall *c, PlTensor *const *out, PlDrawn drawn);
/* Around a call that writes all of y, whose inputs may share its storage: the new contents are noted, too, where the old
 * ones could be computed again. begin is instead of pl_writes. */
typedef struct PlRewrite {
  PlValue *old; /* NULL: nothing will be noted */
} PlRewrite;
PlStatus pl_remat_rewrite_begin(PlRewrite *w, const PlCall *c, const PlTensor *y);
void pl_remat_rewrite_end(PlRewrite *w, const PlCall *c, PlTensor *y, PlDrawn drawn, bool ok);
/* n bytes more are about to be allocated. Errors: OOM. */
PlStatus pl_remat_room(size_t n);
void pl_remat_end(PlStorage *s); /* its last handle is released */
void pl_remat_list(PlTensor *t); /* a handle made on it; has room for PlListed behind its sizes */
void pl_remat_unlist(PlTensor *t);

#endif
