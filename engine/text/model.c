/* SPDX-License-Identifier: MIT
 * See model.h. What all models share: the cache of words, WordPiece and WordLevel, which are small. */
#include "engine/text/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"
#include "engine/text/normalize.h"

enum { CACHE_WORDS = 1 << 14, CACHE_BYTES = 31, CACHE_UNITS = 8 };

/* Words seen lately, one place each. */
typedef struct CachedWord {
  uint8_t len, n;
  char word[CACHE_BYTES - 1];
  PlUnit unit[CACHE_UNITS];
} CachedWord;

struct PlWordCache {
  CachedWord w[CACHE_WORDS];
};

PlStatus pl_units_push(PlUnits *u, int32_t id, size_t len) {
  if (u->n == u->room) PL_TRY(pl_grow(&u->v, &u->room, u->n + 1, sizeof *u->v));
  u->v[u->n++] = (PlUnit){id, (uint32_t)len};
  return PL_OK;
}

void pl_model_bytes(PlModel *m) {
  for (int k = 0; k < 256; k++) {
    char s[8];
    int n = m->alphabet ? pl_byte_char((uint8_t)k, s) : snprintf(s, sizeof s, "<0x%02X>", (unsigned)k);
    m->byte_id[k] = m->alphabet || m->fallback ? pl_vocab_find(&m->vocab, s, (size_t)n) : -1;
  }
}

static PlStatus no_unknown(const char *word, size_t n) {
  PL_FAIL(PL_ERR_FORMAT, "encode: '%.*s' has no token, and the tokenizer has none for the unknown", (int)(n < 40 ? n : 40), word);
}

PlStatus pl_wordpiece_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, PlUnits *out) {
  size_t np = m->prefix ? strlen(m->prefix) : 0, from = out->n;
  bool known = pl_char_count(word, n) <= (size_t)m->longest;
  PL_TRY(pl_grow(&w->text, &w->text_room, n + np + 1, 1));
  for (size_t at = 0, end; known && at < n; at = end) {
    size_t p = at > 0 ? np : 0;
    if (p) memcpy(w->text, m->prefix, p);
    memcpy(w->text + p, word + at, n - at);
    int32_t id = -1;
    for (end = n; end > at; end = at + pl_char_before(word + at, end - at)) {
      id = pl_vocab_find(&m->vocab, w->text, p + end - at);
      if (id >= 0) break;
    }
    known = id >= 0;
    if (known) PL_TRY(pl_units_push(out, id, end - at));
  }
  if (known) return PL_OK;
  out->n = from;
  return m->unknown < 0 ? no_unknown(word, n) : pl_units_push(out, m->unknown, n);
}

static PlStatus fresh_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, PlUnits *out) {
  if (n > INT32_MAX / 4) PL_FAIL(PL_ERR_ARG, "encode: a word of %zu bytes", n);
  switch (m->kind) {
  case PL_MODEL_BPE: return pl_bpe_word(m, w, word, n, out);
  case PL_MODEL_UNIGRAM: return pl_unigram_word(m, w, word, n, out);
  case PL_MODEL_WORDPIECE: return pl_wordpiece_word(m, w, word, n, out);
  default: break;
  }
  int32_t id = pl_vocab_find(&m->vocab, word, n);
  if (id < 0) id = m->unknown;
  return id < 0 ? no_unknown(word, n) : pl_units_push(out, id, n);
}

PlStatus pl_model_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, const PlUnit **units, size_t *count) {
  if (!w->cache) w->cache = calloc(1, sizeof *w->cache); /* without memory: no cache */
  CachedWord *c = n < CACHE_BYTES && w->cache ? &w->cache->w[pl_text_hash(word, n) % CACHE_WORDS] : NULL;
  if (!c || c->len != n || memcmp(c->word, word, n) != 0) {
    w->units.n = 0;
    PL_TRY(fresh_word(m, w, word, n, &w->units));
    *units = w->units.v;
    *count = w->units.n;
    if (!c || w->units.n > CACHE_UNITS) return PL_OK;
    c->len = (uint8_t)n;
    c->n = (uint8_t)w->units.n;
    memcpy(c->word, word, n);
    if (c->n) memcpy(c->unit, w->units.v, c->n * sizeof *c->unit);
  }
  *units = c->unit;
  *count = c->n;
  return PL_OK;
}

void pl_model_free(PlModel *m) {
  pl_vocab_free(&m->vocab);
  pl_prefixes_free(m->prefixes);
  free(m->merge);
  free(m->prefix);
  free(m->suffix);
  free(m->score);
}

void pl_model_work_free(PlModelWork *w) {
  free(w->symbol);
  free(w->heap);
  free(w->best);
  free(w->text);
  free(w->units.v);
  free(w->cache);
}
