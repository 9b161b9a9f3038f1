/* SPDX-License-Identifier: MIT
 * Who has ended. A process that ends tells all others how many collective calls it has made on each group. So whoever
 * waits in a call that it has not made knows that it never will, and fails instead of waiting; and one that ends waits
 * until all others do, since MPI's own end waits for everybody. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/mpi/mpi.h"

enum { TAG_LEFT = 1 };
static const double GRACE = 2; /* seconds for messages that were sent before the sender ended */

void plm_hear(void) {
  for (;;) {
    int there = 0, n = 0;
    MPI_Status st;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_LEFT, plm.control, &there, &st) != MPI_SUCCESS || !there) return;
    if (MPI_Get_count(&st, MPI_INT64_T, &n) != MPI_SUCCESS || n < 0) return;
    int64_t *calls = malloc((size_t)(n ? n : 1) * sizeof *calls);
    if (!calls) return; /* asked again later */
    if (MPI_Recv(calls, n, MPI_INT64_T, st.MPI_SOURCE, TAG_LEFT, plm.control, &st) != MPI_SUCCESS || plm.left[st.MPI_SOURCE]) {
      free(calls);
      return;
    }
    plm.left[st.MPI_SOURCE] = calls;
    plm.left_groups[st.MPI_SOURCE] = n;
    plm.left_at[st.MPI_SOURCE] = plm_now();
    plm.nleft++;
  }
}

static PlStatus gone(const PlmWork *w, int process) {
  return plm_fail(PL_ERR_STATE, "%s: rank %d has ended (its script is over, or failed) without taking part", w->name, process);
}

PlStatus plm_missing(const PlmWork *w) {
  if (!plm.nleft) return PL_OK;
  const PlmGroup *g = w->group;
  for (int r = 0; r < g->size; r++) {
    const int process = g->world[r];
    const int64_t *calls = plm.left[process];
    if (!calls) continue;
    if (w->number >= 0) {
      if (g->id >= plm.left_groups[process] || calls[g->id] <= w->number) return gone(w, process);
    } else if (r == w->peer && plm_now() - plm.left_at[process] > GRACE) return gone(w, process);
  }
  return PL_OK;
}

/* Tells everybody; true: it could be told. */
static bool tell(MPI_Request *request, int64_t *calls) {
  for (int i = 0; i < plm.ngroup; i++) calls[i] = plm.group[i] ? plm.group[i]->calls : -1;
  for (int r = 0, k = 0; r < plm.info.size; r++)
    if (r != plm.info.rank && MPI_Isend(calls, plm.ngroup, MPI_INT64_T, r, TAG_LEFT, plm.control, &request[k++]) != MPI_SUCCESS)
      return false;
  return true;
}

/* Until all others have ended, too. */
static bool all_leave(void) {
  const int others = plm.info.size - 1;
  MPI_Request *request = calloc((size_t)others + 1, sizeof *request);
  int64_t *calls = calloc((size_t)plm.ngroup + 1, sizeof *calls);
  bool ok = request && calls;
  pthread_mutex_lock(&plm.lock);
  ok = ok && tell(request, calls);
  pthread_mutex_unlock(&plm.lock);
  int sent = 0;
  for (const double since = plm_now(); ok && (!sent || plm.nleft < others);) {
    pthread_mutex_lock(&plm.lock);
    if (!sent) ok = MPI_Testall(others, request, &sent, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
    plm_hear();
    pthread_mutex_unlock(&plm.lock);
    plm_pause(plm_now() - since);
  }
  if (sent) { /* else MPI still reads them */
    free(request);
    free(calls);
  }
  return ok;
}

void plm_close(bool failed) {
  if (!plm.open) return;
  plm.open = false;
  if (plm.threaded) {
    pthread_mutex_lock(&plm.lock);
    plm.stop = true;
    pthread_cond_signal(&plm.more);
    pthread_mutex_unlock(&plm.lock);
    pthread_join(plm.thread, NULL);
  }
  int over = 0;
  if (failed || !plm.ours || MPI_Finalized(&over) != MPI_SUCCESS || over) return;
  plm_drain();
  if (all_leave()) MPI_Finalize();
}
