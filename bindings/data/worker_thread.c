/* SPDX-License-Identifier: MIT
 * The thread of a loader's worker: makes a Lua state, then answers jobs until the pool closes. See workers.c. */
#include "bindings/data/workers.h"

#include <stdlib.h>
#include <string.h>

#include <lualib.h>

#include "engine/tensor/alloc.h"

enum { HOOK_STEP = 200 };

static const char pool_key = 0; /* in the registry: this state's Worker */

/* ---- messages ------------------------------------------------------------------------------------------------------ */

void l_message_free(Message *m) {
  if (!m) return;
  for (int i = 0; i < m->ntensor; i++) pl_tensor_share_release(m->tensor[i]);
  free(m->text);
  free(m);
}

Message *l_message_new(const char *text, size_t n, int ntensor) {
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

Message *l_message_take(lua_State *L, int i) {
  size_t n;
  const char *text = lua_tolstring(L, i, &n);
  int ntensor = lua_type(L, i + 1) == LUA_TTABLE ? (int)lua_rawlen(L, i + 1) : 0;
  Message *m = l_message_new(text, n, ntensor);
  for (int k = 0; m && k < ntensor; k++) {
    lua_rawgeti(L, i + 1, k + 1);
    PlTensor *t = l_to_tensor(L, -1);
    lua_pop(L, 1); /* the list keeps it */
    if (t && pl_tensor_share(&m->tensor[k], t) == PL_OK) {
      m->ntensor = k + 1;
      continue;
    }
    l_message_free(m);
    return NULL;
  }
  return m;
}

int l_message_push(lua_State *L, const Message *m) {
  lua_pushlstring(L, m->text, m->n);
  lua_createtable(L, m->ntensor, 0);
  for (int k = 0; k < m->ntensor; k++) {
    Box *b = l_new_box(L);
    CALL(L, pl_tensor_share_open(m->tensor[k], &b->t));
    lua_rawseti(L, -2, k + 1);
  }
  return 2;
}

/* ---- the worker's side ---------------------------------------------------------------------------------------------- */

/* Every HOOK_STEP instructions: a worker that computes for long still ends when nobody waits for it. Kernels look at the
 * same flag. */
static void stop_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &pool_key);
  const Worker *w = lua_touserdata(L, -1);
  lua_pop(L, 1);
  if (w && atomic_load_explicit(&w->halt, memory_order_relaxed)) luaL_error(L, "nobody waits for this batch");
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
    atomic_store_explicit(&w->halt, false, memory_order_relaxed);
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
  if (dropped) l_message_free(answer);
}

/* job_body(handler, message) -> text, tensors */
static int job_body(lua_State *L) {
  const Message *m = lua_touserdata(L, 2);
  lua_settop(L, 1);
  l_message_push(L, m);
  lua_call(L, 2, 2);
  if (lua_type(L, -2) != LUA_TSTRING) luaL_error(L, "a worker's answer must be text");
  return 2;
}

/* The handler is at 1, the traceback function at 2. */
static void run_job(lua_State *L, Worker *w, Message *job) {
  lua_settop(L, 2);
  lua_pushcfunction(L, job_body);
  lua_pushvalue(L, 1);
  lua_pushlightuserdata(L, job);
  int rc = lua_pcall(L, 2, 2, 2);
  Message *answer;
  if (rc == LUA_OK) {
    answer = l_message_take(L, 3);
  } else {
    size_t n = 0;
    const char *text = lua_tolstring(L, -1, &n);
    answer = text ? l_message_new(text, n, 0) : l_message_new("out of memory", 13, 0);
  }
  if (answer) answer->failed = rc != LUA_OK;
  lua_settop(L, 2);
  put_answer(w, job, answer);
  l_message_free(job);
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
  l_message_push(L, p->setup);
  lua_call(L, 3, 1);
  return 1;
}

static void note_failure(Pool *p, const char *text) {
  pthread_mutex_lock(&p->lock);
  if (!p->failure) p->failure = strdup(text);
  pthread_cond_broadcast(&p->answer);
  pthread_mutex_unlock(&p->lock);
}

void *l_worker_main(void *arg) {
  Worker *w = arg;
  Pool *p = w->pool;
  if (p->have_affinity) (void)sched_setaffinity(0, sizeof p->affinity, &p->affinity);
  plk_set_threads(1);
  plk_stop_by(&w->halt);
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
  plk_stop_by(NULL);
  lua_close(L);
  return NULL;
}
