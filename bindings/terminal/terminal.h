/* SPDX-License-Identifier: MIT
 * perilune.terminal: what the REPL needs of the system and Lua lacks. A module of its own, so that scripts never load
 * libedit. module.c puts the parts together. */
#ifndef PL_BINDINGS_TERMINAL_TERMINAL_H
#define PL_BINDINGS_TERMINAL_TERMINAL_H

#include <lauxlib.h>
#include <lua.h>

int terminal_editor(lua_State *L);       /* editor.c: terminal.editor() → a line editor */
int terminal_history_load(lua_State *L); /* history.c */
int terminal_history_append(lua_State *L);
int terminal_list(lua_State *L); /* files.c */
int terminal_make_dirs(lua_State *L);

/* A line while it is edited: its bytes, how many of them are before the cursor, and the prompt before it, in which what is
 * between two bytes 1 takes no room. */
typedef struct EditedLine {
  const char *prompt, *text;
  size_t size, cursor;
} EditedLine;
void terminal_paint(const EditedLine *line, const char *coloured); /* paint.c: coloured is the text with colours in it */

int terminal_failure(lua_State *L, const char *path); /* pushes nil, "path: strerror", "io"; returns 3 */

#endif
