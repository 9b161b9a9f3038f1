/* SPDX-License-Identifier: MIT
 * What mutated code asks and what its tester tells it: which mutant is on, which were reached. Loaded first in the process
 * (LD_PRELOAD), so that the engine finds the two variables, and opened by the tester as a module of Lua. */
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 1 << 17 };
int pl_mutant;                       /* 0: the code as it is */
static unsigned char own[MOST];      /* until start() there is nobody to read it */
unsigned char *pl_mutant_hits = own; /* shared by parent and children */

/* PL_MUTANT=number: by hand, in a process of its own. */
__attribute__((constructor)) static void by_hand(void) {
  const char *s = getenv("PL_MUTANT");
  if (s) pl_mutant = atoi(s);
}

static int start(lua_State *L) {
  void *p = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return luaL_error(L, "no memory");
  pl_mutant_hits = p;
  return 0;
}

/* run(f, mutant, seconds, quiet, roomy): a child runs f with the mutant on, in 6 GiB of addresses unless roomy. Its status is
 * 0 where f returns true. Returns its pid. */
static int run(lua_State *L) {
  const pid_t pid = fork();
  if (pid < 0) return luaL_error(L, "no child");
  if (pid) {
    lua_pushinteger(L, pid);
    return 1;
  }
  const double seconds = luaL_checknumber(L, 3);
  const struct itimerval t = {.it_value = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)}};
  const struct rlimit none = {0, 0}, room = {(rlim_t)6 << 30, (rlim_t)6 << 30};
  setrlimit(RLIMIT_CORE, &none);
  if (!lua_toboolean(L, 5)) setrlimit(RLIMIT_AS, &room);
  struct itimerval patient = t; /* on a busy machine the processor's time counts */
  patient.it_value.tv_sec = patient.it_value.tv_sec * 20 + 20;
  setitimer(ITIMER_PROF, &t, NULL); /* both end the process */
  setitimer(ITIMER_REAL, &patient, NULL);
  if (lua_toboolean(L, 4)) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
  }
  pl_mutant = (int)luaL_checkinteger(L, 2);
  lua_pushvalue(L, 1);
  const int failed = lua_pcall(L, 0, 1, 0);
  _exit(failed ? 2 : lua_toboolean(L, -1) ? 0 : 1);
}

/* wait(): pid, whether its function returned true, how it ended ("passed", "failed" or the signal), and the seconds of
 * processor time that it took, which a busy machine does not make more. */
static int wait_one(lua_State *L) {
  int status = 0;
  struct rusage used;
  const pid_t pid = wait4(-1, &status, 0, &used);
  if (pid < 0) return 0;
  lua_pushinteger(L, pid);
  lua_pushboolean(L, WIFEXITED(status) && WEXITSTATUS(status) == 0);
  if (WIFSIGNALED(status)) lua_pushfstring(L, "signal %d", WTERMSIG(status));
  else lua_pushstring(L, WEXITSTATUS(status) ? "failed" : "passed");
  lua_pushnumber(L, (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec));
  return 4;
}

/* reached(): the numbers of the mutants asked for since the last call. */
static int reached(lua_State *L) {
  lua_newtable(L);
  for (int i = 1, n = 0; i < MOST; i++)
    if (pl_mutant_hits[i]) {
      lua_pushinteger(L, i);
      lua_rawseti(L, -2, ++n);
    }
  memset(pl_mutant_hits, 0, MOST);
  return 1;
}

static int now(lua_State *L) {
  struct timeval t;
  gettimeofday(&t, NULL);
  lua_pushnumber(L, (double)t.tv_sec + 1e-6 * (double)t.tv_usec);
  return 1;
}

int luaopen_mutants(lua_State *L) {
  static const luaL_Reg all[] = {{"start", start}, {"run", run}, {"wait", wait_one}, {"reached", reached}, {"now", now}, {NULL, NULL}};
  luaL_newlib(L, all);
  return 1;
}
