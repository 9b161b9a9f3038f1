/* SPDX-License-Identifier: MIT
 * Opens oneDNN on first use, runs its primitives, and its plain matrix product. Convolutions: onednn_conv.c. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/library.h"
#include "kernels/cpu/onednn/onednn_lib.h"

const char *plk_library(int i, bool *found) {
  const char *const names[] = {plk_onednn_version(), plk_openblas_version()};
  bool (*const ready[])(void) = {plk_onednn_ready, plk_openblas_ready};
  for (int k = 0; k < 2; k++) {
    if (!names[k] || i-- > 0) continue;
    *found = ready[k]();
    return names[k];
  }
  return NULL;
}

#ifndef PLK_HAVE_ONEDNN

const char *plk_onednn_version(void) { return NULL; }
bool plk_onednn_ready(void) { return false; }

#else

#include <dlfcn.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <pthread.h>
#include <signal.h>

#define STR2(x) #x
#define STR(x)  STR2(x)
#define VERSION STR(DNNL_VERSION_MAJOR) "." STR(DNNL_VERSION_MINOR) "." STR(DNNL_VERSION_PATCH)

/* The library's entry points and its CPU engine: written once under `once`, read-only afterwards. */
static PlkDnnl lib;
static pthread_once_t once = PTHREAD_ONCE_INIT;

const PlkDnnl *plk_dnnl(void) { return &lib; }

static void open_library(void) {
  void *h = plk_library_open("libdnnl.so." STR(DNNL_VERSION_MAJOR));
  if (!h) return;
  bool all = true;
#define X(f)    all = (*(void **)&lib.f = dlsym(h, "dnnl_" #f)) != NULL && all;
  PLK_DNNL_FUNCS(X)
#undef X
  if (!all) return;
  /* PERILUNE_ISA pins the library's code too; refused (and then harmless) if code was already made. */
  const char level = plk_isa()[1];
  if (level == '2' || level == '3') lib.set_max_cpu_isa(level == '2' ? dnnl_cpu_isa_sse41 : dnnl_cpu_isa_avx2);
  if (lib.engine_create(&lib.engine, dnnl_cpu, 0) != dnnl_success) return;
  lib.ready = plk_dnnl_watch_forks();
}

const char *plk_onednn_version(void) { return "oneDNN " VERSION; }

bool plk_onednn_ready(void) {
  pthread_once(&once, open_library);
  return lib.ready;
}

/* Inside a parallel region the library is alone anyway. */
int plk_dnnl_alone(void) {
#ifdef _OPENMP
  if (omp_in_parallel()) return 0;
  int n = omp_get_max_threads();
  if (n > 1) omp_set_num_threads(1);
  return n;
#else
  return 0;
#endif
}

void plk_dnnl_alone_end(int saved) {
#ifdef _OPENMP
  if (saved > 1) omp_set_num_threads(saved);
#else
  (void)saved;
#endif
}

/* oneDNN 2.6's AVX-512 matrix product runs with its stack pointer inside a heap block: a signal handler that
 * then uses a few hundred bytes of stack overwrites the heap. So signals wait while the library computes. */
static void signals_off(sigset_t *was) {
  sigset_t most;
  sigfillset(&most);
  sigdelset(&most, SIGSEGV);
  sigdelset(&most, SIGBUS);
  sigdelset(&most, SIGFPE);
  sigdelset(&most, SIGILL);
  pthread_sigmask(SIG_BLOCK, &most, was);
}

static void signals_back(const sigset_t *was) { pthread_sigmask(SIG_SETMASK, was, NULL); }

PlStatus plk_dnnl_check(dnnl_status_t s, const char *what) {
  if (s == dnnl_success) return PL_OK;
  if (s == dnnl_out_of_memory) PL_FAIL(PL_ERR_OOM, "out of memory in oneDNN (%s)", what);
  PL_FAIL(PL_ERR_UNSUPPORTED, "oneDNN refused a %s (status %d)", what, (int)s);
}

PlStatus plk_onednn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
                          int64_t ldb, float beta, float *c, int64_t ldc) {
  int saved = plk_dnnl_alone();
  sigset_t was;
  signals_off(&was);
  dnnl_status_t s = lib.sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  signals_back(&was);
  plk_dnnl_alone_end(saved);
  return plk_dnnl_check(s, "matrix product");
}

/* Wraps the arrays, runs the primitive, drops the wrappers (they own no data). */
PlStatus plk_dnnl_execute(dnnl_primitive_t prim, const PlkDnnlArg *args, int n, const char *what) {
  dnnl_exec_arg_t ex[PLK_DNNL_ARGS];
  int made = 0;
  dnnl_stream_t stream = NULL;
  int saved = plk_dnnl_alone();
  dnnl_status_t s = lib.stream_create(&stream, lib.engine, dnnl_stream_default_flags);
  for (; made < n && s == dnnl_success; made++) {
    ex[made].arg = args[made].name;
    s = lib.memory_create(&ex[made].memory, args[made].md, lib.engine, args[made].data);
    if (s != dnnl_success) break;
  }
  if (s == dnnl_success) {
    sigset_t was;
    signals_off(&was);
    s = lib.primitive_execute(prim, stream, n, ex);
    signals_back(&was);
  }
  for (int i = 0; i < made; i++) lib.memory_destroy(ex[i].memory);
  if (stream) lib.stream_destroy(stream);
  plk_dnnl_alone_end(saved);
  return plk_dnnl_check(s, what);
}

#endif
