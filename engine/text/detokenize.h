/* SPDX-License-Identifier: MIT
 * A tokenizer's decoder: a chain of steps over a list of texts, which at the end are put one behind the other. */
#ifndef PL_ENGINE_TEXT_DETOKENIZE_H
#define PL_ENGINE_TEXT_DETOKENIZE_H

#include "engine/text/growing.h"
#include "engine/text/pattern.h"

typedef enum PlDecodeKind {
  PL_DECODE_BYTE_LEVEL,
  PL_DECODE_BYTE_FALLBACK,
  PL_DECODE_FUSE,
  PL_DECODE_STRIP,
  PL_DECODE_REPLACE,
  PL_DECODE_METASPACE,
  PL_DECODE_WORDPIECE,
  PL_DECODE_BPE,
  PL_DECODE_CTC
} PlDecodeKind;

typedef struct PlDecodeStep {
  PlDecodeKind kind;
  char *text, *with;   /* STRIP's character, METASPACE's replacement, WORDPIECE's prefix, BPE's suffix, CTC's pad token; what
                        replaces it, CTC's delimiter; owned */
  PlPattern *pattern;  /* REPLACE; owned */
  int64_t left, right; /* STRIP */
  bool flag;           /* METASPACE: the first text loses it; WORDPIECE, CTC: clean-up */
} PlDecodeStep;

/* Texts, one behind the other. */
typedef struct PlList {
  char *s;
  size_t used, room;
  size_t *end;
  size_t n, end_room;
} PlList;

void pl_list_free(PlList *l);
PlStatus pl_list_put(PlList *l, const char *s, size_t n); /* more of the last text */
PlStatus pl_list_close(PlList *l);                        /* which ends here */
PlStatus pl_list_push(PlList *l, const char *s, size_t n);

/* All steps; `list` becomes the result. keep: bytes that are no characters stay. */
PlStatus pl_decode_steps(const PlDecodeStep *step, int count, PlMatcher *m, bool keep, PlList *list);
void pl_decode_free(PlDecodeStep *step);

#endif
