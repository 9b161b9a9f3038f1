/* SPDX-License-Identifier: MIT
 * What peers write: request targets, names and values of headers; and bytes that grow. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bindings/http/http.h"

static int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

ptrdiff_t http_decode(const char *text, size_t n, bool plus, char *out) {
  ptrdiff_t to = 0;
  for (size_t i = 0; i < n; i++) {
    int c = (unsigned char)text[i];
    if (c == '+' && plus) c = ' ';
    if (c == '%') {
      if (n - i < 3) return -1;
      const int a = hex(text[i + 1]), b = hex(text[i + 2]);
      if (a < 0 || b < 0) return -1;
      c = a * 16 + b;
      i += 2;
    }
    if (c == 0) return -1;
    out[to++] = (char)c;
  }
  return to;
}

bool http_is_token(const char *text) { /* RFC 9110, 5.6.2 */
  if (!*text) return false;
  for (; *text; text++) {
    const char c = *text;
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!word && !strchr("!#$%&'*+-.^_`|~", c)) return false;
  }
  return true;
}

bool http_is_value(const char *text, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (((unsigned char)text[i] < 32 && text[i] != '\t') || text[i] == 127) return false;
  return true;
}

bool http_host_fits(const char *host, char *const *hosts, int nhosts) {
  size_t n = strlen(host);
  if (*host == '[') { /* [::1]:8080 */
    const char *end = strchr(host, ']');
    if (!end || (end[1] && end[1] != ':')) return false;
    host++;
    n = (size_t)(end - host);
  } else {
    const char *colon = strchr(host, ':');
    if (colon) n = (size_t)(colon - host);
  }
  if (n > 0 && host[n - 1] == '.') n--; /* the root's dot */
  for (int i = 0; i < nhosts; i++)
    if (strlen(hosts[i]) == n && strncasecmp(host, hosts[i], n) == 0) return true;
  return false;
}

const char *http_header(const HttpRequest *r, const char *name) {
  const char *at = r->headers.data, *end = at ? at + r->headers.to : NULL;
  while (at < end) {
    const char *value = at + strlen(at) + 1;
    if (strcmp(at, name) == 0) return value;
    at = value + strlen(value) + 1;
  }
  return NULL;
}

bool http_grow(HttpBytes *b, size_t n) {
  if (b->room - b->to >= n) return true;
  if (b->from > 0) {
    memmove(b->data, b->data + b->from, b->to - b->from);
    b->to -= b->from;
    b->from = 0;
    if (b->room - b->to >= n) return true;
  }
  size_t room = 0;
  if (__builtin_add_overflow(b->to, n, &room)) return false;
  room = room < 512 ? 1024 : room > SIZE_MAX / 2 ? room : room + room / 2;
  char *data = realloc(b->data, room);
  if (!data) return false;
  b->data = data;
  b->room = room;
  return true;
}

bool http_append(HttpBytes *b, const void *data, size_t n) {
  if (!http_grow(b, n)) return false;
  if (n > 0) memcpy(b->data + b->to, data, n);
  b->to += n;
  return true;
}

void http_forget(HttpBytes *b) {
  free(b->data);
  *b = (HttpBytes){0};
}
