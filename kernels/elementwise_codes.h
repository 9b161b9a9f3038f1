/* SPDX-License-Identifier: MIT
 * The members of the elementwise family (elementwise.def): PLK_EW_ADD …, PLK_NEW of them. Apart from elementwise.h, so that a
 * new member compiles only those files anew that name members. */
#ifndef PL_KERNELS_ELEMENTWISE_CODES_H
#define PL_KERNELS_ELEMENTWISE_CODES_H

enum {
#define PLK_EW(name, nin, result) PLK_EW_##name,
#include "kernels/elementwise.def"
#undef PLK_EW
  PLK_NEW
};

#endif
