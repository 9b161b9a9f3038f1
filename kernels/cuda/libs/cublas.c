/* SPDX-License-Identifier: MIT
 * Matrix products by cuBLASLt. It counts columns first, we count rows first: our C[m,n] is its Cᵀ[n,m] in the same
 * memory, and (A B)ᵀ = Bᵀ Aᵀ, so the factors change places and nothing is copied; a bias over our columns is one over its
 * rows, which its epilogues have. The algorithm for a product is asked once and kept by everything that the choice may
 * depend on. Each GPU has a handle of its own. */
#include <cublasLt.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libs/fastest.h"
#include "kernels/cuda/libs/library.h"
#include "kernels/cuda/libs/libs.h"
#include "kernels/cuda/runtime/locked.h"

#define PLC_LT_FUNCTIONS(X)                \
  X(cublasLtGetVersion)                    \
  X(cublasLtGetStatusString)               \
  X(cublasLtCreate)                        \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescInit_internal)       \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatrixLayoutInit_internal)     \
  X(cublasLtMatrixLayoutSetAttribute)      \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute)

typedef struct Api {
#define PLC_X(name) __typeof__(&name) name;
  PLC_LT_FUNCTIONS(PLC_X)
#undef PLC_X
} Api;

/* What the choice of an algorithm depends on; compared byte by byte. */
typedef struct Key {
  int64_t m, n, k, batch, lda, ldb, ldc, sa, sb, sc;
  uint16_t align_a, align_b, align_c, align_bias;
  uint8_t dtype, result, ta, tb, epilogue, adds, tf32, deterministic;
  uint64_t gpu;
} Key;
_Static_assert(sizeof(Key) == 10 * 8 + 4 * 2 + 8 + 8, "a key has no holes");

typedef struct Entry {
  Key key;
  uint64_t hash, used;
  bool none;     /* the library has no algorithm */
  bool measured; /* chosen by times */
  cublasLtMatmulAlgo_t algo;
} Entry;

enum { CACHE = 1024, STREAMS = 64 };
#define WORKSPACE ((size_t)32 << 20) /* what NVIDIA advises for Hopper */

static struct {
  pthread_once_t once;
  pthread_mutex_t lock;
  Api api;
  char missing[256], version[24];
  cublasLtHandle_t handle[PL_GPUS];
  Entry entry[CACHE];
  int nentry;
  uint64_t clock;
  struct {
    int gpu;
    cudaStream_t stream;
    void *at;
  } workspace[STREAMS];
  int nworkspace;
} lt = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void open_lt(void) {
  static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", NULL};
  static const PlcSymbol symbols[] = {
#define PLC_X(name) {#name, offsetof(Api, name)},
      PLC_LT_FUNCTIONS(PLC_X)
#undef PLC_X
          {NULL, 0}};
  if (!plc_library_open("cuBLASLt", files, symbols, &lt.api, lt.missing, sizeof lt.missing)) return;
  size_t v = lt.api.cublasLtGetVersion();
  snprintf(lt.version, sizeof lt.version, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

const char *plc_cublas_version(void) {
  pthread_once(&lt.once, open_lt);
  return lt.missing[0] ? NULL : lt.version;
}

static PlStatus failed(cublasStatus_t s, const PlcGemm *g) {
  PlStatus code = s == CUBLAS_STATUS_ALLOC_FAILED ? PL_ERR_OOM : PL_ERR_STATE;
  return pl_fail(code, "cublasLt: product of %s [%lld,%lld] and [%lld,%lld]: %s", pl_dtype_name(g->dtype), (long long)g->m, (long long)g->k,
                 (long long)g->k, (long long)g->n, lt.api.cublasLtGetStatusString(s));
}

/* ---- describing ------------------------------------------------------------------------------------------------- */

typedef struct Product {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c; /* in the library's order: a is our B */
} Product;

static cudaDataType_t type_of(PlDtype d) {
  return d == PL_F64 ? CUDA_R_64F : d == PL_F16 ? CUDA_R_16F : d == PL_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void layout(cublasLtMatrixLayoutOpaque_t *l, PlDtype d, int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t step) {
  (void)lt.api.cublasLtMatrixLayoutInit_internal(l, sizeof *l, type_of(d), (uint64_t)rows, (uint64_t)cols, ld);
  int32_t n = (int32_t)batch;
  (void)lt.api.cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
  (void)lt.api.cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

static cublasStatus_t attribute(Product *p, cublasLtMatmulDescAttributes_t name, const void *v, size_t size) {
  return lt.api.cublasLtMatmulDescSetAttribute(&p->desc, name, v, size);
}

static cublasStatus_t describe(const PlcGemm *g, bool tf32, Product *p) {
  cublasComputeType_t compute = g->dtype == PL_F64           ? CUBLAS_COMPUTE_64F
                                : g->dtype == PL_F32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                             : CUBLAS_COMPUTE_32F;
  cublasStatus_t s =
      lt.api.cublasLtMatmulDescInit_internal(&p->desc, sizeof p->desc, compute, g->dtype == PL_F64 ? CUDA_R_64F : CUDA_R_32F);
  const cublasOperation_t n = CUBLAS_OP_N, t = CUBLAS_OP_T;
  if (s == CUBLAS_STATUS_SUCCESS) s = attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, g->tb ? &t : &n, sizeof n);
  if (s == CUBLAS_STATUS_SUCCESS) s = attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, g->ta ? &t : &n, sizeof n);
  if (s == CUBLAS_STATUS_SUCCESS && g->epilogue != PLC_EPI_NONE) {
    const cublasLtEpilogue_t e = g->epilogue == PLC_EPI_BIAS_RELU ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    const int32_t type = (int32_t)type_of(g->result);
    s = attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e);
    if (s == CUBLAS_STATUS_SUCCESS) s = attribute(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (s == CUBLAS_STATUS_SUCCESS) s = attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
  }
  layout(&p->a, g->dtype, g->tb ? g->k : g->n, g->tb ? g->n : g->k, g->ldb, g->batch, g->sb);
  layout(&p->b, g->dtype, g->ta ? g->m : g->k, g->ta ? g->k : g->m, g->lda, g->batch, g->sa);
  layout(&p->c, g->result, g->n, g->m, g->ldc, g->batch, g->sc);
  return s;
}

/* ---- choosing ----------------------------------------------------------------------------------------------------- */

static uint16_t alignment(const void *p) {
  uintptr_t low = (uintptr_t)p & (~(uintptr_t)p + 1);
  return (uint16_t)(low == 0 || low > 256 ? 256 : low);
}

static Key key_of(const PlcGemm *g) {
  Key k;
  memset(&k, 0, sizeof k);
  k.m = g->m, k.n = g->n, k.k = g->k, k.batch = g->batch;
  k.lda = g->lda, k.ldb = g->ldb, k.ldc = g->ldc, k.sa = g->sa, k.sb = g->sb, k.sc = g->sc;
  k.align_a = alignment(g->a), k.align_b = alignment(g->b), k.align_c = alignment(g->c);
  k.align_bias = g->epilogue == PLC_EPI_NONE ? 0 : alignment(g->bias);
  k.dtype = (uint8_t)g->dtype, k.result = (uint8_t)g->result, k.ta = g->ta, k.tb = g->tb;
  k.epilogue = (uint8_t)g->epilogue, k.adds = g->beta != 0, k.tf32 = plc_tf32(), k.deterministic = plc_deterministic();
  k.gpu = (uint64_t)plc_gpu_number();
  return k;
}

/* Where K is split: parts that are kept in the result's dtype round halves once more for each, so those are added up in f32.
 * In an order of their own where bits must repeat: not "in place", where whoever comes first adds first. */
static uint32_t reductions(const Key *k) {
  const bool half = k->result == PL_F16 || k->result == PL_BF16;
  if (half) return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  return k->deterministic ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
}

/* The library's best guesses, at most `most` of them. */
static int ask(const Key *k, Product *p, cublasLtMatmulHeuristicResult_t *best, int most) {
  cublasLtMatmulPreferenceOpaque_t pref;
  const size_t workspace = WORKSPACE;
  (void)lt.api.cublasLtMatmulPreferenceInit_internal(&pref, sizeof pref);
  const struct {
    cublasLtMatmulPreferenceAttributes_t name;
    uint32_t value;
  } small[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->align_b},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->align_a},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, k->align_c},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->align_c},
               {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions(k)}};
  (void)lt.api.cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
  for (size_t i = 0; i < sizeof small / sizeof *small; i++)
    (void)lt.api.cublasLtMatmulPreferenceSetAttribute(&pref, small[i].name, &small[i].value, sizeof small[i].value);
  int found = 0;
  cublasStatus_t s =
      lt.api.cublasLtMatmulAlgoGetHeuristic(lt.handle[k->gpu], &p->desc, &p->a, &p->b, &p->c, &p->c, &pref, most, best, &found);
  return s == CUBLAS_STATUS_SUCCESS ? found : 0;
}

/* Multiplicative mixing of the key's words (Knuth, The Art of Computer Programming 3, 6.4). */
static uint64_t hash_of(const Key *k) {
  uint64_t word[sizeof *k / 8], h = 0;
  memcpy(word, k, sizeof word);
  for (size_t i = 0; i < sizeof word / sizeof *word; i++) {
    h = (h ^ word[i]) * UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 29;
  }
  return h;
}

/* The algorithm for the product, from the cache or asked for now. Under the lock. */
static Entry *choose(const PlcGemm *g, Product *p) {
  Key k = key_of(g);
  uint64_t hash = hash_of(&k);
  Entry *e = NULL, *oldest = &lt.entry[0];
  for (int i = 0; i < lt.nentry; i++) {
    Entry *c = &lt.entry[i];
    if (c->hash == hash && memcmp(&c->key, &k, sizeof k) == 0) {
      e = c;
      break;
    }
    if (c->used < oldest->used) oldest = c;
  }
  if (!e) {
    e = lt.nentry < CACHE ? &lt.entry[lt.nentry++] : oldest;
    *e = (Entry){.key = k, .hash = hash};
    cublasLtMatmulHeuristicResult_t best;
    e->none = ask(&k, p, &best, 1) < 1 || best.state != CUBLAS_STATUS_SUCCESS;
    if (!e->none) e->algo = best.algo;
  }
  e->used = ++lt.clock;
  return e;
}

/* One workspace a stream: products on one stream run one after the other. A captured graph, which may run on any stream, has
 * one of its own, from its memory; and where there are very many streams each product gets one (*passing), freed behind it. */
static PlStatus workspace_of(cudaStream_t stream, void **out, bool *passing) {
  int i = 0;
  const int gpu = plc_gpu_number();
  while (i < lt.nworkspace && (lt.workspace[i].stream != stream || lt.workspace[i].gpu != gpu)) i++;
  *passing = i == STREAMS || plc_capturing();
  if (*passing) return plc_scratch(WORKSPACE, out);
  if (i == lt.nworkspace) {
    void *at = NULL;
    PL_TRY(plc_keep(WORKSPACE, &at));
    lt.workspace[i].gpu = gpu;
    lt.workspace[i].stream = stream;
    lt.workspace[i].at = at;
    lt.nworkspace++;
  }
  *out = lt.workspace[i].at;
  return PL_OK;
}

/* ---- measuring: T.cuda.benchmark ---------------------------------------------------------------------------------- */

static cublasStatus_t run_algo(const PlcGemm *g, Product *p, const cublasLtMatmulAlgo_t *algo, void *c, void *workspace) {
  const float alpha = (float)g->alpha, beta = (float)g->beta;
  const bool wide = g->dtype == PL_F64;
  return lt.api.cublasLtMatmul(lt.handle[plc_gpu_number()], &p->desc, wide ? (const void *)&g->alpha : &alpha, g->b, &p->a, g->a, &p->b,
                               wide ? (const void *)&g->beta : &beta, c, &p->c, c, &p->c, algo, workspace, WORKSPACE, plc_stream());
}

typedef struct Guesses {
  const PlcGemm *g;
  Product *p;
  cublasLtMatmulHeuristicResult_t way[PLC_WAYS];
  void *c, *workspace;
} Guesses;

static bool run_guess(void *what, int way) {
  Guesses *q = what;
  const cublasLtMatmulHeuristicResult_t *w = &q->way[way];
  return w->state == CUBLAS_STATUS_SUCCESS && w->workspaceSize <= WORKSPACE &&
         run_algo(q->g, q->p, &w->algo, q->c, q->workspace) == CUBLAS_STATUS_SUCCESS;
}

/* The fastest of the library's guesses, into a result of its own: the call's may be added to. Without memory for that, or time
 * for what fails, the first guess stays. */
static PlStatus measure(const PlcGemm *g, Product *p, Entry *e, void *workspace) {
  Guesses q = {.g = g, .p = p, .workspace = workspace};
  double times[PLC_WAYS];
  const Key k = e->key;
  const int found = ask(&k, p, q.way, PLC_WAYS);
  const size_t bytes = (size_t)((g->batch - 1) * g->sc + (g->m - 1) * g->ldc + g->n) * pl_dtype_size(g->result);
  e->measured = true;
  if (found < 2 || plc_scratch(bytes, &q.c) != PL_OK) return plc_alive();
  const PlStatus s = plc_ways_time(run_guess, &q, found, times);
  const int best = plc_ways_choose(found, times);
  if (s == PL_OK && times[best] > 0) e->algo = q.way[best].algo;
  plc_scratch_free(q.c);
  return s;
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

static PlStatus product(const PlcGemm *g, bool *done) {
  Product p;
  cublasLtHandle_t *handle = &lt.handle[plc_gpu_number()];
  if (!*handle) {
    cublasStatus_t s = lt.api.cublasLtCreate(handle);
    if (s != CUBLAS_STATUS_SUCCESS) return failed(s, g);
  }
  cublasStatus_t s = describe(g, plc_tf32(), &p);
  if (s != CUBLAS_STATUS_SUCCESS) return failed(s, g);
  Entry *e = choose(g, &p);
  if (e->none) return PL_OK;
  void *workspace = NULL;
  bool passing = false;
  PL_TRY(workspace_of(plc_stream(), &workspace, &passing));
  PlStatus st = plc_benchmark() && !e->measured && !plc_capturing() ? measure(g, &p, e, workspace) : PL_OK;
  if (st == PL_OK) s = run_algo(g, &p, &e->algo, g->c, workspace);
  if (passing) plc_scratch_free(workspace);
  PL_TRY(st);
  if (s != CUBLAS_STATUS_SUCCESS) return failed(s, g);
  *done = true;
  return PL_OK;
}

PlStatus plc_gemm_library(const PlcGemm *g, bool *done) {
  *done = false;
  if (!pl_is_float(g->dtype)) return PL_OK;
  if (g->m < 1 || g->n < 1 || g->k < 1 || g->batch < 1 || g->batch > INT32_MAX) return PL_OK;
  if (!plc_cublas_version()) return PL_OK;
  plc_lock(&lt.lock);
  PlStatus s = product(g, done);
  plc_unlock(&lt.lock);
  return s;
}
