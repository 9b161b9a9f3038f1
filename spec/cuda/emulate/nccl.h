/* SPDX-License-Identifier: MIT
 * NCCL's functions by name (nccl.cpp), for whoever opens libraries (cudnn.cpp). */
#ifndef PL_SPEC_CUDA_EMULATE_NCCL_H
#define PL_SPEC_CUDA_EMULATE_NCCL_H

extern "C" void (*plce_nccl_symbol(const char *name))(void); /* NULL: there is none */

#endif
