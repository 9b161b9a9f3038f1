/* SPDX-License-Identifier: MIT
 * The perilune command: a Lua 5.4 interpreter that finds perilune's modules beside itself, runs scripts and code
 * from the command line, starts the prompt (lua/perilune/repl) or another command (lua/perilune/command), and
 * passes Ctrl-C on to long-running kernels. Lua objects come from a size-class allocator; the collector runs in
 * generational mode. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "bindings/command/coroutines.h"
#include "bindings/command/guard.h"
#include "bindings/command/lua_alloc.h"

enum { EXIT_OK = 0, EXIT_SCRIPT = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* ---- running chunks ------------------------------------------------------------------------- */

/* Calls the function below its nargs arguments; false with a message with traceback on top. */
static bool call(lua_State *L, int nargs, int nresults) {
  int base = lua_gettop(L) - nargs;
  lua_pushcfunction(L, guard_traceback);
  lua_insert(L, base);
  int status = guard_call(L, nargs, nresults, base, 1, (int)SA_RESTART);
  lua_remove(L, base);
  return status == LUA_OK;
}

/* Writes the message on top of the stack and pops it. Of several processes it says which one speaks. → the exit status:
 * that of a process which SIGINT ended where Ctrl-C did it. */
static int complain(lua_State *L) {
  const char *message = lua_tostring(L, -1), *rank = getenv("RANK"), *of = getenv("WORLD_SIZE");
  bool several = rank && *rank && of && atoi(of) > 1;
  fflush(stdout);
  fprintf(stderr, "perilune: %s%.10s%s%s\n", several ? "rank " : "", several ? rank : "", several ? ": " : "",
          message ? message : "error without a message");
  int status = message && guard_interrupted() && strstr(message, "interrupted") ? EXIT_INTERRUPTED : EXIT_SCRIPT;
  lua_pop(L, 1);
  return status;
}

static int push_args(lua_State *L) {
  lua_getglobal(L, "arg");
  if (lua_type(L, -1) != LUA_TTABLE) return lua_pop(L, 1), 0;
  int table = lua_gettop(L), n = (int)luaL_len(L, table);
  luaL_checkstack(L, n + 3, "too many arguments");
  for (int i = 1; i <= n; i++) lua_rawgeti(L, table, i);
  lua_remove(L, table);
  return n;
}

/* Tells what in a script's file is always true, false or nil and hardly meant so (help/lint.lua). What goes wrong in there
 * is no matter of the script's. */
static void look_at_script(lua_State *L, const char *file) {
  int top = lua_gettop(L);
  if (!lua_checkstack(L, 8)) return;
  lua_getglobal(L, "require");
  lua_pushliteral(L, "perilune.help.lint");
  if (lua_pcall(L, 1, 1, 0) == LUA_OK && lua_istable(L, -1) && lua_getfield(L, -1, "tell") == LUA_TFUNCTION) {
    lua_pushstring(L, file);
    lua_pcall(L, 1, 0, 0);
  }
  lua_settop(L, top);
}

/* Runs the loaded chunk on top (or complains about what stopped it from loading). file: NULL where it is in none. */
static int run_chunk(lua_State *L, int load_status, const char *file) {
  if (load_status == LUA_ERRSYNTAX) guard_hint(L);
  if (load_status == LUA_OK && file) look_at_script(L, file);
  if (load_status != LUA_OK || !call(L, push_args(L), 0)) {
    return complain(L);
  }
  return EXIT_OK;
}

/* ---- commands ------------------------------------------------------------------------------- */

/* Takes the exit status that the function on top of the stack returned. */
static int pop_status(lua_State *L) {
  int status = lua_isinteger(L, -1) ? (int)lua_tointeger(L, -1) : EXIT_OK;
  lua_pop(L, 1);
  return status;
}

/* What `perilune` does alone. The prompt guards each input itself. */
static int repl(lua_State *L) {
  lua_pushcfunction(L, guard_traceback);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "perilune.repl");
  if (lua_pcall(L, 1, 1, 1) != LUA_OK || lua_pcall(L, 0, 1, 1) != LUA_OK) return complain(L);
  return pop_status(L);
}

/* perilune NAME ARGS...: lua/perilune/command knows them. */
static int command(lua_State *L, const char *name) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "perilune.command");
  if (!call(L, 1, 1)) return complain(L);
  lua_pushstring(L, name);
  if (!call(L, 1 + push_args(L), 1)) return complain(L);
  return pop_status(L);
}

static bool is_help(const char *arg) { return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0; }

/* Is it a word of the command's own, and no file of that name? */
static bool is_command(const char *word) {
  static const char *const known[] = {"info",  "peek",     "help", "doctest", "new",   "bench",  "diff",  "convert",
                                      "build", "generate", "chat", "serve",   "watch", "launch", "kernel"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(word, known[i]) == 0) return true;
  return false;
}

/* ---- setting up ----------------------------------------------------------------------------- */

/* Puts folder/suffix in front of package[field] if folder/probe exists. */
static bool prepend(lua_State *L, const char *field, const char *folder, const char *probe, const char *templates) {
  lua_pushfstring(L, "%s/%s", folder, probe);
  bool there = access(lua_tostring(L, -1), R_OK) == 0;
  lua_pop(L, 1);
  if (!there) return false;
  lua_getglobal(L, "package");
  luaL_gsub(L, templates, "@", folder);
  lua_pushliteral(L, ";");
  lua_getfield(L, -3, field);
  lua_concat(L, 3);
  lua_setfield(L, -2, field);
  lua_pop(L, 1);
  return true;
}

/* The file of this program; false where nobody knows. /proc may not be there (chroots, bare containers): then the kernel's note of
 * the path that was executed, which is from the folder that we are in, as nobody has changed it yet. */
static bool own_path(char path[PATH_MAX]) {
  const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
  if (n > 0) {
    path[n] = '\0';
    return true;
  }
  const char *executed = (const char *)getauxval(AT_EXECFN);
  char begin[2];
  FILE *f = executed ? fopen(executed, "rb") : NULL;
  if (f && fread(begin, 1, 2, f) == 2 && memcmp(begin, "#!", 2) == 0) executed = program_invocation_name; /* a script, which names us */
  if (f) fclose(f);
  return executed && realpath(executed, path);
}

/* Finds the modules from this program's place: PREFIX/bin/perilune. The first layout is the build
 * tree's, the others are what cmake --install and luarocks leave. */
static void set_paths(lua_State *L) {
  static const char *const libs[] = {"lib", "lib/lua/5.4", "lib64/lua/5.4"};
  static const char *const shares[] = {"share", "share/lua/5.4"};
  char exe[PATH_MAX];
  if (!own_path(exe)) return;
  lua_pushstring(L, exe);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.command.file");
  for (int up = 0; up < 2; up++) {
    char *slash = strrchr(exe, '/');
    if (!slash) return;
    *slash = '\0';
  }
  for (size_t i = 0; i < sizeof libs / sizeof *libs; i++) {
    const char *folder = lua_pushfstring(L, "%s/%s", exe, libs[i]);
    if (prepend(L, "cpath", folder, "perilune/core.so", "@/?.so")) break;
  }
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    const char *folder = lua_pushfstring(L, "%s/%s", exe, shares[i]);
    if (prepend(L, "path", folder, "perilune/init.lua", "@/?.lua;@/?/init.lua")) break;
  }
}

/* The global arg: script (or the program) at 0, its arguments after it, what precedes it below 0. */
static void set_args(lua_State *L, int argc, char **argv, int script, int first) {
  lua_createtable(L, argc - first, script + 1);
  for (int i = 0; i <= script; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - script);
  }
  for (int i = first; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - first + 1);
  }
  lua_setglobal(L, "arg");
}

static int usage(const char *format, const char *word) {
  fputs("perilune: ", stderr);
  fprintf(stderr, format, word);
  fputs("; see perilune --help\n", stderr);
  return EXIT_USAGE;
}

/* tostring of functions: methods of tensors say that they were not called (help/uncalled.lua); others as in Lua. */
static int function_text(lua_State *L) {
  lua_settop(L, 1);
  lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  if (lua_getfield(L, -1, "perilune.core") != LUA_TNIL && lua_checkstack(L, 8)) {
    lua_getglobal(L, "require");
    lua_pushliteral(L, "perilune.help.uncalled");
    if (lua_pcall(L, 1, 1, 0) == LUA_OK && lua_istable(L, -1) && lua_getfield(L, -1, "text") == LUA_TFUNCTION) {
      lua_pushvalue(L, 1);
      if (lua_pcall(L, 1, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING) return 1;
    }
  }
  lua_pushfstring(L, "function: %p", lua_topointer(L, 1));
  return 1;
}

static void set_function_text(lua_State *L) {
  lua_pushcfunction(L, function_text);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, function_text);
  lua_setfield(L, -2, "__tostring");
  lua_setmetatable(L, -2); /* of all functions */
  lua_pop(L, 1);
}

/* perilune run FILE or perilune FILE; the file is argv[script]. */
static int run_script(lua_State *L, int argc, char **argv, int script) {
  int rest = script + 1;
  if (rest < argc && strcmp(argv[rest], "--") == 0) rest++;
  set_args(L, argc, argv, script, rest);
  const char *file = strcmp(argv[script], "-") == 0 ? NULL : argv[script];
  return run_chunk(L, luaL_loadfile(L, file), file);
}

static int dispatch(lua_State *L, int argc, char **argv) {
  const char *first = argc > 1 ? argv[1] : "repl";
  bool asks = argc > 2 && is_help(argv[2]);
  if (is_help(first) || (asks && (strcmp(first, "run") == 0 || strcmp(first, "repl") == 0))) {
    set_args(L, argc, argv, 0, argc);
    return command(L, asks ? first : "--help");
  }
  if (strcmp(first, "repl") == 0) {
    if (argc > 2) return usage("repl takes no arguments, got %s", argv[2]);
    set_args(L, argc, argv, 0, argc);
    return repl(L);
  }
  if (strcmp(first, "-e") == 0) {
    if (argc < 3) return usage("%s needs code", first);
    set_args(L, argc, argv, 0, 3);
    lua_pushstring(L, argv[2]);
    lua_setfield(L, LUA_REGISTRYINDEX, "perilune.code"); /* for hints: help/hints.lua */
    return run_chunk(L, luaL_loadbuffer(L, argv[2], strlen(argv[2]), "=(command line)"), NULL);
  }
  if (is_command(first)) {
    set_args(L, argc, argv, 1, 2);
    return command(L, first);
  }
  if (strcmp(first, "run") == 0) return argc > 2 ? run_script(L, argc, argv, 2) : usage("%s needs a file", first);
  if (first[0] == '-' && first[1] != '\0') return usage("unknown option %s", first);
  if (!strpbrk(first, "./") && access(first, F_OK) != 0) {
    set_args(L, argc, argv, 0, 1);
    return command(L, "--unknown");
  }
  return run_script(L, argc, argv, 1);
}

/* What was printed and could not be written (a full disk) must not look like success. */
static int finish(int status) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  fprintf(stderr, "perilune: cannot write standard output: %s\n", strerror(errno));
  return status == EXIT_OK ? EXIT_SCRIPT : status;
}

/* Runs under lua_pcall, so that even running out of memory while setting up is an error. */
static int protected_main(lua_State *L) {
  int argc = (int)lua_tointeger(L, 1);
  char **argv = lua_touserdata(L, 2);
  luaL_checkversion(L);
  lua_pushlightuserdata(L, guard_slot());
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.interrupt.slot");
  void *arena;
  lua_getallocf(L, &arena);
  lua_pushlightuserdata(L, &((LuaArena *)arena)->boxes);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.release.slot");
  luaL_openlibs(L);
  coroutines_track(L);
  set_paths(L);
  set_function_text(L);
  lua_gc(L, LUA_GCGEN, 0, 0);
  lua_settop(L, 0);
  int status = dispatch(L, argc, argv);
  lua_settop(L, 0);
  if (status != EXIT_OK) { /* other processes of a group must not wait for this one: bindings/distributed/process_group.c */
    lua_pushboolean(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "perilune.failed");
  }
  lua_pushinteger(L, status);
  return 1;
}

/* warn("@on") and warn("@off") as in the standard interpreter; off at first. */
static void show_warning(void *on, const char *message, int to_be_continued) {
  enum { OFF, ON, MIDDLE };
  char *state = on;
  if (*state != MIDDLE && !to_be_continued && message[0] == '@') {
    if (strcmp(message, "@on") == 0) *state = ON;
    else if (strcmp(message, "@off") == 0) *state = OFF;
    return;
  }
  if (*state == OFF) return;
  fprintf(stderr, "%s%s%s", *state == ON ? "warning: " : "", message, to_be_continued ? "" : "\n");
  *state = to_be_continued ? MIDDLE : ON;
}

/* Whoever starts the command may have closed the standard streams. Their numbers must stay taken, or the next file that is opened
 * gets one, and what is printed goes into it. Reading and writing fail as before: what stands there is opened for the other. */
static void keep_streams_apart(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    const bool input = fd == STDIN_FILENO;
    int ends[2];
    if (open("/dev/null", input ? O_WRONLY : O_RDONLY) >= 0 || pipe(ends) != 0) continue;
    if (input) (void)dup2(ends[1], fd); /* no /dev: a pipe, whose end for reading has the lowest free number, fd */
    close(ends[1]);
  }
}

int main(int argc, char **argv) {
  keep_streams_apart();
  if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0))
    return printf("perilune %s (%s)\n", PL_VERSION, LUA_RELEASE), finish(EXIT_OK);
  signal(SIGXFSZ, SIG_IGN); /* a file above the limit is a failing write, as a full disk is */
  char warnings = 0;
  LuaArena arena = {0};
  lua_State *L = lua_newstate(lua_alloc, &arena);
  if (!L) return fputs("perilune: out of memory\n", stderr), EXIT_SCRIPT;
  lua_setwarnf(L, show_warning, &warnings);
  lua_pushcfunction(L, protected_main);
  lua_pushinteger(L, argc);
  lua_pushlightuserdata(L, argv);
  int status = EXIT_SCRIPT;
  if (lua_pcall(L, 2, 1, 0) == LUA_OK) status = (int)lua_tointeger(L, -1);
  else status = complain(L);
  lua_close(L);
  lua_arena_clear(&arena);
  return finish(status);
}
