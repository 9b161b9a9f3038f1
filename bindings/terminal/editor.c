/* SPDX-License-Identifier: MIT
 * A line editor on libedit: history, completion by a Lua function, and signals as return values instead of
 * interruptions. While a line is read, the signals below are blocked except inside ppoll, so none is missed. */
#ifdef PL_HAVE_EDIT
#include "bindings/terminal/terminal.h"

#include <ctype.h>
#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
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
  size_t indent; /* blanks that the line began with by itself */
  wchar_t held;  /* the newline that waits behind OUTDENT, or 0 */
  mbstate_t shift;
  int stopped_by; /* the signal that ended the last read, or 0 */
  bool resized;   /* during this read: where the line's rows are now is not certain */
} Editor;

#define OUTDENT     L'\037'
#define OUTDENT_KEY "^_"
enum { ON_COMPLETE = 1, ON_PAINT, N_FUNCTIONS = ON_PAINT }; /* the functions of an editor, its user values */

enum { MAX_PROMPT = 128, MAX_INDENT = 64, HISTORY = 5000 };
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
    if (SIGNALS[i] == SIGWINCH) e->resized = true, el_resize(e->el);
    else if (SIGNALS[i] == SIGTSTP) suspend(e->el);
    else return e->stopped_by = SIGNALS[i], true;
  }
  return false;
}

/* Asks the editor's function for the line in colours, and shows it so. A failing function leaves the line plain. */
static void paint(Editor *e) {
  lua_State *L = e->L;
  const LineInfo *line = el_line(e->el);
  EditedLine edited = {.prompt = e->prompt,
                       .text = line->buffer,
                       .size = (size_t)(line->lastchar - line->buffer),
                       .cursor = (size_t)(line->cursor - line->buffer)};
  int top = lua_gettop(L);
  if (edited.size == 0 || e->resized || !lua_checkstack(L, 4)) return;
  if (lua_getiuservalue(L, 1, ON_PAINT) == LUA_TFUNCTION) {
    lua_pushlstring(L, edited.text, edited.size);
    if (lua_pcall(L, 1, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING) terminal_paint(&edited, lua_tostring(L, -1));
  }
  lua_settop(L, top);
}

/* The next byte: 1, 0 at the end, -1 for a signal or an error. */
static int next_byte(Editor *e, char *out) {
  sigset_t open;
  sigprocmask(SIG_BLOCK, NULL, &open);
  for (int i = 0; i < N_SIGNALS; i++) sigdelset(&open, SIGNALS[i]);
  for (;;) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&in, 1, 0) == 0) paint(e);
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
  if (e->held) {
    paint(e);
    *out = e->held;
    e->held = 0;
    return 1;
  }
  for (;;) {
    int n = next_byte(e, &byte);
    if (n <= 0) return n;
    size_t used = mbrtowc(out, &byte, 1, &e->shift);
    if (used == (size_t)-2) continue;
    if (used == (size_t)-1) {
      memset(&e->shift, 0, sizeof e->shift);
      *out = L'?';
    }
    if (e->indent > 0 && (*out == L'\n' || *out == L'\r')) {
      e->held = *out;
      *out = OUTDENT;
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
  if (!lua_checkstack(L, 8) || lua_getiuservalue(L, 1, ON_COMPLETE) != LUA_TFUNCTION) goto out;
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

/* What OUTDENT does, which comes before each newline: a line that begins with the blanks it was given and then ends a block
 * loses one step of them. It is a key because libedit draws the line anew only behind keys. */
static unsigned char outdent(EditLine *el, int key) {
  Editor *e;
  (void)key;
  el_get(el, EL_CLIENTDATA, &e);
  static const char *const closers[] = {"end", "else", "elseif", "until", "}", ")", "]"};
  enum { STEP = 2 };
  const LineInfo *line = el_line(el);
  const size_t size = (size_t)(line->lastchar - line->buffer), blanks = e->indent;
  const char *word = line->buffer + blanks;
  size_t n = 0, spaces = 0;
  while (spaces < size && line->buffer[spaces] == ' ') spaces++;
  if (blanks < STEP || spaces != blanks) return CC_NORM;
  while (blanks + n < size && (word[n] == '_' || isalnum((unsigned char)word[n]))) n++;
  if (n == 0) n = 1;
  for (size_t i = 0; i < sizeof closers / sizeof *closers; i++) {
    if (strlen(closers[i]) != n || blanks + n > size || memcmp(word, closers[i], n) != 0) continue;
    el_cursor(el, -(1 << 20)); /* to the beginning, then behind one step */
    el_cursor(el, STEP);
    el_deletestr(el, STEP);
    e->indent = 0;
    return CC_REFRESH;
  }
  return CC_NORM;
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

/* editor:read(prompt, indent = 0) → line without its newline; or nil, "end" | "interrupt" | "terminated" | "hangup". In the
 * prompt, text between two bytes 1 takes no room (colours). The line begins with `indent` blanks. */
static int editor_read(lua_State *L) {
  Editor *e = check(L);
  size_t size;
  const char *prompt = luaL_checklstring(L, 2, &size);
  lua_Integer indent = luaL_optinteger(L, 3, 0);
  if (size > MAX_PROMPT) return luaL_error(L, "the prompt is too long");
  if (indent < 0 || indent > MAX_INDENT) indent = 0;
  struct sigaction saved[N_SIGNALS];
  sigset_t mask;
  int n = 0;
  lua_settop(L, 2);
  e->L = L;
  e->prompt = prompt;
  e->stopped_by = 0;
  e->resized = false;
  e->held = 0;
  e->indent = (size_t)indent;
  memset(&e->shift, 0, sizeof e->shift);
  el_resize(e->el);
  char blanks[MAX_INDENT + 1];
  snprintf(blanks, sizeof blanks, "%*s", (int)indent, "");
  if (indent > 0) el_push(e->el, blanks);
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

static int set_function(lua_State *L, int which) {
  check(L);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  lua_setiuservalue(L, 1, which);
  return 0;
}

/* editor:on_complete(f): see complete() */
static int editor_on_complete(lua_State *L) { return set_function(L, ON_COMPLETE); }

/* editor:on_paint(f): f(line) → the line with colours (ESC [ … m) in it, or nil; see paint() */
static int editor_on_paint(lua_State *L) { return set_function(L, ON_PAINT); }

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
  static const luaL_Reg methods[] = {{"read", editor_read},         {"add", editor_add},     {"on_complete", editor_on_complete},
                                     {"on_paint", editor_on_paint}, {"close", editor_close}, {NULL, NULL}};
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
  el_set(el, EL_ADDFN, "perilune-outdent", "Take a step of blanks from a line that ends a block", outdent);
  el_set(el, EL_BIND, OUTDENT_KEY, "perilune-outdent", NULL);
  el_set(el, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_set(el, EL_BIND, "^W", "ed-delete-prev-word", NULL);
  el_set(el, EL_BIND, "\033[1;5D", "ed-prev-word", NULL); /* Ctrl and an arrow key */
  el_set(el, EL_BIND, "\033[1;5C", "em-next-word", NULL);
  el_source(el, NULL); /* ~/.editrc has the last word */
}

int terminal_editor(lua_State *L) {
  Editor *e = lua_newuserdatauv(L, sizeof *e, N_FUNCTIONS);
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
