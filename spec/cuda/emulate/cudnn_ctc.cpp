// SPDX-License-Identifier: MIT
// For tests: cuDNN's CTC on the CPU, in double: p = softmax of a frame (Graves et al. 2006, section 4), alpha and beta of each
// frame scaled to a sum of 1 as in Rabiner's rule, cost = -log of the scales' product, gradient = p - share of each class.
// What the library's documentation does not allow (a label that is blank, more labels than fit) stops the process: there it
// reads outside of its memory. PERILUNE_EMULATE: cudnn-ctc=0 takes inputs for probabilities already, =1 supports nothing,
// =2 gives no number for the first sequence (but of three), =3 adds 5 to costs of batches of seven, which shows whose they are.
#include "cudnn_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "inside.h"

struct cudnnCTCLossStruct {
  cudnnLossNormalizationMode_t norm;
  int longest;
};

namespace {

struct Job {
  int T, N, A, longest;
  long long fault;
  const float *x;
  const int *labels, *letters, *frames;
  float *costs, *grads;

  double prob(int t, int n, int k) const {
    const float *row = x + ((size_t)t * N + n) * A;
    double top = row[0], sum = 0;
    if (fault == 0) return exp(row[k]);
    for (int i = 1; i < A; i++) top = fmax(top, row[i]);
    for (int i = 0; i < A; i++) sum += exp(row[i] - top);
    return exp(row[k] - top) / sum;
  }
  static double scale(double *v, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += v[i];
    for (int i = 0; i < n; i++) v[i] /= sum;
    return log(sum);
  }

  void sequence(int n, const int *label) const {
    const int L = letters[n], F = frames[n], W = 2 * L + 1;
    int twins = 0;
    bool sound = L > 0 && L <= longest && F > 0 && F <= T;
    for (int s = 0; sound && s < L; s++) {
      sound = label[s] > 0 && label[s] < A;
      twins += s > 0 && label[s] == label[s - 1];
    }
    if (!sound || L + twins > F) {
      fprintf(stderr, "emulated cuDNN: CTC reads outside of its memory (sequence %d: %d labels, %d frames)\n", n, L, F);
      abort();
    }
    double *a = (double *)calloc((size_t)F * W, sizeof *a), *b = (double *)calloc((size_t)2 * W, sizeof *b), cost = 0;
    for (int t = 0; t < F; t++) {
      double *now = a + (size_t)t * W;
      for (int s = 0; s < W; s++) {
        const int k = s % 2 ? label[s / 2] : 0;
        double v = t ? now[s - W] : s < 2;
        if (t && s > 0) v += now[s - W - 1];
        if (t && s > 2 && s % 2 && k != label[s / 2 - 1]) v += now[s - W - 2];
        now[s] = v * prob(t, n, k);
      }
      cost -= t + 1 < F ? scale(now, W) : log(now[W - 1] + now[W - 2]);
    }
    costs[n] = fault == 2 && n == 0 && N != 3 ? NAN : (float)(cost + (fault == 3 && N == 7 ? 5 : 0));
    for (int t = F; grads && t-- > 0;) {
      double *now = b + (size_t)(t % 2) * W, *after = b + (size_t)((t + 1) % 2) * W, all = 0;
      for (int s = 0; s < W; s++) {
        double v = t == F - 1 ? s >= W - 2 : after[s] * prob(t + 1, n, s % 2 ? label[s / 2] : 0);
        if (t < F - 1 && s + 1 < W) v += after[s + 1] * prob(t + 1, n, (s + 1) % 2 ? label[(s + 1) / 2] : 0);
        if (t < F - 1 && s % 2 && s + 2 < W && label[s / 2] != label[s / 2 + 1]) v += after[s + 2] * prob(t + 1, n, label[s / 2 + 1]);
        now[s] = v;
        all += a[(size_t)t * W + s] * v;
      }
      float *g = grads + ((size_t)t * N + n) * A;
      for (int k = 0; k < A; k++) {
        double share = 0;
        for (int s = 0; s < W; s++)
          if ((s % 2 ? label[s / 2] : 0) == k) share += a[(size_t)t * W + s] * now[s];
        g[k] = (float)(prob(t, n, k) - share / all);
      }
      scale(now, W);
    }
    free(a);
    free(b);
  }
  void run() const {
    const int *label = labels;
    for (int n = 0; n < N; label += letters[n++]) sequence(n, label);
  }
};

bool away(const void *p) { return p && plce_is_device(p); }

} // namespace

extern "C" {

cudnnStatus_t cudnnCreateCTCLossDescriptor(cudnnCTCLossDescriptor_t *out) {
  return *out = (cudnnCTCLossDescriptor_t)calloc(1, sizeof **out), CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyCTCLossDescriptor(cudnnCTCLossDescriptor_t d) { return free(d), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t d, cudnnDataType_t type, cudnnLossNormalizationMode_t norm,
                                           cudnnCTCGradMode_t mode, int longest) {
  WANT(d && type == CUDNN_DATA_FLOAT && norm == CUDNN_LOSS_NORMALIZATION_SOFTMAX && longest > 0 && longest < 256);
  (void)mode;
  return d->norm = norm, d->longest = longest, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t h, cudnnCTCLossAlgo_t algo, cudnnCTCLossDescriptor_t d,
                                              const cudnnTensorDescriptor_t probs, const cudnnTensorDescriptor_t grads, size_t *bytes) {
  WANT(h && d && probs && bytes && algo == CUDNN_CTC_LOSS_ALGO_DETERMINISTIC);
  (void)grads;
  return *bytes = (size_t)probs->dim[0] * 512, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t h, cudnnCTCLossAlgo_t algo, cudnnCTCLossDescriptor_t d, const cudnnTensorDescriptor_t probs_d,
                              const void *probs, const int labels[], const int letters[], const int frames[], void *costs,
                              const cudnnTensorDescriptor_t grads_d, void *grads, size_t bytes, void *work) {
  Job j = {};
  j.fault = -1;
  WANT(h && d && probs_d && algo == CUDNN_CTC_LOSS_ALGO_DETERMINISTIC && probs_d->type == CUDNN_DATA_FLOAT);
  WANT(away(probs) && away(labels) && away(letters) && away(frames) && away(costs) && away(work));
  WANT(!grads == !grads_d && (!grads || away(grads)) && bytes >= (size_t)probs_d->dim[0] * 512);
  if (plce_word("cudnn-ctc", &j.fault) && j.fault == 1) return CUDNN_STATUS_NOT_SUPPORTED;
  j.T = probs_d->dim[0], j.N = probs_d->dim[1], j.A = probs_d->dim[2], j.longest = d->longest;
  j.x = (const float *)probs, j.labels = labels, j.letters = letters, j.frames = frames;
  j.costs = (float *)costs, j.grads = (float *)grads;
  const cudaError_t e = plce_launch(h->stream, 1, 1, 0, "cudnnCTCLoss_v8", [=] { j.run(); });
  return e == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
} // extern "C"
