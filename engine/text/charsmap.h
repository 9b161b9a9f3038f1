/* SPDX-License-Identifier: MIT
 * SentencePiece's compiled normalization: a double-array trie (Aoe 1989) from texts to what they become. Untrusted: every
 * step stays inside the array. */
#ifndef PL_ENGINE_TEXT_CHARSMAP_H
#define PL_ENGINE_TEXT_CHARSMAP_H

#include "engine/perilune.h"

typedef struct PlCharsmap PlCharsmap;

/* Copies the bytes of a map: the array's length in bytes, the array, texts that end in 0. Errors: FORMAT, OOM. */
PlStatus pl_charsmap_new(PlCharsmap **out, const char *name, const void *data, size_t n);
/* The same in base 64. */
PlStatus pl_charsmap_base64(PlCharsmap **out, const char *name, const char *text, size_t n);
void pl_charsmap_release(PlCharsmap *m);
/* What s begins with becomes the result; NULL: nothing there. *used: its length. The shortest such beginning, or the
 * longest. */
const char *pl_charsmap_find(const PlCharsmap *m, const char *s, size_t n, bool longest, size_t *used, size_t *len);

#endif
