/* SPDX-License-Identifier: MIT
 * See file_map.h. One thread of the process waits for the kernel's word that somebody wants to write a file (SIGIO, sent to that
 * thread alone, which has it blocked: handlers of the embedding program see nothing of it). It copies all maps of the file, and
 * gives up the lease; then the other program goes on. */
#include "engine/tensor/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/tensor/alloc.h"
#include "engine/tensor/tensor.h"

#ifdef F_SETLEASE
#include <sys/syscall.h>
#include <sys/vfs.h>

typedef struct Map {
  struct Map *next;
  char *begin; /* of the pages */
  size_t size;
  char *data;
  PlFileLease *lease;
  bool own; /* memory that has nothing to do with the file any more */
} Map;

struct PlFileLease {
  struct PlFileLease *next;
  int fd, refs;
  pid_t pid; /* whose it is: a forked child has the same open file, and would take its parent's promise away */
  bool over; /* the file may be changed: its maps are copies */
};

enum { BUCKETS = 1024 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;
static struct {
  Map *map[BUCKETS];
  PlFileLease *lease;
  int64_t bytes;
  pid_t pid, watcher; /* the process of the watching thread, and its number; watcher -1: it cannot be had */
} maps;

static Map **bucket(const void *data) { return &maps.map[((uintptr_t)data >> 12) * 2654435761u % BUCKETS]; }

/* ---- the watching thread ------------------------------------------------------------------------------------------------ */

/* Memory of this process's own, with the values that the map has, takes the map's place at once. A truncated file takes private
 * copies of its pages away, too, so it is not enough to have these. Under the lock. */
static PlStatus make_private(Map *m) {
  if (m->own) return PL_OK;
  char *copy = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) PL_FAIL(PL_ERR_OOM, "out of memory for a copy of %zu bytes of a file", m->size);
  madvise(copy, m->size, MADV_HUGEPAGE);
  memcpy(copy, m->begin, m->size);
  if (mremap(copy, m->size, m->size, MREMAP_MAYMOVE | MREMAP_FIXED, m->begin) == MAP_FAILED) {
    pl_pages_end(copy, m->size);
    PL_FAIL(PL_ERR_OOM, "out of memory for a copy of %zu bytes of a file", m->size);
  }
  m->own = true;
  return PL_OK;
}

/* Where memory fails the lease stays: the other program waits until the kernel takes it back (45 s, /proc/sys/fs/lease-break-time). */
static void let_go(PlFileLease *l) {
  PlStatus s = PL_OK;
  for (int b = 0; b < BUCKETS; b++)
    for (Map *m = maps.map[b]; m; m = m->next)
      if (m->lease == l && make_private(m) != PL_OK) s = PL_ERR_OOM;
  l->over = true;
  if (s == PL_OK) fcntl(l->fd, F_SETLEASE, F_UNLCK);
  else fprintf(stderr, "perilune: no memory to keep tensors of a file that another program changes: their values will change, too\n");
}

static void *watch(void *unused) {
  sigset_t signals;
  (void)unused;
  sigemptyset(&signals);
  sigaddset(&signals, SIGIO);
  pthread_mutex_lock(&lock);
  maps.watcher = (pid_t)syscall(SYS_gettid);
  pthread_cond_broadcast(&begun);
  pthread_mutex_unlock(&lock);
  for (;;) {
    siginfo_t info;
    sigwaitinfo(&signals, &info);
    pthread_mutex_lock(&lock); /* signals of one kind merge: all leases are looked at */
    for (PlFileLease *l = maps.lease; l; l = l->next)
      if (!l->over && l->pid == maps.pid && fcntl(l->fd, F_GETLEASE) != F_RDLCK) let_go(l);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

/* Under the lock. A forked child has none, and begins its own. */
static bool watched(void) {
  if (maps.watcher && maps.pid == getpid()) return maps.watcher > 0;
  if (!maps.pid) pthread_atfork(before_fork, after_fork, after_fork);
  maps.pid = getpid();
  maps.watcher = 0;
  sigset_t all, before;
  sigfillset(&all);
  pthread_t thread;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&detached, 1 << 18);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = pthread_create(&thread, &detached, watch, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&detached);
  if (rc != 0) maps.watcher = -1;
  while (maps.watcher == 0) pthread_cond_wait(&begun, &lock);
  return maps.watcher > 0;
}

/* ---- leases --------------------------------------------------------------------------------------------------------------- */

/* File systems whose files change through this kernel alone; others would break the promise: NFS, 9p, FUSE … */
static bool is_local(int fd) {
  static const unsigned long known[] = {0xef53 /* ext */,
                                        0x58465342 /* xfs */,
                                        0x9123683e /* btrfs */,
                                        0x01021994 /* tmpfs */,
                                        0xf2f52010,
                                        0x794c7630 /* overlayfs */,
                                        0x2fc12fc1 /* zfs */,
                                        0xca451a4e /* bcachefs */,
                                        0x73717368,
                                        0xe0f5e1e2 /* erofs */,
                                        0x858458f6 /* ramfs */};
  struct statfs s;
  int rc;
  do rc = fstatfs(fd, &s);
  while (rc != 0 && errno == EINTR);
  if (rc != 0) return false;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if ((unsigned long)s.f_type == known[i]) return true;
  return false;
}

/* The promise for an open file; NULL where there is none to have. Keeps a descriptor of its own. */
static PlFileLease *lease_of(int fd) {
  if (!is_local(fd)) return NULL;
  PlFileLease *l = calloc(1, sizeof *l);
  int own = l ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
  pthread_mutex_lock(&lock);
  bool have = own >= 0 && watched();
  if (have) { /* whom to tell comes before the lease: no signal goes to the process */
    const struct f_owner_ex owner = {.type = F_OWNER_TID, .pid = maps.watcher};
    have = fcntl(own, F_SETSIG, SIGIO) == 0 && fcntl(own, F_SETOWN_EX, &owner) == 0 && fcntl(own, F_SETLEASE, F_RDLCK) == 0;
  }
  if (have) {
    l->fd = own;
    l->refs = 1;
    l->pid = maps.pid;
    l->next = maps.lease;
    maps.lease = l;
  }
  pthread_mutex_unlock(&lock);
  if (have) return l;
  if (own >= 0) close(own);
  free(l);
  return NULL;
}

/* Under the lock. */
static void drop(PlFileLease *l) {
  if (--l->refs) return;
  PlFileLease **at = &maps.lease;
  while (*at != l) at = &(*at)->next;
  *at = l->next;
  if (!l->over && l->pid == getpid()) fcntl(l->fd, F_SETLEASE, F_UNLCK); /* forked children may have the descriptor, too */
  close(l->fd);
  free(l);
}

void pl_file_maps_end(PlFileMaps *f) {
  if (!f->lease) return;
  pthread_mutex_lock(&lock);
  drop(f->lease);
  f->lease = NULL;
  pthread_mutex_unlock(&lock);
}

/* ---- maps ------------------------------------------------------------------------------------------------------------------- */

static void *map(PlFileLease *l, int64_t at, size_t n) {
  const int64_t page = sysconf(_SC_PAGESIZE), from = at / page * page;
  Map *m = malloc(sizeof *m);
  if (!m) return NULL;
  struct stat st;
  pthread_mutex_lock(&lock); /* the lease stands until the map is in the list */
  char *begin = MAP_FAILED;
  m->size = n + (size_t)(at - from);
  if (!l->over && l->pid == getpid() && fcntl(l->fd, F_GETLEASE) == F_RDLCK && fstat(l->fd, &st) == 0 &&
      (int64_t)st.st_size - at >= (int64_t)n)
    begin = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, l->fd, (off_t)from);
  if (begin != MAP_FAILED) {
    m->begin = begin;
    m->data = begin + (at - from);
    m->lease = l;
    m->own = false;
    m->next = *bucket(m->data);
    *bucket(m->data) = m;
    l->refs++;
    maps.bytes += (int64_t)n;
  }
  pthread_mutex_unlock(&lock);
  if (begin != MAP_FAILED) return m->data;
  free(m);
  return NULL;
}

PlStatus pl_file_map_own(void *data) {
  pthread_mutex_lock(&lock);
  Map *m = *bucket(data);
  while (m->data != data) m = m->next;
  const PlStatus s = make_private(m);
  pthread_mutex_unlock(&lock);
  return s;
}

void pl_file_unmap(void *data) {
  pthread_mutex_lock(&lock);
  Map **at = bucket(data);
  while ((*at)->data != data) at = &(*at)->next;
  Map *m = *at;
  *at = m->next;
  maps.bytes -= (int64_t)(m->size - (size_t)(m->data - m->begin));
  pl_pages_end(m->begin, m->size);
  drop(m->lease);
  pthread_mutex_unlock(&lock);
  free(m);
}

PlStatus pl_file_map_tensor(PlTensor **out, PlFileMaps *f, int fd, int64_t at, PlDtype dtype, int ndim, const int64_t *shape) {
  int64_t numel;
  size_t n;
  *out = NULL;
  PL_TRY(pl_count(ndim, shape, dtype, &numel, &n));
  if (!f->wanted || n < PL_FILE_MAP_MIN || at % (int64_t)pl_dtype_size(dtype) != 0) return PL_OK;
  if (!f->asked) f->lease = lease_of(fd);
  f->asked = true;
  void *data = f->lease ? map(f->lease, at, n) : NULL;
  return data ? pl_tensor_over(out, data, PL_OWNS_MAP, PL_CPU, dtype, ndim, shape) : PL_OK;
}

int64_t pl_file_mapped_bytes(void) {
  pthread_mutex_lock(&lock);
  int64_t n = maps.bytes;
  pthread_mutex_unlock(&lock);
  return n;
}

#else /* no leases: files are read */

void pl_file_maps_end(PlFileMaps *f) { (void)f; }
PlStatus pl_file_map_tensor(PlTensor **out, PlFileMaps *f, int fd, int64_t at, PlDtype dtype, int ndim, const int64_t *shape) {
  (void)f, (void)fd, (void)at, (void)dtype, (void)ndim, (void)shape;
  *out = NULL;
  return PL_OK;
}
PlStatus pl_file_map_own(void *data) {
  (void)data;
  return PL_OK;
}
void pl_file_unmap(void *data) { (void)data; }
int64_t pl_file_mapped_bytes(void) { return 0; }
#endif
