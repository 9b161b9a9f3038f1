// SPDX-License-Identifier: MIT
// For tests: cuDNN's recurrent nets on the CPU, straight from the formulas that its documentation gives, in double. As with the
// library, weights are where it pleases (with gaps if the hidden size is odd), what backward needs is in the reserve in
// a form of its own, the data pass writes there what the weight pass reads, and weight gradients are added to what is there.
// PERILUNE_EMULATE: no-cudnn, old-cudnn; cudnn-refuses=MODE: nets of that cudnnRNNMode_t are not supported.
#include "cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn_internal.h"
#include "inside.h"
#include "kernels/convert.h"
#include "nccl.h"
extern "C" {
#include "kernels/cuda/libs/library.h"
}

struct cudnnRNNStruct {
  int mode, bias, dirs, in, hidden, proj, layers;
  cudnnDataType_t type;
  bool tf32;
};
struct cudnnRNNDataStruct {
  int S, N, width;
  const int *lengths;
  cudnnDataType_t type;
};

namespace {

char said[256];

// ---- numbers

size_t size_of(cudnnDataType_t t) { return t == CUDNN_DATA_FLOAT ? 4 : 2; }
double get(cudnnDataType_t t, const void *p, int64_t i) {
  if (t == CUDNN_DATA_FLOAT) return ((const float *)p)[i];
  const uint16_t h = ((const uint16_t *)p)[i];
  return t == CUDNN_DATA_HALF ? plk_f16_to_f32(h) : plk_bf16_to_f32(h);
}
void put(cudnnDataType_t t, void *p, int64_t i, double v) {
  if (t == CUDNN_DATA_FLOAT) ((float *)p)[i] = (float)v;
  else ((uint16_t *)p)[i] = t == CUDNN_DATA_HALF ? plk_f32_to_f16((float)v) : plk_f32_to_bf16((float)v);
}
double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// ---- a net

int gates(const cudnnRNNStruct *r) { return r->mode == CUDNN_LSTM ? 4 : r->mode == CUDNN_GRU ? 3 : 1; }
int reads(const cudnnRNNStruct *r, int layer) { return layer ? r->dirs * r->proj : r->in; }
int64_t padded(const cudnnRNNStruct *r, int64_t n) { return r->hidden % 2 ? (n + 5) / 4 * 4 : n; }
bool projects(const cudnnRNNStruct *r) { return r->proj != r->hidden; }

struct Place { int64_t at, rows, cols; };
int64_t matrices_of(const cudnnRNNStruct *r, int p, int id, Place *out) { // the sum before pseudo-layer p, matrix id
  int64_t at = 0;
  const int G = gates(r), all = 2 * G + projects(r);
  for (int q = 0; q <= p; q++)
    for (int k = 0; k < (q == p ? id + 1 : all); k++) {
      const Place m = {at, k < 2 * G ? r->hidden : r->proj, k < G ? reads(r, q / r->dirs) : k < 2 * G ? r->proj : r->hidden};
      if (out) *out = m;
      at += padded(r, m.rows * m.cols);
    }
  return at;
}
Place matrix_at(const cudnnRNNStruct *r, int p, int id) {
  Place m;
  matrices_of(r, p, id, &m);
  return m;
}
int64_t all_matrices(const cudnnRNNStruct *r) { return matrices_of(r, r->layers * r->dirs - 1, 2 * gates(r) + projects(r) - 1, NULL); }
int64_t bias_at(const cudnnRNNStruct *r, int p, int id) { return all_matrices(r) + (int64_t)(p * 2 * gates(r) + id) * padded(r, r->hidden); }
int64_t weight_count(const cudnnRNNStruct *r) { return r->bias ? bias_at(r, r->layers * r->dirs, 0) : all_matrices(r); }

// What is kept of a step: activations (4H; a GRU's fourth: the product within the reset), the cell (H), the state (H), then
// gradients before the activations (4H; a GRU's fourth: of that product).
enum { RECORD = 10 };

struct Job {
  cudnnRNNStruct r;
  int S, N;
  const int *lengths;
  bool train;
  const void *x, *y, *hx, *cx, *w, *dy, *dhy, *dcy;
  void *to_y, *hy, *cy, *dx, *dhx, *dcx, *dw;
  double *kept;

  double *record(int p, int t, int n) const { return kept + (((int64_t)p * S + t) * N + n) * RECORD * r.hidden; }
  double *act(int p, int t, int n, int k) const { return record(p, t, n) + (int64_t)k * r.hidden; }
  double *cell(int p, int t, int n) const { return act(p, t, n, 4); }
  double *out(int p, int t, int n) const { return act(p, t, n, 5); }
  double *grad(int p, int t, int n, int k) const { return act(p, t, n, 6 + k); }
  double weight(const Place &m, int64_t i, int64_t j) const {
    const double v = get(r.type, w, m.at + i * m.cols + j);
    if (!r.tf32 || v == 0 || !isfinite(v)) return v;
    int e; // one factor to 10 bits shows that it is asked for
    const double f = frexp(v, &e);
    return ldexp(nearbyint(ldexp(f, 11)), e - 11);
  }
  double bias(int p, int id, int64_t i) const { return r.bias ? get(r.type, w, bias_at(&r, p, id) + i) : 0; }
  int step(int p, int n, int k) const { return p % r.dirs ? lengths[n] - 1 - k : k; }
  double input(int p, int t, int n, int64_t j) const {
    const int l = p / r.dirs;
    return l ? out((l - 1) * r.dirs + (int)(j / r.proj), t, n)[j % r.proj] : get(r.type, x, ((int64_t)t * N + n) * r.in + j);
  }
  double before(int p, int n, int k, int64_t j) const {
    return k ? out(p, step(p, n, k - 1), n)[j] : get(r.type, hx, ((int64_t)p * N + n) * r.proj + j);
  }
  double cell_before(int p, int n, int k, int64_t j) const {
    return k ? cell(p, step(p, n, k - 1), n)[j] : get(r.type, cx, ((int64_t)p * N + n) * r.hidden + j);
  }

  void forward_step(int p, int n, int k) const {
    const int G = gates(&r), H = r.hidden, t = step(p, n, k);
    double *m = (double *)calloc((size_t)H, sizeof *m);
    for (int i = 0; i < H; i++) {
      double in[4], rec[4];
      for (int g = 0; g < G; g++) {
        const Place a = matrix_at(&r, p, g), b = matrix_at(&r, p, G + g);
        in[g] = bias(p, g, i), rec[g] = bias(p, G + g, i);
        for (int64_t j = 0; j < a.cols; j++) in[g] += weight(a, i, j) * input(p, t, n, j);
        for (int64_t j = 0; j < b.cols; j++) rec[g] += weight(b, i, j) * before(p, n, k, j);
      }
      if (r.mode == CUDNN_LSTM) {
        const double gate_i = sigmoid(in[0] + rec[0]), f = sigmoid(in[1] + rec[1]), c = tanh(in[2] + rec[2]), o = sigmoid(in[3] + rec[3]);
        cell(p, t, n)[i] = f * cell_before(p, n, k, i) + gate_i * c;
        m[i] = o * tanh(cell(p, t, n)[i]);
        act(p, t, n, 0)[i] = gate_i, act(p, t, n, 1)[i] = f, act(p, t, n, 2)[i] = c, act(p, t, n, 3)[i] = o;
      } else if (r.mode == CUDNN_GRU) {
        const double reset = sigmoid(in[0] + rec[0]), z = sigmoid(in[1] + rec[1]), h = tanh(in[2] + reset * rec[2]);
        m[i] = (1 - z) * h + z * before(p, n, k, i);
        act(p, t, n, 0)[i] = reset, act(p, t, n, 1)[i] = z, act(p, t, n, 2)[i] = h, act(p, t, n, 3)[i] = rec[2];
      } else
        m[i] = act(p, t, n, 0)[i] = r.mode == CUDNN_RNN_TANH ? tanh(in[0] + rec[0]) : fmax(in[0] + rec[0], 0);
    }
    for (int i = 0; i < r.proj; i++) {
      double v = m[i];
      if (projects(&r)) {
        const Place q = matrix_at(&r, p, 2 * G);
        v = 0;
        for (int j = 0; j < H; j++) v += weight(q, i, j) * m[j];
      }
      out(p, t, n)[i] = v;
    }
    free(m);
  }

  void forward() const {
    const int top = r.layers * r.dirs;
    for (int p = 0; p < top; p++)
      for (int n = 0; n < N; n++) {
        for (int k = 0; k < lengths[n]; k++) forward_step(p, n, k);
        const int end = step(p, n, lengths[n] - 1);
        for (int j = 0; hy && j < r.proj; j++) put(r.type, hy, ((int64_t)p * N + n) * r.proj + j, out(p, end, n)[j]);
        for (int j = 0; cy && j < r.hidden; j++) put(r.type, cy, ((int64_t)p * N + n) * r.hidden + j, cell(p, end, n)[j]);
      }
    const int wide = r.dirs * r.proj;
    for (int t = 0; t < S; t++)
      for (int n = 0; n < N; n++)
        for (int j = 0; j < wide; j++)
          put(r.type, to_y, ((int64_t)t * N + n) * wide + j, t < lengths[n] ? out(top - r.dirs + j / r.proj, t, n)[j % r.proj] : 0);
  }

  // dh, dc: from later steps and, dh, from above. Gradients before the activations go to the record; dh, dc then belong to the
  // step before.
  void back_step(int p, int n, int k, double *dh, double *dc) const {
    const int G = gates(&r), H = r.hidden, t = step(p, n, k);
    for (int i = 0; i < H; i++) {
      const double a0 = act(p, t, n, 0)[i], a1 = act(p, t, n, 1)[i], a2 = act(p, t, n, 2)[i], a3 = act(p, t, n, 3)[i], d = dh[i];
      if (r.mode == CUDNN_LSTM) {
        const double th = tanh(cell(p, t, n)[i]), c = dc[i] + d * a3 * (1 - th * th);
        grad(p, t, n, 0)[i] = c * a2 * a0 * (1 - a0);
        grad(p, t, n, 1)[i] = c * cell_before(p, n, k, i) * a1 * (1 - a1);
        grad(p, t, n, 2)[i] = c * a0 * (1 - a2 * a2);
        grad(p, t, n, 3)[i] = d * th * a3 * (1 - a3);
        dc[i] = c * a1, dh[i] = 0;
      } else if (r.mode == CUDNN_GRU) {
        const double an = d * (1 - a1) * (1 - a2 * a2);
        grad(p, t, n, 0)[i] = an * a3 * a0 * (1 - a0);
        grad(p, t, n, 1)[i] = d * (before(p, n, k, i) - a2) * a1 * (1 - a1);
        grad(p, t, n, 2)[i] = an;
        grad(p, t, n, 3)[i] = an * a0;
        dh[i] = d * a1;
      } else {
        grad(p, t, n, 0)[i] = r.mode == CUDNN_RNN_TANH ? d * (1 - a0 * a0) : a0 > 0 ? d : 0;
        dh[i] = 0;
      }
    }
    for (int g = 0; g < G; g++) {
      const Place b = matrix_at(&r, p, G + g);
      const double *a = grad(p, t, n, r.mode == CUDNN_GRU && g == 2 ? 3 : g);
      for (int i = 0; i < H; i++)
        for (int j = 0; j < H; j++) dh[j] += a[i] * weight(b, i, j);
    }
  }

  void backward_data() const {
    const int H = r.hidden, wide = r.dirs * H, top = r.layers * r.dirs, most = wide > r.in ? wide : r.in;
    double *above = (double *)calloc((size_t)S * N * most + 2 * H, sizeof *above), *below = (double *)calloc((size_t)S * N * most, sizeof *below);
    double *dh = above + (size_t)S * N * most, *dc = dh + H;
    for (int64_t i = 0; i < (int64_t)S * N * wide; i++) above[i] = get(r.type, dy, i);
    for (int l = r.layers - 1; l >= 0; l--) {
      const int in = reads(&r, l);
      memset(below, 0, (size_t)S * N * most * sizeof *below);
      for (int d = 0; d < r.dirs; d++)
        for (int n = 0; n < N; n++) {
          const int p = l * r.dirs + d;
          const int64_t s = ((int64_t)p * N + n) * H;
          for (int i = 0; i < H; i++) dh[i] = dhy ? get(r.type, dhy, s + i) : 0, dc[i] = dcy ? get(r.type, dcy, s + i) : 0;
          for (int k = lengths[n] - 1; k >= 0; k--) {
            const int t = step(p, n, k);
            for (int i = 0; i < H; i++) dh[i] += above[((int64_t)t * N + n) * wide + d * H + i];
            back_step(p, n, k, dh, dc);
            for (int g = 0; g < gates(&r); g++) {
              const Place a = matrix_at(&r, p, g);
              for (int i = 0; i < H; i++)
                for (int64_t j = 0; j < in; j++) below[((int64_t)t * N + n) * in + j] += grad(p, t, n, g)[i] * weight(a, i, j);
            }
          }
          for (int i = 0; i < H; i++) {
            if (dhx) put(r.type, dhx, s + i, dh[i]);
            if (dcx) put(r.type, dcx, s + i, dc[i]);
          }
        }
      double *swap = above;
      memcpy(swap, below, (size_t)S * N * in * sizeof *below);
    }
    for (int64_t i = 0; i < (int64_t)S * N * r.in; i++) put(r.type, dx, i, above[i]);
    free(above);
    free(below);
    (void)top;
  }

  void add(int64_t at, double v) const { put(r.type, dw, at, get(r.type, dw, at) + v); }
  void backward_weights() const {
    const int G = gates(&r), H = r.hidden;
    for (int p = 0; p < r.layers * r.dirs; p++)
      for (int id = 0; id < 2 * G; id++) {
        const Place m = matrix_at(&r, p, id);
        const int g = id % G, from = id >= G && r.mode == CUDNN_GRU && g == 2 ? 3 : g;
        for (int i = 0; i < H; i++)
          for (int64_t j = -1; j < m.cols; j++) { // -1: the bias
            double v = 0;
            for (int n = 0; n < N; n++)
              for (int k = 0; k < lengths[n]; k++) {
                const int t = step(p, n, k);
                v += grad(p, t, n, from)[i] * (j < 0 ? 1 : id < G ? input(p, t, n, j) : before(p, n, k, j));
              }
            if (j >= 0) add(m.at + i * m.cols + j, v);
            else if (r.bias) add(bias_at(&r, p, id) + i, v);
          }
      }
  }
};

size_t reserve_bytes(const cudnnRNNStruct *r, const cudnnRNNDataStruct *x) {
  return (size_t)r->layers * r->dirs * x->S * x->N * RECORD * r->hidden * sizeof(double);
}

// Every call's arguments, as far as all have them.
cudnnStatus_t check(const cudnnRNNStruct *r, const cudnnRNNDataStruct *x, const cudnnRNNDataStruct *y, const cudnnTensorStruct *h,
                    const cudnnTensorStruct *c, size_t weight_bytes) {
  WANT(r && x && y && h);
  WANT(x->S == y->S && x->N == y->N && x->width == r->in && y->width == r->dirs * r->proj);
  WANT(memcmp(x->lengths, y->lengths, (size_t)x->N * sizeof(int)) == 0);
  WANT(x->type == r->type && y->type == r->type && h->type == r->type);
  WANT(h->dim[0] == r->layers * r->dirs && h->dim[1] == x->N && h->dim[2] == r->proj && h->stride[2] == 1);
  if (r->mode == CUDNN_LSTM) WANT(c && c->dim[0] == h->dim[0] && c->dim[1] == x->N && c->dim[2] == r->hidden);
  WANT(weight_bytes == (size_t)weight_count(r) * size_of(r->type));
  return CUDNN_STATUS_SUCCESS;
}
bool away(const void *p) { return p && plce_is_device(p); }

cudnnStatus_t launch(cudnnHandle_t h, const char *name, Job j, void (Job::*f)() const) {
  return plce_launch(h->stream, 1, 1, 0, name, [=] {
           Job k = j;
           double *own = NULL;
           if (!k.kept) k.kept = own = (double *)calloc(1, (size_t)k.r.layers * k.r.dirs * k.S * k.N * RECORD * k.r.hidden * sizeof *own);
           (k.*f)();
           free(own);
         }) == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

// Captured work reads lengths later, so they stay.
struct Lengths {
  Lengths *next;
  int n;
  int *v;
} *all_lengths;
const int *keep_lengths(int n, const int *v) {
  for (Lengths *l = all_lengths; l; l = l->next)
    if (l->n == n && memcmp(l->v, v, (size_t)n * sizeof *v) == 0) return l->v;
  Lengths *l = (Lengths *)malloc(sizeof *l);
  int *copy = (int *)malloc((size_t)n * sizeof *v);
  memcpy(copy, v, (size_t)n * sizeof *v);
  *l = Lengths{all_lengths, n, copy};
  all_lengths = l;
  return copy;
}

} // namespace

cudnnStatus_t plce_dnn_bad(const char *what) {
  snprintf(said, sizeof said, "%s", what);
  return CUDNN_STATUS_BAD_PARAM;
}

extern "C" {

size_t cudnnGetVersion(void) { return plce_word("old-cudnn", NULL) ? 8907 : 91900; }
const char *cudnnGetErrorString(cudnnStatus_t s) { return s == CUDNN_STATUS_BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS"; }
void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "%s", said); }
cudnnStatus_t cudnnCreate(cudnnHandle_t *out) { return *out = (cudnnHandle_t)calloc(1, sizeof **out), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) { return free(h), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s) { return h->stream = s, CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out) {
  return *out = (cudnnTensorDescriptor_t)calloc(1, sizeof **out), CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return free(d), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int n, const int dim[], const int stride[]) {
  WANT(d && n == 3 && dim[0] > 0 && dim[1] > 0 && dim[2] > 0);
  d->type = type, d->n = n;
  memcpy(d->dim, dim, sizeof d->dim);
  memcpy(d->stride, stride, sizeof d->stride);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t d, int want, cudnnDataType_t *type, int *n, int dim[], int stride[]) {
  WANT(d && want == 3);
  *type = d->type, *n = d->n;
  memcpy(dim, d->dim, sizeof d->dim);
  memcpy(stride, d->stride, sizeof d->stride);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *out) {
  return *out = (cudnnRNNDescriptor_t)calloc(1, sizeof **out), CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t d) { return free(d), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, cudnnRNNAlgo_t, cudnnRNNMode_t mode, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t directions, cudnnRNNInputMode_t, cudnnDataType_t type,
                                       cudnnDataType_t math, cudnnMathType_t how, int32_t inputs, int32_t hidden, int32_t proj,
                                       int32_t layers, cudnnDropoutDescriptor_t, uint32_t flags) {
  long long refused = -1;
  WANT(d && inputs > 0 && hidden > 0 && layers > 0 && proj > 0 && proj <= hidden && flags == CUDNN_RNN_PADDED_IO_ENABLED);
  WANT(math == CUDNN_DATA_FLOAT && (how == CUDNN_TENSOR_OP_MATH) == (type != CUDNN_DATA_FLOAT));
  WANT(proj == hidden || mode == CUDNN_LSTM);
  if (plce_word("cudnn-refuses", &refused) && refused == mode) return CUDNN_STATUS_NOT_SUPPORTED;
  *d = cudnnRNNStruct{mode, bias == CUDNN_RNN_DOUBLE_BIAS, directions == CUDNN_BIDIRECTIONAL ? 2 : 1, inputs, hidden, proj, layers, type,
                      how == CUDNN_DEFAULT_MATH};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t h, cudnnRNNDescriptor_t d, size_t *bytes) {
  WANT(h && d && bytes);
  return *bytes = (size_t)weight_count(d) * size_of(d->type), CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t h, cudnnRNNDescriptor_t d, int32_t pseudo, size_t bytes, const void *space, int32_t id,
                                      cudnnTensorDescriptor_t matrix, void **at_matrix, cudnnTensorDescriptor_t bias, void **at_bias) {
  WANT(h && d && space && matrix && bias && bytes == (size_t)weight_count(d) * size_of(d->type));
  WANT(pseudo >= 0 && pseudo < d->layers * d->dirs && id >= 0 && id < 2 * gates(d) + (d->mode == CUDNN_LSTM));
  *at_matrix = *at_bias = NULL;
  matrix->n = bias->n = 0;
  char *from = (char *)(uintptr_t)space;
  if (id < 2 * gates(d) + projects(d)) {
    const Place m = matrix_at(d, pseudo, id);
    *matrix = cudnnTensorStruct{3, {1, (int)m.rows, (int)m.cols}, {(int)(m.rows * m.cols), (int)m.cols, 1}, d->type};
    *at_matrix = from + m.at * (int64_t)size_of(d->type);
  }
  if (d->bias && id < 2 * gates(d)) {
    *bias = cudnnTensorStruct{3, {1, d->hidden, 1}, {d->hidden, 1, 1}, d->type};
    *at_bias = from + bias_at(d, pseudo, id) * (int64_t)size_of(d->type);
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t h, cudnnRNNDescriptor_t d, cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                        size_t *work, size_t *reserve) {
  WANT(h && d && x && work && reserve && x->width == d->in);
  *work = 4096;
  *reserve = mode == CUDNN_FWD_MODE_TRAINING ? reserve_bytes(d, x) : 0;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *out) {
  return *out = (cudnnRNNDataDescriptor_t)calloc(1, sizeof **out), CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t d) { return free(d), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, cudnnDataType_t type, cudnnRNNDataLayout_t, int longest, int batch,
                                        int width, const int lengths[], void *fill) {
  WANT(d && longest > 0 && batch > 0 && width > 0 && lengths && fill);
  for (int n = 0; n < batch; n++) WANT(lengths[n] > 0 && lengths[n] <= longest);
  *d = cudnnRNNDataStruct{longest, batch, width, keep_lengths(batch, lengths), type};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t h, cudnnRNNDescriptor_t d, cudnnForwardMode_t mode, const int32_t[], cudnnRNNDataDescriptor_t xd,
                              const void *x, cudnnRNNDataDescriptor_t yd, void *y, cudnnTensorDescriptor_t hd, const void *hx, void *hy,
                              cudnnTensorDescriptor_t cd, const void *cx, void *cy, size_t weight_bytes, const void *weights,
                              size_t work_bytes, void *work, size_t reserve_bytes_, void *reserve) {
  const cudnnStatus_t s = check(d, xd, yd, hd, cd, weight_bytes);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  WANT(away(x) && away(y) && away(hx) && away(weights) && work_bytes >= 4096 && away(work));
  WANT(d->mode != CUDNN_LSTM || away(cx));
  const bool train = mode == CUDNN_FWD_MODE_TRAINING;
  if (train) WANT(away(reserve) && reserve_bytes_ >= reserve_bytes(d, xd));
  Job j = {};
  j.r = *d, j.S = xd->S, j.N = xd->N, j.lengths = xd->lengths, j.train = train;
  j.x = x, j.hx = hx, j.cx = cx, j.w = weights, j.to_y = y, j.hy = hy, j.cy = cy, j.kept = train ? (double *)reserve : NULL;
  return launch(h, "cudnnRNNForward", j, &Job::forward);
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t h, cudnnRNNDescriptor_t d, const int32_t[], cudnnRNNDataDescriptor_t yd, const void *y,
                                      const void *dy, cudnnRNNDataDescriptor_t xd, void *dx, cudnnTensorDescriptor_t hd, const void *hx,
                                      const void *dhy, void *dhx, cudnnTensorDescriptor_t cd, const void *cx, const void *dcy, void *dcx,
                                      size_t weight_bytes, const void *weights, size_t work_bytes, void *work, size_t reserve_bytes_,
                                      void *reserve) {
  const cudnnStatus_t s = check(d, xd, yd, hd, cd, weight_bytes);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  WANT(away(y) && away(dy) && away(dx) && away(hx) && away(weights) && work_bytes >= 4096 && away(work));
  WANT(away(reserve) && reserve_bytes_ >= reserve_bytes(d, xd));
  if (projects(d)) return CUDNN_STATUS_NOT_SUPPORTED; // here alone: the plug-in does not ask for it
  Job j = {};
  j.r = *d, j.S = xd->S, j.N = xd->N, j.lengths = xd->lengths, j.hx = hx, j.cx = cx, j.w = weights;
  j.dy = dy, j.dhy = dhy, j.dcy = dcy, j.dx = dx, j.dhx = dhx, j.dcx = dcx, j.kept = (double *)reserve;
  return launch(h, "cudnnRNNBackwardData_v8", j, &Job::backward_data);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t h, cudnnRNNDescriptor_t d, cudnnWgradMode_t mode, const int32_t[],
                                         cudnnRNNDataDescriptor_t xd, const void *x, cudnnTensorDescriptor_t hd, const void *hx,
                                         cudnnRNNDataDescriptor_t yd, const void *y, size_t weight_bytes, void *dweights, size_t work_bytes,
                                         void *work, size_t reserve_bytes_, void *reserve) {
  WANT(mode == CUDNN_WGRAD_MODE_ADD && d && xd && yd && hd && weight_bytes == (size_t)weight_count(d) * size_of(d->type));
  WANT(away(x) && away(y) && away(hx) && away(dweights) && work_bytes >= 4096 && away(work));
  WANT(away(reserve) && reserve_bytes_ >= reserve_bytes(d, xd));
  Job j = {};
  j.r = *d, j.S = xd->S, j.N = xd->N, j.lengths = xd->lengths, j.x = x, j.hx = hx, j.dw = dweights, j.kept = (double *)reserve;
  return launch(h, "cudnnRNNBackwardWeights_v8", j, &Job::backward_weights);
}

static cudnnStatus_t not_here(void) { return CUDNN_STATUS_NOT_SUPPORTED; }

bool plc_library_open(const char *name, const char *const *, const PlcSymbol *symbols, void *table, char *missing, size_t size) {
  static const struct {
    const char *name;
    void (*f)(void);
  } here[] = {
#define HERE(f) {#f, (void (*)(void))f},
      HERE(cudnnGetVersion) HERE(cudnnGetErrorString) HERE(cudnnGetLastErrorString) HERE(cudnnCreate) HERE(cudnnDestroy)
      HERE(cudnnSetStream) HERE(cudnnBackendCreateDescriptor) HERE(cudnnBackendDestroyDescriptor) HERE(cudnnBackendFinalize)
      HERE(cudnnBackendSetAttribute) HERE(cudnnBackendGetAttribute) HERE(cudnnBackendExecute) HERE(cudnnCreateTensorDescriptor) HERE(cudnnDestroyTensorDescriptor) HERE(cudnnSetTensorNdDescriptor)
      HERE(cudnnGetTensorNdDescriptor) HERE(cudnnCreateRNNDescriptor) HERE(cudnnDestroyRNNDescriptor) HERE(cudnnSetRNNDescriptor_v8)
      HERE(cudnnGetRNNWeightSpaceSize) HERE(cudnnGetRNNWeightParams) HERE(cudnnGetRNNTempSpaceSizes)
      HERE(cudnnCreateRNNDataDescriptor) HERE(cudnnDestroyRNNDataDescriptor) HERE(cudnnSetRNNDataDescriptor) HERE(cudnnRNNForward)
      HERE(cudnnRNNBackwardData_v8) HERE(cudnnRNNBackwardWeights_v8) HERE(cudnnCreateCTCLossDescriptor)
      HERE(cudnnDestroyCTCLossDescriptor) HERE(cudnnSetCTCLossDescriptor_v9) HERE(cudnnGetCTCLossWorkspaceSize_v8)
      HERE(cudnnCTCLoss_v8)};
  const bool nccl = strcmp(name, "NCCL") == 0;
  if (plce_word(nccl ? "no-nccl" : "no-cudnn", NULL)) {
    snprintf(missing, size, "%s was not found", name);
    return false;
  }
  for (; symbols->name; symbols++) {
    void (*f)(void) = nccl ? plce_nccl_symbol(symbols->name) : (void (*)(void))not_here;
    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
      if (strcmp(here[i].name, symbols->name) == 0) f = here[i].f;
    memcpy((char *)table + symbols->at, &f, sizeof f);
  }
  return true;
}
} // extern "C"
