/* SPDX-License-Identifier: MIT
 * Plug-ins are beside the module (or program) that the engine is part of, or where the linker looks. */
#ifndef PL_ENGINE_DEVICE_PLUGIN_H
#define PL_ENGINE_DEVICE_PLUGIN_H

/* dlopen of `file` there; NULL: dlerror() says why. */
void *pl_plugin_open(const char *file, int flags);

#endif
