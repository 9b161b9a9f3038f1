/* SPDX-License-Identifier: MIT
 * See library.h. */
#include "kernels/cpu/library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernel.h"

void *plk_library_open(const char *name) {
  const char *which = getenv("PERILUNE_LIBRARIES");
  if (which && strcmp(which, "none") == 0) return NULL;
  return dlopen(name, RTLD_LAZY | RTLD_LOCAL);
}

void *plk_openblas_open(const char *name) {
  static const char variable[] = "OPENBLAS_CORETYPE";
  void *h = plk_library_open(name);
  const char *(*core)(void) = NULL;
  if (h) *(void **)&core = dlsym(h, "openblas_get_corename");
  const char level = plk_isa()[1];
  if (!core || getenv(variable)) return h;
  const bool plain = strcmp(core(), "Prescott") == 0, none_wider = plain || strcmp(core(), "Nehalem") == 0;
  const char *wanted = level == '4' && plain         ? "SkylakeX"
                       : level == '3' && plain       ? "Haswell"
                       : level == '2' && !none_wider ? "Nehalem"
                                                     : NULL;
  if (!wanted) return h;
  dlclose(h);
  setenv(variable, wanted, 0); /* read when it is loaded, and only then */
  h = plk_library_open(name);
  unsetenv(variable);
  return h;
}
