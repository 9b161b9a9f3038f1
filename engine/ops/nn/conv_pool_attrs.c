/* SPDX-License-Identifier: MIT
 * Attribute lists and window sizes of convolution and pooling. */
#include "engine/ops/nn/conv_pool_attrs.h"

PlStatus pl_spatial_list(const char *op, const char *name, const PlAttrs *a, int k, int nd, int64_t least, int64_t *out) {
  int n = pl_attr_n(a, k);
  const int64_t *v = pl_attr_list(a, k);
  if (n != 1 && n != nd) PL_FAIL(PL_ERR_ARG, "%s: %s has %d entries; give one number, or %d", op, name, n, nd);
  for (int d = 0; d < nd; d++) {
    out[d] = v[n == 1 ? 0 : d];
    if (out[d] < least) PL_FAIL(PL_ERR_ARG, "%s: %s is %lld, must be at least %lld", op, name, (long long)out[d], (long long)least);
    if (out[d] > INT32_MAX) /* kernels multiply it with sizes */
      PL_FAIL(PL_ERR_ARG, "%s: %s is %lld, must be at most %d", op, name, (long long)out[d], INT32_MAX);
  }
  return PL_OK;
}

int64_t pl_window_count(int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t end, int64_t dil, bool ceil_mode) {
  __int128 room = (__int128)size + pad + end - (__int128)dil * (kernel - 1) - 1;
  if (ceil_mode) room += stride - 1;
  if (room < 0) return -1;
  __int128 n = room / stride + 1;
  if (ceil_mode && (n - 1) * stride >= (__int128)size + pad) n--; /* the last window must begin inside */
  return n > INT64_MAX ? INT64_MAX : (int64_t)n;
}

void pl_kernel_list(PlAttrs *a, int k, int n, const int64_t *v) {
  a->set |= (uint16_t)(1 << k);
  a->v[k].i = 0;
  a->v[k].list.at = a->npool;
  a->v[k].list.n = (uint32_t)n;
  for (int i = 0; i < n && a->npool < PL_ATTR_POOL; i++) a->pool[a->npool++] = v[i];
}

void pl_kernel_int(PlAttrs *a, int k, int64_t v) {
  a->set |= (uint16_t)(1 << k);
  a->v[k].i = v;
}
