/* SPDX-License-Identifier: MIT
 * The one place where kernels open a library of others. */
#ifndef PL_KERNELS_CPU_LIBRARY_H
#define PL_KERNELS_CPU_LIBRARY_H

/* dlopen, for this process only; NULL where there is none of that name, or the environment says PERILUNE_LIBRARIES=none: then
 * all is computed by our own code, with the bits that a program has which is built without libraries. */
void *plk_library_open(const char *name);

/* The same for OpenBLAS, with kernels that this processor is served by: of models that are newer than it, it takes those that any has,
 * of 16 bytes and without fused products. Where PERILUNE_ISA=v2 asks for less than the processor has, these are taken, too: wider ones
 * have bits that a v2 has not, and of small products bits that hang on strides (SkylakeX, 0.3.21). Call it under a lock or pthread_once, as it may set OPENBLAS_CORETYPE for a moment. */
void *plk_openblas_open(const char *name);

#endif
