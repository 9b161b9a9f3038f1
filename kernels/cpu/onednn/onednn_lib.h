/* SPDX-License-Identifier: MIT
 * oneDNN inside the files that call it (onednn*.c): its entry points as typed pointers from dlsym, and how a
 * primitive is run. v2 describes memory by value and convolution by a descriptor struct, v3 by handles: Md is
 * what a memory descriptor is stored as, MdRef how it is passed. */
#ifndef PL_KERNELS_CPU_ONEDNN_ONEDNN_LIB_H
#define PL_KERNELS_CPU_ONEDNN_ONEDNN_LIB_H

#include "kernels/cpu/onednn/onednn.h"

#ifdef PLK_HAVE_ONEDNN

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>

#define PLK_DNNL_V3 (DNNL_VERSION_MAJOR >= 3)

/* clang-format off */
#define PLK_DNNL_BOTH(X)                                                                                     \
  X(sgemm) X(set_max_cpu_isa) X(engine_create) X(stream_create) X(stream_destroy) X(memory_create)           \
  X(memory_destroy) X(memory_desc_get_size) X(memory_desc_equal) X(primitive_create) X(primitive_destroy)    \
  X(primitive_execute) X(primitive_desc_query) X(primitive_desc_query_md) X(primitive_desc_destroy)          \
  X(primitive_attr_create) X(primitive_attr_destroy) X(primitive_attr_set_scratchpad_mode)                   \
  X(reorder_primitive_desc_create)
/* clang-format on */
#if PLK_DNNL_V3
#define PLK_DNNL_FUNCS(X)                      \
  PLK_DNNL_BOTH(X)                             \
  X(memory_desc_create_with_strides)           \
  X(memory_desc_create_with_tag)               \
  X(memory_desc_create_submemory)              \
  X(memory_desc_destroy)                       \
  X(convolution_forward_primitive_desc_create) \
  X(convolution_backward_data_primitive_desc_create) X(convolution_backward_weights_primitive_desc_create) X(matmul_primitive_desc_create)
typedef dnnl_memory_desc_t Md;
typedef const_dnnl_memory_desc_t MdRef;
#define REF(md) (md)
#else
#define PLK_DNNL_FUNCS(X)                  \
  PLK_DNNL_BOTH(X)                         \
  X(memory_desc_init_by_strides)           \
  X(memory_desc_init_by_tag)               \
  X(memory_desc_init_submemory)            \
  X(primitive_desc_create)                 \
  X(dilated_convolution_forward_desc_init) \
  X(dilated_convolution_backward_data_desc_init) X(dilated_convolution_backward_weights_desc_init) X(matmul_desc_init)
typedef dnnl_memory_desc_t Md;
typedef const dnnl_memory_desc_t *MdRef;
#define REF(md) (&(md))
#endif

typedef struct PlkDnnl {
#define X(f) __typeof__(&dnnl_##f) f;
  PLK_DNNL_FUNCS(X)
#undef X
  dnnl_engine_t engine;
  bool ready;
} PlkDnnl;

/* Read-only once plk_onednn_ready() was true. */
const PlkDnnl *plk_dnnl(void);

/* The library sizes its teams by this thread's OpenMP setting: around its calls it is alone. */
int plk_dnnl_alone(void);
void plk_dnnl_alone_end(int saved);

PlStatus plk_dnnl_check(dnnl_status_t s, const char *what);

typedef struct PlkDnnlArg {
  int name; /* DNNL_ARG_… */
  MdRef md;
  void *data;
} PlkDnnlArg;
enum { PLK_DNNL_ARGS = 8 }; /* at most */

/* Runs a primitive on the calling thread; the arrays stay the caller's. */
PlStatus plk_dnnl_execute(dnnl_primitive_t prim, const PlkDnnlArg *args, int n, const char *what);

/* Registers the fork handlers of the table of plans; called once while the library is opened. */
bool plk_dnnl_watch_forks(void);

#endif
#endif
