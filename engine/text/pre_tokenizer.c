/* SPDX-License-Identifier: MIT
 * See pre_tokenizer.h. Expressions run in PCRE2 with limits: a hostile file's expression ends in an error, not in a hang. */
#include "engine/text/pre_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/io/safetensors_header.h"
#include "kernels/kernel.h"

#ifdef PL_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

/* ---- trie -------------------------------------------------------------------------------------------------------- */

static PlStatus new_node(PlTrie *t, uint8_t byte, int32_t *out) {
  if (t->n == t->room) {
    size_t room = t->room * 2 + 64;
    PlTrieNode *p = room < INT32_MAX ? realloc(t->node, room * sizeof *p) : NULL;
    if (!p) PL_FAIL(PL_ERR_OOM, "tokenizer: out of memory");
    t->node = p;
    t->room = room;
  }
  t->node[t->n] = (PlTrieNode){.child = -1, .sibling = -1, .token = -1, .byte = byte};
  *out = (int32_t)t->n++;
  return PL_OK;
}

static int32_t child_of(const PlTrie *t, int32_t at, uint8_t byte) {
  int32_t k = t->node[at].child;
  while (k >= 0 && t->node[k].byte != byte) k = t->node[k].sibling;
  return k;
}

PlStatus pl_trie_add(PlTrie *t, const char *s, size_t n, int32_t token) {
  int32_t at = 0;
  if (t->n == 0) PL_TRY(new_node(t, 0, &at));
  for (size_t i = 0; i < n; i++) {
    int32_t k = child_of(t, at, (uint8_t)s[i]);
    if (k < 0) {
      PL_TRY(new_node(t, (uint8_t)s[i], &k));
      t->node[k].sibling = t->node[at].child;
      t->node[at].child = k;
    }
    at = k;
  }
  t->node[at].token = token;
  return PL_OK;
}

int32_t pl_trie_find(const PlTrie *t, const char *s, size_t n, size_t *len) {
  int32_t found = -1;
  if (t->n == 0) return -1;
  for (size_t i = 0, at = 0; i < n; i++) {
    int32_t k = child_of(t, (int32_t)at, (uint8_t)s[i]);
    if (k < 0) break;
    at = (size_t)k;
    if (t->node[at].token < 0) continue;
    found = t->node[at].token;
    *len = i + 1;
  }
  return found;
}

void pl_trie_free(PlTrie *t) { free(t->node); }

/* ---- characters ---------------------------------------------------------------------------------------------------- */

/* U+0009 … D, 20, 85, A0, 1680, 2000 … A, 2028, 2029, 202F, 205F, 3000 */
size_t pl_space_at(const char *s, size_t n) {
  if (n == 0) return 0;
  const unsigned char *p = (const unsigned char *)s;
  if (p[0] == ' ' || (p[0] >= 9 && p[0] <= 13)) return 1;
  if (n >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0)) return 2;
  if (n < 3) return 0;
  if (p[0] == 0xE1 && p[1] == 0x9A && p[2] == 0x80) return 3;
  if (p[0] == 0xE2 && p[1] == 0x80 && ((p[2] >= 0x80 && p[2] <= 0x8A) || p[2] == 0xA8 || p[2] == 0xA9 || p[2] == 0xAF)) return 3;
  if (p[0] == 0xE2 && p[1] == 0x81 && p[2] == 0x9F) return 3;
  return p[0] == 0xE3 && p[1] == 0x80 && p[2] == 0x80 ? 3 : 0;
}

size_t pl_char_before(const char *s, size_t at) {
  size_t i = at - 1;
  while (i > 0 && at - i < 4 && ((unsigned char)s[i] & 0xC0) == 0x80) i--;
  return i;
}

/* ---- patterns --------------------------------------------------------------------------------------------------------- */

const char pl_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct PlPattern {
  PlCut cut;
#ifdef PL_HAVE_PCRE2
  pcre2_code *code;
  pcre2_match_data *data;
  pcre2_match_context *context;
#endif
};

#ifdef PL_HAVE_PCRE2

/* Appends open, set and, if open is not empty, a closing bracket. */
static size_t put_set(char *to, size_t k, const char *set, const char *open) {
  memcpy(to + k, open, strlen(open));
  k += strlen(open);
  memcpy(to + k, set, strlen(set));
  k += strlen(set);
  if (*open) to[k++] = ']';
  return k;
}

/* Files are written for engines whose \s is White_Space; PCRE2's also has U+180E. */
static char *spell_spaces(const char *s, size_t n, size_t *len) {
  static const char set[] = "\\t-\\r\\x{85}\\p{Z}";
  char *to = malloc(n * (sizeof set + 3) + 1);
  size_t k = 0;
  bool class = false;
  for (size_t i = 0; to && i < n; i++) {
    if (s[i] == '\\' && i + 1 < n) {
      char c = s[++i];
      if (c == 's' || (c == 'S' && !class)) k = put_set(to, k, set, class ? "" : c == 's' ? "[" : "[^");
      else {
        to[k++] = '\\';
        to[k++] = c;
      }
      continue;
    }
    if (s[i] == '[') class = true;
    else if (s[i] == ']') class = false;
    to[k++] = s[i];
  }
  *len = k;
  return to;
}

PlStatus pl_pattern_new(PlPattern **out, const char *name, const char *regex, size_t n, PlCut cut) {
  enum { MATCH_LIMIT = 2000000, HEAP_KIB = 64 << 10 };
  size_t len = 0;
  if (n > 1 << 16) PL_FAIL(PL_ERR_FORMAT, "%s: an expression of %zu bytes", name, n);
  char *text = spell_spaces(regex, n, &len);
  PlPattern *p = calloc(1, sizeof *p);
  if (!text || !p) {
    free(text);
    free(p);
    PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
  }
  int code = 0;
  size_t at = 0;
  p->cut = cut;
  p->code = pcre2_compile((PCRE2_SPTR)text, len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
  free(text);
  if (!p->code) {
    char why[128] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    pl_pattern_release(p);
    PL_FAIL(PL_ERR_FORMAT, "%s: the expression '%.*s' is malformed: %s", name, (int)(n < 80 ? n : 80), regex, why);
  }
  (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* where it is not possible, matching works without */
  p->data = pcre2_match_data_create(1, NULL);
  p->context = pcre2_match_context_create(NULL);
  if (!p->data || !p->context) {
    pl_pattern_release(p);
    PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
  }
  pcre2_set_match_limit(p->context, MATCH_LIMIT);
  pcre2_set_heap_limit(p->context, HEAP_KIB);
  *out = p;
  return PL_OK;
}

void pl_pattern_release(PlPattern *p) {
  if (!p) return;
  pcre2_match_data_free(p->data);
  pcre2_match_context_free(p->context);
  pcre2_code_free(p->code);
  free(p);
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
  if (!*copy) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
  memcpy(*copy, s, n);
  for (size_t i = 0, k; i < n; i += k ? k : 1) {
    k = pl_utf8_char(s + i, n - i);
    if (k == 0) (*copy)[i] = '\x01';
  }
  *text = *copy;
  return PL_OK;
}

/* The checked text t is matched, the pieces are of s. PCRE2 would check all of it again at each call. */
static PlStatus each(PlPattern *p, const char *t, const char *s, size_t n, PlMatchFn f, void *ctx) {
  size_t done = 0, at = 0;
  for (int64_t count = 0; at < n; count++) {
    int rc = pcre2_match(p->code, (PCRE2_SPTR)t, n, at, PCRE2_NO_UTF_CHECK, p->data, p->context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return match_failure(rc);
    const size_t *v = pcre2_get_ovector_pointer(p->data);
    size_t from = v[0], to = v[1];
    if (to <= from || from < done) { /* empty: on by one character */
      at = (from > at ? from : at) + 1;
      while (at < n && ((unsigned char)t[at] & 0xC0) == 0x80) at++;
      continue;
    }
    if (from > done) PL_TRY(f(ctx, s + done, from - done, false));
    PL_TRY(f(ctx, s + from, to - from, true));
    done = at = to;
    if (count % 4096 == 4095) PL_TRY(plk_poll());
  }
  return done < n ? f(ctx, s + done, n - done, false) : PL_OK;
}

PlStatus pl_pattern_each(PlPattern *p, const char *s, size_t n, PlMatchFn f, void *ctx) {
  const char *t;
  char *copy;
  PL_TRY(valid_text(s, n, &t, &copy));
  PlStatus st = each(p, t, s, n, f, ctx);
  free(copy);
  return st;
}

typedef struct Cutting {
  PlCut cut;
  PlPieceFn f;
  void *ctx;
  const char *held; /* what goes with the match before it or behind it */
  size_t n;
} Cutting;

static PlStatus cut_piece(void *ctx, const char *s, size_t n, bool match) {
  Cutting *c = ctx;
  if (c->cut == PL_CUT_REMOVED) return match ? PL_OK : c->f(c->ctx, s, n);
  if (c->cut == PL_CUT_KEPT) return match ? c->f(c->ctx, s, n) : PL_OK;
  if (c->cut == PL_CUT_ISOLATED) return c->f(c->ctx, s, n);
  bool joins = c->held && (c->cut == PL_CUT_BEFORE ? !match : match);
  const char *from = joins ? c->held : s;
  size_t len = joins ? c->n + n : n;
  if (c->held && !joins) PL_TRY(c->f(c->ctx, c->held, c->n));
  c->held = NULL;
  if (match == (c->cut == PL_CUT_BEFORE) && !joins) { /* wait for what comes */
    c->held = from;
    c->n = len;
    return PL_OK;
  }
  return c->f(c->ctx, from, len);
}

PlStatus pl_pattern_cut(PlPattern *p, const char *s, size_t n, PlPieceFn f, void *ctx) {
  Cutting c = {.cut = p->cut, .f = f, .ctx = ctx};
  PL_TRY(pl_pattern_each(p, s, n, cut_piece, &c));
  return c.held ? f(ctx, c.held, c.n) : PL_OK;
}

#else

PlStatus pl_pattern_new(PlPattern **out, const char *name, const char *regex, size_t n, PlCut cut) {
  (void)out, (void)regex, (void)n, (void)cut;
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: this build has no PCRE2, so no tokenizers (install libpcre2-dev and build again)", name);
}

void pl_pattern_release(PlPattern *p) { (void)p; }

PlStatus pl_pattern_cut(PlPattern *p, const char *s, size_t n, PlPieceFn f, void *ctx) {
  (void)p;
  return f(ctx, s, n);
}

PlStatus pl_pattern_each(PlPattern *p, const char *s, size_t n, PlMatchFn f, void *ctx) {
  (void)p;
  return f(ctx, s, n, false);
}

#endif
