/* SPDX-License-Identifier: MIT
 * The perilune command: a Lua 5.4 interpreter that finds perilune's modules beside itself, runs scripts,
 * code from the command line or a plain REPL, and passes Ctrl-C on to long-running kernels. Lua objects
 * come from a size-class allocator; the collector runs in generational mode. */
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "bindings/lua_alloc.h"

enum { EXIT_OK = 0, EXIT_SCRIPT = 1, EXIT_USAGE = 2 };

static const char HELP[] =
    "usage: perilune [COMMAND | FILE.lua ARGS...]\n"
    "  perilune                        read, evaluate and print lines\n"
    "  perilune FILE.lua ARGS...       run a script; ARGS are in arg[1]...\n"
    "  perilune run FILE [--] ARGS...  the same for any file name; FILE - is standard input\n"
    "  perilune -e CODE ARGS...        run code\n"
    "  perilune info                   version, libraries, threads\n"
    "  perilune --version, --help\n"
    "exit status: 0 all went well; 1 an error in the script (traceback on standard error), or in any\n"
    "line read from a pipe; 2 wrong usage. Ctrl-C interrupts the script, a second Ctrl-C ends the process.\n";

/* Prints what info() returns: text as it is, a table as sorted lines. */
static const char INFO[] =
    "local T = require 'perilune'\n"
    "local info = T.info and T.info()\n"
    "if type(info) ~= 'table' then if info ~= nil then print(info) end return end\n"
    "local lines = {}\n"
    "for k, v in pairs(info) do lines[#lines + 1] = tostring(k) .. ': ' .. tostring(v) end\n"
    "table.sort(lines)\n"
    "print(table.concat(lines, '\\n'))\n";

/* ---- Ctrl-C --------------------------------------------------------------------------------- */

/* Globals, because a signal handler gets no argument. loader.c fills interrupt_kernels once the engine
 * is there. */
static lua_State *volatile running;
static void (*interrupt_kernels)(bool on);

static void tell_kernels(bool on) {
  if (interrupt_kernels) interrupt_kernels(on);
}

static void interrupt_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_sethook(L, NULL, 0, 0);
  tell_kernels(false);
  luaL_error(L, "interrupted!");
}

/* The next instruction of the script raises; kernels stop at their next poll. SA_RESETHAND has put the
 * default back, so a second Ctrl-C ends the process. */
static void on_interrupt(int sig) {
  (void)sig;
  tell_kernels(true);
  lua_sethook(running, interrupt_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static void catch_interrupts(lua_State *L, bool on) {
  struct sigaction action = {.sa_handler = on ? on_interrupt : SIG_DFL,
                             .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
  running = L;
  sigaction(SIGINT, &action, NULL);
  if (on) return;
  lua_sethook(L, NULL, 0, 0);
  tell_kernels(false);
}

/* ---- running chunks ------------------------------------------------------------------------- */

static int add_traceback(lua_State *L) {
  if (lua_type(L, 1) != LUA_TSTRING) {
    if (!luaL_callmeta(L, 1, "__tostring") || lua_type(L, -1) != LUA_TSTRING)
      lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  } else {
    lua_pushvalue(L, 1);
  }
  luaL_traceback(L, L, lua_tostring(L, -1), 1);
  return 1;
}

/* Calls the function below its nargs arguments; false with a message with traceback on top. */
static bool call(lua_State *L, int nargs, int nresults) {
  int base = lua_gettop(L) - nargs;
  lua_pushcfunction(L, add_traceback);
  lua_insert(L, base);
  catch_interrupts(L, true);
  int status = lua_pcall(L, nargs, nresults, base);
  catch_interrupts(L, false);
  lua_remove(L, base);
  return status == LUA_OK;
}

/* Writes the message on top of the stack and pops it. */
static void complain(lua_State *L) {
  const char *message = lua_tostring(L, -1);
  fflush(stdout);
  fprintf(stderr, "perilune: %s\n", message ? message : "error without a message");
  lua_pop(L, 1);
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

/* Runs the loaded chunk on top (or complains about what stopped it from loading). */
static int run_chunk(lua_State *L, int load_status) {
  if (load_status != LUA_OK || !call(L, push_args(L), 0)) {
    complain(L);
    return EXIT_SCRIPT;
  }
  return EXIT_OK;
}

/* ---- REPL ----------------------------------------------------------------------------------- */

typedef struct Reader {
  bool prompts;
  char *line;
  size_t size;
} Reader;

/* Pushes the next line without its newline; false at the end of input. */
static bool push_line(lua_State *L, Reader *r, const char *prompt) {
  if (r->prompts) {
    fputs(prompt, stdout);
    fflush(stdout);
  }
  ssize_t n = getline(&r->line, &r->size, stdin);
  if (n < 0) return false;
  if (n > 0 && r->line[n - 1] == '\n') n--;
  lua_pushlstring(L, r->line, (size_t)n);
  return true;
}

/* Does the syntax error on top only say that the chunk goes on? */
static bool is_incomplete(lua_State *L, int status) {
  static const char mark[] = "<eof>";
  size_t n;
  const char *message = lua_tolstring(L, -1, &n);
  return status == LUA_ERRSYNTAX && n >= sizeof mark - 1 &&
         strcmp(message + n - (sizeof mark - 1), mark) == 0;
}

/* Compiles the text on top, as an expression if it is one; leaves text and function or message. */
static int load_text(lua_State *L) {
  size_t n;
  const char *expression = lua_pushfstring(L, "return %s", lua_tostring(L, -1));
  int status = luaL_loadbuffer(L, expression, strlen(expression), "=stdin");
  lua_remove(L, -2);
  if (status == LUA_OK) return status;
  lua_pop(L, 1);
  const char *text = lua_tolstring(L, -1, &n);
  return luaL_loadbuffer(L, text, n, "=stdin");
}

static int print_results(lua_State *L) {
  int n = lua_gettop(L);
  for (int i = 1; i <= n; i++) {
    size_t size;
    const char *text = luaL_tolstring(L, i, &size);
    if (i > 1) fputc('\t', stdout);
    fwrite(text, 1, size, stdout);
    lua_pop(L, 1);
  }
  fputc('\n', stdout);
  return 0;
}

/* Reads lines until they compile; false at the end of input with nothing read. */
static bool read_chunk(lua_State *L, Reader *r, int *status) {
  if (!push_line(L, r, "> ")) return false;
  while (*status = load_text(L), is_incomplete(L, *status)) {
    if (!push_line(L, r, ">> ")) break;
    lua_remove(L, -2); /* the message */
    lua_pushliteral(L, "\n");
    lua_insert(L, -2);
    lua_concat(L, 3);
  }
  lua_remove(L, -2); /* the text */
  return true;
}

static int repl(lua_State *L) {
  Reader reader = {.prompts = isatty(STDIN_FILENO)};
  int exit_status = EXIT_OK, status;
  if (reader.prompts) printf("perilune %s, %s. Ctrl-D ends.\n", PL_VERSION, LUA_RELEASE);
  for (; lua_settop(L, 0), read_chunk(L, &reader, &status); fflush(stdout)) {
    bool ok = status == LUA_OK && call(L, 0, LUA_MULTRET);
    if (ok && lua_gettop(L) > 0) {
      luaL_checkstack(L, LUA_MINSTACK, "too many results to print");
      lua_pushcfunction(L, print_results);
      lua_insert(L, 1);
      ok = call(L, lua_gettop(L) - 1, 0);
    }
    if (ok) continue;
    complain(L);
    if (!reader.prompts) exit_status = EXIT_SCRIPT;
  }
  if (reader.prompts) fputc('\n', stdout);
  free(reader.line);
  return exit_status;
}

/* ---- setting up ----------------------------------------------------------------------------- */

/* Puts folder/suffix in front of package[field] if folder/probe exists. */
static bool prepend(lua_State *L, const char *field, const char *folder, const char *probe,
                    const char *templates) {
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

/* Finds the modules from this program's place: PREFIX/bin/perilune. The first layout is the build
 * tree's, the others are what cmake --install and luarocks leave. */
static void set_paths(lua_State *L) {
  static const char *const libs[] = {"lib", "lib/lua/5.4", "lib64/lua/5.4"};
  static const char *const shares[] = {"share", "share/lua/5.4"};
  char exe[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (n <= 0) return;
  exe[n] = '\0';
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

static int dispatch(lua_State *L, int argc, char **argv) {
  const char *first = argc > 1 ? argv[1] : NULL;
  if (!first) {
    set_args(L, argc, argv, 0, 1);
    return repl(L);
  }
  if (strcmp(first, "-e") == 0) {
    if (argc < 3) return fputs("perilune: -e needs code\n", stderr), EXIT_USAGE;
    set_args(L, argc, argv, 0, 3);
    return run_chunk(L, luaL_loadbuffer(L, argv[2], strlen(argv[2]), "=(command line)"));
  }
  if (strcmp(first, "info") == 0) {
    set_args(L, argc, argv, 0, 2);
    return run_chunk(L, luaL_loadbuffer(L, INFO, sizeof INFO - 1, "=info"));
  }
  int script = strcmp(first, "run") == 0 ? 2 : 1;
  if (script >= argc) return fputs("perilune: run needs a file\n", stderr), EXIT_USAGE;
  if (script == 1 && first[0] == '-') {
    fprintf(stderr, "perilune: unknown option %s; see perilune --help\n", first);
    return EXIT_USAGE;
  }
  int rest = script + 1;
  if (rest < argc && strcmp(argv[rest], "--") == 0) rest++;
  set_args(L, argc, argv, script, rest);
  const char *file = strcmp(argv[script], "-") == 0 ? NULL : argv[script];
  return run_chunk(L, luaL_loadfile(L, file));
}

/* Runs under lua_pcall, so that even running out of memory while setting up is an error. */
static int protected_main(lua_State *L) {
  int argc = (int)lua_tointeger(L, 1);
  char **argv = lua_touserdata(L, 2);
  luaL_checkversion(L);
  lua_pushlightuserdata(L, (void *)&interrupt_kernels);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.interrupt.slot");
  void *arena;
  lua_getallocf(L, &arena);
  lua_pushlightuserdata(L, &((LuaArena *)arena)->boxes);
  lua_setfield(L, LUA_REGISTRYINDEX, "perilune.release.slot");
  luaL_openlibs(L);
  set_paths(L);
  lua_gc(L, LUA_GCGEN, 0, 0);
  lua_settop(L, 0);
  int status = dispatch(L, argc, argv);
  lua_settop(L, 0);
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

int main(int argc, char **argv) {
  if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
    return fputs(HELP, stdout), EXIT_OK;
  if (argc > 1 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0))
    return printf("perilune %s (%s)\n", PL_VERSION, LUA_RELEASE), EXIT_OK;
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
  else complain(L);
  lua_close(L);
  lua_arena_clear(&arena);
  return status;
}
