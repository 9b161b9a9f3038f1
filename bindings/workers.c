/* SPDX-License-Identifier: MIT
 * Worker threads for data loading, each with a Lua state of its own. The loader's thread submits jobs (text and
 * tensors), workers answer with text and tensors; lua/perilune/data/pack.lua makes the texts. Tensors travel as parcels
 * (engine/parcel.h), everything else by copy. The queues below are all that threads share; no thread touches another's
 * Lua state. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lualib.h>

#include "bindings/lib.h"
#include "engine/alloc.h"
#include "engine/parcel.h"

enum { MAX_WORKERS = 256, HOOK_STEP = 1000 };

/* One job or its answer. */
typedef struct Message {
  struct Message *next;
  int64_t id, pass;
  bool failed, dropped; /* dropped: nobody waits for the answer any more */
  char *text;
  size_t n;
  int ntensor;
  PlParcel *tensor[];
} Message;

typedef struct Worker {
  struct Pool *pool;
  int index;
  pthread_t thread;
  Message *current;
} Worker;

typedef struct Pool {
  pthread_mutex_t lock;
  pthread_cond_t job, answer;
  Message *jobs, *answers, *setup; /* jobs: next one first */
  char *failure; /* why a worker could not start */
  atomic_bool stop;
  pid_t owner;   /* threads do not survive fork */
  char *path, *cpath, *module;
  bool have_affinity;
  cpu_set_t affinity;
  int n; /* threads started */
  Worker worker[];
} Pool;

static const char pool_name[] = "perilune.workers";
static const char pool_key = 0; /* in a worker's registry: its Worker */

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static void message_free(Message *m) {
  if (!m) return;
  for (int i = 0; i < m->ntensor; i++) pl_parcel_release(m->tensor[i]);
  free(m->text);
  free(m);
}

static Message *message_new(const char *text, size_t n, int ntensor) {
  Message *m = calloc(1, sizeof *m + (size_t)ntensor * sizeof m->tensor[0]);
  if (!m) return NULL;
  m->text = malloc(n + 1);
  if (!m->text) {
    free(m);
    return NULL;
  }
  memcpy(m->text, text, n);
  m->text[n] = '\0';
  m->n = n;
  return m;
}

/* From the text at stack index i and the list of tensors at i + 1 (or nil). NULL: out of memory. */
static Message *message_take(lua_State *L, int i) {
  size_t n;
  const char *text = lua_tolstring(L, i, &n);
  int ntensor = lua_type(L, i + 1) == LUA_TTABLE ? (int)lua_rawlen(L, i + 1) : 0;
  Message *m = message_new(text, n, ntensor);
  for (int k = 0; m && k < ntensor; k++) {
    lua_rawgeti(L, i + 1, k + 1);
    PlTensor *t = l_to_tensor(L, -1);
    lua_pop(L, 1); /* the list keeps it */
    if (t && pl_parcel_make(&m->tensor[k], t) == PL_OK) {
      m->ntensor = k + 1;
      continue;
    }
    message_free(m);
    return NULL;
  }
  return m;
}

/* Pushes the text and a list of the tensors. */
static int message_push(lua_State *L, const Message *m) {
  lua_pushlstring(L, m->text, m->n);
  lua_createtable(L, m->ntensor, 0);
  for (int k = 0; k < m->ntensor; k++) {
    Box *b = l_new_box(L);
    CALL(L, pl_parcel_open(m->tensor[k], &b->t));
    lua_rawseti(L, -2, k + 1);
  }
  return 2;
}

/* ---- the worker's side ---------------------------------------------------------------------------------------------- */

/* Every HOOK_STEP instructions: a worker that computes for long still ends when the loader is closed. */
static void stop_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &pool_key);
  const Worker *w = lua_touserdata(L, -1);
  lua_pop(L, 1);
  if (w && atomic_load_explicit(&w->pool->stop, memory_order_relaxed)) luaL_error(L, "the loader was closed");
}

/* A message that the Lua side has given a traceback is left alone. */
static int with_traceback(lua_State *L) {
  const char *text = luaL_tolstring(L, 1, NULL);
  if (!strstr(text, "\nstack traceback:")) luaL_traceback(L, L, text, 1);
  return 1;
}

/* Waits for a job; NULL: the pool is closing. */
static Message *next_job(Worker *w) {
  Pool *p = w->pool;
  pthread_mutex_lock(&p->lock);
  while (!p->jobs && !atomic_load_explicit(&p->stop, memory_order_relaxed)) pthread_cond_wait(&p->job, &p->lock);
  Message *m = atomic_load_explicit(&p->stop, memory_order_relaxed) ? NULL : p->jobs;
  if (m) {
    p->jobs = m->next;
    m->next = NULL;
  }
  w->current = m;
  pthread_mutex_unlock(&p->lock);
  return m;
}

static void put_answer(Worker *w, const Message *job, Message *answer) {
  Pool *p = w->pool;
  pthread_mutex_lock(&p->lock);
  bool dropped = job->dropped;
  w->current = NULL;
  if (!dropped && answer) {
    answer->id = job->id;
    answer->pass = job->pass;
    answer->next = p->answers;
    p->answers = answer;
  } else if (!dropped && !p->failure) {
    p->failure = strdup("out of memory in a worker");
  }
  pthread_cond_broadcast(&p->answer);
  pthread_mutex_unlock(&p->lock);
  if (dropped) message_free(answer);
}

/* job_body(handler, message) -> text, tensors */
static int job_body(lua_State *L) {
  const Message *m = lua_touserdata(L, 2);
  lua_settop(L, 1);
  message_push(L, m);
  lua_call(L, 2, 2);
  if (lua_type(L, -2) != LUA_TSTRING) luaL_error(L, "a worker's answer must be text");
  return 2;
}

/* The handler lies at 1, the traceback function at 2. */
static void run_job(lua_State *L, Worker *w, Message *job) {
  lua_settop(L, 2);
  lua_pushcfunction(L, job_body);
  lua_pushvalue(L, 1);
  lua_pushlightuserdata(L, job);
  int rc = lua_pcall(L, 2, 2, 2);
  Message *answer;
  if (rc == LUA_OK) {
    answer = message_take(L, 3);
  } else {
    size_t n = 0;
    const char *text = lua_tolstring(L, -1, &n);
    answer = text ? message_new(text, n, 0) : message_new("out of memory", 13, 0);
  }
  if (answer) answer->failed = rc != LUA_OK;
  lua_settop(L, 2);
  put_answer(w, job, answer);
  message_free(job);
}

static void set_package_field(lua_State *L, const char *field, const char *value) {
  lua_getglobal(L, "package");
  lua_pushstring(L, value);
  lua_setfield(L, -2, field);
  lua_pop(L, 1);
}

/* Makes the state a place where perilune works, then asks the module for the handler of jobs. */
static int worker_setup(lua_State *L) {
  Worker *w = lua_touserdata(L, 1);
  const Pool *p = w->pool;
  lua_settop(L, 0);
  lua_pushlightuserdata(L, w);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &pool_key);
  lua_sethook(L, stop_hook, LUA_MASKCOUNT, HOOK_STEP);
  luaL_openlibs(L);
  set_package_field(L, "path", p->path);
  set_package_field(L, "cpath", p->cpath);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_perilune_engine); /* this file, not core.so, which would set the environment */
  lua_setfield(L, -2, "perilune.core");
  lua_settop(L, 0);
  lua_getglobal(L, "require");
  lua_pushstring(L, p->module);
  lua_call(L, 1, 1);
  lua_pushinteger(L, w->index);
  message_push(L, p->setup);
  lua_call(L, 3, 1);
  return 1;
}

static void note_failure(Pool *p, const char *text) {
  pthread_mutex_lock(&p->lock);
  if (!p->failure) p->failure = strdup(text);
  pthread_cond_broadcast(&p->answer);
  pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg) {
  Worker *w = arg;
  Pool *p = w->pool;
  if (p->have_affinity) (void)sched_setaffinity(0, sizeof p->affinity, &p->affinity);
  plk_set_threads(1);
  pl_pool_put(pl_pool_get(1), 1); /* from here on what the engine keeps for this thread is freed when it ends */
  lua_State *L = luaL_newstate();
  if (!L) {
    note_failure(p, "out of memory for a worker");
    return NULL;
  }
  lua_pushcfunction(L, with_traceback);
  lua_pushcfunction(L, worker_setup);
  lua_pushlightuserdata(L, w);
  if (lua_pcall(L, 1, 1, 1) != LUA_OK) {
    const char *text = lua_tostring(L, -1);
    note_failure(p, text ? text : "out of memory for a worker");
  } else {
    lua_insert(L, 1);
    for (Message *job; (job = next_job(w));) run_job(L, w, job);
  }
  lua_sethook(L, NULL, 0, 0); /* finalizers run in peace */
  lua_close(L);
  return NULL;
}

/* ---- the loader's side ------------------------------------------------------------------------------------------------ */

static void free_list(Message *m) {
  while (m) {
    Message *next = m->next;
    message_free(m);
    m = next;
  }
}

/* Ends the threads and frees everything. In a forked child there are no threads, and the lock may be held by one that
 * is not there: then the memory stays. */
static void pool_close(Pool *p) {
  if (!p || p->owner != getpid()) return;
  pthread_mutex_lock(&p->lock);
  atomic_store_explicit(&p->stop, true, memory_order_relaxed);
  pthread_cond_broadcast(&p->job);
  pthread_mutex_unlock(&p->lock);
  for (int i = 0; i < p->n; i++) pthread_join(p->worker[i].thread, NULL);
  free_list(p->jobs);
  free_list(p->answers);
  message_free(p->setup);
  free(p->failure);
  free(p->path);
  free(p->cpath);
  free(p->module);
  pthread_cond_destroy(&p->job);
  pthread_cond_destroy(&p->answer);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

static Pool *pool_alloc(int n) {
  Pool *p = calloc(1, sizeof *p + (size_t)n * sizeof p->worker[0]);
  if (!p) return NULL;
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->job, &attr);
  pthread_cond_init(&p->answer, &attr);
  pthread_condattr_destroy(&attr);
  p->owner = getpid();
  for (int i = 0; i < n; i++) p->worker[i] = (Worker){.pool = p, .index = i + 1};
  return p;
}

static char *copy_package_field(lua_State *L, const char *field) {
  lua_getglobal(L, "package");
  char *s = NULL;
  if (lua_type(L, -1) == LUA_TTABLE && lua_getfield(L, -1, field) == LUA_TSTRING) s = strdup(lua_tostring(L, -1));
  lua_settop(L, 5);
  return s ? s : strdup("");
}

/* Signals belong to the script's thread. */
static int start_threads(Pool *p, int n) {
  sigset_t all, old;
  int code = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  for (; p->n < n && code == 0; p->n += code == 0)
    code = pthread_create(&p->worker[p->n].thread, NULL, worker_main, &p->worker[p->n]);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return code;
}

static int pool_gc(lua_State *L) {
  Pool **box = luaL_checkudata(L, 1, pool_name);
  Pool *p = *box;
  *box = NULL;
  pool_close(p);
  return 0;
}

static Pool *check_pool(lua_State *L) {
  Pool **box = luaL_checkudata(L, 1, pool_name);
  if (!*box) l_error(L, "data.DataLoader: its workers were closed");
  if (*box && (*box)->owner != getpid()) l_error(L, "data.DataLoader: worker threads do not survive fork; make a new loader");
  return *box;
}

/* workers(n, module, text, tensors) -> pool; each worker calls require(module)(index, text, tensors) for its handler */
static int workers_new(lua_State *L) {
  int64_t n = l_check_int(L, 1, "data.DataLoader", "workers");
  luaL_checkstring(L, 2);
  luaL_checkstring(L, 3);
  lua_settop(L, 4);
  if (n < 1 || n > MAX_WORKERS) return l_error(L, "data.DataLoader: workers must be 0 to %d, got %lld", MAX_WORKERS, (long long)n);
  Pool **box = lua_newuserdatauv(L, sizeof *box, 0); /* 5 */
  *box = NULL;
  luaL_setmetatable(L, pool_name);
  Pool *p = *box = pool_alloc((int)n);
  if (!p) return l_error(L, "data.DataLoader: out of memory for workers");
  p->path = copy_package_field(L, "path");
  p->cpath = copy_package_field(L, "cpath");
  p->module = strdup(lua_tostring(L, 2));
  p->setup = message_take(L, 3);
  if (!p->path || !p->cpath || !p->module || !p->setup) return l_error(L, "data.DataLoader: out of memory for workers");
  if (lua_getfield(L, LUA_REGISTRYINDEX, "perilune.affinity") == LUA_TSTRING && lua_rawlen(L, -1) == sizeof p->affinity) {
    memcpy(&p->affinity, lua_tostring(L, -1), sizeof p->affinity);
    p->have_affinity = true;
  }
  lua_settop(L, 5);
  int code = start_threads(p, (int)n);
  if (code) return l_error(L, "data.DataLoader: cannot start a worker thread: %s", strerror(code));
  return 1;
}

/* pool:submit(pass, id, text, tensors) */
static int workers_submit(lua_State *L) {
  Pool *p = check_pool(L);
  int64_t pass = luaL_checkinteger(L, 2), id = luaL_checkinteger(L, 3);
  luaL_checkstring(L, 4);
  lua_settop(L, 5);
  Message *m = message_take(L, 4);
  if (!m) return l_error(L, "data.DataLoader: out of memory for a job");
  m->pass = pass;
  m->id = id;
  pthread_mutex_lock(&p->lock);
  Message **at = &p->jobs; /* before those of older passes, which may have been left */
  while (*at && (*at)->pass >= pass) at = &(*at)->next;
  m->next = *at;
  *at = m;
  pthread_cond_signal(&p->job);
  pthread_mutex_unlock(&p->lock);
  return 0;
}

/* The answer of a job, unlinked; NULL if it is not there. Under the lock. */
static Message *find_answer(Pool *p, int64_t pass, int64_t id) {
  for (Message **at = &p->answers; *at; at = &(*at)->next)
    if ((*at)->pass == pass && (*at)->id == id) {
      Message *m = *at;
      *at = m->next;
      return m;
    }
  return NULL;
}

static struct timespec after(int64_t ms) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_sec += ms / 1000;
  t.tv_nsec += (ms % 1000) * 1000000;
  if (t.tv_nsec >= 1000000000) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000;
  }
  return t;
}

static int push_answer(lua_State *L) { return message_push(L, lua_touserdata(L, 1)); }

/* pool:take(pass, id, ms) -> nil (not within ms milliseconds) | true, text, tensors | false, message.
 * Short waits, so that the caller's Lua code sees Ctrl-C. */
static int workers_take(lua_State *L) {
  Pool *p = check_pool(L);
  int64_t pass = luaL_checkinteger(L, 2), id = luaL_checkinteger(L, 3), ms = luaL_checkinteger(L, 4);
  struct timespec until = after(ms);
  char *failure = NULL;
  pthread_mutex_lock(&p->lock);
  Message *m = find_answer(p, pass, id);
  for (int rc = 0; !m && !p->failure && rc == 0; m = find_answer(p, pass, id))
    rc = pthread_cond_timedwait(&p->answer, &p->lock, &until);
  if (!m && p->failure) failure = strdup(p->failure);
  pthread_mutex_unlock(&p->lock);
  if (m && !m->failed) {
    lua_pushboolean(L, 1);
    lua_pushcfunction(L, push_answer); /* what it raises must not pass by message_free */
    lua_pushlightuserdata(L, m);
    int rc = lua_pcall(L, 1, 2, 0);
    message_free(m);
    return rc == LUA_OK ? 3 : lua_error(L);
  }
  if (!m && !failure) return 0;
  lua_pushboolean(L, 0);
  if (m)
    lua_pushlstring(L, m->text, m->n);
  else
    lua_pushstring(L, failure);
  message_free(m);
  free(failure);
  return 2;
}

static void drop(Message **list, int64_t pass) {
  while (*list) {
    Message *m = *list;
    if (m->pass != pass) {
      list = &m->next;
      continue;
    }
    *list = m->next;
    message_free(m);
  }
}

/* pool:cancel(pass): its jobs are not begun any more, its answers are freed. */
static int workers_cancel(lua_State *L) {
  Pool **box = luaL_checkudata(L, 1, pool_name);
  int64_t pass = luaL_checkinteger(L, 2);
  Pool *p = *box;
  if (!p || p->owner != getpid()) return 0;
  pthread_mutex_lock(&p->lock);
  drop(&p->jobs, pass);
  drop(&p->answers, pass);
  for (int i = 0; i < p->n; i++)
    if (p->worker[i].current && p->worker[i].current->pass == pass) p->worker[i].current->dropped = true;
  pthread_mutex_unlock(&p->lock);
  return 0;
}

void l_workers_register(lua_State *L) {
  static const luaL_Reg methods[] = {{"submit", workers_submit}, {"take", workers_take}, {"cancel", workers_cancel},
                                     {"close", pool_gc},         {NULL, NULL}};
  lua_pushcfunction(L, workers_new);
  lua_setfield(L, -2, "workers");
  luaL_newmetatable(L, pool_name);
  lua_pushcfunction(L, pool_gc);
  lua_setfield(L, -2, "__gc");
  luaL_newlib(L, methods);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}
