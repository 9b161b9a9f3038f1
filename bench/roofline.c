/* SPDX-License-Identifier: MIT
 * What this machine can do: bandwidth of copy and triad over arrays that no cache holds, peaks of f32, f64, bf16 and int8
 * products from registers. bench/roofline.lua compiles it with -march=native and runs it.
 *   roofline THREADS  ->  lines "name figure": GB/s (bytes read and written by the program), GFLOP/s, GOP/s; best of several.
 * A peak that the processor has no instruction for is not printed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { BYTES = 64, SUMS = 24 };
#elif defined(__AVX2__)
enum { BYTES = 32, SUMS = 12 };
#else
enum { BYTES = 16, SUMS = 12 };
#endif

enum { MANY = 1 << 24 /* floats of an array of a thread */, TURNS = 1 << 20, ROUNDS = 7 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct Job {
  double work; /* bytes or operations of one run */
  float *a, *b, *c;
  void (*run)(struct Job *);
} Job;

static void copy(Job *j) {
  memcpy(j->a, j->b, (size_t)MANY * sizeof(float));
  j->work = 2.0 * MANY * sizeof(float);
}
static void triad(Job *j) {
  float *restrict a = j->a;
  const float *restrict b = j->b, *restrict c = j->c;
  for (int64_t i = 0; i < MANY; i++) a[i] = b[i] + 3 * c[i];
  j->work = 3.0 * MANY * sizeof(float);
}

#define PEAK(name, T, ZERO, STEP, OPS)                       \
  static void name(Job *j) {                                 \
    T s[SUMS], x = ZERO, y = ZERO;                           \
    __asm__("" : "+x"(x), "+x"(y));                          \
    _Pragma("GCC unroll 24") for (int k = 0; k < SUMS; k++) s[k] = ZERO; \
    for (int64_t i = 0; i < TURNS; i++) {                    \
      _Pragma("GCC unroll 24") for (int k = 0; k < SUMS; k++) { STEP; } \
    }                                                        \
    _Pragma("GCC unroll 24") for (int k = 0; k < SUMS; k++) __asm__ volatile("" ::"x"(s[k])); \
    j->work = (double)(OPS) * SUMS * TURNS;                  \
  }

typedef float Floats __attribute__((vector_size(BYTES)));
typedef double Doubles __attribute__((vector_size(BYTES)));
#if defined(__AVX512F__) /* by name: whether the compiler joins a product and a sum is its business */
#define FUSED(KIND) __asm__("vfmadd231" KIND " %2, %1, %0" : "+v"(s[k]) : "v"(x), "v"(y))
#elif defined(__FMA__)
#define FUSED(KIND) __asm__("vfmadd231" KIND " %2, %1, %0" : "+x"(s[k]) : "x"(x), "x"(y))
#else
#define FUSED(KIND) s[k] += x * y
#endif
PEAK(peak_f32, Floats, (Floats){0}, FUSED("ps"), 2 * BYTES / 4)
PEAK(peak_f64, Doubles, (Doubles){0}, FUSED("pd"), 2 * BYTES / 8)
#if defined(__AVX512BF16__)
PEAK(peak_bf16, Floats, (Floats){0}, __asm__("vdpbf16ps %2, %1, %0" : "+v"(s[k]) : "v"(x), "v"(y)), 2 * BYTES / 2)
#endif
#if defined(__AVX512VNNI__)
PEAK(peak_i8, Floats, (Floats){0}, __asm__("vpdpbusd %2, %1, %0" : "+v"(s[k]) : "v"(x), "v"(y)), 2 * BYTES)
#endif

/* Tiles of 16 rows of 64 bytes: four sums, so that a product need not wait for the one before it. The system grants their use. */
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, TILE_TURNS = TURNS / 16 };
static void tiles(void) {
  _Alignas(64) uint8_t config[64] = {1}; /* palette */
  for (int t = 0; t < 6; t++) {
    config[16 + 2 * t] = 64; /* bytes of a row */
    config[48 + t] = 16;     /* rows */
  }
  _tile_loadconfig(config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
}
static void tiles_bf16(Job *j) {
  tiles();
  for (int i = 0; i < TILE_TURNS; i++) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  j->work = 4.0 * TILE_TURNS * 2 * 16 * 16 * 32;
}
static void tiles_i8(Job *j) {
  tiles();
  for (int i = 0; i < TILE_TURNS; i++) {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  }
  _tile_release();
  j->work = 4.0 * TILE_TURNS * 2 * 16 * 16 * 64;
}
#define HAVE_TILES
#endif

static void *run(void *job) {
  ((Job *)job)->run(job);
  return NULL;
}

static void best(const char *name, void (*what)(Job *), Job *jobs, int n) {
  double top = 0;
  pthread_t *thread = calloc((size_t)n, sizeof *thread);
  for (int round = 0; round < ROUNDS && thread; round++) {
    const double from = now();
    double work = 0;
    for (int i = 0; i < n; i++) {
      jobs[i].run = what;
      if (i && pthread_create(&thread[i], NULL, run, &jobs[i]) != 0) exit(1);
    }
    run(&jobs[0]);
    for (int i = 1; i < n; i++) pthread_join(thread[i], NULL);
    const double t = now() - from;
    for (int i = 0; i < n; i++) work += jobs[i].work;
    if (work / t > top) top = work / t;
  }
  free(thread);
  printf("%s %.1f\n", name, top / 1e9);
}

static float *array(void) {
  const size_t bytes = (size_t)MANY * sizeof(float);
  float *p = aligned_alloc(1 << 21, bytes);
  if (!p) exit(1);
  madvise(p, bytes, MADV_HUGEPAGE);
  memset(p, 0, bytes);
  return p;
}

int main(int argc, char **argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 1;
  if (n < 1) return 1;
  Job *jobs = calloc((size_t)n, sizeof *jobs);
  if (!jobs) return 1;
  for (int i = 0; i < n; i++) jobs[i].a = array(), jobs[i].b = array(), jobs[i].c = array();
  best("copy", copy, jobs, n);
  best("triad", triad, jobs, n);
  best("f32", peak_f32, jobs, n);
  best("f64", peak_f64, jobs, n);
#if defined(__AVX512BF16__)
  best("bf16", peak_bf16, jobs, n);
#endif
#if defined(__AVX512VNNI__)
  best("i8", peak_i8, jobs, n);
#endif
#if defined(HAVE_TILES) /* the same names: the larger figure counts */
  if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0) {
    best("bf16", tiles_bf16, jobs, n);
    best("i8", tiles_i8, jobs, n);
  }
#endif
  return 0;
}
