/* SPDX-License-Identifier: MIT
 * What libs/ says of itself: one line of versions, and tables by name. */
#include "kernels/cuda/libs/libs.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/libs/cudnn_api.h"

static int say(char *text, size_t size, int at, const char *name, const char *version) {
  if (at < 0 || (size_t)at >= size) return at;
  return at + snprintf(text + at, size - (size_t)at, "%s%s %s", at ? ", " : "", name, version ? version : "not found");
}

void plc_libraries_text(char *text, size_t size) {
  int at = say(text, size, 0, "cuBLASLt", plc_cublas_version());
  at = say(text, size, at, "cuDNN", plc_dnn_version());
  (void)say(text, size, at, "NVRTC", plc_nvrtc_version());
}

const void *plc_libraries_extension(const char *name) {
  if (strcmp(name, "fused") == 0) return plc_fused_table();
  if (strcmp(name, "capture") == 0) return plc_capture_table();
  if (strcmp(name, "recurrent") == 0) return plc_recurrent_table();
  if (strcmp(name, "nccl") == 0) return plc_nccl_table();
  return NULL;
}
