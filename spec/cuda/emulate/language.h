/* SPDX-License-Identifier: MIT
 * The device language for a plain C++ compiler: qualifiers, built-in variables, barriers, shuffles, atomics, launches.
 * A thread is a fiber; a barrier switches to the next one. See emulate.cpp. */
/* clang-format off */
#ifndef PL_SPEC_CUDA_LANGUAGE_H
#define PL_SPEC_CUDA_LANGUAGE_H

#include <math.h>
#include <new>
#include <stdlib.h>
#include <string.h>
#include <tuple>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __constant__ static const
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
extern "C" {
extern dim3 plce_thread, plce_block, plce_block_size, plce_grid_size;
extern unsigned char *plce_shared;
void plce_barrier(void);
void plce_warp_barrier(unsigned mask);
/* Gives the n ≤ 16 bytes at v to the lanes of the mask, takes those that lane `from` gave. */
void plce_swap(unsigned mask, const void *v, size_t n, int from, void *out);
unsigned plce_ballot(unsigned mask, int v);
int plce_lane(void);
cudaError_t plce_run(dim3 grid, dim3 block, size_t shared, void (*body)(void *), void *context, const char *name);
bool plce_notes(cudaStream_t s); /* does it capture? */
cudaError_t plce_note(cudaStream_t s, cudaError_t (*run)(void *), void *work); /* work: from malloc, freed with the graph */
bool plce_is_device(const void *p); /* NULL and pinned memory too */
void plce_bad_argument(const char *name, const void *p);
}
#define threadIdx plce_thread
#define blockIdx plce_block
#define blockDim plce_block_size
#define gridDim plce_grid_size
#define warpSize 32
#define PLC_SHARED(type, name) type *name = (type *)(void *)plce_shared

static inline void __syncthreads() { plce_barrier(); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { plce_warp_barrier(mask); }
template <typename T> static inline T plce_exchange(unsigned mask, T v, int from) {
  static_assert(sizeof(T) <= 16, "shuffles take up to 16 bytes");
  T got;
  plce_swap(mask, &v, sizeof v, from & 31, &got);
  return got;
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int d, int = 32) {
  return plce_exchange(mask, v, plce_lane() ^ d);
}
template <typename T> static inline T __shfl_sync(unsigned mask, T v, int from, int = 32) { return plce_exchange(mask, v, from & 31); }
template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int = 32) {
  int from = plce_lane() - (int)d;
  return plce_exchange(mask, v, from < 0 ? plce_lane() : from);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int = 32) {
  int from = plce_lane() + (int)d;
  return plce_exchange(mask, v, from > 31 ? plce_lane() : from);
}
static inline unsigned __ballot_sync(unsigned mask, int v) { return plce_ballot(mask, v); }
static inline int __any_sync(unsigned mask, int v) { return __ballot_sync(mask, v) != 0; }
static inline int __all_sync(unsigned mask, int v) { return __ballot_sync(mask, v) == mask; }

/* One fiber runs at a time, so these are atomic. */
template <typename T> static inline T atomicAdd(T *p, T v) { T old = *p; *p = old + v; return old; }
template <typename T> static inline T atomicMax(T *p, T v) { T old = *p; if (v > old) *p = v; return old; }
template <typename T> static inline T atomicMin(T *p, T v) { T old = *p; if (v < old) *p = v; return old; }
template <typename T> static inline T atomicOr(T *p, T v) { T old = *p; *p = old | v; return old; }
template <typename T> static inline T atomicAnd(T *p, T v) { T old = *p; *p = old & v; return old; }
template <typename T> static inline T atomicExch(T *p, T v) { T old = *p; *p = v; return old; }
template <typename T> static inline T atomicCAS(T *p, T was, T v) { T old = *p; if (old == was) *p = v; return old; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
template <typename T> static inline T __ldg(const T *p) { return *p; }
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline long long __double_as_longlong(double x) { long long u; memcpy(&u, &x, 8); return u; }
static inline double __longlong_as_double(long long u) { double x; memcpy(&x, &u, 8); return x; }

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* A pointer handed to a kernel must point at the device's memory; but for names, which are only passed through. */
template <typename T> static inline void plce_check(const char *, const T &) {}
template <typename T> static inline void plce_check(const char *name, T *const &p) {
  if (!plce_is_device((const void *)p)) plce_bad_argument(name, (const void *)p);
}
static inline void plce_check(const char *, const char *const &) {}
template <typename... A> static inline void plce_check_all(const char *name, const A &...args) {
  int order[] = {0, (plce_check(name, args), 0)...};
  (void)order;
}
/* What a launch is made of. A stream that captures gets a copy. */
template <typename F> struct plce_work {
  dim3 grid, block;
  size_t shared;
  const char *name;
  F body;
  static cudaError_t run(void *p) {
    plce_work *w = (plce_work *)p;
    return plce_run(w->grid, w->block, w->shared, [](void *f) { (*(F *)f)(); }, &w->body, w->name);
  }
};
template <typename F> static inline cudaError_t plce_launch(cudaStream_t s, dim3 grid, dim3 block, size_t shared, const char *name, F body) {
  plce_work<F> w = {grid, block, shared, name, body};
  if (!plce_notes(s)) return plce_work<F>::run(&w);
  void *room = malloc(sizeof w);
  if (!room) return cudaErrorMemoryAllocation;
  return plce_note(s, plce_work<F>::run, new (room) plce_work<F>(w));
}

/* A kernel with its arguments, which take its parameters' types. */
template <typename... P> struct plce_bound {
  void (*kernel)(P...);
  std::tuple<P...> args;
  void operator()() const { std::apply(kernel, args); }
};
template <typename T> struct plce_as { typedef T type; };
template <typename... P>
static inline cudaError_t plce_start(cudaStream_t s, dim3 grid, dim3 block, size_t shared, const char *name, void (*kernel)(P...),
                                     typename plce_as<P>::type... args) {
  plce_check_all(name, args...);
  const cudaError_t before = cudaGetLastError(); /* what nobody took away is blamed on the launch, as on a GPU */
  if (before != cudaSuccess) return before;
  return plce_launch(s, grid, block, shared, name, plce_bound<P...>{kernel, std::tuple<P...>(args...)});
}
#define PLC_LAUNCH(kernel, grid, block, shared, ...) \
  PLC_TRY(plce_start(plc_stream(), (grid), (block), (size_t)(shared), #kernel, kernel, __VA_ARGS__))

#endif
