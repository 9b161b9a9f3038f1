/* SPDX-License-Identifier: MIT
 * A process that has as many maps as the system allows: blocks in the middle of a map cannot be unmapped then, and their memory must
 * go back all the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/perilune.h"

enum { BLOCKS = 32, SIZE = 4 << 20, MAPS = 1 << 18 /* above: a machine without the usual limit */ };

/* Bytes of this process that are in memory. */
static int64_t resident(void) {
  long long size = 0, pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f) return -1;
  const int n = fscanf(f, "%lld %lld", &size, &pages);
  fclose(f);
  return n == 2 ? (int64_t)pages * sysconf(_SC_PAGESIZE) : -1;
}

/* Makes maps until there may be no more: every second page of a range is one of its own. false: there is no such limit. */
static bool fill_up(void) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *p = mmap(NULL, MAPS * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  for (size_t i = 1; i < MAPS; i += 2)
    if (mprotect(p + i * page, page, PROT_READ) != 0) return true;
  return false;
}

int main(void) {
  const char *sanitizer = getenv("PERILUNE_SANITIZE"); /* its runtime wants maps, too */
  if (sanitizer && *sanitizer) return 77;
  PlTensor *t[BLOCKS];
  const int64_t shape[1] = {SIZE};
  for (int i = 0; i < BLOCKS; i++) {
    if (pl_tensor_empty(&t[i], PL_U8, 1, shape) != PL_OK) return fprintf(stderr, "%s\n", pl_message()), 1;
    memset(pl_tensor_data(t[i]), i + 1, SIZE);
  }
  if (resident() < 0 || !fill_up()) return 77;
  const int64_t before = resident();
  for (int i = 1; i < BLOCKS; i += 2) pl_tensor_release(t[i]);
  pl_memory_trim();
  const int64_t back = before - resident();
  int bad = 0;
  if (back < (int64_t)(BLOCKS / 2 - 2) * SIZE)
    bad = fprintf(stderr, "%lld bytes went back of %lld\n", (long long)back, (long long)(BLOCKS / 2) * SIZE);
  for (int i = 0; i < BLOCKS; i += 2) { /* nobody else's memory did */
    const uint8_t *x = pl_tensor_data(t[i]);
    for (int k = 0; k < SIZE; k++)
      if (x[k] != i + 1) return fprintf(stderr, "block %d has other values\n", i), 1;
    pl_tensor_release(t[i]);
  }
  return bad != 0;
}
