/* SPDX-License-Identifier: MIT
 * Single elements of any dtype as doubles and integers, and the 0-d tensors that represent numbers. See tensor.h. */
#include "engine/tensor/tensor.h"

#include "kernels/convert.h"

double pl_read_f(const PlArray *a, int64_t at) {
  const char *p = (const char *)a->data + at;
  if (PL_UNLIKELY(a->symbolic)) return 0; /* who may meet one asks first */
  switch ((PlDtype)a->dtype) {
  case PL_F32: return (double)*(const float *)(const void *)p;
  case PL_F64: return *(const double *)(const void *)p;
  case PL_F16: return (double)plk_f16_to_f32(*(const uint16_t *)(const void *)p);
  case PL_BF16: return (double)plk_bf16_to_f32(*(const uint16_t *)(const void *)p);
  default: return (double)pl_read_i(a, at);
  }
}

int64_t pl_read_i(const PlArray *a, int64_t at) {
  const char *p = (const char *)a->data + at;
  switch ((PlDtype)a->dtype) {
  case PL_I8: return *(const int8_t *)p;
  case PL_I16: return *(const int16_t *)(const void *)p;
  case PL_I32: return *(const int32_t *)(const void *)p;
  case PL_I64: return *(const int64_t *)(const void *)p;
  case PL_U8:
  case PL_BOOL: return *(const uint8_t *)p;
  default: {
    double v = pl_read_f(a, at);
    return v >= 9.2e18 ? INT64_MAX : v <= -9.2e18 ? INT64_MIN : v != v ? 0 : (int64_t)v;
  }
  }
}

void pl_write_i(PlDtype dtype, void *at, int64_t v) {
  switch (dtype) {
  case PL_I8: *(int8_t *)at = (int8_t)(uint8_t)v; break;
  case PL_I16: *(int16_t *)at = (int16_t)(uint16_t)v; break;
  case PL_I32: *(int32_t *)at = (int32_t)(uint32_t)v; break;
  case PL_I64: *(int64_t *)at = v; break;
  case PL_U8: *(uint8_t *)at = (uint8_t)v; break;
  case PL_BOOL: *(uint8_t *)at = v != 0; break;
  default: pl_write_f(dtype, at, (double)v);
  }
}

void pl_write_f(PlDtype dtype, void *at, double v) {
  switch (dtype) {
  case PL_F32: *(float *)at = (float)v; break;
  case PL_F64: *(double *)at = v; break;
  case PL_F16: *(uint16_t *)at = plk_f32_to_f16((float)v); break;
  case PL_BF16: *(uint16_t *)at = plk_f32_to_bf16((float)v); break;
  case PL_BOOL: *(uint8_t *)at = v != 0; break;
  default: /* floats saturate, NaN is 0 */
    pl_write_i(dtype, at,
               v != v                             ? 0
               : v >= (double)pl_int_most(dtype)  ? pl_int_most(dtype)
               : v <= (double)pl_int_least(dtype) ? pl_int_least(dtype)
                                                  : (int64_t)v);
  }
}

PlStatus pl_tensor_number(PlTensor **out, bool is_int, int64_t i, double f) {
  PL_TRY(pl_tensor_empty(out, is_int ? PL_I64 : PL_F64, 0, NULL));
  if (is_int) *(int64_t *)(*out)->a.data = i;
  else *(double *)(*out)->a.data = f;
  (*out)->a.weak = 1;
  return PL_OK;
}

PlTensor *pl_number_local(PlNumber *room, PlDtype dtype) {
  PlTensor *t = (PlTensor *)(void *)room->piece;
  PlStorage *s = (PlStorage *)(void *)(t + 1);
  *t = (PlTensor){.a = {.numel = 1, .dtype = (uint8_t)dtype, .device = PL_CPU, .contiguous = 1, .weak = 1}, .refs = 1};
  t->a.shape = t->a.strides = t->dims;
  t->storage = s;
  *s = (PlStorage){.refs = 1, .nbytes = pl_dtype_size(dtype)};
  t->a.data = s->data = s + 1;
  return t;
}

PlStatus pl_number_as(PlTensor **out, const PlTensor *number, PlDtype dtype) {
  PL_TRY(pl_tensor_empty(out, dtype, 0, NULL));
  if (pl_is_float((PlDtype)number->a.dtype)) pl_write_f(dtype, (*out)->a.data, pl_read_f(&number->a, 0));
  else pl_write_i(dtype, (*out)->a.data, pl_read_i(&number->a, 0));
  (*out)->a.weak = 1;
  return PL_OK;
}
