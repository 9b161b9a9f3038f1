/* SPDX-License-Identifier: MIT
 * Rows of attention in double: f64. */
#include "kernels/cpu/attention/attention.h"

#include <string.h>

#include "kernels/cpu/shape/transpose.h"

#define T       double
#define LOOPS   f64
#define NAME(x) x##_f64
#include "kernels/cpu/attention/attention_body.h"
