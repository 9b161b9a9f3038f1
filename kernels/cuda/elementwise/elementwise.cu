/* SPDX-License-Identifier: MIT
 * The elementwise family: choice by dtype, parameters, copies and where(), and ops that are an elementwise call with other
 * attributes (engine/ops wraps the CPU kernel the same way). */
#include "kernels/cuda/elementwise/elementwise.h"

static const int arity[] = {
#define PLK_EW(name, nin, result) nin,
#include "kernels/elementwise.def"
#undef PLK_EW
};

/* Is the code defined for floats? */
static bool takes_floats(int code) {
  return !(code >= PLK_EW_BITWISE_AND && code <= PLK_EW_BITWISE_RIGHT_SHIFT) && code != PLK_EW_GCD && code != PLK_EW_LCM;
}

bool plc_ew_params(EwArgs *a, const PlkCall *call) {
  a->nin = arity[call->code];
  a->code = call->code;
  a->flag = plc_flag();
  a->name = (uint64_t)(uintptr_t)call->name;
  for (int k = 1; k <= a->nin; k++) {
    const PlArray *x = call->in[k - 1];
    if (!plc_on_host(x)) continue;
    a->number |= 1u << k;
    a->f[k] = plc_number_f(x);
    a->i[k] = plc_number_i(x);
  }
  for (int k = 0; k < EW_IN && call->attrs; k++) {
    if (!pl_attr_has(call->attrs, k)) continue;
    bool whole = (call->attrs->isint >> k) & 1;
    a->p.set |= 1u << k;
    a->p.f[k] = whole ? (double)pl_attr_i(call->attrs, k) : pl_attr_f(call->attrs, k);
    double v = a->p.f[k];
    a->p.i[k] = whole ? pl_attr_i(call->attrs, k) : v >= 0x1p63 ? INT64_MAX : v > -0x1p63 ? (int64_t)v : INT64_MIN;
  }
  /* nan_to_num of halves: the default bounds are the type's own, not f32's */
  int d = call->out[0]->dtype;
  if (call->code == PLK_EW_NAN_TO_NUM && (d == PL_F16 || d == PL_BF16))
    for (int k = 1; k <= 2; k++)
      if (!((a->p.set >> k) & 1)) {
        double top = d == PL_F16 ? 65504.0 : 0x1.fep127;
        a->p.set |= 1u << k;
        a->p.f[k] = k == 1 ? top : -top;
      }
  return true;
}

/* ---- movement: bits, whatever they mean ------------------------------------------------------------------------------ */

template <typename E> struct EwCopy {
  typedef E T;
  typedef E R;
  static const int N = 16 / (int)sizeof(E), IN = 1, BUSY = 4;
  static __device__ __forceinline__ void run(const EwArgs &, const E *a, const E *, const E *, E *r) {
    for (int k = 0; k < N; k++) r[k] = a[k];
  }
};

/* Copies whose operands are dense in different dims: squares of 32 by 32 go through shared memory, so that both are read and
 * written along the dim in which they are dense. Dim 0 is y's, dim `along` x's; the others count the squares' planes. */
enum { SQUARE = 32, SQUARE_ROWS = 8 };
struct Turn {
  plc_layout<2> planes;
  int64_t rows, cols, down, across; /* rows: along x's dense dim; y[row * down + col], x[row + col * across] */
  int64_t row_squares, col_squares;
};
template <typename E> __global__ void turn_kernel(Turn t, E *y, const E *x) {
  __shared__ E square[SQUARE][SQUARE + 1];
  const int lane = (int)threadIdx.x % SQUARE, first = (int)threadIdx.x / SQUARE;
  const int64_t each = t.row_squares * t.col_squares;
  for (int64_t b = blockIdx.x; b < each * t.planes.numel; b += gridDim.x) {
    int64_t at[2];
    plc_offsets<2>(t.planes, b / each, at);
    const int64_t row = b % each / t.col_squares * SQUARE, col = b % each % t.col_squares * SQUARE;
    E v[SQUARE / SQUARE_ROWS];
    PLC_UNROLL for (int k = 0; k < SQUARE / SQUARE_ROWS; k++) {
      const int64_t c = col + first + k * SQUARE_ROWS;
      if (row + lane < t.rows && c < t.cols) v[k] = x[at[1] + row + lane + c * t.across];
    }
    PLC_UNROLL for (int k = 0; k < SQUARE / SQUARE_ROWS; k++) square[first + k * SQUARE_ROWS][lane] = v[k];
    __syncthreads();
    PLC_UNROLL for (int k = 0; k < SQUARE / SQUARE_ROWS; k++) {
      const int64_t r = row + first + k * SQUARE_ROWS;
      if (r < t.rows && col + lane < t.cols) y[at[0] + r * t.down + col + lane] = square[lane][first + k * SQUARE_ROWS];
    }
    __syncthreads(); /* the square is written again */
  }
}

/* Is y = x such a copy, and large enough along both dims? */
static bool turns(const PlArray *y, const PlArray *x, Turn *t) {
  const PlArray *arr[2] = {y, x};
  plc_layout<2> l;
  plc_layout_of<2>(&l, arr);
  if (l.ndim < 2 || l.stride[0][0] != 1 || l.stride[1][0] == 1 || l.stride[1][0] == 0) return false;
  int along = 1;
  while (along < l.ndim && l.stride[1][along] != 1) along++;
  if (along == l.ndim || l.size[0] < 8 || l.size[along] < 8) return false;
  t->rows = l.size[along], t->cols = l.size[0];
  t->down = l.stride[0][along], t->across = l.stride[1][0];
  t->row_squares = (t->rows + SQUARE - 1) / SQUARE, t->col_squares = (t->cols + SQUARE - 1) / SQUARE;
  t->planes = l;
  t->planes.ndim = 0;
  t->planes.numel = 1;
  for (int d = 1; d < l.ndim; d++) {
    if (d == along) continue;
    const int to = t->planes.ndim++;
    t->planes.size[to] = l.size[d], t->planes.by[to] = l.by[d];
    for (int k = 0; k < 2; k++) t->planes.stride[k][to] = l.stride[k][d];
    t->planes.numel *= l.size[d];
  }
  return true;
}
template <typename E> static PlStatus turned(const PlkCall *call, const Turn &t) {
  const int64_t squares = t.row_squares * t.col_squares * t.planes.numel, most = plc_most_blocks();
  PLC_LAUNCH(turn_kernel<E>, (unsigned)(squares < most ? squares : most), SQUARE * SQUARE_ROWS, 0, t, (E *)call->out[0]->data,
             (const E *)call->in[0]->data);
  return PL_OK;
}

template <typename E> __global__ void where_kernel(plc_layout<4> l, E *y, const uint8_t *m, const E *a, const E *b, E na, E nb, int nm) {
  for (PLC_EACH(i, l.numel)) {
    int64_t at[4];
    plc_offsets<4>(l, i, at);
    bool yes = m ? m[at[1]] != 0 : nm != 0;
    y[at[0]] = yes ? (a ? a[at[2]] : na) : (b ? b[at[3]] : nb);
  }
}

template <typename E> static E bits_of(const PlArray *a) { /* of a number on the host */
  E v;
  memcpy(&v, a->data, sizeof v);
  return v;
}

template <typename E> static PlStatus where_of(const PlkCall *call) {
  const PlArray *in[3] = {call->in[0], call->in[1], call->in[2]};
  const PlArray *arr[4] = {call->out[0], in[0], in[1], in[2]};
  for (int k = 0; k < 3; k++)
    if (plc_on_host(in[k])) arr[k + 1] = NULL;
  plc_layout<4> l;
  plc_layout_of<4>(&l, arr);
  E na = arr[2] ? (E)0 : bits_of<E>(in[1]), nb = arr[3] ? (E)0 : bits_of<E>(in[2]);
  int nm = arr[1] ? 0 : plc_number_i(in[0]) != 0;
  PLC_LAUNCH(where_kernel<E>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, (E *)call->out[0]->data,
             (const uint8_t *)(arr[1] ? in[0]->data : NULL), (const E *)(arr[2] ? in[1]->data : NULL),
             (const E *)(arr[3] ? in[2]->data : NULL), na, nb, nm);
  return PL_OK;
}

template <typename E> __global__ void fill_kernel(plc_layout<1> l, E *y, E v) {
  for (PLC_EACH(i, l.numel)) {
    int64_t at[1];
    plc_offsets<1>(l, i, at);
    y[at[0]] = v;
  }
}

PlStatus plc_ew_move(const PlkCall *call) {
  int d = call->out[0]->dtype;
  if (call->code == PLK_EW_WHERE) {
    PLC_BITS(d, E, return where_of<E>(call));
    return PL_OK;
  }
  if (plc_on_host(call->in[0])) { /* a number */
    const PlArray *arr[1] = {call->out[0]};
    plc_layout<1> l;
    plc_layout_of<1>(&l, arr);
    PLC_BITS(d, E, PLC_LAUNCH(fill_kernel<E>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, (E *)call->out[0]->data, bits_of<E>(call->in[0])));
    return PL_OK;
  }
  const PlArray *y = call->out[0], *x = call->in[0];
  if (y->contiguous && x->contiguous && y->numel == x->numel) {
    if (y->data != x->data)
      PLC_TRY(cudaMemcpyAsync(y->data, x->data, (size_t)y->numel * pl_dtype_size((PlDtype)d), cudaMemcpyDeviceToDevice, plc_stream()));
    return PL_OK;
  }
  Turn t;
  if (turns(y, x, &t)) PLC_BITS(d, E, return turned<E>(call, t));
  PLC_BITS(d, E, return ew_launch<EwCopy<E>>(call));
  return PL_OK;
}

/* ---- the family ------------------------------------------------------------------------------------------------------------ */

static PlStatus elementwise(const PlkCall *call) {
  const int code = call->code, y = call->out[0]->dtype;
  /* beside halves a number is f32 (PL_F_WIDE): the result tells */
  const int d = (y == PL_F16 || y == PL_BF16) && code != PLK_EW_CAST ? y : call->in[0]->dtype;
  if (call->out[0]->numel == 0) return PL_OK;
  if (code == PLK_EW_COPY || code == PLK_EW_WHERE || (code == PLK_EW_CAST && d == call->out[0]->dtype)) return plc_ew_move(call);
  if (code == PLK_EW_CAST) return plc_ew_cast(call);
  if (pl_is_float((PlDtype)d) && !takes_floats(code)) return plc_ew_undefined(call);
  switch ((PlDtype)d) {
  case PL_F32: return plc_ew_f32(call);
  case PL_F64: return plc_ew_f64(call);
  case PL_F16: return plc_ew_f16(call);
  case PL_BF16: return plc_ew_bf16(call);
  default: return plc_ew_int(call);
  }
}
PLC_KERNEL(elementwise, elementwise)

/* Row-major order into another shape (reshape), or broadcast: then the element counts differ. */
static PlStatus copy(const PlkCall *call) {
  PlkCall k = *call;
  const PlArray *x = call->in[0];
  PlArray y = *call->out[0], *out[1] = {&y};
  int64_t strides[PL_MAX_DIM], step = 1;
  if (x->numel == y.numel && y.contiguous) {
    for (int d = x->ndim - 1; d >= 0; d--) {
      strides[d] = step;
      step *= x->shape[d];
    }
    y.ndim = x->ndim;
    y.shape = x->shape;
    y.strides = strides;
    k.out = out;
  }
  k.code = call->in[0]->dtype == call->out[0]->dtype ? PLK_EW_COPY : PLK_EW_CAST;
  k.nin = 1;
  return elementwise(&k);
}
PLC_KERNEL(copy, copy)

static PlStatus square(const PlkCall *call) { /* bool gives i64: 0 and 1 are their own squares */
  return call->in[0]->dtype == call->out[0]->dtype ? elementwise(call) : copy(call);
}
PLC_KERNEL(square, square)

static PlStatus clamp(const PlkCall *call) { /* integers with fractional bounds become floats first */
  if (call->in[0]->dtype == call->out[0]->dtype) return elementwise(call);
  PlkCall k = *call;
  const PlArray *in[1] = {call->out[0]};
  k.code = PLK_EW_CAST;
  PL_TRY(elementwise(&k));
  k.code = PLK_EW_CLAMP;
  k.in = in;
  return elementwise(&k);
}
PLC_KERNEL(clamp, clamp)

static PlStatus clamp_tensor(const PlkCall *call) {
  const PlArray *const *in = call->in, *two[2] = {in[0], in[1] ? in[1] : in[2]};
  if (in[1] && in[2]) return elementwise(call);
  PlkCall k = *call;
  k.code = in[1] ? PLK_EW_MAXIMUM : PLK_EW_MINIMUM;
  k.nin = 2;
  k.in = two;
  return elementwise(&k);
}
PLC_KERNEL(clamp_tensor, clamp_tensor)

static PlStatus gelu(const PlkCall *call) {
  PlkCall k = *call;
  k.code = pl_attr_i(call->attrs, 0) ? PLK_EW_GELU_TANH : PLK_EW_GELU;
  return elementwise(&k);
}
PLC_KERNEL(gelu, gelu)
