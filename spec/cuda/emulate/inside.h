/* SPDX-License-Identifier: MIT
 * Between emulate.cpp (kernels) and runtime.cpp (memory, functions of the runtime). */
#ifndef PL_SPEC_CUDA_EMULATE_INSIDE_H
#define PL_SPEC_CUDA_EMULATE_INSIDE_H

#include <pthread.h>

#include "cuda_runtime_api.h"

enum { PLCE_POISON = 0xA5 };
extern pthread_mutex_t plce_lock;
extern bool plce_dead; /* a fault happened: noticed at the next wait */
bool plce_word(const char *word, long long *value); /* is it in PERILUNE_EMULATE? value: what follows its = */
/* Kernels and copies run between these two, under the lock. */
void plce_enter(void);
void plce_leave(void);

#endif
