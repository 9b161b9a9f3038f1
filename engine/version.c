/* SPDX-License-Identifier: MIT
 * The version, once. */
#include "engine/perilune.h"

const char *pl_version(void) { return "0.1.0"; }
