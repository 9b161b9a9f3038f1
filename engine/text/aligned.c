/* SPDX-License-Identifier: MIT
 * See aligned.h. */
#include "engine/text/aligned.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"

void pl_aligned_clear(PlAligned *t, bool tracked) {
  t->n = 0;
  t->tracked = tracked;
}

void pl_aligned_free(PlAligned *t) {
  free(t->s);
  free(t->origin);
}

static PlStatus make_room(PlAligned *t, size_t n) {
  if (n > SIZE_MAX / 4 - t->n) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
  PL_TRY(pl_grow(&t->s, &t->room, t->n + n + 1, 1));
  return t->tracked ? pl_grow(&t->origin, &t->origin_room, t->n + n + 1, sizeof *t->origin) : PL_OK;
}

PlStatus pl_aligned_given(PlAligned *t, const char *s, size_t n, bool tracked) {
  if (tracked && n >= UINT32_MAX) PL_FAIL(PL_ERR_ARG, "encode: offsets of a text of 4 GiB or more");
  pl_aligned_clear(t, tracked);
  PL_TRY(make_room(t, n));
  if (n) memcpy(t->s, s, n);
  t->n = n;
  for (size_t i = 0, len; tracked && i < n; i += len) {
    (void)pl_char_at(s + i, n - i, &len);
    for (size_t k = 0; k < len; k++) t->origin[i + k] = (PlOrigin){(uint32_t)i, (uint32_t)(i + len)};
  }
  return PL_OK;
}

PlStatus pl_aligned_put(PlAligned *t, const char *s, size_t n, PlOrigin origin) {
  PL_TRY(make_room(t, n));
  if (n) memcpy(t->s + t->n, s, n);
  for (size_t k = 0; t->tracked && k < n; k++) t->origin[t->n + k] = origin;
  t->n += n;
  return PL_OK;
}

PlStatus pl_aligned_copy(PlAligned *t, const PlSlice *p) {
  PL_TRY(make_room(t, p->n));
  if (p->n) memcpy(t->s + t->n, p->s, p->n);
  if (t->tracked && p->n) memcpy(t->origin + t->n, p->origin, p->n * sizeof *p->origin);
  t->n += p->n;
  return PL_OK;
}

static PlOrigin origin_of(const PlEdit *e, size_t at) {
  if (!e->old.origin || e->old.n == 0) return (PlOrigin){0, 0};
  return e->old.origin[at < e->old.n ? at : e->old.n - 1];
}

PlStatus pl_edit_replace(PlEdit *e, const char *s, size_t n, size_t used) {
  PlOrigin origin = origin_of(e, e->at);
  e->at = used < e->old.n - e->at ? e->at + used : e->old.n;
  return pl_aligned_put(e->to, s, n, origin);
}

PlStatus pl_edit_insert(PlEdit *e, const char *s, size_t n) {
  PlOrigin origin = origin_of(e, e->at > 0 ? e->at - 1 : 0);
  if (e->at == 0) origin.to = origin.from;
  return pl_aligned_put(e->to, s, n, origin);
}

PlStatus pl_edit_char(PlEdit *e, int32_t c, int change) {
  char s[4];
  size_t n = pl_char_put(c, s), used = 0;
  if (change > 0) return pl_edit_insert(e, s, n);
  for (int k = change; k <= 0 && e->at + used < e->old.n; k++) {
    size_t len;
    (void)pl_char_at(e->old.s + e->at + used, e->old.n - e->at - used, &len);
    used += len;
  }
  return pl_edit_replace(e, s, n, used);
}
