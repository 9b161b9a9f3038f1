/* SPDX-License-Identifier: MIT
 * Between emulate.cpp (kernels), runtime.cpp (memory, functions of the runtime) and guard.cpp (memory that
 * watches kernels). */
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
extern unsigned char *plce_shared_end; /* of shared memory; a page behind it is nobody's */
bool plce_captures(void); /* does any stream? */

/* guard.cpp: under "guard" and "twice" memory comes from there. The others are called under the lock, around a launch. */
bool plce_guards(void);
bool plce_guarded(const void *p);
bool plce_twice(void);
void plce_launch_begins(const char *name);
void plce_launch_ends(void); /* did it write where no block is? */
void plce_keep(void);        /* all memory as it is now */
void plce_restore(void);     /* the results aside, memory as it was kept */
void plce_compare(const char *name); /* memory with those results */

#endif
