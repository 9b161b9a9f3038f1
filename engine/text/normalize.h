/* SPDX-License-Identifier: MIT
 * What a tokenizer.json file does to text before it is cut: Unicode's normal forms, lower case, replacements. Bytes that
 * are no UTF-8 pass unchanged. The forms and cases need utf8proc. */
#ifndef PL_ENGINE_TEXT_NORMALIZE_H
#define PL_ENGINE_TEXT_NORMALIZE_H

#include "engine/text/pre_tokenizer.h"

typedef enum PlNormKind {
  PL_NORM_NFC,
  PL_NORM_NFD,
  PL_NORM_NFKC,
  PL_NORM_NFKD,
  PL_NORM_LOWER,
  PL_NORM_NO_ACCENTS, /* without the characters of category M */
  PL_NORM_STRIP,      /* White_Space at the ends */
  PL_NORM_PREPEND,    /* text in front of what is not empty */
  PL_NORM_REPLACE     /* what matches becomes text */
} PlNormKind;

typedef struct PlNormStep {
  PlNormKind kind;
  bool left, right; /* STRIP */
  char *text;       /* PREPEND, REPLACE; owned */
  size_t n;
  PlPattern *pattern; /* REPLACE; owned */
} PlNormStep;

/* Whether this build has what the step needs. */
bool pl_norm_possible(PlNormKind kind);
/* text becomes the result, in memory from malloc; *from_left: bytes that went at the beginning (STRIP). */
PlStatus pl_normalize(const PlNormStep *step, int count, const char *s, size_t n, char **text, size_t *len, bool *from_left);
void pl_norm_free(PlNormStep *step);

#endif
