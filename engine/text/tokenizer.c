/* SPDX-License-Identifier: MIT
 * Encoding and looking up; see tokenizer.h. Reading the file is in tokenizer_json.c. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_file.h"

void pl_tokenizer_release(PlTokenizer *t) {
  if (!t) return;
  pl_bpe_free(&t->bpe);
  for (int i = 0; i < t->nstep; i++) pl_pattern_release(t->step[i].pattern);
  for (int i = 0; i < t->nnorm; i++) pl_norm_free(&t->norm[i]);
  pl_trie_free(&t->raw);
  pl_trie_free(&t->cooked);
  free(t->added);
  free(t->before.v);
  free(t->behind.v);
  free(t);
}

int64_t pl_tokenizer_size(const PlTokenizer *t) { return t->bpe.n; }

static const PlToken *token_at(const PlTokenizer *t, int64_t id) {
  return id >= 0 && id < t->bpe.n && t->bpe.token[id].present ? &t->bpe.token[id] : NULL;
}

const char *pl_tokenizer_bytes(const PlTokenizer *t, int64_t id, size_t *n, bool *special) {
  const PlToken *k = token_at(t, id);
  if (!k) return NULL;
  *n = k->bytes_len;
  *special = k->special;
  return t->bpe.arena + k->bytes_at;
}

const char *pl_tokenizer_text(const PlTokenizer *t, int64_t id, size_t *n) {
  const PlToken *k = token_at(t, id);
  if (!k) return NULL;
  *n = k->len;
  return t->bpe.arena + k->at;
}

bool pl_tokenizer_drops(const PlTokenizer *t) { return t->drop_first; }

void pl_tokenizer_trim(const PlTokenizer *t, const char *s, size_t n, size_t *from, size_t *to) {
  size_t a = 0;
  for (int k = 0; k < t->strip_left && a < n && s[a] == t->strip; k++) a++;
  for (int k = 0; k < t->strip_right && n > a && s[n - 1] == t->strip; k++) n--;
  *from = a;
  *to = n;
}

int64_t pl_tokenizer_id(const PlTokenizer *t, const char *text, size_t n) { return pl_bpe_find(&t->bpe, text, n); }

/* ---- encoding ------------------------------------------------------------------------------------------------------ */

typedef struct Walk {
  PlTokenizer *t;
  PlIds *ids;
  int step;          /* of the pre_tokenizer, for the pieces that come */
  const char *start; /* of the text that these pieces are cut from; NULL: it is not where the whole text begins */
  bool special;
} Walk;

static PlStatus piece(void *ctx, const char *s, size_t n);

/* Puts the step's text in front and in place of blanks, as it says, then goes on with the next step. */
static PlStatus rewritten(Walk *next, const PlStep *step, const char *s, size_t n, bool begins) {
  size_t m = strlen(step->text), k = 0, blanks = 0;
  for (size_t i = 0; step->blanks && i < n; i++) blanks += s[i] == ' ';
  bool there = (n >= m && memcmp(s, step->text, m) == 0) || (step->blanks && s[0] == ' ');
  bool front = step->prepend && (begins || !step->first) && !there;
  if (!front && blanks == 0) return piece(next, s, n);
  if (blanks > (SIZE_MAX / 2 - n) / m) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
  char *copy = malloc(n + blanks * m + m);
  if (!copy) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
  if (front) memcpy(copy, step->text, m), k = m;
  for (size_t i = 0; i < n; i++) {
    if (step->blanks && s[i] == ' ') memcpy(copy + k, step->text, m), k += m;
    else copy[k++] = s[i];
  }
  next->start = begins ? copy : NULL;
  PlStatus st = piece(next, copy, k);
  free(copy);
  return st;
}

/* A piece that steps before w->step have made. */
static PlStatus piece(void *ctx, const char *s, size_t n) {
  Walk *w = ctx, next = *w;
  if (n == 0) return PL_OK;
  if (w->step >= w->t->nstep) return pl_bpe_word(&w->t->bpe, s, n, w->ids);
  const PlStep *step = &w->t->step[w->step];
  bool begins = s == w->start;
  next.start = begins ? s : NULL;
  next.step++;
  if (step->pattern) return pl_pattern_cut(step->pattern, s, n, piece, &next);
  return rewritten(&next, step, s, n, begins);
}

static bool is_word_char(char c) {
  unsigned char u = (unsigned char)c;
  return u >= 0x80 || (u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || u == '_';
}

/* Whether the added token found at s[at, at + len) counts there; widens it over blanks that belong to it. */
static bool counts(const PlAdded *a, const char *s, size_t n, size_t done, size_t *at, size_t *len) {
  size_t end = *at + *len, k;
  if (a->single_word && ((*at > 0 && is_word_char(s[*at - 1])) || (end < n && is_word_char(s[end])))) return false;
  while (a->rstrip && (k = pl_space_at(s + end, n - end)) > 0) end += k;
  while (a->lstrip && *at > done && pl_space_at(s + pl_char_before(s, *at), *at - pl_char_before(s, *at)) > 0) *at = pl_char_before(s, *at);
  *len = end - *at;
  return true;
}

static PlStatus cut_added(Walk *w, const PlTrie *trie, const char *s, size_t n);

/* What is between added tokens of the raw trie, normalized. */
static PlStatus between(Walk *w, const char *s, size_t n) {
  Walk next = *w;
  if (w->t->nnorm == 0) return cut_added(&next, &w->t->cooked, s, n);
  char *text;
  size_t len;
  bool from_left;
  PL_TRY(pl_normalize(w->t->norm, w->t->nnorm, s, n, &text, &len, &from_left));
  next.start = s == w->start && !from_left ? text : NULL;
  PlStatus st = cut_added(&next, &w->t->cooked, text, len);
  free(text);
  return st;
}

/* Cuts at the added tokens of a trie; what is between goes to the next trie, or to the steps. */
static PlStatus cut_added(Walk *w, const PlTrie *trie, const char *s, size_t n) {
  const bool last = trie == &w->t->cooked;
  size_t done = 0;
  for (size_t i = 0; i <= n; i++) {
    size_t len = 0, at = i;
    int32_t k = i < n ? pl_trie_find(trie, s + i, n - i, &len) : -1;
    if (i < n && (k < 0 || (w->t->added[k].special && !w->special) || !counts(&w->t->added[k], s, n, done, &at, &len))) continue;
    if (i == n) at = n;
    if (at > done) PL_TRY(last ? piece(w, s + done, at - done) : between(w, s + done, at - done));
    if (i == n) break;
    PL_TRY(pl_ids_push(w->ids, w->t->added[k].id));
    done = at + len;
    i = done - 1;
  }
  return PL_OK;
}

PlStatus pl_tokenizer_encode(PlTokenizer *t, const char *text, size_t n, bool around, bool recognize, int32_t **ids, size_t *count) {
  PlIds out = {.v = NULL};
  Walk w = {.t = t, .ids = &out, .start = text, .special = recognize};
  PlStatus st = PL_OK;
  for (size_t i = 0; around && st == PL_OK && i < t->before.n; i++) st = pl_ids_push(&out, t->before.v[i]);
  if (st == PL_OK) st = cut_added(&w, &t->raw, text, n);
  for (size_t i = 0; around && st == PL_OK && i < t->behind.n; i++) st = pl_ids_push(&out, t->behind.v[i]);
  if (st != PL_OK) {
    free(out.v);
    return st;
  }
  *ids = out.v;
  *count = out.n;
  return PL_OK;
}
