/* SPDX-License-Identifier: MIT
 * See normalize.h. Each step makes a new text of the one before. */
#include "engine/text/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "engine/io/safetensors_header.h"

#ifdef PL_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

typedef struct Text {
  char *s;
  size_t n, room;
} Text;

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "encode: out of memory"); }

static PlStatus put(Text *t, const char *s, size_t n) {
  if (t->room - t->n < n + 1) {
    if (n > SIZE_MAX / 4 || t->n > SIZE_MAX / 4) return no_memory();
    size_t room = 2 * (t->n + n) + 64;
    char *p = realloc(t->s, room);
    if (!p) return no_memory();
    t->s = p;
    t->room = room;
  }
  if (n) memcpy(t->s + t->n, s, n);
  t->n += n;
  return PL_OK;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

#ifdef PL_HAVE_UTF8PROC

bool pl_norm_possible(PlNormKind kind) {
  (void)kind;
  return true;
}

static PlStatus normal_form(PlNormKind kind, const char *s, size_t n, Text *to) {
  static const utf8proc_option_t options[] = {[PL_NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
                                              [PL_NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                                              [PL_NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                              [PL_NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
  utf8proc_uint8_t *out = NULL;
  utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &out, options[kind]);
  if (len < 0) PL_FAIL(len == UTF8PROC_ERROR_NOMEM ? PL_ERR_OOM : PL_ERR_FORMAT, "encode: %s", utf8proc_errmsg(len));
  PlStatus st = put(to, (const char *)out, (size_t)len);
  free(out);
  return st;
}

/* By character, as the reference does. U+0130 alone has two lower-case characters. */
static PlStatus lower(utf8proc_int32_t c, Text *to) {
  utf8proc_uint8_t b[4];
  if (c == 0x130) return put(to, "i\xCC\x87", 3);
  return put(to, (const char *)b, (size_t)utf8proc_encode_char(utf8proc_tolower(c), b));
}

static bool is_mark(utf8proc_int32_t c) {
  utf8proc_category_t k = utf8proc_category(c);
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

static PlStatus by_character(PlNormKind kind, const char *s, size_t n, Text *to) {
  for (size_t i = 0; i < n;) {
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(n - i), &c);
    if (k <= 0) k = 1, c = -1;
    if (kind == PL_NORM_LOWER && c >= 0) PL_TRY(lower(c, to));
    else if (kind == PL_NORM_LOWER || c < 0 || !is_mark(c)) PL_TRY(put(to, s + i, (size_t)k));
    i += (size_t)k;
  }
  return PL_OK;
}

/* Bytes that are no characters are between texts of their own. */
static PlStatus characters(PlNormKind kind, const char *s, size_t n, Text *to) {
  if (kind == PL_NORM_LOWER || kind == PL_NORM_NO_ACCENTS) return by_character(kind, s, n, to);
  for (size_t from = 0, i = 0; i <= n;) {
    size_t k = i < n ? pl_utf8_char(s + i, n - i) : 0;
    if (k > 0) {
      i += k;
      continue;
    }
    if (i > from) PL_TRY(normal_form(kind, s + from, i - from, to));
    if (i == n) break;
    PL_TRY(put(to, s + i, 1));
    from = ++i;
  }
  return PL_OK;
}

#else

bool pl_norm_possible(PlNormKind kind) { return kind >= PL_NORM_STRIP; }

static PlStatus characters(PlNormKind kind, const char *s, size_t n, Text *to) {
  (void)kind;
  return put(to, s, n);
}

#endif

/* ---- the other steps ------------------------------------------------------------------------------------------------ */

static PlStatus strip(const PlNormStep *step, const char *s, size_t n, Text *to, bool *from_left) {
  size_t from = 0, k;
  while (step->left && (k = pl_space_at(s + from, n - from)) > 0) from += k;
  while (step->right && n > from && pl_space_at(s + pl_char_before(s, n), n - pl_char_before(s, n)) > 0) n = pl_char_before(s, n);
  *from_left = *from_left || from > 0;
  return put(to, s + from, n - from);
}

typedef struct Replacing {
  const PlNormStep *step;
  Text *to;
} Replacing;

static PlStatus replace_piece(void *ctx, const char *s, size_t n, bool match) {
  const Replacing *r = ctx;
  return match ? put(r->to, r->step->text, r->step->n) : put(r->to, s, n);
}

static PlStatus run(const PlNormStep *step, const char *s, size_t n, Text *to, bool *from_left) {
  switch (step->kind) {
  case PL_NORM_STRIP: return strip(step, s, n, to, from_left);
  case PL_NORM_PREPEND:
    if (n > 0) PL_TRY(put(to, step->text, step->n));
    return put(to, s, n);
  case PL_NORM_REPLACE: return pl_pattern_each(step->pattern, s, n, replace_piece, &(Replacing){step, to});
  default: return characters(step->kind, s, n, to);
  }
}

PlStatus pl_normalize(const PlNormStep *step, int count, const char *s, size_t n, char **text, size_t *len, bool *from_left) {
  Text now = {0};
  *from_left = false;
  PlStatus st = put(&now, s, n);
  for (int i = 0; i < count && st == PL_OK; i++) {
    Text next = {0};
    st = put(&next, NULL, 0);
    if (st == PL_OK) st = run(&step[i], now.s, now.n, &next, from_left);
    free(now.s);
    now = next;
  }
  if (st != PL_OK) {
    free(now.s);
    return st;
  }
  *text = now.s;
  *len = now.n;
  return PL_OK;
}

void pl_norm_free(PlNormStep *step) {
  free(step->text);
  pl_pattern_release(step->pattern);
}
