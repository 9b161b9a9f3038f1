/* SPDX-License-Identifier: MIT
 * A recurrent net as cuDNN's RNN interface (version 8) describes it, and the layouts of its weights there and here. */
#ifndef PL_KERNELS_CUDA_LIBS_RECURRENT_NET_H
#define PL_KERNELS_CUDA_LIBS_RECURRENT_NET_H

#include "kernels/cuda/libs/cudnn_api.h"
#include "kernels/recurrent_library.h"

/* n elements at `ours` of the row of weights are those at `theirs` of the weight space. */
typedef struct PlcWeights {
  int64_t ours, theirs, n;
} PlcWeights;

typedef struct PlcNet {
  PlkRecurrent key;
  int gpu; /* whose handle it was asked of */
  bool works;
  uint64_t used;
  cudnnRNNDescriptor_t rnn;
  size_t weight_bytes;
  PlcWeights *part;
  int nparts;
} PlcNet;

/* net->rnn of net->key. Needs no device. */
PlStatus plc_net_describe(const PlcDnnApi *api, PlcNet *net);
/* weight_bytes, then, for a weight space at an address of one's choice, part. */
PlStatus plc_net_weight_bytes(const PlcDnnApi *api, cudnnHandle_t handle, PlcNet *net);
PlStatus plc_net_layout(const PlcDnnApi *api, cudnnHandle_t handle, PlcNet *net, const void *space);
/* Is the row of weights the weight space itself? */
bool plc_net_direct(const PlcNet *net);
void plc_net_free(const PlcDnnApi *api, PlcNet *net);

/* What one call needs besides: N sequences of up to S steps. lengths NULL: all of them S. */
typedef struct PlcSequences {
  cudnnRNNDataDescriptor_t x, y;
  cudnnTensorDescriptor_t h, c; /* c NULL but for an LSTM */
  size_t work, reserve;
} PlcSequences;
PlStatus plc_sequences_describe(const PlcDnnApi *api, const PlcNet *net, int64_t S, int64_t N, const int64_t *lengths, PlcSequences *q);
PlStatus plc_sequences_sizes(const PlcDnnApi *api, cudnnHandle_t handle, const PlcNet *net, PlcSequences *q);
void plc_sequences_free(const PlcDnnApi *api, PlcSequences *q);

#endif
