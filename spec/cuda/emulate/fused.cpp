// SPDX-License-Identifier: MIT
// For tests: the table of fused groups (kernels/fused.h) without NVRTC. The very text that NVRTC would get is compiled by a
// C++ compiler, opened, and run thread by thread inside of an emulated launch.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/libs/fused_source.h"
extern "C" {
#include "kernels/cuda/libs/libs.h"
}

struct PlkFusedKernel {
  PlkFusedKernel *next;
  char *source;
  void (*run)(int64_t threads, const PlcFusedArgs *a);
  PlkFused group;
};
static PlkFusedKernel *all;

// The definitions that emulate.cpp has for whole kernels; here nothing waits for anything.
static const char around[] =
    "dim3 plce_thread(0, 0, 0), plce_block(0, 0, 0), plce_block_size, plce_grid_size;\nunsigned char *plce_shared;\n"
    "void plce_barrier(void) {}\nvoid plce_warp_barrier(unsigned) {}\nunsigned char *plce_slot(int) { return 0; }\n"
    "int plce_lane(void) { return 0; }\n"
    "extern \"C\" __attribute__((visibility(\"default\"))) void plc_fused_run(int64_t threads, const FusedArgs *a) {\n"
    "  plce_grid_size = dim3((unsigned)threads);\n"
    "  for (int64_t i = 0; i < threads; i++) {\n    plce_block = dim3((unsigned)i, 0, 0);\n    plc_fused(*a);\n  }\n}\n";

static bool compile(const char *source, void **lib) {
  char base[] = "/tmp/perilune-fused-XXXXXX", path[64], so[64], command[2048];
  int fd = mkstemp(base);
  if (fd < 0) return false;
  close(fd);
  snprintf(path, sizeof path, "%s.cpp", base);
  snprintf(so, sizeof so, "%s.so", base);
  FILE *f = fopen(path, "w");
  if (f) {
    fprintf(f, "%s%s", source, around);
    fclose(f);
    snprintf(command, sizeof command,
             "%s -std=c++17 -O1 -fPIC -shared -fvisibility=hidden -fno-exceptions -fno-rtti -fno-strict-aliasing "
             "-ffp-contract=off -w -D_GNU_SOURCE '-I%s' -isystem '%s/spec/cuda/emulate' -o %s %s 2>%s.log",
             PLC_CXX, PLC_ROOT, PLC_ROOT, so, path, base);
    if (system(command) == 0) *lib = dlopen(so, RTLD_NOW | RTLD_LOCAL);
  }
  snprintf(command, sizeof command, "%s.log", base);
  if (*lib) unlink(command); /* what the compiler said stays beside a failure */
  unlink(so);
  unlink(path);
  unlink(base);
  return f && *lib;
}

static PlStatus make(const PlkFused *g, const PlkFusedKernel **out) {
  char *source = NULL;
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
  if (!k || !compile(source, &lib)) {
    free(k);
    free(source);
    PL_FAIL(PL_ERR_STATE, "a generated kernel does not compile");
  }
  void *run = dlsym(lib, "plc_fused_run");
  memcpy(&k->run, &run, sizeof run);
  k->source = source;
  k->group = *g;
  k->next = all;
  all = k;
  *out = k;
  return PL_OK;
}

static PlStatus run(const PlkFusedKernel *k, const PlkFusedRun *r) {
  PlcFusedArgs a;
  if (r->numel == 0) return PL_OK;
  const int64_t packs = plc_fused_args(&k->group, r, &a), threads = packs < 100 ? packs : 100;
  PLC_TRY(plce_launch(plc_stream(), 1, 1, 0, "plc_fused", [=] { k->run(threads, &a); }));
  return PL_OK;
}

extern "C" const void *plc_libraries_extension(const char *name) {
  static const PlkFusedTable table = {plc_fused_takes, make, run, plc_fused_source};
  if (strcmp(name, "capture") == 0) return plc_capture_table();
  return strcmp(name, "fused") == 0 ? &table : NULL;
}
