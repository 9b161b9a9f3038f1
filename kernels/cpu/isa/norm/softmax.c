/* SPDX-License-Identifier: MIT
 * Inner loops of softmax over contiguous rows, compiled once per ISA level. A row is read from memory once and stays in the
 * first cache for the further passes. softmax_body.h has the loops; here they are made for float and double. */
#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/norm/row_sums.h"
#include "kernels/cpu/isa/short_rows.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vmath/vmath.h"

/* e^x for x <= 0 (a little above is fine too), 0 where it would fall under 2^-125; the general function
 * spends a quarter more on its range. No infinite x but -inf. */
static inline __attribute__((always_inline)) float exp_neg_f32(float x) {
  const float t = vm_fma_f32(x, (float)VM_LOG2E, VM_RINT_F32), n = t - VM_RINT_F32;
  const float r = vm_fma_f32(n, -VM_LN2_LO_F32, vm_fma_f32(n, -VM_LN2_HI_F32, x));
  const float p = vm_fma_f32(r * r, vm_expq_f32(r), r) + 1.0f;
  const float y = p * vm_from_f32((vm_bits_f32(t) << 23) + 0x3f800000u);
  return x < -86.6f ? 0.0f : y;
}

#define T      float
#define SFX    f32
#define EXPF   vm_exp_f32
#define EXPNEG exp_neg_f32
#define LOG    vm_log_f64 /* within an ULP of double, which float does not see */
#include "kernels/cpu/isa/norm/softmax_body.h"
#undef T
#undef SFX
#undef EXPF
#undef EXPNEG
#undef LOG

#define T      double
#define SFX    f64
#define EXPF   vm_exp_f64
#define EXPNEG vm_exp_f64
#define LOG    log
#include "kernels/cpu/isa/norm/softmax_body.h"

#define TABLE(s)                                                                                                               \
  softmax_rows_##s, log_softmax_rows_##s, softmax_bwd_rows_##s, log_softmax_bwd_rows_##s, lse_rows_##s, lse_dual_##s, exp_##s, \
      softmax_dual_##s, log_softmax_dual_##s, sum_##s
static void log_of(double *v, int64_t n) {
  for (int64_t i = 0; i < n; i++) v[i] = vm_log_f64(v[i]);
}

extern const PlkSoftmaxLoops PLK_ISA_NAME(plk_softmax_table);
const PlkSoftmaxLoops PLK_ISA_NAME(plk_softmax_table) = {TABLE(f32), TABLE(f64), log_of};
