/* SPDX-License-Identifier: MIT
 * What is known of a character: its properties, forms and cases. All but spaces need utf8proc (pl_char_tables). */
#ifndef PL_ENGINE_TEXT_CHARACTERS_H
#define PL_ENGINE_TEXT_CHARACTERS_H

#include "engine/perilune.h"

/* Whether this build has utf8proc. Without it the functions below that need it answer false, or the character itself. */
bool pl_char_tables(void);

/* The character at s (n > 0): its code point, or -1 for a byte that is no UTF-8; *len bytes, at least 1. */
int32_t pl_char_at(const char *s, size_t n, size_t *len);
/* Where the character before `at` begins (at > 0). */
size_t pl_char_before(const char *s, size_t at);
size_t pl_char_count(const char *s, size_t n);
/* Writes the UTF-8 of a code point; the number of bytes. */
size_t pl_char_put(int32_t c, char to[4]);

bool pl_char_is_space(int32_t c);            /* White_Space */
size_t pl_space_at(const char *s, size_t n); /* length of the White_Space character at s, 0 for another */
bool pl_char_is_punctuation(int32_t c);      /* category P, and ASCII's symbols */
bool pl_char_is_number(int32_t c);           /* category N */
bool pl_char_is_mark(int32_t c);             /* category M */
bool pl_char_is_nonspacing(int32_t c);       /* category Mn */
bool pl_char_is_control(int32_t c);          /* categories Cc, Cf, Co */
bool pl_char_is_ideograph(int32_t c);        /* the blocks that BERT sets apart */
/* \w of Unicode TR18, annex C: alphabetic, marks, decimal digits, connectors, joiners. */
bool pl_char_is_word(int32_t c);
int pl_char_class(int32_t c); /* canonical combining class */
/* Lower case, one or two characters; returns how many. */
int pl_char_lower(int32_t c, int32_t to[2]);
/* The full decomposition, canonical or by compatibility; at most `room` characters, returns how many. */
int pl_char_decompose(int32_t c, bool compatible, int32_t *to, int room);
/* What the two compose to, or -1. */
int32_t pl_char_compose(int32_t a, int32_t b);
/* Its category, two letters, and its one-character cases: "Cn" and itself without utf8proc, but for ASCII's letters. */
typedef struct PlCharFacts {
  const char *category;
  int32_t lower, upper, title;
} PlCharFacts;
PlCharFacts pl_char_facts(int32_t c);
/* Whether a grapheme cluster ends between a and b; *state begins at 0. */
bool pl_char_breaks(int32_t a, int32_t b, int32_t *state);

#endif
