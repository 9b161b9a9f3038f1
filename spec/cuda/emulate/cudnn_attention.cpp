// SPDX-License-Identifier: MIT
// For tests: what libs/attention.c asks of cuDNN, in double on the CPU, from the key alone (libs/cudnn_ops.h): every element
// by the key's strides. Only with PERILUNE_EMULATE=sdpa, so that other tests have our own kernels; sdpa=BYTES: backward plans that
// repeat their bits keep 2 L S bytes a head, and there are none for more than BYTES. Strides that cuDNN refuses stop the process.
#include "inside.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/convert.h"
#include "kernels/cuda/libs/cudnn.h"
}

namespace {

struct Job {
  PlcSdpaKey k;
  void *at[PLC_UID_ONE + 1]; // by uid
  double scale;

  double get(int uid, int64_t i) const {
    const uint16_t v = ((const uint16_t *)at[uid])[i];
    return (double)(k.dtype == PL_F16 ? plk_f16_to_f32(v) : plk_bf16_to_f32(v));
  }
  void put(int uid, int64_t i, double v) const {
    ((uint16_t *)at[uid])[i] = k.dtype == PL_F16 ? plk_f32_to_f16((float)v) : plk_f32_to_bf16((float)v);
  }
  static int64_t place(const int64_t *s, int64_t b, int64_t h, int64_t row) { return b * s[0] + h * s[1] + row * s[2]; }
  int64_t seen(int64_t i) const { return k.causal && i + 1 < k.S ? i + 1 : k.S; }
  double score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double z = 0;
    for (int64_t e = 0; e < k.E; e++) z += get(PLC_UID_Q, place(k.q, b, h, i) + e) * get(PLC_UID_K, place(k.k, b, h, j) + e);
    return z * scale;
  }
  void forward(int64_t b, int64_t h, int64_t i) const {
    double top = -INFINITY, sum = 0, *p = (double *)malloc((size_t)k.S * sizeof *p);
    for (int64_t j = 0; j < seen(i); j++) top = fmax(top, p[j] = score(b, h, i, j));
    for (int64_t j = 0; j < seen(i); j++) sum += p[j] = exp(p[j] - top);
    for (int64_t d = 0; d < k.D; d++) {
      double o = 0;
      for (int64_t j = 0; j < seen(i); j++) o += p[j] / sum * get(PLC_UID_V, place(k.v, b, h, j) + d);
      put(PLC_UID_O, place(k.o, b, h, i) + d, o);
    }
    ((float *)at[PLC_UID_STATS])[(b * k.H + h) * k.L + i] = (float)(top + log(sum));
    free(p);
  }
  void backward(int64_t b, int64_t h) const {
    double *dq = (double *)calloc((size_t)(k.L * k.E), 8), *dk = (double *)calloc((size_t)(k.S * k.E), 8);
    double *dv = (double *)calloc((size_t)(k.S * k.D), 8);
    for (int64_t i = 0; i < k.L; i++) {
      const double stats = (double)((const float *)at[PLC_UID_STATS])[(b * k.H + h) * k.L + i];
      double r = 0;
      for (int64_t d = 0; d < k.D; d++) r += get(PLC_UID_DY, place(k.dy, b, h, i) + d) * get(PLC_UID_O, place(k.o, b, h, i) + d);
      for (int64_t j = 0; j < seen(i); j++) {
        const double p = exp(score(b, h, i, j) - stats);
        double t = 0;
        for (int64_t d = 0; d < k.D; d++) {
          const double up = get(PLC_UID_DY, place(k.dy, b, h, i) + d);
          t += up * get(PLC_UID_V, place(k.v, b, h, j) + d);
          dv[j * k.D + d] += p * up;
        }
        const double g = p * (t - r) * scale;
        for (int64_t e = 0; e < k.E; e++) {
          dq[i * k.E + e] += g * get(PLC_UID_K, place(k.k, b, h, j) + e);
          dk[j * k.E + e] += g * get(PLC_UID_Q, place(k.q, b, h, i) + e);
        }
      }
    }
    for (int64_t i = 0; i < k.L * k.E; i++) put(PLC_UID_DQ, place(k.dq, b, h, i / k.E) + i % k.E, dq[i]);
    for (int64_t i = 0; i < k.S * k.E; i++) put(PLC_UID_DK, place(k.dk, b, h, i / k.E) + i % k.E, dk[i]);
    for (int64_t i = 0; i < k.S * k.D; i++) put(PLC_UID_DV, place(k.dv, b, h, i / k.D) + i % k.D, dv[i]);
    free(dq);
    free(dk);
    free(dv);
  }
  void run() const {
    for (int64_t b = 0; b < k.B; b++)
      for (int64_t h = 0; h < k.H; h++) {
        if (k.backward) backward(b, h);
        else
          for (int64_t i = 0; i < k.L; i++) forward(b, h, i);
      }
  }
};

void refuse(const char *what) {
  fprintf(stderr, "emulated cuDNN: attention with %s\n", what);
  abort();
}
void check(const int64_t *s) {
  if (s[3] != 1) refuse("columns that are apart");
  for (int d = 0; d < 3; d++)
    if (s[d] == 0 || s[d] % 8) refuse("strides that are no multiples of 16 bytes");
}

} // namespace

extern "C" {

bool __real_plc_dnn_plans(void);
bool __wrap_plc_dnn_plans(void);
PlStatus __real_plc_dnn_run(const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at, bool *done);
PlStatus __wrap_plc_dnn_run(const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at, bool *done);

PlStatus plc_sdpa_plan(const void *, PlcDnnTarget, PlcPlan **) { return PL_ERR_UNSUPPORTED; }
bool __wrap_plc_dnn_plans(void) { return __real_plc_dnn_plans() && (plce_word("sdpa", NULL) || plce_word("conv", NULL)); }

/* Convolutions are planned and run as on a GPU, by cudnn_graph.cpp. */
PlStatus __wrap_plc_dnn_run(const void *key, size_t size, PlcPlanMake make, int n, const int64_t *uid, void *const *at, bool *done) {
  if (*(const uint32_t *)key == 'C' && plce_word("conv", NULL)) return __real_plc_dnn_run(key, size, make, n, uid, at, done);
  Job j;
  long long most = -1;
  *done = false;
  memset(&j, 0, sizeof j);
  if (size != sizeof j.k || *(const uint32_t *)key != 'A' || !plce_word("sdpa", &most)) return PL_OK;
  memcpy(&j.k, key, size);
  if (j.k.backward && j.k.deterministic && most > 0 && j.k.B * j.k.H * j.k.L * j.k.S * 2 > most) return PL_OK;
  for (int i = 0; i < n; i++) {
    j.at[uid[i]] = at[i];
    if (uid[i] == PLC_UID_SCALE) j.scale = (double)*(const float *)at[i];
    else if (uid[i] < PLC_UID_SCALE && (!plce_is_device(at[i]) || (uintptr_t)at[i] % (unsigned)(uid[i] == PLC_UID_STATS || uid[i] == PLC_UID_SUM ? j.k.rows_align : j.k.align)))
      refuse("an address that is none of the device, or not aligned as promised");
  }
  const int64_t *const all[] = {j.k.q, j.k.k, j.k.v, j.k.o, j.k.dy, j.k.dq, j.k.dk, j.k.dv};
  for (int i = 0; i < (j.k.backward ? 8 : 4); i++) check(all[i]);
  if (j.k.backward && !j.at[PLC_UID_ACC] == !j.k.deterministic) refuse("sums of dq where none are wanted, or the other way round");
  if (j.k.causal != (j.at[PLC_UID_MASKED] != NULL)) refuse("a number for what is hidden, or none");
  PLC_TRY(plce_launch(plc_stream(), 1, 1, 0, "cudnnSdpa", [=] { j.run(); }));
  *done = true;
  return PL_OK;
}
} // extern "C"
