/* SPDX-License-Identifier: MIT
 * Locks of libraries, held while their work is described and queued, temporary memory included. Where memory is out in them
 * nothing is asked of the program: its finalizers might want the same library. */
#ifndef PL_KERNELS_CUDA_RUNTIME_LOCKED_H
#define PL_KERNELS_CUDA_RUNTIME_LOCKED_H

#include <pthread.h>

#ifdef __cplusplus
#error "for files of C"
#endif
__attribute__((weak)) _Thread_local int plc_locked; /* such locks that this thread holds; one in a program, whichever files it is of */
static inline void plc_lock(pthread_mutex_t *lock) {
  pthread_mutex_lock(lock);
  plc_locked++;
}
static inline void plc_unlock(pthread_mutex_t *lock) {
  plc_locked--;
  pthread_mutex_unlock(lock);
}

#endif
