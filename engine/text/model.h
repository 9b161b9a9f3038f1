/* SPDX-License-Identifier: MIT
 * The models of tokenizers: how a word becomes tokens. A model is constant once it is read; what tokenizing writes to is in
 * a PlModelWork, one a thread.
 *
 * BPE: pairs of neighbours are merged, the pair of lowest rank first (Sennrich 2016). Unigram: the tokens whose scores add up
 * to most, by Viterbi (Kudo 2018). WordPiece: the longest token that fits, from the left (Wu 2016). WordLevel: the word. */
#ifndef PL_ENGINE_TEXT_MODEL_H
#define PL_ENGINE_TEXT_MODEL_H

#include "engine/text/vocabulary.h"

typedef enum PlModelKind { PL_MODEL_BPE, PL_MODEL_UNIGRAM, PL_MODEL_WORDPIECE, PL_MODEL_WORDLEVEL } PlModelKind;

typedef struct PlMerge {
  uint64_t pair; /* left id << 32 | right id; PL_NO_PAIR: free */
  int32_t rank, id;
} PlMerge;
#define PL_NO_PAIR UINT64_MAX

typedef struct PlModel {
  PlModelKind kind;
  PlVocab vocab;
  int32_t unknown;      /* -1: there is none */
  int32_t byte_id[256]; /* of the tokens <0x00> … <0xFF>, or (alphabet) of the bytes' characters; -1: none */
  bool alphabet;        /* BPE: words are bytes, which stand for the characters of their alphabet */
  bool fallback;        /* characters without a token become the tokens of their bytes */
  /* BPE */
  PlMerge *merge;
  size_t nmerge;         /* a power of two, or 0 */
  bool fuse_unknown;     /* unknown characters in a row are one */
  bool whole_first;      /* ignore_merges: a word that is a token is that token */
  char *prefix, *suffix; /* continuing_subword_prefix (WordPiece, too), end_of_word_suffix; owned, or NULL */
  /* Unigram */
  double *score; /* by id; NaN: no text becomes this token */
  double least;  /* of all scores */
  bool single;   /* scores are added up in f32, as sentencepiece does, which decides between paths that are equal but for rounding */
  struct PlPrefixes *prefixes;
  /* WordPiece */
  int64_t longest; /* words of more characters are unknown */
} PlModel;

/* One token of a word: its id and how many bytes of the word it is. */
typedef struct PlUnit {
  int32_t id;
  uint32_t len;
} PlUnit;

typedef struct PlUnits {
  PlUnit *v;
  size_t n, room;
} PlUnits;

typedef struct PlSymbol {
  int32_t id, prev, next; /* -1: none; id -1: merged into its left neighbour */
  uint32_t at, len;
} PlSymbol;

typedef struct PlPair {
  int32_t rank, left, id; /* symbols left and its next become id */
  int32_t lid, rid;       /* ids that they had when this was noted */
} PlPair;

typedef struct PlBest {
  double score;
  int32_t id;
  uint32_t from; /* UINT32_MAX: nothing ends here */
} PlBest;

typedef struct PlModelWork {
  PlSymbol *symbol; /* BPE */
  PlPair *heap;
  size_t symbol_room, heap_room, nheap;
  PlBest *best; /* Unigram */
  size_t best_room;
  char *text; /* a token's text while it is looked for */
  size_t text_room;
  PlUnits units; /* a word that is not kept */
  struct PlWordCache *cache;
} PlModelWork;

PlStatus pl_units_push(PlUnits *u, int32_t id, size_t len);

/* ---- making ---- */
/* Call after the last token: fills byte_id. */
void pl_model_bytes(PlModel *m);
/* BPE: makes room for n merges. */
PlStatus pl_bpe_room(PlModel *m, size_t n);
/* The pair (left, right) becomes id; the first of equal pairs counts. */
void pl_bpe_merge(PlModel *m, int32_t left, int32_t right, int32_t rank, int32_t id);
/* Unigram: call after the last token. */
PlStatus pl_unigram_ready(PlModel *m);
void pl_prefixes_free(struct PlPrefixes *p);
void pl_model_free(PlModel *m);
void pl_model_work_free(PlModelWork *w);

/* ---- using ---- */
/* The tokens of one word (n > 0), until the next call. Errors: OOM, INTERRUPT, ARG (too long), FORMAT (a character without a
 * token, and there is none for the unknown). */
PlStatus pl_model_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, const PlUnit **units, size_t *count);
PlStatus pl_bpe_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, PlUnits *out);
PlStatus pl_unigram_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, PlUnits *out);
PlStatus pl_wordpiece_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, PlUnits *out);

#endif
