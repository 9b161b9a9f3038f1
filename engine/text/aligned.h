/* SPDX-License-Identifier: MIT
 * A text and, where somebody asks for offsets, what each of its bytes was made of: a range of bytes of the text that was
 * given. Steps make a new text of an old one through a PlEdit. */
#ifndef PL_ENGINE_TEXT_ALIGNED_H
#define PL_ENGINE_TEXT_ALIGNED_H

#include "engine/text/growing.h"

typedef struct PlOrigin {
  uint32_t from, to;
} PlOrigin;

typedef struct PlAligned {
  char *s;
  size_t n, room;
  PlOrigin *origin; /* one a byte; unused where `tracked` is false */
  size_t origin_room;
  bool tracked;
} PlAligned;

/* A part of a text; borrows. */
typedef struct PlSlice {
  const char *s;
  size_t n;
  const PlOrigin *origin; /* NULL: not tracked */
} PlSlice;

/* Empties the text. */
void pl_aligned_clear(PlAligned *t, bool tracked);
void pl_aligned_free(PlAligned *t);
/* The text as it was given. Errors: OOM, ARG (tracked, and 4 GiB or more). */
PlStatus pl_aligned_given(PlAligned *t, const char *s, size_t n, bool tracked);
PlStatus pl_aligned_put(PlAligned *t, const char *s, size_t n, PlOrigin origin);
/* Appends a part with the origins that it has. */
PlStatus pl_aligned_copy(PlAligned *t, const PlSlice *p);
static inline PlSlice pl_aligned_whole(const PlAligned *t) { return (PlSlice){t->s, t->n, t->tracked ? t->origin : NULL}; }
static inline PlSlice pl_slice_part(const PlSlice *p, const char *s, size_t n) {
  return (PlSlice){s, n, p->origin ? p->origin + (s - p->s) : NULL};
}

/* From `old` to a new text, character by character; `at` bytes of the old one are used up. */
typedef struct PlEdit {
  PlAligned *to;
  PlSlice old;
  size_t at;
} PlEdit;

/* A character in place of the next `used` bytes. */
PlStatus pl_edit_replace(PlEdit *e, const char *s, size_t n, size_t used);
/* A character more, which comes from what was used last. */
PlStatus pl_edit_insert(PlEdit *e, const char *s, size_t n);
/* change as normalization counts: > 0 inserts; else replaces the next character and uses up -change more. */
PlStatus pl_edit_char(PlEdit *e, int32_t c, int change);

#endif
