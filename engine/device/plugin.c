/* SPDX-License-Identifier: MIT
 * Where plug-ins are found: see plugin.h. */
#include "engine/device/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char here = 0; /* dladdr finds this file by it */

void *pl_plugin_open(const char *file, int flags) {
  char path[4096];
  Dl_info me;
  if (dladdr(&here, &me) && me.dli_fname) {
    const char *slash = strrchr(me.dli_fname, '/');
    int dir = slash ? (int)(slash - me.dli_fname) + 1 : 0;
    if (snprintf(path, sizeof path, "%.*s%s", dir, me.dli_fname, file) < (int)sizeof path) {
      void *lib = dlopen(path, flags);
      if (lib) return lib;
      FILE *there = fopen(path, "rb"); /* it is there and does not load: that message counts */
      if (there) {
        fclose(there);
        (void)dlopen(path, flags);
        return NULL;
      }
    }
  }
  return dlopen(file, flags);
}
