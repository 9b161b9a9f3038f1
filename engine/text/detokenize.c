/* SPDX-License-Identifier: MIT
 * See detokenize.h. */
#include "engine/text/detokenize.h"

#include <stdlib.h>
#include <string.h>

#include "engine/io/io.h"
#include "engine/text/characters.h"
#include "engine/text/normalize.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void pl_list_free(PlList *l) {
  free(l->s);
  free(l->end);
}

PlStatus pl_list_put(PlList *l, const char *s, size_t n) {
  if (n > SIZE_MAX / 4 - l->used) PL_FAIL(PL_ERR_OOM, "decode: out of memory");
  PL_TRY(pl_grow(&l->s, &l->room, l->used + n + 1, 1));
  if (n) memcpy(l->s + l->used, s, n);
  l->used += n;
  return PL_OK;
}

PlStatus pl_list_close(PlList *l) {
  PL_TRY(pl_grow(&l->end, &l->end_room, l->n + 1, sizeof *l->end));
  l->end[l->n++] = l->used;
  return PL_OK;
}

PlStatus pl_list_push(PlList *l, const char *s, size_t n) {
  PL_TRY(pl_list_put(l, s, n));
  return pl_list_close(l);
}

static const char *text_at(const PlList *l, size_t i, size_t *n) {
  size_t from = i > 0 ? l->end[i - 1] : 0;
  *n = l->end[i] - from;
  return l->n && l->s ? l->s + from : "";
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

/* How many bytes at s, which begins no character, are the beginning of one: they become one U+FFFD together. */
static size_t broken(const char *s, size_t n) {
  const unsigned char *p = (const unsigned char *)s;
  int more = p[0] >= 0xC2 && p[0] <= 0xDF ? 1 : p[0] >= 0xE0 && p[0] <= 0xEF ? 2 : p[0] >= 0xF0 && p[0] <= 0xF4 ? 3 : 0;
  unsigned char low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80, high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
  size_t k = 1;
  for (; more > 0 && k < n && p[k] >= low && p[k] <= high; k++, more--) low = 0x80, high = 0xBF;
  return k;
}

static PlStatus put_valid(PlList *to, const char *s, size_t n) {
  for (size_t i = 0, from = 0; i <= n;) {
    size_t k = i < n ? pl_utf8_char(s + i, n - i) : 0;
    if (k > 0) {
      i += k;
      continue;
    }
    PL_TRY(pl_list_put(to, s + from, i - from));
    if (i == n) break;
    i += broken(s + i, n - i);
    from = i;
    PL_TRY(pl_list_put(to, replacement, 3));
  }
  return PL_OK;
}

static PlStatus byte_level(const PlList *l, bool keep, PlList *to) {
  PlList bytes = {0};
  PlStatus st = PL_OK;
  for (size_t i = 0; st == PL_OK && i < l->n; i++) {
    size_t n, len, mark = bytes.used;
    const char *s = text_at(l, i, &n);
    bool all = true;
    for (size_t k = 0; st == PL_OK && all && k < n; k += len) {
      int b = pl_byte_of_char(pl_char_at(s + k, n - k, &len));
      char c = (char)b;
      all = b >= 0;
      if (all) st = pl_list_put(&bytes, &c, 1);
    }
    if (st != PL_OK || all) continue;
    bytes.used = mark; /* a text with other characters means itself */
    st = pl_list_put(&bytes, s, n);
  }
  if (st == PL_OK) st = keep ? pl_list_put(to, bytes.s, bytes.used) : put_valid(to, bytes.s, bytes.used);
  if (st == PL_OK) st = pl_list_close(to);
  pl_list_free(&bytes);
  return st;
}

static int hex(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* <0xE2> -> 0xE2, else -1. */
static int named_byte(const char *s, size_t n) {
  if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex(s[4]) < 0) return -1;
  return s[3] == '+' ? hex(s[4]) : hex(s[3]) < 0 ? -1 : hex(s[3]) * 16 + hex(s[4]);
}

/* Bytes in a row are one text, if they are UTF-8; else each is U+FFFD. */
static PlStatus end_bytes(PlList *bytes, bool keep, PlList *to) {
  size_t n = bytes->used;
  bytes->used = 0;
  if (n == 0) return PL_OK;
  if (keep || pl_utf8_valid(bytes->s, n)) return pl_list_push(to, bytes->s, n);
  for (size_t i = 0; i < n; i++) PL_TRY(pl_list_push(to, replacement, 3));
  return PL_OK;
}

static PlStatus byte_fallback(const PlList *l, bool keep, PlList *to) {
  PlList bytes = {0};
  PlStatus st = PL_OK;
  for (size_t i = 0; st == PL_OK && i < l->n; i++) {
    size_t n;
    const char *s = text_at(l, i, &n);
    int b = named_byte(s, n);
    char c = (char)b;
    if (b >= 0) {
      st = pl_list_put(&bytes, &c, 1);
      continue;
    }
    st = end_bytes(&bytes, keep, to);
    if (st == PL_OK) st = pl_list_push(to, s, n);
  }
  if (st == PL_OK) st = end_bytes(&bytes, keep, to);
  pl_list_free(&bytes);
  return st;
}

/* ---- texts --------------------------------------------------------------------------------------------------------- */

static PlStatus put_replaced(PlList *to, const char *s, size_t n, const char *text, const char *with) {
  size_t m = strlen(text), from = 0;
  for (size_t i = 0; m > 0 && i + m <= n;) {
    if (s[i] != text[0] || memcmp(s + i, text, m) != 0) {
      i++;
      continue;
    }
    PL_TRY(pl_list_put(to, s + from, i - from));
    PL_TRY(pl_list_put(to, with, strlen(with)));
    i += m;
    from = i;
  }
  return pl_list_put(to, s + from, n - from);
}

static PlStatus put_match(void *ctx, const char *s, size_t n, bool match) {
  void **c = ctx;
  const PlDecodeStep *step = c[1];
  return match ? pl_list_put(c[0], step->with, strlen(step->with)) : pl_list_put(c[0], s, n);
}

static PlStatus strip(const PlDecodeStep *step, PlList *to, const char *s, size_t n) {
  size_t from = 0, m = strlen(step->text);
  for (int64_t k = 0; k < step->left && from + m <= n && memcmp(s + from, step->text, m) == 0; k++) from += m;
  for (int64_t k = 0; k < step->right && n >= from + m && memcmp(s + n - m, step->text, m) == 0; k++) n -= m;
  return pl_list_push(to, s + from, n - from);
}

/* English as it is printed: no blanks before punctuation and short forms. s is in the last text of `to`, from `mark` on. */
static PlStatus clean_up(PlList *to, size_t mark) {
  static const char *const rules[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                         {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                         {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  PlList work = {0};
  PlStatus st = PL_OK;
  for (size_t i = 0; st == PL_OK && i < sizeof rules / sizeof *rules && to->used > mark; i++) {
    if (!memchr(to->s + mark, ' ', to->used - mark)) break;
    work.used = 0;
    st = put_replaced(&work, to->s + mark, to->used - mark, rules[i][0], rules[i][1]);
    to->used = mark;
    if (st == PL_OK) st = pl_list_put(to, work.s, work.used);
  }
  pl_list_free(&work);
  return st;
}

static PlStatus wordpiece(const PlDecodeStep *step, PlList *to, const char *s, size_t n, size_t i) {
  size_t m = strlen(step->text), mark = to->used;
  if (i > 0 && n >= m && memcmp(s, step->text, m) == 0) s += m, n -= m;
  else if (i > 0) PL_TRY(pl_list_put(to, " ", 1));
  PL_TRY(pl_list_put(to, s, n));
  if (step->flag) PL_TRY(clean_up(to, mark));
  return pl_list_close(to);
}

static PlStatus ctc(const PlDecodeStep *step, const PlList *l, PlList *to, const char *s, size_t n, size_t i) {
  size_t before, mark = to->used;
  const char *last = i > 0 ? text_at(l, i - 1, &before) : NULL;
  if (last && before == n && memcmp(last, s, n) == 0) return PL_OK;
  PL_TRY(put_replaced(to, s, n, step->text, ""));
  if (step->flag) {
    PL_TRY(clean_up(to, mark));
    PlList work = {0};
    PlStatus st = put_replaced(&work, to->s + mark, to->used - mark, step->with, " ");
    to->used = mark;
    if (st == PL_OK) st = pl_list_put(to, work.s, work.used);
    pl_list_free(&work);
    PL_TRY(st);
  }
  return to->used > mark ? pl_list_close(to) : PL_OK;
}

static PlStatus one(const PlDecodeStep *step, PlMatcher *m, const PlList *l, PlList *to, size_t i) {
  size_t n;
  const char *s = text_at(l, i, &n);
  void *ctx[2] = {to, (void *)(uintptr_t)step};
  switch (step->kind) {
  case PL_DECODE_STRIP: return strip(step, to, s, n);
  case PL_DECODE_METASPACE: PL_TRY(put_replaced(to, s, n, step->text, i == 0 && step->flag ? "" : " ")); break;
  case PL_DECODE_WORDPIECE: return wordpiece(step, to, s, n, i);
  case PL_DECODE_BPE: PL_TRY(put_replaced(to, s, n, step->text, i + 1 == l->n ? "" : " ")); break;
  case PL_DECODE_CTC: return ctc(step, l, to, s, n, i);
  default:
    if (n > 0) PL_TRY(pl_pattern_each(step->pattern, m, s, n, true, put_match, ctx));
    break;
  }
  return pl_list_close(to);
}

static PlStatus all(const PlDecodeStep *step, PlMatcher *m, bool keep, const PlList *l, PlList *to) {
  if (step->kind == PL_DECODE_BYTE_LEVEL) return byte_level(l, keep, to);
  if (step->kind == PL_DECODE_BYTE_FALLBACK) return byte_fallback(l, keep, to);
  if (step->kind == PL_DECODE_FUSE) return pl_list_push(to, l->s, l->n ? l->end[l->n - 1] : 0);
  for (size_t i = 0; i < l->n; i++) PL_TRY(one(step, m, l, to, i));
  return PL_OK;
}

PlStatus pl_decode_steps(const PlDecodeStep *step, int count, PlMatcher *m, bool keep, PlList *list) {
  for (int i = 0; i < count; i++) {
    PlList next = {0};
    PlStatus st = all(&step[i], m, keep, list, &next);
    if (st != PL_OK) {
      pl_list_free(&next);
      return st;
    }
    pl_list_free(list);
    *list = next;
  }
  return PL_OK;
}

void pl_decode_free(PlDecodeStep *step) {
  free(step->text);
  free(step->with);
  pl_pattern_release(step->pattern);
}
