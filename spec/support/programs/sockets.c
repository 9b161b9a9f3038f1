/* SPDX-License-Identifier: MIT
 * TCP clients for specs, one call a system call, so that a spec decides what a peer does when:
 * sockets.connect(host, port, receive_buffer) → fd; send(fd, bytes) → how many the system took at once; receive(fd,
 * seconds, most) → bytes, "" at the peer's end, nil after that time; reset(fd): closes without a goodbye; close(fd);
 * half(fd): says that no more will be sent; now(), sleep(seconds). */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

int luaopen_sockets(lua_State *L) __attribute__((visibility("default")));

static int failed(lua_State *L) { return luaL_error(L, "%s", strerror(errno)); }

static int connect_(lua_State *L) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)luaL_checkinteger(L, 2))};
  inet_pton(AF_INET, luaL_checkstring(L, 1), &at.sin_addr);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int buffer = (int)luaL_optinteger(L, 3, 0);
  if (fd < 0) return failed(L);
  if (buffer > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
    close(fd);
    return failed(L);
  }
  lua_pushinteger(L, fd);
  return 1;
}

static int send_(lua_State *L) {
  size_t n;
  const char *bytes = luaL_checklstring(L, 2, &n);
  lua_pushinteger(L, send((int)luaL_checkinteger(L, 1), bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL));
  return 1;
}

static int receive(lua_State *L) {
  struct pollfd p = {.fd = (int)luaL_checkinteger(L, 1), .events = POLLIN};
  size_t most = (size_t)luaL_optinteger(L, 3, 1 << 16);
  if (poll(&p, 1, (int)(luaL_optnumber(L, 2, 10) * 1000)) <= 0) return 0;
  char *room = malloc(most);
  ssize_t n = room ? recv(p.fd, room, most, 0) : 0;
  lua_pushlstring(L, room ? room : "", n > 0 ? (size_t)n : 0);
  free(room);
  return 1;
}

static int reset(lua_State *L) {
  const struct linger now = {.l_onoff = 1};
  int fd = (int)luaL_checkinteger(L, 1);
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
  return 0;
}

static int half(lua_State *L) {
  shutdown((int)luaL_checkinteger(L, 1), SHUT_WR);
  return 0;
}

static int close_(lua_State *L) {
  close((int)luaL_checkinteger(L, 1));
  return 0;
}

static int now(lua_State *L) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  lua_pushnumber(L, (lua_Number)t.tv_sec + (lua_Number)t.tv_nsec * 1e-9);
  return 1;
}

static int sleep_(lua_State *L) {
  usleep((unsigned)(luaL_checknumber(L, 1) * 1e6));
  return 0;
}

int luaopen_sockets(lua_State *L) {
  static const luaL_Reg functions[] = {{"connect", connect_}, {"send", send_}, {"receive", receive}, {"reset", reset}, {"half", half},
                                       {"close", close_},     {"now", now},    {"sleep", sleep_},    {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}
