/* SPDX-License-Identifier: MIT
 * dlopen with a table of functions: see library.h. */
#include "kernels/cuda/libs/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool plc_library_open(const char *name, const char *const *files, const PlcSymbol *symbols, void *table, char *missing, size_t size) {
  void *handle = NULL;
  char why[160] = "";
  for (int i = 0; files[i] && !handle; i++) {
    handle = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (!handle && !why[0]) snprintf(why, sizeof why, "%s", dlerror());
  }
  if (!handle) {
    snprintf(missing, size, "%s was not found (%s); install it or set LD_LIBRARY_PATH", name, why);
    return false;
  }
  for (; symbols->name; symbols++) {
    void *f = dlsym(handle, symbols->name);
    if (!f) {
      snprintf(missing, size, "%s has no function %s: another version is needed", name, symbols->name);
      return false;
    }
    memcpy((char *)table + symbols->at, &f, sizeof f);
  }
  return true;
}
