/* SPDX-License-Identifier: MIT
 * Between the files that read tokenizer.json: tokenizer_json.c the whole, the model and the words, tokenizer_json_normalizer.c
 * normalizers and decoders. */
#ifndef PL_ENGINE_TEXT_TOKENIZER_JSON_H
#define PL_ENGINE_TEXT_TOKENIZER_JSON_H

#include "engine/text/tokenizer_file.h"

#ifdef PL_HAVE_JANSSON
#include <jansson.h>

typedef struct PlTokReader {
  PlTokenizer *t;
  const char *name; /* of the file */
} PlTokReader;

PlStatus pl_tok_bad(const PlTokReader *r, const char *what);
PlStatus pl_tok_unsupported(const PlTokReader *r, const char *what, const char *kind);
const char *pl_tok_type(const json_t *o); /* its "type", or NULL */
bool pl_tok_is(const json_t *o, const char *type);
bool pl_tok_absent(const json_t *o);
bool pl_tok_flag(const json_t *o, const char *key, bool def);
/* {"Regex": …} or {"String": …}, compiled. */
PlStatus pl_tok_pattern(const PlTokReader *r, const json_t *pattern, PlCut cut, PlPattern **out);

/* Fills t->norm. */
PlStatus pl_tok_read_normalizer(PlTokReader *r, const json_t *o);
/* Fills what tokens mean; before the vocabulary is read. */
PlStatus pl_tok_read_decoder(PlTokReader *r, const json_t *o);

#endif
#endif
