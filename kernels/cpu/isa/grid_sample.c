/* SPDX-License-Identifier: MIT
 * Loops of kernels/cpu/image/grid_sample.c, compiled once per ISA level; grid_sample_body.h has them. */
#include "kernels/cpu/image/grid_sample.h"

#include "kernels/cpu/isa/reduce/parts.h"
#include "kernels/cpu/vmath/vmath.h"

enum { B = PLK_GRID_BLOCK, AXIS_TAPS = 4, TAPS = 16 };

typedef float F4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double D4 __attribute__((vector_size(32), aligned(8), may_alias));
PLK_LANE float sum_F4(F4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }
PLK_LANE double sum_D4(D4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }
/* Of 64 bytes that lie in several vectors: halves are added to halves. */
#if defined(__AVX512F__)
PLK_LANE float sum_many_f32(const PlkP_f32 *v) {
  const PlkH_f32 h =
      __builtin_shufflevector(*v, *v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(*v, *v, 8, 9, 10, 11, 12, 13, 14, 15);
  return sum_F4(__builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7));
}
PLK_LANE double sum_many_f64(const PlkP_f64 *v) {
  return sum_D4(__builtin_shufflevector(*v, *v, 0, 1, 2, 3) + __builtin_shufflevector(*v, *v, 4, 5, 6, 7));
}
#elif defined(__AVX__)
PLK_LANE float sum_many_f32(const PlkP_f32 *v) {
  const PlkP_f32 h = v[0] + v[1];
  return sum_F4(__builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7));
}
PLK_LANE double sum_many_f64(const PlkP_f64 *v) { return sum_D4(v[0] + v[1]); }
#else
PLK_LANE float sum_many_f32(const PlkP_f32 *v) { return sum_F4((v[0] + v[2]) + (v[1] + v[3])); }
PLK_LANE double sum_many_f64(const PlkP_f64 *v) {
  const PlkP_f64 h = (v[0] + v[2]) + (v[1] + v[3]);
  return h[0] + h[1];
}
#endif
PLK_LANE float sum_few_f32(const F4 *v) { return sum_F4(*v); }
PLK_LANE double sum_few_f64(const D4 *v) { return sum_D4(*v); }

#define T     float
#define FEW   F4
#define MANY  PlkP_f32
#define LANES PLK_N_f32
#define F(f)  f##_f32
#include "kernels/cpu/isa/grid_sample_body.h"
#undef T
#undef FEW
#undef MANY
#undef LANES
#undef F

#define T     double
#define FEW   D4
#define MANY  PlkP_f64
#define LANES PLK_N_f64
#define F(f)  f##_f64
#include "kernels/cpu/isa/grid_sample_body.h"

extern const PlkGridLoops PLK_ISA_NAME(plk_grid_loops);
const PlkGridLoops PLK_ISA_NAME(plk_grid_loops) = {sample_f32, sample_f64, back_f32, back_f64};
