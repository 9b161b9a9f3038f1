/* SPDX-License-Identifier: MIT
 * What the files of libs/ share among each other. NULL versions: the library is not there. */
#ifndef PL_KERNELS_CUDA_LIBS_LIBS_H
#define PL_KERNELS_CUDA_LIBS_LIBS_H

#include "kernels/capture.h"
#include "kernels/cuda/cuda.h"
#include "kernels/fused.h"
#include "kernels/process_group_device.h"
#include "kernels/recurrent_library.h"

const char *plc_cublas_version(void); /* "13.1.0" */
const char *plc_nvrtc_version(void);
const PlkCaptureTable *plc_capture_table(void);     /* extension "capture" */
const PlkFusedTable *plc_fused_table(void);         /* extension "fused" */
const PlkRecurrentTable *plc_recurrent_table(void); /* extension "recurrent" */
const PlkNcclTable *plc_nccl_table(void);           /* extension "nccl" */

#endif
