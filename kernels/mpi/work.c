/* SPDX-License-Identifier: MIT
 * One operation: its requests, tested until they are done. Counts above 2^30 go in several requests where an operation can
 * be cut, and as one piece of a datatype made for them where every rank has a piece of its own. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/mpi/mpi.h"

enum { MAX_COUNT = 1 << 30 };

/* ---- making requests --------------------------------------------------------------------------------------------- */

/* One request of a call on `count` elements from byte `at`. */
static int issue_cut(const PlGroupCall *c, const PlmGroup *g, MPI_Op op, size_t at, int count, MPI_Request *r) {
  const MPI_Datatype t = plm_type(c->dtype);
  const char *src = c->src ? (const char *)c->src + at : NULL;
  char *dst = c->dst ? (char *)c->dst + at : NULL;
  const bool in_place = c->src == c->dst;
  switch (c->kind) {
  case PL_GROUP_ALL_REDUCE: return MPI_Iallreduce(in_place ? MPI_IN_PLACE : src, dst, count, t, op, g->comm, r);
  case PL_GROUP_REDUCE: return MPI_Ireduce(in_place && g->rank == c->peer ? MPI_IN_PLACE : src, dst, count, t, op, c->peer, g->comm, r);
  case PL_GROUP_BROADCAST: return MPI_Ibcast(dst, count, t, c->peer, g->comm, r);
  case PL_GROUP_SEND: return MPI_Isend(src, count, t, c->peer, c->tag, g->comm, r);
  default: return MPI_Irecv(dst, count, t, c->peer < 0 ? MPI_ANY_SOURCE : c->peer, c->tag, g->comm, r);
  }
}

/* Counts and places of the pieces of an all_to_all. */
static PlStatus issue_pieces(const PlGroupCall *c, PlmWork *w, MPI_Datatype t) {
  const int n = w->group->size;
  int64_t from = 0, to = 0;
  w->lists = malloc(4 * (size_t)n * sizeof(int));
  if (!w->lists) return plm_fail(PL_ERR_OOM, "%s: out of memory", c->name);
  int *send = w->lists, *place = send + n, *receive = place + n, *where = receive + n;
  for (int r = 0; r < n; r++) {
    send[r] = (int)c->send[r];
    receive[r] = (int)c->receive[r];
    place[r] = (int)from;
    where[r] = (int)to;
    from += c->send[r];
    to += c->receive[r];
    if (from > INT_MAX || to > INT_MAX)
      return plm_fail(PL_ERR_UNSUPPORTED, "%s: unequal pieces of more than 2^31 - 1 elements; use a larger dtype or several calls",
                      c->name);
  }
  PLM_TRY(c->name, MPI_Ialltoallv(c->src, send, place, t, c->dst, receive, where, t, w->group->comm, w->request));
  return PL_OK;
}

/* The operations in which each rank has a piece. */
static PlStatus issue_whole(const PlGroupCall *c, PlmWork *w, MPI_Op op) {
  const PlmGroup *g = w->group;
  MPI_Datatype t = plm_type(c->dtype);
  if (c->send) return issue_pieces(c, w, t);
  int n = (int)c->count;
  if (c->count * g->size > MAX_COUNT && c->kind != PL_GROUP_REDUCE_SCATTER && c->count > 0 && c->count <= INT_MAX) {
    PLM_TRY(c->name, MPI_Type_contiguous(n, t, &w->piece));
    PLM_TRY(c->name, MPI_Type_commit(&w->piece));
    t = w->piece;
    n = 1;
  } else if (c->count > MAX_COUNT) return plm_fail(PL_ERR_UNSUPPORTED, "%s: more than 2^30 elements a rank; use several calls", c->name);
  MPI_Request *r = w->request;
  const MPI_Comm comm = g->comm;
  switch (c->kind) {
  case PL_GROUP_ALL_GATHER: PLM_TRY(c->name, MPI_Iallgather(c->src, n, t, c->dst, n, t, comm, r)); break;
  case PL_GROUP_GATHER: PLM_TRY(c->name, MPI_Igather(c->src, n, t, c->dst, n, t, c->peer, comm, r)); break;
  case PL_GROUP_SCATTER: PLM_TRY(c->name, MPI_Iscatter(c->src, n, t, c->dst, n, t, c->peer, comm, r)); break;
  case PL_GROUP_REDUCE_SCATTER: PLM_TRY(c->name, MPI_Ireduce_scatter_block(c->src, c->dst, n, t, op, comm, r)); break;
  case PL_GROUP_ALL_TO_ALL: PLM_TRY(c->name, MPI_Ialltoall(c->src, n, t, c->dst, n, t, comm, r)); break;
  default: PLM_TRY(c->name, MPI_Ibarrier(comm, r));
  }
  return PL_OK;
}

static bool can_cut(PlGroupKind k) {
  return k == PL_GROUP_ALL_REDUCE || k == PL_GROUP_REDUCE || k == PL_GROUP_BROADCAST || k == PL_GROUP_SEND || k == PL_GROUP_RECEIVE;
}

/* Under the lock. */
static PlStatus issue(const PlGroupCall *c, PlmWork *w) {
  MPI_Op op = MPI_OP_NULL;
  if (c->kind == PL_GROUP_ALL_REDUCE || c->kind == PL_GROUP_REDUCE || c->kind == PL_GROUP_REDUCE_SCATTER) PL_TRY(plm_op(c, &op));
  if (!can_cut(c->kind)) {
    w->nrequest = 1;
    PL_TRY(issue_whole(c, w, op));
  } else {
    const size_t size = pl_dtype_size(c->dtype);
    for (int64_t at = 0; at < c->count || w->nrequest == 0; at += MAX_COUNT) {
      const int64_t rest = c->count - at;
      PLM_TRY(c->name, issue_cut(c, w->group, op, (size_t)at * size, (int)(rest < MAX_COUNT ? rest : MAX_COUNT), &w->request[w->nrequest]));
      w->nrequest++;
    }
  }
  w->number = c->kind == PL_GROUP_SEND || c->kind == PL_GROUP_RECEIVE ? -1 : w->group->calls++;
  return PL_OK;
}

static void work_free(PlmWork *w) {
  if (w->piece != MPI_DATATYPE_NULL) MPI_Type_free(&w->piece);
  free(w->request);
  free(w->lists);
  free(w);
}

static void into_background(PlmWork *w) {
  if (!plm.threaded) {
    sigset_t all, was; /* signals are the script's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    plm.threaded = pthread_create(&plm.thread, NULL, plm_thread, NULL) == 0; /* else wait() moves it on */
    pthread_sigmask(SIG_SETMASK, &was, NULL);
  }
  w->background = true;
  w->next = plm.background;
  plm.background = w;
  pthread_cond_signal(&plm.more);
}

PlStatus plm_start(const PlGroupCall *c, void **out) {
  if (!plm.open) return plm_fail(PL_ERR_STATE, "%s: MPI is not open", c->name);
  PlmWork *w = calloc(1, sizeof *w);
  const int64_t n = can_cut(c->kind) ? c->count / MAX_COUNT + 2 : 1;
  if (w) w->request = malloc((size_t)n * sizeof *w->request);
  if (!w || !w->request) {
    free(w);
    return plm_fail(PL_ERR_OOM, "%s: out of memory", c->name);
  }
  for (int64_t i = 0; i < n; i++) w->request[i] = MPI_REQUEST_NULL;
  w->piece = MPI_DATATYPE_NULL;
  w->group = c->group ? c->group : plm.group[0];
  w->name = c->name;
  w->peer = c->peer;
  w->source = -1;
  w->dtype = c->dtype;
  w->expected = c->kind == PL_GROUP_RECEIVE && c->count <= MAX_COUNT ? c->count : -1;
  pthread_mutex_lock(&plm.lock);
  PlStatus s = issue(c, w);
  if (s != PL_OK) work_free(w); /* what was issued of it is lost, as the group now is */
  else if (c->background) into_background(w);
  pthread_mutex_unlock(&plm.lock);
  if (s == PL_OK) *out = w;
  return s;
}

/* ---- until they are done --------------------------------------------------------------------------------------------- */

void plm_look(PlmWork *w) {
  int done = 0;
  if (w->done) return;
  MPI_Status one = {.MPI_SOURCE = -1};
  const int code = w->nrequest == 1 ? MPI_Test(w->request, &done, &one) : MPI_Testall(w->nrequest, w->request, &done, MPI_STATUSES_IGNORE);
  if (code != MPI_SUCCESS) {
    w->status = PL_ERR_STATE;
    plm_text(code, w->name, w->why, sizeof w->why);
    w->done = true;
  } else if (done) {
    int got = 0;
    if (w->expected >= 0 && MPI_Get_count(&one, plm_type(w->dtype), &got) == MPI_SUCCESS && got != w->expected) {
      w->status = PL_ERR_SHAPE;
      if (got == MPI_UNDEFINED)
        snprintf(w->why, sizeof w->why, "%s: what rank %d of the group sent has another dtype", w->name, one.MPI_SOURCE);
      else
        snprintf(w->why, sizeof w->why, "%s: %lld elements are wanted, rank %d of the group sent %d", w->name, (long long)w->expected,
                 one.MPI_SOURCE, got);
    }
    w->source = w->number < 0 && w->nrequest == 1 ? one.MPI_SOURCE : w->peer;
    w->done = true;
  }
}

static PlStatus outcome(const PlmWork *w) { return w->status == PL_OK ? PL_OK : plm_fail(w->status, "%s", w->why); }

PlStatus plm_test(void *work, bool *done) {
  PlmWork *w = work;
  pthread_mutex_lock(&plm.lock);
  plm_look(w);
  *done = w->done;
  pthread_mutex_unlock(&plm.lock);
  return *done ? outcome(w) : PL_OK;
}

PlStatus plm_wait(void *work, double seconds, int *source) {
  static const double LISTEN = 0.02; /* seconds between two looks at who has ended */
  PlmWork *w = work;
  const double since = plm_now();
  for (double heard = since;;) {
    pthread_mutex_lock(&plm.lock);
    plm_look(w);
    PlStatus s = PL_OK;
    const double now = plm_now();
    const bool done = w->done;
    if (!done && now - heard > LISTEN) {
      heard = now;
      plm_hear();
      s = plm_missing(w);
    }
    pthread_mutex_unlock(&plm.lock);
    if (done) break;
    PL_TRY(s);
    PL_TRY(plm_host->poll());
    if (seconds >= 0 && now - since > seconds)
      return plm_fail(PL_ERR_STATE, "%s: no end after %.4g s (the timeout); a rank of the group has not made this call, or hangs", w->name,
                      seconds);
    plm_pause(now - since);
  }
  if (source) *source = w->source;
  return outcome(w);
}

static void unlink_background(PlmWork *w) {
  for (PlmWork **p = &plm.background; *p; p = &(*p)->next)
    if (*p == w) {
      *p = w->next;
      return;
    }
}

bool plm_release(void *work) {
  PlmWork *w = work;
  if (!plm.open) return false;
  pthread_mutex_lock(&plm.lock);
  plm_look(w);
  const bool done = w->done;
  if (done) {
    if (w->background) unlink_background(w);
    work_free(w);
  } else {
    w->released = true;
    if (!w->background) into_background(w);
  }
  pthread_mutex_unlock(&plm.lock);
  return done;
}

/* ---- in the background -------------------------------------------------------------------------------------------------- */

/* Looks at all background works; how many are not done. Under the lock. */
static int look_at_all(void) {
  int left = 0;
  for (PlmWork *w = plm.background; w; w = w->next) {
    plm_look(w);
    left += !w->done;
  }
  return left;
}

void *plm_thread(void *unused) {
  (void)unused;
  pthread_mutex_lock(&plm.lock);
  for (double since = plm_now(); !plm.stop;) {
    if (!look_at_all()) {
      pthread_cond_wait(&plm.more, &plm.lock);
      since = plm_now();
      continue;
    }
    pthread_mutex_unlock(&plm.lock);
    plm_pause(plm_now() - since);
    pthread_mutex_lock(&plm.lock);
  }
  pthread_mutex_unlock(&plm.lock);
  return NULL;
}

void plm_drain(void) {
  for (const double since = plm_now();;) {
    pthread_mutex_lock(&plm.lock);
    bool waits = look_at_all() > 0;
    plm_hear();
    for (PlmWork *w = plm.background; w && waits; w = w->next)
      if (!w->done && plm_missing(w) != PL_OK) waits = false; /* it will never be done */
    pthread_mutex_unlock(&plm.lock);
    if (!waits) return;
    plm_pause(plm_now() - since);
  }
}
