/* SPDX-License-Identifier: MIT
 * See team.h and docs/design/threads.md. One team a process, made on first use and never ended. A job is open while
 * `ticket` is odd. A helper that finds a new odd ticket steps inside and looks again: either it still sees the job
 * open, or who closed it sees the helper inside and waits. So nobody ever waits for a helper that has not come. */
#include "kernels/cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

/* Turns of spinning before a thread sleeps, about 100 us: loops often follow each other within that. */
enum { MOST = 64, SPIN = 4000 };

static struct {
  pthread_mutex_t owner; /* held by the thread whose job is open */
  pthread_mutex_t sleep; /* with the two conditions */
  pthread_cond_t opened, left;
  int helpers;         /* under owner */
  atomic_uint ticket;  /* odd: a job is open */
  atomic_int inside;   /* helpers that may be running it */
  atomic_int asleep;   /* helpers that want to be woken */
  atomic_bool waiting; /* the owner wants to be woken when the last one leaves */
  int n;               /* the job; fixed while the ticket is odd */
  void (*work)(void *ctx, int who);
  void *ctx;
} team = {.owner = PTHREAD_MUTEX_INITIALIZER,
          .sleep = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER};
static _Thread_local bool inside_job; /* this thread runs a job's work */

static inline void pause_a_little(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/* As OMP_PROC_BIND asks: helper i on the i-th place after the first thread's. */
static void bind_helper(int who) {
#if defined(_OPENMP) && defined(__linux__)
  const int places = omp_get_num_places();
  if (omp_get_proc_bind() == omp_proc_bind_false || places < 1) return;
  int ids[CPU_SETSIZE];
  const int place = who % places, n = omp_get_place_num_procs(place);
  if (n < 1 || n > CPU_SETSIZE) return;
  omp_get_place_proc_ids(place, ids);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < n; i++)
    if (ids[i] >= 0 && ids[i] < CPU_SETSIZE) CPU_SET((size_t)ids[i], &set);
  (void)sched_setaffinity(0, sizeof set, &set);
#else
  (void)who;
#endif
}

/* The next odd ticket after `seen`. */
static unsigned next_ticket(unsigned seen) {
  for (int i = 0; i < SPIN; i++) {
    const unsigned t = atomic_load_explicit(&team.ticket, memory_order_relaxed);
    if ((t & 1) && t != seen) return t;
    pause_a_little();
  }
  unsigned t;
  pthread_mutex_lock(&team.sleep);
  atomic_fetch_add(&team.asleep, 1);
  while (t = atomic_load(&team.ticket), !(t & 1) || t == seen) pthread_cond_wait(&team.opened, &team.sleep);
  atomic_fetch_sub(&team.asleep, 1);
  pthread_mutex_unlock(&team.sleep);
  return t;
}

static void *helper(void *arg) {
  const int who = (int)(intptr_t)arg;
#if defined(_OPENMP)
  omp_set_num_threads(1); /* libraries that the work calls stay on this thread */
#endif
  bind_helper(who);
  inside_job = true;
  for (unsigned seen = 0;;) {
    seen = next_ticket(seen);
    atomic_fetch_add(&team.inside, 1);
    if (atomic_load(&team.ticket) == seen && who < team.n) team.work(team.ctx, who);
    if (atomic_fetch_sub(&team.inside, 1) == 1 && atomic_load(&team.waiting)) {
      pthread_mutex_lock(&team.sleep);
      pthread_cond_signal(&team.left);
      pthread_mutex_unlock(&team.sleep);
    }
  }
  return NULL;
}

/* Signals are for the program's own threads. */
static void hire(int n) {
  sigset_t all, was;
  sigfillset(&all);
  pthread_attr_t attr;
  if (pthread_attr_init(&attr) != 0) return;
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &was);
  pthread_t id;
  while (team.helpers < n && pthread_create(&id, &attr, helper, (void *)(intptr_t)(team.helpers + 1)) == 0) team.helpers++;
  pthread_sigmask(SIG_SETMASK, &was, NULL);
  pthread_attr_destroy(&attr);
}

static void close_job(void) {
  atomic_fetch_add(&team.ticket, 1);
  for (int i = 0; i < SPIN; i++) {
    if (atomic_load(&team.inside) == 0) return;
    pause_a_little();
  }
  pthread_mutex_lock(&team.sleep);
  atomic_store(&team.waiting, true);
  while (atomic_load(&team.inside) != 0) pthread_cond_wait(&team.left, &team.sleep);
  atomic_store(&team.waiting, false);
  pthread_mutex_unlock(&team.sleep);
}

void plk_team_run(int n, void (*work)(void *ctx, int who), void *ctx) {
  if (n > MOST) n = MOST;
  if (n < 2 || inside_job || pthread_mutex_trylock(&team.owner) != 0) {
    work(ctx, 0);
    return;
  }
  if (team.helpers < n - 1) hire(n - 1);
  team.n = n, team.work = work, team.ctx = ctx;
  atomic_fetch_add(&team.ticket, 1);
  if (atomic_load(&team.asleep) != 0) {
    pthread_mutex_lock(&team.sleep);
    pthread_cond_broadcast(&team.opened);
    pthread_mutex_unlock(&team.sleep);
  }
  inside_job = true;
  work(ctx, 0);
  inside_job = false;
  close_job();
  pthread_mutex_unlock(&team.owner);
}
