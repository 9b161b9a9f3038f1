/* SPDX-License-Identifier: MIT
 * Unigram tokens (Kudo 2018): of all ways to write a word in tokens the one whose scores add up to most, found by Viterbi's
 * algorithm. Tokens are found by a trie over bytes, whose children lie in one hash table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"
#include "engine/text/model.h"
#include "kernels/kernel.h"

static const double unknown_penalty = 10; /* an unknown character costs this more than the rarest token */

typedef struct Edge {
  uint64_t key;     /* node << 8 | byte; UINT64_MAX: free */
  int32_t node, id; /* where it leads, and the token that ends there, or -1 */
} Edge;

typedef struct PlPrefixes {
  Edge *edge;
  size_t nedge; /* a power of two */
} PlPrefixes;

static Edge *edge_at(const PlPrefixes *p, int32_t node, unsigned char byte) {
  uint64_t key = (uint64_t)(uint32_t)node << 8 | byte, h = key * 0x9e3779b97f4a7c15u;
  size_t i = (h ^ h >> 32) & (p->nedge - 1);
  while (p->edge[i].key != UINT64_MAX && p->edge[i].key != key) i = (i + 1) & (p->nedge - 1);
  return &p->edge[i];
}

PlStatus pl_unigram_ready(PlModel *m) {
  const PlVocab *v = &m->vocab;
  size_t n = 64;
  while (n < v->used * 2) n *= 2;
  PlPrefixes *p = m->prefixes = calloc(1, sizeof *p);
  if (p) p->edge = malloc(n * sizeof *p->edge);
  if (!p || !p->edge) PL_FAIL(PL_ERR_OOM, "tokenizer: out of memory");
  p->nedge = n;
  memset(p->edge, -1, n * sizeof *p->edge);
  int32_t nodes = 1;
  m->least = INFINITY;
  for (int64_t id = 0; id < v->n; id++) {
    size_t len;
    const char *s = pl_vocab_text(v, id, &len);
    if (!s || isnan(m->score[id])) continue;
    if (m->score[id] < m->least) m->least = m->score[id];
    Edge *e = NULL;
    for (size_t i = 0, node = 0; i < len; i++, node = (size_t)e->node) {
      e = edge_at(p, (int32_t)node, (unsigned char)s[i]);
      if (e->key == UINT64_MAX) *e = (Edge){(uint64_t)node << 8 | (unsigned char)s[i], nodes++, -1};
    }
    if (e) e->id = (int32_t)id; /* of equal texts the last, as in the reference */
  }
  return PL_OK;
}

void pl_prefixes_free(PlPrefixes *p) {
  if (!p) return;
  free(p->edge);
  free(p);
}

static double rounded(const PlModel *m, double score) { return m->single ? (double)(float)score : score; }

/* What is compared is not rounded, what is kept is, as in sentencepiece. */
static bool better(const PlBest *to, double score) { return to->from == UINT32_MAX || score > to->score; }

static void offer(const PlModel *m, PlBest *to, double score, int32_t id, size_t from) {
  if (!better(to, score)) return;
  *to = (PlBest){rounded(m, score), id, (uint32_t)from};
}

static PlStatus no_unknown(const char *s, size_t n) {
  PL_FAIL(PL_ERR_FORMAT, "encode: '%.*s' has no token, and the tokenizer has none for the unknown", (int)n, s);
}

/* Fills best[0 … n]. */
static PlStatus viterbi(const PlModel *m, PlModelWork *w, const char *s, size_t n) {
  PL_TRY(pl_grow(&w->best, &w->best_room, n + 1, sizeof *w->best));
  PlBest *best = w->best;
  for (size_t i = 0; i <= n; i++) best[i] = (PlBest){0, 0, UINT32_MAX};
  for (size_t i = 0, len, step = 0; i < n; i += len, step++) {
    double here = best[i].score;
    bool single = false;
    (void)pl_char_at(s + i, n - i, &len);
    int32_t node = 0;
    for (size_t k = i; k < n; k++) {
      const Edge *e = edge_at(m->prefixes, node, (unsigned char)s[k]);
      if (e->key == UINT64_MAX) break;
      node = e->node;
      if (e->id < 0) continue;
      offer(m, &best[k + 1], here + m->score[e->id], e->id, i);
      single = single || k + 1 == i + len;
    }
    double unknown = rounded(m, rounded(m, m->least - unknown_penalty) + here);
    if (!single && m->unknown < 0 && better(&best[i + len], unknown)) return no_unknown(s + i, len);
    if (!single) offer(m, &best[i + len], unknown, m->unknown, i);
    if (step % 65536 == 65535) PL_TRY(plk_poll());
  }
  return PL_OK;
}

/* A part of the word whose token is the unknown one: perhaps it is a token after all (unknown characters in a row together),
 * or has its bytes. */
static PlStatus push_unknown(const PlModel *m, const char *s, size_t n, PlUnits *out) {
  int32_t id = pl_vocab_find(&m->vocab, s, n);
  if (id >= 0 && isnan(m->score[id])) id = -1;
  bool bytes = id < 0 && m->fallback;
  for (size_t i = 0; bytes && i < n; i++) bytes = m->byte_id[(unsigned char)s[i]] >= 0;
  if (!bytes) return pl_units_push(out, id >= 0 ? id : m->unknown, n);
  for (size_t i = 0; i < n; i++) PL_TRY(pl_units_push(out, m->byte_id[(unsigned char)s[i]], i == 0 ? n : 0));
  return PL_OK;
}

PlStatus pl_unigram_word(const PlModel *m, PlModelWork *w, const char *word, size_t n, PlUnits *out) {
  PL_TRY(viterbi(m, w, word, n));
  const PlBest *best = w->best;
  size_t count = 0;
  for (size_t at = n; at > 0; at = best[at].from) count++;
  PL_TRY(pl_grow(&w->symbol, &w->symbol_room, count, sizeof *w->symbol)); /* the path, turned round */
  for (size_t at = n, k = count; at > 0; at = best[at].from)
    w->symbol[--k] = (PlSymbol){.id = best[at].id, .at = best[at].from, .len = (uint32_t)(at - best[at].from)};
  for (size_t k = 0; k < count; k++) {
    PlSymbol x = w->symbol[k];
    if (x.id != m->unknown) {
      PL_TRY(pl_units_push(out, x.id, x.len));
      continue;
    }
    for (; k + 1 < count && w->symbol[k + 1].id == m->unknown; k++) x.len += w->symbol[k + 1].len;
    PL_TRY(push_unknown(m, word + x.at, x.len, out));
  }
  return PL_OK;
}
