/* SPDX-License-Identifier: MIT
 * See recurrent_net.h. Gates have the same order there and here: i, f, g, o of an LSTM, r, z, n of a GRU; with both biases the
 * formulas are the same, too. Dropout between layers stays ours: its bits are those of every device. */
#include "kernels/cuda/libs/recurrent_net.h"

#include <stdlib.h>
#include <string.h>

static cudnnDataType_t dtype_of(const PlkRecurrent *n) {
  return n->dtype == PL_F16 ? CUDNN_DATA_HALF : n->dtype == PL_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

PlStatus plc_net_describe(const PlcDnnApi *api, PlcNet *net) {
  static const char doing[] = "describing a recurrent net";
  const PlkRecurrent *n = &net->key;
  const cudnnRNNMode_t mode = n->mode == PLK_RNN_LSTM   ? CUDNN_LSTM
                              : n->mode == PLK_RNN_GRU  ? CUDNN_GRU
                              : n->mode == PLK_RNN_RELU ? CUDNN_RNN_RELU
                                                        : CUDNN_RNN_TANH;
  const cudnnMathType_t math = n->dtype != PL_F32 ? CUDNN_TENSOR_OP_MATH : n->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
  if (n->dtype != PL_F32 && n->dtype != PL_F16 && n->dtype != PL_BF16)
    PL_FAIL(PL_ERR_UNSUPPORTED, "cudnn: %s: no %s", doing, pl_dtype_name((PlDtype)n->dtype));
  PLC_DNN_TRY(api, cudnnCreateRNNDescriptor(&net->rnn), doing);
  PLC_DNN_TRY(api,
              cudnnSetRNNDescriptor_v8(net->rnn, CUDNN_RNN_ALGO_STANDARD, mode, n->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
                                       n->directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, dtype_of(n),
                                       CUDNN_DATA_FLOAT, math, n->input, n->hidden, n->proj ? n->proj : n->hidden, n->layers, NULL,
                                       CUDNN_RNN_PADDED_IO_ENABLED),
              doing);
  return PL_OK;
}

PlStatus plc_net_weight_bytes(const PlcDnnApi *api, cudnnHandle_t handle, PlcNet *net) {
  PLC_DNN_TRY(api, cudnnGetRNNWeightSpaceSize(handle, net->rnn, &net->weight_bytes), "sizing a recurrent net");
  return PL_OK;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

typedef struct Reader {
  const PlcDnnApi *api;
  cudnnHandle_t handle;
  PlcNet *net;
  const char *space;
  cudnnTensorDescriptor_t m, b;
} Reader;

/* n elements at `address`; desc is what the library says of them. Neighbours join. */
static PlStatus note(Reader *r, int64_t ours, int64_t n, const void *address, const cudnnTensorDescriptor_t desc) {
  PlcNet *net = r->net;
  const int64_t item = (int64_t)pl_dtype_size((PlDtype)net->key.dtype), bytes = (const char *)address - r->space;
  cudnnDataType_t type;
  int ndim, dim[3] = {1, 1, 1}, stride[3];
  PLC_DNN_TRY(r->api, cudnnGetTensorNdDescriptor(desc, 3, &type, &ndim, dim, stride), "reading the places of weights");
  if (!address || ndim != 3 || (int64_t)dim[0] * dim[1] * dim[2] != n || bytes < 0 || bytes % item ||
      bytes + n * item > (int64_t)net->weight_bytes)
    PL_FAIL(PL_ERR_UNSUPPORTED, "cudnn: the weights of a recurrent net have an unexpected layout");
  PlcWeights *last = net->nparts ? &net->part[net->nparts - 1] : NULL;
  if (last && last->ours + last->n == ours && last->theirs + last->n == bytes / item) last->n += n;
  else net->part[net->nparts++] = (PlcWeights){ours, bytes / item, n};
  return PL_OK;
}

/* Matrix or bias k of a pseudo-layer (a layer in one direction). */
static PlStatus find(Reader *r, int pseudo, int k, void **matrix, void **bias) {
  *matrix = *bias = NULL;
  PLC_DNN_TRY(r->api, cudnnGetRNNWeightParams(r->handle, r->net->rnn, pseudo, r->net->weight_bytes, r->space, k, r->m, matrix, r->b, bias),
              "finding weights");
  return PL_OK;
}

static PlStatus matrices(Reader *r, int l, int d) {
  const PlkRecurrent *n = &r->net->key;
  const int G = (int)plk_recurrent_gates(n), pseudo = l * n->directions + d;
  const int64_t H = n->hidden, in = plk_recurrent_in(n, l), out = plk_recurrent_out(n);
  int64_t at = plk_recurrent_matrices(n, l, d);
  void *matrix, *bias;
  for (int k = 0; k < 2 * G; k++) {
    const int64_t count = H * (k < G ? in : out);
    PL_TRY(find(r, pseudo, k, &matrix, &bias));
    PL_TRY(note(r, at, count, matrix, r->m));
    at += count;
  }
  if (!n->proj) return PL_OK;
  PL_TRY(find(r, pseudo, 2 * G, &matrix, &bias));
  return note(r, at, out * H, matrix, r->m);
}

static PlStatus biases(Reader *r, int l, int d) {
  const PlkRecurrent *n = &r->net->key;
  const int G = (int)plk_recurrent_gates(n);
  int64_t at = plk_recurrent_biases(n, l, d);
  void *matrix, *bias;
  for (int k = 0; k < 2 * G; k++, at += n->hidden) {
    PL_TRY(find(r, l * n->directions + d, k, &matrix, &bias));
    PL_TRY(note(r, at, n->hidden, bias, r->b));
  }
  return PL_OK;
}

static PlStatus read_layout(Reader *r) {
  const PlkRecurrent *n = &r->net->key;
  PLC_DNN_TRY(r->api, cudnnCreateTensorDescriptor(&r->m), "finding weights");
  PLC_DNN_TRY(r->api, cudnnCreateTensorDescriptor(&r->b), "finding weights");
  for (int k = 0; k < n->layers * n->directions; k++) PL_TRY(matrices(r, k / n->directions, k % n->directions));
  for (int k = 0; n->bias && k < n->layers * n->directions; k++) PL_TRY(biases(r, k / n->directions, k % n->directions));
  return PL_OK;
}

PlStatus plc_net_layout(const PlcDnnApi *api, cudnnHandle_t handle, PlcNet *net, const void *space) {
  Reader r = {.api = api, .handle = handle, .net = net, .space = space};
  const size_t most = (size_t)net->key.layers * (size_t)net->key.directions * 17;
  if (!(net->part = calloc(most, sizeof *net->part))) PL_FAIL(PL_ERR_OOM, "out of memory for a recurrent net");
  PlStatus s = read_layout(&r);
  if (r.m) (void)api->cudnnDestroyTensorDescriptor(r.m);
  if (r.b) (void)api->cudnnDestroyTensorDescriptor(r.b);
  return s;
}

bool plc_net_direct(const PlcNet *net) {
  const PlcWeights *p = net->part;
  return net->nparts == 1 && p->ours == 0 && p->theirs == 0 && (size_t)p->n * pl_dtype_size((PlDtype)net->key.dtype) == net->weight_bytes;
}

void plc_net_free(const PlcDnnApi *api, PlcNet *net) {
  if (net->rnn) (void)api->cudnnDestroyRNNDescriptor(net->rnn);
  free(net->part);
  memset(net, 0, sizeof *net);
}

/* ---- sequences ------------------------------------------------------------------------------------------------------- */

static PlStatus dense(const PlcDnnApi *api, cudnnTensorDescriptor_t *out, cudnnDataType_t type, int a, int b, int c) {
  const int dim[3] = {a, b, c}, stride[3] = {b * c, c, 1};
  PLC_DNN_TRY(api, cudnnCreateTensorDescriptor(out), "describing states");
  PLC_DNN_TRY(api, cudnnSetTensorNdDescriptor(*out, type, 3, dim, stride), "describing states");
  return PL_OK;
}

static PlStatus data(const PlcDnnApi *api, cudnnRNNDataDescriptor_t *out, cudnnDataType_t type, int64_t S, int64_t N, int64_t width,
                     const int *lengths) {
  double zero = 0; /* in every dtype */
  PLC_DNN_TRY(api, cudnnCreateRNNDataDescriptor(out), "describing sequences");
  PLC_DNN_TRY(api,
              cudnnSetRNNDataDescriptor(*out, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, (int)S, (int)N, (int)width, lengths, &zero),
              "describing sequences");
  return PL_OK;
}

static PlStatus describe(const PlcDnnApi *api, const PlkRecurrent *n, int64_t S, int64_t N, const int *lengths, PlcSequences *q) {
  const cudnnDataType_t type = dtype_of(n);
  const int64_t out = plk_recurrent_out(n);
  const int k = n->layers * n->directions;
  PL_TRY(data(api, &q->x, type, S, N, n->input, lengths));
  PL_TRY(data(api, &q->y, type, S, N, n->directions * out, lengths));
  PL_TRY(dense(api, &q->h, type, k, (int)N, (int)out));
  return n->mode == PLK_RNN_LSTM ? dense(api, &q->c, type, k, (int)N, n->hidden) : PL_OK;
}

PlStatus plc_sequences_describe(const PlcDnnApi *api, const PlcNet *net, int64_t S, int64_t N, const int64_t *lengths, PlcSequences *q) {
  memset(q, 0, sizeof *q);
  int *count = malloc((size_t)N * sizeof *count);
  if (!count) PL_FAIL(PL_ERR_OOM, "out of memory for the lengths of %lld sequences", (long long)N);
  PlStatus s = PL_OK;
  for (int64_t i = 0; i < N && s == PL_OK; i++) {
    if (lengths && (lengths[i] < 1 || lengths[i] > S))
      s = pl_fail(PL_ERR_ARG, "recurrent: a sequence of %lld steps among such of up to %lld", (long long)lengths[i], (long long)S);
    count[i] = (int)(lengths ? lengths[i] : S);
  }
  if (s == PL_OK) s = describe(api, &net->key, S, N, count, q);
  free(count);
  return s;
}

PlStatus plc_sequences_sizes(const PlcDnnApi *api, cudnnHandle_t handle, const PlcNet *net, PlcSequences *q) {
  PLC_DNN_TRY(api,
              cudnnGetRNNTempSpaceSizes(handle, net->rnn, net->key.train ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, q->x,
                                        &q->work, &q->reserve),
              "sizing the work of a recurrent net");
  return PL_OK;
}

void plc_sequences_free(const PlcDnnApi *api, PlcSequences *q) {
  if (q->x) (void)api->cudnnDestroyRNNDataDescriptor(q->x);
  if (q->y) (void)api->cudnnDestroyRNNDataDescriptor(q->y);
  if (q->h) (void)api->cudnnDestroyTensorDescriptor(q->h);
  if (q->c) (void)api->cudnnDestroyTensorDescriptor(q->c);
}
