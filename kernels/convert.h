/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/convert.h"
