/* SPDX-License-Identifier: MIT
 * The inside of a tokenizer: vocabulary, merges, words to ids. Who calls: tokenizer.c, which fills it from a file, and
 * pre_tokenizer.c, which cuts text into words. */
#ifndef PL_ENGINE_TEXT_BPE_H
#define PL_ENGINE_TEXT_BPE_H

#include "engine/text/tokenizer.h"

typedef struct PlToken {
  uint32_t at, len;             /* its text in the arena */
  uint32_t bytes_at, bytes_len; /* what it means */
  bool present, special;
} PlToken;

typedef struct PlMerge {
  uint64_t pair; /* left id << 32 | right id; PL_NO_PAIR: free */
  int32_t rank, id;
} PlMerge;
#define PL_NO_PAIR UINT64_MAX

typedef struct PlIds {
  int32_t *v;
  size_t n, room;
} PlIds;

typedef struct PlSymbol {
  int32_t id, prev, next; /* -1: none; id -1: merged into its left neighbour */
} PlSymbol;

typedef struct PlPair {
  int32_t rank, left, id; /* symbols left and its next become id */
  int32_t lid, rid;       /* ids that they had when this was noted */
} PlPair;

typedef struct PlBpe {
  PlToken *token; /* by id */
  int64_t n, room;
  char *arena;
  size_t used, arena_room;
  int32_t *slot; /* open addressing: text -> id, -1 free */
  size_t nslot;
  PlMerge *merge;
  size_t nmerge;        /* a power of two, or 0 */
  bool chars;           /* symbols are characters of UTF-8, not bytes in the alphabet below */
  int32_t byte_id[256]; /* with chars: of the tokens <0x00> … <0xFF>, for characters without a token; -1: none */
  int32_t unknown;
  bool fuse_unknown; /* unknown characters in a row are one */
  bool whole_first;  /* ignore_merges: a word that is a token is that token */
  /* What tokens with chars stand for, besides their text: */
  bool named_bytes;        /* <0xE2> is a byte */
  char *from[4], *into[4]; /* text of a token that is replaced, one after the other; owned */
  int nreplace;
  PlSymbol *symbol; /* work space of one word */
  PlPair *heap;
  size_t symbol_room, heap_room, nheap;
  struct PlWordCache *cache;
} PlBpe;

PlStatus pl_ids_push(PlIds *ids, int32_t id);
/* The byte-level alphabet: bytes that print are themselves, the others for U+0100 on, in order. Writes the UTF-8
 * of a byte's character, returns its length. */
int pl_byte_char(uint8_t byte, char *to);

PlStatus pl_bpe_add(PlBpe *b, int64_t id, const char *text, size_t n);
/* The token means what another text would mean. */
PlStatus pl_bpe_means(PlBpe *b, int32_t id, const char *text, size_t n);
int32_t pl_bpe_find(const PlBpe *b, const char *text, size_t n);
/* Call after the last token: fills byte_id (with chars only where `fallback`), makes room for nmerge merges. */
PlStatus pl_bpe_ready(PlBpe *b, size_t nmerge, bool fallback);
/* The pair (left, right) becomes id; the first of equal pairs counts. */
void pl_bpe_merge(PlBpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
const PlMerge *pl_bpe_find_merge(const PlBpe *b, int32_t left, int32_t right);
/* Appends the ids of one word. */
PlStatus pl_bpe_word(PlBpe *b, const char *word, size_t n, PlIds *out);
void pl_bpe_free(PlBpe *b);

#endif
