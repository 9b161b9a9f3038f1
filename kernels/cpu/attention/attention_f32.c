/* SPDX-License-Identifier: MIT
 * Rows of attention in float: f32, and f16 and bf16 of small sizes. */
#include "kernels/cpu/attention/attention.h"

#include <string.h>

#include "kernels/cpu/shape/transpose.h"

#define T       float
#define LOOPS   f32
#define NAME(x) x##_f32
#include "kernels/cpu/attention/attention_body.h"
