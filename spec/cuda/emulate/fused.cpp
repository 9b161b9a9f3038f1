// SPDX-License-Identifier: MIT
// For tests: the table of fused groups (kernels/fused.h) without NVRTC. The very text that NVRTC would get is compiled by a
// C++ compiler, opened, and run by the threads of an emulated launch: what they ask of the emulation goes through a table.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"
#include "lent.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/libs/fused_source.h"
extern "C" {
#include "kernels/cuda/libs/libs.h"
}

struct PlkFusedKernel {
  PlkFusedKernel *next;
  char *source;
  void (*run)(const Lent *l, const PlcFusedArgs *a);
  PlkFused group;
};
static PlkFusedKernel *all;

static const char behind[] =
    "void plce_barrier(void) { lent.barrier(); }\nvoid plce_warp_barrier(unsigned m) { lent.warp_barrier(m); }\n"
    "void plce_swap(unsigned m, const void *v, size_t n, int from, void *out) { lent.swap(m, v, n, from, out); }\n"
    "unsigned plce_ballot(unsigned m, int v) { return lent.ballot(m, v); }\nint plce_lane(void) { return lent.lane(); }\n"
    "extern \"C\" __attribute__((visibility(\"default\"))) void plc_fused_run(const Lent *l, const FusedArgs *a) {\n"
    "  lent = *l;\n  plc_fused(*a);\n}\n";

/* Where a kernel lies that another process compiled, or "". The build empties that folder when it compiles fused_before.h, and so
 * whenever a header of generated kernels, the flags or the emulation's table changed. */
static void kept_as(const char *source, char *path, size_t room) {
  uint64_t h[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
  const char *parts[] = {source, behind};
  for (const char *p : parts) {
    for (; *p; p++) {
      h[0] = (h[0] ^ (unsigned char)*p) * 0x100000001b3u;
      h[1] = (h[1] + (unsigned char)*p) * 0x9e3779b97f4a7c15u, h[1] ^= h[1] >> 29;
    }
  }
  const int n = snprintf(path, room, "%s/%016llx%016llx.so", PLC_FUSED_KEPT, (unsigned long long)h[0], (unsigned long long)h[1]);
  if (PLC_FUSED_KEPT[0] == 0 || n < 0 || (size_t)n >= room) path[0] = 0;
}

static bool compile(const char *source, void **lib) {
  char base[] = "/tmp/perilune-fused-XXXXXX", path[64], so[64], command[2048], kept[1024], moved[1100];
  kept_as(source, kept, sizeof kept);
  if (kept[0] && access(kept, R_OK) == 0 && (*lib = dlopen(kept, RTLD_NOW | RTLD_LOCAL))) return true;
  int fd = mkstemp(base);
  if (fd < 0) return false;
  close(fd);
  snprintf(path, sizeof path, "%s.cpp", base);
  snprintf(so, sizeof so, "%s.so", base);
  FILE *f = fopen(path, "w");
  if (f) {
    fprintf(f, "%s%s", source, behind);
    fclose(f);
    snprintf(command, sizeof command, "%s %s -nostdlib -include '%s' -shared -o %s %s 2>%s.log", PLC_CXX, PLC_FUSED_FLAGS, PLC_FUSED_BEFORE,
             so, path, base);
    if (system(command) == 0) *lib = dlopen(so, RTLD_NOW | RTLD_LOCAL);
    if (*lib && kept[0]) { /* whole at once, for others read it at any time */
      snprintf(moved, sizeof moved, "%s.%ld", kept, (long)getpid());
      snprintf(command, sizeof command, "cp '%s' '%s' 2>/dev/null", so, moved);
      if (system(command) != 0 || rename(moved, kept) != 0) unlink(moved);
    }
  }
  snprintf(command, sizeof command, "%s.log", base);
  if (*lib) unlink(command); /* what the compiler said stays beside a failure */
  unlink(so);
  unlink(path);
  unlink(base);
  return f && *lib;
}

static PlStatus make(int gpu, const PlkFused *g, const PlkFusedKernel **out) {
  char *source = NULL;
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_fused_source(g, &source));
  PlkFusedKernel *k = all;
  while (k && strcmp(k->source, source) != 0) k = k->next;
  if (k) {
    free(source);
    *out = k;
    return PL_OK;
  }
  void *lib = NULL;
  k = (PlkFusedKernel *)calloc(1, sizeof *k);
  if (!k || (!plce_idle() && !compile(source, &lib))) {
    free(k);
    free(source);
    PL_FAIL(PL_ERR_STATE, "a generated kernel does not compile");
  }
  void *run = lib ? dlsym(lib, "plc_fused_run") : NULL;
  memcpy(&k->run, &run, sizeof run);
  k->source = source;
  k->group = *g;
  k->next = all;
  all = k;
  *out = k;
  return PL_OK;
}

static PlStatus run(int gpu, const PlkFusedKernel *k, const PlkFusedRun *r) {
  static const Lent lent = {&plce_thread,      &plce_block, &plce_block_size, &plce_grid_size, plce_barrier,
                            plce_warp_barrier, plce_swap,   plce_ballot,      plce_lane};
  PlcFusedArgs a;
  int64_t blocks;
  unsigned threads;
  PL_TRY(plc_use(gpu));
  if (r->numel == 0) return PL_OK;
  plc_fused_args(&k->group, r, &a, &blocks, &threads);
  if (!k->group.rows) { // no thread waits for another: a few blocks of one are faster here
    const int64_t packs = blocks * threads;
    blocks = packs < 100 ? packs : 100, threads = 1;
  }
  PLC_TRY(plce_launch(plc_stream(), (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), threads, 0, "plc_fused", [=] { k->run(&lent, &a); }));
  return PL_OK;
}

extern "C" const void *plc_libraries_extension(const char *name) {
  static const PlkFusedTable table = {plc_fused_takes, plc_fused_takes_rows, make, run, plc_fused_source};
  if (strcmp(name, "capture") == 0) return plc_capture_table();
  if (strcmp(name, "recurrent") == 0) return plc_recurrent_table();
  if (strcmp(name, "nccl") == 0) return plc_nccl_table();
  return strcmp(name, "fused") == 0 ? &table : NULL;
}
