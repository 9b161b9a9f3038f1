/* SPDX-License-Identifier: MIT
 * The gradient of recurrent_bwd, out of our own ops: the net is computed again layer by layer (lstm_seq, gru_seq, rnn_seq),
 * then its gradient, and that is differentiated by hand. With f a layer over a sequence, x' = f(x, θ) and u the gradients
 * that arrive for dx and dθ: upwards, u of a layer's dx meets seq_bwd's own gradient and gives u of its dy, which is the
 * next layer's dx; downwards, what the states of a layer got that way, and what the layer above says of its inputs, go
 * through seq_bwd once more. Narrow floats are computed in f32. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/gradient_graph.h"
#include "engine/ops/names.h"
#include "engine/ops/recurrent/recurrent_net.h"
#include "engine/ops/recurrent/unroll.h"
#include "engine/ops/reduce/dims.h"

/* Gradients of what one layer in one direction reads, or what arrives for them. */
typedef struct Parts {
  PlVal dgx, h0, c0, w, b; /* dgx: of the gates; b: of the bias within a GRU's reset */
} Parts;

typedef struct Cell {
  int l, d;
  bool reverse;                                        /* walks backwards; with lengths the sequences are turned round instead */
  PlVal x, w_ih, w_hh, bias, inner;                    /* inner: b_hh of n */
  PlVal h0, c0, hs, cs, kept;                          /* kept: gates, or a GRU's activations */
  PlVal dhs, dcs, dgx;                                 /* backward */
  PlVal u_x, u_ih, g_kept, g_cs, g_hs;                 /* what arrived for dx and dw_ih, and its effect on the states */
  PlVal z_ih, z_hh, z_gx, z_b, z_h0, z_c0, z_hh_below; /* the answers */
} Cell;

typedef struct Net {
  PlMaker *g;
  PlkRecurrent n;
  PlDtype narrow, wide;
  uint8_t device; /* that all of it is on */
  int64_t S, N, H;
  PlVal within, at_end, order; /* with lengths: t < L [S,N,1], t = L [S+1,N,1] in `wide`, and who comes where when turned */
  bool lengths;
  Cell *cell;
} Net;

/* ---- small steps ------------------------------------------------------------------------------------------------- */

static PlVal window(Net *t, PlVal v, int dim, int64_t from, int64_t n) {
  if (v == PL_NONE) return v;
  PlAttrs a;
  pl_attrs_init(&pl_op_narrow, &a);
  pl_attrs_int(&a, 0, dim);
  pl_attrs_int(&a, 1, from);
  pl_attrs_int(&a, 2, n);
  return pl_g_op(t->g, &pl_op_narrow, 1, &v, &a, NULL);
}
static PlVal shaped(Net *t, PlVal v, int ndim, const int64_t *shape) {
  if (v == PL_NONE) return v;
  PlAttrs a;
  pl_attrs_init(&pl_op_reshape, &a);
  pl_g_fail(t->g, pl_attrs_list(&a, 0, ndim, shape));
  return pl_g_op(t->g, &pl_op_reshape, 1, &v, &a, NULL);
}
static PlVal on_device(Net *t, PlVal v) {
  PlAttrs a;
  pl_attrs_init(&pl_op_to_device, &a);
  pl_attrs_int(&a, 0, t->device);
  return pl_g_op(t->g, &pl_op_to_device, 1, &v, &a, NULL);
}
static PlVal zeros(Net *t, int ndim, const int64_t *shape, PlVal like) { /* like: on its device */
  const int64_t one[1] = {1};
  PlVal v = shaped(t, window(t, shaped(t, like, 1, (const int64_t[]){-1}), 0, 0, 1), 1, one);
  PlAttrs a;
  pl_attrs_init(&pl_op_zeros_of, &a);
  pl_attrs_int(&a, 0, t->wide);
  PlVal size = pl_g1(t->g, &pl_op_shape_of, v), zero = on_device(t, pl_g_op(t->g, &pl_op_zeros_of, 1, &size, &a, NULL));
  pl_attrs_init(&pl_op_expand, &a);
  pl_g_fail(t->g, pl_attrs_list(&a, 0, ndim, shape));
  int64_t ones[4] = {1, 1, 1, 1};
  zero = shaped(t, zero, ndim, ones);
  return pl_g_op(t->g, &pl_op_expand, 1, &zero, &a, NULL);
}
static PlVal widened(Net *t, PlVal v) { return v == PL_NONE || t->wide == t->narrow ? v : pl_g_cast(t->g, v, t->wide); }
static PlVal narrowed(Net *t, PlVal v) { return v == PL_NONE || t->wide == t->narrow ? v : pl_g_cast(t->g, v, t->narrow); }
static PlVal joined(Net *t, PlVal a, PlVal b, int dim) {
  const PlVal in[2] = {a, b};
  return g_with_int(t->g, &pl_op_cat, 2, in, dim);
}
static PlVal sum(Net *t, PlVal v, uint32_t dims) { return v == PL_NONE ? v : g_reduce(t->g, &pl_op_sum, v, 3, dims); }
static PlVal times(Net *t, PlVal x, PlVal w) { return x == PL_NONE || w == PL_NONE ? PL_NONE : pl_g2(t->g, &pl_op_matmul, x, w); }
static PlVal times_t(Net *t, PlVal x, PlVal w) { return x == PL_NONE || w == PL_NONE ? PL_NONE : pl_g2(t->g, &pl_op_linear, x, w); }
static PlVal outer(Net *t, PlVal a, PlVal b) { return a == PL_NONE || b == PL_NONE ? PL_NONE : pl_g2(t->g, &pl_op_matmul_flat_t, a, b); }
static PlVal plus(Net *t, PlVal a, PlVal b) { return pl_unroll_plus(t->g, a, b); }

/* ---- sequences of different lengths ----------------------------------------------------------------------------------- */

static PlVal steps(Net *t, int64_t n) { /* 0 … n-1, i64[n,1,1] */
  PlTensor *x;
  PlVal v = PL_NONE;
  const int64_t shape[3] = {n, 1, 1};
  PlStatus s = pl_tensor_empty(&x, PL_I64, 3, shape);
  if (s == PL_OK) {
    for (int64_t k = 0; k < n; k++) ((int64_t *)x->a.data)[k] = k;
    s = pl_grad_graph_const(t->g->graph, x, &v);
    pl_tensor_release(x);
  }
  pl_g_fail(t->g, s);
  return s == PL_OK ? on_device(t, v) : PL_NONE;
}

static void read_lengths(Net *t) {
  PlMaker *g = t->g;
  const int64_t row[3] = {1, t->N, 1};
  PlVal L = on_device(t, shaped(t, g->x[PL_RB_LENGTHS], 3, row)), at = steps(t, t->S), ends = steps(t, t->S + 1);
  PlVal before = pl_g2(g, &pl_op_lt, at, L);
  t->within = pl_g_cast(g, before, t->wide);
  t->at_end = pl_g_cast(g, pl_g2(g, &pl_op_eq, ends, L), t->wide);
  t->order = g_where(g, before, g_sub(g, g_addn(g, L, -1), at), at);
}
/* Each sequence turned round within its length. */
static PlVal turned(Net *t, PlVal x, int64_t width) {
  if (x == PL_NONE) return x;
  const int64_t shape[3] = {t->S, t->N, width};
  PlAttrs a;
  pl_attrs_init(&pl_op_expand, &a);
  pl_g_fail(t->g, pl_attrs_list(&a, 0, 3, shape));
  const PlVal in[2] = {x, pl_g_op(t->g, &pl_op_expand, 1, &t->order, &a, NULL)};
  pl_attrs_init(&pl_op_gather, &a);
  pl_attrs_int(&a, 0, 0);
  pl_attrs_int(&a, 1, 0);
  return pl_g_op(t->g, &pl_op_gather, 2, in, &a, NULL);
}
static bool turns(const Net *t, const Cell *c) { return t->lengths && c->d == 1; }

/* What a cell's states hs [S+1,N,H] say at its steps: [S,N,H], and after the last: [N,H]. Both are linear; the other two
 * functions are their transposes, added up. */
static PlVal output(Net *t, const Cell *c, PlVal hs) {
  PlVal y = window(t, hs, 0, c->reverse ? 0 : 1, t->S);
  if (!t->lengths || y == PL_NONE) return y;
  return g_mul(t->g, turns(t, c) ? turned(t, y, t->H) : y, t->within);
}
static PlVal last(Net *t, const Cell *c, PlVal hs) {
  if (hs == PL_NONE) return hs;
  return t->lengths ? sum(t, g_mul(t->g, hs, t->at_end), 1) : pl_unroll_pick(t->g, hs, c->reverse ? 0 : t->S);
}
static PlVal from_output(Net *t, const Cell *c, PlVal dy, PlVal like) {
  if (dy == PL_NONE) return dy;
  const int64_t one[3] = {1, t->N, t->H};
  if (t->lengths) dy = g_mul(t->g, dy, t->within);
  if (turns(t, c)) dy = turned(t, dy, t->H);
  PlVal zero = zeros(t, 3, one, like);
  return c->reverse ? joined(t, dy, zero, 0) : joined(t, zero, dy, 0);
}
static PlVal from_last(Net *t, const Cell *c, PlVal dh, PlVal like) {
  if (dh == PL_NONE) return dh;
  const int64_t one[3] = {1, t->N, t->H}, rest[3] = {t->S, t->N, t->H};
  dh = shaped(t, dh, 3, one);
  if (t->lengths) return g_mul(t->g, dh, t->at_end);
  PlVal zero = zeros(t, 3, rest, like);
  return c->reverse ? joined(t, dh, zero, 0) : joined(t, zero, dh, 0);
}

/* ---- the ops over a sequence, whatever the kind --------------------------------------------------------------------------- */

static const PlOp *seq_bwd_op(const Net *t) {
  return t->n.mode == PLK_RNN_LSTM ? &pl_op_lstm_seq_bwd : t->n.mode == PLK_RNN_GRU ? &pl_op_gru_seq_bwd : &pl_op_rnn_seq_bwd;
}
static void seq_attrs(const Net *t, const Cell *c, PlAttrs *a) {
  pl_attrs_init(seq_bwd_op(t), a);
  pl_attrs_int(a, 0, c->reverse);
  if (t->n.mode <= PLK_RNN_TANH) pl_attrs_int(a, 1, t->n.mode == PLK_RNN_RELU);
}

static void forward(Net *t, Cell *c) {
  PlMaker *g = t->g;
  PlAttrs a;
  const PlVal gate_in[3] = {c->x, c->w_ih, c->bias};
  PlVal gx = pl_g_op(g, &pl_op_linear, c->bias == PL_NONE ? 2 : 3, gate_in, NULL, NULL), out[3] = {PL_NONE, PL_NONE, PL_NONE};
  seq_attrs(t, c, &a);
  if (t->n.mode == PLK_RNN_LSTM) {
    const PlVal in[4] = {gx, c->h0, c->c0, c->w_hh};
    pl_g_op(g, &pl_op_lstm_seq, 4, in, &a, out);
    c->hs = out[0], c->cs = out[1], c->kept = out[2];
  } else if (t->n.mode == PLK_RNN_GRU) {
    const PlVal in[4] = {gx, c->h0, c->w_hh, c->inner};
    pl_g_op(g, &pl_op_gru_seq, 4, in, &a, out);
    c->hs = out[0], c->kept = out[1];
  } else {
    const PlVal in[3] = {gx, c->h0, c->w_hh};
    c->hs = pl_g_op(g, &pl_op_rnn_seq, 3, in, &a, NULL);
  }
}

/* The inputs of seq_bwd, in its order; returns how many. */
static int back_in(const Net *t, const Cell *c, PlVal dhs, PlVal dcs, PlVal dkept, PlVal *in) {
  if (t->n.mode == PLK_RNN_LSTM) {
    const PlVal v[7] = {c->kept, c->cs, c->hs, c->w_hh, dhs, dcs, dkept};
    memcpy(in, v, sizeof v);
    return dkept != PL_NONE ? 7 : dcs != PL_NONE ? 6 : 5;
  }
  if (t->n.mode == PLK_RNN_GRU) {
    const PlVal v[5] = {c->kept, c->hs, c->w_hh, dhs, dkept};
    memcpy(in, v, sizeof v);
    return dkept != PL_NONE ? 5 : 4;
  }
  const PlVal v[3] = {c->hs, c->w_hh, dhs};
  memcpy(in, v, sizeof v);
  return 3;
}
static Parts parts_of(const Net *t, const PlVal *out) {
  if (t->n.mode == PLK_RNN_LSTM) return (Parts){out[0], out[1], out[2], out[3], PL_NONE};
  if (t->n.mode == PLK_RNN_GRU) return (Parts){out[0], out[1], PL_NONE, out[2], out[3]};
  return (Parts){out[0], out[1], PL_NONE, out[2], PL_NONE};
}

static Parts back(Net *t, const Cell *c, PlVal dhs, PlVal dcs, PlVal dkept) {
  PlVal in[PL_MAX_IN], out[PL_MAX_OUT] = {PL_NONE, PL_NONE, PL_NONE, PL_NONE};
  const int64_t states[3] = {t->S + 1, t->N, t->H};
  PlAttrs a;
  if (dhs == PL_NONE) dhs = zeros(t, 3, states, c->hs);
  const int n = back_in(t, c, dhs, dcs, dkept, in);
  seq_attrs(t, c, &a);
  pl_g_op(t->g, seq_bwd_op(t), n, in, &a, out);
  return parts_of(t, out);
}

/* The gradient of `back` (without dkept) for what arrives for its results, through seq_bwd's own rule. */
static void back_twice(Net *t, Cell *c, const Parts *u, PlVal *g_dhs, PlVal *g_dcs) {
  const PlOp *op = seq_bwd_op(t);
  const bool lstm = t->n.mode == PLK_RNN_LSTM, gru = t->n.mode == PLK_RNN_GRU;
  const int64_t G = lstm || gru ? 4 : 1, states[3] = {t->S + 1, t->N, t->H}, gates[3] = {t->S, t->N, G * t->H};
  const int64_t w[2] = {plk_recurrent_gates(&t->n) * t->H, t->H};
  const PlArray state_like = {.dtype = (uint8_t)t->wide, .ndim = 3, .shape = states, .device = t->device};
  const PlArray gates_like = {.dtype = (uint8_t)t->wide, .ndim = 3, .shape = gates, .device = t->device};
  const PlArray w_like = {.dtype = (uint8_t)t->wide, .ndim = 2, .shape = w, .device = t->device};
  const PlArray *const as_lstm[6] = {&gates_like, &state_like, &state_like, &w_like, &state_like, &state_like};
  const PlArray *const as_gru[4] = {&gates_like, &state_like, &w_like, &state_like};
  const PlArray *const as_rnn[3] = {&state_like, &w_like, &state_like};
  const PlVal dy_lstm[4] = {u->dgx, u->h0, u->c0, u->w}, dy_gru[4] = {u->dgx, u->h0, u->w, u->b};
  PlVal x[PL_MAX_IN], dx[PL_MAX_IN], y[PL_MAX_OUT] = {PL_NONE, PL_NONE, PL_NONE, PL_NONE};
  bool want[PL_MAX_IN], same[PL_MAX_IN] = {false};
  PlAttrs a;
  const int n = back_in(t, c, c->dhs, c->dcs, PL_NONE, x);
  for (int i = 0; i < PL_MAX_IN; i++) dx[i] = PL_NONE, want[i] = true;
  seq_attrs(t, c, &a);
  PlMaker m = {.graph = t->g->graph,
               .op = op,
               .attrs = &a,
               .nin = n,
               .nout = op->nout,
               .in = lstm  ? as_lstm
                     : gru ? as_gru
                           : as_rnn,
               .want = want,
               .same = same,
               .x = x,
               .y = y,
               .dy = lstm ? dy_lstm : dy_gru,
               .dx = dx};
  if (t->g->status != PL_OK) return;
  PlStatus s = op->grad(&m);
  pl_g_fail(t->g, s != PL_OK ? s : m.status);
  c->g_kept = lstm || gru ? dx[0] : PL_NONE;
  c->g_cs = lstm ? dx[1] : PL_NONE;
  c->g_hs = lstm ? dx[2] : dx[gru];
  c->z_hh_below = lstm ? dx[3] : dx[1 + gru];
  *g_dhs = lstm ? dx[4] : dx[2 + gru];
  *g_dcs = lstm && n > 5 ? dx[5] : PL_NONE;
}

/* ---- pieces of the rows w and state ---------------------------------------------------------------------------------------- */

static PlVal piece(Net *t, PlVal v, int64_t from, int64_t rows, int64_t cols) {
  const int64_t shape[2] = {rows, cols};
  return shaped(t, window(t, v, 0, from, rows * cols), cols ? 2 : 1, shape);
}
/* The part of layer and direction (l, d) in a row of states: h [N,H], or c. */
static PlVal state_of(Net *t, PlVal v, const Cell *c, bool of_c) {
  const int64_t count = (int64_t)t->n.layers * t->n.directions, k = (int64_t)c->l * t->n.directions + c->d;
  return t->n.mode != PLK_RNN_LSTM && of_c ? PL_NONE : piece(t, v, ((of_c ? count : 0) + k) * t->N * t->H, t->N, t->H);
}
/* The biases in a row like w as one for the gates, b_ih + b_hh, and for a GRU that within the reset. */
static PlVal bias_of(Net *t, PlVal v, const Cell *c, PlVal *inner) {
  const int64_t G = plk_recurrent_gates(&t->n) * t->H, at = plk_recurrent_biases(&t->n, c->l, c->d), one[1] = {t->H}, all[1] = {G};
  *inner = PL_NONE;
  if (v == PL_NONE) return v;
  if (!t->n.bias) {
    if (t->n.mode == PLK_RNN_GRU) *inner = zeros(t, 1, one, v);
    return PL_NONE;
  }
  PlVal b_ih = shaped(t, window(t, v, 0, at, G), 1, all), b_hh = shaped(t, window(t, v, 0, at + G, G), 1, all);
  if (t->n.mode != PLK_RNN_GRU) return plus(t, b_ih, b_hh);
  *inner = window(t, b_hh, 0, 2 * t->H, t->H);
  return plus(t, b_ih, joined(t, window(t, b_hh, 0, 0, 2 * t->H), zeros(t, 1, one, v), 0));
}

static void read_cells(Net *t, PlVal w, PlVal state) {
  const int64_t G = plk_recurrent_gates(&t->n) * t->H;
  for (int k = 0; k < t->n.layers * t->n.directions; k++) {
    Cell *c = &t->cell[k];
    c->l = k / t->n.directions, c->d = k % t->n.directions;
    c->reverse = c->d == 1 && !t->lengths;
    const int64_t in = plk_recurrent_in(&t->n, c->l), at = plk_recurrent_matrices(&t->n, c->l, c->d);
    c->w_ih = piece(t, w, at, G, in);
    c->w_hh = piece(t, w, at + G * in, G, t->H);
    c->bias = bias_of(t, w, c, &c->inner);
    c->h0 = state_of(t, state, c, false);
    c->c0 = state_of(t, state, c, true);
    c->cs = c->kept = PL_NONE;
  }
}

/* ---- four sweeps over the layers --------------------------------------------------------------------------------------------- */

/* Both directions side by side; a lacking half is zeros. */
static PlVal both(Net *t, const PlVal *v, PlVal like) {
  const int64_t shape[3] = {t->S, t->N, t->H};
  if (t->n.directions == 1 || (v[0] == PL_NONE && v[1] == PL_NONE)) return v[0];
  return joined(t, v[0] == PL_NONE ? zeros(t, 3, shape, like) : v[0], v[1] == PL_NONE ? zeros(t, 3, shape, like) : v[1], 2);
}
static PlVal half(Net *t, PlVal v, int d) { return t->n.directions == 1 ? v : window(t, v, 2, d * t->H, t->H); }

static void up(Net *t, PlVal x) {
  for (int l = 0; l < t->n.layers; l++) {
    PlVal out[2] = {PL_NONE, PL_NONE};
    for (int d = 0; d < t->n.directions; d++) {
      Cell *c = &t->cell[l * t->n.directions + d];
      c->x = turns(t, c) ? turned(t, x, plk_recurrent_in(&t->n, l)) : x;
      forward(t, c);
      out[d] = output(t, c, c->hs);
    }
    x = both(t, out, t->cell[0].hs);
  }
}

static void down(Net *t, PlVal dy, PlVal dstate) {
  for (int l = t->n.layers - 1; l >= 0; l--) {
    PlVal dx = PL_NONE;
    for (int d = 0; d < t->n.directions; d++) {
      Cell *c = &t->cell[l * t->n.directions + d];
      c->dhs = plus(t, from_output(t, c, half(t, dy, d), c->hs), from_last(t, c, state_of(t, dstate, c, false), c->hs));
      c->dcs = from_last(t, c, state_of(t, dstate, c, true), c->hs);
      const int64_t states[3] = {t->S + 1, t->N, t->H};
      if (c->dhs == PL_NONE) c->dhs = zeros(t, 3, states, c->hs);
      c->dgx = back(t, c, c->dhs, c->dcs, PL_NONE).dgx;
      PlVal v = times(t, c->dgx, c->w_ih);
      dx = plus(t, dx, turns(t, c) ? turned(t, v, plk_recurrent_in(&t->n, l)) : v);
    }
    dy = dx;
  }
}

/* u: what arrives for dx, then for the dy of each layer; results go into the rows' parts of d_last. */
static PlVal up_again(Net *t, PlVal u, PlVal u_state, PlVal u_w, PlVal *d_last_h, PlVal *d_last_c) {
  const int64_t G = plk_recurrent_gates(&t->n) * t->H, gates[3] = {t->S, t->N, G};
  for (int l = 0; l < t->n.layers; l++) {
    PlVal out[2] = {PL_NONE, PL_NONE};
    for (int d = 0; d < t->n.directions; d++) {
      const int k = l * t->n.directions + d;
      Cell *c = &t->cell[k];
      const int64_t in = plk_recurrent_in(&t->n, l), at = plk_recurrent_matrices(&t->n, l, d);
      PlVal g_dhs = PL_NONE, g_dcs = PL_NONE, inner, b = bias_of(t, u_w, c, &inner);
      c->u_x = turns(t, c) ? turned(t, u, in) : u;
      c->u_ih = piece(t, u_w, at, G, in);
      Parts p = {.dgx = plus(t, times_t(t, c->u_x, c->w_ih), times_t(t, c->x, c->u_ih)),
                 .h0 = state_of(t, u_state, c, false),
                 .c0 = state_of(t, u_state, c, true),
                 .w = piece(t, u_w, at + G * in, G, t->H),
                 .b = inner};
      if (b != PL_NONE) p.dgx = p.dgx == PL_NONE ? plus(t, zeros(t, 3, gates, c->hs), b) : plus(t, p.dgx, b);
      if (p.dgx == PL_NONE) p.dgx = zeros(t, 3, gates, c->hs);
      back_twice(t, c, &p, &g_dhs, &g_dcs);
      out[d] = output(t, c, g_dhs);
      d_last_h[k] = last(t, c, g_dhs);
      d_last_c[k] = last(t, c, g_dcs);
    }
    u = both(t, out, t->cell[0].hs);
  }
  return u;
}

/* Returns the gradient for x. */
static PlVal down_again(Net *t) {
  PlVal z = PL_NONE;
  for (int l = t->n.layers - 1; l >= 0; l--) {
    PlVal below = PL_NONE;
    for (int d = 0; d < t->n.directions; d++) {
      Cell *c = &t->cell[l * t->n.directions + d];
      Parts p = back(t, c, plus(t, c->g_hs, from_output(t, c, half(t, z, d), c->hs)), c->g_cs, c->g_kept);
      c->z_ih = plus(t, outer(t, p.dgx, c->x), outer(t, c->dgx, c->u_x));
      c->z_hh = plus(t, p.w, c->z_hh_below);
      c->z_gx = p.dgx, c->z_b = p.b, c->z_h0 = p.h0, c->z_c0 = p.c0;
      PlVal v = plus(t, times(t, p.dgx, c->w_ih), times(t, c->dgx, c->u_ih));
      below = plus(t, below, turns(t, c) ? turned(t, v, plk_recurrent_in(&t->n, l)) : v);
    }
    z = below;
  }
  return z;
}

/* ---- together ------------------------------------------------------------------------------------------------------------------ */

/* All values of a list in one row; those that lack are n[i] zeros. */
static PlVal row(Net *t, PlVal *v, const int64_t *n, int count) {
  for (int i = 0; i < count; i++) v[i] = v[i] == PL_NONE ? zeros(t, 1, &n[i], t->cell[0].hs) : shaped(t, v[i], 1, &n[i]);
  return g_with_int(t->g, &pl_op_cat, count, v, 0);
}

static PlVal state_row(Net *t, PlVal *v, PlVal *h, PlVal *c, int64_t *n) {
  const int k = t->n.layers * t->n.directions, all = t->n.mode == PLK_RNN_LSTM ? 2 * k : k;
  for (int i = 0; i < all; i++) v[i] = i < k ? h[i] : c[i - k], n[i] = t->N * t->H;
  return row(t, v, n, all);
}

static PlVal weight_row(Net *t, PlVal *v, int64_t *n) {
  const int k = t->n.layers * t->n.directions;
  const int64_t G = plk_recurrent_gates(&t->n) * t->H;
  int at = 0;
  for (int i = 0; i < k; i++) {
    n[at] = G * plk_recurrent_in(&t->n, t->cell[i].l), v[at++] = t->cell[i].z_ih;
    n[at] = G * t->H, v[at++] = t->cell[i].z_hh;
  }
  for (int i = 0; i < k && t->n.bias; i++) {
    PlVal b = shaped(t, sum(t, t->cell[i].z_gx, 3), 1, &G);
    n[at] = G, v[at++] = b;
    if (t->n.mode == PLK_RNN_GRU) b = joined(t, window(t, b, 0, 0, 2 * t->H), t->cell[i].z_b, 0);
    n[at] = G, v[at++] = b;
  }
  return row(t, v, n, at);
}

static void differentiate(Net *t, PlVal *v, int64_t *n, PlVal *h, PlVal *c) {
  PlMaker *g = t->g;
  const int k = t->n.layers * t->n.directions;
  const PlVal w = widened(t, g->x[PL_R_W]), state = widened(t, g->x[PL_R_STATE]);
  const PlVal dstate = g->nin > PL_RB_DSTATE && g->in[PL_RB_DSTATE] ? widened(t, g->x[PL_RB_DSTATE]) : PL_NONE;
  const PlVal dy = g->nin > PL_RB_DY && g->in[PL_RB_DY] ? widened(t, g->x[PL_RB_DY]) : PL_NONE;
  if (t->lengths) read_lengths(t);
  read_cells(t, w, state);
  up(t, widened(t, g->x[PL_R_X]));
  down(t, dy, dstate);
  PlVal u = up_again(t, widened(t, g->dy[0]), widened(t, g->dy[1]), widened(t, g->dy[2]), h, c);
  if (dy != PL_NONE && g->want[PL_RB_DY]) g->dx[PL_RB_DY] = narrowed(t, u);
  if (dstate != PL_NONE && g->want[PL_RB_DSTATE]) g->dx[PL_RB_DSTATE] = narrowed(t, state_row(t, v, h, c, n));
  if (!g->want[PL_R_X] && !g->want[PL_R_STATE] && !g->want[PL_R_W]) return;
  PlVal z = down_again(t);
  for (int i = 0; i < k; i++) h[i] = t->cell[i].z_h0, c[i] = t->cell[i].z_c0;
  if (g->want[PL_R_X]) g->dx[PL_R_X] = narrowed(t, z);
  if (g->want[PL_R_STATE]) g->dx[PL_R_STATE] = narrowed(t, state_row(t, v, h, c, n));
  if (g->want[PL_R_W]) g->dx[PL_R_W] = narrowed(t, weight_row(t, v, n));
}

PlStatus pl_recurrent_bwd_grad(PlMaker *g) {
  const PlArray *x = g->in[PL_R_X];
  Net t = {.g = g,
           .device = pl_on_gpu(x->device) ? x->device : PL_CUDA,
           .S = x->shape[0],
           .N = x->shape[1],
           .narrow = (PlDtype)x->dtype,
           .wide = x->dtype == PL_F64 ? PL_F64 : PL_F32,
           .lengths = g->nin > PL_RB_LENGTHS && g->in[PL_RB_LENGTHS]};
  if (!plk_recurrent_of(&t.n, g->attrs, x) || t.n.proj) PL_FAIL(PL_ERR_UNSUPPORTED, "not twice differentiable: recurrent");
  t.H = t.n.hidden;
  const size_t k = (size_t)(t.n.layers * t.n.directions);
  t.cell = calloc(k, sizeof *t.cell);
  PlVal *v = malloc(6 * k * sizeof *v);
  int64_t *n = malloc(4 * k * sizeof *n);
  if (t.cell && v && n) differentiate(&t, v, n, v + 4 * k, v + 5 * k);
  else pl_g_fail(g, pl_fail(PL_ERR_OOM, "recurrent: out of memory for its second gradient"));
  free(n);
  free(v);
  free(t.cell);
  return g->status;
}
