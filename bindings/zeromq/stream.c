/* SPDX-License-Identifier: MIT
 * The standard streams of a process that runs cells. What anything writes to descriptors 1 and 2, Lua, C and programs that are
 * started, arrives in two pipes that the service reads; reading standard input asks the front end for a line. */
#include "bindings/zeromq/zeromq.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <zmq.h>

#include "bindings/command/guard.h"

enum { POLL_MS = 100, READ_STEP = 1 << 16, DRAIN_STEP_US = 20, DRAIN_STEPS = 5000 };

static bool write_all(int fd, const char *data, size_t n) {
  while (n > 0) {
    ssize_t put = write(fd, data, n);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    data += put;
    n -= (size_t)put;
  }
  return true;
}

/* ---- standard error ---------------------------------------------------------------------------------------------------- */

/* Waits until the pipe's reader has taken everything, a tenth of a second at most. */
static void wait_drained(int fd) {
  int n = 0;
  for (int i = 0; i < DRAIN_STEPS && ioctl(fd, FIONREAD, &n) == 0 && n > 0; i++) usleep(DRAIN_STEP_US);
}

/* Two pipes do not keep the order of what is written to both. A write to standard error waits for both sides of it. */
static ssize_t write_error(void *cookie, const char *data, size_t n) {
  (void)cookie;
  fflush(stdout);
  wait_drained(STDOUT_FILENO);
  bool ok = write_all(STDERR_FILENO, data, n);
  wait_drained(STDERR_FILENO);
  return ok ? (ssize_t)n : 0;
}

/* ---- standard input ---------------------------------------------------------------------------------------------------- */

/* One a process, as standard input is. */
static struct {
  void *socket; /* to the service */
  pthread_t thread;
  unsigned serial; /* of the question; an answer to an earlier one, which was interrupted, is dropped */
  char *line;      /* what the front end answered */
  size_t size, at;
} input;

static bool ask(void) {
  char serial[16];
  int n = snprintf(serial, sizeof serial, "%u", ++input.serial);
  return zmq_send(input.socket, "input", 5, ZMQ_SNDMORE) >= 0 && zmq_send(input.socket, serial, (size_t)n, 0) >= 0;
}

/* The next message from the service, which has two frames, if it is the answer; what else comes is dropped. → 1: a line, 0: there is
 * none, -1: something else */
static int take_answer(void) {
  zmq_msg_t serial, text;
  int result = -1;
  zmq_msg_init(&serial);
  zmq_msg_init(&text);
  char wanted[16];
  size_t n = (size_t)snprintf(wanted, sizeof wanted, "%u", input.serial);
  zmq_msg_recv(&serial, input.socket, 0);
  bool has_text = zmq_msg_more(&serial) && zmq_msg_recv(&text, input.socket, 0) >= 0;
  if (zmq_msg_size(&serial) == n && memcmp(zmq_msg_data(&serial), wanted, n) == 0) {
    size_t size = zmq_msg_size(&text);
    char *line = has_text ? malloc(size + 1) : NULL;
    if (line) {
      memcpy(line, zmq_msg_data(&text), size);
      line[size] = '\n';
      free(input.line);
      input.line = line;
      input.size = size + 1;
      input.at = 0;
    }
    result = line != NULL;
  }
  zmq_msg_close(&text);
  zmq_msg_close(&serial);
  return result;
}

static ssize_t read_input(void *cookie, char *to, size_t room) {
  (void)cookie;
  if (!input.socket || !pthread_equal(input.thread, pthread_self())) return 0;
  if (input.at == input.size) {
    fflush(stdout); /* the question */
    int answer = ask() ? -1 : 0, presses = guard_interrupted();
    while (answer < 0) {
      zmq_pollitem_t item = {.socket = input.socket, .events = ZMQ_POLLIN};
      int ready = zmq_poll(&item, 1, POLL_MS);
      if (ready > 0) answer = take_answer();
      else if (ready < 0 && errno != EINTR) answer = 0;
      if (answer < 0 && guard_interrupted() != presses) {
        zmq_send(input.socket, "input over", 10, 0);
        errno = EINTR;
        return -1;
      }
    }
    if (answer == 0) return 0;
  }
  size_t n = input.size - input.at < room ? input.size - input.at : room;
  memcpy(to, input.line + input.at, n);
  input.at += n;
  return (ssize_t)n;
}

/* zeromq.input(socket): reading standard input sends {"input", serial} there and takes {serial, line}, or {serial} where there
 * is none; {"input over"} follows when Ctrl-C ended it. nil: no more. */
int zeromq_input(lua_State *L) {
  input.socket = lua_isnil(L, 1) ? NULL : zeromq_check_socket(L, 1);
  input.thread = pthread_self();
  if (!input.socket) {
    free(input.line);
    input.line = NULL;
    input.size = input.at = 0;
  }
  return 0;
}

/* ---- all three ----------------------------------------------------------------------------------------------------------- */

static bool replace(FILE **stream, const char *mode, cookie_io_functions_t functions, int buffering) {
  FILE *f = fopencookie(NULL, mode, functions);
  if (f && buffering == _IONBF) setvbuf(f, NULL, _IONBF, 0);
  if (f) *stream = f;
  return f != NULL;
}

/* The Lua file `name` of io is this stream from now on. */
static void give_lua(lua_State *L, const char *name, FILE *stream) {
  lua_getglobal(L, "io");
  lua_getfield(L, -1, name);
  luaL_Stream *file = luaL_checkudata(L, -1, LUA_FILEHANDLE);
  file->f = stream;
  lua_pop(L, 2);
}

/* A pipe whose writing end becomes descriptor fd → its reading end, or -1 */
static int pipe_for(int fd) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  bool ok = fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && dup2(ends[1], fd) >= 0;
  close(ends[1]);
  if (ok) return ends[0];
  close(ends[0]);
  return -1;
}

/* zeromq.capture() → descriptors: what is written to standard output, to standard error, and what standard error was; or nil,
 * message. Standard input is empty for programs that are started. */
int zeromq_capture(lua_State *L) {
  fflush(stdout);
  fflush(stderr);
  int old = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) return zeromq_failure(L, "/dev/null");
  if (old < 0) old = nothing;
  else close(nothing);
  int out = pipe_for(STDOUT_FILENO), err = pipe_for(STDERR_FILENO);
  if (out < 0 || err < 0) return zeromq_failure(L, "pipe");
  setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
  if (!replace(&stderr, "w", (cookie_io_functions_t){.write = write_error}, _IONBF) ||
      !replace(&stdin, "r", (cookie_io_functions_t){.read = read_input}, _IOFBF))
    return zeromq_failure(L, "streams");
  give_lua(L, "stderr", stderr);
  give_lua(L, "stdin", stdin);
  lua_pushinteger(L, out);
  lua_pushinteger(L, err);
  lua_pushinteger(L, old);
  return 3;
}

/* zeromq.release(descriptor): what is written from now on goes there; its reader has gone. */
int zeromq_release(lua_State *L) {
  int to = (int)luaL_checkinteger(L, 1);
  fflush(stdout);
  dup2(to, STDOUT_FILENO);
  dup2(to, STDERR_FILENO);
  return 0;
}

/* zeromq.read(descriptor) → bytes, "" if there are none now; nil at the end */
int zeromq_read(lua_State *L) {
  luaL_Buffer b;
  int fd = (int)luaL_checkinteger(L, 1);
  char *room = luaL_buffinitsize(L, &b, READ_STEP);
  ssize_t got;
  do got = read(fd, room, READ_STEP);
  while (got < 0 && errno == EINTR);
  bool ended = got == 0 || (got < 0 && errno != EAGAIN);
  luaL_pushresultsize(&b, got > 0 ? (size_t)got : 0);
  if (ended) lua_pushnil(L);
  return 1;
}

/* zeromq.write(descriptor, text) */
int zeromq_write(lua_State *L) {
  size_t n;
  const char *text = luaL_checklstring(L, 2, &n);
  lua_pushboolean(L, write_all((int)luaL_checkinteger(L, 1), text, n));
  return 1;
}

/* zeromq.flush(): what C keeps back of standard output goes into its pipe. */
int zeromq_flush(lua_State *L) {
  (void)L;
  fflush(stdout);
  return 0;
}
