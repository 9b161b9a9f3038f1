/* SPDX-License-Identifier: MIT
 * Encoding, decoding, looking up; see tokenizer.h. Reading files is in tokenizer_json.c and its like. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_file.h"
#include "kernels/kernel.h"

/* ---- work spaces --------------------------------------------------------------------------------------------------- */

/* What one call writes to. Calls borrow one each; there are as many as calls have run at once. */
typedef struct Work {
  PlMatcher *matcher;
  PlModelWork model;
  PlAligned given, norm[2], step[PL_MAX_STEPS];
  struct Work *next;
} Work;

struct PlTokenizerPool {
  atomic_flag busy;
  Work *idle;
};

static void lock(struct PlTokenizerPool *p) {
  while (atomic_flag_test_and_set_explicit(&p->busy, memory_order_acquire)) {
  }
}
static void unlock(struct PlTokenizerPool *p) { atomic_flag_clear_explicit(&p->busy, memory_order_release); }

static void free_work(Work *w) {
  if (!w) return;
  pl_matcher_release(w->matcher);
  pl_model_work_free(&w->model);
  pl_aligned_free(&w->given);
  for (int i = 0; i < 2; i++) pl_aligned_free(&w->norm[i]);
  for (int i = 0; i < PL_MAX_STEPS; i++) pl_aligned_free(&w->step[i]);
  free(w);
}

static PlStatus borrow(const PlTokenizer *t, Work **out) {
  lock(t->pool);
  Work *w = t->pool->idle;
  if (w) t->pool->idle = w->next;
  unlock(t->pool);
  if (!w) {
    w = calloc(1, sizeof *w);
    if (!w) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
    PlStatus st = pl_matcher_new(&w->matcher);
    if (st != PL_OK) {
      free_work(w);
      return st;
    }
  }
  *out = w;
  return PL_OK;
}

static void give_back(const PlTokenizer *t, Work *w) {
  lock(t->pool);
  w->next = t->pool->idle;
  t->pool->idle = w;
  unlock(t->pool);
}

/* ---- making -------------------------------------------------------------------------------------------------------- */

PlStatus pl_tokenizer_new(PlTokenizer **out, const char *name) {
  PlTokenizer *t = calloc(1, sizeof *t);
  if (t) t->pool = calloc(1, sizeof *t->pool);
  if (!t || !t->pool) {
    free(t);
    PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
  }
  atomic_flag_clear(&t->pool->busy);
  t->model.unknown = -1;
  t->defaults.pad_to = -1;
  *out = t;
  return PL_OK;
}

void pl_tokenizer_release(PlTokenizer *t) {
  if (!t) return;
  pl_model_free(&t->model);
  for (int i = 0; i < t->nstep; i++) pl_pattern_release(t->step[i].pattern);
  for (int i = 0; i < t->nnorm; i++) pl_norm_free(&t->norm[i]);
  for (int i = 0; i < t->ndecode; i++) pl_decode_free(&t->decode[i]);
  pl_trie_free(&t->raw);
  pl_trie_free(&t->cooked);
  pl_vocab_free(&t->extra);
  pl_vocab_free(&t->shown);
  for (Work *w = t->pool->idle, *next; w; w = next) {
    next = w->next;
    free_work(w);
  }
  free(t->pool);
  free(t->added);
  free(t->special);
  free(t->special_ids.v);
  free(t);
}

/* In normalized text it is looked for, and shown in decoding, as normalizing writes it. */
static PlStatus add_cooked(PlTokenizer *t, const char *name, int32_t index, const char *text, size_t n) {
  Work *w;
  PL_TRY(borrow(t, &w));
  PlSlice p = {text, n, NULL}, done;
  PlStatus st = pl_normalize(t->norm, t->nnorm, w->matcher, &p, w->norm, &done);
  if (st == PL_OK) st = pl_trie_add(&t->cooked, done.s, done.n, index);
  bool same = st != PL_OK || (done.n == n && memcmp(done.s, text, n) == 0);
  if (!same && !pl_vocab_text(&t->shown, t->added[index].id, &(size_t){0}))
    st = pl_vocab_add(&t->shown, name, t->added[index].id, done.s, done.n);
  give_back(t, w);
  return st;
}

PlStatus pl_tokenizer_add(PlTokenizer *t, const char *name, PlAdded a, const char *text, size_t n) {
  size_t len, room = t->nadded;
  const char *there = pl_vocab_text(&t->model.vocab, a.id, &len);
  int32_t known = pl_vocab_find(&t->model.vocab, text, n);
  if (known >= 0 && known != a.id)
    PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: the added token '%.*s' has id %d, and %d in the vocabulary", name,
            (int)(n < 60 ? n : 60), text, (int)a.id, (int)known);
  if (there && known < 0)
    PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: id %d belongs to two tokens, '%.*s' and '%.*s'", name, (int)a.id,
            (int)(len < 60 ? len : 60), there, (int)(n < 60 ? n : 60), text);
  if (pl_vocab_find(&t->extra, text, n) >= 0) return PL_OK; /* again */
  PL_TRY(pl_vocab_add(&t->extra, name, a.id, text, n));
  if (room % 64 == 0) {
    PlAdded *p = realloc(t->added, (room + 64) * sizeof *p);
    if (!p) PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
    t->added = p;
  }
  t->added[t->nadded++] = a;
  if (!a.normalized) return pl_trie_add(&t->raw, text, n, (int32_t)t->nadded - 1);
  return add_cooked(t, name, (int32_t)t->nadded - 1, text, n);
}

const char *pl_tokenizer_shown(const PlTokenizer *t, int64_t id, size_t *n) {
  const char *s = pl_vocab_text(&t->shown, id, n);
  if (!s) s = pl_vocab_text(&t->extra, id, n);
  return s ? s : pl_vocab_text(&t->model.vocab, id, n);
}

/* Decoding skips by text: a token that is shown as a special one is written is one, and a special one that normalizing
 * changed is not, as in the reference. */
static PlStatus mark_special(PlTokenizer *t, const char *name) {
  t->special = calloc((size_t)t->size + 1, 1);
  if (!t->special) PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
  for (size_t i = 0; i < t->nadded; i++) {
    size_t n = 0, m = 0;
    if (!t->added[i].special) continue;
    const char *s = pl_vocab_text(&t->extra, t->added[i].id, &n), *shown = pl_tokenizer_shown(t, t->added[i].id, &m);
    if (s && shown && n == m && memcmp(s, shown, n) == 0) t->special[t->added[i].id] = 1;
  }
  return PL_OK;
}

PlStatus pl_tokenizer_ready(PlTokenizer *t, const char *name) {
  t->size = t->model.vocab.n > t->extra.n ? t->model.vocab.n : t->extra.n;
  for (int i = 0; i < t->nstep; i++) t->tracks = t->tracks || (t->step[i].kind == PL_STEP_METASPACE && t->step[i].first);
  /* Bytes that go straight into BPE need not become characters first. */
  if (t->nstep > 0 && t->step[t->nstep - 1].kind == PL_STEP_BYTES && t->model.kind == PL_MODEL_BPE && !t->model.fallback) {
    t->nstep--;
    t->model.alphabet = true;
  }
  pl_model_bytes(&t->model);
  return mark_special(t, name);
}

/* ---- looking up ---------------------------------------------------------------------------------------------------- */

int64_t pl_tokenizer_size(const PlTokenizer *t) { return t->size; }

const char *pl_tokenizer_text(const PlTokenizer *t, int64_t id, size_t *n, bool *special) {
  const char *s = pl_vocab_text(&t->extra, id, n);
  *special = false;
  for (size_t i = 0; s && i < t->nadded && !*special; i++) *special = t->added[i].id == id && t->added[i].special;
  return s ? s : pl_vocab_text(&t->model.vocab, id, n);
}

int64_t pl_tokenizer_id(const PlTokenizer *t, const char *text, size_t n) {
  int32_t id = pl_vocab_find(&t->extra, text, n);
  return id >= 0 ? id : pl_vocab_find(&t->model.vocab, text, n);
}

const PlTokenizerDefaults *pl_tokenizer_defaults(const PlTokenizer *t) { return &t->defaults; }

/* ---- encoding ------------------------------------------------------------------------------------------------------ */

typedef struct Walk {
  const PlTokenizer *t;
  Work *w;
  PlTokens *out;
  bool full, special;
  int step; /* of the pre_tokenizer, for the pieces that come */
  int32_t words;
} Walk;

static PlStatus note(Walk *w, const PlSlice *p, size_t from, size_t n, const char *value, size_t nvalue) {
  PlTokens *o = w->out;
  PL_TRY(pl_grow(&o->place, &o->place_room, o->ids.n, sizeof *o->place));
  PL_TRY(pl_aligned_put(&o->values, value, nvalue, (PlOrigin){0, 0}));
  PlPlace place = {.from = (uint32_t)from, .to = (uint32_t)(from + n), .word = w->words, .value_end = o->values.n};
  if (p->origin && n > 0 && from + n <= p->n) place.from = p->origin[from].from, place.to = p->origin[from + n - 1].to;
  o->place[o->ids.n - 1] = place;
  return PL_OK;
}

/* The last token, which tokens without bytes of their own share the place of. */
static PlStatus unit(Walk *w, const PlSlice *p, PlUnit u, size_t *at, size_t *last) {
  size_t n, from = u.len ? *at : *at - *last;
  PL_TRY(pl_ids_push(&w->out->ids, u.id));
  if (u.len) *last = u.len;
  if (w->full) {
    const char *s = pl_vocab_text(&w->t->model.vocab, u.id, &n);
    size_t len = u.len ? u.len : *last;
    if (w->t->model.kind == PL_MODEL_UNIGRAM && u.id == w->t->model.unknown && from + len <= p->n) s = p->s + from, n = len;
    PL_TRY(note(w, p, from, len, s, s ? n : 0));
  }
  *at += u.len;
  return PL_OK;
}

static PlStatus word(Walk *w, const PlSlice *p) {
  const PlUnit *units;
  size_t count, at = 0, last = 0;
  PL_TRY(pl_model_word(&w->t->model, &w->w->model, p->s, p->n, &units, &count));
  if (!w->full) {
    PlIds *ids = &w->out->ids;
    PL_TRY(pl_grow(&ids->v, &ids->room, ids->n + count, sizeof *ids->v));
    for (size_t i = 0; i < count; i++) ids->v[ids->n++] = units[i].id;
    return PL_OK;
  }
  for (size_t i = 0; i < count; i++) PL_TRY(unit(w, p, units[i], &at, &last));
  w->words++;
  return PL_OK;
}

/* A piece that steps before w->step have made. */
static PlStatus piece(void *ctx, const PlSlice *p) {
  Walk *w = ctx;
  if (p->n == 0) return PL_OK;
  if (w->step >= w->t->nstep) return word(w, p);
  int step = w->step++;
  PlStatus st = pl_step_each(&w->t->step[step], w->w->matcher, &w->w->step[step], p, piece, w);
  w->step = step;
  return st;
}

static PlStatus added(void *ctx, const PlSlice *p, int32_t token) {
  Walk *w = ctx;
  PL_TRY(pl_ids_push(&w->out->ids, w->t->added[token].id));
  if (w->full) PL_TRY(note(w, p, 0, p->n, p->s, p->n));
  w->words++;
  return PL_OK;
}

/* What is between added tokens of the raw trie, normalized. */
static PlStatus between(void *ctx, const PlSlice *p) {
  Walk *w = ctx;
  PlSlice done = *p;
  if (w->t->nnorm > 0) PL_TRY(pl_normalize(w->t->norm, w->t->nnorm, w->w->matcher, p, w->w->norm, &done));
  return pl_added_each(&w->t->cooked, w->t->added, w->special, &done, piece, added, w);
}

static PlStatus encode_one(const PlTokenizer *t, Work *work, const PlEncodeOptions *o, const char *text, size_t n, PlTokens *out) {
  Walk w = {.t = t, .w = work, .out = out, .full = o->full, .special = o->recognize};
  PlSlice p = {text, n, NULL};
  if (o->full || t->tracks) {
    PL_TRY(pl_aligned_given(&work->given, text, n, true));
    p = pl_aligned_whole(&work->given);
  }
  return pl_added_each(&t->raw, t->added, w.special, &p, between, added, &w);
}

/* Bytes of the text to characters of it. */
static PlStatus count_characters(PlTokens *k, const char *s, size_t n) {
  uint32_t *at = malloc((n + 1) * sizeof *at), count = 0;
  if (!at) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
  for (size_t i = 0; i < n; i++) {
    if (i > 0 && ((unsigned char)s[i] & 0xC0) != 0x80) count++;
    at[i] = count;
  }
  for (size_t i = 0; i < k->ids.n; i++) {
    PlPlace *p = &k->place[i];
    if (p->from >= n) continue;
    uint32_t from = at[p->from];
    p->to = p->to < n ? at[p->to] : p->to > 0 && p->to - 1 < n ? at[p->to - 1] + 1 : from + 2;
    p->from = from;
  }
  free(at);
  return PL_OK;
}

static PlStatus tokens_of(const PlTokenizer *t, Work *w, const PlEncodeOptions *o, const char *s, size_t n, PlTokens *out) {
  PL_TRY(encode_one(t, w, o, s, n, out));
  return o->full ? count_characters(out, s, n) : PL_OK;
}

void pl_tokens_free(PlTokens *t) {
  free(t->ids.v);
  free(t->place);
  pl_aligned_free(&t->values);
}

PlStatus pl_tokenizer_encode(const PlTokenizer *t, const PlEncodeOptions *o, const char *text, size_t n, const char *pair, size_t npair,
                             PlEncoding *out) {
  PlTokens first = {0}, second = {0};
  Work *w;
  *out = (PlEncoding){0};
  PL_TRY(borrow(t, &w));
  PlStatus st = tokens_of(t, w, o, text, n, &first);
  if (st == PL_OK && pair) st = tokens_of(t, w, o, pair, npair, &second);
  give_back(t, w);
  if (st == PL_OK) st = pl_encoding_make(t, o, &first, pair ? &second : NULL, out);
  pl_tokens_free(&first);
  pl_tokens_free(&second);
  return st;
}

typedef struct Many {
  const PlTokenizer *t;
  const PlEncodeOptions *o;
  const char *const *text, *const *pair;
  const size_t *n, *npair;
  PlEncoding *out;
} Many;

static PlStatus encode_block(void *ctx, int64_t begin, int64_t end) {
  const Many *m = ctx;
  for (int64_t i = begin; i < end; i++)
    PL_TRY(pl_tokenizer_encode(m->t, m->o, m->text[i], m->n[i], m->pair ? m->pair[i] : NULL, m->pair ? m->npair[i] : 0, &m->out[i]));
  return PL_OK;
}

PlStatus pl_tokenizer_encode_many(const PlTokenizer *t, const PlEncodeOptions *o, size_t count, const char *const *text, const size_t *n,
                                  const char *const *pair, const size_t *npair, PlEncoding *out) {
  Many m = {t, o, text, pair, n, npair, out};
  if (count == 0) return PL_OK;
  memset(out, 0, count * sizeof *out);
  PlStatus st = plk_parallel((int64_t)count, 1, encode_block, &m);
  for (size_t i = 0; st != PL_OK && i < count; i++) pl_encoding_free(&out[i]);
  return st;
}

PlStatus pl_tokenizer_normalized(const PlTokenizer *t, const char *text, size_t n, char **out, size_t *len) {
  Work *w;
  PlSlice p = {text, n, NULL}, done;
  PL_TRY(borrow(t, &w));
  PlStatus st = pl_normalize(t->norm, t->nnorm, w->matcher, &p, w->norm, &done);
  *out = st == PL_OK ? malloc(done.n + 1) : NULL;
  if (st == PL_OK && !*out) st = pl_fail(PL_ERR_OOM, "normalize: out of memory");
  if (st == PL_OK) {
    if (done.n) memcpy(*out, done.s, done.n);
    *len = done.n;
  }
  give_back(t, w);
  return st;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------ */

static PlStatus decode(const PlTokenizer *t, Work *w, const int32_t *id, size_t n, bool skip, bool keep, PlList *list, size_t *bad) {
  for (size_t i = 0; i < n; i++) {
    size_t len;
    const char *s = pl_tokenizer_shown(t, id[i], &len);
    if (!s) return *bad = i, pl_fail(PL_ERR_ARG, "decode: there is no token with id %d", (int)id[i]);
    if (skip && t->special[id[i]]) continue;
    if (t->ndecode == 0 && list->n > 0) PL_TRY(pl_list_put(list, " ", 1));
    PL_TRY(pl_list_push(list, s, len));
  }
  return pl_decode_steps(t->decode, t->ndecode, w->matcher, keep, list);
}

PlStatus pl_tokenizer_decode(const PlTokenizer *t, const int32_t *id, size_t n, bool skip, bool keep, char **text, size_t *len,
                             size_t *bad) {
  PlList list = {0};
  Work *w;
  *bad = SIZE_MAX;
  PL_TRY(borrow(t, &w));
  PlStatus st = decode(t, w, id, n, skip, keep, &list, bad);
  give_back(t, w);
  if (st == PL_OK) st = pl_list_put(&list, "", 0);
  if (st != PL_OK) {
    pl_list_free(&list);
    return st;
  }
  *text = list.s;
  *len = list.n ? list.end[list.n - 1] : 0;
  free(list.end);
  return PL_OK;
}
