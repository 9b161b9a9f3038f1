/* SPDX-License-Identifier: MIT
 * Worker threads for data loading, each with a Lua state of its own. The loader's thread submits jobs (text and
 * tensors), workers answer with text and tensors; lua/perilune/data/pack.lua makes the texts. Tensors are shared
 * (engine/tensor/share.h), everything else is copied. The queues below are all that threads share; no thread touches another's
 * Lua state. */
#include "bindings/data/workers.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORKERS = 256 };

static const HandleType pool_type; /* below the methods */

/* ---- the loader's side ------------------------------------------------------------------------------------------------ */

static void free_list(Message *m) {
  while (m) {
    Message *next = m->next;
    l_message_free(m);
    m = next;
  }
}

/* Ends the threads and frees everything. In a forked child there are no threads, and the lock may be held by one that
 * is not there: then the memory stays. */
static void pool_close(void *pool) {
  Pool *p = pool;
  if (p->owner != getpid()) return;
  pthread_mutex_lock(&p->lock);
  atomic_store_explicit(&p->stop, true, memory_order_relaxed);
  for (int i = 0; i < p->n; i++) atomic_store_explicit(&p->worker[i].halt, true, memory_order_relaxed);
  pthread_cond_broadcast(&p->job);
  pthread_mutex_unlock(&p->lock);
  for (int i = 0; i < p->n; i++) pthread_join(p->worker[i].thread, NULL);
  free_list(p->jobs);
  free_list(p->answers);
  l_message_free(p->setup);
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
  for (; p->n < n && code == 0; p->n += code == 0) code = pthread_create(&p->worker[p->n].thread, NULL, l_worker_main, &p->worker[p->n]);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return code;
}

static Pool *check_pool(lua_State *L) {
  Pool *p = l_check_handle(L, 1, &pool_type);
  if (p->owner != getpid()) l_error(L, "data.DataLoader: worker threads do not survive fork; make a new loader");
  return p;
}

/* workers(n, module, text, tensors) -> pool; each worker calls require(module)(index, text, tensors) for its handler */
static int workers_new(lua_State *L) {
  int64_t n = l_check_int(L, 1, "data.DataLoader", "workers");
  luaL_checkstring(L, 2);
  luaL_checkstring(L, 3);
  lua_settop(L, 4);
  if (n < 1 || n > MAX_WORKERS) return l_error(L, "data.DataLoader: workers must be 0 to %d, got %lld", MAX_WORKERS, (long long)n);
  Handle *h = l_new_handle(L, &pool_type); /* 5 */
  Pool *p = pool_alloc((int)n);
  h->p = p;
  if (!p) return l_error(L, "data.DataLoader: out of memory for workers");
  p->path = copy_package_field(L, "path");
  p->cpath = copy_package_field(L, "cpath");
  p->module = strdup(lua_tostring(L, 2));
  p->setup = l_message_take(L, 3);
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
  Message *m = l_message_take(L, 4);
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

static int push_answer(lua_State *L) { return l_message_push(L, lua_touserdata(L, 1)); }

/* pool:take(pass, id, ms) -> nil (not within ms milliseconds) | true, text, tensors | false, message.
 * Short waits, so that the caller's Lua code sees Ctrl-C. */
static int workers_take(lua_State *L) {
  Pool *p = check_pool(L);
  int64_t pass = luaL_checkinteger(L, 2), id = luaL_checkinteger(L, 3), ms = luaL_checkinteger(L, 4);
  struct timespec until = after(ms);
  char *failure = NULL;
  pthread_mutex_lock(&p->lock);
  Message *m = find_answer(p, pass, id);
  for (int rc = 0; !m && !p->failure && rc == 0; m = find_answer(p, pass, id)) rc = pthread_cond_timedwait(&p->answer, &p->lock, &until);
  if (!m && p->failure) failure = strdup(p->failure);
  pthread_mutex_unlock(&p->lock);
  if (m && !m->failed) {
    lua_pushboolean(L, 1);
    lua_pushcfunction(L, push_answer); /* what it raises must not pass by l_message_free */
    lua_pushlightuserdata(L, m);
    int rc = lua_pcall(L, 1, 2, 0);
    l_message_free(m);
    return rc == LUA_OK ? 3 : lua_error(L);
  }
  if (!m && !failure) return 0;
  lua_pushboolean(L, 0);
  if (m) lua_pushlstring(L, m->text, m->n);
  else lua_pushstring(L, failure);
  l_message_free(m);
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
    l_message_free(m);
  }
}

/* pool:cancel(pass): its jobs are not begun any more, those at hand end soon, its answers are freed. */
static int workers_cancel(lua_State *L) {
  const Handle *h = luaL_checkudata(L, 1, pool_type.name);
  int64_t pass = luaL_checkinteger(L, 2);
  Pool *p = h->p;
  if (!p || p->owner != getpid()) return 0;
  pthread_mutex_lock(&p->lock);
  drop(&p->jobs, pass);
  drop(&p->answers, pass);
  for (int i = 0; i < p->n; i++) {
    Worker *w = &p->worker[i];
    if (!w->current || w->current->pass != pass) continue;
    w->current->dropped = true;
    atomic_store_explicit(&w->halt, true, memory_order_relaxed);
  }
  pthread_mutex_unlock(&p->lock);
  return 0;
}

static const luaL_Reg methods[] = {{"submit", workers_submit}, {"take", workers_take}, {"cancel", workers_cancel}, {NULL, NULL}};
static const HandleType pool_type = {"perilune.workers", "data.DataLoader: workers", pool_close, methods, 0};

void l_workers_register(lua_State *L) {
  lua_pushcfunction(L, workers_new);
  lua_setfield(L, -2, "workers");
}
