/* SPDX-License-Identifier: MIT
 * perilune.zeromq: sockets, threads, captured streams, signatures and interrupts for the Jupyter kernel. Only perilune's own Lua
 * files use it. */
#include "bindings/zeromq/zeromq.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sodium.h>

#include "bindings/command/guard.h"

int luaopen_perilune_zeromq(lua_State *L) __attribute__((visibility("default")));

/* ---- signatures ------------------------------------------------------------------------------------------------------- */

/* zeromq.hmac(key, text…) → HMAC-SHA256 (RFC 2104) of the texts one after the other, in hexadecimal */
static int hmac(lua_State *L) {
  crypto_auth_hmacsha256_state state;
  unsigned char digest[crypto_auth_hmacsha256_BYTES];
  char hex[2 * sizeof digest + 1];
  size_t n;
  const char *key = luaL_checklstring(L, 1, &n);
  for (int i = 2; i <= lua_gettop(L); i++) luaL_checkstring(L, i);
  crypto_auth_hmacsha256_init(&state, (const unsigned char *)key, n);
  for (int i = 2; i <= lua_gettop(L); i++) {
    const char *text = lua_tolstring(L, i, &n);
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)text, n);
  }
  crypto_auth_hmacsha256_final(&state, digest);
  lua_pushstring(L, sodium_bin2hex(hex, sizeof hex, digest, sizeof digest));
  return 1;
}

/* zeromq.same(a, b) → whether two texts are equal; the time taken says nothing about where they differ */
static int same(lua_State *L) {
  size_t n, m;
  const char *a = luaL_checklstring(L, 1, &n), *b = luaL_checklstring(L, 2, &m);
  lua_pushboolean(L, n == m && sodium_memcmp(a, b, n) == 0);
  return 1;
}

/* zeromq.random(n) → n random bytes in hexadecimal, n up to 32 */
static int random_bytes(lua_State *L) {
  unsigned char bytes[32];
  char hex[2 * sizeof bytes + 1];
  lua_Integer n = luaL_checkinteger(L, 1);
  luaL_argcheck(L, n >= 1 && n <= (lua_Integer)sizeof bytes, 1, "1 to 32");
  randombytes_buf(bytes, (size_t)n);
  lua_pushstring(L, sodium_bin2hex(hex, sizeof hex, bytes, (size_t)n));
  return 1;
}

/* zeromq.base64(bytes) → text (RFC 4648) */
static int base64(lua_State *L) {
  size_t n;
  const char *bytes = luaL_checklstring(L, 1, &n);
  size_t room = sodium_base64_encoded_len(n, sodium_base64_VARIANT_ORIGINAL);
  luaL_Buffer b;
  char *to = luaL_buffinitsize(L, &b, room);
  sodium_bin2base64(to, room, (const unsigned char *)bytes, n, sodium_base64_VARIANT_ORIGINAL);
  luaL_pushresultsize(&b, room - 1);
  return 1;
}

/* ---- time ------------------------------------------------------------------------------------------------------------- */

/* zeromq.time() → seconds since 1970, and microseconds */
static int time_of_day(lua_State *L) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  lua_pushinteger(L, (lua_Integer)t.tv_sec);
  lua_pushinteger(L, (lua_Integer)(t.tv_nsec / 1000));
  return 2;
}

/* zeromq.now() → seconds of a clock that only goes forward */
static int now(lua_State *L) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  lua_pushnumber(L, (lua_Number)t.tv_sec + (lua_Number)t.tv_nsec * 1e-9);
  return 1;
}

/* ---- interrupts and the process ----------------------------------------------------------------------------------------- */

static pthread_t main_thread; /* where cells run; set before there is another */

/* zeromq.guard(handler, f, …) → as xpcall(f, handler, …); an interrupt is an error inside f, however often it comes */
static int guard(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  luaL_checkany(L, 2);
  int status = guard_call(L, lua_gettop(L) - 2, LUA_MULTRET, 1, INT_MAX, 0);
  lua_pushboolean(L, status == LUA_OK);
  lua_replace(L, 1);
  return lua_gettop(L);
}

static void nothing(int sig) { (void)sig; }

/* zeromq.idle(): outside of guard an interrupt means nothing, and a reader that went away is an error of the write. What is
 * ignored stays so in programs that are started; what is handled does not. */
static int idle(lua_State *L) {
  struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
  (void)L;
  main_thread = pthread_self();
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGPIPE, &action, NULL);
  return 0;
}

/* zeromq.interrupt(): as Ctrl-C at a terminal. Where this process leads a group, as under Jupyter, programs that it has started
 * get it, too. */
static int interrupt(lua_State *L) {
  (void)L;
  if (getpgrp() == getpid()) kill(0, SIGINT);
  else pthread_kill(main_thread, SIGINT);
  return 0;
}

/* zeromq.interrupted() → how many interrupts have arrived in the code under guard */
static int interrupted(lua_State *L) {
  lua_pushinteger(L, guard_interrupted());
  return 1;
}

/* zeromq.parent() → the number of the process that started this one */
static int parent(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)getppid());
  return 1;
}

/* zeromq.stop(status): ends the process at once. */
static int stop(lua_State *L) { _exit((int)luaL_optinteger(L, 1, 0)); }

int luaopen_perilune_zeromq(lua_State *L) {
  static const luaL_Reg functions[] = {{"context", zeromq_context},
                                       {"wait", zeromq_wait},
                                       {"service", zeromq_service},
                                       {"heartbeat", zeromq_heartbeat},
                                       {"capture", zeromq_capture},
                                       {"release", zeromq_release},
                                       {"input", zeromq_input},
                                       {"read", zeromq_read},
                                       {"write", zeromq_write},
                                       {"flush", zeromq_flush},
                                       {"hmac", hmac},
                                       {"same", same},
                                       {"random", random_bytes},
                                       {"base64", base64},
                                       {"time", time_of_day},
                                       {"now", now},
                                       {"guard", guard},
                                       {"idle", idle},
                                       {"interrupt", interrupt},
                                       {"interrupted", interrupted},
                                       {"parent", parent},
                                       {"stop", stop},
                                       {NULL, NULL}};
  if (sodium_init() < 0) return luaL_error(L, "libsodium cannot be used");
  zeromq_sockets(L);
  zeromq_threads(L);
  luaL_newlib(L, functions);
  return 1;
}
