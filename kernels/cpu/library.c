/* SPDX-License-Identifier: MIT
 * See library.h. */
#include "kernels/cpu/library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *plk_library_open(const char *name) {
  const char *which = getenv("PERILUNE_LIBRARIES");
  if (which && strcmp(which, "none") == 0) return NULL;
  return dlopen(name, RTLD_LAZY | RTLD_LOCAL);
}
