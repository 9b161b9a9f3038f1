/* SPDX-License-Identifier: MIT
 * Fused groups as source text (fused_source.c); no CUDA is needed to write it. */
#ifndef PL_KERNELS_CUDA_LIBS_FUSED_SOURCE_H
#define PL_KERNELS_CUDA_LIBS_FUSED_SOURCE_H

#include "kernels/fused.h"

bool plc_fused_takes(int code, PlDtype dtype, PlDtype result);
PlStatus plc_fused_source(const PlkFused *group, char **out); /* malloc'ed */

#endif
