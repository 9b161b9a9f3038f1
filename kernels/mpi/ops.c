/* SPDX-License-Identifier: MIT
 * dtypes and reductions in MPI's terms. f16 and bf16, which MPI does not know, travel as 16-bit numbers and have
 * reductions of their own: each step computes in f32 and rounds to the dtype. */
#include "kernels/convert.h"
#include "kernels/mpi/mpi.h"

static inline float add(float a, float b) { return a + b; }
static inline float multiply(float a, float b) { return a * b; }
static inline float lesser(float a, float b) { return a != a || a < b ? a : b; } /* NaN wins */
static inline float greater(float a, float b) { return a != a || a > b ? a : b; }

/* A function MPI calls: inout[i] = f(in[i], inout[i]). */
#define REDUCE(type, name)                                                                                               \
  static void type##_##name(void *in, void *inout, int *len, MPI_Datatype *unused) {                                     \
    const uint16_t *x = in;                                                                                              \
    uint16_t *y = inout;                                                                                                 \
    (void)unused;                                                                                                        \
    for (int i = 0; i < *len; i++) y[i] = plk_f32_to_##type(name(plk_##type##_to_f32(x[i]), plk_##type##_to_f32(y[i]))); \
  }
REDUCE(f16, add)
REDUCE(f16, multiply)
REDUCE(f16, lesser)
REDUCE(f16, greater)
REDUCE(bf16, add)
REDUCE(bf16, multiply)
REDUCE(bf16, lesser)
REDUCE(bf16, greater)

static MPI_Op half[2][4]; /* f16, bf16 by SUM, PROD, MIN, MAX */

PlStatus plm_types_open(void) {
  static MPI_User_function *const made[2][4] = {{f16_add, f16_multiply, f16_lesser, f16_greater},
                                                {bf16_add, bf16_multiply, bf16_lesser, bf16_greater}};
  for (int d = 0; d < 2; d++)
    for (int k = 0; k < 4; k++) PLM_TRY("init_process_group", MPI_Op_create(made[d][k], 1, &half[d][k]));
  return PL_OK;
}

MPI_Datatype plm_type(PlDtype d) {
  switch (d) {
  case PL_F32: return MPI_FLOAT;
  case PL_F64: return MPI_DOUBLE;
  case PL_F16:
  case PL_BF16: return MPI_UINT16_T;
  case PL_I8: return MPI_INT8_T;
  case PL_I16: return MPI_INT16_T;
  case PL_I32: return MPI_INT32_T;
  case PL_I64: return MPI_INT64_T;
  default: return MPI_UINT8_T; /* u8, bool */
  }
}

PlStatus plm_op(const PlGroupCall *call, MPI_Op *out) {
  const PlGroupOp k = call->op;
  const MPI_Op plain[PL_GROUP_NOP] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
  if (pl_is_float(call->dtype) && k > PL_GROUP_MAX)
    return plm_fail(PL_ERR_DTYPE, "%s: bits of floating numbers are not combined; use an integer dtype", call->name);
  if (call->dtype == PL_F16 || call->dtype == PL_BF16) *out = half[call->dtype == PL_BF16][k];
  else if (call->dtype == PL_BOOL && k <= PL_GROUP_MAX) /* of 0 and 1 */ *out = k == PL_GROUP_SUM || k == PL_GROUP_MAX ? MPI_MAX : MPI_MIN;
  else *out = plain[k];
  return PL_OK;
}
