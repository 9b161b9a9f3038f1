/* SPDX-License-Identifier: MIT
 * Cutting text into words: added tokens first, then the steps of the file's pre_tokenizer. */
#ifndef PL_ENGINE_TEXT_PRE_TOKENIZER_H
#define PL_ENGINE_TEXT_PRE_TOKENIZER_H

#include "engine/text/aligned.h"
#include "engine/text/pattern.h"

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
  bool first[256]; /* bytes that tokens begin with */
} PlTrie;

PlStatus pl_trie_add(PlTrie *t, const char *s, size_t n, int32_t token);
/* The longest token that s begins with, or -1; *len is its length. */
int32_t pl_trie_find(const PlTrie *t, const char *s, size_t n, size_t *len);
void pl_trie_free(PlTrie *t);

typedef PlStatus (*PlSliceFn)(void *ctx, const PlSlice *p);
typedef PlStatus (*PlAddedFn)(void *ctx, const PlSlice *p, int32_t token);
/* All of the text: the added tokens that count (special ones only with `special`), and what is between. */
PlStatus pl_added_each(const PlTrie *t, const PlAdded *added, bool special, const PlSlice *p, PlSliceFn between, PlAddedFn token,
                       void *ctx);

/* ---- steps ---- */

typedef enum PlStepKind {
  PL_STEP_CUT,       /* at what matches */
  PL_STEP_PREFIX,    /* a blank in front of what begins without one */
  PL_STEP_METASPACE, /* text in place of blanks, and in front; cutting there is a step of its own */
  PL_STEP_BYTES,     /* bytes become the characters of their alphabet */
  PL_STEP_FIXED,     /* every `count` characters */
  PL_STEP_SCRIPTS    /* where the script changes */
} PlStepKind;

/* What becomes of matches and of what is between them; the names are those of the files. */
typedef enum PlCut { PL_CUT_REMOVED, PL_CUT_ISOLATED, PL_CUT_PREVIOUS, PL_CUT_NEXT, PL_CUT_CONTIGUOUS } PlCut;

typedef struct PlStep {
  PlStepKind kind;
  PlCut cut;
  bool invert;           /* CUT: what is between counts as the match */
  PlPattern *pattern;    /* CUT, SCRIPTS: owned */
  bool (*is)(int32_t c); /* CUT: each such character, if there is no pattern */
  bool words;            /* CUT: runs of word characters, and of others that are no spaces */
  char text[8];          /* METASPACE */
  bool prepend, first;   /* METASPACE: in front of every piece; only where the text begins */
  size_t count;          /* FIXED */
} PlStep;

/* Calls f for each piece, none empty; `work` is for what has to be written. */
PlStatus pl_step_each(const PlStep *step, PlMatcher *m, PlAligned *work, const PlSlice *p, PlSliceFn f, void *ctx);

#endif
