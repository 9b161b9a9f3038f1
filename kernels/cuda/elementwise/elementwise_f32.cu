/* SPDX-License-Identifier: MIT
 * Elementwise ops of f32. */
#include "kernels/cuda/elementwise/elementwise_float.h"

PlStatus plc_ew_f32(const PlkCall *call) { return ew_floating<float>(call); }
