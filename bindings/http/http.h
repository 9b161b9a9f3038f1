/* SPDX-License-Identifier: MIT
 * perilune.httpd: an HTTP server (libmicrohttpd) whose requests are answered by Lua on the main thread. A module of its own,
 * opened by the commands that serve, so that nothing else loads the library. lua/perilune/http/init.lua checks arguments and
 * is what commands use; docs/design/http.md says why it is made this way.
 *
 * One thread of the server's own, the loop, does everything with sockets and is the only one that calls libmicrohttpd
 * (server.c, exchange.c). It reads a request to its end, within the limits, and puts it into a bounded queue. Lua takes it
 * from there, answers it with bytes that the loop sends, and never waits for a socket. What both threads touch is under
 * HttpServer.lock, and each wakes the other by an eventfd.
 *
 * In Lua (names of limits: HttpLimits):
 *   httpd.listen{host=, port=, hosts=, connections=, …} → server; or nil, message, "io"
 *     host is an address in figures; port 0 is any free one. hosts: a list of names that the Host header may have, without
 *     ports; false: any.
 *   server:next(seconds = 0.25) → request, or nil when none came in that time or a signal did (Ctrl-C)
 *   server:address() → host, port;  server:counts() → {connections=, waiting=, active=, refused=, cut=, bodies=}
 *   server:close(seconds = 0): takes no more; finished answers have so long to leave; then everything is cut
 *   request:method(), :path() (decoded), :query() (table), :header(name) (or nil), :headers() (table, names in small
 *     letters), :body(), :peer() (address in figures)
 *   request:respond(status, headers, body) → true; or nil, "closed": a whole answer
 *   request:begin(status, headers) → true; or nil, "closed": an answer in pieces
 *   request:push(bytes) → true; false where the reader is behind by limits.buffer (nothing was taken: push it again
 *     later); nil, "closed" where it has gone. Never waits. A piece is taken whole, however long it is.
 *   request:room(seconds) → true once push would take something; false, nil, "closed" as above
 *   request:finish(broken): the end of an answer in pieces; broken: the connection is cut, so that the reader knows
 *   request:is_open() → is there still somebody who waits for the rest?
 *   A request that is collected without an answer is answered 500, an answer without its end is cut. */
#ifndef PL_BINDINGS_HTTP_HTTP_H
#define PL_BINDINGS_HTTP_HTTP_H

#include <lauxlib.h>
#include <lua.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct MHD_Connection;
struct MHD_Daemon;

typedef struct HttpLimits {
  int connections; /* open at a time; further ones wait in the system's backlog */
  int queue;       /* requests that wait for Lua; further ones are answered 503 */
  size_t header;   /* bytes of a request's line and headers; more: 431 or 414 */
  size_t body;     /* bytes of a request's body; more: 413 */
  size_t bodies;   /* of all bodies that are held; more: 503 */
  size_t buffer;   /* bytes of an answer in pieces that wait for its reader, before push refuses */
  double idle;     /* seconds that a connection may be silent, between requests and within one */
  double read;     /* seconds in which a request must be whole */
  double write;    /* seconds in which a reader must take HTTP_SLOWEST bytes a second, if so many wait */
} HttpLimits;
enum { HTTP_SLOWEST = 1024, HTTP_METHOD = 16 };

typedef struct HttpServer HttpServer;
typedef struct HttpRequest HttpRequest;

/* Bytes that grow behind and are taken in front. */
typedef struct HttpBytes {
  char *data;
  size_t from, to, room;
} HttpBytes;

/* A TCP connection; only the loop touches it. */
typedef struct HttpConnection {
  int fd;
  double deadline;      /* when the request must be whole; 0: none is being read */
  HttpRequest *request; /* a reference; NULL between requests */
  bool ended;           /* shut down by the loop */
  struct HttpConnection *before, *next;
} HttpConnection;

typedef enum HttpStage {                /* of a request, as the loop sees it */
                         HTTP_HEAD,     /* its line is there */
                         HTTP_BODY,     /* its headers are there and fine */
                         HTTP_WITH_LUA, /* whole, waits for its answer */
                         HTTP_ANSWER,   /* the answer is being sent */
} HttpStage;

struct HttpRequest {
  HttpServer *server; /* a reference */
  /* The loop's until stage HTTP_WITH_LUA, then nobody writes them. */
  HttpStage stage;
  bool told; /* the loop has answered */
  HttpConnection *connection;
  struct MHD_Connection *mhd;
  char method[HTTP_METHOD], peer[48];
  char *target;      /* as it was sent */
  char *path;        /* decoded */
  size_t npath;      /* its bytes; no 0 among them */
  HttpBytes headers; /* name 0 value 0 …, names in small letters */
  HttpBytes body;
  int refused; /* the status of what is wrong with it, 0: nothing */
  size_t dropped;
  /* Under the lock. */
  int refs;
  HttpRequest *next_waiting, *next_resumed;
  bool suspended; /* libmicrohttpd does not look at the connection until the loop resumes it */
  bool resuming;  /* in the list of those that it is to resume */
  bool begun;     /* Lua has given status and headers */
  bool whole;     /* and, with them, the body */
  bool finished, broken;
  bool gone; /* the connection is cut, or the answer sent */
  int status;
  HttpBytes answer_headers; /* name 0 value 0 … */
  HttpBytes answer;
  uint64_t taken; /* bytes of the answer that went to libmicrohttpd */
  /* The loop's: since when the reader owes the bytes up to `mark`. */
  double mark_time;
  uint64_t mark;
};

struct HttpServer {
  pthread_mutex_t lock;
  HttpLimits limits;
  char **hosts; /* NULL: any */
  int nhosts;
  char host[64];
  int port;
  struct MHD_Daemon *daemon; /* the loop's, once it runs */
  pthread_t loop;
  bool runs;                                /* main thread: the loop is to be joined */
  int listener, mhd_poll, poll, wake, news; /* descriptors: wake is for the loop, news for Lua */
  HttpConnection *connections;              /* the loop's */
  bool room; /* the loop's: a connection ended while libmicrohttpd ran, which listens again when it runs next */
  /* Under the lock. */
  int refs;
  HttpRequest *first, *last, *resumed;
  int waiting, active, nconnections;
  int64_t refused, cut;
  size_t bodies;
  bool closing;
  double close_at;
};

/* ---- server.c ---- */
/* NULL and *why (static text, or strerror's) where it cannot listen. */
HttpServer *http_listen(const char *host, int port, const HttpLimits *limits, const char *const *hosts, int nhosts, const char **why);
void http_close(HttpServer *s, double seconds);
void http_server_release(HttpServer *s); /* the last one frees; closed before */
void http_wake(int fd);                  /* writes to an eventfd */
double http_now(void);                   /* seconds of a clock that only goes forward */
/* Lock held: the loop shall go on with a connection that libmicrohttpd does not look at. */
void http_resume(HttpRequest *r);

/* ---- exchange.c: called by the loop ---- */
HttpRequest *http_request_new(HttpServer *s);
void http_request_release(HttpRequest *r); /* takes the lock */
void *http_on_target(void *server, const char *target, struct MHD_Connection *mhd);
void http_request_cut(HttpRequest *r); /* lock held: nobody waits for the answer any more */
void http_suspend(HttpRequest *r);     /* lock held */

/* ---- target.c ---- */
/* Decodes %XX of n bytes into out (as long). → how many bytes, or -1: no such figures, or a byte 0. plus: + is a space. */
ptrdiff_t http_decode(const char *text, size_t n, bool plus, char *out);
bool http_is_token(const char *text);                                  /* a name of a header */
bool http_is_value(const char *text, size_t n);                        /* no control characters in it */
bool http_host_fits(const char *host, char *const *hosts, int nhosts); /* with or without a port */
const char *http_header(const HttpRequest *r, const char *name);       /* the first of that name, or NULL */
/* Room for n bytes more behind; false without memory. */
bool http_grow(HttpBytes *b, size_t n);
bool http_append(HttpBytes *b, const void *data, size_t n);
void http_forget(HttpBytes *b);

/* ---- request.c, module.c: Lua's side ---- */
int http_request_class(lua_State *L);                     /* pushes the metatable of requests */
int http_wait(HttpServer *s, double seconds);             /* for news; 0: time is up or a signal came */
int http_new_request_box(lua_State *L);                   /* pushes an empty one */
void http_fill_request_box(lua_State *L, HttpRequest *r); /* the one on top, with a reference that becomes its own */

#endif
