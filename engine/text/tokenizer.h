/* SPDX-License-Identifier: MIT
 * Byte pair encoding (Sennrich 2016; Radford 2019) with the vocabulary of a tokenizer.json file: of bytes, as GPT-2's, or
 * of characters with tokens for the bytes of others, as Llama's.
 *
 * Text is cut at added tokens, normalized, cut by the file's patterns into words; the symbols of a word are merged pair by
 * pair, the pair of lowest rank first. Ids are the file's, from 0. Files are untrusted: whatever is malformed is FORMAT,
 * whatever is well-formed but nothing of this is UNSUPPORTED and named. A tokenizer belongs to one thread. */
#ifndef PL_ENGINE_TEXT_TOKENIZER_H
#define PL_ENGINE_TEXT_TOKENIZER_H

#include "engine/perilune.h"

typedef struct PlTokenizer PlTokenizer;

/* Reads tokenizer.json from memory; name is for messages. Errors: FORMAT, UNSUPPORTED (also a build without Jansson or
 * PCRE2), OOM. */
PlStatus pl_tokenizer_parse(PlTokenizer **out, const char *name, const char *json, size_t n);
void pl_tokenizer_release(PlTokenizer *t);
/* One more than the highest id. */
int64_t pl_tokenizer_size(const PlTokenizer *t);

/* Ids that belong to a text, in memory from malloc. around: also what the file's template puts around it; recognize:
 * special tokens written out in the text count as such (else they are plain text). Errors: OOM, INTERRUPT, FORMAT (a
 * pattern takes too long). */
PlStatus pl_tokenizer_encode(PlTokenizer *t, const char *text, size_t n, bool around, bool recognize, int32_t **ids, size_t *count);
/* The bytes of a token; NULL for an id that there is not. *special: an added token with that mark. */
const char *pl_tokenizer_bytes(const PlTokenizer *t, int64_t id, size_t *n, bool *special);
/* Whether blanks of the first token of a text are left out in decoding. */
bool pl_tokenizer_drops(const PlTokenizer *t);
/* What the file's decoder takes away at the ends of a whole text: s[*from, *to) stays. */
void pl_tokenizer_trim(const PlTokenizer *t, const char *s, size_t n, size_t *from, size_t *to);
/* A token as the file writes it; NULL for an id that there is not. */
const char *pl_tokenizer_text(const PlTokenizer *t, int64_t id, size_t *n);
/* The id of a token as the file writes it, or -1. */
int64_t pl_tokenizer_id(const PlTokenizer *t, const char *text, size_t n);

#endif
