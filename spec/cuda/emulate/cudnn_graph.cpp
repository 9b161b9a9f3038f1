// SPDX-License-Identifier: MIT
// For tests: cuDNN's backend interface for convolutions with what comes behind them, on the CPU (PERILUNE_EMULATE=conv). Descriptors hold
// what their attributes are set to; what the documentation does not allow (an attribute of another descriptor, a wrong type or
// number of values, a tensor that is not aligned as it says) stops the process. alpha and beta are read, as by the library, in
// the type that is computed in, whatever type they were set with. Of the engines only the last two keep all rules: one rounds
// factors to TF32, one adds up in the factors' dtype, one gives other bits each time, one wants two gigabytes.
#include "cudnn_internal.h"

#include <initializer_list>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"
#include "kernels/convert.h"

namespace {

enum { DIMS = 5, OPS = 3, ATTRS = 16, ROOM = 16 * 8, TF32 = 0, NARROW, RESTLESS, LARGE, PLAIN, ENGINES, FACTOR = -1 };

struct Attr {
  int name, type;
  int64_t n;
  unsigned char v[ROOM];
};
struct Descriptor {
  int kind, engine, n;
  bool done;
  Attr attr[ATTRS];
};

[[noreturn]] void refuse(const char *what, int of) {
  fprintf(stderr, "emulated cuDNN: %s (%d)\n", what, of);
  abort();
}

// What a descriptor takes: kind, attribute, type (FACTOR: float or double), how many at most.
#define CONV(KIND, NAME, X, Y, W)                                                                                                          \
  {CUDNN_BACKEND_OPERATION_CONVOLUTION_##KIND##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_ALPHA, FACTOR, 1},                   \
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_##KIND##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_BETA, FACTOR, 1},                \
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_##KIND##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_CONV_DESC,                       \
       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},                                                                                                  \
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_##KIND##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_##X,                             \
       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},                                                                                                  \
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_##KIND##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_##Y,                             \
       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},                                                                                                  \
  {                                                                                                                                        \
    CUDNN_BACKEND_OPERATION_CONVOLUTION_##KIND##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_##W, CUDNN_TYPE_BACKEND_DESCRIPTOR, \
        1                                                                                                                                  \
  }
const struct Rule {
  int kind, name, type, most;
} rules[] = {
    CONV(FORWARD, FORWARD, X, Y, W),
    CONV(BACKWARD_DATA, BWD_DATA, DX, DY, W),
    CONV(BACKWARD_FILTER, BWD_FILTER, X, DY, DW),
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 3},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 3},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 3},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 3},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DIMS},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DIMS},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, OPS},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 16},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 16},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1},
};

size_t size_of(int type) {
  return type == CUDNN_TYPE_BOOLEAN ? 1
         : type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_DOUBLE || type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_BACKEND_DESCRIPTOR ||
                 type == CUDNN_TYPE_HANDLE
             ? 8
             : 4;
}

const Attr *find(const Descriptor *d, int name) {
  for (int i = 0; i < d->n; i++)
    if (d->attr[i].name == name) return &d->attr[i];
  return NULL;
}
const Attr *needed(const Descriptor *d, int name) {
  const Attr *a = find(d, name);
  if (!a) refuse("an attribute was not set", name);
  return a;
}
template <typename T> T value(const Descriptor *d, int name) {
  T v;
  memcpy(&v, needed(d, name)->v, sizeof v);
  return v;
}
template <typename T> T value_or(const Descriptor *d, int name, T none) { return find(d, name) ? value<T>(d, name) : none; }
const Descriptor *part(const Descriptor *d, int name, int kind) {
  const Descriptor *p = value<const Descriptor *>(d, name);
  if (!p || p->kind != kind || !p->done) refuse("a descriptor of another kind, or not finalized", name);
  return p;
}

// ---- what is computed

struct Tensor {
  int64_t uid, dim[DIMS], stride[DIMS], align;
  int type, nd;
  bool inner;
  void *at;

  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < nd; d++) n *= dim[d];
    return n;
  }
  int64_t place(const int64_t *i) const { // a dim of size 1 is broadcast
    int64_t p = 0;
    for (int d = 0; d < nd; d++) p += (dim[d] == 1 ? 0 : i[d]) * stride[d];
    return p;
  }
  double get(int64_t p) const {
    switch (type) {
    case CUDNN_DATA_FLOAT: return ((const float *)at)[p];
    case CUDNN_DATA_DOUBLE: return ((const double *)at)[p];
    case CUDNN_DATA_HALF: return plk_f16_to_f32(((const uint16_t *)at)[p]);
    default: return plk_bf16_to_f32(((const uint16_t *)at)[p]);
    }
  }
  static double rounded(int type, double v) {
    return type == CUDNN_DATA_DOUBLE  ? v
           : type == CUDNN_DATA_FLOAT ? (double)(float)v
           : type == CUDNN_DATA_HALF  ? (double)plk_f16_to_f32(plk_f32_to_f16((float)v))
                                      : (double)plk_bf16_to_f32(plk_f32_to_bf16((float)v));
  }
  void put(int64_t p, double v) const {
    switch (type) {
    case CUDNN_DATA_FLOAT: ((float *)at)[p] = (float)v; break;
    case CUDNN_DATA_DOUBLE: ((double *)at)[p] = v; break;
    case CUDNN_DATA_HALF: ((uint16_t *)at)[p] = plk_f32_to_f16((float)v); break;
    default: ((uint16_t *)at)[p] = plk_f32_to_bf16((float)v);
    }
  }
  size_t item() const { return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2; }
};

Tensor tensor(const Descriptor *of, int name) {
  const Descriptor *d = part(of, name, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const Attr *dims = needed(d, CUDNN_ATTR_TENSOR_DIMENSIONS), *strides = needed(d, CUDNN_ATTR_TENSOR_STRIDES);
  Tensor t = {};
  if (dims->n != strides->n) refuse("other numbers of dims and strides", (int)dims->n);
  t.nd = (int)dims->n;
  memcpy(t.dim, dims->v, (size_t)t.nd * 8);
  memcpy(t.stride, strides->v, (size_t)t.nd * 8);
  t.type = value<int>(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
  t.uid = value<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  t.align = value<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  t.inner = value_or<bool>(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  if (value_or<bool>(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)) refuse("a number in a convolution", (int)t.uid);
  return t;
}

struct Op {
  int kind, mode, math, spatial; // kind: a descriptor's
  int64_t stride[3], pad[3], dil[3];
  double alpha, beta;
  Tensor x, w, y; // of pointwise operations x, b, y

  const Tensor &result() const {
    return kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR     ? x
           : kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR ? w
                                                                                    : y;
  }
  double factor(double v, int engine) const { // to 10 bits, as TF32
    if (engine != TF32 || math != CUDNN_DATA_FLOAT || v == 0 || !isfinite(v)) return v;
    int e;
    const double m = frexp(v, &e);
    return ldexp(nearbyint(ldexp(m, 11)), e - 11);
  }
  void conv(int engine) const {
    const Tensor &r = result();
    const int sum_type = engine == NARROW ? (r.type == CUDNN_DATA_FLOAT ? w.type : r.type) : math;
    const int64_t cg = w.dim[1], og = w.dim[0] / (x.dim[1] / cg);
    double *acc = (double *)calloc((size_t)r.count(), sizeof *acc);
    int64_t kernel = 1, places = 1;
    for (int d = 0; d < spatial; d++) kernel *= w.dim[2 + d], places *= y.dim[2 + d];
    for (int64_t n = 0; n < x.dim[0]; n++)
      for (int64_t o = 0; o < w.dim[0]; o++)
        for (int64_t p = 0; p < places; p++)
          for (int64_t c = 0; c < cg; c++)
            for (int64_t k = 0; k < kernel; k++) {
              int64_t xi[DIMS] = {n, o / og * cg + c}, wi[DIMS] = {o, c}, yi[DIMS] = {n, o}, pp = p, kk = k, at = 0;
              bool inside = true;
              for (int d = spatial - 1; d >= 0; d--) {
                yi[2 + d] = pp % y.dim[2 + d], pp /= y.dim[2 + d];
                wi[2 + d] = kk % w.dim[2 + d], kk /= w.dim[2 + d];
                xi[2 + d] = yi[2 + d] * stride[d] - pad[d] + wi[2 + d] * dil[d];
                inside = inside && xi[2 + d] >= 0 && xi[2 + d] < x.dim[2 + d];
              }
              if (!inside) continue;
              const Tensor &a = &r == &x ? y : x, &b = &r == &w ? y : w;
              const int64_t *ai = &r == &x ? yi : xi, *bi = &r == &w ? yi : wi, *ri = &r == &x ? xi : &r == &w ? wi : yi;
              for (int d = 0; d < r.nd; d++) at = at * r.dim[d] + ri[d];
              acc[at] = Tensor::rounded(sum_type, acc[at] + factor(a.get(a.place(ai)), engine) * factor(b.get(b.place(bi)), engine));
            }
    static int restless;
    const double off = engine == RESTLESS && ++restless % 2 ? 1 + 0x1p-20 : 1;
    each(r, [&](const int64_t *i, int64_t k) {
      const int64_t p = r.place(i);
      r.put(p, Tensor::rounded(math, alpha * acc[k] * off + (beta == 0 ? 0 : beta * r.get(p))));
    });
    free(acc);
  }
  template <typename F> static void each(const Tensor &t, F f) {
    int64_t i[DIMS] = {0};
    for (int64_t k = 0, n = t.count(); k < n; k++) {
      f(i, k);
      for (int d = t.nd - 1; d >= 0 && ++i[d] == t.dim[d]; d--) i[d] = 0;
    }
  }
  void pointwise() const {
    each(y, [&](const int64_t *i, int64_t) {
      const double v = x.get(x.place(i));
      y.put(y.place(i), mode == CUDNN_POINTWISE_ADD ? Tensor::rounded(math, v + w.get(w.place(i))) : v < 0 ? 0 : v);
    });
  }
  void run(int engine) const {
    if (kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) pointwise();
    else conv(engine);
  }
};

struct Job {
  int n, engine;
  Op op[OPS];
  void *work;
  size_t bytes;

  // Places of what only passes between operations.
  void each_inner(void *(*make)(const Tensor &), Op *of) const {
    for (int i = 0; i < n; i++)
      for (Tensor *t : {&of[i].x, &of[i].w, &of[i].y}) {
        if (!t->inner) continue;
        t->at = NULL;
        for (int k = 0; k < i && !t->at; k++)
          if (of[k].y.inner && of[k].y.uid == t->uid) t->at = of[k].y.at;
        if (!t->at) t->at = make(*t);
      }
  }
  void run() const {
    Op now[OPS];
    memcpy((void *)now, (const void *)op, sizeof now);
    memset(work, 0xA5, bytes);
    each_inner([](const Tensor &t) { return calloc((size_t)t.count(), 8); }, now);
    for (int i = 0; i < n; i++) now[i].run(engine);
    for (int i = 0; i < n; i++)
      if (now[i].y.inner) free(now[i].y.at);
  }
};

// alpha, beta: eight bytes where doubles are computed, of which a float sets four.
double number(const Descriptor *d, int name, int math) {
  const Attr *a = needed(d, name);
  double wide;
  float narrow;
  memcpy(&wide, a->v, 8);
  memcpy(&narrow, a->v, 4);
  return math == CUDNN_DATA_DOUBLE ? wide : (double)narrow;
}

cudnnStatus_t convolution(const Descriptor *d, Op *o, int alpha, int beta, int desc, int x, int w, int y) {
  const Descriptor *c = part(d, desc, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  o->math = value<int>(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  o->spatial = (int)value<int64_t>(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
  const int lists[] = {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_DILATIONS,
                       CUDNN_ATTR_CONVOLUTION_POST_PADDINGS};
  int64_t post[3], *const to[] = {o->stride, o->pad, o->dil, post};
  for (int i = 0; i < 4; i++) {
    const Attr *a = needed(c, lists[i]);
    if (a->n != o->spatial) refuse("a list of another length than the spatial dims", lists[i]);
    memcpy(to[i], a->v, (size_t)a->n * 8);
  }
  if (value<int>(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION) refuse("a flipped kernel", 0);
  o->alpha = number(d, alpha, o->math), o->beta = number(d, beta, o->math);
  o->x = tensor(d, x), o->w = tensor(d, w), o->y = tensor(d, y);
  const bool wide = o->math == CUDNN_DATA_DOUBLE;
  for (const Tensor *t : {&o->x, &o->w, &o->y})
    if ((t->type == CUDNN_DATA_DOUBLE) != wide) refuse("doubles beside others", (int)t->uid);
  WANT(o->x.nd == o->spatial + 2 && o->w.nd == o->x.nd && o->y.nd == o->x.nd && o->w.dim[1] > 0 && o->x.dim[1] % o->w.dim[1] == 0);
  WANT(o->w.dim[0] % (o->x.dim[1] / o->w.dim[1]) == 0 && o->y.dim[0] == o->x.dim[0] && o->y.dim[1] == o->w.dim[0]);
  for (int k = 0; k < o->spatial; k++)
    WANT(o->y.dim[2 + k] == (o->x.dim[2 + k] + o->pad[k] + post[k] - o->dil[k] * (o->w.dim[2 + k] - 1) - 1) / o->stride[k] + 1);
  return CUDNN_STATUS_SUCCESS;
}

#define CALL(NAME, X, W, Y)                                                                                          \
  convolution(d, o, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_BETA, \
              CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_##X,    \
              CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_##W, CUDNN_ATTR_OPERATION_CONVOLUTION_##NAME##_##Y)
cudnnStatus_t operation(const Descriptor *d, Op *o) {
  memset((void *)o, 0, sizeof *o);
  o->kind = d->kind;
  switch (d->kind) {
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR: return CALL(FORWARD, X, W, Y);
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: return CALL(BWD_DATA, DX, W, DY);
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: return CALL(BWD_FILTER, X, DW, DY);
  default: break;
  }
  const Descriptor *p = part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  o->mode = value<int>(p, CUDNN_ATTR_POINTWISE_MODE), o->math = value<int>(p, CUDNN_ATTR_POINTWISE_MATH_PREC);
  if (o->mode != CUDNN_POINTWISE_ADD && o->mode != CUDNN_POINTWISE_RELU_FWD) refuse("a pointwise mode that is not here", o->mode);
  o->x = tensor(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), o->y = tensor(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  if (o->mode == CUDNN_POINTWISE_ADD) o->w = tensor(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  return CUDNN_STATUS_SUCCESS;
}

const Descriptor *graph_of(const Descriptor *plan) { // through the configuration, which keeps the graph's address
  const Descriptor *c = part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  const Descriptor *g;
  memcpy(&g, c->attr[0].v, sizeof g);
  return g;
}
int engine_of(const Descriptor *plan) {
  return part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)->engine;
}
size_t work_of(int engine) { return engine == LARGE ? (size_t)2 << 30 : 4096; }

} // namespace

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *out) {
  if (!plce_word("conv", NULL)) return CUDNN_STATUS_NOT_SUPPORTED;
  Descriptor *d = (Descriptor *)calloc(1, sizeof *d);
  d->kind = kind;
  memset(d->attr, 0xA5, sizeof d->attr);
  *out = d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) { return free(d), CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t n, const void *v) {
  Descriptor *d = (Descriptor *)at;
  const Rule *r = NULL;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i].kind == d->kind && rules[i].name == (int)name) r = &rules[i];
  if (!r) refuse("an attribute that such a descriptor has not, or not here", name);
  if (d->done) refuse("an attribute of what is finalized", name);
  if (r->type == FACTOR ? type != CUDNN_TYPE_FLOAT && type != CUDNN_TYPE_DOUBLE : r->type != (int)type) refuse("a wrong type", name);
  if (n < 1 || n > r->most || d->n == ATTRS) refuse("a wrong number of values", name);
  Attr *a = (Attr *)find(d, name);
  if (!a) a = &d->attr[d->n++];
  a->name = name, a->type = type, a->n = n;
  memcpy(a->v, v, (size_t)n * size_of(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t at) {
  Descriptor *d = (Descriptor *)at;
  Op o;
  cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
  if (d->kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR || (d->kind >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
                                                                  d->kind <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR))
    s = operation(d, &o);
  if (d->kind == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR &&
      needed(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->n != needed(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->n)
    refuse("other numbers of names and addresses", 0);
  d->done = s == CUDNN_STATUS_SUCCESS;
  return s;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t n, int64_t *got, void *v) {
  const Descriptor *d = (const Descriptor *)at;
  static const cudnnBackendNumericalNote_t notes[ENGINES][2] = {
      {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS},
      {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION},
      {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}};
  static const int counts[ENGINES] = {2, 2, 1};
  switch ((int)name) {
  case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
    const Descriptor *g = part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    const int first = value<int>(d, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK ? (int)PLAIN : 0;
    for (*got = 0; *got < n && first + *got < ENGINES; ++*got) {
      Descriptor *c = ((Descriptor **)v)[*got];
      if (c->kind != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) refuse("a configuration of another kind", c->kind);
      c->engine = first + (int)*got;
      memcpy(c->attr[0].v, &g, sizeof g);
      c->done = true;
    }
    break;
  }
  case CUDNN_ATTR_ENGINECFG_ENGINE: (*(Descriptor **)v)->engine = d->engine, (*(Descriptor **)v)->done = true, *got = 1; break;
  case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    *got = counts[d->engine] < n ? counts[d->engine] : n;
    memcpy(v, notes[d->engine], (size_t)*got * sizeof **notes);
    break;
  case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: *(int64_t *)v = (int64_t)work_of(engine_of(d)), *got = 1; break;
  default: refuse("an attribute that is not told", name);
  }
  (void)type;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack_at) {
  const Descriptor *p = (const Descriptor *)plan, *pack = (const Descriptor *)pack_at, *g = graph_of(p);
  const Attr *ops = needed(g, CUDNN_ATTR_OPERATIONGRAPH_OPS), *uids = needed(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
             *at = needed(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  Job j;
  memset((void *)&j, 0, sizeof j);
  if (!p->done || !pack->done || !g->done) refuse("what is not finalized is run", 0);
  j.n = (int)ops->n, j.engine = engine_of(p), j.bytes = work_of(j.engine);
  j.work = value<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (!j.work || !plce_is_device(j.work)) refuse("no workspace", 0);
  for (int i = 0; i < j.n; i++) {
    (void)operation(((const Descriptor *const *)ops->v)[i], &j.op[i]);
    for (Tensor *t : {&j.op[i].x, &j.op[i].w, &j.op[i].y}) {
      if (t->inner || t->nd == 0) continue;
      for (int64_t k = 0; k < uids->n; k++)
        if (((const int64_t *)uids->v)[k] == t->uid) t->at = ((void *const *)at->v)[k];
      if (!t->at || !plce_is_device(t->at)) refuse("an address that is none of the device", (int)t->uid);
      if ((uintptr_t)t->at % (uintptr_t)t->align || t->align % (int64_t)t->item())
        refuse("an address not aligned as promised", (int)t->uid);
    }
  }
  const cudaError_t e = plce_launch(h->stream, 1, 1, 0, "cudnnConv", [=] { j.run(); });
  return e == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
} // extern "C"
