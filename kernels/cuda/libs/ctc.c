/* SPDX-License-Identifier: MIT
 * cuDNN's CTC (cudnnCTCLoss_v8, letters and lengths on the device, the algorithm that repeats its bits) for f32, blank as the
 * first class and up to 255 letters; ctc_library.cu says how its answers become ours. The first call that may wait tries
 * it out on a small batch next to our own kernels: where it differs, or fails, those compute from then on. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "kernels/cuda/libs/cudnn_api.h"
#include "kernels/cuda/loss/ctc.h"
#include "kernels/cuda/runtime/locked.h"

/* ---- one call ------------------------------------------------------------------------------------------------------ */

typedef struct Described {
  cudnnCTCLossDescriptor_t loss;
  cudnnTensorDescriptor_t probs;
} Described;

static PlStatus describe(const PlcDnnApi *api, const PlArray *lp, Described *d) {
  const int dim[3] = {(int)lp->shape[0], (int)lp->shape[1], (int)lp->shape[2]}, stride[3] = {dim[1] * dim[2], dim[2], 1};
  PLC_DNN_TRY(api, cudnnCreateTensorDescriptor(&d->probs), "describing CTC");
  PLC_DNN_TRY(api, cudnnSetTensorNdDescriptor(d->probs, CUDNN_DATA_FLOAT, 3, dim, stride), "describing CTC");
  PLC_DNN_TRY(api, cudnnCreateCTCLossDescriptor(&d->loss), "describing CTC");
  PLC_DNN_TRY(api,
              cudnnSetCTCLossDescriptor_v9(d->loss, CUDNN_DATA_FLOAT, CUDNN_LOSS_NORMALIZATION_SOFTMAX, CUDNN_CTC_ZERO_OOB_GRADIENTS,
                                           PLC_CTC_LETTERS),
              "describing CTC");
  return PL_OK;
}

static PlStatus described(const PlcDnnApi *api, cudnnHandle_t handle, const PlcCtc *c, float *gradients, Described *d) {
  const PlArray *lp = c->call->in[c->at];
  void *work = NULL;
  size_t bytes = 0;
  PL_TRY(describe(api, lp, d));
  PLC_DNN_TRY(
      api,
      cudnnGetCTCLossWorkspaceSize_v8(handle, CUDNN_CTC_LOSS_ALGO_DETERMINISTIC, d->loss, d->probs, gradients ? d->probs : NULL, &bytes),
      "sizing the work of CTC");
  PL_TRY(plc_scratch(bytes + 1, &work));
  cudnnStatus_t code = api->cudnnCTCLoss_v8(handle, CUDNN_CTC_LOSS_ALGO_DETERMINISTIC, d->loss, d->probs, lp->data, c->labels, c->letters,
                                            c->frames, c->costs, gradients ? d->probs : NULL, gradients, bytes, work);
  plc_scratch_free(work);
  return code == CUDNN_STATUS_SUCCESS ? PL_OK : plc_dnn_fail(code, "CTC");
}

static PlStatus by_cudnn(const PlcCtc *c, float *gradients) {
  const PlcDnnApi *api = NULL;
  cudnnHandle_t handle;
  Described d = {NULL, NULL};
  PlStatus s = plc_dnn_begin(&api, &handle);
  if (s == PL_OK) s = described(api, handle, c, gradients, &d);
  if (d.loss) (void)api->cudnnDestroyCTCLossDescriptor(d.loss);
  if (d.probs) (void)api->cudnnDestroyTensorDescriptor(d.probs);
  plc_dnn_end();
  return s;
}

/* *done false: cuDNN does not compute it. */
static PlStatus compute(const PlkCall *call, bool back, bool *done) {
  PlcCtc c = {.labels = NULL};
  PlStatus s = plc_ctc_begin(&c, call, back);
  if (s == PL_OK) s = by_cudnn(&c, back ? call->out[0]->data : NULL);
  *done = s == PL_OK;
  if (s == PL_OK) s = back ? plc_ctc_loss_bwd_end(&c) : plc_ctc_loss_end(&c);
  plc_scratch_free(c.labels);
  return s == PL_ERR_UNSUPPORTED && !*done ? PL_OK : s;
}

/* ---- is it what we mean? ---------------------------------------------------------------------------------------------- */

enum { T = 8, N = 3, C = 5, S = 4, WAYS = 2 };

typedef struct Trial {
  double alpha[WAYS][N * T * (2 * S + 1)];
  int64_t targets[N * S], frames[N], letters[N];
  float lp[T * N * C], dy[N], nll[WAYS][N], grad[WAYS][T * N * C];
} Trial;

static PlArray array(void *data, PlDtype dtype, int ndim, const int64_t *shape, int64_t *strides) {
  PlArray a = {
      .data = data, .dtype = (uint8_t)dtype, .ndim = (uint8_t)ndim, .shape = shape, .strides = strides, .contiguous = 1, .device = PL_CUDA};
  a.numel = 1;
  for (int d = ndim - 1; d >= 0; a.numel *= shape[d--]) strides[d] = a.numel;
  return a;
}

/* Way 0 is cuDNN's. Rows do not add up to 1, letters repeat, a sequence ends early. */
static PlStatus both_ways(Trial *t, bool *done) {
  static const int64_t lp_shape[] = {T, N, C}, target_shape[] = {N, S}, alpha_shape[] = {N, T, 2 * S + 1}, each[] = {N};
  int64_t strides[7][3];
  PlAttrs attrs;
  memset(&attrs, 0, sizeof attrs);
  attrs.set = attrs.isint = 3, attrs.nval = 2;
  attrs.v[0].i = attrs.v[1].i = 1;
  PlArray lp = array(t->lp, PL_F32, 3, lp_shape, strides[0]), targets = array(t->targets, PL_I64, 2, target_shape, strides[1]);
  PlArray frames = array(t->frames, PL_I64, 1, each, strides[2]), letters = array(t->letters, PL_I64, 1, each, strides[2]);
  PlArray dy = array(t->dy, PL_F32, 1, each, strides[2]);
  for (int way = 0; way < WAYS; way++) {
    PlArray nll = array(t->nll[way], PL_F32, 1, each, strides[2]), alpha = array(t->alpha[way], PL_F64, 3, alpha_shape, strides[3]);
    PlArray grad = array(t->grad[way], PL_F32, 3, lp_shape, strides[4]), *there[2] = {&nll, &alpha}, *back[1] = {&grad};
    const PlArray *in[7] = {&dy, &lp, &targets, &frames, &letters, &nll, &alpha};
    const PlkCall loss = {.name = "ctc_nll", .nin = 4, .nout = 2, .in = in + 1, .out = there, .attrs = &attrs};
    const PlkCall bwd = {.name = "ctc_loss_bwd", .nin = 7, .nout = 1, .in = in, .out = back, .attrs = &attrs};
    PL_TRY(way ? plc_ctc_loss_own(&loss, NULL) : compute(&loss, false, done));
    if (!*done) return PL_OK;
    PL_TRY(way ? plc_ctc_loss_bwd_own(&bwd, NULL) : compute(&bwd, true, done));
    if (!*done) return PL_OK;
  }
  return PL_OK;
}

static bool close_to(const float *a, const float *b, int n) {
  for (int i = 0; i < n; i++)
    if (!(fabsf(a[i] - b[i]) <= 1e-4f * (1 + fabsf(b[i])))) return false;
  return true;
}

/* *works: cuDNN answered for every sequence, and with our numbers. */
static PlStatus try_out(bool *works) {
  static const int64_t targets[N * S] = {2, 3, 3, 5, 4, 0, 0, 0, 3, 2, 0, 0}, frames[N] = {8, 5, 8}, letters[N] = {4, 1, 2};
  Trial t;
  void *room;
  bool done = false;
  *works = false;
  memset(&t, 0, sizeof t);
  memcpy(t.targets, targets, sizeof targets);
  memcpy(t.frames, frames, sizeof frames);
  memcpy(t.letters, letters, sizeof letters);
  for (int i = 0; i < T * N * C; i++) t.lp[i] = -0.3f - 0.25f * (float)(i * 7 % 11);
  for (int n = 0; n < N; n++) t.dy[n] = 1 + (float)n;
  PL_TRY(plc_scratch(sizeof t, &room));
  PlStatus s = plc_upload(room, &t, sizeof t);
  if (s == PL_OK) s = both_ways(room, &done);
  const cudaError_t e = s == PL_OK && done ? cudaMemcpyAsync(&t, room, sizeof t, cudaMemcpyDeviceToHost, plc_stream()) : cudaSuccess;
  plc_scratch_free(room);
  if (s != PL_OK || !done) return s;
  PLC_TRY(e);
  PLC_TRY(cudaStreamSynchronize(plc_stream())); /* what kernels flagged before stays for the next wait */
  *works = close_to(t.nll[0], t.nll[1], N) && close_to(t.grad[0], t.grad[1], T * N * C);
  for (int n = 0; n < N; n++) *works = *works && isinf(t.alpha[0][n * T * (2 * S + 1)]);
  return PL_OK;
}

static struct {
  pthread_mutex_t lock;
  bool tried, works;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static PlStatus works(bool *yes) {
  PlStatus s = PL_OK;
  plc_lock(&known.lock);
  if (!known.tried && !(plc_capturing && plc_capturing())) {
    s = try_out(&known.works);
    known.tried = s != PL_ERR_OOM;
  }
  *yes = known.works;
  plc_unlock(&known.lock);
  return pl_must_report(s) ? s : plc_alive(); /* other troubles are cuDNN's own */
}

/* ---- the families ---------------------------------------------------------------------------------------------------------- */

static PlStatus take(const PlkCall *call, bool back, bool *done) {
  const PlArray *lp = call->in[back], *targets = call->in[back + 1];
  bool yes = false;
  *done = false;
  if (!plc_cudnn() || lp->dtype != PL_F32 || lp->numel == 0 || lp->numel > INT32_MAX || lp->shape[2] < 2) return PL_OK;
  if (targets->shape[1] > PLC_CTC_LETTERS || pl_attr_i(call->attrs, 0) != pl_attr_i(call->attrs, 1)) return PL_OK;
  if (!call->out[0] || !plc_dnn_version()) return PL_OK;
  PL_TRY(works(&yes));
  return yes ? compute(call, back, done) : PL_OK;
}
static PlStatus ctc_loss(const PlkCall *call, bool *done) { return take(call, false, done); }
static PlStatus ctc_loss_bwd(const PlkCall *call, bool *done) { return take(call, true, done); }

PLC_LIBRARY(ctc_loss, ctc_loss)
PLC_LIBRARY(ctc_loss_bwd, ctc_loss_bwd)
