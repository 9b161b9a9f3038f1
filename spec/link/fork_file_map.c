/* SPDX-License-Identifier: MIT
 * fork_file_map: a forked child has its parent's open files, and so the leases under which tensors are parts of them. Whatever the
 * child does with its tensors and readers, another program's write afterwards changes no tensor of the parent, and none that the
 * child itself read. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/io/io.h"
#include "engine/perilune.h"
#include "engine/tensor/file_map.h"

enum { N = 1 << 16, CHILD_SECONDS = 20 };
static char path[] = "/tmp/perilune_fork_XXXXXX";

static float value(int tensor, int i) { return (float)(i % 4093 + tensor * 5000); }

/* Two tensors of N floats. */
static int write_file(void) {
  char header[256];
  int n = snprintf(header, sizeof header,
                   "{\"a\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]},\"b\":{\"dtype\":\"F32\",\"shape\":[%d],"
                   "\"data_offsets\":[%d,%d]}}",
                   N, 4 * N, N, 4 * N, 8 * N);
  while (n % 8) header[n++] = ' ';
  const uint64_t size = (uint64_t)n;
  FILE *f = fopen(path, "wb");
  if (!f) return perror(path), 1;
  int bad = fwrite(&size, 8, 1, f) != 1 || fwrite(header, (size_t)n, 1, f) != 1;
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < N; i++) {
      const float v = value(k, i);
      bad |= fwrite(&v, sizeof v, 1, f) != 1;
    }
  return fclose(f) || bad;
}

static PlTensor *part(PlSafetensors *s, int k) {
  PlTensor *t;
  return pl_safetensors_part(s, k, (int64_t[]){0}, (int64_t[]){N}, &t) == PL_OK ? t : NULL;
}
static PlSafetensors *opened(void) {
  PlSafetensors *s;
  if (pl_safetensors_open(&s, path) != PL_OK) return NULL;
  pl_safetensors_map(s);
  return s;
}
static int differs(const PlTensor *t, int k) {
  const float *x = t ? pl_tensor_data(t) : NULL;
  for (int i = 0; i < N; i++)
    if (!x || x[i] != value(k, i)) return 1;
  return 0;
}
/* As another program does it: waits until nobody minds. */
static int change(int cut) {
  int fd = open(path, O_WRONLY | (cut ? O_TRUNC : 0));
  if (fd < 0) return perror(path), 1;
  static char zeros[8 * N];
  int bad = !cut && write(fd, zeros, sizeof zeros) != (ssize_t)sizeof zeros;
  return close(fd) || bad;
}

/* What a child may do; a and s are its parent's. Exits. */
static _Noreturn void child(int what, int cut, PlTensor *a, PlSafetensors *s) {
  alarm(CHILD_SECONDS);
  int bad = 0;
  if (what == 1 || what == 4) pl_tensor_release(a);
  if (what == 1 || what == 2) pl_safetensors_release(s);
  if (what == 3) { /* from its parent's reader: nobody would tell the child */
    PlTensor *b = part(s, 1);
    bad = change(cut) || differs(b, 1);
    pl_tensor_release(b);
  }
  if (what == 4) { /* a reader of its own, whose lease another thread of the child's watches */
    PlSafetensors *own = opened();
    PlTensor *b = own ? part(own, 1) : NULL;
    bad = !own || change(cut) || differs(b, 1);
    pl_tensor_release(b);
    pl_safetensors_release(own);
  }
  _exit(bad);
}

static int one(int what, int cut) {
  if (write_file()) return 1;
  PlSafetensors *s = opened();
  PlTensor *a = s ? part(s, 0) : NULL;
  if (!a) return fprintf(stderr, "%s\n", pl_message()), 1;
  if (pl_file_mapped_bytes() == 0) {
    puts("skipped: no leases on this file system");
    remove(path);
    exit(77);
  }
  pid_t p = fork();
  if (p < 0) return perror("fork"), 1;
  if (p == 0) child(what, cut, a, s);
  int status;
  if (waitpid(p, &status, 0) != p || status != 0) return fprintf(stderr, "child %d, cut %d: status %x\n", what, cut, status), 1;
  if (change(cut) || differs(a, 0)) return fprintf(stderr, "child %d, cut %d: the parent's tensor changed\n", what, cut), 1;
  pl_tensor_release(a);
  pl_safetensors_release(s);
  return 0;
}

int main(void) {
  int bad = 0, fd = mkstemp(path);
  if (fd < 0) return perror(path), 1;
  close(fd);
  for (int what = 0; what < 5; what++)
    for (int cut = 0; cut < 2; cut++) bad |= one(what, cut);
  remove(path);
  return bad;
}
