/* SPDX-License-Identifier: MIT
 * The names in a folder. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/io/file.h"

typedef struct Text {
  char *s;
  size_t n, room;
} Text;

static bool append(Text *t, const char *s, size_t n) {
  if (t->room - t->n < n) {
    size_t room = t->room * 2 + n + 4096;
    char *p = realloc(t->s, room);
    if (!p) return false;
    t->s = p;
    t->room = room;
  }
  memcpy(t->s + t->n, s, n);
  t->n += n;
  return true;
}

/* 'd' folder, 'f' regular file, '?' anything else; symbolic links count as what they lead to. */
static char kind_of(DIR *dir, const struct dirent *e) {
  if (e->d_type == DT_DIR) return 'd';
  if (e->d_type == DT_REG) return 'f';
  struct stat st;
  if ((e->d_type != DT_LNK && e->d_type != DT_UNKNOWN) || fstatat(dirfd(dir), e->d_name, &st, 0) != 0) return '?';
  return S_ISDIR(st.st_mode) ? 'd' : S_ISREG(st.st_mode) ? 'f' : '?';
}

PlStatus pl_folder_list(const char *path, char **out, size_t *n) {
  DIR *dir = opendir(path);
  if (!dir) return pl_file_fail("open the folder", path, errno);
  Text t = {.s = NULL};
  PlStatus st = PL_OK;
  for (;;) {
    errno = 0;
    const struct dirent *e = readdir(dir);
    if (!e) break;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    char kind = kind_of(dir, e);
    if (append(&t, &kind, 1) && append(&t, e->d_name, strlen(e->d_name) + 1)) continue;
    st = pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory for the list of files", path));
    break;
  }
  if (st == PL_OK && errno) st = pl_file_fail("read the folder", path, errno);
  closedir(dir);
  if (st != PL_OK) {
    free(t.s);
    return st;
  }
  *out = t.s;
  *n = t.n;
  return PL_OK;
}
