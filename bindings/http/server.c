/* SPDX-License-Identifier: MIT
 * The listening socket, and the loop: the one thread that calls libmicrohttpd. It sleeps in epoll until libmicrohttpd's own
 * set has something, Lua has answered (wake), or the peer of a connection that is suspended goes away: libmicrohttpd does
 * not look at those. */
#include "bindings/http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <microhttpd.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bindings/http/exchange.h"

enum { EVENTS = 64, SWEEP_MS = 100 };

double http_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void http_wake(int fd) {
  const uint64_t one = 1;
  ssize_t n = write(fd, &one, sizeof one); /* full: it wakes already */
  (void)n;
}

static void quiet(int fd) {
  uint64_t times;
  ssize_t n = read(fd, &times, sizeof times);
  (void)n;
}

int http_wait(HttpServer *s, double seconds) {
  struct pollfd p = {.fd = s->news, .events = POLLIN};
  const double ms = ceil(seconds * 1000);
  if (poll(&p, 1, ms > 3600e3 ? 3600000 : ms > 0 ? (int)ms : 0) <= 0) return 0;
  quiet(s->news);
  return 1;
}

/* ---- the loop ------------------------------------------------------------------------------------ */

void http_suspend(HttpRequest *r) {
  struct epoll_event gone = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = r->connection};
  MHD_suspend_connection(r->mhd);
  r->suspended = true;
  epoll_ctl(r->server->poll, EPOLL_CTL_ADD, r->connection->fd, &gone);
}

void http_resume(HttpRequest *r) {
  if (!r->suspended || r->resuming) return;
  r->resuming = true;
  r->next_resumed = r->server->resumed;
  r->server->resumed = r;
  http_wake(r->server->wake);
}

static void resume_all(HttpServer *s) {
  pthread_mutex_lock(&s->lock);
  HttpRequest *r = s->resumed;
  s->resumed = NULL;
  for (; r; r = r->next_resumed) {
    r->suspended = r->resuming = false;
    epoll_ctl(s->poll, EPOLL_CTL_DEL, r->connection->fd, NULL);
    MHD_resume_connection(r->mhd);
  }
  pthread_mutex_unlock(&s->lock);
}

/* Does the reader take its answer too slowly? Of what was due at the last look HTTP_SLOWEST bytes a second count. */
static bool too_slow(HttpRequest *r, double now) {
  const HttpLimits *limits = &r->server->limits;
  const size_t due = r->answer.to - r->answer.from;
  if (r->mark_time != 0 && r->taken < r->mark && due > 0) return now - r->mark_time > limits->write;
  const double most = HTTP_SLOWEST * limits->write;
  r->mark_time = due > 0 ? now : 0;
  r->mark = r->taken + ((double)due < most ? due : (size_t)most);
  return false;
}

/* Has the peer of a request that is not whole gone? libmicrohttpd, told of each change once, does not look again behind a read that
 * did not fill its memory, so an end that was there by then is never seen. What is being answered or is with Lua is seen otherwise. */
static bool abandoned(const HttpConnection *c) {
  const HttpRequest *r = c->request;
  char byte;
  if (r && (r->stage > HTTP_BODY || r->told)) return false;
  return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Connections whose time is up, or that are left: the socket is shut down, and libmicrohttpd finds it so. */
static void sweep(HttpServer *s, double now) {
  pthread_mutex_lock(&s->lock);
  for (HttpConnection *c = s->connections; c; c = c->next) {
    HttpRequest *r = c->request;
    bool late = c->deadline != 0 && now > c->deadline;
    if (!late && r && r->stage == HTTP_ANSWER && !r->suspended) late = too_slow(r, now);
    if (!late && !c->ended) late = abandoned(c);
    if (!late) continue;
    c->deadline = 0;
    c->ended = true;
    s->cut++;
    if (r) http_request_cut(r);
    shutdown(c->fd, SHUT_RDWR);
  }
  pthread_mutex_unlock(&s->lock);
}

/* Is it time to end? Before that, finished answers leave. */
static bool ends(HttpServer *s, double now) {
  pthread_mutex_lock(&s->lock);
  bool yes = s->closing, busy = false;
  if (yes && s->listener >= 0) {
    MHD_socket fd = MHD_quiesce_daemon(s->daemon);
    if (fd != MHD_INVALID_SOCKET) close(fd);
    s->listener = -1;
  }
  for (HttpConnection *c = s->connections; yes && c; c = c->next)
    busy = busy || (c->request && c->request->begun && c->request->finished && !c->request->gone);
  if (busy && now < s->close_at) yes = false;
  if (yes) /* a suspended connection cannot be closed */
    for (HttpConnection *c = s->connections; c; c = c->next)
      if (c->request) {
        http_request_cut(c->request);
        http_resume(c->request);
      }
  pthread_mutex_unlock(&s->lock);
  return yes;
}

static void *loop(void *arg) {
  HttpServer *s = arg;
  struct epoll_event events[EVENTS];
  double next_sweep = 0;
  for (;;) {
    MHD_UNSIGNED_LONG_LONG wait;
    int ms = s->connections ? SWEEP_MS : -1;
    if (MHD_get_timeout(s->daemon, &wait) == MHD_YES && (ms < 0 || wait < (MHD_UNSIGNED_LONG_LONG)ms))
      ms = wait > SWEEP_MS ? SWEEP_MS : (int)wait;
    if (s->room) ms = 0; /* at its limit of connections it does not watch the listening socket: nothing would wake us for it */
    s->room = false;
    int n = epoll_wait(s->poll, events, EVENTS, ms);
    for (int i = 0; i < n; i++) {
      if (events[i].data.ptr == &s->wake) quiet(s->wake);
      if (events[i].data.ptr == &s->wake || events[i].data.ptr == &s->mhd_poll) continue;
      HttpConnection *c = events[i].data.ptr; /* its peer went away */
      pthread_mutex_lock(&s->lock);
      if (c->request) {
        if (!c->request->gone) s->cut++;
        http_request_cut(c->request);
        http_resume(c->request);
      }
      pthread_mutex_unlock(&s->lock);
    }
    resume_all(s);
    MHD_run(s->daemon);
    const double now = http_now();
    if (now >= next_sweep) {
      sweep(s, now);
      next_sweep = now + SWEEP_MS * 1e-3;
    }
    if (ends(s, now)) break;
  }
  resume_all(s);
  MHD_stop_daemon(s->daemon);
  s->daemon = NULL;
  return NULL;
}

/* ---- beginning and end ------------------------------------------------------------------------------ */

static void close_all(HttpServer *s) {
  int *const fds[] = {&s->listener, &s->poll, &s->wake, &s->news};
  for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
    if (*fds[i] >= 0) close(*fds[i]);
    *fds[i] = -1;
  }
}

void http_server_release(HttpServer *s) {
  pthread_mutex_lock(&s->lock);
  const int left = --s->refs;
  pthread_mutex_unlock(&s->lock);
  if (left > 0) return;
  close_all(s);
  for (int i = 0; i < s->nhosts; i++) free(s->hosts[i]);
  free(s->hosts);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

static bool keep_hosts(HttpServer *s, const char *const *hosts, int n) {
  if (!hosts) return true;
  s->hosts = calloc((size_t)n + 1, sizeof *s->hosts);
  if (!s->hosts) return false;
  for (; s->nhosts < n; s->nhosts++) {
    s->hosts[s->nhosts] = strdup(hosts[s->nhosts]);
    if (!s->hosts[s->nhosts]) return false;
  }
  return true;
}

/* A listening socket; -1 and errno. */
static int bind_to(HttpServer *s, const char *host, int port) {
  union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
  } at = {0};
  socklen_t size = sizeof at.v4;
  if (inet_pton(AF_INET, host, &at.v4.sin_addr) == 1) {
    at.v4.sin_family = AF_INET;
    at.v4.sin_port = htons((uint16_t)port);
  } else if (inet_pton(AF_INET6, host, &at.v6.sin6_addr) == 1) {
    at.v6.sin6_family = AF_INET6;
    at.v6.sin6_port = htons((uint16_t)port);
    size = sizeof at.v6;
  } else {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  const int on = 1;
  int fd = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, &at.any, size) != 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, &at.any, &size) != 0) {
    const int code = errno;
    close(fd);
    errno = code;
    return -1;
  }
  s->port = ntohs(at.any.sa_family == AF_INET ? at.v4.sin_port : at.v6.sin6_port);
  return fd;
}

static struct MHD_Daemon *start(HttpServer *s) {
  const HttpLimits *l = &s->limits;
  return MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, http_on_request, s, MHD_OPTION_LISTEN_SOCKET,
                          s->listener, MHD_OPTION_URI_LOG_CALLBACK, http_on_target, s, MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, s,
                          MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)l->connections,
                          MHD_OPTION_CONNECTION_MEMORY_LIMIT, l->header, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)ceil(l->idle),
                          MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
}

/* The thread has all signals blocked: Ctrl-C is the main thread's. */
static int start_loop(HttpServer *s) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = pthread_create(&s->loop, NULL, loop, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return code;
}

static bool watch(HttpServer *s, int fd, void *name) {
  struct epoll_event in = {.events = EPOLLIN, .data.ptr = name};
  return fd >= 0 && epoll_ctl(s->poll, EPOLL_CTL_ADD, fd, &in) == 0;
}

static const char *begin(HttpServer *s, const char *host, int port) {
  s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  s->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  s->poll = epoll_create1(EPOLL_CLOEXEC);
  if (s->wake < 0 || s->news < 0 || s->poll < 0) return strerror(errno);
  s->listener = bind_to(s, host, port);
  if (s->listener < 0) return strerror(errno);
  s->daemon = start(s);
  if (!s->daemon) return "libmicrohttpd cannot start";
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
  s->mhd_poll = info ? info->epoll_fd : -1;
  int code = 0;
  if (!watch(s, s->wake, &s->wake) || !watch(s, s->mhd_poll, &s->mhd_poll)) code = errno ? errno : EINVAL;
  if (code == 0) code = start_loop(s);
  if (code == 0) {
    s->runs = true;
    return NULL;
  }
  MHD_stop_daemon(s->daemon);
  s->daemon = NULL;
  s->listener = -1; /* went with the daemon */
  return strerror(code);
}

HttpServer *http_listen(const char *host, int port, const HttpLimits *limits, const char *const *hosts, int nhosts, const char **why) {
  HttpServer *s = calloc(1, sizeof *s);
  *why = "out of memory";
  if (!s) return NULL;
  pthread_mutex_init(&s->lock, NULL);
  s->refs = 1;
  s->limits = *limits;
  s->listener = s->poll = s->wake = s->news = s->mhd_poll = -1;
  strncpy(s->host, host, sizeof s->host - 1);
  if (keep_hosts(s, hosts, nhosts)) *why = begin(s, host, port);
  if (s->runs) return s;
  http_server_release(s);
  return NULL;
}

void http_close(HttpServer *s, double seconds) {
  if (!s->runs) return;
  pthread_mutex_lock(&s->lock);
  s->closing = true;
  s->close_at = http_now() + seconds;
  pthread_mutex_unlock(&s->lock);
  http_wake(s->wake);
  pthread_join(s->loop, NULL);
  s->runs = false;
  pthread_mutex_lock(&s->lock); /* those that nobody will take: their connections are gone */
  HttpRequest *r = s->first;
  s->first = s->last = NULL;
  s->waiting = 0;
  pthread_mutex_unlock(&s->lock);
  while (r) {
    HttpRequest *next = r->next_waiting;
    http_request_release(r);
    r = next;
  }
}
