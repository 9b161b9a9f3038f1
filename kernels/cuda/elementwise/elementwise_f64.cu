/* SPDX-License-Identifier: MIT
 * Elementwise ops of f64. */
#include "kernels/cuda/elementwise/elementwise_float.h"

PlStatus plc_ew_f64(const PlkCall *call) { return ew_floating<double>(call); }
