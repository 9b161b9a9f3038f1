/* SPDX-License-Identifier: MIT
 * The MPI plug-in's one door: starting MPI, groups, and the table of functions. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "kernels/mpi/mpi.h"

PlmState plm = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
const PlGroupHost *plm_host;

/* ---- small things ---------------------------------------------------------------------------------------------------- */

PlStatus plm_fail(PlStatus code, const char *fmt, ...) {
  char text[400];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return plm_host->fail(code, text);
}

void plm_text(int code, const char *name, char *out, size_t size) {
  char text[MPI_MAX_ERROR_STRING + 1] = "MPI failed";
  int n = 0;
  MPI_Error_string(code, text, &n);
  snprintf(out, size, "%s: %.120s; if the ranks' tensors differ, PERILUNE_DISTRIBUTED_DEBUG=1 says how", name, text);
}

PlStatus plm_failed(int code, const char *name) {
  char text[240];
  plm_text(code, name, text, sizeof text);
  return plm_host->fail(PL_ERR_STATE, text);
}

double plm_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Processes may share a core, so the one that waits lets go of it. */
void plm_pause(double waited) {
  if (waited < 20e-6) return;
  if (waited < 1e-3) {
    sched_yield();
    return;
  }
  const long ns = waited < 0.05 ? 20000 : waited < 1 ? 100000 : 1000000;
  nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* ---- starting ---------------------------------------------------------------------------------------------------------- */

/* Open MPI's shared memory copies from process to process by a system call that containers may forbid. */
static void avoid_forbidden_calls(void) {
  char a = 1, b = 0;
  struct iovec from = {&a, 1}, to = {&b, 1};
  if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1) setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

static PlStatus add_group(MPI_Comm comm, const int *ranks, int n, PlmGroup **out) {
  PlmGroup *g = calloc(1, sizeof *g);
  int *world = malloc((size_t)n * sizeof *world);
  if (!g || !world) {
    free(g);
    free(world);
    return plm_fail(PL_ERR_OOM, "new_group: out of memory");
  }
  for (int i = 0; i < n; i++) world[i] = ranks ? ranks[i] : i;
  *g = (PlmGroup){.comm = comm, .id = plm.ngroup, .size = n, .world = world};
  MPI_Comm_rank(comm, &g->rank);
  plm.group[plm.ngroup] = *out = g;
  return PL_OK;
}

static void describe(void) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "MPI";
  int n = 0;
  MPI_Get_library_version(text, &n);
  text[strcspn(text, ",\n")] = '\0';
  snprintf(plm.info.library, sizeof plm.info.library, "%.120s", text);
  MPI_Comm node;
  if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, plm.info.rank, MPI_INFO_NULL, &node) != MPI_SUCCESS) return;
  MPI_Comm_rank(node, &plm.info.local_rank);
  MPI_Comm_size(node, &plm.info.local_size);
  MPI_Comm_free(&node);
}

static PlStatus start_mpi(void) {
  static const char who[] = "init_process_group";
  int running = 0, over = 0, level = 0;
  PLM_TRY(who, MPI_Initialized(&running));
  PLM_TRY(who, MPI_Finalized(&over));
  if (over) return plm_fail(PL_ERR_STATE, "init_process_group: MPI has ended in this process and cannot start again");
  if (!running) {
    avoid_forbidden_calls();
    PLM_TRY(who, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level));
    plm.ours = true;
  } else PLM_TRY(who, MPI_Query_thread(&level));
  if (level < MPI_THREAD_SERIALIZED) return plm_fail(PL_ERR_UNSUPPORTED, "init_process_group: this MPI serves one thread only");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* duplicates inherit it */
  MPI_Comm world;
  PLM_TRY(who, MPI_Comm_dup(MPI_COMM_WORLD, &world));
  PLM_TRY(who, MPI_Comm_dup(MPI_COMM_WORLD, &plm.control));
  MPI_Comm_rank(world, &plm.info.rank);
  MPI_Comm_size(world, &plm.info.size);
  describe();
  const size_t n = (size_t)plm.info.size;
  plm.left = calloc(n, sizeof *plm.left);
  plm.left_groups = calloc(n, sizeof *plm.left_groups);
  plm.left_at = calloc(n, sizeof *plm.left_at);
  if (!plm.left || !plm.left_groups || !plm.left_at) return plm_fail(PL_ERR_OOM, "init_process_group: out of memory");
  PlmGroup *g;
  PL_TRY(add_group(world, NULL, plm.info.size, &g));
  plm.ngroup = 1;
  return plm_types_open();
}

static PlStatus mpi_open(PlGroupInfo *info) {
  PlStatus s = PL_OK;
  pthread_mutex_lock(&plm.lock);
  if (!plm.open) s = start_mpi();
  if (s == PL_OK) {
    plm.open = true;
    *info = plm.info;
  }
  pthread_mutex_unlock(&plm.lock);
  return s;
}

/* ---- groups ---------------------------------------------------------------------------------------------------------------- */

static PlStatus make_group(const int *ranks, int n, PlmGroup **out) {
  static const char who[] = "new_group";
  MPI_Group all, some;
  MPI_Comm comm;
  PLM_TRY(who, MPI_Comm_group(plm.group[0]->comm, &all));
  PLM_TRY(who, MPI_Group_incl(all, n, ranks, &some));
  PLM_TRY(who, MPI_Comm_create(plm.group[0]->comm, some, &comm));
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  *out = NULL;
  if (comm != MPI_COMM_NULL) PL_TRY(add_group(comm, ranks, n, out));
  plm.ngroup++; /* numbers are the same everywhere */
  return PL_OK;
}

static PlStatus group_new(const int *ranks, int n, double seconds, void **out) {
  if (!plm.open) return plm_fail(PL_ERR_STATE, "new_group: MPI is not open");
  if (plm.ngroup == PLM_MAX_GROUP) return plm_fail(PL_ERR_UNSUPPORTED, "new_group: there are %d groups already", PLM_MAX_GROUP);
  /* Making a communicator blocks inside MPI: first wait, with a time limit, until everybody is here. */
  void *w;
  PL_TRY(plm_start(&(PlGroupCall){.name = "new_group", .kind = PL_GROUP_BARRIER}, &w));
  PlStatus s = plm_wait(w, seconds, NULL);
  plm_release(w);
  PL_TRY(s);
  PlmGroup *g = NULL;
  pthread_mutex_lock(&plm.lock);
  s = make_group(ranks, n, &g);
  pthread_mutex_unlock(&plm.lock);
  if (s == PL_OK) *out = g;
  return s;
}

static void group_info(const void *group, int *rank, int *size) {
  const PlmGroup *g = group ? group : plm.group[0];
  *rank = g->rank;
  *size = g->size;
}

__attribute__((visibility("default"))) const PlGroupTable *perilune_group_plugin(const PlGroupHost *host);

const PlGroupTable *perilune_group_plugin(const PlGroupHost *host) {
  static const PlGroupTable table = {.abi = PL_GROUP_ABI,
                                     .size = sizeof table,
                                     .kind = "mpi",
                                     .open = mpi_open,
                                     .close = plm_close,
                                     .group_new = group_new,
                                     .group_info = group_info,
                                     .start = plm_start,
                                     .test = plm_test,
                                     .wait = plm_wait,
                                     .release = plm_release};
  if (host->abi != PL_GROUP_ABI) return NULL;
  plm_host = host;
  return &table;
}
