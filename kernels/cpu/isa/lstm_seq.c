/* SPDX-License-Identifier: MIT
 * Inner loops of an LSTM over a sequence, compiled once per ISA level: the product of a few rows of state with a packed
 * weight, and the rows of gates with their gradient. An element's sum runs over k in one order, however many rows go
 * together. */
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/recurrent/lstm.h"
#include "kernels/cpu/vmath/vmath.h"

#if defined(__AVX512F__)
#include <immintrin.h>
enum { MOST_ROWS = 14 }; /* two vectors a row, and 32 registers */
#elif defined(__AVX__)
enum { MOST_ROWS = 3 };
#else
enum { MOST_ROWS = 1 };
#endif

#define LS_T       float
#define LS_N       16
#define LS_NAME(x) x##_f32
#if defined(__AVX512F__)
#define LS_FMA(a, x, c) ((V_f32)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)(x), (__m512)(c)))
#else
#define LS_FMA(a, x, c) ((c) + (a) * (x))
#endif
#include "kernels/cpu/isa/lstm_seq_body.h"

#define LS_T       double
#define LS_N       8
#define LS_NAME(x) x##_f64
#if defined(__AVX512F__)
#define LS_FMA(a, x, c) ((V_f64)_mm512_fmadd_pd(_mm512_set1_pd(a), (__m512d)(x), (__m512d)(c)))
#else
#define LS_FMA(a, x, c) ((c) + (a) * (x))
#endif
#include "kernels/cpu/isa/lstm_seq_body.h"

extern const PlkLstmSeqLoops PLK_ISA_NAME(plk_lstm_seq);
const PlkLstmSeqLoops PLK_ISA_NAME(plk_lstm_seq) = {{product_f32, step_f32, back_f32}, {product_f64, step_f64, back_f64}};
