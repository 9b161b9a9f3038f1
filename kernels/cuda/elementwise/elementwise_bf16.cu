/* SPDX-License-Identifier: MIT
 * Elementwise ops of bf16. */
#include "kernels/cuda/elementwise/elementwise_float.h"

PlStatus plc_ew_bf16(const PlkCall *call) { return ew_floating<plc_bf16>(call); }
