/* SPDX-License-Identifier: MIT
 * The loops of elementwise_formulas.h for f16 and bf16 as they are stored, of one ISA level. Cheap formulas (IN_REGISTERS): 64
 * elements at a time become floats and halves again in registers. The others, whose loops would be most of this level's code,
 * and comparisons, whose results are bytes: the loop of f32 on some elements that lie in the nearest cache. The same bits as
 * conversion, f32 loop, conversion, one after the other; levels that convert element by element do that. Signs are bits: neg and abs
 * convert nothing. */
#include "kernels/convert.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath/vmath.h"
#include "kernels/elementwise_codes.h"

#if defined(__F16C__)

#define T              float
#define F(f)           f##_f32
#define K(c)           ((float)(c))
#define vm_largest_f32 3.40282347e38f
#include "kernels/activation_formulas.h"

#define PARAM(k, otherwise) const T p##k = (T)plk_param(p, k, otherwise);

enum { STEP = 64, MANY = 512 };
typedef void Load(const uint16_t *in, float *out, int64_t n);
typedef void Store(const float *in, uint16_t *out, int64_t n);

/* Whole steps are loops of known length; the last one is filled up with zeros. */
PLK_CVT void step_in(Load *load, const uint16_t *in, float *out, int64_t n) {
  if (n >= STEP) {
    load(in, out, STEP);
    return;
  }
  uint16_t h[STEP] = {0};
  memcpy(h, in, (size_t)n * sizeof *h);
  load(h, out, STEP);
}
PLK_CVT void step_out(Store *store, const float *in, uint16_t *out, int64_t n) {
  if (n >= STEP) {
    store(in, out, STEP);
    return;
  }
  uint16_t h[STEP];
  store(in, h, STEP);
  memcpy(out, h, (size_t)n * sizeof *h);
}
/* One value in place of an array: a float, as numbers beside halves are. */
PLK_CVT void spread(const char *in, float *out, int n) {
  float v;
  memcpy(&v, in, sizeof v);
  for (int i = 0; i < n; i++) out[i] = v;
}

/* WAY(NAME, here, there) is `here` where the name stands below, and `there` otherwise. */
#define WAY(NAME, here, there)        SECOND_OF(IN_REGISTERS_##NAME here, there, ~)
#define SECOND_OF(first, second, ...) SECOND(first, second, __VA_ARGS__)
#define SECOND(first, second, ...)    second
#define IN_REGISTERS_ADD              ~,
#define IN_REGISTERS_SUB              ~,
#define IN_REGISTERS_MUL              ~,
#define IN_REGISTERS_DIV              ~,
#define IN_REGISTERS_ADD_ALPHA        ~,
#define IN_REGISTERS_SQUARE           ~,
#define IN_REGISTERS_MAXIMUM          ~,
#define IN_REGISTERS_MINIMUM          ~,
#define IN_REGISTERS_CLAMP            ~,
#define IN_REGISTERS_ADDCMUL          ~,
#define IN_REGISTERS_ADDCDIV          ~,
#define IN_REGISTERS_LERP             ~,
#define IN_REGISTERS_SQRT             ~,
#define IN_REGISTERS_RECIPROCAL       ~,
#define IN_REGISTERS_RELU             ~,
#define IN_REGISTERS_GELU             ~,
#define IN_REGISTERS_GELU_BWD         ~,
#define IN_REGISTERS_GELU_TANH        ~,
#define IN_REGISTERS_GELU_TANH_BWD    ~,
#define IN_REGISTERS_RELU_BWD         ~,
#define IN_REGISTERS_LEAKY_RELU       ~,
#define IN_REGISTERS_LEAKY_RELU_BWD   ~,
#define IN_REGISTERS_SIGMOID_BWD      ~,
#define IN_REGISTERS_TANH_BWD         ~,
#define IN_REGISTERS_RSQRT            ~,
#define IN_REGISTERS_RELU6            ~,
#define IN_REGISTERS_HARDTANH         ~,
#define IN_REGISTERS_HARDSIGMOID      ~,
#define IN_REGISTERS_HARDSWISH        ~,
#define IN_REGISTERS_HARDSWISH_BWD    ~,
#define IN_REGISTERS_SOFTSIGN         ~,
#define IN_REGISTERS_SOFTSIGN_BWD     ~,

#define INFINITE 0x7c00u
#define QUIET    0x0200u
#define SFX      f16
#define TABLE    PLK_SUFFIX(plk_ew_f16)
#define READ     plk_f16_load
#define MAKE     plk_f16_store
#include "kernels/cpu/isa/float_halves_body.h"
#define INFINITE 0x7f80u
#define QUIET    0x0040u
#define SFX      bf16
#define TABLE    PLK_SUFFIX(plk_ew_bf16)
#define READ     plk_bf16_load
#define MAKE     plk_bf16_store
#include "kernels/cpu/isa/float_halves_body.h"

#else
const PlkLoop PLK_SUFFIX(plk_ew_f16)[PLK_NEW] = {NULL};
const PlkLoop PLK_SUFFIX(plk_ew_bf16)[PLK_NEW] = {NULL};
#endif
