/* SPDX-License-Identifier: MIT
 * What workers.c (the loader's side) and worker_thread.c (the worker's side) share: the queues of a pool. Everything
 * below is under the pool's lock, or fixed before the threads start, or atomic. */
#ifndef PL_BINDINGS_DATA_WORKERS_H
#define PL_BINDINGS_DATA_WORKERS_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "bindings/core/lib.h"
#include "engine/tensor/share.h"

/* One job or its answer. */
typedef struct Message {
  struct Message *next;
  int64_t id, pass;
  bool failed, dropped; /* dropped: nobody waits for the answer any more */
  char *text;
  size_t n;
  int ntensor;
  PlTensorShare *tensor[];
} Message;

typedef struct Worker {
  struct Pool *pool;
  int index;
  pthread_t thread;
  Message *current;
  atomic_bool halt; /* the job at hand is to end: it was cancelled, or the pool closes */
} Worker;

typedef struct Pool {
  pthread_mutex_t lock;
  pthread_cond_t job, answer;
  Message *jobs, *answers, *setup; /* jobs: next one first */
  char *failure;                   /* why a worker could not start */
  atomic_bool stop;
  pid_t owner; /* threads do not survive fork */
  char *path, *cpath, *module;
  bool have_affinity;
  cpu_set_t affinity;
  int n; /* threads started */
  Worker worker[];
} Pool;

void l_message_free(Message *m);
Message *l_message_new(const char *text, size_t n, int ntensor); /* NULL: out of memory */
/* From the text at stack index i and the list of tensors at i + 1 (or nil). NULL: out of memory. */
Message *l_message_take(lua_State *L, int i);
int l_message_push(lua_State *L, const Message *m); /* pushes the text and a list of the tensors; returns 2 */
void *l_worker_main(void *worker);                  /* the thread's function */

#endif
