/* SPDX-License-Identifier: MIT
 * A line editor on libedit: history, completion by a Lua function, and signals as return values instead of
 * interruptions. While a line is read, the signals below are blocked except inside ppoll, so none is missed. */
#ifdef PL_HAVE_EDIT
#include "bindings/terminal/terminal.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define EDITOR "perilune.terminal.editor"

typedef struct Editor {
  EditLine *el;
  History *history;
  lua_State *L; /* who reads just now */
  const char *prompt;
  mbstate_t shift;
  int stopped_by; /* the signal that ended the last read, or 0 */
} Editor;

enum { MAX_PROMPT = 128, HISTORY = 5000 };
static const int SIGNALS[] = {SIGINT, SIGWINCH, SIGTSTP, SIGTERM, SIGHUP};
enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS };

static volatile sig_atomic_t arrived[N_SIGNALS]; /* a signal handler gets no argument */

static void on_signal(int sig) {
  for (int i = 0; i < N_SIGNALS; i++)
    if (SIGNALS[i] == sig) arrived[i] = 1;
}

/* ---- one character -------------------------------------------------------------------------- */

/* Ctrl-Z: the shell gets its terminal back, and later we ours. */
static void suspend(EditLine *el) {
  el_set(el, EL_PREP_TERM, 0);
  raise(SIGSTOP);
  el_set(el, EL_PREP_TERM, 1);
  el_set(el, EL_REFRESH);
}

/* Acts on the signals that came; true if reading is over. */
static bool over(Editor *e) {
  for (int i = 0; i < N_SIGNALS; i++) {
    if (!arrived[i]) continue;
    arrived[i] = 0;
    if (SIGNALS[i] == SIGWINCH) el_resize(e->el);
    else if (SIGNALS[i] == SIGTSTP) suspend(e->el);
    else return e->stopped_by = SIGNALS[i], true;
  }
  return false;
}

/* The next byte: 1, 0 at the end, -1 for a signal or an error. */
static int next_byte(Editor *e, char *out) {
  sigset_t open;
  sigprocmask(SIG_BLOCK, NULL, &open);
  for (int i = 0; i < N_SIGNALS; i++) sigdelset(&open, SIGNALS[i]);
  for (;;) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    int ready = ppoll(&in, 1, NULL, &open);
    if (over(e)) return -1;
    if (ready < 0 && errno != EINTR) return -1;
    if (ready <= 0) continue;
    ssize_t n = read(STDIN_FILENO, out, 1);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return n < 0 ? -1 : (int)n;
  }
}

static int read_char(EditLine *el, wchar_t *out) {
  Editor *e;
  char byte;
  el_get(el, EL_CLIENTDATA, &e);
  for (;;) {
    int n = next_byte(e, &byte);
    if (n <= 0) return n;
    size_t used = mbrtowc(out, &byte, 1, &e->shift);
    if (used == (size_t)-2) continue;
    if (used == (size_t)-1) {
      memset(&e->shift, 0, sizeof e->shift);
      *out = L'?';
    }
    return 1;
  }
}

/* ---- completion ----------------------------------------------------------------------------- */

/* Calls the editor's function with the line and how many of its bytes are before the cursor. It returns how many
 * characters to remove before the cursor, the text to put there, and lines to show below, or nil. */
static unsigned char complete(EditLine *el, int key) {
  Editor *e;
  (void)key;
  el_get(el, EL_CLIENTDATA, &e);
  lua_State *L = e->L;
  const LineInfo *line = el_line(el);
  unsigned char todo = CC_NORM;
  int top = lua_gettop(L);
  if (!lua_checkstack(L, 8) || lua_getiuservalue(L, 1, 1) != LUA_TFUNCTION) goto out;
  lua_pushlstring(L, line->buffer, (size_t)(line->lastchar - line->buffer));
  lua_pushinteger(L, line->cursor - line->buffer);
  if (lua_pcall(L, 2, 3, 0) != LUA_OK) goto out;
  int take = (int)lua_tointeger(L, -3);
  const char *put = lua_tostring(L, -2), *show = lua_tostring(L, -1);
  if (put) {
    if (take > 0) el_deletestr(el, take);
    if (*put && el_insertstr(el, put) != 0) goto out;
    todo = CC_REFRESH;
  }
  if (show) {
    fprintf(stdout, "\n%s", show);
    fflush(stdout);
    todo = CC_REDISPLAY;
  }
out:
  lua_settop(L, top);
  return todo;
}

/* ---- the object ----------------------------------------------------------------------------- */

static char *prompt_of(EditLine *el) {
  Editor *e;
  el_get(el, EL_CLIENTDATA, &e);
  return (char *)(uintptr_t)e->prompt; /* libedit only reads it */
}

static Editor *check(lua_State *L) {
  Editor *e = luaL_checkudata(L, 1, EDITOR);
  if (!e->el) luaL_error(L, "the editor is closed");
  return e;
}

static void install(bool on, struct sigaction *saved, sigset_t *mask) {
  if (!on) {
    for (int i = 0; i < N_SIGNALS; i++) sigaction(SIGNALS[i], &saved[i], NULL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    return;
  }
  struct sigaction action = {.sa_handler = on_signal};
  sigset_t block;
  sigemptyset(&block);
  for (int i = 0; i < N_SIGNALS; i++) sigaddset(&block, SIGNALS[i]);
  sigprocmask(SIG_BLOCK, &block, mask);
  for (int i = 0; i < N_SIGNALS; i++) {
    arrived[i] = 0;
    sigaction(SIGNALS[i], &action, &saved[i]);
  }
}

static const char *reason(const Editor *e) {
  switch (e->stopped_by) {
  case SIGINT: return "interrupt";
  case SIGTERM: return "terminated";
  case SIGHUP: return "hangup";
  default: return "end";
  }
}

/* editor:read(prompt) → line without its newline; or nil, "end" | "interrupt" | "terminated" | "hangup". In the
 * prompt, text between two bytes 1 takes no room (colours). */
static int editor_read(lua_State *L) {
  Editor *e = check(L);
  size_t size;
  const char *prompt = luaL_checklstring(L, 2, &size);
  if (size > MAX_PROMPT) return luaL_error(L, "the prompt is too long");
  struct sigaction saved[N_SIGNALS];
  sigset_t mask;
  int n = 0;
  lua_settop(L, 2);
  e->L = L;
  e->prompt = prompt;
  e->stopped_by = 0;
  memset(&e->shift, 0, sizeof e->shift);
  el_resize(e->el);
  install(true, saved, &mask);
  const char *line = el_gets(e->el, &n);
  install(false, saved, &mask);
  if (!line || n <= 0 || e->stopped_by) {
    el_reset(e->el);
    el_set(e->el, EL_PREP_TERM, 0);
    lua_pushnil(L);
    lua_pushstring(L, reason(e));
    return 2;
  }
  if (line[n - 1] == '\n') n--;
  lua_pushlstring(L, line, (size_t)n);
  return 1;
}

/* editor:add(entry): the newest entry of the history in memory */
static int editor_add(lua_State *L) {
  Editor *e = check(L);
  HistEvent event;
  const char *text = luaL_checkstring(L, 2);
  history(e->history, &event, H_ENTER, text);
  return 0;
}

/* editor:on_complete(f): see complete() */
static int editor_on_complete(lua_State *L) {
  check(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  lua_setiuservalue(L, 1, 1);
  return 0;
}

static int editor_close(lua_State *L) {
  Editor *e = luaL_checkudata(L, 1, EDITOR);
  if (e->el) el_end(e->el);
  if (e->history) history_end(e->history);
  e->el = NULL;
  e->history = NULL;
  return 0;
}

/* Lines are decoded by the C library: a locale without UTF-8 would make `?` of every other character. */
static void choose_locale(void) {
  setlocale(LC_CTYPE, "");
  if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static void push_metatable(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"read", editor_read}, {"add", editor_add}, {"on_complete", editor_on_complete}, {"close", editor_close}, {NULL, NULL}};
  if (!luaL_newmetatable(L, EDITOR)) return;
  luaL_newlib(L, methods);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, editor_close);
  lua_setfield(L, -2, "__gc");
}

static void set_keys(EditLine *el) {
  el_set(el, EL_EDITOR, "emacs");
  el_set(el, EL_ADDFN, "perilune-complete", "Complete the word before the cursor", complete);
  el_set(el, EL_BIND, "^I", "perilune-complete", NULL);
  el_set(el, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_set(el, EL_BIND, "^W", "ed-delete-prev-word", NULL);
  el_set(el, EL_BIND, "\033[1;5D", "ed-prev-word", NULL); /* Ctrl and an arrow key */
  el_set(el, EL_BIND, "\033[1;5C", "em-next-word", NULL);
  el_source(el, NULL); /* ~/.editrc has the last word */
}

int terminal_editor(lua_State *L) {
  Editor *e = lua_newuserdatauv(L, sizeof *e, 1);
  memset(e, 0, sizeof *e);
  push_metatable(L);
  lua_setmetatable(L, -2);
  choose_locale();
  HistEvent event;
  e->history = history_init();
  e->el = e->history ? el_init("perilune", stdin, stdout, stderr) : NULL;
  if (!e->el) return lua_pushnil(L), lua_pushliteral(L, "the terminal cannot be used"), 2;
  history(e->history, &event, H_SETSIZE, HISTORY);
  history(e->history, &event, H_SETUNIQUE, 1);
  el_set(e->el, EL_CLIENTDATA, e);
  el_set(e->el, EL_SIGNAL, 0);
  el_set(e->el, EL_GETCFN, read_char);
  el_set(e->el, EL_PROMPT_ESC, prompt_of, '\1');
  el_set(e->el, EL_HIST, history, e->history);
  set_keys(e->el);
  return 1;
}
#else
typedef int terminal_editor_is_absent; /* ISO C wants a declaration in every file */
#endif
