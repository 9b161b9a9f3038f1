/* SPDX-License-Identifier: MIT
 * Accuracy of the f32 elementary functions: walks the bit patterns of all floats with a prime step, through
 * the elementwise kernel itself, and compares with libm in double. Prints one line a function; exits 1 if
 * one is off by more than its limit (2 ULP; compositions may state another) or mishandles a special value.
 * PERILUNE_ISA selects the code under test. Argument: step (default 293; with PERILUNE_LANES=long 97). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

enum { N = 4096 };

static double ref_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double ref_log1p_exp(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static double ref_logsigmoid(double x) { return -ref_log1p_exp(-x); }
static double ref_silu(double x) { return x == -(double)INFINITY ? (double)NAN : x * ref_sigmoid(x); }
static double ref_lgamma(double x) {
  int sign; /* lgamma would write the global signgam */
  return lgamma_r(x, &sign);
}
static double ref_rsqrt(double x) { return 1 / sqrt(x); }
/* By Newton's steps on erf or, near 1, on erfc; next to 0 two terms of its series. */
static double ref_erfinv(double x) {
  const double a = fabs(x), slope = 0.88622692545275801;
  if (!(a < 1)) return a == 1 ? copysign(INFINITY, x) : (double)NAN;
  if (a < 1e-4) return slope * x * (1 + 0.26179938779914944 * x * x);
  const double w = -log1p(-a * a), h = 4.3307 - 0.5 * w; /* Winitzki's estimate */
  double y = sqrt(sqrt(h * h + w / 0.147) - h);
  for (int i = 0; i < 4; i++) y -= (a < 0.5 ? erf(y) - a : 1 - a - erfc(y)) * slope * exp(y * y);
  return copysign(y, x);
}
static double ref_mish(double x) { return x < -700 ? x * exp(x) : x * tanh(ref_log1p_exp(x)); }

static const struct Case {
  const char *name;
  int code;
  double (*ref)(double);
  double limit;
  float least; /* smaller results count in the last place of this one */
} cases[] = {
    {"exp", PLK_EW_EXP, exp, 2, 0},
    {"exp2", PLK_EW_EXP2, exp2, 2, 0},
    {"expm1", PLK_EW_EXPM1, expm1, 2, 0},
    {"log", PLK_EW_LOG, log, 2, 0},
    {"log2", PLK_EW_LOG2, log2, 2, 0},
    {"log10", PLK_EW_LOG10, log10, 2, 0},
    {"log1p", PLK_EW_LOG1P, log1p, 2, 0},
    {"sin", PLK_EW_SIN, sin, 2, 0},
    {"cos", PLK_EW_COS, cos, 2, 0},
    {"tan", PLK_EW_TAN, tan, 2, 0},
    {"tanh", PLK_EW_TANH, tanh, 2, 0},
    {"sigmoid", PLK_EW_SIGMOID, ref_sigmoid, 2, 0},
    {"erf", PLK_EW_ERF, erf, 2, 0},
    {"erfc", PLK_EW_ERFC, erfc, 2, 0},
    {"rsqrt", PLK_EW_RSQRT, ref_rsqrt, 2, 0},
    {"asin", PLK_EW_ASIN, asin, 2, 0},
    {"acos", PLK_EW_ACOS, acos, 2, 0},
    {"atan", PLK_EW_ATAN, atan, 2, 0},
    {"sinh", PLK_EW_SINH, sinh, 2, 0},
    {"cosh", PLK_EW_COSH, cosh, 2, 0},
    {"asinh", PLK_EW_ASINH, asinh, 2, 0},
    {"acosh", PLK_EW_ACOSH, acosh, 2, 0},
    {"atanh", PLK_EW_ATANH, atanh, 2, 0},
    {"erfinv", PLK_EW_ERFINV, ref_erfinv, 2, 0},
    {"lgamma", PLK_EW_LGAMMA, ref_lgamma, 2, 0},
    {"softplus", PLK_EW_SOFTPLUS, ref_log1p_exp, 4, 0},
    {"logsigmoid", PLK_EW_LOGSIGMOID, ref_logsigmoid, 4, 0},
    {"silu", PLK_EW_SILU, ref_silu, 4, 1e-29f},
    {"mish", PLK_EW_MISH, ref_mish, 8, 1e-36f},
};

/* Distance in units of the last place of the reference, rounded to float; infinite if classes differ. */
static double ulps(float got, double ref, float least) {
  const float near = (float)ref;
  if (isnan(near) || isnan(got)) return isnan(near) && isnan(got) ? 0 : (double)INFINITY;
  if (isinf(near) || isinf(got)) {
    if (near == got) return 0;
    /* one step across the end of the range is one ULP */
    return fabs((double)got) > 3.402823e38 && fabs((double)near) > 3.402823e38 ? 1 : (double)INFINITY;
  }
  int e;
  (void)frexp(fmax(fabs((double)near), (double)least), &e);
  const double ulp = ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
  return fabs((double)got - ref) / ulp;
}

static PlStatus run(int code, float *x, float *y, int64_t n) {
  static const int64_t stride = 1;
  const PlArray in = {.data = x, .numel = n, .shape = &n, .strides = &stride, .dtype = PL_F32, .ndim = 1, .contiguous = 1};
  PlArray out = in;
  out.data = y;
  const PlArray *ins[] = {&in};
  PlArray *outs[] = {&out};
  static const PlAttrs none;
  const PlkCall call = {.name = "ulp", .code = code, .nin = 1, .nout = 1, .in = ins, .out = outs, .attrs = &none};
  return plk_cpu_elementwise(&call);
}

static int pow_case(uint32_t step) {
  /* random pairs and every pair of special values */
  static const float special[] = {0.0f,  -0.0f,  1.0f,     -1.0f,     2.0f, -2.0f,       0.5f,  -0.5f, 3.0f,
                                  -3.0f, 1e-40f, INFINITY, -INFINITY, NAN,  16777216.0f, -7.5f, 1e30f};
  enum { S = sizeof special / sizeof *special };
  static float x[N], y[N], z[N];
  double worst = 0;
  uint64_t s = step;
  for (int round = 0; round < 400; round++) {
    for (int i = 0; i < N; i++) {
      s = s * 6364136223846793005u + 1442695040888963407u;
      const uint32_t a = (uint32_t)(s >> 32) & 0x7fffffffu;
      memcpy(&x[i], &a, 4);
      y[i] = (float)((double)(int32_t)((s >> 3) & 0xffffffu) / 0x1p24 * 180.0 - 90.0) / fmaxf(0.05f, fabsf(logf(x[i])));
      if (round == 0 && i < S * S) x[i] = special[i / S], y[i] = special[i % S];
    }
    const int64_t n = N, stride = 1;
    const PlArray a = {.data = x, .numel = N, .shape = &n, .strides = &stride, .dtype = PL_F32, .ndim = 1, .contiguous = 1};
    PlArray b = a, o = a;
    b.data = y, o.data = z;
    const PlArray *ins[] = {&a, &b};
    PlArray *outs[] = {&o};
    const PlkCall call = {.name = "pow", .code = PLK_EW_POW, .nin = 2, .nout = 1, .in = ins, .out = outs};
    if (plk_cpu_elementwise(&call) != PL_OK) return 1;
    for (int i = 0; i < N; i++) {
      const double u = ulps(z[i], pow((double)x[i], (double)y[i]), 0);
      if (u > 2) printf("  pow(%a, %a) = %a\n", (double)x[i], (double)y[i], (double)z[i]);
      worst = u > worst ? u : worst;
    }
    if (worst > 2) break;
  }
  printf("%-10s %8.3f ULP (limit 2)%s\n", "pow", worst, worst > 2 ? "  FAILED" : "");
  return worst > 2;
}

int main(int argc, char **argv) {
  static float x[N], y[N];
  const char *lanes = getenv("PERILUNE_LANES");
  const uint32_t step = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : lanes && !strcmp(lanes, "long") ? 97 : 293;
  int bad = 0;
  printf("isa %s\n", plk_isa());
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    double worst = 0;
    float where = 0;
    for (uint64_t u = 0; u <= UINT32_MAX;) {
      int64_t n = 0;
      for (; n < N && u <= UINT32_MAX; n++, u += step) {
        const uint32_t w = (uint32_t)u;
        memcpy(&x[n], &w, 4);
      }
      if (run(cases[c].code, x, y, n) != PL_OK) {
        printf("%s: %s\n", cases[c].name, pl_message());
        return 1;
      }
      for (int64_t i = 0; i < n; i++) {
        const double d = ulps(y[i], cases[c].ref((double)x[i]), cases[c].least);
        if (d > worst) worst = d, where = x[i];
      }
    }
    const int failed = worst > cases[c].limit;
    printf("%-10s %8.3f ULP at %a (limit %g)%s\n", cases[c].name, worst, (double)where, cases[c].limit, failed ? "  FAILED" : "");
    bad |= failed;
  }
  return bad | pow_case(step);
}
