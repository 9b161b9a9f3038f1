/* SPDX-License-Identifier: MIT
 * Recurrent nets that cuDNN computes as a whole (kernels/recurrent_library.h): all layers, both directions, all steps in one
 * call, and two calls for backward. The families "recurrent" and "recurrent_bwd" have no kernel of their own: the engine
 * asks `takes` first, which tries a net of that kind once on one short sequence. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/libs/libs.h"
#include "kernels/cuda/libs/recurrent_net.h"
#include "kernels/cuda/runtime/runtime.h"

enum { NETS = 32 };

/* Guarded by the handle's lock. The least recently used goes first. */
static struct {
  PlcNet net[NETS];
  int n;
  uint64_t clock;
} kept;

/* What one call works with; run between plc_dnn_begin and plc_dnn_end. */
typedef struct Work {
  const PlcDnnApi *api;
  cudnnHandle_t handle;
  PlcNet *net;
  PlcSequences q;
  void *weights, *dweights, *work, *reserve, *spare[2]; /* scratch */
} Work;

static size_t bytes_of(const PlcNet *net, int64_t n) { return (size_t)n * pl_dtype_size((PlDtype)net->key.dtype); }

/* The row of weights in cuDNN's order, or the reverse. */
static PlStatus arrange(const PlcNet *net, char *to, const char *from, bool theirs) {
  for (int k = 0; k < net->nparts; k++) {
    const PlcWeights *p = &net->part[k];
    PLC_TRY(cudaMemcpyAsync(to + bytes_of(net, theirs ? p->theirs : p->ours), from + bytes_of(net, theirs ? p->ours : p->theirs),
                            bytes_of(net, p->n), cudaMemcpyDeviceToDevice, plc_stream()));
  }
  return PL_OK;
}

static PlStatus weights_of(Work *w, const void *row, const void **space) {
  *space = row;
  if (plc_net_direct(w->net)) return PL_OK;
  PL_TRY(plc_scratch(w->net->weight_bytes, &w->weights));
  PLC_TRY(cudaMemsetAsync(w->weights, 0, w->net->weight_bytes, plc_stream()));
  *space = w->weights;
  return arrange(w->net, w->weights, row, true);
}

static const char *c_of(const Work *w, const void *state, int64_t N) {
  const PlkRecurrent *n = &w->net->key;
  return state && n->mode == PLK_RNN_LSTM ? (const char *)state + bytes_of(w->net, N * n->layers * n->directions * plk_recurrent_out(n))
                                          : NULL;
}

static PlStatus forward(Work *w, int64_t N, const void *x, const void *state, const void *row, void *y, void *last, void *reserve) {
  const void *space;
  PL_TRY(weights_of(w, row, &space));
  PL_TRY(plc_scratch(w->q.work, &w->work));
  PLC_DNN_TRY(w->api,
              cudnnRNNForward(w->handle, w->net->rnn, w->net->key.train ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, NULL, w->q.x,
                              x, w->q.y, y, w->q.h, state, last, w->q.c, c_of(w, state, N), (void *)(uintptr_t)c_of(w, last, N),
                              w->net->weight_bytes, space, w->q.work, w->work, w->q.reserve, reserve),
              "a recurrent net");
  return PL_OK;
}

/* The reserve is written by backward, which may come again: it works on a copy. dy, dlast, dstate and dw may be NULL. */
static PlStatus backward(Work *w, int64_t N, const PlkCall *call, const void *dy, void *dx, void *dstate, void *dw) {
  const void *x = call->in[0]->data, *state = call->in[1]->data, *y = call->in[3]->data, *space;
  const void *dlast = call->nin > 6 && call->in[6] ? call->in[6]->data : NULL;
  const PlcNet *net = w->net;
  PL_TRY(weights_of(w, call->in[2]->data, &space));
  PL_TRY(plc_scratch(w->q.work, &w->work));
  PL_TRY(plc_scratch(w->q.reserve, &w->reserve));
  PLC_TRY(cudaMemcpyAsync(w->reserve, call->in[4]->data, w->q.reserve, cudaMemcpyDeviceToDevice, plc_stream()));
  PLC_DNN_TRY(w->api,
              cudnnRNNBackwardData_v8(w->handle, net->rnn, NULL, w->q.y, y, dy, w->q.x, dx, w->q.h, state, dlast, dstate, w->q.c,
                                      c_of(w, state, N), c_of(w, dlast, N), (void *)(uintptr_t)c_of(w, dstate, N), net->weight_bytes, space,
                                      w->q.work, w->work, w->q.reserve, w->reserve),
              "the gradient of a recurrent net");
  if (!dw) return PL_OK;
  void *dspace = dw;
  if (!plc_net_direct(net)) {
    PL_TRY(plc_scratch(net->weight_bytes, &w->dweights));
    dspace = w->dweights;
  }
  PLC_TRY(cudaMemsetAsync(dspace, 0, net->weight_bytes, plc_stream()));
  PLC_DNN_TRY(w->api,
              cudnnRNNBackwardWeights_v8(w->handle, net->rnn, CUDNN_WGRAD_MODE_ADD, NULL, w->q.x, x, w->q.h, state, w->q.y, y,
                                         net->weight_bytes, dspace, w->q.work, w->work, w->q.reserve, w->reserve),
              "the gradient of a recurrent net's weights");
  return dspace == dw ? PL_OK : arrange(net, dw, dspace, false);
}

static void drop(Work *w) {
  if (w->api) plc_sequences_free(w->api, &w->q);
  plc_scratch_free(w->weights);
  plc_scratch_free(w->dweights);
  plc_scratch_free(w->work);
  plc_scratch_free(w->reserve);
  for (int i = 0; i < 2; i++) plc_scratch_free(w->spare[i]);
}
static void end(Work *w) {
  drop(w);
  plc_dnn_end();
}

/* ---- nets ---------------------------------------------------------------------------------------------------------- */

static PlStatus sequences(Work *w, int64_t S, int64_t N, const int64_t *lengths) {
  PL_TRY(plc_sequences_describe(w->api, w->net, S, N, lengths, &w->q));
  return plc_sequences_sizes(w->api, w->handle, w->net, &w->q);
}

/* One sequence of two steps, all zeros, there and back. */
static PlStatus try_out(Work *w) {
  const PlkRecurrent *n = &w->net->key;
  const int64_t x = 2 * n->input, y = 2 * n->directions * plk_recurrent_out(n), states = plk_recurrent_states(n, 1),
                row = plk_recurrent_weights(n);
  const int64_t size[] = {x, states, row, y, states, x, states, row}, pad = 64;
  size_t bytes = 0, at[8];
  PL_TRY(sequences(w, 2, 1, NULL));
  for (int i = 0; i < 8; i++) {
    at[i] = bytes;
    bytes += (bytes_of(w->net, size[i] + pad) + 255) / 256 * 256;
  }
  PL_TRY(plc_scratch(bytes + w->q.reserve, &w->spare[0]));
  char *room = w->spare[0];
  PLC_TRY(cudaMemsetAsync(room, 0, bytes, plc_stream()));
  PL_TRY(forward(w, 1, room + at[0], room + at[1], room + at[2], room + at[3], room + at[4], n->train ? room + bytes : NULL));
  if (!n->train) return PL_OK;
  plc_scratch_free(w->weights);
  plc_scratch_free(w->work);
  w->weights = w->work = NULL;
  PlArray a[5];
  const PlArray *in[5];
  for (int i = 0; i < 5; i++) {
    a[i] = (PlArray){.data = room + (i < 4 ? at[i] : bytes)};
    in[i] = &a[i];
  }
  const PlkCall call = {.name = "recurrent", .nin = 5, .in = in};
  return backward(w, 1, &call, room + at[3], room + at[5], room + at[6], room + at[7]);
}

static PlStatus make(Work *w) {
  PlcNet *net = w->net;
  PL_TRY(plc_net_describe(w->api, net));
  PL_TRY(plc_net_weight_bytes(w->api, w->handle, net));
  PL_TRY(plc_scratch(net->weight_bytes, &w->spare[1]));
  PL_TRY(plc_net_layout(w->api, w->handle, net, w->spare[1]));
  if (plc_capturing && plc_capturing()) return PL_OK; /* it was tried before the capture */
  return try_out(w);
}

/* The kept net of a key, or a new one. A net that the library does not compute is kept, too. */
static PlcNet *net_of(Work *w, const PlkRecurrent *key) {
  PlcNet *net = NULL;
  const int gpu = plc_gpu_number();
  for (int k = 0; k < kept.n && !net; k++)
    if (kept.net[k].gpu == gpu && memcmp(&kept.net[k].key, key, sizeof *key) == 0) net = &kept.net[k];
  if (!net) {
    net = &kept.net[0];
    if (kept.n < NETS) net = &kept.net[kept.n++];
    else
      for (int k = 1; k < NETS; k++)
        if (kept.net[k].used < net->used) net = &kept.net[k];
    plc_net_free(w->api, net);
    net->key = *key;
    net->gpu = gpu;
    Work first = {.api = w->api, .handle = w->handle, .net = net};
    PlStatus s = make(&first);
    net->works = s == PL_OK;
    drop(&first);
    if (s == PL_ERR_OOM) net->key.layers = 0; /* asked again next time */
  }
  net->used = ++kept.clock;
  return net;
}

static PlStatus begin(Work *w, const PlkRecurrent *key) {
  PL_TRY(plc_dnn_begin(&w->api, &w->handle));
  w->net = net_of(w, key);
  if (!w->net->works) PL_FAIL(PL_ERR_UNSUPPORTED, "recurrent: cuDNN does not compute such a net here");
  return PL_OK;
}

/* ---- what the engine asks ---------------------------------------------------------------------------------------------- */

static bool takes(int gpu, const PlkRecurrent *n) {
  if (plc_use(gpu) != PL_OK || !plc_cudnn() || !plc_dnn_version() || plc_alive() != PL_OK) return false;
  Work w = {.api = NULL};
  PlStatus s = begin(&w, n);
  end(&w);
  return s == PL_OK;
}

static PlStatus reserve(int gpu, const PlkRecurrent *n, int64_t S, int64_t N, int64_t *bytes) {
  PL_TRY(plc_use(gpu));
  Work w = {.api = NULL};
  PlStatus s = begin(&w, n);
  if (s == PL_OK) s = sequences(&w, S, N, NULL);
  *bytes = (int64_t)w.q.reserve;
  end(&w);
  return s;
}

const PlkRecurrentTable *plc_recurrent_table(void) {
  static const PlkRecurrentTable table = {takes, reserve};
  return &table;
}

/* ---- the families ---------------------------------------------------------------------------------------------------------- */

static PlStatus start(Work *w, const PlkCall *call, int lengths) {
  const PlArray *x = call->in[0], *l = lengths < call->nin ? call->in[lengths] : NULL;
  PlkRecurrent key;
  if (!plk_recurrent_of(&key, call->attrs, x)) PL_FAIL(PL_ERR_SHAPE, "%s: no net of such sizes", call->name);
  PL_TRY(begin(w, &key));
  return sequences(w, x->shape[0], x->shape[1], l ? l->data : NULL);
}

/* in x, state, w, lengths; out y, last states, reserve */
static PlStatus run(Work *w, const PlkCall *call) {
  const PlArray *x = call->in[0];
  PL_TRY(start(w, call, 3));
  void *out[3] = {call->out[0] ? call->out[0]->data : NULL, call->out[1] ? call->out[1]->data : NULL, NULL};
  if (!out[0]) {
    const PlkRecurrent *n = &w->net->key;
    PL_TRY(plc_scratch(bytes_of(w->net, x->shape[0] * x->shape[1] * n->directions * plk_recurrent_out(n)), &w->spare[0]));
    out[0] = w->spare[0];
  }
  if (w->net->key.train && call->out[2]) {
    if ((size_t)call->out[2]->numel < w->q.reserve) PL_FAIL(PL_ERR_STATE, "%s: cuDNN wants more room than it said", call->name);
    out[2] = call->out[2]->data;
  } else if (w->net->key.train) {
    PL_TRY(plc_scratch(w->q.reserve, &w->spare[1]));
    out[2] = w->spare[1];
  }
  return forward(w, x->shape[1], x->data, call->in[1]->data, call->in[2]->data, out[0], out[1], out[2]);
}
static PlStatus recurrent(const PlkCall *call) {
  Work w = {.api = NULL};
  PlStatus s = run(&w, call);
  end(&w);
  return s;
}

/* in x, state, w, y, reserve, dy, dstate, lengths; out dx, dstate, dw */
static PlStatus run_back(Work *w, const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->in[3], *dy = call->nin > 5 ? call->in[5] : NULL;
  PL_TRY(start(w, call, 7));
  if ((size_t)call->in[4]->numel < w->q.reserve) PL_FAIL(PL_ERR_STATE, "%s: the reserve belongs to another call", call->name);
  void *dx = call->out[0] ? call->out[0]->data : NULL;
  if (!dy) {
    PL_TRY(plc_scratch(bytes_of(w->net, y->numel), &w->spare[0]));
    PLC_TRY(cudaMemsetAsync(w->spare[0], 0, bytes_of(w->net, y->numel), plc_stream()));
  }
  if (!dx) {
    PL_TRY(plc_scratch(bytes_of(w->net, x->numel), &w->spare[1]));
    dx = w->spare[1];
  }
  return backward(w, x->shape[1], call, dy ? dy->data : w->spare[0], dx, call->out[1] ? call->out[1]->data : NULL,
                  call->out[2] ? call->out[2]->data : NULL);
}
static PlStatus recurrent_bwd(const PlkCall *call) {
  Work w = {.api = NULL};
  PlStatus s = run_back(&w, call);
  end(&w);
  return s;
}

PLC_KERNEL(recurrent, recurrent)
PLC_KERNEL(recurrent_bwd, recurrent_bwd)
