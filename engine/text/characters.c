/* SPDX-License-Identifier: MIT
 * See characters.h. */
#include "engine/text/characters.h"

#include <string.h>

#include "engine/io/io.h"

#ifdef PL_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

int32_t pl_char_at(const char *s, size_t n, size_t *len) {
  const unsigned char *p = (const unsigned char *)s;
  if (p[0] < 0x80) return *len = 1, p[0];
  size_t k = pl_utf8_char(s, n);
  *len = k ? k : 1;
  switch (k) {
  case 2: return (p[0] & 0x1F) << 6 | (p[1] & 0x3F);
  case 3: return (p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
  case 4: return (p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
  default: return -1;
  }
}

size_t pl_char_before(const char *s, size_t at) {
  size_t i = at - 1;
  while (i > 0 && at - i < 4 && ((unsigned char)s[i] & 0xC0) == 0x80) i--;
  return i;
}

size_t pl_char_count(const char *s, size_t n) {
  size_t count = 0;
  for (size_t i = 0, len; i < n; i += len, count++) (void)pl_char_at(s + i, n - i, &len);
  return count;
}

size_t pl_char_put(int32_t c, char to[4]) {
  if (c < 0x80) return to[0] = (char)c, 1;
  if (c < 0x800) {
    to[0] = (char)(0xC0 | c >> 6);
    to[1] = (char)(0x80 | (c & 0x3F));
    return 2;
  }
  if (c < 0x10000) {
    to[0] = (char)(0xE0 | c >> 12);
    to[1] = (char)(0x80 | (c >> 6 & 0x3F));
    to[2] = (char)(0x80 | (c & 0x3F));
    return 3;
  }
  to[0] = (char)(0xF0 | c >> 18);
  to[1] = (char)(0x80 | (c >> 12 & 0x3F));
  to[2] = (char)(0x80 | (c >> 6 & 0x3F));
  to[3] = (char)(0x80 | (c & 0x3F));
  return 4;
}

bool pl_char_is_space(int32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

size_t pl_space_at(const char *s, size_t n) {
  size_t len = 0;
  return n > 0 && pl_char_is_space(pl_char_at(s, n, &len)) ? len : 0;
}

bool pl_char_is_ideograph(int32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

#ifdef PL_HAVE_UTF8PROC

bool pl_char_tables(void) { return true; }

static int category(int32_t c) { return c < 0 ? UTF8PROC_CATEGORY_CN : (int)utf8proc_category(c); }

bool pl_char_is_punctuation(int32_t c) {
  if (c < 0x80) return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  int k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool pl_char_is_number(int32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  int k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool pl_char_is_mark(int32_t c) {
  if (c < 0x300) return false;
  int k = category(c);
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

bool pl_char_is_nonspacing(int32_t c) { return c >= 0x300 && category(c) == UTF8PROC_CATEGORY_MN; }

bool pl_char_is_control(int32_t c) {
  if (c < 0x80) return c >= 0 && (c < 32 || c == 127);
  int k = category(c);
  return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

bool pl_char_is_word(int32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  switch (category(c)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO:
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_PC: return true;
  default: /* Join_Control, and the letters among the symbols */
    return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
  }
}

int pl_char_class(int32_t c) { return c < 0x300 ? 0 : (int)utf8proc_get_property(c)->combining_class; }

/* U+0130 alone has two lower-case characters. */
int pl_char_lower(int32_t c, int32_t to[2]) {
  to[0] = c;
  if (c < 0x80) return to[0] = c >= 'A' && c <= 'Z' ? c + 32 : c, 1;
  if (c == 0x130) return to[0] = 'i', to[1] = 0x307, 2;
  to[0] = utf8proc_tolower(c);
  return 1;
}

int pl_char_decompose(int32_t c, bool compatible, int32_t *to, int room) {
  int last = 0;
  utf8proc_option_t options = (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_ssize_t n = c < 0x80 ? 0 : utf8proc_decompose_char(c, to, room, options, &last);
  if (n >= 1 && n <= room) return (int)n;
  to[0] = c;
  return 1;
}

int32_t pl_char_compose(int32_t a, int32_t b) {
  int32_t pair[2] = {a, b};
  if (a < 0 || b < 0x300) return -1; /* nothing below composes with what is before it */
  utf8proc_ssize_t k = utf8proc_normalize_utf32(pair, 2, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  return k == 1 ? pair[0] : -1;
}

PlCharFacts pl_char_facts(int32_t c) {
  if (c < 0 || c > 0x10FFFF) return (PlCharFacts){"Cn", c, c, c};
  return (PlCharFacts){utf8proc_category_string(c), utf8proc_tolower(c), utf8proc_toupper(c), utf8proc_totitle(c)};
}

bool pl_char_breaks(int32_t a, int32_t b, int32_t *state) { return a < 0 || b < 0 || utf8proc_grapheme_break_stateful(a, b, state); }

#else

bool pl_char_tables(void) { return false; }
bool pl_char_is_punctuation(int32_t c) { return (void)c, false; }
bool pl_char_is_number(int32_t c) { return (void)c, false; }
bool pl_char_is_mark(int32_t c) { return (void)c, false; }
bool pl_char_is_nonspacing(int32_t c) { return (void)c, false; }
bool pl_char_is_control(int32_t c) { return (void)c, false; }
bool pl_char_is_word(int32_t c) {
  return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
int pl_char_class(int32_t c) { return (void)c, 0; }
int pl_char_lower(int32_t c, int32_t to[2]) { return to[0] = c, 1; }
int pl_char_decompose(int32_t c, bool compatible, int32_t *to, int room) { return (void)compatible, (void)room, to[0] = c, 1; }
PlCharFacts pl_char_facts(int32_t c) {
  bool low = c >= 'a' && c <= 'z', high = c >= 'A' && c <= 'Z';
  int32_t lower = high ? c + 32 : c, upper = low ? c - 32 : c;
  return (PlCharFacts){low ? "Ll" : high ? "Lu" : c >= '0' && c <= '9' ? "Nd" : "Cn", lower, upper, upper};
}
int32_t pl_char_compose(int32_t a, int32_t b) { return (void)a, (void)b, -1; }
bool pl_char_breaks(int32_t a, int32_t b, int32_t *state) { return (void)a, (void)b, (void)state, true; }

#endif
