/* SPDX-License-Identifier: MIT
 * See growing.h. */
#include "engine/text/growing.h"

#include <stdlib.h>
#include <string.h>

PlStatus pl_grow(void *array, size_t *room, size_t want, size_t size) {
  if (want <= *room) return PL_OK;
  size_t n = *room > SIZE_MAX / 4 || *room * 2 <= want ? want : *room * 2;
  n = n < SIZE_MAX - 64 ? n + 64 : n;
  void *p;
  memcpy(&p, array, sizeof p);
  p = n < SIZE_MAX / 2 / size ? realloc(p, n * size) : NULL;
  if (!p) PL_FAIL(PL_ERR_OOM, "tokenizer: out of memory");
  memcpy(array, &p, sizeof p);
  *room = n;
  return PL_OK;
}

PlStatus pl_ids_push(PlIds *ids, int32_t id) {
  if (ids->n == ids->room) PL_TRY(pl_grow(&ids->v, &ids->room, ids->n + 1, sizeof *ids->v));
  ids->v[ids->n++] = id;
  return PL_OK;
}
