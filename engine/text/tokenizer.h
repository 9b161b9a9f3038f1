/* SPDX-License-Identifier: MIT
 * Tokenizers: text to ids and back, as tokenizer.json files of the Hugging Face tokenizers library say, or what other files
 * (see the functions that read them) mean in these terms.
 *
 * Text is cut at added tokens, normalized, cut into words by the pre_tokenizer; the model makes tokens of words; the
 * post_processor puts special tokens around. Ids are the file's, from 0. Files are untrusted: whatever is malformed is
 * FORMAT, whatever is well-formed but unknown is UNSUPPORTED and named. A tokenizer is constant once it is made, but for the
 * work spaces that calls borrow; any number of threads may use it. */
#ifndef PL_ENGINE_TEXT_TOKENIZER_H
#define PL_ENGINE_TEXT_TOKENIZER_H

#include "engine/perilune.h"

typedef struct PlTokenizer PlTokenizer;

/* ---- making; name is for messages. Errors: FORMAT, UNSUPPORTED (also a build without Jansson or PCRE2), OOM ---- */
/* tokenizer.json. */
PlStatus pl_tokenizer_parse(PlTokenizer **out, const char *name, const char *json, size_t n);
void pl_tokenizer_release(PlTokenizer *t);

/* ---- tokens ---- */
/* One more than the highest id. */
int64_t pl_tokenizer_size(const PlTokenizer *t);
/* A token as the file writes it; NULL for an id that there is not. *special: an added token with that mark. */
const char *pl_tokenizer_text(const PlTokenizer *t, int64_t id, size_t *n, bool *special);
/* The id of a token as the file writes it, or -1. */
int64_t pl_tokenizer_id(const PlTokenizer *t, const char *text, size_t n);

/* ---- encoding ---- */

typedef enum PlTruncation { PL_TRUNCATE_LONGEST, PL_TRUNCATE_FIRST, PL_TRUNCATE_SECOND } PlTruncation;

typedef struct PlEncodeOptions {
  bool around;    /* with what the file puts around a text */
  bool recognize; /* special tokens written out in the text count as such */
  bool full;      /* offsets, words and texts of tokens, too */
  bool truncate;  /* to max_length tokens, special ones included */
  bool left;      /* tokens go from the left */
  PlTruncation strategy;
  int64_t max_length;
} PlEncodeOptions;

/* One text, or two, as tokens. Arrays of n, owned; those of `full` are NULL without it. */
typedef struct PlEncoding {
  size_t n;
  int32_t *id, *type;
  uint8_t *special;   /* whether the post_processor added it */
  int32_t *from, *to; /* which characters of its text, from 0, end exclusive; 0, 0 for special ones */
  int32_t *word;      /* which piece of the pre_tokenizer, from 0; -1 for special ones */
  int32_t *text;      /* which of the texts; -1 for special ones */
  char *value;        /* texts of the tokens, one behind the other */
  size_t *value_end;
} PlEncoding;

/* pair: the second text, or NULL. Errors: OOM, INTERRUPT, ARG (truncation that cannot be), FORMAT (a pattern takes too long; a
 * character without a token). */
PlStatus pl_tokenizer_encode(const PlTokenizer *t, const PlEncodeOptions *o, const char *text, size_t n, const char *pair, size_t npair,
                             PlEncoding *out);
void pl_encoding_free(PlEncoding *e);
/* Many texts over the threads of the process: out[count], each as above (with pair[i] where pair is not NULL and pair[i]
 * is not). The same result at any number of threads. After an error nothing is left in out. */
PlStatus pl_tokenizer_encode_many(const PlTokenizer *t, const PlEncodeOptions *o, size_t count, const char *const *text, const size_t *n,
                                  const char *const *pair, const size_t *npair, PlEncoding *out);
/* What the file says of truncation and padding. */
typedef struct PlTokenizerDefaults {
  PlEncodeOptions options; /* truncate, left, strategy, max_length */
  bool pads, pads_left;
  int64_t pad_to, pad_multiple, pad_id, pad_type; /* pad_to: -1: the longest of a batch; pad_multiple: 0: none */
} PlTokenizerDefaults;
const PlTokenizerDefaults *pl_tokenizer_defaults(const PlTokenizer *t);

/* ---- decoding ---- */
/* The text of ids, in memory from malloc. skip: without special tokens; keep: bytes that are no whole characters stay as
 * they are, else each becomes U+FFFD. *bad: the place of an id that there is not (error ARG). */
PlStatus pl_tokenizer_decode(const PlTokenizer *t, const int32_t *id, size_t n, bool skip, bool keep, char **text, size_t *len,
                             size_t *bad);

/* ---- parts of a file alone, for tests and tools ---- */
/* What a normalizer makes of a text. */
PlStatus pl_tokenizer_normalized(const PlTokenizer *t, const char *text, size_t n, char **out, size_t *len);

#endif
