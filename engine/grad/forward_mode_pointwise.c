/* SPDX-License-Identifier: MIT
 * Pointwise ops and their tangents in one pass over memory. The graph of tangents of most such ops is made of pointwise ops
 * again: the op and that graph become steps of plk_cpu_elementwise_steps, compiled once for a kind of call. What is not as plain as
 * that (broadcast operands, several keys, whatever a batch, a trace or a measurement has to see) goes the general way. */
#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/forward_mode.h"
#include "engine/grad/gradient_graph_cache.h"
#include "engine/ops/names.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

#include <stdlib.h>
#include <string.h>

enum {
  MAX_ARGS = PLK_EW_MAX_OP - 1,
  MAX_STEPS = 16,
  MAX_NUMBERS = 6,
  /* arrays of a program: arguments, tangents of the arguments, value, tangent, numbers of the graph; behind them temporaries */
  TANGENTS = MAX_ARGS,
  VALUE = 2 * MAX_ARGS,
  TANGENT,
  NUMBERS,
  TEMPS = NUMBERS + MAX_NUMBERS
};
_Static_assert((int)TEMPS <= (int)PLK_STEPS_ARRAYS, "arrays of a program");

typedef struct Program {
  int op;           /* its number */
  PlForward *graph; /* holds the attributes of the steps */
  PlAttrs *attrs;   /* of the op */
  PlkLoop dual;     /* both in one loop, where there is one: over value, tangent, arguments, tangents of arguments */
  uint8_t bytes[PLK_DUAL_ARRAYS];
  int passes; /* the argument whose tangent is that of the value itself; -1: the last step makes it */
  PlkSteps steps;
  PlkStep step[MAX_STEPS];
  _Alignas(8) char number[MAX_NUMBERS][8];
} Program;

/* What an op without attributes was called with last, and the program for that: what finds it in a few instructions. */
typedef struct Recent {
  uint64_t head;
  Program *program;
} Recent;
static _Thread_local Recent *recent; /* PL_NOP of them */

static void drop_program(void *p) {
  Program *own = p;
  if (!own) return;
  if (recent && recent[own->op].program == own) recent[own->op].program = NULL;
  pl_forward_graph_release(own->graph);
  if (own->attrs) pl_pool_put(own->attrs, pl_attrs_size(own->attrs));
  free(own);
}
static _Thread_local PlGradGraphCache cache = {.drop = drop_program};

void pl_forward_pointwise_clear(void) { pl_grad_graph_cache_clear(&cache); }
void pl_forward_pointwise_stats(int64_t *hits, int64_t *misses, int64_t *entries) {
  *hits = cache.hits;
  *misses = cache.misses;
  *entries = cache.entries;
}
void pl_forward_pointwise_end(void) {
  pl_grad_graph_cache_end(&cache);
  free(recent);
  recent = NULL;
}

/* ---- a call --------------------------------------------------------------------------------------------------- */

/* What an argument is. */
enum { FULL = 1, ONE = 2, MOVES = 4 /* has a tangent */ };

typedef struct Call {
  const PlOp *op;
  PlTensor *const *in;
  const PlAttrs *attrs;
  int nin;
  PlKey *key;
  uint8_t spared;       /* results that nobody reads (PlOp.spare) */
  const PlTensor *like; /* an argument of full size */
  PlTensor *v[MAX_ARGS];
  uint8_t role[MAX_ARGS];
} Call;

static inline bool plain(const PlArray *a, int dtype) { return a->dtype == dtype && a->contiguous && !a->elsewhere; }

/* The tangent of an argument, where the argument has one and it is plain. False: the general way. */
static bool find_tangent(Call *c, int i) {
  PlTensor *x = c->in[i];
  c->v[i] = NULL;
  if (x->more || (pl_state.history_moved && ((x->flags & PL_T_FOREIGN) || pl_history_old(x)))) return false;
  if (!x->node) return true;
  PlKey *k = x->node->key;
  PlTensor *v = x->node->grad;
  if (!pl_key_records(k) || !k->forward || (c->key && c->key != k) || !v) return false;
  if (v->more || v->node || !plain(&v->a, x->a.dtype) || (pl_state.history_moved && pl_history_old(v))) return false;
  c->key = k;
  c->v[i] = v;
  return true;
}

static bool find_roles(Call *c) {
  const int dtype = c->in[0]->a.dtype;
  if (dtype > PL_F64) return false;
  for (int i = 0; i < c->nin; i++) {
    const PlTensor *x = c->in[i];
    if (!x || !plain(&x->a, dtype) || !find_tangent(c, i)) return false;
    const bool one = x->a.weak || (x->a.ndim == 0 && !c->v[i]);
    if (!one && (x->a.numel == 0 || (c->like && !pl_shape_equal(&x->a, &c->like->a)))) return false;
    if (!one && !c->like) c->like = x;
    c->role[i] = (uint8_t)((one ? ONE : FULL) | (c->v[i] ? MOVES : 0));
    if (one && c->v[i]) return false;
  }
  return c->like && c->key;
}

static inline uint64_t head_of(const Call *c) {
  uint64_t head = (uint64_t)c->nin | (uint64_t)c->in[0]->a.dtype << 8;
  for (int i = 0; i < c->nin; i++) head |= (uint64_t)(c->role[i] | c->in[i]->a.weak << 3) << (16 + 8 * i);
  return head;
}

static void key_of(const Call *c, uint64_t head, PlGradGraphKey *k) {
  memcpy(k->b, &head, sizeof head);
  k->n = sizeof head;
  k->over = false;
  k->hash = head * 0x9e3779b97f4a7c15u;
  if (!c->op->nattr) return;
  const size_t n = pl_attrs_size(c->attrs);
  k->over = k->n + n > sizeof k->b;
  if (k->over) return;
  memcpy(k->b + k->n, c->attrs, n);
  k->n += n;
}

/* ---- programs ------------------------------------------------------------------------------------------------- */

/* The member of the elementwise family that op is for these attributes, with the output's dtype that of the inputs; -1: none. */
static int member(const PlOp *op, const PlAttrs *attrs) {
  if (op->cls != PL_POINTWISE || op->nout != 1 || !op->kernel[PL_CPU] || op->infer == pl_infer_predicate) return -1;
  const int code = op->fused[op->fused[1] && attrs && pl_attr_i(attrs, 0) != 0] - 1;
  return code < PLK_NEW ? code : -1;
}

/* Adds a step. one[k]: input k is one value. False: there is no such loop. */
static bool add_step(Program *p, int dtype, int code, const PlAttrs *attrs, int nin, const int *at, const bool *one, int out) {
  int ones = 0;
  for (int k = 0; k < nin; k++) ones += one[k];
  if (p->steps.n == MAX_STEPS || nin >= PLK_EW_MAX_OP || ones == nin) return false;
  PlkStep *s = &p->step[p->steps.n++];
  *s = (PlkStep){.loop = plk_cpu_elementwise_loop(code, dtype, ones > 0), .attrs = attrs ? attrs : &pl_no_attrs};
  s->at[0] = (uint8_t)out;
  s->stride[0] = 1;
  for (int k = 0; k < nin; k++) {
    s->at[k + 1] = (uint8_t)at[k];
    s->stride[k + 1] = !one[k];
  }
  p->steps.cost += plk_cpu_elementwise_cost(code);
  return s->loop != NULL;
}

/* Where the values of the graph are. */
typedef struct Places {
  const PlGradGraph *g;
  int *at; /* -1: nowhere yet */
  bool *one;
  int numbers;
  bool busy[PLK_STEPS_TEMPS];
} Places;

static bool place_number(Program *p, Places *w, PlVal v, int dtype) {
  const PlTensor *t = w->g->consts[v];
  if (w->at[v] >= 0) return true;
  if (t->a.numel != 1 || t->a.elsewhere || w->numbers == MAX_NUMBERS || !(t->a.weak || t->a.dtype == dtype)) return false;
  if (pl_is_float((PlDtype)t->a.dtype)) pl_write_f((PlDtype)dtype, p->number[w->numbers], pl_read_f(&t->a, 0));
  else pl_write_i((PlDtype)dtype, p->number[w->numbers], pl_read_i(&t->a, 0));
  w->at[v] = NUMBERS + w->numbers++;
  w->one[v] = true;
  return true;
}

static bool place_node(Program *p, Places *w, int i, int dtype) {
  const PlGradGraph *g = w->g;
  const PlGradNode *n = &g->nodes[i];
  const int code = member(n->op, n->attrs);
  int at[MAX_ARGS], out = TANGENT;
  bool one[MAX_ARGS];
  if (code < 0 || n->nin > MAX_ARGS || (n->op->nattr && !n->attrs)) return false;
  for (int k = 0; k < n->nin; k++) {
    const PlVal v = n->in[k];
    if (v < 0 || (g->consts[v] && !place_number(p, w, v, dtype)) || w->at[v] < 0) return false;
    at[k] = w->at[v];
    one[k] = w->one[v];
  }
  for (int k = 0; k < n->nin; k++) /* the output may take the place of what is read for the last time */
    if (at[k] >= TEMPS && g->last[n->in[k]] == i) w->busy[at[k] - TEMPS] = false;
  if (g->results[0] != n->first) {
    for (out = 0; out < PLK_STEPS_TEMPS && w->busy[out]; out++) {
    }
    if (out == PLK_STEPS_TEMPS) return false;
    w->busy[out] = true;
    out += TEMPS;
  }
  w->at[n->first] = out;
  return add_step(p, dtype, code, n->attrs, n->nin, at, one, out);
}

static void find_dual(Program *p, const Call *c, int code) {
  if (code < 0 || c->nin > 2 || c->role[0] & ONE) return;
  const bool first = (c->role[0] & MOVES) != 0, second = c->nin == 2 && (c->role[1] & MOVES), one = c->nin == 2 && (c->role[1] & ONE);
  p->dual = plk_cpu_elementwise_dual(code, c->in[0]->a.dtype,
                                     one       ? PLK_DUAL_BY
                                     : !second ? PLK_DUAL_FIRST
                                     : first   ? PLK_DUAL_BOTH
                                               : PLK_DUAL_SECOND);
  for (int k = 0; k < PLK_DUAL_ARRAYS; k++) p->bytes[k] = (uint8_t)(one && k == 3 ? 0 : p->steps.size);
}

static bool compile_in(Program *p, const Call *c, Places *w) {
  const PlGradGraph *g = w->g;
  const int nin = c->nin, dtype = c->in[0]->a.dtype;
  int at[MAX_ARGS];
  bool one[MAX_ARGS];
  for (PlVal v = 0; v < g->nvals; v++) {
    w->at[v] = -1;
    w->one[v] = false;
  }
  for (int i = 0; i < nin; i++) {
    at[i] = w->at[i] = i;
    one[i] = w->one[i] = (c->role[i] & ONE) != 0;
    if (c->role[i] & MOVES) w->at[nin + 1 + i] = TANGENTS + i;
  }
  w->at[nin] = VALUE;
  const int code = member(c->op, c->attrs);
  find_dual(p, c, code);
  if (code < 0 || !add_step(p, dtype, code, p->attrs, nin, at, one, VALUE)) return false;
  p->passes = -1;
  for (int i = 0; i < g->nnodes; i++)
    if (!place_node(p, w, i, dtype)) return p->dual != NULL; /* that needs no steps */
  const int result = w->at[g->results[0]];
  p->passes = result - TANGENTS;
  if (result >= TANGENTS && result < VALUE) return true;
  p->passes = -1;
  return result == TANGENT;
}

static bool sizeless(const PlOp *op) {
  for (int k = 0; k < op->nattr; k++)
    if (op->attrs[k].type != PL_A_INT && op->attrs[k].type != PL_A_FLOAT && op->attrs[k].type != PL_A_BOOL &&
        op->attrs[k].type != PL_A_SCALAR && op->attrs[k].type != PL_A_ENUM)
      return false;
  return (op->flags & PL_F_POLY) && !op->reads_values;
}

/* *out: the program; NULL: such calls go the general way. */
static PlStatus compile(const Call *c, PlTensor *y, Program **out) {
  *out = NULL;
  bool want[MAX_ARGS];
  for (int i = 0; i < c->nin; i++) want[i] = (c->role[i] & MOVES) != 0;
  if (!sizeless(c->op)) return PL_OK;
  PlForward *graph = NULL;
  PlStatus s = pl_forward_graph_get(c->op, c->in, c->nin, c->attrs, &y, want, &graph);
  if (s == PL_ERR_UNSUPPORTED || s == PL_ERR_TRACE) return PL_OK;
  if (s != PL_OK || !graph) return s;
  Program *p = graph->has[0] && graph->graph->nresults == 1 ? calloc(1, sizeof *p) : NULL;
  Places w = {.g = graph->graph};
  const size_t nvals = (size_t)w.g->nvals;
  char *room = p ? malloc(nvals * (sizeof(int) + sizeof(bool))) : NULL;
  bool fits = false;
  if (room) {
    w.at = (int *)(void *)room;
    w.one = (bool *)(room + nvals * sizeof(int));
    p->op = pl_op_id(c->op);
    p->graph = graph;
    p->steps.arrays = TEMPS;
    p->steps.size = pl_dtype_size((PlDtype)c->in[0]->a.dtype);
    fits = !c->op->nattr || (p->attrs = pl_attrs_compact(c->attrs)) != NULL;
    fits = fits && compile_in(p, c, &w);
    p->steps.step = p->step;
  }
  free(room);
  if (fits) *out = p;
  else if (p && p->graph) drop_program(p);
  else {
    free(p);
    pl_forward_graph_release(graph);
  }
  return PL_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static PlStatus result_like(PlTensor **out, const PlTensor *t) {
  const size_t bytes = (size_t)t->a.numel * pl_dtype_size((PlDtype)t->a.dtype);
  if (bytes > PL_SMALL) return pl_tensor_like(out, t, (PlDtype)t->a.dtype);
  *out = pl_tensor_small_like(t, (PlDtype)t->a.dtype, bytes);
  if (!*out) PL_FAIL(PL_ERR_OOM, "out of memory for a tangent");
  return PL_OK;
}

static PlStatus run(const Call *c, Program *p, PlTensor **out) {
  PlTensor *y, *t = NULL;
  PL_TRY(result_like(&y, c->like));
  PlStatus s = p->passes < 0 ? result_like(&t, c->like) : PL_OK;
  if (p->passes >= 0) t = pl_retain(c->v[p->passes]);
  if (s == PL_OK && p->dual && p->passes < 0) {
    char *at[PLK_DUAL_ARRAYS] = {y->a.data, t->a.data};
    int n = 2;
    for (int i = 0; i < c->nin; i++) at[n++] = c->in[i]->a.data;
    for (int i = 0; i < c->nin; i++)
      if (c->v[i]) at[n++] = c->v[i]->a.data;
    s = plk_cpu_elementwise_dual_run(p->dual, at, p->bytes, n, (int)p->steps.cost, y->a.numel);
  } else if (s == PL_OK) {
    char *at[TEMPS];
    for (int i = 0; i < MAX_ARGS; i++) {
      at[i] = c->in[i < c->nin ? i : 0]->a.data;
      at[TANGENTS + i] = i < c->nin && c->v[i] ? c->v[i]->a.data : NULL;
    }
    at[VALUE] = y->a.data;
    at[TANGENT] = t->a.data;
    for (int k = 0; k < MAX_NUMBERS; k++) at[NUMBERS + k] = p->number[k];
    s = plk_cpu_elementwise_steps(&p->steps, at, y->a.numel);
  }
  if (s == PL_OK) {
    PlTensor *v = t;
    t = NULL;
    s = pl_node_tangent(y, c->key, c->op->name, v);
  }
  pl_tensor_release(t);
  if (s != PL_OK) pl_tensor_release(y);
  else *out = y;
  return s;
}

/* ---- ops with their tangent -------------------------------------------------------------------------------------- */

/* Is input 0 plain with a tangent, and no other input tracked? */
static bool first_alone(Call *c) {
  const int must = c->op->nin - c->op->nopt;
  if (c->nin < must || c->nin > c->op->nin || !c->in[0] || !plain(&c->in[0]->a, c->in[0]->a.dtype) || c->in[0]->a.dtype > PL_F64 ||
      !find_tangent(c, 0) || !c->key)
    return false;
  for (int i = 1; i < c->nin; i++)
    if (c->in[i] && (c->in[i]->node || c->in[i]->more || c->in[i]->a.elsewhere || (pl_state.history_moved && pl_history_old(c->in[i]))))
      return false;
  return true;
}

/* Where it refuses the call goes the general way, which says why under the op's own name. */
static PlStatus run_dual(Call *c, PlTensor **out, bool *done) {
  const PlOp *op = c->op, *dual = op->dual;
  const int must = op->nin - op->nopt;
  PlTensor *in[PL_MAX_IN] = {NULL}, *res[PL_MAX_OUT] = {NULL};
  PlAttrs a;
  if (!first_alone(c)) return PL_OK;
  pl_attrs_init(dual, &a);
  if (c->attrs) {
    for (int k = dual->nattr; k < op->nattr; k++)
      if (pl_attr_has(c->attrs, k)) return PL_OK;
    for (int k = 0; k < dual->nattr; k++)
      if (op->attrs[k].type == PL_A_FLOAT) pl_attrs_float(&a, k, pl_attr_f(c->attrs, k));
      else pl_attrs_int(&a, k, pl_attr_i(c->attrs, k));
  }
  for (int i = 0; i < c->nin; i++) in[i < must ? i : i + 1] = c->in[i];
  in[must] = c->v[0];
  const PlForwardPause p = pl_forward_pause(c->key);
  PlStatus s = pl_apply_any(dual, in, c->nin + 1, &a, res);
  pl_forward_resume(p);
  if (s != PL_OK) return pl_must_report(s) ? s : PL_OK;
  *done = true;
  s = pl_node_tangent(res[0], c->key, op->name, res[op->nout]);
  if (s != PL_OK) pl_release_all(res, op->nout);
  for (int o = 0; s == PL_OK && o < op->nout; o++) out[o] = res[o];
  return s;
}

/* The results res[nout] and the tangent behind them. */
static PlStatus with_kernel(const Call *c, PlCall *p, PlTensor **res) {
  const PlOp *op = c->op;
  const PlArray *in[PL_MAX_IN + 1];
  PlArray *to[PL_MAX_OUT + 1];
  PL_TRY(pl_call_infer(p));
  for (int i = 0; i < p->nin; i++) {
    in[i] = p->arr[i];
    if (p->made[i] || (in[i] && !in[i]->contiguous)) return PL_ERR_UNSUPPORTED;
  }
  in[p->nin] = &c->v[0]->a;
  PlStatus s = PL_OK;
  for (int o = 0; o <= op->nout && s == PL_OK; o++) {
    const PlDesc *d = &p->desc[o == op->nout ? 0 : o];
    if (d->is_view || (d->layout != PL_ROW_MAJOR && d->layout != PL_MAY_FOLLOW)) return PL_ERR_UNSUPPORTED; /* which is row-major here */
    if (d->dtype != PL_NDTYPE && !(o < op->nout && (c->spared >> o & 1)))
      s = pl_tensor_empty_on(&res[o], PL_CPU, (PlDtype)d->dtype, d->ndim, d->shape);
    to[o] = res[o] ? &res[o]->a : NULL;
  }
  const PlkCall call = {
      .name = op->name, .code = op->kcode, .nin = p->nin + 1, .nout = op->nout + 1, .in = in, .out = to, .attrs = p->attrs};
  return s == PL_OK ? op->with_tangent(&call) : s;
}

/* As run_dual, for a kernel: nothing else sees the call. */
static PlStatus run_kernel(Call *c, PlTensor **out, bool *done) {
  const PlOp *op = c->op;
  PlTensor *res[PL_MAX_OUT + 1] = {NULL};
  PlCall p;
  if (!first_alone(c) || op->nin >= PL_MAX_IN || pl_watched()) return PL_OK;
  if (pl_call_begin(&p, op, c->in, c->nin, c->attrs) != PL_OK) return PL_OK;
  PlStatus s = p.device == PL_CPU ? with_kernel(c, &p, res) : PL_ERR_UNSUPPORTED;
  pl_call_end(&p);
  if (s != PL_OK) {
    pl_release_all(res, op->nout + 1);
    return pl_must_report(s) ? s : PL_OK;
  }
  *done = true;
  s = pl_node_tangent(res[0], c->key, op->name, res[op->nout]);
  if (s != PL_OK) pl_release_all(res, op->nout);
  for (int o = 0; s == PL_OK && o < op->nout; o++) out[o] = res[o];
  return s;
}

PlStatus pl_forward_spared(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out, bool *done) {
  Call c = {.op = op, .in = in, .nin = nin, .attrs = attrs, .spared = op->spare};
  *done = false;
  return !op->with_tangent || op->dual || pl_state.grad_off || pl_state.autocast ? PL_OK : run_kernel(&c, out, done);
}

PlStatus pl_forward_pointwise(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out, bool *done) {
  Call c = {.op = op, .in = in, .nin = nin, .attrs = attrs};
  *done = false;
  if (op->dual && !pl_state.grad_off && !pl_state.autocast) return run_dual(&c, out, done);
  if (op->with_tangent && !pl_state.grad_off && !pl_state.autocast) return run_kernel(&c, out, done);
  if (op->cls != PL_POINTWISE || op->nout != 1 || !op->grad || nin != op->nin || nin < 1 || nin > MAX_ARGS || !in[0] || pl_state.grad_off ||
      (op->autocast && pl_state.autocast) || !find_roles(&c))
    return PL_OK;
  PlAttrs defaults;
  if (!attrs && op->nattr) {
    pl_attrs_init(op, &defaults);
    c.attrs = &defaults;
  }
  PlGradGraphKey k;
  void *found;
  const int id = pl_op_id(op);
  const uint64_t head = head_of(&c);
  if (PL_UNLIKELY(!recent) && !(recent = calloc(PL_NOP, sizeof *recent))) PL_FAIL(PL_ERR_OOM, "out of memory for a program of tangents");
  if (recent[id].program && recent[id].head == head) {
    cache.hits++;
    *done = true;
    return run(&c, recent[id].program, out);
  }
  key_of(&c, head, &k);
  if (k.over) return PL_OK;
  PL_TRY(pl_grad_graph_cache_open(&cache));
  if (pl_grad_graph_cache_find(&cache, op, &k, &found)) {
    if (!found) return PL_OK;
    if (!op->nattr) recent[id] = (Recent){head, found};
    *done = true;
    return run(&c, found, out);
  }
  *done = true; /* the first of its kind goes the general way, which checks it */
  PL_TRY(pl_apply_any(op, in, nin, attrs, out));
  Program *p;
  PlStatus s = compile(&c, *out, &p);
  if (s == PL_OK) pl_grad_graph_cache_put(&cache, op, &k, p);
  else pl_release_all(out, 1);
  return s;
}
