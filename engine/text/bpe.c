/* SPDX-License-Identifier: MIT
 * Byte pair encoding (Sennrich 2016) of one word. A word of n bytes takes O(n log n): possible merges wait in a heap, ordered
 * by rank and place; those whose symbols have changed since are thrown away when they come up. Short words, which are nearly
 * all, look through their few pairs instead. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"
#include "engine/text/model.h"
#include "engine/text/normalize.h"
#include "kernels/kernel.h"

/* ---- merges -------------------------------------------------------------------------------------------------------------- */

PlStatus pl_bpe_room(PlModel *m, size_t count) {
  size_t n = 16;
  while (n < count * 2) n *= 2;
  m->merge = malloc(n * sizeof *m->merge);
  if (!m->merge) PL_FAIL(PL_ERR_OOM, "tokenizer: out of memory");
  for (size_t i = 0; i < n; i++) m->merge[i].pair = PL_NO_PAIR;
  m->nmerge = n;
  return PL_OK;
}

static size_t merge_slot(const PlModel *m, uint64_t pair) {
  uint64_t h = pair * 0x9e3779b97f4a7c15u;
  size_t i = (h ^ h >> 32) & (m->nmerge - 1);
  while (m->merge[i].pair != PL_NO_PAIR && m->merge[i].pair != pair) i = (i + 1) & (m->nmerge - 1);
  return i;
}

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

void pl_bpe_merge(PlModel *m, int32_t left, int32_t right, int32_t rank, int32_t id) {
  uint64_t pair = pair_of(left, right);
  PlMerge *to = &m->merge[merge_slot(m, pair)];
  if (to->pair == PL_NO_PAIR) *to = (PlMerge){.pair = pair, .rank = rank, .id = id};
}

static const PlMerge *find_merge(const PlModel *m, int32_t left, int32_t right) {
  const PlMerge *at = &m->merge[merge_slot(m, pair_of(left, right))];
  return at->pair == PL_NO_PAIR ? NULL : at;
}

/* ---- one word ------------------------------------------------------------------------------------------------------------- */

static bool before(const PlPair *a, const PlPair *b) { return a->rank != b->rank ? a->rank < b->rank : a->left < b->left; }

static PlStatus heap_push(PlModelWork *w, PlPair p) {
  PL_TRY(pl_grow(&w->heap, &w->heap_room, w->nheap + 1, sizeof *w->heap));
  size_t i = w->nheap++;
  for (; i > 0 && before(&p, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = p;
  return PL_OK;
}

static PlPair heap_pop(PlModelWork *w) {
  PlPair top = w->heap[0], last = w->heap[--w->nheap];
  size_t i = 0;
  for (;;) {
    size_t k = 2 * i + 1;
    if (k >= w->nheap) break;
    if (k + 1 < w->nheap && before(&w->heap[k + 1], &w->heap[k])) k++;
    if (!before(&w->heap[k], &last)) break;
    w->heap[i] = w->heap[k];
    i = k;
  }
  w->heap[i] = last;
  return top;
}

/* Notes the merge of symbol `left` with its right neighbour, if there is one. */
static PlStatus note_pair(const PlModel *m, PlModelWork *w, int32_t left) {
  if (left < 0 || w->symbol[left].next < 0) return PL_OK;
  int32_t lid = w->symbol[left].id, rid = w->symbol[w->symbol[left].next].id;
  const PlMerge *found = find_merge(m, lid, rid);
  if (!found) return PL_OK;
  return heap_push(w, (PlPair){.rank = found->rank, .left = left, .id = found->id, .lid = lid, .rid = rid});
}

static void join(PlSymbol *s, int32_t left, int32_t id) {
  int32_t right = s[left].next;
  s[left].id = id;
  s[left].len += s[right].len;
  s[left].next = s[right].next;
  s[right].id = -1;
  if (s[right].next >= 0) s[s[right].next].prev = left;
}

static PlStatus merge_all(const PlModel *m, PlModelWork *w, int32_t n) {
  PlSymbol *s = w->symbol;
  w->nheap = 0;
  for (int32_t i = 0; i + 1 < n; i++) PL_TRY(note_pair(m, w, i));
  for (int64_t step = 0; w->nheap > 0; step++) {
    PlPair p = heap_pop(w);
    if (s[p.left].id != p.lid || s[p.left].next < 0 || s[s[p.left].next].id != p.rid) continue;
    join(s, p.left, p.id);
    PL_TRY(note_pair(m, w, s[p.left].prev));
    PL_TRY(note_pair(m, w, p.left));
    if (step % 65536 == 65535) PL_TRY(plk_poll());
  }
  return PL_OK;
}

enum { SHORT = 32 };

/* The same for few symbols: rank[i] of the pair that begins at i, the least is merged. */
static void merge_few(const PlModel *m, PlSymbol *s, int32_t n) {
  const PlMerge *pair[SHORT];
  for (int32_t i = 0; i < n; i++) pair[i] = i + 1 < n ? find_merge(m, s[i].id, s[i + 1].id) : NULL;
  for (;;) {
    int32_t at = -1;
    for (int32_t i = 0; i >= 0; i = s[i].next)
      if (pair[i] && (at < 0 || pair[i]->rank < pair[at]->rank)) at = i;
    if (at < 0) return;
    pair[s[at].next] = NULL;
    join(s, at, pair[at]->id);
    int32_t prev = s[at].prev, next = s[at].next;
    pair[at] = next >= 0 ? find_merge(m, s[at].id, s[next].id) : NULL;
    if (prev >= 0) pair[prev] = find_merge(m, s[prev].id, s[at].id);
  }
}

typedef struct First {
  PlModelWork *w;
  int32_t k;        /* symbols so far */
  uint32_t at;      /* bytes so far */
  bool waits;       /* an unknown character that has no symbol yet */
  uint32_t unknown; /* its bytes */
} First;

static PlStatus symbol(First *f, int32_t id, uint32_t len) {
  PL_TRY(pl_grow(&f->w->symbol, &f->w->symbol_room, (size_t)f->k + 1, sizeof *f->w->symbol));
  f->w->symbol[f->k] = (PlSymbol){.id = id, .prev = f->k - 1, .next = f->k + 1, .at = f->at, .len = len};
  f->k++;
  f->at += len;
  return PL_OK;
}

/* The tokens of a text's bytes, if every byte has one. */
static PlStatus by_bytes(const PlModel *m, First *f, const char *s, size_t n, bool *done) {
  *done = false;
  for (size_t i = 0; i < n; i++)
    if (m->byte_id[(unsigned char)s[i]] < 0) return PL_OK;
  for (size_t i = 0; i < n; i++) PL_TRY(symbol(f, m->byte_id[(unsigned char)s[i]], 1));
  *done = true;
  return PL_OK;
}

/* A character's text as the vocabulary has it: in the bytes' alphabet, with what stands around characters inside and at the
 * end of a word. */
static PlStatus spell(const PlModel *m, PlModelWork *w, const char *s, size_t len, bool first, bool last, size_t *n) {
  size_t np = !first && m->prefix ? strlen(m->prefix) : 0, ns = last && m->suffix ? strlen(m->suffix) : 0, k = np;
  PL_TRY(pl_grow(&w->text, &w->text_room, 2 * len + np + ns + 8, 1));
  if (np) memcpy(w->text, m->prefix, np);
  for (size_t i = 0; i < len; i++) {
    if (m->alphabet) k += (size_t)pl_byte_char((uint8_t)s[i], w->text + k);
    else w->text[k++] = s[i];
  }
  if (ns) memcpy(w->text + k, m->suffix, ns);
  *n = k + ns;
  return PL_OK;
}

/* The first symbols: one a byte of the alphabet, or one a character. Those without a token become the tokens of their bytes,
 * or the unknown one, or nothing. An unknown one waits until a known character comes, as in the reference. */
static PlStatus first_symbols(const PlModel *m, PlModelWork *w, const char *word, size_t n, int32_t *count) {
  First f = {.w = w};
  const bool plain = !m->prefix && !m->suffix;
  for (size_t i = 0, len; i < n; i += len) {
    len = 1;
    if (!m->alphabet) (void)pl_char_at(word + i, n - i, &len);
    int32_t id;
    const char *s = word + i;
    size_t ns = len;
    if (plain) {
      id = m->alphabet ? m->byte_id[(unsigned char)*s] : pl_vocab_find(&m->vocab, s, len);
    } else {
      PL_TRY(spell(m, w, s, len, i == 0, i + len == n, &ns));
      s = w->text;
      id = pl_vocab_find(&m->vocab, s, ns);
    }
    bool done = false;
    if (id < 0 && m->fallback && !m->alphabet) PL_TRY(by_bytes(m, &f, s, ns, &done));
    if (done || (id < 0 && m->unknown < 0)) continue;
    if (f.waits && (id >= 0 || !m->fuse_unknown)) {
      PL_TRY(symbol(&f, m->unknown, f.unknown));
      f.unknown = 0;
    }
    f.waits = id < 0;
    if (id >= 0) PL_TRY(symbol(&f, id, (uint32_t)len));
    else f.unknown += (uint32_t)len;
  }
  if (f.waits) PL_TRY(symbol(&f, m->unknown, f.unknown));
  if (f.k > 0) w->symbol[f.k - 1].next = -1;
  *count = f.k;
  return PL_OK;
}

PlStatus pl_bpe_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, PlUnits *out) {
  int32_t count = 0, whole = -1;
  if (m->whole_first && n < 1 << 16) {
    PlModel bare = {.alphabet = m->alphabet};
    size_t len;
    PL_TRY(spell(&bare, w, word, n, true, true, &len));
    whole = pl_vocab_find(&m->vocab, w->text, len);
  }
  if (whole >= 0) return pl_units_push(out, whole, n);
  PL_TRY(first_symbols(m, w, word, n, &count));
  if (count <= SHORT) {
    if (count > 1) merge_few(m, w->symbol, count);
  } else {
    PL_TRY(merge_all(m, w, count));
  }
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = w->symbol[i].next) PL_TRY(pl_units_push(out, w->symbol[i].id, w->symbol[i].len));
  return PL_OK;
}
