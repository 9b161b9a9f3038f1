/* SPDX-License-Identifier: MIT
 * See bpe_train.h. Counts of pairs are kept up to date word by word; a heap holds what they were when they last rose, and an
 * entry that is no longer true is put back with its true count. */
#include "engine/text/bpe_train.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/growing.h"
#include "engine/text/normalize.h"
#include "kernels/kernel.h"

typedef struct Word {
  uint32_t at, len; /* of its text in the arena; of its symbols later */
  int64_t count;
} Word;

typedef struct Pair {
  int32_t left, right;
  int64_t count;
  bool touched;  /* rose in this merge */
  int32_t *word; /* where it occurs or did: numbers of words, may repeat */
  size_t n, room;
} Pair;

typedef struct Entry {
  int64_t count;
  int32_t left, right;
  int32_t pair;
} Entry;

typedef struct Merge {
  int32_t left, right, result;
} Merge;

/* The text of a symbol, in the arena behind the words. */
typedef struct Token {
  uint32_t at, len;
} Token;

struct PlTrainer {
  PlPattern *pattern;
  PlMatcher *matcher;
  char *arena;
  size_t used, arena_room;
  Word *word;
  size_t nword, word_room;
  int32_t *slot; /* text -> word */
  size_t nslot;
  int32_t *symbol; /* of all words; a word's are at its text's place */
  Pair *pair;
  size_t npair, pair_room;
  int32_t *pair_slot;
  size_t npair_slot;
  Entry *heap;
  size_t nheap, heap_room;
  int32_t *touched;
  size_t ntouched, touched_room;
  Token *token; /* symbols from 256 on */
  size_t ntoken, token_room;
  Merge *merge;
  size_t nmerge, merge_room;
};

/* ---- symbols of bytes --------------------------------------------------------------------------------------------- */

/* Bytes whose character is below U+0100 are themselves and come first, each in order. */
void pl_trainer_alphabet(uint8_t byte[256]) {
  int n = 0;
  for (int high = 0; high < 2; high++)
    for (int b = 0; b < 256; b++) {
      char text[2];
      pl_byte_char((uint8_t)b, text);
      if (((unsigned char)text[0] >= 0xC4) == high) byte[n++] = (uint8_t)b;
    }
}

/* ---- words ---------------------------------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *s, size_t n) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
  return h ^ h >> 29;
}

static int32_t *find_word(PlTrainer *t, const char *s, size_t n) {
  size_t i = hash_text(s, n) & (t->nslot - 1);
  while (t->slot[i] >= 0) {
    const Word *w = &t->word[t->slot[i]];
    if (w->len == n && memcmp(t->arena + w->at, s, n) == 0) break;
    i = (i + 1) & (t->nslot - 1);
  }
  return &t->slot[i];
}

static PlStatus room_for_word(PlTrainer *t) {
  if (t->nword * 2 < t->nslot) return PL_OK;
  size_t n = t->nslot ? t->nslot * 2 : 4096;
  int32_t *slot = malloc(n * sizeof *slot);
  if (!slot) PL_FAIL(PL_ERR_OOM, "train_bpe: out of memory");
  memset(slot, 0xff, n * sizeof *slot);
  free(t->slot);
  t->slot = slot;
  t->nslot = n;
  for (size_t k = 0; k < t->nword; k++) *find_word(t, t->arena + t->word[k].at, t->word[k].len) = (int32_t)k;
  return PL_OK;
}

static PlStatus count_word(void *ctx, const char *s, size_t n, bool match) {
  PlTrainer *t = ctx;
  (void)match; /* what is between is a word, too */
  PL_TRY(room_for_word(t));
  int32_t *slot = find_word(t, s, n);
  if (*slot >= 0) {
    t->word[*slot].count++;
    return PL_OK;
  }
  if (t->used + n > INT32_MAX) PL_FAIL(PL_ERR_ARG, "train_bpe: more than 2 GiB of different words");
  PL_TRY(pl_grow(&t->arena, &t->arena_room, t->used + n, 1));
  PL_TRY(pl_grow(&t->word, &t->word_room, t->nword + 1, sizeof *t->word));
  memcpy(t->arena + t->used, s, n);
  t->word[t->nword] = (Word){.at = (uint32_t)t->used, .len = (uint32_t)n, .count = 1};
  t->used += n;
  *slot = (int32_t)t->nword++;
  return PL_OK;
}

PlStatus pl_trainer_feed(PlTrainer *t, const char *text, size_t n) {
  return pl_pattern_each(t->pattern, t->matcher, text, n, false, count_word, t);
}

/* ---- pairs ---------------------------------------------------------------------------------------------------------- */

static size_t pair_place(const PlTrainer *t, int32_t left, int32_t right) {
  uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
  size_t i = (h ^ h >> 32) & (t->npair_slot - 1);
  for (; t->pair_slot[i] >= 0; i = (i + 1) & (t->npair_slot - 1)) {
    const Pair *p = &t->pair[t->pair_slot[i]];
    if (p->left == left && p->right == right) break;
  }
  return i;
}

static PlStatus room_for_pair(PlTrainer *t) {
  if (t->npair * 2 < t->npair_slot) return PL_OK;
  size_t n = t->npair_slot ? t->npair_slot * 2 : 4096;
  int32_t *slot = malloc(n * sizeof *slot);
  if (!slot) PL_FAIL(PL_ERR_OOM, "train_bpe: out of memory");
  memset(slot, 0xff, n * sizeof *slot);
  free(t->pair_slot);
  t->pair_slot = slot;
  t->npair_slot = n;
  for (size_t k = 0; k < t->npair; k++) slot[pair_place(t, t->pair[k].left, t->pair[k].right)] = (int32_t)k;
  return PL_OK;
}

/* Adds to a pair's count; where it rises in a word, the word is noted. */
static PlStatus change_pair(PlTrainer *t, int32_t left, int32_t right, int64_t by, int32_t word) {
  PL_TRY(room_for_pair(t));
  size_t i = pair_place(t, left, right);
  if (t->pair_slot[i] < 0) {
    PL_TRY(pl_grow(&t->pair, &t->pair_room, t->npair + 1, sizeof *t->pair));
    t->pair[t->npair] = (Pair){.left = left, .right = right};
    t->pair_slot[i] = (int32_t)t->npair++;
  }
  Pair *p = &t->pair[t->pair_slot[i]];
  p->count += by;
  if (by > 0 && !p->touched) {
    PL_TRY(pl_grow(&t->touched, &t->touched_room, t->ntouched + 1, sizeof *t->touched));
    t->touched[t->ntouched++] = t->pair_slot[i];
    p->touched = true;
  }
  if (by < 0 || (p->n > 0 && p->word[p->n - 1] == word)) return PL_OK;
  PL_TRY(pl_grow(&p->word, &p->room, p->n + 1, sizeof *p->word));
  p->word[p->n++] = word;
  return PL_OK;
}

/* ---- the heap: most frequent first, then smaller numbers -------------------------------------------------------------- */

static bool before(const Entry *a, const Entry *b) {
  if (a->count != b->count) return a->count > b->count;
  return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static PlStatus push(PlTrainer *t, int32_t pair) {
  PL_TRY(pl_grow(&t->heap, &t->heap_room, t->nheap + 1, sizeof *t->heap));
  const Pair *p = &t->pair[pair];
  Entry e = {.count = p->count, .left = p->left, .right = p->right, .pair = pair};
  size_t i = t->nheap++;
  for (; i > 0 && before(&e, &t->heap[(i - 1) / 2]); i = (i - 1) / 2) t->heap[i] = t->heap[(i - 1) / 2];
  t->heap[i] = e;
  return PL_OK;
}

static Entry pop(PlTrainer *t) {
  Entry top = t->heap[0], last = t->heap[--t->nheap];
  size_t i = 0;
  for (;;) {
    size_t k = 2 * i + 1;
    if (k >= t->nheap) break;
    if (k + 1 < t->nheap && before(&t->heap[k + 1], &t->heap[k])) k++;
    if (!before(&t->heap[k], &last)) break;
    t->heap[i] = t->heap[k];
    i = k;
  }
  t->heap[i] = last;
  return top;
}

/* ---- merging ------------------------------------------------------------------------------------------------------------ */

/* Writes the new symbol wherever the pair occurs in a word, left to right, and moves the neighbours' counts. */
static PlStatus merge_in_word(PlTrainer *t, int32_t number, int32_t left, int32_t right, int32_t fresh) {
  Word *w = &t->word[number];
  int32_t *s = t->symbol + w->at;
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->len; i++, n++) {
    if (i + 1 >= w->len || s[i] != left || s[i + 1] != right) {
      s[n] = s[i];
      continue;
    }
    if (n > 0) {
      PL_TRY(change_pair(t, s[n - 1], left, -w->count, number));
      PL_TRY(change_pair(t, s[n - 1], fresh, w->count, number));
    }
    if (i + 2 < w->len) {
      PL_TRY(change_pair(t, right, s[i + 2], -w->count, number));
      PL_TRY(change_pair(t, fresh, s[i + 2], w->count, number));
    }
    s[n] = fresh;
    i++;
  }
  w->len = n;
  return PL_OK;
}

static PlStatus push_touched(PlTrainer *t) {
  for (size_t i = 0; i < t->ntouched; i++) {
    t->pair[t->touched[i]].touched = false;
    PL_TRY(push(t, t->touched[i]));
  }
  t->ntouched = 0;
  return PL_OK;
}

static PlStatus first_pairs(PlTrainer *t) {
  int32_t symbol[256];
  uint8_t byte[256];
  pl_trainer_alphabet(byte);
  for (int k = 0; k < 256; k++) symbol[byte[k]] = k;
  t->symbol = malloc((t->used + 1) * sizeof *t->symbol);
  if (!t->symbol) PL_FAIL(PL_ERR_OOM, "train_bpe: out of memory");
  for (size_t i = 0; i < t->used; i++) t->symbol[i] = symbol[(unsigned char)t->arena[i]];
  for (size_t k = 0; k < t->nword; k++) {
    const Word *w = &t->word[k];
    for (uint32_t i = 0; i + 1 < w->len; i++) PL_TRY(change_pair(t, t->symbol[w->at + i], t->symbol[w->at + i + 1], w->count, (int32_t)k));
  }
  return push_touched(t);
}

/* The pair's words, which the merging itself may not add to: the list is taken away from it. */
static PlStatus merge_pair(PlTrainer *t, int32_t pair, int32_t result) {
  Pair p = t->pair[pair];
  t->pair[pair].word = NULL;
  t->pair[pair].n = t->pair[pair].room = 0;
  PlStatus st = PL_OK;
  for (size_t i = 0; i < p.n && st == PL_OK; i++) st = merge_in_word(t, p.word[i], p.left, p.right, result);
  free(p.word);
  t->pair[pair].count = 0;
  return st == PL_OK ? push_touched(t) : st;
}

/* Appends a symbol's text to the arena. */
static PlStatus append(PlTrainer *t, int32_t symbol, const uint8_t *byte) {
  uint32_t len = symbol < 256 ? 1 : t->token[symbol - 256].len;
  PL_TRY(pl_grow(&t->arena, &t->arena_room, t->used + len, 1));
  if (symbol < 256) t->arena[t->used] = (char)byte[symbol];
  else memcpy(t->arena + t->used, t->arena + t->token[symbol - 256].at, len);
  t->used += len;
  return PL_OK;
}

/* The symbol that a merge makes: a known one of the same text, or the next. */
static PlStatus result_of(PlTrainer *t, const Entry *e, const uint8_t *byte, int32_t *result) {
  Token k = {.at = (uint32_t)t->used};
  if (t->used > INT32_MAX) PL_FAIL(PL_ERR_ARG, "train_bpe: more than 2 GiB of tokens");
  PL_TRY(append(t, e->left, byte));
  PL_TRY(append(t, e->right, byte));
  k.len = (uint32_t)t->used - k.at;
  for (size_t i = 0; i < t->ntoken; i++)
    if (t->token[i].len == k.len && memcmp(t->arena + t->token[i].at, t->arena + k.at, k.len) == 0) {
      *result = 256 + (int32_t)i;
      t->used = k.at;
      return PL_OK;
    }
  PL_TRY(pl_grow(&t->token, &t->token_room, t->ntoken + 1, sizeof *t->token));
  *result = 256 + (int32_t)t->ntoken;
  t->token[t->ntoken++] = k;
  return PL_OK;
}

PlStatus pl_trainer_run(PlTrainer *t, int64_t nsymbol, int64_t min_count) {
  uint8_t byte[256];
  if (t->symbol) PL_FAIL(PL_ERR_STATE, "train_bpe: this trainer has run");
  pl_trainer_alphabet(byte);
  PL_TRY(first_pairs(t));
  while ((int64_t)t->ntoken + 256 < nsymbol && t->nheap > 0) {
    Entry e = pop(t);
    if (e.count != t->pair[e.pair].count) {
      if (t->pair[e.pair].count > 0) PL_TRY(push(t, e.pair));
      continue;
    }
    if (e.count < 1 || e.count < min_count) break;
    Merge m = {.left = e.left, .right = e.right};
    PL_TRY(result_of(t, &e, byte, &m.result));
    PL_TRY(pl_grow(&t->merge, &t->merge_room, t->nmerge + 1, sizeof *t->merge));
    t->merge[t->nmerge++] = m;
    PL_TRY(merge_pair(t, e.pair, m.result));
    PL_TRY(plk_poll());
  }
  return PL_OK;
}

int64_t pl_trainer_merges(const PlTrainer *t) { return (int64_t)t->nmerge; }

void pl_trainer_merge(const PlTrainer *t, int64_t k, int32_t *left, int32_t *right, int32_t *result) {
  *left = t->merge[k].left;
  *right = t->merge[k].right;
  *result = t->merge[k].result;
}

PlStatus pl_trainer_new(PlTrainer **out) {
  PlTrainer *t = calloc(1, sizeof *t);
  if (!t) PL_FAIL(PL_ERR_OOM, "train_bpe: out of memory");
  PlStatus st = pl_pattern_new(&t->pattern, "train_bpe", pl_gpt2_pattern, strlen(pl_gpt2_pattern));
  if (st == PL_OK) st = pl_matcher_new(&t->matcher);
  if (st != PL_OK) {
    pl_trainer_release(t);
    return st;
  }
  *out = t;
  return PL_OK;
}

void pl_trainer_release(PlTrainer *t) {
  if (!t) return;
  pl_pattern_release(t->pattern);
  pl_matcher_release(t->matcher);
  for (size_t k = 0; k < t->npair; k++) free(t->pair[k].word);
  free(t->arena);
  free(t->word);
  free(t->slot);
  free(t->symbol);
  free(t->pair);
  free(t->pair_slot);
  free(t->heap);
  free(t->touched);
  free(t->token);
  free(t->merge);
  free(t);
}
