/* SPDX-License-Identifier: MIT
 * Finds LAPACK: OpenBLAS carries it under its Fortran names, any other liblapack does too. Nothing is linked. */
#include "kernels/cpu/linalg/lapack.h"
#include "kernels/cpu/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Written once under `once`, read-only afterwards. */
static struct {
  PlkLapack f32, f64;
  bool ready;
} lapack;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The routine `prefix``name`_, for instance dgetrf_. POSIX gives functions as void *. */
static bool find(void *lib, char prefix, const char *name, void *slot) {
  char symbol[16];
  snprintf(symbol, sizeof symbol, "%c%s_", prefix, name);
  *(void **)slot = dlsym(lib, symbol);
  return *(void **)slot != NULL;
}

static bool find_all(void *lib, char prefix, PlkLapack *l) {
  return find(lib, prefix, "getrf", &l->getrf) && find(lib, prefix, "getri", &l->getri) && find(lib, prefix, "getrs", &l->getrs) &&
         find(lib, prefix, "trsm", &l->trsm) && find(lib, prefix, "potrf", &l->potrf) && find(lib, prefix, "pstrf", &l->pstrf) &&
         find(lib, prefix, "gelqf", &l->gelqf) && find(lib, prefix, "orglq", &l->orglq) && find(lib, prefix, "gesdd", &l->gesdd) &&
         find(lib, prefix, "syevd", &l->syevd) && find(lib, prefix, "geev", &l->geev);
}

static void open_library(void) {
  static const char *const names[] = {
#ifdef PLK_OPENBLAS_PATH
      PLK_OPENBLAS_PATH, /* the flavour that the configure step found */
#endif
      "libopenblas.so.0", "liblapack.so.3", NULL};
  for (int i = 0; names[i] && !lapack.ready; i++) {
    void *lib = plk_openblas_open(names[i]);
    if (!lib) continue;
    lapack.ready = find_all(lib, 's', &lapack.f32) && find_all(lib, 'd', &lapack.f64);
    if (!lapack.ready) {
      dlclose(lib);
      continue;
    }
    int (*flavour)(void) = NULL;
    void (*threads)(int) = NULL;
    *(void **)&flavour = dlsym(lib, "openblas_get_parallel");
    *(void **)&threads = dlsym(lib, "openblas_set_num_threads");
    if (flavour && threads && flavour() == 1) threads(1); /* pthreads: a team of its own */
  }
}

PlStatus plk_lapack_get(const char *op, PlDtype dtype, const PlkLapack **out) {
  pthread_once(&once, open_library);
  if (!lapack.ready)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: needs LAPACK, which was not found; install OpenBLAS (Debian: libopenblas0-openmp)", op);
  *out = dtype == PL_F64 ? &lapack.f64 : &lapack.f32;
  return PL_OK;
}

int plk_lapack_enter(void) {
#ifdef _OPENMP
  const int n = omp_in_parallel() ? 0 : omp_get_max_threads();
  if (n > 1) omp_set_num_threads(1);
  return n;
#else
  return 0;
#endif
}

void plk_lapack_leave(int state) {
#ifdef _OPENMP
  if (state > 1) omp_set_num_threads(state);
#else
  (void)state;
#endif
}
