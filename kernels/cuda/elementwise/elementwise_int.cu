/* SPDX-License-Identifier: MIT
 * Elementwise ops of integers and bool. Arithmetic wraps: it is done in the unsigned type W. A zero divisor is
 * reported through the flag; the lowest value divided by -1 wraps to itself. */
#include "kernels/cuda/elementwise/elementwise.h"

template <typename T> struct ew_wide {
  typedef uint32_t W;
  static const int bits = 8 * (int)sizeof(T);
};
template <> struct ew_wide<int64_t> {
  typedef uint64_t W;
  static const int bits = 64;
};

template <typename T> PLC_DEV T int_pow(T base, T e) {
  typedef typename ew_wide<T>::W W;
  if (e < 0) return (T)(base == 1 ? 1 : base == (T)-1 ? ((e & 1) ? -1 : 1) : 0);
  W r = 1, b = (W)base;
  for (W k = (W)e; k != 0; k >>= 1, b *= b)
    if (k & 1) r *= b;
  return (T)r;
}
template <typename T> PLC_DEV T int_gcd(T x, T y) {
  typedef typename ew_wide<T>::W W;
  W a = x < 0 ? (W)0 - (W)x : (W)x, b = y < 0 ? (W)0 - (W)y : (W)y;
  while (b != 0) {
    const W r = a % b;
    a = b, b = r;
  }
  return (T)a;
}
template <typename T> PLC_DEV T int_lcm(T x, T y) {
  typedef typename ew_wide<T>::W W;
  const int bits = ew_wide<T>::bits;
  const W a = x < 0 ? (W)0 - (W)x : (W)x, b = y < 0 ? (W)0 - (W)y : (W)y;
  const W g = (W)int_gcd<T>(x, y) & (W)(((W)1 << (bits - 1)) | (((W)1 << (bits - 1)) - 1));
  if (g == 0) return 0;
  const T v = (T)(W)(a / g * b);
  return (T)(v < 0 ? (W)0 - (W)v : (W)v);
}

/* One quotient or remainder; division by zero counts as by one, after the report. */
template <typename T> PLC_DEV T int_divide(const EwArgs &g, T x, T d) {
  typedef typename ew_wide<T>::W W;
  if (d == 0) plc_fault(g.flag, PLC_FAULT_ZERO_DIVISION, (const char *)(uintptr_t)g.name, 0, 0, 0);
  const bool minus = (T)-1 < (T)1 && d == (T)-1;
  const T y = d == 0 || minus ? (T)1 : d;
  const bool off = x % y != 0 && (x < 0) != (y < 0);
  switch (g.code) {
  case PLK_EW_TRUNC_DIVIDE: return (T)(minus ? (W)0 - (W)x : (W)(x / y));
  case PLK_EW_FMOD: return minus ? (T)0 : (T)(x % y);
  case PLK_EW_FLOOR_DIVIDE: return (T)(minus ? (W)0 - (W)x : (W)(x / y) - (W)off);
  default: return minus ? (T)0 : (T)((W)(x % y) + (off ? (W)y : 0));
  }
}

template <typename T> PLC_DEV T clamped(int64_t v, int64_t lo, int64_t hi) { return (T)(v < lo ? lo : v > hi ? hi : v); }

template <typename T> PLC_DEV T int_op(const EwArgs &g, T x, T y, T z) {
  typedef typename ew_wide<T>::W W;
  const int bits = ew_wide<T>::bits;
  const bool sign = (T)-1 < (T)1;
  const int64_t LO = !sign        ? 0
                     : bits == 64 ? INT64_MIN
                                  : -((int64_t)1 << (bits - 1)),
                HI = !sign        ? 255
                     : bits == 64 ? INT64_MAX
                                  : ((int64_t)1 << (bits - 1)) - 1;
  const EwParams &p = g.p;
  const bool p0 = p.set & 1, p1 = (p.set >> 1) & 1;
  switch (g.code) {
  case PLK_EW_ADD: return (T)((W)x + (W)y);
  case PLK_EW_SUB: return (T)((W)x - (W)y);
  case PLK_EW_MUL: return (T)((W)x * (W)y);
  case PLK_EW_ADD_ALPHA: return (T)((W)x + (W)(p0 ? p.i[0] : 1) * (W)y);
  case PLK_EW_NEG: return (T)((W)0 - (W)x);
  case PLK_EW_ABS: return (T)(x < 0 ? (W)0 - (W)x : (W)x);
  case PLK_EW_SIGN: return (T)((x > 0) - (x < 0));
  case PLK_EW_SQUARE: return (T)((W)x * (W)x);
  case PLK_EW_POW: return int_pow<T>(x, y);
  case PLK_EW_FMOD:
  case PLK_EW_REMAINDER:
  case PLK_EW_FLOOR_DIVIDE:
  case PLK_EW_TRUNC_DIVIDE: return int_divide<T>(g, x, y);
  case PLK_EW_MAXIMUM:
  case PLK_EW_FMAX: return x > y ? x : y;
  case PLK_EW_MINIMUM:
  case PLK_EW_FMIN: return x < y ? x : y;
  case PLK_EW_HARDTANH:
  case PLK_EW_CLAMP: {
    const bool tanh = g.code == PLK_EW_HARDTANH;
    const T lo = clamped<T>(p0 ? p.i[0] : tanh ? -1 : LO, LO, HI), hi = clamped<T>(p1 ? p.i[1] : tanh ? 1 : HI, LO, HI);
    const T v = x < lo ? lo : x;
    return v > hi ? hi : v;
  }
  case PLK_EW_CLAMP_T: {
    const T v = x < y ? y : x;
    return v > z ? z : v;
  }
  case PLK_EW_THRESHOLD:
    return ((double)p.i[0] == p.f[0] ? (int64_t)x <= p.i[0] : (double)x <= p.f[0]) ? clamped<T>(p1 ? p.i[1] : 0, LO, HI) : x;
  case PLK_EW_ADDCMUL: return (T)((W)x + (W)(p0 ? p.i[0] : 1) * (W)y * (W)z);
  case PLK_EW_BITWISE_AND: return x & y;
  case PLK_EW_BITWISE_OR: return x | y;
  case PLK_EW_BITWISE_XOR: return x ^ y;
  case PLK_EW_BITWISE_NOT: return (T)~x;
  case PLK_EW_BITWISE_LEFT_SHIFT: return (y < 0) | (y >= bits) ? (T)0 : (T)((W)x << ((W)y & (bits - 1)));
  case PLK_EW_BITWISE_RIGHT_SHIFT: return (y < 0) | (y >= bits) ? (T)(x < 0 ? -1 : 0) : (T)(x >> ((W)y & (bits - 1)));
  case PLK_EW_GCD: return int_gcd<T>(x, y);
  case PLK_EW_LCM: return int_lcm<T>(x, y);
  case PLK_EW_RELU: return x < 0 ? (T)0 : x;
  case PLK_EW_RELU6: return x < 0 ? (T)0 : x > 6 ? (T)6 : x;
  default: return x; /* floor … nan_to_num: whole already */
  }
}

template <typename M> PLC_DEV uint8_t int_test(int code, M x, M y) {
  switch (code) {
  case PLK_EW_EQ: return x == y;
  case PLK_EW_NE: return x != y;
  case PLK_EW_LT: return x < y;
  case PLK_EW_LE: return x <= y;
  case PLK_EW_GT: return x > y;
  case PLK_EW_GE: return x >= y;
  case PLK_EW_LOGICAL_AND: return (x != 0) & (y != 0);
  case PLK_EW_LOGICAL_OR: return (x != 0) | (y != 0);
  case PLK_EW_LOGICAL_XOR: return (x != 0) ^ (y != 0);
  case PLK_EW_LOGICAL_NOT: return x == 0;
  case PLK_EW_ISFINITE: return 1;
  case PLK_EW_SIGNBIT: return x < 0;
  default: return 0; /* isnan, isinf */
  }
}

PLC_DEV int bool_op(int code, int x, int y, int z) {
  switch (code) {
  case PLK_EW_ADD:
  case PLK_EW_MAXIMUM:
  case PLK_EW_FMAX:
  case PLK_EW_BITWISE_OR: return x | y;
  case PLK_EW_MUL:
  case PLK_EW_MINIMUM:
  case PLK_EW_FMIN:
  case PLK_EW_BITWISE_AND: return x & y;
  case PLK_EW_BITWISE_XOR: return x ^ y;
  case PLK_EW_BITWISE_NOT: return !x;
  case PLK_EW_POW: return (y == 0) | x;
  case PLK_EW_CLAMP_T: return (x | y) & z;
  default: return x;
  }
}

template <typename E> struct EwInt {
  typedef E T;
  typedef E R;
  static const int N = 16 / (int)sizeof(E), IN = EW_IN, BUSY = 2;
  static __device__ __forceinline__ void run(const EwArgs &g, const E *a, const E *b, const E *c, E *r) {
    for (int k = 0; k < N; k++) r[k] = int_op<E>(g, a[k], g.nin > 1 ? b[k] : (E)0, g.nin > 2 ? c[k] : (E)0);
  }
};
struct EwBool {
  typedef plc_bool T;
  typedef plc_bool R;
  static const int N = 16, IN = EW_IN, BUSY = 2;
  static __device__ __forceinline__ void run(const EwArgs &g, const int *a, const int *b, const int *c, int *r) {
    for (int k = 0; k < N; k++) r[k] = bool_op(g.code, a[k], g.nin > 1 ? b[k] : 0, g.nin > 2 ? c[k] : 0);
  }
};
template <typename E> struct EwIntTest {
  typedef E T;
  typedef uint8_t R;
  static const int N = 16 / (int)sizeof(E), IN = EW_IN, BUSY = 2;
  template <typename M> static __device__ __forceinline__ void run(const EwArgs &g, const M *a, const M *b, const M *, uint8_t *r) {
    for (int k = 0; k < N; k++) r[k] = int_test<M>(g.code, a[k], g.nin > 1 ? b[k] : (M)0);
  }
};

static bool for_ints(int code) {
  switch (code) {
  case PLK_EW_DIV:
  case PLK_EW_ADDCDIV:
  case PLK_EW_LERP:
  case PLK_EW_FRAC: return false;
  case PLK_EW_GCD:
  case PLK_EW_LCM:
  case PLK_EW_RELU:
  case PLK_EW_RELU6:
  case PLK_EW_HARDTANH:
  case PLK_EW_THRESHOLD: return true;
  default: return code < PLK_EW_SQRT;
  }
}
static bool for_bool(int code) {
  switch (code) {
  case PLK_EW_ADD:
  case PLK_EW_MUL:
  case PLK_EW_ABS:
  case PLK_EW_SIGN:
  case PLK_EW_SQUARE:
  case PLK_EW_POW:
  case PLK_EW_MAXIMUM:
  case PLK_EW_MINIMUM:
  case PLK_EW_FMAX:
  case PLK_EW_FMIN:
  case PLK_EW_CLAMP_T:
  case PLK_EW_NAN_TO_NUM:
  case PLK_EW_BITWISE_AND:
  case PLK_EW_BITWISE_OR:
  case PLK_EW_BITWISE_XOR:
  case PLK_EW_BITWISE_NOT: return true;
  default: return false;
  }
}

PlStatus plc_ew_int(const PlkCall *call) {
  int d = call->in[0]->dtype, code = call->code;
  bool tests = plc_ew_tests(code);
  if (!tests && !(d == PL_BOOL ? for_bool(code) : for_ints(code))) return plc_ew_undefined(call);
#define EW_INT(D, E) \
  case D: return tests ? ew_launch<EwIntTest<E>>(call) : ew_launch<EwInt<E>>(call);
  switch ((PlDtype)d) {
    EW_INT(PL_I8, int8_t)
    EW_INT(PL_I16, int16_t)
    EW_INT(PL_I32, int32_t)
    EW_INT(PL_I64, int64_t)
    EW_INT(PL_U8, uint8_t)
  default: return tests ? ew_launch<EwIntTest<plc_bool>>(call) : ew_launch<EwBool>(call);
  }
}
