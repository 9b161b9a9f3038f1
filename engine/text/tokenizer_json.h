/* SPDX-License-Identifier: MIT
 * Between the files that read tokenizer.json: tokenizer_json.c the whole, tokenizer_json_model.c the model,
 * tokenizer_json_steps.c normalizers, pre_tokenizers, decoders, tokenizer_json_post.c what is around a text. */
#ifndef PL_ENGINE_TEXT_TOKENIZER_JSON_H
#define PL_ENGINE_TEXT_TOKENIZER_JSON_H

#include "engine/text/tokenizer_file.h"

#ifdef PL_HAVE_JANSSON
#include <jansson.h>

enum { PL_TOK_MAX_ID = 1 << 24, PL_TOK_MAX_JSON = 256 << 20, PL_TOK_MAX_TEXT = 4096, PL_TOK_MAX_DEPTH = 16 };

typedef struct PlTokReader {
  PlTokenizer *t;
  const char *name; /* of the file */
} PlTokReader;

PlStatus pl_tok_bad(const PlTokReader *r, const char *what);
PlStatus pl_tok_unsupported(const PlTokReader *r, const char *what, const char *kind);
const char *pl_tok_type(const json_t *o); /* its "type", or NULL */
bool pl_tok_is(const json_t *o, const char *type);
bool pl_tok_absent(const json_t *o);
/* A flag; FORMAT for what is there and is none. */
PlStatus pl_tok_flag(const PlTokReader *r, const json_t *o, const char *key, bool def, bool *out);
/* An integer between two; `def` where it is absent or null. */
PlStatus pl_tok_integer(const PlTokReader *r, const json_t *o, const char *key, json_int_t def, json_int_t low, json_int_t high,
                        json_int_t *out);
/* A word that is compared; NULL where it is absent or null, FORMAT for what is there and is no text. */
PlStatus pl_tok_word(const PlTokReader *r, const json_t *o, const char *key, const char **out);
/* A text of at most PL_TOK_MAX_TEXT bytes without zeros, copied; NULL where it is absent or null and `optional`. */
PlStatus pl_tok_copy(const PlTokReader *r, const json_t *o, const char *key, bool optional, char **out);

PlStatus pl_tok_read_model(PlTokReader *r, const json_t *o);
PlStatus pl_tok_read_normalizer(PlTokReader *r, const json_t *o, int depth);
PlStatus pl_tok_read_pre_tokenizer(PlTokReader *r, const json_t *o, int depth);
PlStatus pl_tok_read_decoder(PlTokReader *r, const json_t *o, int depth);
PlStatus pl_tok_read_post(PlTokReader *r, const json_t *o);
PlStatus pl_tok_read_defaults(PlTokReader *r, const json_t *truncation, const json_t *padding);

#endif
#endif
