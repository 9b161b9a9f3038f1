/* SPDX-License-Identifier: MIT
 * What a tokenizer's normalizer does to text before it is cut. Bytes that are no UTF-8 pass unchanged. */
#ifndef PL_ENGINE_TEXT_NORMALIZE_H
#define PL_ENGINE_TEXT_NORMALIZE_H

#include "engine/text/aligned.h"
#include "engine/text/charsmap.h"
#include "engine/text/pattern.h"

typedef enum PlNormKind {
  PL_NORM_NFC,
  PL_NORM_NFD,
  PL_NORM_NFKC,
  PL_NORM_NFKD,
  PL_NORM_LOWER,
  PL_NORM_NO_ACCENTS, /* without the characters of category M */
  PL_NORM_NO_MARKS,   /* without those of category Mn */
  PL_NORM_CLEAN,      /* BERT: without controls, spaces are blanks */
  PL_NORM_IDEOGRAPHS, /* BERT: blanks around ideographs */
  PL_NORM_NMT,        /* without the controls that SentencePiece drops, its spaces are blanks */
  PL_NORM_CHARSMAP,
  PL_NORM_STRIP,   /* White_Space at the ends */
  PL_NORM_PREPEND, /* text in front of what is not empty */
  PL_NORM_REPLACE, /* what matches becomes text */
  PL_NORM_BYTES    /* bytes become the characters of their alphabet */
} PlNormKind;

typedef struct PlNormStep {
  PlNormKind kind;
  bool left, right; /* STRIP */
  char *text;       /* PREPEND, REPLACE; owned */
  size_t n;
  PlPattern *pattern; /* REPLACE; owned */
  PlCharsmap *map;    /* CHARSMAP; owned */
} PlNormStep;

/* Whether the step needs utf8proc. */
bool pl_norm_needs_tables(PlNormKind kind);
/* One step: `to` (cleared, tracked as the piece is) becomes the result. */
PlStatus pl_norm_step(const PlNormStep *step, PlMatcher *m, const PlSlice *p, PlAligned *to);
/* All steps, by turns in two texts; the result is a part of one of them, or p itself. */
PlStatus pl_normalize(const PlNormStep *step, int count, PlMatcher *m, const PlSlice *p, PlAligned work[2], PlSlice *result);
void pl_norm_free(PlNormStep *step);

/* The byte-level alphabet: bytes that print are themselves, the others are U+0100 on, in order. Writes the UTF-8 of a
 * byte's character, returns its length. */
int pl_byte_char(uint8_t byte, char *to);
/* The byte of a character of the alphabet, or -1. */
int pl_byte_of_char(int32_t c);

#endif
