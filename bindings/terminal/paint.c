/* SPDX-License-Identifier: MIT
 * Colours for the line that is being edited. libedit knows no colours: it draws the line plainly, and before a key is
 * waited for, the same characters are written over it in colours and the cursor put back, so what libedit knows of the
 * screen stays true. Where that is not certain (characters that take another room than one column, more rows than the
 * terminal has, a colouring that is not of this line), nothing is written and the line stays as libedit drew it. */
#ifdef PL_HAVE_EDIT
#include "bindings/terminal/terminal.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

typedef struct Place {
  int row, col;
} Place;

/* The length of a colour, ESC [ … m, at s; 0 if there is none. */
static size_t colour_at(const char *s) {
  if (s[0] != '\033' || s[1] != '[') return 0;
  size_t n = 2 + strspn(s + 2, "0123456789;");
  return s[n] == 'm' ? n + 1 : 0;
}

/* Columns of a prompt without what is between bytes 1; -1 where that is not certain. */
static int prompt_columns(const char *s) {
  mbstate_t shift = {0};
  int columns = 0;
  for (bool hidden = false; *s;) {
    if (*s == '\1') {
      hidden = !hidden;
      s++;
      continue;
    }
    wchar_t c;
    size_t n = mbrtowc(&c, s, strlen(s), &shift);
    if (n == 0 || n > 4) return -1;
    if (!hidden && wcwidth(c) != 1) return -1;
    columns += !hidden;
    s += n;
  }
  return columns;
}

/* The character at s: its bytes; 0 where it does not take one column. */
static size_t plain_character(const char *s, const char *end) {
  mbstate_t shift = {0};
  wchar_t c;
  size_t n = mbrtowc(&c, s, (size_t)(end - s), &shift);
  return n == 0 || n > 4 || wcwidth(c) != 1 ? 0 : n;
}

/* Where the cursor is, by libedit's rules; false where that is not certain. */
static bool cursor_place(const EditedLine *line, int width, int height, Place *cursor) {
  Place at = {0, prompt_columns(line->prompt)};
  bool wrapped = false, found = false;
  if (at.col < 0 || at.col >= width) return false;
  for (const char *s = line->text, *end = s + line->size;;) {
    if (s == line->text + line->cursor) *cursor = at, found = true;
    if (s >= end) break;
    if (*s == '\n') {
      if (wrapped) return false;
      at = (Place){at.row + 1, 0};
      s++;
      continue;
    }
    size_t n = plain_character(s, end);
    if (n == 0) return false;
    s += n;
    wrapped = ++at.col == width;
    if (wrapped) at = (Place){at.row + 1, 0};
  }
  return found && at.row < height;
}

/* Is `coloured` the line's text but for colours? */
static bool same_text(const EditedLine *line, const char *coloured) {
  size_t at = 0;
  while (*coloured) {
    size_t n = colour_at(coloured);
    if (n == 0) {
      if (at >= line->size || line->text[at++] != *coloured) return false;
      n = 1;
    }
    coloured += n;
  }
  return at == line->size;
}

static void move(char direction, int by) {
  if (by > 0) fprintf(stdout, "\033[%d%c", by, direction);
}

void terminal_paint(const EditedLine *line, const char *coloured) {
  struct winsize size;
  Place cursor = {0}, at = {0, prompt_columns(line->prompt)};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2 || !same_text(line, coloured)) return;
  if (!cursor_place(line, size.ws_col, size.ws_row, &cursor)) return;
  fputc('\r', stdout);
  move('A', cursor.row);
  move('C', at.col);
  const char *end = coloured + strlen(coloured);
  for (bool full = false; coloured < end;) {
    size_t n = colour_at(coloured);
    if (n == 0) {
      bool newline = *coloured == '\n';
      if (newline || full) fputs("\r\033[B", stdout), at.row++, at.col = 0; /* these rows exist: nothing scrolls */
      n = newline ? 1 : plain_character(coloured, end);
      if (!newline) fwrite(coloured, 1, n, stdout), at.col++;
      full = at.col == size.ws_col;
    } else {
      fwrite(coloured, 1, n, stdout);
    }
    coloured += n;
  }
  fputs("\033[0m\r", stdout);
  move('A', at.row - cursor.row);
  move('B', cursor.row - at.row);
  move('C', cursor.col);
  fflush(stdout);
}
#else
typedef int terminal_paint_is_absent; /* ISO C wants a declaration in every file */
#endif
