/* SPDX-License-Identifier: MIT
 * Rematerialization: eager programs under a limit of memory. While a limit is set, ops note how their results were made;
 * when memory would pass the limit, results that can be computed again give their memory up, and any access brings them
 * back with the same bits. docs/design/rematerialization.md has the reasons. */
#ifndef PL_ENGINE_REMAT_H
#define PL_ENGINE_REMAT_H

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/tensor/hooks.h"
#include "engine/tensor/presence.h"

/* Bytes that all live blocks of the process, and this thread's handles, may come to; < 0: no limit, everything is computed
 * and nothing noted any more. Errors: OOM where so few cannot be met; then the old limit holds. */
PlStatus pl_remat_limit(int64_t bytes);
bool pl_remat_is_tight(void); /* something had to be evicted, or will be soon */

typedef struct PlRematStats {
  int64_t values, evicted, evicted_bytes; /* noted results that are alive; those of them without memory */
  int64_t evictions, recomputed;          /* since the limit was set */
  int64_t dead;                           /* noted results of which only the recipe is left */
} PlRematStats;
void pl_remat_stats(PlRematStats *out);
/* Evicts all that can be computed again; for tests. always: and again before every op from now on. */
void pl_remat_evict_all(bool always);

/* ---- hooks of call.c ---- */
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

#endif
