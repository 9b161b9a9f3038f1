/* SPDX-License-Identifier: MIT
 * Elementwise ops of f16. */
#include "kernels/cuda/elementwise/elementwise_float.h"

PlStatus plc_ew_f16(const PlkCall *call) { return ew_floating<plc_f16>(call); }
