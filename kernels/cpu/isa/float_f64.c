/* SPDX-License-Identifier: MIT
 * f64 loops of one ISA level. */
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath.h"

#define T double
#define F(f) f##_f64
#define K(c) ((double)(c))
#define vm_largest_f64 1.7976931348623157e308
#define TABLE PLK_SUFFIX(plk_ew_f64)
#define EXTRA_LOOPS P1(SIGNBIT, vm_bits_f64(x) >> 63)
#define EXTRA_TABLE [PLK_EW_SIGNBIT] = loop_SIGNBIT,
#include "kernels/cpu/isa/activation.h"
#include "kernels/cpu/isa/float.h"
