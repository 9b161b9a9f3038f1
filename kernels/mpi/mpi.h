/* SPDX-License-Identifier: MIT
 * What the files of the MPI plug-in share. MPI is entered under plm.lock alone (MPI_THREAD_SERIALIZED): by the thread that
 * runs a script, and by the one that moves background work on. Nothing here blocks inside MPI: every operation is a
 * request that is tested, so that Ctrl-C, time limits and processes that have ended are noticed. */
#ifndef PL_KERNELS_MPI_MPI_H
#define PL_KERNELS_MPI_MPI_H

#include <pthread.h>

#include <mpi.h>

#include "kernels/process_group.h"

typedef struct PlmGroup {
  MPI_Comm comm;
  int id, rank, size;
  int64_t calls; /* collective calls that this process has made on it */
  int *world;    /* the members' ranks among all processes */
} PlmGroup;

enum { PLM_MAX_GROUP = 4096 };

typedef struct PlmWork {
  struct PlmWork *next; /* among background works */
  PlmGroup *group;
  MPI_Request *request;
  int nrequest;
  MPI_Datatype piece; /* made for this call, or MPI_DATATYPE_NULL */
  int *lists;         /* counts and displacements of an all_to_all */
  int64_t number;     /* which collective call of the group; < 0: between two processes */
  int peer, source;
  PlDtype dtype;
  int64_t expected; /* elements to be received; < 0: no receive, or in several requests */
  bool background, done, released;
  PlStatus status;
  const char *name;
  char why[240];
} PlmWork;

typedef struct PlmState {
  pthread_mutex_t lock;
  pthread_cond_t more; /* background work is there, or the thread shall end */
  pthread_t thread;
  bool open, ours, threaded, stop;
  PlGroupInfo info;
  MPI_Comm control; /* who has ended */
  PlmGroup *group[PLM_MAX_GROUP];
  int ngroup;
  PlmWork *background;
  int64_t **left; /* by process: how many calls it had made on each group when it ended; NULL: it has not */
  int *left_groups, nleft;
  double *left_at;
} PlmState;

extern PlmState plm;
extern const PlGroupHost *plm_host;

PlStatus plm_fail(PlStatus code, const char *fmt, ...) PL_PRINTF(2, 3);
PlStatus plm_failed(int code, const char *name);                   /* what MPI says */
void plm_text(int code, const char *name, char *out, size_t size); /* the same as text, for any thread */
#define PLM_TRY(name, expr)                                                        \
  do {                                                                             \
    int plm_code_ = (expr);                                                        \
    if (PL_UNLIKELY(plm_code_ != MPI_SUCCESS)) return plm_failed(plm_code_, name); \
  } while (0)

double plm_now(void);
void plm_pause(double waited); /* how a thread waits: longer the longer it has */

/* ops.c */
PlStatus plm_types_open(void);
MPI_Datatype plm_type(PlDtype d);
PlStatus plm_op(const PlGroupCall *call, MPI_Op *out);

/* leave.c: under the lock */
void plm_hear(void);                    /* notes who has ended */
PlStatus plm_missing(const PlmWork *w); /* fails if somebody whom w needs has ended without taking part */
void plm_close(bool failed);

/* work.c */
PlStatus plm_start(const PlGroupCall *call, void **work);
PlStatus plm_test(void *work, bool *done);
PlStatus plm_wait(void *work, double seconds, int *source);
bool plm_release(void *work);
void plm_look(PlmWork *w); /* under the lock: is it done? */
void plm_drain(void);      /* waits for background works that nobody waits for */
void *plm_thread(void *unused);

#endif
