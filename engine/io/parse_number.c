/* SPDX-License-Identifier: MIT
 * See parse_number.h. Up to 19 digits and powers of ten up to 22 are exact in two doubles (Clinger 1990, "How to read floating
 * point numbers accurately"); the rest goes to strtod. */
#include "engine/io/parse_number.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Decimal {
  bool negative, has_point, has_exponent, cut; /* cut: more digits than the mantissa holds */
  uint64_t mantissa;
  int digits, exponent;
} Decimal;

static bool is_digit(char c) { return (unsigned char)(c - '0') < 10; }

/* Digits with at most one point among them. */
static const char *scan_digits(const char *p, const char *end, Decimal *d) {
  int count = 0;
  for (; p < end; p++) {
    if (*p == '.' && !d->has_point) {
      d->has_point = true;
      continue;
    }
    if (!is_digit(*p)) break;
    count++;
    if (d->digits < 19) {
      d->mantissa = d->mantissa * 10 + (uint64_t)(*p - '0');
      d->digits += d->mantissa != 0;
      d->exponent -= d->has_point;
    } else {
      d->cut = true;
      d->exponent += !d->has_point;
    }
  }
  return count > 0 ? p : NULL;
}

static const char *scan_exponent(const char *p, const char *end, Decimal *d) {
  if (p >= end || (*p | 0x20) != 'e') return p;
  bool negative = false;
  int v = 0;
  p++;
  if (p < end && (*p == '+' || *p == '-')) negative = *p++ == '-';
  if (p >= end || !is_digit(*p)) return NULL;
  for (; p < end && is_digit(*p); p++)
    if (v < 100000) v = v * 10 + (*p - '0');
  d->exponent += negative ? -v : v;
  d->has_exponent = true;
  return p;
}

static bool word(const char *s, size_t n, const char *w) {
  if (strlen(w) != n) return false;
  for (size_t i = 0; i < n; i++)
    if ((s[i] | 0x20) != w[i]) return false;
  return true;
}

static bool special(const char *s, size_t n, bool negative, PlDecimal *out) {
  bool infinite = word(s, n, "inf") || word(s, n, "infinity");
  if (!infinite && !word(s, n, "nan")) return false;
  *out = (PlDecimal){.f = !infinite ? (double)NAN : negative ? -(double)INFINITY : (double)INFINITY};
  return true;
}

/* strtod wants a zero byte and the locale's decimal point. */
static bool slow(const char *s, size_t n, double *out) {
  char few[64], *text = n < sizeof few ? few : malloc(n + 1), *stop;
  if (!text) return false;
  memcpy(text, s, n);
  text[n] = '\0';
  char *point = memchr(text, '.', n);
  if (point) *point = localeconv()->decimal_point[0];
  *out = strtod(text, &stop);
  bool whole = stop == text + n;
  if (text != few) free(text);
  return whole;
}

bool pl_number_parse(const char *s, size_t n, PlDecimal *out) {
  static const double ten[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  if (n > 4096) return false; /* nobody writes such numbers, and the exponent stays an int */
  while (n > 0 && (*s == ' ' || *s == '\t')) s++, n--;
  while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) n--;
  const char *p = s, *end = s + n;
  Decimal d = {.mantissa = 0};
  if (p < end && (*p == '+' || *p == '-')) d.negative = *p++ == '-';
  const char *digits = p;
  p = scan_digits(p, end, &d);
  if (!p) return special(digits, (size_t)(end - digits), d.negative, out);
  p = scan_exponent(p, end, &d);
  if (p != end) return false;
  out->plain = !d.has_point && !d.has_exponent;
  out->is_int = out->plain && !d.cut && d.mantissa <= (uint64_t)INT64_MAX + d.negative;
  out->i = d.negative ? (int64_t)(0 - d.mantissa) : (int64_t)d.mantissa;
  double v = (double)d.mantissa;
  if (!d.cut && d.mantissa <= (uint64_t)1 << 53 && d.exponent >= -22 && d.exponent <= 22)
    v = d.exponent < 0 ? v / ten[-d.exponent] : v * ten[d.exponent];
  else if (d.mantissa == 0) v = 0;
  else if (!slow(digits, (size_t)(end - digits), &v)) return false;
  out->f = d.negative ? -v : v;
  return true;
}
