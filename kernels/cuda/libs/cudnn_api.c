/* SPDX-License-Identifier: MIT
 * Opening cuDNN: see cudnn_api.h. */
#include "kernels/cuda/libs/cudnn_api.h"

#include <pthread.h>
#include <stdio.h>

#include "kernels/cuda/libs/library.h"

static struct {
  pthread_once_t once;
  PlcDnnApi api;
  char missing[256], version[32];
} dnn = {.once = PTHREAD_ONCE_INIT};

static void open_dnn(void) {
  static const char *const files[] = {"libcudnn.so.9", "libcudnn.so", NULL};
  static const PlcSymbol symbols[] = {
#define PLC_X(name) {#name, offsetof(PlcDnnApi, name)},
      PLC_DNN_FUNCTIONS(PLC_X)
#undef PLC_X
          {NULL, 0}};
  if (!plc_library_open("cuDNN 9", files, symbols, &dnn.api, dnn.missing, sizeof dnn.missing)) return;
  size_t v = dnn.api.cudnnGetVersion();
  snprintf(dnn.version, sizeof dnn.version, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
  if (v < 90000 || v >= 100000) snprintf(dnn.missing, sizeof dnn.missing, "cuDNN %s was found, 9 is needed", dnn.version);
}

PlStatus plc_dnn_api(const PlcDnnApi **out) {
  pthread_once(&dnn.once, open_dnn);
  if (dnn.missing[0]) PL_FAIL(PL_ERR_UNSUPPORTED, "%s", dnn.missing);
  *out = &dnn.api;
  return PL_OK;
}

const char *plc_dnn_version(void) {
  pthread_once(&dnn.once, open_dnn);
  return dnn.missing[0] ? NULL : dnn.version;
}

/* Status codes come in thousands: 1 set-up, 2 bad parameters, 3 not supported, 4 internal, 5 execution. */
PlStatus plc_dnn_fail(cudnnStatus_t code, const char *doing) {
  char words[256] = "";
  dnn.api.cudnnGetLastErrorString(words, sizeof words);
  PlStatus s = PL_ERR_STATE;
  switch (CUDNN_STATUS_CATEGORY((int)code)) {
  case 2000: s = PL_ERR_ARG; break;
  case 3000: s = PL_ERR_UNSUPPORTED; break;
  default:
    if (code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED || code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
      s = PL_ERR_OOM;
  }
  return pl_fail(s, "cudnn: %s: %s (%s)", doing, words[0] ? words : "no further word", dnn.api.cudnnGetErrorString(code));
}
