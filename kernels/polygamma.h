/* SPDX-License-Identifier: MIT
 * Special functions that are too rare for the elementwise family. */
#ifndef PL_KERNELS_POLYGAMMA_H
#define PL_KERNELS_POLYGAMMA_H

#include "kernels/kernel.h"

/* attribute 0: the order n ≥ 0. Contiguous floats. */
PlStatus plk_cpu_polygamma(const PlkCall *call);

#endif
