/* SPDX-License-Identifier: MIT
 * See normalize.h. Which byte of the result comes from which of the text follows the rules of the tokenizers library, since
 * offsets do. */
#include "engine/text/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"
#include "engine/text/normal_form.h"

/* ---- the alphabet of bytes ---------------------------------------------------------------------------------------- */

static bool stands_for_itself(int b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; }

/* The bytes without a character of their own come in three runs: 0 … 32, 127 … 160, 173. */
static int char_of_byte(uint8_t b) {
  if (stands_for_itself(b)) return b;
  return 256 + (b <= 32 ? b : b <= 160 ? b - 127 + 33 : 67);
}

int pl_byte_char(uint8_t byte, char *to) { return (int)pl_char_put(char_of_byte(byte), to); }

int pl_byte_of_char(int32_t c) {
  if (c < 0) return -1;
  if (c < 256) return stands_for_itself(c) ? c : -1;
  int k = c - 256;
  return k <= 32 ? k : k <= 66 ? k - 33 + 127 : k == 67 ? 173 : -1;
}

static PlStatus to_bytes(PlEdit *e) {
  for (size_t i = 0, len; i < e->old.n; i += len) {
    char c[4];
    (void)pl_char_at(e->old.s + i, e->old.n - i, &len);
    for (size_t k = 0; k < len; k++) {
      size_t n = (size_t)pl_byte_char((uint8_t)e->old.s[i + k], c);
      PL_TRY(k == 0 ? pl_edit_replace(e, c, n, len) : pl_edit_insert(e, c, n));
    }
  }
  return PL_OK;
}

/* ---- character by character ------------------------------------------------------------------------------------------ */

static bool nmt_drops(int32_t c) {
  return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool nmt_blank(int32_t c) {
  return c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

/* Whether the step leaves such a character out; *as: what it becomes. */
static bool drops(PlNormKind kind, int32_t c, int32_t *as) {
  *as = c;
  switch (kind) {
  case PL_NORM_NO_ACCENTS: return pl_char_is_mark(c);
  case PL_NORM_NO_MARKS: return pl_char_is_nonspacing(c);
  case PL_NORM_NMT:
    if (nmt_blank(c)) *as = ' ';
    return nmt_drops(c);
  default: /* CLEAN */
    if (c == '\t' || c == '\n' || c == '\r') return *as = ' ', false;
    if (c == 0 || c == 0xFFFD || pl_char_is_control(c)) return true;
    if (pl_char_is_space(c)) *as = ' ';
    return false;
  }
}

static PlStatus filter(PlNormKind kind, PlEdit *e) {
  for (size_t len; e->at < e->old.n;) {
    const char *s = e->old.s + e->at;
    int32_t as, c = pl_char_at(s, e->old.n - e->at, &len);
    if (c < 0) PL_TRY(pl_edit_replace(e, s, len, len));
    else if (drops(kind, c, &as)) e->at += len;
    else if (as == c) PL_TRY(pl_edit_replace(e, s, len, len));
    else PL_TRY(pl_edit_char(e, as, 0));
  }
  return PL_OK;
}

static PlStatus lower(PlEdit *e) {
  for (size_t len; e->at < e->old.n;) {
    const char *s = e->old.s + e->at;
    int32_t as[2], c = pl_char_at(s, e->old.n - e->at, &len);
    if (c < 0) {
      PL_TRY(pl_edit_replace(e, s, len, len));
      continue;
    }
    int n = pl_char_lower(c, as);
    PL_TRY(pl_edit_char(e, as[0], 0));
    if (n > 1) PL_TRY(pl_edit_char(e, as[1], 1));
  }
  return PL_OK;
}

static PlStatus ideographs(PlEdit *e) {
  for (size_t len; e->at < e->old.n;) {
    const char *s = e->old.s + e->at;
    int32_t c = pl_char_at(s, e->old.n - e->at, &len);
    if (!pl_char_is_ideograph(c)) {
      PL_TRY(pl_edit_replace(e, s, len, len));
      continue;
    }
    PL_TRY(pl_edit_replace(e, " ", 1, len));
    PL_TRY(pl_edit_insert(e, s, len));
    PL_TRY(pl_edit_insert(e, " ", 1));
  }
  return PL_OK;
}

/* ---- the compiled map -------------------------------------------------------------------------------------------------- */

/* `was` characters become nothing: as many of what is next go with the character before, which stands for the first of them
 * where it had been inserted (*last is 1); the first of a text stay in the way. As in the reference. */
static void drop_chars(PlEdit *e, int was, int *last) {
  PlAligned *to = e->to;
  for (size_t len; was > 0 && to->n > 0 && e->at < e->old.n; was--, e->at += len, *last = 0) {
    (void)pl_char_at(e->old.s + e->at, e->old.n - e->at, &len);
    if (*last <= 0 || !to->tracked) continue;
    for (size_t k = pl_char_before(to->s, to->n); k < to->n; k++) to->origin[k] = e->old.origin[e->at];
  }
}

/* The old characters (`used` bytes at `old`) become s: characters in the place of characters; more are inserted, fewer take
 * the rest with the last. *last: whether the last one was inserted. */
static PlStatus replace_chars(PlEdit *e, const char *s, size_t n, const char *old, size_t used, int *last) {
  int now = (int)pl_char_count(s, n), was = (int)pl_char_count(old, used);
  if (now == 0) drop_chars(e, was, last);
  for (size_t i = 0, len, k = 0; i < n; i += len, k++) {
    int32_t c = pl_char_at(s + i, n - i, &len);
    int change = (int)k >= was ? 1 : (int)k == now - 1 && now < was ? now - was : 0;
    if (c < 0) PL_TRY(pl_edit_insert(e, s + i, len));
    else PL_TRY(pl_edit_char(e, c, change));
    *last = change;
  }
  return PL_OK;
}

/* Clusters of fewer than six bytes as a whole first, then each character. */
static PlStatus through_map(const PlCharsmap *m, PlEdit *e) {
  const char *s = e->old.s;
  size_t n = e->old.n;
  int last = 0;
  for (size_t i = 0, len; i < n;) {
    int32_t state = 0, c = pl_char_at(s + i, n - i, &len);
    size_t end = i + len, used, k;
    while (end < n) {
      int32_t next = pl_char_at(s + end, n - end, &len);
      bool both_ascii = c >= 0x20 && c < 0x7F && next >= 0x20 && next < 0x7F;
      if (both_ascii || pl_char_breaks(c, next, &state)) break;
      end += len;
      c = next;
    }
    const char *as = end - i < 6 ? pl_charsmap_find(m, s + i, end - i, false, &used, &k) : NULL;
    if (as) {
      PL_TRY(replace_chars(e, as, k, s + i, end - i, &last));
      i = end;
      continue;
    }
    for (; i < end; i += len) {
      c = pl_char_at(s + i, end - i, &len);
      as = pl_charsmap_find(m, s + i, len, false, &used, &k);
      if (as) {
        PL_TRY(replace_chars(e, as, k, s + i, len, &last));
        continue;
      }
      last = 0;
      if (c < 0) PL_TRY(pl_edit_replace(e, s + i, len, len));
      else PL_TRY(pl_edit_char(e, c, 0));
    }
  }
  return PL_OK;
}

/* ---- the other steps ------------------------------------------------------------------------------------------------ */

static PlStatus strip(const PlNormStep *step, const PlSlice *p, PlAligned *to) {
  size_t from = 0, n = p->n, k;
  while (step->left && (k = pl_space_at(p->s + from, n - from)) > 0) from += k;
  while (step->right && n > from) {
    size_t at = pl_char_before(p->s, n);
    if (at < from || pl_space_at(p->s + at, n - at) != n - at) break;
    n = at;
  }
  PlSlice part = pl_slice_part(p, p->s + from, n - from);
  return pl_aligned_copy(to, &part);
}

/* All of the new text and the old first character come from where that is from. */
static PlStatus prepend(const PlNormStep *step, const PlSlice *p, PlAligned *to) {
  PlOrigin first = p->origin && p->n ? p->origin[0] : (PlOrigin){0, 0};
  if (p->n > 0) PL_TRY(pl_aligned_put(to, step->text, step->n, first));
  return pl_aligned_copy(to, p);
}

typedef struct Replacing {
  const PlNormStep *step;
  PlAligned *to;
  const PlSlice *p;
} Replacing;

static PlStatus replace_piece(void *ctx, const char *s, size_t n, bool match) {
  const Replacing *r = ctx;
  PlSlice part = pl_slice_part(r->p, s, n);
  if (!match) return pl_aligned_copy(r->to, &part);
  size_t end = (size_t)(s - r->p->s) + n; /* new characters come from what is before them */
  PlOrigin origin = r->p->origin && end > 0 ? r->p->origin[end - 1] : (PlOrigin){0, 0};
  return pl_aligned_put(r->to, r->step->text, r->step->n, origin);
}

bool pl_norm_needs_tables(PlNormKind kind) { return kind <= PL_NORM_CLEAN || kind == PL_NORM_CHARSMAP; }

PlStatus pl_norm_step(const PlNormStep *step, PlMatcher *m, const PlSlice *p, PlAligned *to) {
  PlEdit e = {.to = to, .old = *p};
  switch (step->kind) {
  case PL_NORM_NFC:
  case PL_NORM_NFD:
  case PL_NORM_NFKC:
  case PL_NORM_NFKD:
    return pl_normal_form(&e, step->kind == PL_NORM_NFC || step->kind == PL_NORM_NFKC,
                          step->kind == PL_NORM_NFKC || step->kind == PL_NORM_NFKD);
  case PL_NORM_LOWER: return lower(&e);
  case PL_NORM_IDEOGRAPHS: return ideographs(&e);
  case PL_NORM_CHARSMAP: return through_map(step->map, &e);
  case PL_NORM_STRIP: return strip(step, p, to);
  case PL_NORM_PREPEND: return prepend(step, p, to);
  case PL_NORM_REPLACE: return pl_pattern_each(step->pattern, m, p->s, p->n, true, replace_piece, &(Replacing){step, to, p});
  case PL_NORM_BYTES: return to_bytes(&e);
  default: return filter(step->kind, &e);
  }
}

/* Whether the step leaves such a text as it is: most texts are ASCII, and most steps have nothing to do there. */
static bool leaves(const PlNormStep *step, const PlSlice *p) {
  const bool form = step->kind <= PL_NORM_NFKD, marks = step->kind == PL_NORM_NO_ACCENTS || step->kind == PL_NORM_NO_MARKS;
  unsigned char limit = step->kind == PL_NORM_NFC || marks ? 0xCC : 0x80; /* U+0300 begins with byte 0xCC */
  if (step->kind == PL_NORM_LOWER) {
    for (size_t i = 0; i < p->n; i++)
      if ((unsigned char)p->s[i] >= 0x80 || (p->s[i] >= 'A' && p->s[i] <= 'Z')) return false;
    return true;
  }
  if (!form && !marks && step->kind != PL_NORM_IDEOGRAPHS) return false;
  for (size_t i = 0; i < p->n; i++)
    if ((unsigned char)p->s[i] >= limit) return false;
  return true;
}

PlStatus pl_normalize(const PlNormStep *step, int count, PlMatcher *m, const PlSlice *p, PlAligned work[2], PlSlice *result) {
  PlSlice now = *p;
  int turn = 0;
  for (int i = 0; i < count; i++) {
    if (leaves(&step[i], &now)) continue;
    pl_aligned_clear(&work[turn], p->origin != NULL);
    PL_TRY(pl_norm_step(&step[i], m, &now, &work[turn]));
    now = pl_aligned_whole(&work[turn]);
    turn = !turn;
  }
  *result = now;
  return PL_OK;
}

void pl_norm_free(PlNormStep *step) {
  free(step->text);
  pl_pattern_release(step->pattern);
  pl_charsmap_release(step->map);
}
