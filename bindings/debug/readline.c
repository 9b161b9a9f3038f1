/* SPDX-License-Identifier: MIT
 * Completion where the host interpreter has GNU readline (lua5.4 -i -l perilune): readline's hook calls
 * lua/perilune/repl/complete.lua. Nothing is linked: the names are looked up in the running process; where they are
 * missing, or somebody set the hook already, nothing happens. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bindings/core/lib.h"

typedef char **Attempt(const char *text, int start, int end);
typedef char *Generator(const char *text, int state);

/* Globals, because readline's hooks get no argument. */
static struct {
  lua_State *L; /* the main state; NULL once it is closed */
  Attempt **hook;
  char **line;
  int *append, *over;
  char **(*make_matches)(const char *text, Generator *next);
} rl;
static int next_word; /* of the completion in progress */

static const char words_key = 0; /* registry: its words */

/* The words one after the other in malloc's memory, as readline wants them. */
static char *generate(const char *text, int state) {
  (void)text;
  lua_State *L = rl.L;
  if (state == 0) next_word = 1;
  char *copy = NULL;
  if (!lua_checkstack(L, 4)) return NULL;
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &words_key) == LUA_TTABLE) {
    if (lua_rawgeti(L, -1, next_word++) == LUA_TSTRING) copy = strdup(lua_tostring(L, -1));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return copy;
}

/* (line up to the cursor, where readline's word begins): leaves the words in the registry */
static int find_words(lua_State *L) {
  lua_settop(L, 2);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "perilune.repl.complete");
  lua_call(L, 1, 1);
  lua_getfield(L, 3, "for_readline");
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_call(L, 2, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &words_key);
  return 0;
}

static char **attempt(const char *text, int start, int end) {
  lua_State *L = rl.L;
  if (!L || !lua_checkstack(L, LUA_MINSTACK)) return NULL;
  int top = lua_gettop(L);
  char **found = NULL;
  *rl.over = 1; /* no file names of readline's own */
  lua_pushcfunction(L, find_words);
  lua_pushlstring(L, *rl.line, (size_t)end);
  lua_pushinteger(L, start);
  if (lua_pcall(L, 2, 0, 0) == LUA_OK) {
    *rl.append = 0;
    found = rl.make_matches(text, generate);
  }
  lua_settop(L, top);
  return found;
}

static int forget(lua_State *L) {
  (void)L;
  if (*rl.hook == attempt) *rl.hook = NULL;
  rl.L = NULL;
  return 0;
}

/* Copies the address of a name of the process; false where there is none. */
static bool find(const char *name, void *slot) {
  void *address = dlsym(RTLD_DEFAULT, name);
  memcpy(slot, &address, sizeof address);
  return address != NULL;
}

static bool find_all(void) {
  return find("rl_attempted_completion_function", &rl.hook) && find("rl_line_buffer", &rl.line) &&
         find("rl_completion_append_character", &rl.append) && find("rl_attempted_completion_over", &rl.over) &&
         find("rl_completion_matches", &rl.make_matches);
}

void l_readline_register(lua_State *L) {
  if (rl.L || !isatty(STDIN_FILENO) || !find_all() || *rl.hook) return;
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  rl.L = lua_tothread(L, -1);
  lua_pop(L, 1);
  *rl.hook = attempt;
  lua_newuserdatauv(L, 0, 0); /* its end is the state's end */
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, forget);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &rl);
}
