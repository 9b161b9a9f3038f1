/* SPDX-License-Identifier: MIT
 * foreach_cast: casts of many dense tensors between f32 and f16 or bf16, in one launch for up to PIECES of them. A block takes
 * PLC_CHUNK elements of one, four a pack, so that neighbours read and write without gaps on both sides. The numbers are those of one cast each (cast.cu). */
#include "kernels/cuda/optim/lists.h"

namespace {

enum { PIECES = 80, FOUR = 4 };
struct Piece {
  const void *x;
  void *y;
  int64_t numel;
  int from, to;
};
struct Pieces {
  int n;
  int64_t first[PIECES + 1]; /* chunks before each */
  Piece p[PIECES];
};

template <typename From, typename To> PLC_DEV void chunk(const Piece &g, int64_t begin, int64_t end) {
  const From *x = (const From *)g.x;
  To *y = (To *)g.y;
  const int EACH = PLC_CHUNK / PLC_BLOCK / FOUR;
  if (end - begin == PLC_CHUNK && ((uintptr_t)x | (uintptr_t)y) % 16 == 0) {
    plc_pack<From, FOUR> a[EACH];
    const int64_t e = begin + (int64_t)threadIdx.x * FOUR;
    PLC_UNROLL for (int k = 0; k < EACH; k++) a[k] = *(const plc_pack<From, FOUR> *)(x + e + k * PLC_BLOCK * FOUR);
    PLC_UNROLL for (int k = 0; k < EACH; k++) {
      plc_pack<To, FOUR> r;
      PLC_UNROLL for (int j = 0; j < FOUR; j++) r.v[j] = plc_type<To>::store((float)plc_type<From>::load(a[k].v[j]));
      *(plc_pack<To, FOUR> *)(y + e + k * PLC_BLOCK * FOUR) = r;
    }
    return;
  }
  for (int64_t i = begin + threadIdx.x; i < end; i += PLC_BLOCK) y[i] = plc_type<To>::store((float)plc_type<From>::load(x[i]));
}

__global__ void cast_pieces(const __grid_constant__ Pieces s) {
  for (int64_t b = blockIdx.x; b < s.first[s.n]; b += gridDim.x) {
    const int lo = plc_list_of(s.first, s.n, b);
    const Piece &g = s.p[lo];
    const int64_t begin = (b - s.first[lo]) * PLC_CHUNK, end = begin + PLC_CHUNK < g.numel ? begin + PLC_CHUNK : g.numel;
    if (g.from == PL_F32 && g.to == PL_BF16) chunk<float, plc_bf16>(g, begin, end);
    else if (g.from == PL_F32) chunk<float, plc_f16>(g, begin, end);
    else if (g.from == PL_BF16) chunk<plc_bf16, float>(g, begin, end);
    else chunk<plc_f16, float>(g, begin, end);
  }
}

PlStatus flush(Pieces *s) {
  const int64_t chunks = s->first[s->n], most = plc_most_blocks();
  if (s->n) PLC_LAUNCH(cast_pieces, (unsigned)(chunks < most ? chunks : most), PLC_BLOCK, 0, *s);
  s->n = 0;
  return PL_OK;
}

bool half(int d) { return d == PL_F16 || d == PL_BF16; }

/* in and out: as many dense arrays each. */
PlStatus foreach_cast(const PlkCall *c) {
  Pieces s;
  memset(&s, 0, sizeof s);
  for (int i = 0; i < c->nin; i++) {
    const PlArray *x = c->in[i], *y = c->out[i];
    if (!((x->dtype == PL_F32 && half(y->dtype)) || (half(x->dtype) && y->dtype == PL_F32)))
      PL_FAIL(PL_ERR_DTYPE, "%s: from %s to %s", c->name, pl_dtype_name((PlDtype)x->dtype), pl_dtype_name((PlDtype)y->dtype));
    if (x->numel == 0) continue;
    s.p[s.n] = Piece{x->data, y->data, x->numel, (int)x->dtype, (int)y->dtype};
    s.first[s.n + 1] = s.first[s.n] + (x->numel + PLC_CHUNK - 1) / PLC_CHUNK;
    if (++s.n == PIECES) PL_TRY(flush(&s));
  }
  return flush(&s);
}

} // namespace

PLC_KERNEL(foreach_cast, foreach_cast)
