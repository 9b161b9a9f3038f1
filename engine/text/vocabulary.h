/* SPDX-License-Identifier: MIT
 * Tokens by id and by text. */
#ifndef PL_ENGINE_TEXT_VOCABULARY_H
#define PL_ENGINE_TEXT_VOCABULARY_H

#include "engine/text/growing.h"

typedef struct PlToken {
  size_t at; /* its text in the arena */
  uint32_t len;
  bool present;
} PlToken;

typedef struct PlVocab {
  PlToken *token; /* by id */
  int64_t n;      /* one more than the highest id */
  size_t room;
  int64_t count; /* of tokens */
  char *arena;
  size_t used, arena_room;
  int32_t *slot; /* open addressing: text -> id, -1 free */
  size_t nslot;
} PlVocab;

uint64_t pl_text_hash(const char *s, size_t n);
/* Errors: OOM, FORMAT (the id belongs to another token). The first of equal texts is the one that is found. */
PlStatus pl_vocab_add(PlVocab *v, const char *name, int64_t id, const char *text, size_t n);
int32_t pl_vocab_find(const PlVocab *v, const char *text, size_t n);
/* NULL for an id that there is not. */
const char *pl_vocab_text(const PlVocab *v, int64_t id, size_t *n);
void pl_vocab_free(PlVocab *v);

#endif
