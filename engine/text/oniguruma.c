/* SPDX-License-Identifier: MIT
 * See oniguruma.h. */
#include "engine/text/oniguruma.h"

#ifdef PL_HAVE_PCRE2
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- scripts: \p{Han} means the script here, to newer PCRE2 without "sc:" also what only shares it ---------------------- */

#if PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40
#define SCRIPT "sc:"
#else
#define SCRIPT ""
#endif

static const char *const scripts[] = {"Common",
                                      "Latin",
                                      "Greek",
                                      "Cyrillic",
                                      "Armenian",
                                      "Hebrew",
                                      "Arabic",
                                      "Syriac",
                                      "Thaana",
                                      "Devanagari",
                                      "Bengali",
                                      "Gurmukhi",
                                      "Gujarati",
                                      "Oriya",
                                      "Tamil",
                                      "Telugu",
                                      "Kannada",
                                      "Malayalam",
                                      "Sinhala",
                                      "Thai",
                                      "Lao",
                                      "Tibetan",
                                      "Myanmar",
                                      "Georgian",
                                      "Hangul",
                                      "Ethiopic",
                                      "Cherokee",
                                      "Canadian_Aboriginal",
                                      "Ogham",
                                      "Runic",
                                      "Khmer",
                                      "Mongolian",
                                      "Hiragana",
                                      "Katakana",
                                      "Bopomofo",
                                      "Han",
                                      "Yi",
                                      "Old_Italic",
                                      "Gothic",
                                      "Deseret",
                                      "Inherited",
                                      "Tagalog",
                                      "Hanunoo",
                                      "Buhid",
                                      "Tagbanwa",
                                      "Limbu",
                                      "Tai_Le",
                                      "Linear_B",
                                      "Ugaritic",
                                      "Shavian",
                                      "Osmanya",
                                      "Cypriot",
                                      "Braille",
                                      "Buginese",
                                      "Coptic",
                                      "New_Tai_Lue",
                                      "Glagolitic",
                                      "Tifinagh",
                                      "Syloti_Nagri",
                                      "Old_Persian",
                                      "Kharoshthi",
                                      "Balinese",
                                      "Cuneiform",
                                      "Phoenician",
                                      "Phags_Pa",
                                      "Nko",
                                      "Sundanese",
                                      "Lepcha",
                                      "Ol_Chiki",
                                      "Vai",
                                      "Saurashtra",
                                      "Kayah_Li",
                                      "Rejang",
                                      "Lycian",
                                      "Carian",
                                      "Lydian",
                                      "Cham",
                                      "Tai_Tham",
                                      "Tai_Viet",
                                      "Avestan",
                                      "Egyptian_Hieroglyphs",
                                      "Samaritan",
                                      "Lisu",
                                      "Bamum",
                                      "Javanese",
                                      "Meetei_Mayek",
                                      "Imperial_Aramaic",
                                      "Old_South_Arabian",
                                      "Inscriptional_Parthian",
                                      "Inscriptional_Pahlavi",
                                      "Old_Turkic",
                                      "Kaithi",
                                      "Batak",
                                      "Brahmi",
                                      "Mandaic",
                                      "Chakma",
                                      "Meroitic_Cursive",
                                      "Meroitic_Hieroglyphs",
                                      "Miao",
                                      "Sharada",
                                      "Sora_Sompeng",
                                      "Takri",
                                      "Caucasian_Albanian",
                                      "Bassa_Vah",
                                      "Duployan",
                                      "Elbasan",
                                      "Grantha",
                                      "Pahawh_Hmong",
                                      "Khojki",
                                      "Linear_A",
                                      "Mahajani",
                                      "Manichaean",
                                      "Mende_Kikakui",
                                      "Modi",
                                      "Mro",
                                      "Old_North_Arabian",
                                      "Nabataean",
                                      "Palmyrene",
                                      "Pau_Cin_Hau",
                                      "Old_Permic",
                                      "Psalter_Pahlavi",
                                      "Siddham",
                                      "Khudawadi",
                                      "Tirhuta",
                                      "Warang_Citi",
                                      "Ahom",
                                      "Anatolian_Hieroglyphs",
                                      "Hatran",
                                      "Multani",
                                      "Old_Hungarian",
                                      "SignWriting",
                                      "Adlam",
                                      "Bhaiksuki",
                                      "Marchen",
                                      "Newa",
                                      "Osage",
                                      "Tangut"};

const char *pl_script_name(int i) { return i >= 0 && (size_t)i < sizeof scripts / sizeof *scripts ? scripts[i] : NULL; }

static bool is_script(const char *s, size_t n) {
  for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
    if (strlen(scripts[i]) == n && memcmp(scripts[i], s, n) == 0) return true;
  return false;
}

/* ---- spelling: from Oniguruma's classes to PCRE2's -------------------------------------------------------------- */

/* Without their brackets. \w there is Alphabetic, M, Nd, Pc; and the superscripts and fractions of Latin-1 where it stands alone, but
 * not in a class. */
#define SPACES  "\\t-\\r\\x{85}\\p{Z}"
#define LETTERS "\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define WORDS   LETTERS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define HEX     "0-9a-fA-F"

#define GRAPHS "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"
/* What \b stands for, by that \w. */
#define EDGE   "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))"
#define INSIDE "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))"

/* [:name:]; one: a single property, which can be negated inside of a class. What is not here is the same in both. */
static const struct Posix {
  const char *name, *set, *one;
} posix[] = {{"alpha", "\\p{Alphabetic}", "\\P{Alphabetic}"},
             {"alnum", "\\p{Alphabetic}\\p{Nd}", NULL},
             {"punct", "\\p{P}\\p{S}", NULL},
             {"space", SPACES, NULL},
             {"graph", GRAPHS, NULL},
             {"print", GRAPHS "\\p{Zs}", NULL},
             {"upper", "\\p{Uppercase}", "\\P{Uppercase}"},
             {"lower", "\\p{Lowercase}", "\\P{Lowercase}"},
             {"word", LETTERS, NULL},
             {"blank", "\\t\\p{Zs}", NULL}};

/* Groups that are open, as places of their first letters in what was written. */
enum { MOST_GROUPS = 128 };

typedef struct Spelling {
  char *to;
  size_t k, room, atom; /* atom: where what a quantifier would repeat begins */
  size_t groups[MOST_GROUPS];
  int open;
  bool full;
} Spelling;

static void put(Spelling *w, const char *s, size_t n) {
  if (w->room - w->k < n) {
    w->full = true;
    return;
  }
  memcpy(w->to + w->k, s, n);
  w->k += n;
}
static void puts_(Spelling *w, const char *s) { put(w, s, strlen(s)); }

/* (?: … ) around the last atom and its quantifier. */
static void wrap(Spelling *w) {
  size_t n = w->k - w->atom;
  put(w, "(?:)", 4);
  if (w->full) return;
  memmove(w->to + w->atom + 3, w->to + w->atom, n);
  memcpy(w->to + w->atom, "(?:", 3);
  w->to[w->k - 1] = ')';
}

/* \s and its like, inside a class or alone; false: another escape. */
static bool put_class(Spelling *w, char c, bool inside) {
  const char *words = inside ? LETTERS : WORDS;
  const char *set = c == 's' || c == 'S' ? SPACES : c == 'w' || c == 'W' ? words : c == 'h' || c == 'H' ? HEX : NULL;
  if (!set) return false;
  bool negated = c >= 'A' && c <= 'Z';
  if (inside && negated) return false; /* PCRE2's own \S differs by U+180E alone */
  if (!inside) puts_(w, negated ? "[^" : "[");
  puts_(w, set);
  if (!inside) puts_(w, "]");
  return true;
}

/* How many letters of an escape by number or by name stand behind its first one, which is at s: \x41, \101, \cA, \k<name>. */
static size_t rest_of_escape(const char *s, size_t n) {
  static const char *const hex = "0123456789abcdefABCDEF", *const digits = "0123456789";
  size_t k = 1;
  if (*s == 'x' || (*s >= '0' && *s <= '9')) {
    const char *of = *s == 'x' ? hex : digits;
    while (k < n && k < 3 && s[k] && strchr(of, s[k])) k++;
  } else if (*s == 'c') {
    k = n < 2 ? n : 2;
  } else if ((*s == 'k' || *s == 'g') && n > 1 && s[1] == '<') {
    const char *close = memchr(s, '>', n);
    if (close) k = (size_t)(close - s) + 1;
  }
  return k - 1;
}

/* An escape, whole; returns the place of its last letter. */
static size_t put_escape(Spelling *w, const char *s, size_t n, size_t i, bool inside, const char **why) {
  char c = s[++i];
  bool property = (c == 'p' || c == 'P') && i + 1 < n && s[i + 1] == '{';
  const char *close = property ? memchr(s + i + 2, '}', n - i - 2) : NULL;
  if (close && is_script(s + i + 2, (size_t)(close - s) - i - 2)) {
    put(w, s + i - 1, 3);
    puts_(w, SCRIPT);
    return i + 1;
  }
  if (close) { /* whole, so that nothing reads its brace as a quantifier */
    put(w, s + i - 1, (size_t)(close - s) - i + 2);
    return (size_t)(close - s);
  }
  if (put_class(w, c, inside)) return i;
  if (c == 'u' && i + 4 < n && strspn(s + i + 1, "0123456789abcdefABCDEF") >= 4) {
    puts_(w, "\\x{");
    put(w, s + i + 1, 4);
    puts_(w, "}");
    return i + 4;
  }
  if (c == 'x' && i + 1 < n && s[i + 1] == '{' && (close = memchr(s + i, '}', n - i)) != NULL) {
    put(w, s + i - 1, (size_t)(close - s) - i + 2);
    return (size_t)(close - s);
  }
  if (inside && (c == 'W' || c == 'H')) *why = "a class with \\W or \\H in it";
  if (c == 'v') { /* one character there */
    puts_(w, "\\x0b");
  } else if ((c == 'b' || c == 'B') && !inside) {
    puts_(w, c == 'b' ? EDGE : INSIDE);
  } else if (c == 'p' || c == 'P') { /* a letter like others where no brace follows */
    put(w, s + i, 1);
  } else {
    size_t more = rest_of_escape(s + i, n - i);
    const char high = c == 'x' && more == 2 ? s[i + 1] : '0';
    if (high >= '8' || ((c == '2' || c == '3') && more == 2)) *why = "a byte by number (\\x80 and above)"; /* PCRE2: a character */
    while (i + more + 1 < n && ((unsigned char)s[i + more + 1] & 0xC0) == 0x80) more++; /* a character of several bytes */
    put(w, s + i - 1, 2 + more);
    return i + more;
  }
  return i;
}

/* A class of POSIX, s at its bracket; returns the place of its last letter but one. */
static size_t put_posix(Spelling *w, const char *s, size_t n, size_t i, const char **why) {
  const char *close = memchr(s + i, ']', n - i);
  size_t end = close ? (size_t)(close - s) : n, from = i + 2;
  bool negated = from < n && s[from] == '^';
  from += negated;
  if (end > from && s[end - 1] == ':')
    for (size_t k = 0; k < sizeof posix / sizeof *posix; k++) {
      if (strlen(posix[k].name) != end - 1 - from || memcmp(posix[k].name, s + from, end - 1 - from) != 0) continue;
      if (negated && !posix[k].one) *why = "a negated class of POSIX";
      puts_(w, negated && posix[k].one ? posix[k].one : posix[k].set);
      return end;
    }
  put(w, s + i, end - i + (end < n));
  return end;
}

/* What stands behind "(?": options, in which m there is s here. */
static size_t put_options(Spelling *w, const char *s, size_t n, size_t i, const char **why) {
  size_t k = i + 2;
  while (k < n && strchr("imxs-", s[k]) && s[k]) k++;
  if (k == i + 2 || k >= n || (s[k] != ')' && s[k] != ':')) return i;
  put(w, s + i, 2);
  for (size_t at = i + 2; at < k; at++) {
    if (s[at] == 's') *why = "the option s";
    put(w, s[at] == 'm' ? "s" : s + at, 1);
  }
  return k - 1;
}

/* Two letters that are one where case is not looked at: ß is ss there, which PCRE2 does not know. */
static bool folds(const char *s, size_t n) {
  static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
  for (size_t i = 0; i + 1 < n; i++) {
    unsigned char a = (unsigned char)s[i], b = (unsigned char)s[i + 1];
    if (a == 0xc3 && b == 0x9f) return true;                /* ß */
    if (a == 0xe1 && (b >= 0xba && b <= 0xbf)) return true; /* Latin and Greek with several marks */
    if (a == 0xef && b == 0xac) return true;                /* ligatures */
    for (size_t k = 0; k < 5; k++)
      if ((a | 0x20) == pairs[k][0] && (b | 0x20) == pairs[k][1]) return true;
  }
  return false;
}

/* A quantifier in braces, s at the first; returns the place of its last letter, or i: it is none. In that dialect {,n} is
 * {0,n}, and what follows is a quantifier of its own, but for the ? of a range. */
static size_t put_interval(Spelling *w, const char *s, size_t n, size_t i) {
  size_t k = i + 1, digits = 0;
  bool comma = false;
  for (; k < n && (s[k] == ',' || (s[k] >= '0' && s[k] <= '9')); k++) {
    if (s[k] == ',' && comma) return i;
    comma = comma || s[k] == ',';
    digits += s[k] != ',';
  }
  if (k >= n || s[k] != '}' || digits == 0) return i;
  put(w, "{", 1);
  if (s[i + 1] == ',') put(w, "0", 1);
  put(w, s + i + 1, k - i);
  char next = k + 1 < n ? s[k + 1] : 0;
  if (next == '+' || (next == '?' && !comma)) wrap(w);
  return k;
}

char *pl_from_oniguruma(const char *s, size_t n, size_t *len, const char **why) {
  Spelling w = {.room = n * (sizeof EDGE / 2 + 16) + 64};
  w.to = malloc(w.room);
  bool inside = false, caseless = false;
  *why = NULL;
  for (size_t i = 0; w.to && i < n && !*why; i++) {
    if (!inside && !strchr("{}*+?", s[i]) && ((unsigned char)s[i] & 0xC0) != 0x80) w.atom = w.k;
    if (s[i] == '\\' && i + 1 < n) {
      i = put_escape(&w, s, n, i, inside, why);
      continue;
    }
    if (inside) {
      if (s[i] == '&' && i + 1 < n && s[i + 1] == '&') *why = "an intersection of classes (&&)";
      if (s[i] == '[' && (i + 1 >= n || s[i + 1] != ':')) *why = "a class inside a class";
      if (s[i] == '[') {
        i = put_posix(&w, s, n, i, why);
        continue;
      }
      inside = s[i] != ']';
    } else if (s[i] == '[') {
      inside = true;
      if (i + 1 < n && s[i + 1] == '^') put(&w, s + i++, 1);
      if (i + 1 < n && s[i + 1] == ']') put(&w, s + i++, 1); /* a bracket that is a member */
    } else if (s[i] == '(') {
      if (w.open == MOST_GROUPS) {
        *why = "more than 128 groups in each other";
        break;
      }
      w.groups[w.open++] = w.k;
      size_t at = i + 1 < n && s[i + 1] == '?' ? put_options(&w, s, n, i, why) : i;
      for (size_t k = i + 2; k <= at && at > i && s[k] != '-'; k++) caseless = caseless || s[k] == 'i';
      if (at > i) {
        i = at;
        continue;
      }
      if (i + 1 < n && s[i + 1] == '?') put(&w, s + i++, 1); /* its ? is no quantifier */
    } else if (s[i] == ')') {
      if (w.open > 0) w.atom = w.groups[--w.open];
    } else if (s[i] == '{') {
      size_t at = put_interval(&w, s, n, i);
      if (at > i) {
        i = at;
        continue;
      }
      w.atom = w.k;
    }
    put(&w, s + i, 1);
  }
  if (caseless && folds(s, n)) *why = "letters that are one of several where case is not looked at (ss and the like)";
  if (w.full) *why = "an expression of this length";
  *len = w.k;
  return w.to;
}
#endif
