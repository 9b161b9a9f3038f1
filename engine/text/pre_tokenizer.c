/* SPDX-License-Identifier: MIT
 * The steps of a pre_tokenizer; see pre_tokenizer.h. */
#include "engine/text/pre_tokenizer.h"

#include <string.h>

#include "engine/text/characters.h"
#include "engine/text/normalize.h"

typedef struct Cutting {
  const PlStep *step;
  const PlSlice *whole;
  PlSliceFn f;
  void *ctx;
  const char *held; /* what may join with what comes; NULL: nothing */
  size_t n;
  bool match; /* the last part of it */
} Cutting;

static PlStatus give(const Cutting *c, const char *s, size_t n) {
  PlSlice part = pl_slice_part(c->whole, s, n);
  return n > 0 ? c->f(c->ctx, &part) : PL_OK;
}

static PlStatus give_held(Cutting *c) {
  const char *s = c->held;
  c->held = NULL;
  return s ? give(c, s, c->n) : PL_OK;
}

static PlStatus hold(Cutting *c, const char *s, size_t n, bool match) {
  PL_TRY(give_held(c));
  c->held = s;
  c->n = n;
  c->match = match;
  return PL_OK;
}

static PlStatus cut(void *ctx, const char *s, size_t n, bool match) {
  Cutting *c = ctx;
  match = match != c->step->invert;
  switch (c->step->cut) {
  case PL_CUT_REMOVED: return match ? PL_OK : give(c, s, n);
  case PL_CUT_ISOLATED: return give(c, s, n);
  case PL_CUT_NEXT: /* a match waits for what is no match */
    if (match) return hold(c, s, n, true);
    if (!c->held) return give(c, s, n);
    c->n += n;
    return give_held(c);
  case PL_CUT_PREVIOUS: /* a match joins what is none */
    if (!c->held || !match || c->match) return hold(c, s, n, match);
    break;
  case PL_CUT_CONTIGUOUS:
    if (!c->held || match != c->match) return hold(c, s, n, match);
    break;
  }
  c->n += n;
  c->match = match;
  return PL_OK;
}

/* Parts of s that are such characters, one by one, and what is between. */
static PlStatus by_class(Cutting *c, bool (*is)(int32_t)) {
  const char *s = c->whole->s;
  size_t n = c->whole->n, done = 0;
  for (size_t i = 0, len; i < n; i += len) {
    if (!is(pl_char_at(s + i, n - i, &len))) continue;
    if (i > done) PL_TRY(cut(c, s + done, i - done, false));
    PL_TRY(cut(c, s + i, len, true));
    done = i + len;
  }
  return done < n ? cut(c, s + done, n - done, false) : PL_OK;
}

/* Runs of word characters, and runs of others; spaces are left out. */
static PlStatus by_words(Cutting *c) {
  const char *s = c->whole->s;
  size_t n = c->whole->n, from = 0;
  int last = 0;
  for (size_t i = 0, len; i <= n; i += len) {
    int32_t u = i < n ? pl_char_at(s + i, n - i, &len) : ' ';
    if (i == n) len = 1;
    int kind = pl_char_is_space(u) ? 0 : pl_char_is_word(u) ? 1 : 2;
    if (kind == last) continue;
    if (last != 0) PL_TRY(give(c, s + from, i - from));
    from = i;
    last = kind;
  }
  return PL_OK;
}

static PlStatus cut_step(const PlStep *step, PlMatcher *m, const PlSlice *p, PlSliceFn f, void *ctx) {
  Cutting c = {.step = step, .whole = p, .f = f, .ctx = ctx};
  if (step->words) return by_words(&c);
  if (step->pattern) PL_TRY(pl_pattern_each(step->pattern, m, p->s, p->n, true, cut, &c));
  else PL_TRY(by_class(&c, step->is));
  return give_held(&c);
}

static PlStatus fixed(const PlStep *step, const PlSlice *p, PlSliceFn f, void *ctx) {
  size_t from = 0, count = 0;
  for (size_t i = 0, len; i < p->n; i += len) {
    (void)pl_char_at(p->s + i, p->n - i, &len);
    if (++count < step->count && i + len < p->n) continue;
    PlSlice part = pl_slice_part(p, p->s + from, i + len - from);
    PL_TRY(f(ctx, &part));
    from = i + len;
    count = 0;
  }
  return PL_OK;
}

/* Kana and the sign for long vowels count as Han; blanks and unassigned characters belong to what they stand in. */
static PlStatus by_script(const PlStep *step, PlMatcher *m, const PlSlice *p, PlSliceFn f, void *ctx) {
  enum { ANY = 0, HAN = 36, HIRAGANA = 33, KATAKANA = 34 };
  size_t from = 0;
  int last = -1; /* nothing yet: what comes first begins a piece */
  bool begun = false;
  for (size_t i = 0, len; i < p->n; i += len) {
    int32_t c = pl_char_at(p->s + i, p->n - i, &len);
    int script = c < 0 || c == ' ' ? ANY : c == 0x30FC ? HAN : pl_script_of(step->pattern, m, p->s + i, len);
    if (script == HIRAGANA || script == KATAKANA) script = HAN;
    if (script == ANY) continue;
    if (script != last) {
      PlSlice part = pl_slice_part(p, p->s + from, i - from);
      if (begun && i > from) PL_TRY(f(ctx, &part));
      from = i;
      begun = true;
    }
    last = script;
  }
  PlSlice rest = pl_slice_part(p, p->s + from, p->n - from);
  return begun ? f(ctx, &rest) : PL_OK;
}

static PlStatus prefixed(const PlSlice *p, PlAligned *work, PlSliceFn f, void *ctx) {
  if (p->s[0] == ' ') return f(ctx, p);
  pl_aligned_clear(work, p->origin != NULL);
  PL_TRY(pl_aligned_put(work, " ", 1, p->origin ? p->origin[0] : (PlOrigin){0, 0}));
  PL_TRY(pl_aligned_copy(work, p));
  PlSlice whole = pl_aligned_whole(work);
  return f(ctx, &whole);
}

static PlStatus metaspace(const PlStep *step, const PlSlice *p, PlAligned *work, PlSliceFn f, void *ctx) {
  size_t n = strlen(step->text);
  PlOrigin first = p->origin ? p->origin[0] : (PlOrigin){0, 0};
  bool there = p->s[0] == ' ' || (p->n >= n && memcmp(p->s, step->text, n) == 0);
  pl_aligned_clear(work, p->origin != NULL);
  if (step->prepend && !there && (!step->first || first.from == 0)) PL_TRY(pl_aligned_put(work, step->text, n, first));
  for (size_t i = 0; i < p->n;) {
    const char *blank = memchr(p->s + i, ' ', p->n - i);
    size_t end = blank ? (size_t)(blank - p->s) : p->n;
    PlSlice part = pl_slice_part(p, p->s + i, end - i);
    PL_TRY(pl_aligned_copy(work, &part));
    if (blank) PL_TRY(pl_aligned_put(work, step->text, n, p->origin ? p->origin[end] : (PlOrigin){0, 0}));
    i = end + 1;
  }
  PlSlice whole = pl_aligned_whole(work);
  return f(ctx, &whole);
}

PlStatus pl_step_each(const PlStep *step, PlMatcher *m, PlAligned *work, const PlSlice *p, PlSliceFn f, void *ctx) {
  if (p->n == 0) return PL_OK;
  switch (step->kind) {
  case PL_STEP_CUT: return cut_step(step, m, p, f, ctx);
  case PL_STEP_PREFIX: return prefixed(p, work, f, ctx);
  case PL_STEP_METASPACE: return metaspace(step, p, work, f, ctx);
  case PL_STEP_FIXED: return fixed(step, p, f, ctx);
  case PL_STEP_SCRIPTS: return by_script(step, m, p, f, ctx);
  default: break;
  }
  pl_aligned_clear(work, p->origin != NULL);
  PlNormStep bytes = {.kind = PL_NORM_BYTES};
  PL_TRY(pl_norm_step(&bytes, m, p, work));
  PlSlice whole = pl_aligned_whole(work);
  return f(ctx, &whole);
}
