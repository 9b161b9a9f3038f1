/* SPDX-License-Identifier: MIT
 * The elementwise kernel family: one entry point a device, call->code says which member.
 * Inputs share one dtype (exceptions: elementwise.def) and broadcast against the output from the right;
 * the output's dtype is the result's. In-place (output is the very same array as an input) is fine. */
#ifndef PL_KERNELS_ELEMENTWISE_H
#define PL_KERNELS_ELEMENTWISE_H

#include "kernels/kernel.h"

enum {
#define PLK_EW(name, nin, result) PLK_EW_##name,
#include "kernels/elementwise.def"
#undef PLK_EW
  PLK_NEW
};

/* Errors: PL_ERR_DTYPE "<name>: not defined for <dtype>"; PL_ERR_ARG "<name>: integer division by zero";
 * PL_ERR_INTERRUPT. */
PlStatus plk_cpu_elementwise(const PlkCall *call);

/* The same for n >= 1 elements of f32 or f64 that lie flat, by a member of one or two inputs (one: y is x) without
 * parameters, or with all at their defaults. number: 1, 2: x, y is one value where n may be more; 0: neither is. False: it
 * has no such member; nothing was done. */
bool plk_cpu_elementwise_flat(int code, int dtype, int64_t n, void *out, const void *x, const void *y, int number);

#endif
