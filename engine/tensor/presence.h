/* SPDX-License-Identifier: MIT
 * For those who read and write memory: under a limit (engine/remat/) it may be away, and comes back before it is looked at.
 * Cheap where no limit is set. */
#ifndef PL_ENGINE_TENSOR_PRESENCE_H
#define PL_ENGINE_TENSOR_PRESENCE_H

#include "engine/tensor/file_map.h"
#include "engine/tensor/tensor.h"

typedef struct PlValue PlValue;

/* Values that stay in memory until they are unpinned. */
typedef struct PlPins {
  int n, room;
  PlValue **at, *few[PL_MAX_IN];
} PlPins;

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
/* Before s is written: it is no part of a file any more. */
static inline PlStatus pl_own(PlStorage *s) { return PL_UNLIKELY(s->owns == PL_OWNS_MAP) ? pl_file_map_own(s->data) : PL_OK; }
/* Brings the inputs of a call and keeps them there; name: for messages. Unpin what succeeded. NULL entries are skipped. */
PlStatus pl_remat_pin(PlPins *p, const char *name, PlTensor *const *t, int n);
void pl_remat_unpin(PlPins *p);

#endif
