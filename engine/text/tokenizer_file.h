/* SPDX-License-Identifier: MIT
 * What a tokenizer's file becomes: filled by tokenizer_json.c and its like, used by tokenizer.c, detokenize.c, encoding.c. */
#ifndef PL_ENGINE_TEXT_TOKENIZER_FILE_H
#define PL_ENGINE_TEXT_TOKENIZER_FILE_H

#include "engine/text/detokenize.h"
#include "engine/text/model.h"
#include "engine/text/normalize.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"

enum { PL_MAX_STEPS = 24, PL_MAX_TEMPLATE = 32, PL_MAX_TRIMS = 4 };

/* A part of what the post_processor makes: a text (which: 0, 1), or special tokens (-1). */
typedef struct PlTemplatePart {
  int which;
  int32_t type;
  size_t at, n; /* special: PlTokenizer.special_ids[at, at + n) */
} PlTemplatePart;

typedef struct PlTemplate {
  PlTemplatePart part[PL_MAX_TEMPLATE];
  int n;
  size_t added; /* special tokens in it */
} PlTemplate;

/* Offsets without the blanks of their tokens. */
typedef struct PlTrim {
  bool add_prefix_space;
} PlTrim;

struct PlTokenizer {
  PlModel model;
  PlAdded *added;
  size_t nadded;
  PlVocab extra;    /* added tokens by text and id, beside the model's */
  PlVocab shown;    /* what an added token that was normalized means in decoding, by id */
  uint8_t *special; /* by id: skipped in decoding */
  int64_t size;
  PlTrie raw, cooked; /* added tokens that are looked for before and after normalizing */
  PlNormStep norm[PL_MAX_STEPS];
  int nnorm;
  PlStep step[PL_MAX_STEPS];
  int nstep;
  bool tracks; /* a step wants to know where the text begins */
  PlTemplate single, pair;
  PlIds special_ids;
  PlTrim trim[PL_MAX_TRIMS];
  int ntrim;
  PlDecodeStep decode[PL_MAX_STEPS];
  int ndecode;
  PlTokenizerDefaults defaults;
  struct PlTokenizerPool *pool;
};

PlStatus pl_tokenizer_new(PlTokenizer **out, const char *name);
/* Adds an added token: to the model's vocabulary's ids or beside them; after normalizer and model. */
PlStatus pl_tokenizer_add(PlTokenizer *t, const char *name, PlAdded a, const char *text, size_t n);
/* Call when all is read. */
PlStatus pl_tokenizer_ready(PlTokenizer *t, const char *name);
/* The token of an id in decoding. */
const char *pl_tokenizer_shown(const PlTokenizer *t, int64_t id, size_t *n);

/* The tokens of one text before the post_processor. */
typedef struct PlPlace {
  uint32_t from, to; /* bytes of the text; characters after pl_places_in_characters */
  int32_t word;
  size_t value_end; /* in values */
} PlPlace;

typedef struct PlTokens {
  PlIds ids;
  PlPlace *place; /* with `full` */
  size_t place_room;
  PlAligned values;
} PlTokens;

void pl_tokens_free(PlTokens *t);
/* Truncation and the post_processor. */
PlStatus pl_encoding_make(const PlTokenizer *t, const PlEncodeOptions *o, PlTokens *first, PlTokens *second, PlEncoding *out);

#endif
