/* SPDX-License-Identifier: MIT
 * See pattern.h. */
#include "engine/text/pattern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/io/io.h"
#include "engine/text/oniguruma.h"
#include "kernels/kernel.h"

#ifdef PL_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

const char pl_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct PlPattern {
  char *literal; /* or NULL */
  size_t n;
#ifdef PL_HAVE_PCRE2
  pcre2_code *code;
#endif
};

struct PlMatcher {
#ifdef PL_HAVE_PCRE2
  pcre2_match_data *data;
  pcre2_match_context *context;
#else
  int unused;
#endif
};

static PlStatus no_memory(const char *name) { PL_FAIL(PL_ERR_OOM, "%s: out of memory", name); }

/* ---- literal texts: no expression is needed --------------------------------------------------------------------- */

PlStatus pl_pattern_literal(PlPattern **out, const char *name, const char *text, size_t n) {
  PlPattern *p = calloc(1, sizeof *p);
  if (p) p->literal = malloc(n + 1);
  if (!p || !p->literal) {
    free(p);
    return no_memory(name);
  }
  memcpy(p->literal, text, n);
  p->n = n;
  *out = p;
  return PL_OK;
}

static const char *find_text(const char *s, size_t n, const char *text, size_t m) {
  const char *end = s + n;
  while ((size_t)(end - s) >= m) {
    const char *at = memchr(s, text[0], (size_t)(end - s) - m + 1);
    if (!at) return NULL;
    if (memcmp(at, text, m) == 0) return at;
    s = at + 1;
  }
  return NULL;
}

static PlStatus each_literal(const PlPattern *p, const char *s, size_t n, PlMatchFn f, void *ctx) {
  const char *end = s + n;
  for (int64_t count = 0; s < end; count++) {
    const char *at = p->n ? find_text(s, (size_t)(end - s), p->literal, p->n) : NULL;
    if (!at) break;
    if (at > s) PL_TRY(f(ctx, s, (size_t)(at - s), false));
    PL_TRY(f(ctx, at, p->n, true));
    s = at + p->n;
    if (count % 65536 == 65535) PL_TRY(plk_poll());
  }
  return s < end ? f(ctx, s, (size_t)(end - s), false) : PL_OK;
}

#ifdef PL_HAVE_PCRE2

PlStatus pl_pattern_new(PlPattern **out, const char *name, const char *regex, size_t n) {
  size_t len = 0;
  const char *why = NULL;
  if (n > 1 << 16) PL_FAIL(PL_ERR_FORMAT, "%s: an expression of %zu bytes", name, n);
  char *text = pl_from_oniguruma(regex, n, &len, &why);
  PlPattern *p = calloc(1, sizeof *p);
  if (!text || !p || why) {
    bool oom = !text || !p;
    free(text);
    free(p);
    if (oom) return no_memory(name);
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: the expression '%.*s' has %s, which is not supported", name, (int)(n < 80 ? n : 80), regex, why);
  }
  int code = 0;
  size_t at = 0;
  p->code = pcre2_compile((PCRE2_SPTR)text, len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
  free(text);
  if (!p->code) {
    char message[128] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
    pl_pattern_release(p);
    PL_FAIL(PL_ERR_FORMAT, "%s: the expression '%.*s' is malformed: %s", name, (int)(n < 80 ? n : 80), regex, message);
  }
  (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* where it is not possible, matching works without */
  *out = p;
  return PL_OK;
}

void pl_pattern_release(PlPattern *p) {
  if (!p) return;
  pcre2_code_free(p->code);
  free(p->literal);
  free(p);
}

PlStatus pl_matcher_new(PlMatcher **out) {
  enum { MATCH_LIMIT = 2000000, HEAP_KIB = 64 << 10 };
  PlMatcher *m = calloc(1, sizeof *m);
  if (m) m->data = pcre2_match_data_create(1, NULL);
  if (m) m->context = pcre2_match_context_create(NULL);
  if (!m || !m->data || !m->context) {
    pl_matcher_release(m);
    return no_memory("tokenizer");
  }
  pcre2_set_match_limit(m->context, MATCH_LIMIT);
  pcre2_set_heap_limit(m->context, HEAP_KIB);
  *out = m;
  return PL_OK;
}

void pl_matcher_release(PlMatcher *m) {
  if (!m) return;
  pcre2_match_data_free(m->data);
  pcre2_match_context_free(m->context);
  free(m);
}

static PlStatus match_failure(int rc) {
  char why[128] = "";
  pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
  PL_FAIL(PL_ERR_FORMAT, "encode: the tokenizer's expression cannot be matched: %s", why);
}

/* What is matched: s itself, or, where that is not UTF-8, a copy with each wrong byte as a character that is neither
 * letter, digit nor space. */
static PlStatus valid_text(const char *s, size_t n, const char **text, char **copy) {
  *text = s;
  *copy = NULL;
  if (pl_utf8_valid(s, n)) return PL_OK;
  *copy = malloc(n);
  if (!*copy) return no_memory("encode");
  memcpy(*copy, s, n);
  for (size_t i = 0, k; i < n; i += k ? k : 1) {
    k = pl_utf8_char(s + i, n - i);
    if (k == 0) (*copy)[i] = '\x01';
  }
  *text = *copy;
  return PL_OK;
}

/* The checked text t is matched, the pieces are of s. PCRE2 would check all of it again at each call. */
static PlStatus each(const PlPattern *p, PlMatcher *m, const char *t, const char *s, size_t n, bool empty, PlMatchFn f, void *ctx) {
  size_t done = 0, at = 0, last = SIZE_MAX; /* where the last match ended: none is empty there */
  for (int64_t count = 0; empty ? at <= n : at < n; count++) {
    int rc = pcre2_match(p->code, (PCRE2_SPTR)t, n, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return match_failure(rc);
    const size_t *v = pcre2_get_ovector_pointer(m->data);
    size_t from = v[0], to = v[1];
    if (to <= from || from < done) { /* empty: on by one character */
      if (empty && from >= done && from != last) {
        if (from > done) PL_TRY(f(ctx, s + done, from - done, false));
        PL_TRY(f(ctx, s + from, 0, true));
        done = last = from;
      }
      at = (from > at ? from : at) + 1;
      while (at < n && ((unsigned char)t[at] & 0xC0) == 0x80) at++;
      continue;
    }
    if (from > done) PL_TRY(f(ctx, s + done, from - done, false));
    PL_TRY(f(ctx, s + from, to - from, true));
    done = at = last = to;
    if (count % 4096 == 4095) PL_TRY(plk_poll());
  }
  return done < n ? f(ctx, s + done, n - done, false) : PL_OK;
}

PlStatus pl_pattern_each(const PlPattern *p, PlMatcher *m, const char *s, size_t n, bool empty, PlMatchFn f, void *ctx) {
  const char *t;
  char *copy;
  if (p->literal) return each_literal(p, s, n, f, ctx);
  PL_TRY(valid_text(s, n, &t, &copy));
  PlStatus st = each(p, m, t, s, n, empty, f, ctx);
  free(copy);
  return st;
}

/* ---- scripts ------------------------------------------------------------------------------------------------------ */

PlStatus pl_scripts_ready(const char *name, PlPattern **out) {
  char text[8192];
  size_t k = 0;
  for (int i = 0; pl_script_name(i); i++) {
    int n = snprintf(text + k, sizeof text - k, "%s\\p{%s}(*:%03d)", i ? "|" : "", pl_script_name(i), i + 1);
    if (n < 0 || (size_t)n >= sizeof text - k) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: too many scripts", name);
    k += (size_t)n;
  }
  return pl_pattern_new(out, name, text, k);
}

int pl_script_of(const PlPattern *p, PlMatcher *m, const char *s, size_t n) {
  int rc = pcre2_match(p->code, (PCRE2_SPTR)s, n, 0, PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, m->data, m->context);
  PCRE2_SPTR mark = rc >= 0 ? pcre2_get_mark(m->data) : NULL;
  return mark ? atoi((const char *)mark) : 0;
}

#else

PlStatus pl_pattern_new(PlPattern **out, const char *name, const char *regex, size_t n) {
  (void)out, (void)regex, (void)n;
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: this build has no PCRE2, so no expressions (install libpcre2-dev and build again)", name);
}

void pl_pattern_release(PlPattern *p) {
  if (!p) return;
  free(p->literal);
  free(p);
}

PlStatus pl_matcher_new(PlMatcher **out) {
  *out = calloc(1, sizeof **out);
  return *out ? PL_OK : no_memory("tokenizer");
}
void pl_matcher_release(PlMatcher *m) { free(m); }

PlStatus pl_pattern_each(const PlPattern *p, PlMatcher *m, const char *s, size_t n, bool empty, PlMatchFn f, void *ctx) {
  (void)m, (void)empty;
  return each_literal(p, s, n, f, ctx); /* no others are made */
}

PlStatus pl_scripts_ready(const char *name, PlPattern **out) { return pl_pattern_new(out, name, "", 0); }
int pl_script_of(const PlPattern *p, PlMatcher *m, const char *s, size_t n) { return (void)p, (void)m, (void)s, (void)n, 0; }

#endif
