/* SPDX-License-Identifier: MIT
 * From the tokens of one or two texts to what a model takes: truncation, special tokens around, token types. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"
#include "engine/text/tokenizer_file.h"

/* Tokens [from, to) of a text are left. */
typedef struct Span {
  size_t from, to;
} Span;

static size_t length(const Span *s) { return s->to - s->from; }

static void cut_to(Span *s, size_t n, bool left) {
  if (n >= length(s)) return;
  if (left) s->from = s->to - n;
  else s->to = s->from + n;
}

/* Both texts lose tokens until they fit: the longer one first, then both to a half. */
static void cut_longest(Span *a, Span *b, size_t most, bool left) {
  size_t n1 = length(a), n2 = length(b);
  bool swap = n1 > n2;
  if (swap) n1 = length(b), n2 = length(a);
  n2 = n1 > most || most - n1 < n1 ? n1 : most - n1;
  if (n1 + n2 > most) {
    n1 = most / 2;
    n2 = n1 + most % 2;
  }
  cut_to(a, swap ? n2 : n1, left);
  cut_to(b, swap ? n1 : n2, left);
}

static PlStatus truncate_spans(const PlEncodeOptions *o, size_t added, Span *a, Span *b) {
  if (o->max_length < 0 || (size_t)o->max_length < added)
    PL_FAIL(PL_ERR_ARG, "encode: max_length is %lld, and there are %zu special tokens", (long long)o->max_length, added);
  size_t most = (size_t)o->max_length - added, total = length(a) + (b ? length(b) : 0);
  if (total <= most) return PL_OK;
  if (most == 0) {
    cut_to(a, 0, o->left);
    if (b) cut_to(b, 0, o->left);
    return PL_OK;
  }
  if (o->strategy == PL_TRUNCATE_LONGEST) {
    if (b) cut_longest(a, b, most, o->left);
    else cut_to(a, most, o->left);
    return PL_OK;
  }
  Span *target = o->strategy == PL_TRUNCATE_FIRST ? a : b;
  if (!target) PL_FAIL(PL_ERR_ARG, "encode: truncation 'only_second' needs a second text");
  size_t remove = total - most;
  if (length(target) <= remove)
    PL_FAIL(PL_ERR_ARG, "encode: the text has %zu tokens, and %zu too many are there for max_length %lld", length(target), remove,
            (long long)o->max_length);
  cut_to(target, length(target) - remove, o->left);
  return PL_OK;
}

/* ---- offsets without blanks ------------------------------------------------------------------------------------------ */

static bool is_blank(int32_t c) { return c == 0x120 || pl_char_is_space(c); }

static void count_blanks(const char *s, size_t n, uint32_t *lead, uint32_t *trail) {
  *lead = *trail = 0;
  bool text = false;
  for (size_t i = 0, len; i < n; i += len) {
    bool blank = is_blank(pl_char_at(s + i, n - i, &len));
    if (blank && !text) ++*lead;
    *trail = blank ? *trail + 1 : 0;
    text = text || !blank;
  }
}

/* The blank that add_prefix_space put in front is none of the text's. */
static void trim_offsets(const PlTokenizer *t, PlTokens *k, const Span *s) {
  for (int round = 0; round < t->ntrim; round++) {
    for (size_t i = s->from; i < s->to; i++) {
      PlPlace *p = &k->place[i];
      uint32_t lead, trail;
      size_t at = i > 0 ? k->place[i - 1].value_end : 0;
      count_blanks(k->values.s + at, p->value_end - at, &lead, &trail);
      if (lead > 0) {
        if ((i == s->from || p->from == 0) && t->trim[round].add_prefix_space && lead == 1) lead = 0;
        p->from = p->from + lead < p->to ? p->from + lead : p->to;
      }
      if (trail > 0 && p->to >= trail) p->to = p->to - trail > p->from ? p->to - trail : p->from;
    }
  }
}

/* ---- putting together ------------------------------------------------------------------------------------------------ */

void pl_encoding_free(PlEncoding *e) {
  free(e->id);
  free(e->type);
  free(e->special);
  free(e->from);
  free(e->to);
  free(e->word);
  free(e->text);
  free(e->value);
  free(e->value_end);
  *e = (PlEncoding){0};
}

static PlStatus make_arrays(PlEncoding *e, size_t n, bool full, size_t values) {
  e->id = malloc((n + 1) * sizeof *e->id);
  e->type = malloc((n + 1) * sizeof *e->type);
  e->special = malloc(n + 1);
  bool ok = e->id && e->type && e->special;
  if (full) {
    e->from = malloc((n + 1) * sizeof *e->from);
    e->to = malloc((n + 1) * sizeof *e->to);
    e->word = malloc((n + 1) * sizeof *e->word);
    e->text = malloc((n + 1) * sizeof *e->text);
    e->value = malloc(values + 1);
    e->value_end = malloc((n + 1) * sizeof *e->value_end);
    ok = ok && e->from && e->to && e->word && e->text && e->value && e->value_end;
  }
  if (!ok) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
  return PL_OK;
}

static size_t value_of(const PlTokens *k, size_t i, const char **s) {
  size_t at = i > 0 ? k->place[i - 1].value_end : 0;
  *s = k->values.s + at;
  return k->place[i].value_end - at;
}

static void put_value(PlEncoding *e, const char *s, size_t n, size_t *used) {
  if (n) memcpy(e->value + *used, s, n);
  *used += n;
  e->value_end[e->n] = *used;
}

static void put_text(PlEncoding *e, const PlTokens *k, const Span *s, const PlTemplatePart *part, bool full, size_t *used) {
  for (size_t i = s->from; i < s->to; i++, e->n++) {
    e->id[e->n] = k->ids.v[i];
    e->type[e->n] = part->type;
    e->special[e->n] = 0;
    if (!full) continue;
    const char *value;
    size_t n = value_of(k, i, &value);
    e->from[e->n] = (int32_t)k->place[i].from;
    e->to[e->n] = (int32_t)k->place[i].to;
    e->word[e->n] = k->place[i].word;
    e->text[e->n] = part->which;
    put_value(e, value, n, used);
  }
}

static void put_special(const PlTokenizer *t, PlEncoding *e, const PlTemplatePart *part, bool full, size_t *used) {
  for (size_t i = 0; i < part->n; i++, e->n++) {
    e->id[e->n] = t->special_ids.v[part->at + i];
    e->type[e->n] = part->type;
    e->special[e->n] = 1;
    if (!full) continue;
    size_t n = 0;
    bool special;
    const char *s = pl_tokenizer_text(t, e->id[e->n], &n, &special);
    e->from[e->n] = e->to[e->n] = 0;
    e->word[e->n] = e->text[e->n] = -1;
    put_value(e, s, n, used);
  }
}

/* Bytes of the texts of all tokens. */
static size_t count_values(const PlTokenizer *t, const PlTemplate *p, const PlTokens *const k[2], const Span span[2], bool around) {
  size_t sum = 0, n;
  const char *s;
  bool special;
  for (int i = 0; i < p->n; i++) {
    int which = p->part[i].which;
    for (size_t j = 0; which < 0 && around && j < p->part[i].n; j++)
      if (pl_tokenizer_text(t, t->special_ids.v[p->part[i].at + j], &n, &special)) sum += n;
    for (size_t j = which >= 0 ? span[which].from : 0; which >= 0 && j < span[which].to; j++) sum += value_of(k[which], j, &s);
  }
  return sum;
}

PlStatus pl_encoding_make(const PlTokenizer *t, const PlEncodeOptions *o, PlTokens *first, PlTokens *second, PlEncoding *out) {
  const PlTemplate *p = second ? &t->pair : &t->single;
  Span span[2] = {{0, first->ids.n}, {0, second ? second->ids.n : 0}};
  const PlTokens *const k[2] = {first, second};
  if (o->truncate) PL_TRY(truncate_spans(o, o->around ? p->added : 0, &span[0], second ? &span[1] : NULL));
  if (o->full) trim_offsets(t, first, &span[0]);
  if (o->full && second) trim_offsets(t, second, &span[1]);
  size_t n = 0, used = 0;
  for (int i = 0; i < p->n; i++) n += p->part[i].which >= 0 ? length(&span[p->part[i].which]) : o->around ? p->part[i].n : 0;
  PlStatus st = make_arrays(out, n, o->full, o->full ? count_values(t, p, k, span, o->around) : 0);
  if (st != PL_OK) {
    pl_encoding_free(out);
    return st;
  }
  for (int i = 0; i < p->n; i++) {
    const PlTemplatePart *part = &p->part[i];
    if (part->which >= 0) put_text(out, k[part->which], &span[part->which], part, o->full, &used);
    else if (o->around) put_special(t, out, part, o->full, &used);
  }
  return PL_OK;
}
