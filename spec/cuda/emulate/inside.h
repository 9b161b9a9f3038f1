/* SPDX-License-Identifier: MIT
 * Between emulate.cpp (kernels), memory.cpp, streams.cpp, runtime.cpp (the rest of the runtime's functions) and guard.cpp
 * (memory that watches kernels). */
#ifndef PL_SPEC_CUDA_EMULATE_INSIDE_H
#define PL_SPEC_CUDA_EMULATE_INSIDE_H

#include <pthread.h>

#include "cuda_runtime_api.h"

enum { PLCE_POISON = 0xA5, PLCE_DEVICES = 4, PLCE_SMALL = 64 << 10 };
extern pthread_mutex_t plce_lock;
extern bool plce_dead[PLCE_DEVICES];                /* a fault happened: noticed at the next wait */
bool plce_word(const char *word, long long *value); /* is it in PERILUNE_EMULATE? value: what follows its = */
cudaError_t plce_fault(void);                       // what a dead device answers
cudaError_t plce_state(int device);
cudaError_t plce_said(cudaError_t e); /* becomes the last error */

int plce_current(void);       /* the thread's device, or that of the work done now */
int plce_work_of(int device); /* such work begins; < 0: ends; what it was before */
void plce_touch(void);        /* something is made on the current device */

void plce_memory_start(int device);
int plce_owner(const void *p, size_t n); /* the device whose memory that is; < 0: none */
bool plce_is_pinned(const void *p);
/* Kernels and copies run between these two, under the lock. */
void plce_enter(int device);
void plce_leave(int device);
cudaError_t plce_take(int device, void **out, size_t n); /* these, too */
void plce_give(void *p);
size_t plce_in_use(int device);
size_t plce_capacity(void);

bool plce_idle(void); /* nothing is computed, and no copy above PLCE_SMALL bytes is made */
bool plce_is_captured(cudaStream_t s);
cudaError_t plce_ends(cudaStream_t on); /* what no capture survives; NULL: of any stream */
int plce_stream_device(cudaStream_t s);
void plce_drain(cudaStream_t s);       /* all that it holds is done */
extern unsigned char *plce_shared_end; /* of shared memory; a page behind it is nobody's */
bool plce_captures(void);              /* does any stream? */

/* guard.cpp: under "guard" and "twice" memory comes from there. The others are called under the lock, around a launch. */
bool plce_guards(void);
int plce_guarded(const void *p); /* on which device; < 0: none of its blocks */
bool plce_twice(void);
void plce_launch_begins(const char *name);
void plce_launch_ends(void);         /* did it write where no block is? */
void plce_keep(void);                /* all memory as it is now */
void plce_restore(void);             /* the results aside, memory as it was kept */
void plce_compare(const char *name); /* memory with those results */

#endif
