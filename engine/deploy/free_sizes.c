/* SPDX-License-Identifier: MIT
 * See free_sizes.h. */
#include "engine/deploy/free_sizes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t LARGEST = INT64_C(1) << 53; /* exact in Lua's and JSON's numbers, too */

bool pl_free_size_read(PlText line, PlText *name, PlFreeSize *out) {
  PlText example, least, most;
  return pl_field_next(&line, ' ', name) && name->n > 0 && pl_field_next(&line, ' ', &example) && pl_field_next(&line, ' ', &least) &&
         pl_field_next(&line, ' ', &most) && line.s == NULL && pl_field_integer(least, 1, INT32_MAX, &out->least) &&
         pl_field_integer(most, out->least, INT32_MAX, &out->most) && pl_field_integer(example, out->least, out->most, &out->example);
}

bool pl_size_is_free(PlText t) { return t.n > 0 && (memchr(t.s, '$', t.n) || memchr(t.s, '@', t.n)); }

static bool times(int64_t a, int64_t *v) { return !__builtin_mul_overflow(a, *v, v) && *v <= LARGEST && *v >= -LARGEST; }

/* The end of the digits that begin at `at`. */
static size_t digits(PlText t, size_t at) {
  while (at < t.n && t.s[at] >= '0' && t.s[at] <= '9') at++;
  return at;
}

/* $K or @V.D at *at. */
static bool atom(const PlSizesNow *now, PlText t, size_t *at, int64_t *out) {
  const size_t begin = *at + 1, end = digits(t, begin);
  int64_t k;
  if (*at >= t.n) return false;
  if (t.s[*at] == '$') {
    *at = end;
    if (!pl_field_integer((PlText){t.s + begin, end - begin}, 1, now->n, &k)) return false;
    *out = now->value[k - 1];
    return true;
  }
  if (t.s[*at] != '@' || end >= t.n || t.s[end] != '.') return false;
  const size_t stop = digits(t, end + 1);
  *at = stop;
  return pl_field_integer((PlText){t.s + end + 1, stop - end - 1}, 1, PL_MAX_DIM, &k) && now->size_of &&
         now->size_of(now->ud, (PlText){t.s + begin, end - begin}, k, out);
}

/* [-][C*]atom{*atom}[+C|-C] */
bool pl_size_value(const PlSizesNow *now, PlText t, int64_t *out) {
  int64_t v = 1, k;
  size_t at = t.n > 0 && t.s[0] == '-';
  const size_t end = digits(t, at);
  if (end > at) {
    if (end >= t.n || t.s[end] != '*' || !pl_field_integer((PlText){t.s, end}, -LARGEST, LARGEST, &v)) return false;
    at = end + 1;
  } else if (at > 0) return false;
  for (int n = 0;; n++) {
    if (n == PL_MOST_SIZE_FACTORS || !atom(now, t, &at, &k) || !times(k, &v)) return false;
    if (at >= t.n || t.s[at] != '*') break;
    at++;
  }
  if (at < t.n) {
    const char sign = t.s[at];
    const PlText rest = {t.s + at + 1, t.n - at - 1};
    if ((sign != '+' && sign != '-') || !pl_field_integer(rest, 1, LARGEST, &k)) return false;
    v += sign == '+' ? k : -k;
  }
  *out = v;
  return v <= LARGEST && v >= -LARGEST;
}

bool pl_sizes_put(const PlSizesNow *now, PlText list, char sep, char *to, size_t room, PlText *out) {
  const bool braces = list.n >= 2 && list.s[0] == '{' && list.s[list.n - 1] == '}';
  PlText rest = braces ? (PlText){list.s + 1, list.n - 2} : list, one;
  size_t at = 0;
  int64_t v;
  bool first = true;
  if (room < 2) return false;
  if (braces) to[at++] = '{';
  for (; pl_field_next(&rest, sep, &one); first = false) {
    char number[24];
    if (pl_size_is_free(one)) {
      if (!pl_size_value(now, one, &v)) return false;
      one = (PlText){number, (size_t)snprintf(number, sizeof number, "%" PRId64, v)};
    }
    if (at + one.n + 2 > room) return false;
    if (!first) to[at++] = sep;
    memcpy(to + at, one.s, one.n);
    at += one.n;
  }
  if (braces) to[at++] = '}';
  *out = (PlText){to, at};
  return true;
}

const char *pl_size_words(PlGraph *f, const PlFreeSize *sizes, int32_t n, PlText t) {
  const char *words = "?";
  char *text = NULL;
  size_t size = 0;
  int64_t k;
  if (memchr(t.s, '@', t.n) || memchr(t.s, '?', t.n)) return words;
  FILE *to = open_memstream(&text, &size);
  if (!to) return NULL;
  for (size_t i = 0; i < t.n; i++) {
    const size_t end = t.s[i] == '$' ? digits(t, i + 1) : i;
    if (end > i && pl_field_integer((PlText){t.s + i + 1, end - i - 1}, 1, n, &k)) {
      fputs(sizes[k - 1].name, to);
      i = end - 1;
    } else fputc(t.s[i], to);
  }
  const bool fine = fclose(to) == 0 && text;
  words = fine ? pl_graph_string(f, text) : NULL;
  free(text);
  return words;
}
