/* SPDX-License-Identifier: MIT
 * Cutting text into words: added tokens first, then the patterns of the file's pre_tokenizer. */
#ifndef PL_ENGINE_TEXT_PRE_TOKENIZER_H
#define PL_ENGINE_TEXT_PRE_TOKENIZER_H

#include "engine/text/bpe.h"

/* ---- added tokens: a trie over bytes ---- */

typedef struct PlAdded {
  int32_t id;
  bool special, lstrip, rstrip, single_word, normalized;
} PlAdded;

typedef struct PlTrieNode {
  int32_t child, sibling, token; /* token: index into added, -1 none */
  uint8_t byte;
} PlTrieNode;

typedef struct PlTrie {
  PlTrieNode *node; /* node 0 is the root */
  size_t n, room;
} PlTrie;

PlStatus pl_trie_add(PlTrie *t, const char *s, size_t n, int32_t token);
/* The longest token that s begins with, or -1; *len is its length. */
int32_t pl_trie_find(const PlTrie *t, const char *s, size_t n, size_t *len);
void pl_trie_free(PlTrie *t);

/* ---- patterns ---- */

typedef enum PlCut {
  PL_CUT_ISOLATED, /* matches and what is between are pieces */
  PL_CUT_REMOVED,  /* only what is between */
  PL_CUT_KEPT,     /* only the matches ("Removed", inverted) */
  PL_CUT_BEFORE,   /* a piece begins at each match ("MergedWithNext") */
  PL_CUT_BEHIND    /* a piece ends with each match ("MergedWithPrevious") */
} PlCut;

typedef struct PlPattern PlPattern; /* a compiled expression with its work space */

/* GPT-2's expression for words. */
extern const char pl_gpt2_pattern[];
/* Compiles; \s and \S mean Unicode's White_Space. Errors: FORMAT (not an expression), UNSUPPORTED, OOM. */
PlStatus pl_pattern_new(PlPattern **out, const char *name, const char *regex, size_t n, PlCut cut);
void pl_pattern_release(PlPattern *p);

typedef PlStatus (*PlPieceFn)(void *ctx, const char *s, size_t n);
/* Calls f for each piece of the text. Errors: f's, FORMAT (matching takes too long), INTERRUPT. */
PlStatus pl_pattern_cut(PlPattern *p, const char *s, size_t n, PlPieceFn f, void *ctx);

/* All of the text, piece by piece: matches and what is between. Errors as above. */
typedef PlStatus (*PlMatchFn)(void *ctx, const char *s, size_t n, bool match);
PlStatus pl_pattern_each(PlPattern *p, const char *s, size_t n, PlMatchFn f, void *ctx);

/* Length of the White_Space character at s, 0 for another. */
size_t pl_space_at(const char *s, size_t n);
/* Where the character before `at` begins (at > 0). */
size_t pl_char_before(const char *s, size_t at);

#endif
