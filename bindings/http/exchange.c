/* SPDX-License-Identifier: MIT
 * One request on its way through the loop: its line, its headers, its body, then Lua's answer. libmicrohttpd calls
 * http_on_request for each step; what is wrong with a request is answered here and never reaches Lua. */
#include "bindings/http/exchange.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/http/http.h"

enum { BLOCK = 16 << 10, PATIENCE = 1 << 20 /* bytes of a refused body that are read, so that its sender sees the answer */ };

/* ---- requests ------------------------------------------------------------------------------------ */

HttpRequest *http_request_new(HttpServer *s) {
  HttpRequest *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->server = s;
  r->refs = 1;
  pthread_mutex_lock(&s->lock);
  s->refs++;
  pthread_mutex_unlock(&s->lock);
  return r;
}

void http_request_release(HttpRequest *r) {
  HttpServer *s = r->server;
  pthread_mutex_lock(&s->lock);
  const int left = --r->refs;
  if (left == 0) s->bodies -= r->body.to;
  pthread_mutex_unlock(&s->lock);
  if (left > 0) return;
  http_forget(&r->headers);
  http_forget(&r->body);
  http_forget(&r->answer_headers);
  http_forget(&r->answer);
  free(r->target);
  free(r->path);
  free(r);
  http_server_release(s);
}

void http_request_cut(HttpRequest *r) {
  if (r->gone) return;
  r->gone = true;
  http_wake(r->server->news);
}

/* ---- what is wrong with a request ------------------------------------------------------------------- */

static enum MHD_Result refuse(HttpRequest *r, struct MHD_Connection *mhd, unsigned status, const char *why) {
  char text[256];
  int n = snprintf(text, sizeof text, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"code\":%u}}\n", why,
                   status >= 500 ? "server_error" : "invalid_request_error", status);
  struct MHD_Response *answer = MHD_create_response_from_buffer((size_t)n, text, MHD_RESPMEM_MUST_COPY);
  if (!answer) return MHD_NO;
  pthread_mutex_lock(&r->server->lock);
  r->server->refused++;
  pthread_mutex_unlock(&r->server->lock);
  r->connection->deadline = http_now() + r->server->limits.read;
  r->told = true;
  enum MHD_Result fine = MHD_YES;
  if (MHD_add_response_header(answer, "Content-Type", "application/json") != MHD_YES ||
      MHD_add_response_header(answer, "Connection", "close") != MHD_YES ||
      (status == 503 && MHD_add_response_header(answer, "Retry-After", "1") != MHD_YES) ||
      MHD_queue_response(mhd, status, answer) != MHD_YES)
    fine = MHD_NO;
  MHD_destroy_response(answer);
  return fine;
}

static enum MHD_Result keep_header(void *request, enum MHD_ValueKind kind, const char *name, size_t nname, const char *value,
                                   size_t nvalue) {
  HttpRequest *r = request;
  (void)kind;
  if (!value) nvalue = 0;
  if (strlen(name) != nname || !http_is_token(name) || !http_is_value(value, nvalue)) {
    r->refused = 400;
    return MHD_NO;
  }
  const size_t from = r->headers.to;
  if (!http_append(&r->headers, name, nname + 1) || !http_append(&r->headers, value, nvalue) || !http_append(&r->headers, "", 1)) {
    r->refused = 500;
    return MHD_NO;
  }
  for (char *c = r->headers.data + from; *c; c++)
    if (*c >= 'A' && *c <= 'Z') *c = (char)(*c + ('a' - 'A'));
  return MHD_YES;
}

static int count(const HttpRequest *r, const char *name) {
  int n = 0;
  const char *at = r->headers.data, *end = at ? at + r->headers.to : NULL;
  while (at < end) {
    n += strcmp(at, name) == 0;
    at += strlen(at) + 1;
    at += strlen(at) + 1;
  }
  return n;
}

static bool read_target(HttpRequest *r) {
  const char *query = strchr(r->target, '?');
  const size_t n = query ? (size_t)(query - r->target) : strlen(r->target);
  if (*r->target != '/') return strcmp(r->target, "*") == 0 && (r->path = strdup("*")) != NULL && (r->npath = 1);
  r->path = malloc(n + 1);
  if (!r->path) return false;
  const ptrdiff_t npath = http_decode(r->target, n, false, r->path);
  if (npath < 0) return false;
  r->npath = (size_t)npath;
  r->path[npath] = '\0';
  return true;
}

/* The headers are there. Its status and why, where the request goes no further. */
static unsigned wrong(HttpRequest *r, struct MHD_Connection *mhd, const char *method, const char **why) {
  const HttpServer *s = r->server;
  *why = "the request's line or headers are malformed";
  if (strlen(method) >= HTTP_METHOD) return 501;
  strncpy(r->method, method, HTTP_METHOD - 1);
  MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, keep_header, r);
  if (r->refused != 0) return (unsigned)r->refused;
  if (!read_target(r)) return 400;
  const char *length = http_header(r, "content-length"), *host = http_header(r, "host");
  if (count(r, "host") > 1 || count(r, "content-length") > 1) return 400;
  if (length && http_header(r, "transfer-encoding")) return 400; /* whose end is meant is not sure */
  *why = "the Host header names another server";
  if (s->hosts && !(host && http_host_fits(host, s->hosts, s->nhosts))) return 403;
  *why = "the request's body is too large";
  if (length && strtoull(length, NULL, 10) > s->limits.body) return 413;
  return 0;
}

/* A piece of the body. */
static enum MHD_Result more_body(HttpRequest *r, const char *data, size_t n) {
  HttpServer *s = r->server;
  if (r->refused == 0 && n > s->limits.body - r->body.to) r->refused = 413;
  if (r->refused == 0) {
    pthread_mutex_lock(&s->lock);
    if (n > s->limits.bodies - s->bodies || !http_append(&r->body, data, n)) r->refused = 503;
    else s->bodies += n;
    pthread_mutex_unlock(&s->lock);
  }
  if (r->refused == 0) return MHD_YES;
  r->dropped += n;
  return r->dropped > PATIENCE ? MHD_NO : MHD_YES;
}

/* ---- the answer ------------------------------------------------------------------------------------- */

static ssize_t read_answer(void *request, uint64_t at, char *to, size_t room) {
  HttpRequest *r = request;
  HttpServer *s = r->server;
  ssize_t n = 0;
  (void)at;
  pthread_mutex_lock(&s->lock);
  const size_t due = r->answer.to - r->answer.from;
  if (r->gone) {
    n = MHD_CONTENT_READER_END_WITH_ERROR;
  } else if (due > 0) {
    const size_t most = due < room ? due : room;
    memcpy(to, r->answer.data + r->answer.from, most);
    r->answer.from += most;
    r->taken += most;
    n = (ssize_t)most;
    if (due >= s->limits.buffer && due - most < s->limits.buffer) http_wake(s->news);
  } else if (r->finished) {
    n = r->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
  } else {
    http_suspend(r);
  }
  pthread_mutex_unlock(&s->lock);
  return n;
}

static enum MHD_Result answer(HttpRequest *r, struct MHD_Connection *mhd) {
  const size_t n = r->answer.to - r->answer.from;
  struct MHD_Response *out =
      r->whole && n == 0 ? MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT)
                         : MHD_create_response_from_callback(r->whole ? (uint64_t)n : MHD_SIZE_UNKNOWN, BLOCK, read_answer, r, NULL);
  if (!out) return MHD_NO;
  enum MHD_Result fine = MHD_YES;
  const char *at = r->answer_headers.data, *end = at ? at + r->answer_headers.to : NULL;
  while (at < end) {
    const char *value = at + strlen(at) + 1;
    if (MHD_add_response_header(out, at, value) != MHD_YES) fine = MHD_NO;
    at = value + strlen(value) + 1;
  }
  if (fine == MHD_YES) fine = MHD_queue_response(mhd, (unsigned)r->status, out);
  MHD_destroy_response(out);
  return fine;
}

/* Whole: into the queue, and the connection rests until Lua has answered. */
static enum MHD_Result hand_over(HttpRequest *r, struct MHD_Connection *mhd) {
  HttpServer *s = r->server;
  pthread_mutex_lock(&s->lock);
  const bool full = s->waiting >= s->limits.queue || s->closing;
  if (!full) {
    r->stage = HTTP_WITH_LUA;
    r->refs++;
    if (s->last) s->last->next_waiting = r;
    else s->first = r;
    s->last = r;
    s->waiting++;
    s->active++;
    http_suspend(r);
    http_wake(s->news);
  }
  pthread_mutex_unlock(&s->lock);
  r->connection->deadline = 0;
  return full ? refuse(r, mhd, 503, "too many requests wait") : MHD_YES;
}

/* ---- what libmicrohttpd calls ------------------------------------------------------------------------- */

static HttpConnection *connection_of(struct MHD_Connection *mhd) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info ? info->socket_context : NULL;
}

static void forget_request(HttpConnection *c) {
  HttpRequest *r = c->request;
  if (!r) return;
  HttpServer *s = r->server;
  pthread_mutex_lock(&s->lock);
  c->request = NULL;
  r->connection = NULL;
  http_request_cut(r);
  s->active -= r->stage >= HTTP_WITH_LUA;
  pthread_mutex_unlock(&s->lock);
  http_request_release(r);
}

static void note_peer(HttpRequest *r, struct MHD_Connection *mhd) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  const struct sockaddr *at = info ? info->client_addr : NULL;
  if (at && at->sa_family == AF_INET)
    inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)at)->sin_addr, r->peer, sizeof r->peer);
  if (at && at->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr, r->peer, sizeof r->peer);
}

void *http_on_target(void *server, const char *target, struct MHD_Connection *mhd) {
  HttpServer *s = server;
  HttpConnection *c = connection_of(mhd);
  if (!c) return NULL;
  forget_request(c);
  HttpRequest *r = http_request_new(s);
  if (!r) return NULL;
  r->connection = c;
  r->mhd = mhd;
  r->target = strdup(target);
  note_peer(r, mhd);
  c->deadline = http_now() + s->limits.read;
  c->request = r;
  return r;
}

enum MHD_Result http_on_request(void *server, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                                const char *data, size_t *n, void **request) {
  HttpServer *s = server;
  HttpRequest *r = *request;
  const char *why = "the request's body is too large";
  (void)url;
  (void)version;
  if (!r || !r->target) return MHD_NO;
  switch (r->stage) {
  case HTTP_HEAD: {
    r->stage = HTTP_BODY;
    const unsigned status = wrong(r, mhd, method, &why);
    return status ? refuse(r, mhd, status, why) : MHD_YES;
  }
  case HTTP_BODY:
    if (*n > 0) {
      const size_t piece = *n;
      *n = 0;
      return more_body(r, data, piece);
    }
    if (r->refused == 0) return hand_over(r, mhd);
    return refuse(r, mhd, (unsigned)r->refused, r->refused == 503 ? "too many requests wait" : why);
  case HTTP_WITH_LUA:
    pthread_mutex_lock(&s->lock);
    const bool gone = r->gone, begun = r->begun;
    if (!gone && !begun) http_suspend(r);
    if (begun) r->stage = HTTP_ANSWER;
    pthread_mutex_unlock(&s->lock);
    if (gone) return MHD_NO;
    return begun ? answer(r, mhd) : MHD_YES;
  case HTTP_ANSWER: break;
  }
  return MHD_NO;
}

void http_on_completed(void *server, struct MHD_Connection *mhd, void **request, enum MHD_RequestTerminationCode why) {
  HttpServer *s = server;
  HttpConnection *c = connection_of(mhd);
  (void)why;
  *request = NULL;
  if (!c) return;
  forget_request(c);
  c->deadline = http_now() + s->limits.idle + s->limits.read; /* the next request's line is there until then */
}

void http_on_connection(void *server, struct MHD_Connection *mhd, void **connection, enum MHD_ConnectionNotificationCode what) {
  HttpServer *s = server;
  HttpConnection *c = *connection;
  if (what == MHD_CONNECTION_NOTIFY_STARTED) {
    c = *connection = calloc(1, sizeof *c);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!c || !info) return;
    c->fd = info->connect_fd;
    c->deadline = http_now() + s->limits.read;
    c->next = s->connections;
    if (c->next) c->next->before = c;
    s->connections = c;
  } else if (c) {
    forget_request(c);
    if (c->next) c->next->before = c->before;
    if (c->before) c->before->next = c->next;
    else if (s->connections == c) s->connections = c->next;
    free(c);
    *connection = NULL;
  }
  if (what != MHD_CONNECTION_NOTIFY_STARTED) s->room = true;
  pthread_mutex_lock(&s->lock);
  s->nconnections += what == MHD_CONNECTION_NOTIFY_STARTED ? 1 : -1;
  pthread_mutex_unlock(&s->lock);
}
