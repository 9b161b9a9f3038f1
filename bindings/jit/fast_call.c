/* SPDX-License-Identifier: MIT
 * Calls of a jitted function that are like an earlier one, without Lua on the way: do the arguments fit, is all that guards saw
 * as it was, then run the program and hand its outputs out. Anything else is for lua/perilune/jit/init.lua. */
#include <string.h>
#include <time.h>

#include "bindings/core/lib.h"
#include "bindings/jit/program.h"
#include "engine/call/autocast.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"

enum { WHOLE = 100, TENSOR = 101, FEW = 24 };
enum {
  PROGRAM = 1,
  WATCH,
  READY,
  FAILED,
  TRACE,
  CONSTANTS,
  WRITTEN,
  NVALUES = WRITTEN
}; /* user values; WRITTEN: the function itself, or nil */
enum { TRIES = 8, FEW_NODES = 12, FEW_BYTES = 1 << 18 };

/* One argument as it has to be. Of a tensor: dtype, what tracks it as in jit_key, and its shape from dims on; order: of its dims in
 * memory, if `permuted` says that it is not row-major. */
typedef struct Arg {
  uint8_t type, dtype, ndim, device;
  char track;
  bool permuted;
  uint8_t order[PL_MAX_DIM];
  int32_t dims;
  union {
    int64_t i;
    double d;
  } v;
} Arg;

#define QUICK_MAGIC UINT64_C(0x2b7e151628aed2a6)

/* A trace that can be called quickly. results: output number from 1 on, minus the number of an argument, or 0, a constant. */
typedef struct Quick {
  uint64_t magic; /* QUICK_MAGIC: a look at the metatable takes longer than the calls that are worth a hurry */
  const Program *p;
  int32_t nargs, nresults, nin;
  uint8_t grad_off, autocast, floating, device;
  uint64_t rules;
  uint32_t libraries; /* pl_device_modes() */
  /* Small programs: a call as it was written may be faster than one of the graph, whose bits it has. The first calls are made either way
   * in turn, and measured. */
  bool written;
  uint8_t asked; /* as written: calls since it was asked whether everything stands, which only keeps count of traces then */
  uint8_t tries; /* TRIES: `written` is decided */
  double least[2];
  int64_t *dims;
  int32_t *results, *same; /* same: of each input, arguments and their .grad, the first that is the same tensor */
  Arg args[];
} Quick;

static const char quick_meta[] = "perilune.quick";

/* As in jit_key: g for a leaf that requires a gradient, G for one that has a .grad, h for a tensor with a history. */
static char track_of(const PlTensor *t, PlTensor **grad) {
  PlNode *node = NULL;
  uint32_t slot;
  *grad = NULL;
  if ((!t->node && !t->more) || !pl_entry_get(t, pl_key_ambient(), &node, &slot)) return 0;
  if (node->kind != PL_NODE_LEAF) return 'h';
  *grad = node->grad;
  return node->grad ? 'G' : 'g';
}

static void read_modes(Quick *q) {
  q->grad_off = pl_state.grad_off;
  q->autocast = (uint8_t)pl_autocast_dtype();
  q->floating = (uint8_t)pl_default_float();
  q->device = pl_state.device;
  q->rules = pl_state.rules;
  q->libraries = pl_device_modes();
}

static bool same_modes(const Quick *q) {
  return q->grad_off == pl_state.grad_off && q->autocast == (uint8_t)pl_autocast_dtype() && q->device == pl_state.device &&
         q->floating == (uint8_t)pl_default_float() && q->rules == pl_state.rules && q->libraries == pl_device_modes();
}

/* ---- does a call fit? ----------------------------------------------------------------------------------------- */

static bool same_tensor(const Arg *a, const int64_t *dims, const PlTensor *t, PlTensor **grad) {
  if (t->a.dtype != a->dtype || t->a.device != a->device || t->a.ndim != a->ndim || track_of(t, grad) != a->track) return false;
  if (PL_UNLIKELY(pl_history_old(t))) return false; /* jit_key brings it up to date */
  for (int d = 0; d < a->ndim; d++)
    if (t->a.shape[d] != dims[d]) return false;
  uint8_t order[PL_MAX_DIM];
  return l_layout_permuted(&t->a, order) == a->permuted && (!a->permuted || memcmp(order, a->order, a->ndim) == 0);
}

static bool same_plain(lua_State *L, int i, const Arg *a) {
  switch (a->type) {
  case WHOLE: return lua_isinteger(L, i) && lua_tointeger(L, i) == a->v.i;
  case LUA_TNUMBER: {
    if (lua_type(L, i) != LUA_TNUMBER || lua_isinteger(L, i)) return false;
    double d = lua_tonumber(L, i);
    return memcmp(&d, &a->v.d, sizeof d) == 0;
  }
  case LUA_TBOOLEAN: return lua_isboolean(L, i) && lua_toboolean(L, i) == (int)a->v.i;
  default: return lua_isnil(L, i);
  }
}

/* Are those of the n tensors one that were one, and no others? Marks those that are the first of their kind, so that a call costs by
 * their number alone. */
static bool same_repeats(PlTensor *const *in, const int32_t *same, int32_t n) {
  bool fit = true;
  int32_t k = 0;
  for (; k < n && fit; k++) {
    const int32_t s = same[k];
    if (s < k ? in[k] == in[s] : !(in[k]->flags & PL_T_MET)) in[k]->flags |= PL_T_MET;
    else fit = false;
  }
  while (k-- > 0) in[k]->flags &= (uint16_t)~PL_T_MET;
  return fit;
}

/* The same for tensors that are noted. */
static void note_repeats(PlTensor *const *in, int32_t *same, int32_t n) {
  for (int32_t k = 0; k < n; k++) {
    same[k] = k;
    if (in[k]->flags & PL_T_MET)
      for (same[k] = 0; in[same[k]] != in[k];) same[k]++;
    in[k]->flags |= PL_T_MET;
  }
  for (int32_t k = 0; k < n; k++) in[k]->flags &= (uint16_t)~PL_T_MET;
}

/* Arguments from `first` on; in[] takes the program's inputs. */
static bool fits(lua_State *L, const Quick *q, int first, int n, PlTensor **in) {
  if (n != q->nargs || !same_modes(q)) return false;
  int32_t at = 0;
  for (int k = 0; k < n; k++) {
    const Arg *a = &q->args[k];
    PlTensor *t = l_to_tensor(L, first + k), *grad;
    if (!t != (a->type != TENSOR)) return false;
    if (!t) {
      if (!same_plain(L, first + k, a)) return false;
      continue;
    }
    if (!same_tensor(a, q->dims + a->dims, t, &grad)) return false;
    in[at++] = t;
    if (grad) in[at++] = grad;
  }
  return same_repeats(in, q->same, at);
}

/* ---- making ---------------------------------------------------------------------------------------------------- */

static bool note_arg(lua_State *L, int i, Quick *q, Arg *a, int32_t *ndims, PlTensor **in) {
  PlTensor *t = l_to_tensor(L, i), *grad;
  if (t) {
    *a = (Arg){.type = TENSOR, .dtype = t->a.dtype, .ndim = t->a.ndim, .device = t->a.device, .track = track_of(t, &grad), .dims = *ndims};
    a->permuted = l_layout_permuted(&t->a, a->order);
    memcpy(q->dims + *ndims, t->a.shape, t->a.ndim * sizeof *q->dims);
    *ndims += t->a.ndim;
    in[q->nin++] = t;
    if (grad) in[q->nin++] = grad;
    return true;
  }
  *a = (Arg){.type = (uint8_t)lua_type(L, i)};
  if (a->type == LUA_TNUMBER && lua_isinteger(L, i)) a->type = WHOLE;
  if (a->type == WHOLE) a->v.i = lua_tointeger(L, i);
  if (a->type == LUA_TNUMBER) a->v.d = lua_tonumber(L, i);
  if (a->type == LUA_TBOOLEAN) a->v.i = lua_toboolean(L, i);
  return a->type == WHOLE || a->type == LUA_TNUMBER || a->type == LUA_TBOOLEAN || a->type == LUA_TNIL;
}

/* Is there so little to do that calling the graph may cost more than it saves? Never on another device, whose work goes on behind the
 * call that is measured, and which captures graphs. */
static bool is_small(const Program *p) {
  int64_t bytes = 0;
  int32_t nodes = 0;
  for (int32_t i = 0; i < p->f->nnodes; i++) nodes += !(p->f->nodes[i].flags & PL_FN_VIEW);
  for (PlGVal v = 0; v < p->f->nvals; v++) {
    if (p->f->vals[v].device != PL_CPU) return false;
    bytes += pl_gvalue_bytes(&p->f->vals[v]);
  }
  return nodes <= FEW_NODES && bytes <= FEW_BYTES;
}

/* jit_quick(program, watch, ready or nil, failed or nil, trace, {constants}, {results}, function or nil, …) → what jit_call tries, or nil if these
 * arguments have to be looked at in Lua. ready(trace): counters move, settings are asked; false: it is out of date. failed(trace)
 * takes that back. function: what may be called in the graph's place. */
static int jit_quick(lua_State *L) {
  enum { FIRST = 9 };
  const Program *p = l_check_program(L, 1);
  luaL_checktype(L, 7, LUA_TTABLE);
  if (!l_to_watch(L, 2)) return l_error(L, "jit_quick: no watch");
  int n = lua_gettop(L) - FIRST + 1;
  size_t nresults = lua_rawlen(L, 7), ndims = 0;
  for (int k = 0; k < n; k++) {
    const PlTensor *t = l_to_tensor(L, FIRST + k);
    if (t) ndims += t->a.ndim;
  }
  PlTensor **in = lua_newuserdatauv(L, 2 * (size_t)n * sizeof *in + 1, 0);
  Quick *q = lua_newuserdatauv(
      L, sizeof *q + (size_t)n * sizeof(Arg) + ndims * sizeof *q->dims + (nresults + 2 * (size_t)n) * sizeof *q->results, NVALUES);
  *q = (Quick){.magic = QUICK_MAGIC, .p = p, .nargs = n, .nresults = (int32_t)nresults};
  q->dims = (int64_t *)(void *)(q->args + n);
  q->results = (int32_t *)(void *)(q->dims + ndims);
  q->same = q->results + nresults;
  int32_t used = 0;
  for (int k = 0; k < n; k++)
    if (!note_arg(L, FIRST + k, q, &q->args[k], &used, in)) return 0;
  for (size_t k = 0; k < nresults; k++) {
    lua_rawgeti(L, 7, (lua_Integer)k + 1);
    q->results[k] = (int32_t)lua_tointeger(L, -1);
    lua_pop(L, 1);
    if (q->results[k] > p->nuser || q->results[k] < -n) return 0;
  }
  if (q->nin != p->nargs) return 0;
  note_repeats(in, q->same, q->nin);
  read_modes(q);
  q->tries = lua_isfunction(L, 8) && is_small(p) ? 0 : TRIES;
  for (int k = 1; k <= NVALUES; k++) {
    lua_pushvalue(L, k <= CONSTANTS ? k : 8);
    lua_setiuservalue(L, -2, k);
  }
  luaL_setmetatable(L, quick_meta);
  return 1;
}

/* ---- calling --------------------------------------------------------------------------------------------------- */

/* Calls user value `which` of the quick at `at` with its trace → its result as a boolean; true if there is none. */
static bool tell(lua_State *L, int at, int which) {
  lua_getiuservalue(L, at, which);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    return true;
  }
  lua_getiuservalue(L, at, TRACE);
  l_call_held(L, 1, 1);
  bool yes = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return yes;
}

static int give_results(lua_State *L, const Quick *q, int at, int boxes) {
  luaL_checkstack(L, q->nresults + 4, NULL);
  for (int32_t k = 0; k < q->nresults; k++) {
    int32_t r = q->results[k];
    if (r > 0) lua_pushvalue(L, boxes + r);
    else if (r < 0) lua_pushvalue(L, 1 - r);
    else {
      lua_getiuservalue(L, at, CONSTANTS);
      lua_rawgeti(L, -1, k + 1);
      lua_remove(L, -2);
    }
  }
  return q->nresults;
}

/* The quick at `at` fits, the arguments stand at 2 …: does everything else? in[] takes what is read beside them. */
static bool stands(lua_State *L, const Quick *q, int at, PlTensor **in) {
  if (!l_program_same(q->p)) return false;
  for (int32_t i = 0; PL_UNLIKELY(pl_state.torn) && i < q->p->nargs; i++)
    if (pl_grad_torn(in[i])) return false;
  lua_getiuservalue(L, at, WATCH);
  bool holds = l_watch_holds(L, lua_gettop(L));
  lua_pop(L, 1);
  return holds && l_program_inputs(q->p, in) && l_program_apart(q->p, in);
}

/* Runs the graph → how many results; -1: it is out of date. */
static int run_graph(lua_State *L, const Quick *q, int at, PlTensor **in, PlTensor **out) {
  const Program *p = q->p;
  l_program_begin(p);
  if (!tell(L, at, READY)) return -1;
  l_collect(L);
  luaL_checkstack(L, p->nuser + 8, NULL);
  int boxes = lua_gettop(L);
  for (int32_t o = 0; o < p->nuser; o++) l_new_box(L);
  /* what the collector ran may have assigned a gradient */
  PlStatus s = fits(L, q, 2, q->nargs, in) && l_program_inputs(p, in) ? l_program_run(L, p, in, out)
                                                                      : pl_fail(PL_ERR_STATE, "jit: a gradient that is read is gone");
  if (s != PL_OK) {
    lua_getiuservalue(L, at, FAILED);
    lua_getiuservalue(L, at, TRACE);
    return l_program_failed(L, s, lua_gettop(L) - 1, lua_gettop(L));
  }
  for (int32_t o = 0; o < p->nuser; o++) l_box(L, boxes + 1 + o)->t = out[o];
  return give_results(L, q, at, boxes);
}

static int after_slow(lua_State *L, int status, lua_KContext n) {
  (void)status;
  return lua_gettop(L) - (int)n;
}

/* Calls the function itself → how many results. */
static int run_written(lua_State *L, const Quick *q, int at) {
  const int top = lua_gettop(L);
  luaL_checkstack(L, q->nargs + 4, NULL);
  lua_getiuservalue(L, at, WRITTEN);
  for (int k = 0; k < q->nargs; k++) lua_pushvalue(L, 2 + k);
  lua_callk(L, q->nargs, LUA_MULTRET, top, after_slow);
  return lua_gettop(L) - top;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static Quick *to_quick(lua_State *L, int i) {
  Quick *q = lua_touserdata(L, i);
  return q && lua_rawlen(L, i) >= sizeof *q && q->magic == QUICK_MAGIC ? q : NULL;
}

/* The arguments fit → how many results; -1: something else does not. */
static int run_either(lua_State *L, Quick *q, int at, PlTensor **in, PlTensor **out) {
  enum { ASK = 64 };
  if (q->written && ++q->asked % ASK != 0) return run_written(L, q, at);
  const bool settled = q->tries >= TRIES;
  double begin = settled ? 0 : now();
  if (!stands(L, q, at, in)) return -1;
  if (PL_LIKELY(settled)) return q->written ? run_written(L, q, at) : run_graph(L, q, at, in, out);
  const int way = q->tries & 1;
  if (way) begin = now(); /* as written, one call in ASK asks whether guards stand: the graph's way asks every time */
  const int results = way ? run_written(L, q, at) : run_graph(L, q, at, in, out);
  const double took = now() - begin;
  if (q->tries < 2 || took < q->least[way]) q->least[way] = took;
  if (++q->tries >= TRIES) q->written = q->least[1] < q->least[0];
  return results;
}

/* jit(…): tries self._quick, a list; else calls upvalue 1, which may yield. */
static int jit_call(lua_State *L) {
  int n = lua_gettop(L);
  l_modes_follow(L); /* the switch may still be that of a coroutine that yielded */
  lua_pushliteral(L, "_quick");
  if (!l_jit_as_written() && lua_istable(L, 1) && lua_rawget(L, 1) == LUA_TTABLE) {
    Quick *q;
    for (lua_Integer k = 1; lua_rawgeti(L, n + 1, k) == LUA_TUSERDATA && (q = to_quick(L, n + 2)); k++) {
      PlTensor *few[FEW], **in = few;
      int32_t most = q->p->f->ninputs + q->p->f->noutputs;
      if (n - 1 == q->nargs && most > FEW) {
        in = lua_newuserdatauv(L, (size_t)most * sizeof *in, 0);
        lua_insert(L, n + 2); /* stays while it is used */
      }
      int at = lua_gettop(L);
      if (n - 1 == q->nargs && fits(L, q, 2, n - 1, in)) {
        if (k > 1) { /* of many sizes the last one is often the next */
          lua_rawgeti(L, n + 1, 1);
          lua_rawseti(L, n + 1, k);
          lua_pushvalue(L, at);
          lua_rawseti(L, n + 1, 1);
        }
        int res = run_either(L, q, at, in, in + q->p->f->ninputs);
        if (res >= 0) {
          lua_pushliteral(L, "runs");
          lua_pushvalue(L, -1);
          lua_rawget(L, 1);
          lua_pushinteger(L, lua_tointeger(L, -1) + 1);
          lua_replace(L, -2);
          lua_rawset(L, 1);
          lua_pushliteral(L, "last");
          lua_getiuservalue(L, at, TRACE);
          lua_rawset(L, 1);
          return res;
        }
      }
      lua_settop(L, n + 1);
    }
  }
  lua_settop(L, n);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_callk(L, n, LUA_MULTRET, 0, after_slow);
  return after_slow(L, LUA_OK, 0);
}

lua_CFunction l_jit_call(void) { return jit_call; }

/* jit_callable(f) → jit_call in front of f */
static int jit_callable(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_pushcclosure(L, jit_call, 1);
  return 1;
}

void l_jit_quick_register(lua_State *L) {
  lua_pushcfunction(L, jit_quick);
  lua_setfield(L, -2, "jit_quick");
  lua_pushcfunction(L, jit_callable);
  lua_setfield(L, -2, "jit_callable");
  luaL_newmetatable(L, quick_meta);
  lua_pop(L, 1);
}
