/* SPDX-License-Identifier: MIT
 * Attention that cuDNN takes: f16 and bf16 without mask and dropout, head sizes in multiples of 8. Its statistics are
 * log Σ exp; ours are the largest score and the sum above it, of which (log Σ exp, 1) is one form. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/libs/cudnn.h"

/* ---- operands as the library wants them ------------------------------------------------------------------------------ */

/* Dims from … to-1 of a as one: its size and step. Dims of size 1 have none. */
static bool as_one(const PlArray *a, int from, int to, int64_t *size, int64_t *step) {
  *size = 1, *step = 0;
  for (int d = to - 1; d >= from; d--) {
    if (a->shape[d] == 1) continue;
    if (*size > 1 && a->strides[d] != *step * *size) return false;
    if (*size == 1) *step = a->strides[d];
    *size *= a->shape[d];
  }
  return true;
}

/* [B, H, rows, cols] from […, rows, cols]: of the leading dims those before `split` are B, the others H; each part must walk in
 * one step. Nothing is repeated, rows are of 16 bytes. */
static bool strides_of(const PlArray *a, int split, int64_t *B, int64_t *H, int64_t *strides) {
  const int n = a->ndim;
  int64_t batch, head;
  if ((a->strides[n - 1] != 1 && a->shape[n - 1] != 1) || !as_one(a, 0, split, B, &batch) || !as_one(a, split, n - 2, H, &head))
    return false;
  strides[3] = 1;
  strides[2] = a->strides[n - 2];
  strides[1] = *H > 1 ? head : a->shape[n - 2] * strides[2];
  strides[0] = *B > 1 ? batch : *H * strides[1];
  for (int d = 0; d < 3; d++)
    if (strides[d] % 8 || strides[d] == 0) return false;
  return true;
}

/* An operand, or a dense copy where it has no such strides: heads that a group shares, a gradient that is one number. Copies are small
 * beside what attention without the library takes. */
typedef struct Operand {
  PlArray a;
  int64_t strides[PL_MAX_DIM];
  void *room;
} Operand;

enum { MOST = 4 }; /* q, k, v, dy */
typedef struct Operands {
  int split;
  Operand of[MOST];
} Operands;

static void give_back_operands(Operands *o) {
  for (int i = 0; i < MOST; i++) plc_scratch_free(o->of[i].room);
}

static PlStatus dense_copy(const PlArray *a, Operand *o) {
  static const PlAttrs none;
  int64_t step = 1;
  for (int d = a->ndim - 1; d >= 0; d--) o->strides[d] = step, step *= a->shape[d];
  PL_TRY(plc_scratch((size_t)a->numel * pl_dtype_size((PlDtype)a->dtype), &o->room));
  o->a.data = o->room, o->a.strides = o->strides, o->a.contiguous = 1;
  const PlArray *in[1] = {a};
  PlArray *out[1] = {&o->a};
  const PlkCall copy = {.name = "copy", .nin = 1, .nout = 1, .in = in, .out = out, .attrs = &none};
  return plc_run(&plc_kernel_copy, &copy);
}

/* Strides of n operands into at[…], split where most of them fit as they are. */
static PlStatus place(Operands *o, int n, const PlArray *const *in, PlcSdpaKey *k, int64_t *const *at) {
  const int last = in[0]->ndim - (in[0]->ndim > 3 ? 3 : 2); /* the usual split: one dim of heads */
  int64_t B, H, strides[4];
  int best = -1;
  for (int split = last; split >= 0; split--) {
    int fitting = 0;
    for (int i = 0; i < n; i++) fitting += strides_of(in[i], split, &B, &H, strides);
    if (fitting > best) best = fitting, o->split = split;
  }
  for (int i = 0; i < n; i++) {
    o->of[i].a = *in[i];
    if (!strides_of(in[i], o->split, &B, &H, at[i])) {
      PL_TRY(dense_copy(in[i], &o->of[i]));
      (void)strides_of(&o->of[i].a, o->split, &B, &H, at[i]); /* sizes of rows are multiples of 8 */
    }
    if (i == 0) k->B = B, k->H = H;
  }
  return PL_OK;
}

/* What it takes at all, with everything in the key but strides. */
static bool takes(PlcSdpaKey *k, const PlArray *q, const PlArray *kk, const PlArray *v) {
  if (!plc_dnn_plans() || (q->dtype != PL_F16 && q->dtype != PL_BF16)) return false;
  memset(k, 0, sizeof *k);
  k->what = 'A';
  k->dtype = q->dtype;
  k->L = q->shape[q->ndim - 2], k->E = q->shape[q->ndim - 1];
  k->S = kk->shape[kk->ndim - 2], k->D = v->shape[v->ndim - 1];
  k->deterministic = plc_deterministic();
  k->workspace = PLC_DNN_WORKSPACE;
  const int64_t head = 2 * k->L * k->S; /* long rows: what one head takes on Hopper, up to four times as much */
  if (k->deterministic && head > k->workspace && head <= 4 * PLC_DNN_WORKSPACE) k->workspace = head + (head >> 4);
  return q->numel > 0 && kk->numel > 0 && v->numel > 0 && k->E % 8 == 0 && k->D % 8 == 0;
}

/* The numbers that graphs take, at addresses that outlive the call's start. */
typedef struct Numbers {
  float scale, masked, one;
} Numbers;

/* The unfused kernels take several times as long, so it is said; once, since the reason is the same each time. */
static void say_unfused(const PlcSdpaKey *k) {
  static atomic_bool said;
  char text[320];
  if (atomic_exchange(&said, true)) return;
  (void)snprintf(text, sizeof text,
                 "attention: cuDNN %s has no fused plan%s for the %s of q [%lld,%lld,%lld,%lld], k [%lld,%lld,%lld,%lld], %s; it is "
                 "computed unfused, which is slower%s",
                 plc_dnn_version(), k->deterministic ? " that repeats its bits" : "", k->backward ? "gradient" : "result", (long long)k->B,
                 (long long)k->H, (long long)k->L, (long long)k->E, (long long)k->B, (long long)k->H, (long long)k->S, (long long)k->E,
                 pl_dtype_name((PlDtype)k->dtype), k->deterministic ? " (T.deterministic(false) allows other plans)" : "");
  plc_warn(text);
}

static PlStatus forward_placed(const PlkCall *call, PlcSdpaKey *k, const Operands *o, const PlArray *y, void *stats, bool *done) {
  int64_t B, H;
  if (!strides_of(y, o->split, &B, &H, k->o)) return PL_OK; /* apart and odd: made densely by the family's own kernel */
  const Numbers num = {.scale = (float)pl_attr_f(call->attrs, 0), .masked = -0x1.fffffep127f, .one = 1};
  const int64_t uid[] = {PLC_UID_Q, PLC_UID_K, PLC_UID_V, PLC_UID_O, PLC_UID_STATS, PLC_UID_SCALE, PLC_UID_MASKED};
  void *const at[] = {o->of[0].a.data, o->of[1].a.data, o->of[2].a.data, y->data, stats, (void *)&num.scale, (void *)&num.masked};
  k->align = plc_dnn_align(4, at);
  k->rows_align = plc_dnn_align(1, at + 4);
  PL_TRY(plc_dnn_run(k, sizeof *k, plc_sdpa_plan, k->causal ? 7 : 6, uid, at, done));
  if (!*done) say_unfused(k);
  return PL_OK;
}
static PlStatus forward_into(const PlkCall *call, const PlArray *y, void *stats, bool *done) {
  PlcSdpaKey k;
  Operands o = {.split = 0};
  int64_t *const at[] = {k.q, k.k, k.v};
  *done = false;
  if (!takes(&k, call->in[0], call->in[1], call->in[2])) return PL_OK;
  k.causal = pl_attr_i(call->attrs, 1) != 0;
  PlStatus s = place(&o, 3, call->in, &k, at);
  if (s == PL_OK) s = forward_placed(call, &k, &o, y, stats, done);
  give_back_operands(&o);
  return s;
}

/* in q, k, v, mask; out y, sums, state */
static PlStatus attention(const PlkCall *call, bool *done) {
  const PlArray *q = call->in[0];
  PlArray *y = call->out[0], *sums = call->out[1];
  *done = false;
  if ((call->nin > 3 && call->in[3]) || pl_attr_f(call->attrs, 2) > 0 || !y || y->numel == 0) return PL_OK;
  if (q->dtype != PL_F16 && q->dtype != PL_BF16) return PL_OK;
  const int64_t rows = q->numel / q->shape[q->ndim - 1];
  void *stats = NULL;
  PL_TRY(plc_scratch((size_t)rows * sizeof(float), &stats));
  PlStatus s = forward_into(call, y, stats, done);
  if (s == PL_OK && *done && sums) s = plc_attention_split(rows, stats, sums);
  plc_scratch_free(stats);
  return s;
}

/* ---- backward ------------------------------------------------------------------------------------------------- */

/* Scratch: row statistics, Σ dy o, dq in f32, what the caller did not give or want, or wants where the library does not write. */
typedef struct Room {
  void *stats, *sum, *acc, *y, *own[3];
} Room;

static void give_back(Room *r) {
  plc_scratch_free(r->stats);
  plc_scratch_free(r->sum);
  plc_scratch_free(r->acc);
  plc_scratch_free(r->y);
  for (int i = 0; i < 3; i++) plc_scratch_free(r->own[i]);
}

/* The output of attention, computed again: [B,H,L,D] dense. */
static PlStatus output_again(const PlkCall *call, const PlArray *dy, Room *r, PlArray *y, int64_t *strides, bool *done) {
  int64_t step = 1;
  *y = *dy;
  for (int d = dy->ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= dy->shape[d];
  }
  y->strides = strides;
  PL_TRY(plc_scratch((size_t)dy->numel * pl_dtype_size((PlDtype)dy->dtype), &r->y));
  y->data = r->y;
  const PlkCall again = {.name = call->name, .nin = 3, .nout = 1, .in = call->in + 1, .out = NULL, .attrs = call->attrs};
  return forward_into(&again, y, r->stats, done);
}

/* What backward reads and writes, whole. */
typedef struct Whole {
  void *q, *k, *v, *o, *dy, *out[3];
} Whole;

/* Batches b0 … b0+nb-1, heads h0 … h0+nh-1 (all of them where nb > 1): the same strides, from another element on. */
static PlStatus slice(const PlcSdpaKey *whole, const Whole *w, const Room *r, const Numbers *num, const int64_t b0, const int64_t nb,
                      const int64_t h0, const int64_t nh, bool *done) {
  PlcSdpaKey k = *whole;
  const int64_t item = (int64_t)pl_dtype_size((PlDtype)k.dtype), row = (b0 * k.H + h0) * k.L;
  int64_t uid[14];
  void *at[14];
  int n = 0;
  k.B = nb, k.H = nh;
#define ADD(u, p)        (uid[n] = (u), at[n++] = (void *)(p))
#define PART(u, p, step) ADD(u, (char *)(p) + (b0 * (step)[0] + h0 * (step)[1]) * item)
  PART(PLC_UID_Q, w->q, k.q), PART(PLC_UID_K, w->k, k.k), PART(PLC_UID_V, w->v, k.v), PART(PLC_UID_O, w->o, k.o);
  PART(PLC_UID_DY, w->dy, k.dy), PART(PLC_UID_DQ, w->out[0], k.dq), PART(PLC_UID_DK, w->out[1], k.dk), PART(PLC_UID_DV, w->out[2], k.dv);
  k.align = plc_dnn_align(n, at);
  const int rows = n;
  ADD(PLC_UID_STATS, (float *)r->stats + row), ADD(PLC_UID_SUM, (float *)r->sum + row);
  k.rows_align = plc_dnn_align(2, at + rows); /* a slice may begin at any row */
  ADD(PLC_UID_SCALE, &num->scale), ADD(PLC_UID_ONE, &num->one);
  if (k.causal) ADD(PLC_UID_MASKED, &num->masked);
  if (!k.deterministic) ADD(PLC_UID_ACC, (float *)r->acc + row * k.E);
#undef PART
#undef ADD
  return plc_dnn_run(&k, sizeof k, plc_sdpa_plan, n, uid, at, done);
}

/* All slices of one size; *done false: there is no plan for the first, and nothing has run. */
static PlStatus slices(const PlcSdpaKey *k, const Whole *w, const Room *r, const Numbers *num, int64_t nb, int64_t nh, bool *done) {
  for (int64_t b = 0; b < k->B; b += nb)
    for (int64_t h = 0; h < k->H; h += nh) {
      const int64_t batches = k->B - b < nb ? k->B - b : nb, heads = k->H - h < nh ? k->H - h : nh;
      PL_TRY(slice(k, w, r, num, b, batches, h, heads, done));
      if (!*done) return PL_OK; /* of the last, smaller one: all is computed again without cuDNN */
    }
  return PL_OK;
}

/* Where gradients go: to the caller's memory, whatever its strides; to scratch what is not wanted, or cannot be written there. */
static PlStatus targets(const PlkCall *call, PlcSdpaKey *k, const Operands *o, Room *r, Whole *w, bool in_place) {
  int64_t B, H, *const strides[3] = {k->dq, k->dk, k->dv};
  for (int i = 0; i < 3; i++) {
    const PlArray *like = call->in[1 + i], *out = call->out[i];
    const int64_t L = like->shape[like->ndim - 2], C = like->shape[like->ndim - 1];
    const bool there = out && (out->contiguous || (in_place && strides_of(out, o->split, &B, &H, strides[i])));
    w->out[i] = there ? out->data : NULL;
    if (there && !out->contiguous) continue;
    strides[i][0] = k->H * L * C, strides[i][1] = L * C, strides[i][2] = C, strides[i][3] = 1;
    if (there) continue;
    if (!r->own[i]) PL_TRY(plc_scratch((size_t)like->numel * pl_dtype_size((PlDtype)like->dtype), &r->own[i]));
    w->out[i] = r->own[i];
  }
  return PL_OK;
}
static PlStatus copy_out(const PlkCall *call, const Room *r) {
  static const PlAttrs none;
  for (int i = 0; i < 3; i++) {
    if (!call->out[i] || !r->own[i]) continue;
    PlArray own = *call->out[i];
    int64_t step = 1, strides[PL_MAX_DIM];
    for (int d = own.ndim - 1; d >= 0; d--) strides[d] = step, step *= own.shape[d];
    own.data = r->own[i], own.strides = strides, own.contiguous = 1;
    const PlArray *in[1] = {&own};
    const PlkCall copy = {.name = call->name, .nin = 1, .nout = 1, .in = in, .out = &call->out[i], .attrs = &none};
    PL_TRY(plc_run(&plc_kernel_copy, &copy));
  }
  return PL_OK;
}

static PlStatus backward(const PlkCall *call, PlcSdpaKey *k, const Operands *o, Room *r, bool *done) {
  const PlArray *dy = &o->of[3].a, *given = call->nin > 7 ? call->in[7] : NULL;
  PlArray y;
  int64_t B, H, strides[PL_MAX_DIM];
  const size_t rows = (size_t)(k->B * k->H * k->L);
  PL_TRY(plc_scratch(rows * sizeof(float), &r->stats));
  if (given && strides_of(given, o->split, &B, &H, k->o)) y = *given;
  else {
    PL_TRY(output_again(call, dy, r, &y, strides, done));
    if (!*done) return PL_OK;
    *done = false;
    (void)strides_of(&y, o->split, &B, &H, k->o);
  }
  PL_TRY(plc_attention_join(call->in[4], r->stats));
  PL_TRY(plc_scratch(rows * sizeof(float), &r->sum));
  if (!k->deterministic) PL_TRY(plc_scratch(rows * (size_t)k->E * sizeof(float), &r->acc));
  Whole w = {.q = o->of[0].a.data, .k = o->of[1].a.data, .v = o->of[2].a.data, .o = y.data, .dy = dy->data};
  bool apart = false;
  for (int i = 0; i < 3; i++) apart = apart || (call->out[i] && !call->out[i]->contiguous);
  const Numbers num = {.scale = (float)pl_attr_f(call->attrs, 0), .masked = -0x1.fffffep127f, .one = 1};
  int64_t nb, nh;
  for (int in_place = apart ? 1 : 0; !*done && in_place >= 0; in_place--) {
    PL_TRY(targets(call, k, o, r, &w, in_place != 0));
    for (int step = 0; !*done && plc_sdpa_slice(k, step, &nb, &nh); step++) PL_TRY(slices(k, &w, r, &num, nb, nh, done));
  }
  if (!*done) say_unfused(k);
  return *done ? copy_out(call, r) : PL_OK;
}

/* in dy, q, k, v, sums, mask, state, y; out dq, dk, dv */
static PlStatus attention_bwd(const PlkCall *call, bool *done) {
  PlcSdpaKey k;
  Operands o = {.split = 0};
  Room r = {.stats = NULL};
  const PlArray *in[] = {call->in[1], call->in[2], call->in[3], call->in[0]};
  int64_t *const at[] = {k.q, k.k, k.v, k.dy};
  *done = false;
  if ((call->nin > 5 && call->in[5]) || (call->nin > 6 && call->in[6])) return PL_OK;
  if (!takes(&k, in[0], in[1], in[2])) return PL_OK;
  k.backward = 1;
  k.causal = pl_attr_i(call->attrs, 1) != 0;
  PlStatus s = place(&o, 4, in, &k, at);
  if (s == PL_OK) s = backward(call, &k, &o, &r, done);
  give_back(&r);
  give_back_operands(&o);
  return s;
}

PLC_LIBRARY(attention, attention)
PLC_LIBRARY(attention_bwd, attention_bwd)
