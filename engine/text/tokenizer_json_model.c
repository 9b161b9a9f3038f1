/* SPDX-License-Identifier: MIT
 * The model of a tokenizer.json file. */
#include "engine/text/tokenizer_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef PL_HAVE_JANSSON

static PlStatus read_vocab(PlTokReader *r, const json_t *vocab) {
  const char *text;
  size_t len;
  json_t *id;
  if (!json_is_object(vocab)) return pl_tok_bad(r, "model.vocab must be an object");
  size_t n = json_object_size(vocab);
#if JANSSON_VERSION_HEX >= 0x020e00 /* before, keys have no zeros */
  json_object_keylen_foreach((json_t *)(uintptr_t)vocab, text, len, id) {
#else
  json_object_foreach((json_t *)(uintptr_t)vocab, text, id) {
    len = strlen(text);
#endif
    json_int_t k = json_is_integer(id) ? json_integer_value(id) : -1;
    /* ids far above their number would make tables of nothing */
    if (k < 0 || k >= PL_TOK_MAX_ID || (size_t)k > 4 * n + 65536) return pl_tok_bad(r, "an id in model.vocab");
    PL_TRY(pl_vocab_add(&r->t->model.vocab, r->name, k, text, len));
  }
  return PL_OK;
}

/* [["token", score], …] */
static PlStatus read_scores(PlTokReader *r, const json_t *vocab) {
  PlModel *m = &r->t->model;
  if (!json_is_array(vocab)) return pl_tok_bad(r, "model.vocab must be an array");
  size_t n = json_array_size(vocab);
  if (n > PL_TOK_MAX_ID) return pl_tok_bad(r, "too many tokens");
  m->score = calloc(n + 1, sizeof *m->score);
  if (!m->score) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  for (size_t i = 0; i < n; i++) {
    const json_t *o = json_array_get(vocab, i), *text = json_array_get(o, 0), *score = json_array_get(o, 1);
    if (!json_is_string(text) || !json_is_number(score) || json_array_size(o) != 2)
      return pl_tok_bad(r, "a token must be a text and a score");
    m->score[i] = json_number_value(score);
    PL_TRY(pl_vocab_add(&m->vocab, r->name, (int64_t)i, json_string_value(text), json_string_length(text)));
  }
  return PL_OK;
}

/* ["a", "b"], or "a b" with its only blank between the two. */
static PlStatus merge_parts(PlTokReader *r, const json_t *m, const char **a, size_t *na, const char **b, size_t *nb) {
  if (json_is_array(m) && json_array_size(m) == 2) {
    const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
    *a = json_string_value(x);
    *b = json_string_value(y);
    if (!*a || !*b) return pl_tok_bad(r, "a merge must be two strings");
    *na = json_string_length(x);
    *nb = json_string_length(y);
    return PL_OK;
  }
  const char *s = json_string_value(m), *blank = s ? strchr(s, ' ') : NULL;
  if (!blank || blank == s || !blank[1] || strchr(blank + 1, ' ')) return pl_tok_bad(r, "a merge must be two words");
  *a = s;
  *na = (size_t)(blank - s);
  *b = blank + 1;
  *nb = strlen(*b);
  return PL_OK;
}

/* The second part loses the prefix that marks what is inside a word. */
static PlStatus read_merge(PlTokReader *r, const json_t *m, int32_t rank) {
  const char *a = NULL, *b = NULL, *prefix = r->t->model.prefix;
  size_t na = 0, nb = 0, np = prefix ? strlen(prefix) : 0;
  const PlVocab *v = &r->t->model.vocab;
  PL_TRY(merge_parts(r, m, &a, &na, &b, &nb));
  if (nb < np) return pl_tok_bad(r, "a merge shorter than continuing_subword_prefix");
  char *both = malloc(na + nb + 1);
  if (!both) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  memcpy(both, a, na);
  memcpy(both + na, b + np, nb - np);
  int32_t left = pl_vocab_find(v, a, na), right = pl_vocab_find(v, b, nb), id = pl_vocab_find(v, both, na + nb - np);
  free(both);
  if (left < 0 || right < 0 || id < 0) return pl_tok_bad(r, "a merge of tokens that are not in the vocabulary");
  pl_bpe_merge(&r->t->model, left, right, rank, id);
  return PL_OK;
}

/* merge_ranks, which only perilune writes: a rank for each merge, where several have the same one. Of those of one rank the leftmost
 * comes first, as sentencepiece and tiktoken have it, who rank what a merge makes. Without it merges are ranked by their order. */
static PlStatus read_merges(PlTokReader *r, const json_t *merges, const json_t *ranks) {
  size_t n = json_array_size(merges);
  json_int_t last = 0;
  if (n > PL_TOK_MAX_ID) return pl_tok_bad(r, "too many merges");
  if (!pl_tok_absent(ranks) && (!json_is_array(ranks) || json_array_size(ranks) != n))
    return pl_tok_bad(r, "model.merge_ranks must be an array of a rank for each merge");
  PL_TRY(pl_bpe_room(&r->t->model, n));
  for (size_t i = 0; i < n; i++) {
    const json_t *v = json_array_get(ranks, i);
    json_int_t rank = pl_tok_absent(ranks) ? (json_int_t)i : json_is_integer(v) ? json_integer_value(v) : -1;
    if (rank < last || rank > (json_int_t)i) return pl_tok_bad(r, "model.merge_ranks must be integers that do not fall");
    last = rank;
    PL_TRY(read_merge(r, json_array_get(merges, i), (int32_t)rank));
  }
  return PL_OK;
}

static PlStatus find_unknown(PlTokReader *r, const json_t *o) {
  const json_t *v = json_object_get(o, "unk_token");
  if (pl_tok_absent(v)) return PL_OK;
  if (!json_is_string(v)) return pl_tok_bad(r, "model.unk_token must be a text");
  r->t->model.unknown = pl_vocab_find(&r->t->model.vocab, json_string_value(v), json_string_length(v));
  return PL_OK;
}

static void drop_empty(char **s) {
  if (!*s || **s) return;
  free(*s);
  *s = NULL;
}

static PlStatus read_bpe(PlTokReader *r, const json_t *o) {
  PlModel *m = &r->t->model;
  const json_t *dropout = json_object_get(o, "dropout");
  if (!pl_tok_absent(dropout) && (!json_is_number(dropout) || json_number_value(dropout) != 0))
    return pl_tok_unsupported(r, "the model's option", "dropout");
  PL_TRY(pl_tok_copy(r, o, "continuing_subword_prefix", true, &m->prefix));
  PL_TRY(pl_tok_copy(r, o, "end_of_word_suffix", true, &m->suffix));
  drop_empty(&m->prefix);
  drop_empty(&m->suffix);
  PL_TRY(pl_tok_flag(r, o, "byte_fallback", false, &m->fallback));
  PL_TRY(pl_tok_flag(r, o, "fuse_unk", false, &m->fuse_unknown));
  PL_TRY(pl_tok_flag(r, o, "ignore_merges", false, &m->whole_first));
  const json_t *merges = json_object_get(o, "merges");
  if (!json_is_array(merges)) return pl_tok_bad(r, "model.merges must be an array");
  PL_TRY(read_vocab(r, json_object_get(o, "vocab")));
  PL_TRY(read_merges(r, merges, json_object_get(o, "merge_ranks")));
  return find_unknown(r, o);
}

/* unmatched, which only perilune writes: ids of tokens that no text becomes, as sentencepiece's control and byte tokens, whose
 * score is none. */
static PlStatus read_unmatched(PlTokReader *r, const json_t *list) {
  PlModel *m = &r->t->model;
  if (pl_tok_absent(list)) return PL_OK;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *v = json_array_get(list, i);
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (id < 0 || id >= m->vocab.n) return pl_tok_bad(r, "model.unmatched must be ids of the vocabulary");
    m->score[id] = NAN;
  }
  return json_is_array(list) ? PL_OK : pl_tok_bad(r, "model.unmatched must be an array of ids");
}

static PlStatus read_unigram(PlTokReader *r, const json_t *o) {
  PlModel *m = &r->t->model;
  json_int_t unknown;
  m->kind = PL_MODEL_UNIGRAM;
  PL_TRY(pl_tok_flag(r, o, "byte_fallback", false, &m->fallback));
  PL_TRY(read_scores(r, json_object_get(o, "vocab")));
  PL_TRY(pl_tok_integer(r, o, "unk_id", -1, 0, PL_TOK_MAX_ID, &unknown));
  if (unknown >= m->vocab.n) return pl_tok_bad(r, "model.unk_id is not in the vocabulary");
  m->unknown = (int32_t)unknown;
  PL_TRY(pl_tok_flag(r, o, "single", false, &m->single)); /* only perilune writes it, too */
  PL_TRY(read_unmatched(r, json_object_get(o, "unmatched")));
  return pl_unigram_ready(m);
}

static PlStatus read_words(PlTokReader *r, const json_t *o, bool pieces) {
  PlModel *m = &r->t->model;
  json_int_t longest;
  m->kind = pieces ? PL_MODEL_WORDPIECE : PL_MODEL_WORDLEVEL;
  PL_TRY(pl_tok_integer(r, o, "max_input_chars_per_word", 100, 0, INT32_MAX, &longest));
  m->longest = longest;
  if (pieces) PL_TRY(pl_tok_copy(r, o, "continuing_subword_prefix", false, &m->prefix));
  PL_TRY(read_vocab(r, json_object_get(o, "vocab")));
  return find_unknown(r, o);
}

PlStatus pl_tok_read_model(PlTokReader *r, const json_t *o) {
  if (!json_is_object(o)) return pl_tok_bad(r, "there is no model");
  if (pl_tok_is(o, "BPE")) return read_bpe(r, o);
  if (pl_tok_is(o, "Unigram")) return read_unigram(r, o);
  if (pl_tok_is(o, "WordPiece")) return read_words(r, o, true);
  if (pl_tok_is(o, "WordLevel")) return read_words(r, o, false);
  if (pl_tok_type(o)) return pl_tok_unsupported(r, "the model", pl_tok_type(o));
  /* old files leave the type out */
  if (json_object_get(o, "merges")) return read_bpe(r, o);
  if (json_object_get(o, "max_input_chars_per_word")) return read_words(r, o, true);
  return json_is_array(json_object_get(o, "vocab")) ? read_unigram(r, o) : read_words(r, o, false);
}

#endif
