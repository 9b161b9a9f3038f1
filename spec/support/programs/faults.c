/* SPDX-License-Identifier: MIT
 * For tests, by LD_PRELOAD: system calls on files below a folder, and allocations that perilune's modules make, fail where
 * they are told to. The script says where by reading environment variables that do not exist: os.getenv "faults KIND N
 * COUNT" lets the calls N … N + COUNT - 1 from now on fail (from 0 on; COUNT 0: all from N on) and returns nothing;
 * os.getenv "faults ?" returns how many calls were counted and how many failed since. Kinds: EIO ENOSPC EINTR (a call is
 * not made and says so), SHORT (reads and writes of half the bytes), MALLOC, INT (Ctrl-C comes with the allocation N, of which
 * nothing fails), KILL (the process ends there), OFF. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum Kind { OFF, FAIL, SHORT, MEMORY, INTERRUPT, END };

static enum Kind kind;
static int failing_errno;
static long from, count, seen, failed;
static char report[64];
static const char *folder; /* PERILUNE_FAULTS: calls on paths below it are counted */
static bool watched[1024]; /* file descriptors of such files */

#define REAL(name) ((__typeof__(name) *)real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static void *engine; /* the module */

/* As the prompt's handler of SIGINT does it, and what takes it back. */
static void interrupt(bool on) {
  static bool (*ask)(bool);
  if (!ask && engine) *(void **)&ask = dlsym(engine, "perilune_interrupt");
  if (ask) (void)ask(on);
}

/* ---- told by the script ---------------------------------------------------------------------------------------- */

static void arm(const char *text) {
  static const struct {
    const char *name;
    enum Kind kind;
    int code;
  } kinds[] = {{"OFF", OFF, 0},     {"EIO", FAIL, EIO},    {"ENOSPC", FAIL, ENOSPC}, {"EINTR", FAIL, EINTR},
               {"SHORT", SHORT, 0}, {"MALLOC", MEMORY, 0}, {"INT", INTERRUPT, 0},    {"KILL", END, 0}};
  char word[16] = "";
  kind = OFF;
  interrupt(false);
  from = count = seen = failed = 0;
  if (sscanf(text, "%15s %ld %ld", word, &from, &count) < 1) return;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(word, kinds[i].name) == 0) {
      kind = kinds[i].kind;
      failing_errno = kinds[i].code;
    }
}

EXPORT char *getenv(const char *name) {
  if (strncmp(name, "faults ", 7) != 0) return REAL(getenv)(name);
  if (name[7] == '?') {
    snprintf(report, sizeof report, "%ld %ld", seen, failed);
    return report;
  }
  arm(name + 7);
  return NULL;
}

/* Whether the call that is counted here is one of those that shall fail. */
static bool due(void) {
  const long n = seen++;
  if (n < from || (count > 0 && n >= from + count)) return false;
  failed++;
  if (kind == END) raise(SIGKILL);
  return true;
}

static bool fails(void) {
  if ((kind != FAIL && kind != END) || !due()) return false;
  errno = failing_errno;
  return true;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

static bool below(const char *path) {
  if (!folder) folder = REAL(getenv)("PERILUNE_FAULTS");
  return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}
static bool is_watched(int fd) { return fd >= 0 && fd < 1024 && watched[fd]; }

static int opened(const char *path, int flags, mode_t mode) {
  const bool mine = below(path);
  if (mine && fails()) return -1;
  const int fd = REAL(open)(path, flags, mode);
  if (fd >= 0 && fd < 1024) watched[fd] = mine;
  return fd;
}

EXPORT int open(const char *path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
  va_end(ap);
  return opened(path, flags, mode);
}
int __open_2(const char *path, int flags);
EXPORT int __open_2(const char *path, int flags) { return opened(path, flags, 0); }

EXPORT int close(int fd) {
  const bool bad = is_watched(fd) && fails();
  if (is_watched(fd)) watched[fd] = false;
  const int rc = REAL(close)(fd); /* also then it is closed, as Linux does it */
  if (bad) errno = failing_errno;
  return bad ? -1 : rc;
}

/* How many of n bytes a read or write may move; 0: it fails. */
static size_t share(int fd, size_t n) {
  if (!is_watched(fd)) return n;
  if (kind == SHORT) return n > 1 && due() ? n / 2 : n;
  return fails() ? 0 : n;
}

#define MOVE(type, name, params, args)         \
  EXPORT type name params {                    \
    const size_t m = n > 0 ? share(fd, n) : n; \
    if (n > 0 && m == 0) return -1;            \
    return REAL(name) args;                    \
  }
MOVE(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, m))
MOVE(ssize_t, read, (int fd, void *p, size_t n), (fd, p, m))
MOVE(ssize_t, pread, (int fd, void *p, size_t n, off_t at), (fd, p, m, at))
MOVE(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t at), (fd, p, m, at))

/* Those of FORTIFY. */
ssize_t __read_chk(int fd, void *p, size_t n, size_t room);
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room);
EXPORT ssize_t __read_chk(int fd, void *p, size_t n, size_t room) { return n > room ? (abort(), 0) : read(fd, p, n); }
EXPORT ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room) { return n > room ? (abort(), 0) : pread(fd, p, n, at); }

EXPORT int fsync(int fd) { return is_watched(fd) && fails() ? -1 : REAL(fsync)(fd); }
EXPORT int fchmod(int fd, mode_t mode) { return is_watched(fd) && fails() ? -1 : REAL(fchmod)(fd, mode); }
EXPORT int fstat(int fd, struct stat *st) { return is_watched(fd) && fails() ? -1 : REAL(fstat)(fd, st); }
EXPORT int rename(const char *a, const char *b) { return below(a) && fails() ? -1 : REAL(rename)(a, b); }

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* Code of perilune's modules, not of the libraries that they use: those are not ours to mend. */
typedef struct Range {
  uintptr_t begin, end;
} Range;
static Range ours[4];
static int nours;

static int find_ours(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  if (!strstr(info->dlpi_name, "perilune/engine.so") || nours > 0) return 0;
  engine = dlopen(info->dlpi_name, RTLD_NOLOAD | RTLD_NOW);
  for (int i = 0; i < info->dlpi_phnum && nours < 4; i++) {
    const ElfW(Phdr) *h = &info->dlpi_phdr[i];
    if (h->p_type == PT_LOAD && (h->p_flags & PF_X))
      ours[nours++] = (Range){info->dlpi_addr + h->p_vaddr, info->dlpi_addr + h->p_vaddr + h->p_memsz};
  }
  return 0;
}

static bool no_memory(void *caller) {
  static __thread bool inside;
  if ((kind != MEMORY && kind != INTERRUPT) || inside) return false;
  inside = true;
  if (nours == 0) dl_iterate_phdr(find_ours, NULL);
  bool mine = false;
  for (int i = 0; i < nours; i++) mine |= (uintptr_t)caller >= ours[i].begin && (uintptr_t)caller < ours[i].end;
  inside = false;
  if (!mine || !due()) return false;
  if (kind == INTERRUPT) {
    interrupt(true);
    return false;
  }
  errno = ENOMEM;
  return true;
}

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t a, size_t b);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
#define CALLER __builtin_return_address(0)
EXPORT void *malloc(size_t n) { return no_memory(CALLER) ? NULL : __libc_malloc(n); }
EXPORT void *calloc(size_t a, size_t b) { return no_memory(CALLER) ? NULL : __libc_calloc(a, b); }
EXPORT void *realloc(void *p, size_t n) { return no_memory(CALLER) ? NULL : __libc_realloc(p, n); }
EXPORT void *aligned_alloc(size_t align, size_t n) { return no_memory(CALLER) ? NULL : __libc_memalign(align, n); }
EXPORT char *strdup(const char *s) {
  const size_t n = strlen(s) + 1;
  char *p = no_memory(CALLER) ? NULL : __libc_malloc(n);
  return p ? memcpy(p, s, n) : NULL;
}
EXPORT char *strndup(const char *s, size_t most) {
  const size_t n = strnlen(s, most);
  char *p = no_memory(CALLER) ? NULL : __libc_malloc(n + 1);
  if (!p) return NULL;
  p[n] = '\0';
  return memcpy(p, s, n);
}
