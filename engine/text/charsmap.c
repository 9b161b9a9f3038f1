/* SPDX-License-Identifier: MIT
 * See charsmap.h. A unit of 32 bits: bits 0 … 7 the label, 8 whether a value follows, 9 whether the offset counts in 256s,
 * 10 … 30 the offset; a value has bit 31 set. */
#include "engine/text/charsmap.h"

#include <stdlib.h>
#include <string.h>

struct PlCharsmap {
  uint32_t *unit;
  size_t nunit;
  char *text; /* ends in 0 */
  size_t ntext;
};

PlStatus pl_charsmap_new(PlCharsmap **out, const char *name, const void *data, size_t n) {
  const unsigned char *p = data;
  uint32_t size = 0;
  for (int k = 0; k < 4 && n >= 4; k++) size |= (uint32_t)p[k] << 8 * k;
  if (n < 8 || size % 4 != 0 || size == 0 || size > n - 4) PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: precompiled_charsmap", name);
  PlCharsmap *m = calloc(1, sizeof *m);
  if (m) m->unit = malloc(size);
  if (m) m->text = malloc(n - 4 - size + 1);
  if (!m || !m->unit || !m->text) {
    pl_charsmap_release(m);
    PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
  }
  m->nunit = size / 4;
  m->ntext = n - 4 - size;
  for (size_t i = 0; i < m->nunit; i++) {
    const unsigned char *u = p + 4 + 4 * i;
    m->unit[i] = (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
  }
  memcpy(m->text, p + 4 + size, m->ntext);
  m->text[m->ntext] = 0;
  *out = m;
  return PL_OK;
}

static int sextet(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

PlStatus pl_charsmap_base64(PlCharsmap **out, const char *name, const char *text, size_t n) {
  unsigned char *to = malloc(n / 4 * 3 + 4);
  if (!to) PL_FAIL(PL_ERR_OOM, "%s: out of memory", name);
  size_t k = 0;
  uint32_t bits = 0;
  int have = 0;
  while (n > 0 && text[n - 1] == '=') n--;
  for (size_t i = 0; i < n; i++) {
    int v = sextet(text[i]);
    if (v < 0) {
      free(to);
      PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: precompiled_charsmap is not base 64", name);
    }
    bits = bits << 6 | (uint32_t)v;
    have += 6;
    if (have < 8) continue;
    have -= 8;
    to[k++] = (unsigned char)(bits >> have);
  }
  PlStatus st = pl_charsmap_new(out, name, to, k);
  free(to);
  return st;
}

void pl_charsmap_release(PlCharsmap *m) {
  if (!m) return;
  free(m->unit);
  free(m->text);
  free(m);
}

static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

const char *pl_charsmap_find(const PlCharsmap *m, const char *s, size_t n, bool longest, size_t *used, size_t *len) {
  size_t at = offset_of(m->unit[0]);
  const char *found = NULL;
  for (size_t i = 0; i < n && s[i]; i++) {
    unsigned char c = (unsigned char)s[i];
    at ^= c;
    if (at >= m->nunit || (m->unit[at] & (1u << 31 | 0xFFu)) != c) break;
    uint32_t unit = m->unit[at];
    at ^= offset_of(unit);
    if (!(unit >> 8 & 1)) continue;
    if (at >= m->nunit) break;
    size_t value = m->unit[at] & 0x7FFFFFFFu;
    if (value > m->ntext) break;
    found = m->text + value;
    *used = i + 1;
    *len = strlen(found);
    if (!longest) break;
  }
  return found;
}
