/* SPDX-License-Identifier: MIT
 * The vocabulary that every layer shares: status codes, dtypes, attribute values, strided arrays.
 * It is in the lowest layer, so kernels need nothing from the engine. No function here allocates. */
#ifndef PL_KERNELS_BASE_H
#define PL_KERNELS_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- status ------------------------------------------------------------------------------- */

/* Every fallible function returns one of these. The only way to make a failing one is PL_FAIL, so a
 * code and its message (thread-local, pl_message()) cannot part. */
typedef enum PlStatus {
  PL_OK = 0,
  PL_ERR_ARG,       /* a value out of its range, an unknown option */
  PL_ERR_SHAPE,     /* shapes that do not fit */
  PL_ERR_DTYPE,     /* a dtype that the op does not take */
  PL_ERR_INDEX,     /* an index value out of range */
  PL_ERR_OOM,       /* budget or malloc */
  PL_ERR_STATE,     /* used after free, finalized key, saved tensor overwritten */
  PL_ERR_IO,        /* file system */
  PL_ERR_FORMAT,    /* malformed file */
  PL_ERR_CALLBACK,  /* a callback failed; its own error value is kept by the caller */
  PL_ERR_INTERRUPT, /* Ctrl-C */
  PL_ERR_UNSUPPORTED,
  PL_ERR_TRACE, /* a graph under construction cannot represent it, as it runs it would do */
  PL_ERR_DEVICE /* what a kernel on a device found, noticed by a later wait: results since then are undefined */
} PlStatus;

#if defined(__GNUC__)
#define PL_PRINTF(a, b)  __attribute__((format(printf, a, b)))
#define PL_UNLIKELY(x)   __builtin_expect(!!(x), 0)
#define PL_LIKELY(x)     __builtin_expect(!!(x), 1)
#define PL_RESTRICT      __restrict__
#define PL_NOINLINE      __attribute__((noinline))
#define PL_ALWAYS_INLINE inline __attribute__((always_inline)) /* where it was measured */
#else
#define PL_PRINTF(a, b)
#define PL_UNLIKELY(x) (x)
#define PL_LIKELY(x)   (x)
#define PL_RESTRICT
#define PL_NOINLINE
#define PL_ALWAYS_INLINE inline
#endif

PlStatus pl_fail(PlStatus code, const char *fmt, ...) PL_PRINTF(2, 3);
/* The code is named again, so that compilers see a failure where one is. */
/* Whoever goes another way where an attempt fails returns these: they say nothing of the attempt, or are said once only. */
static inline bool pl_must_report(PlStatus s) { return s == PL_ERR_OOM || s == PL_ERR_INTERRUPT || s == PL_ERR_DEVICE; }

#define PL_FAIL(code, ...) return ((void)pl_fail((code), __VA_ARGS__), (code))
#define PL_TRY(expr)                                   \
  do {                                                 \
    PlStatus pl_try_ = (expr);                         \
    if (PL_UNLIKELY(pl_try_ != PL_OK)) return pl_try_; \
  } while (0)
/* The message of this thread's last failure; "" if there was none. Valid until the next failure. */
const char *pl_message(void);
void pl_message_end(void); /* frees the message: this thread ends */

/* ---- dtypes ------------------------------------------------------------------------------- */

/* X(name, C type, bytes, class): class is B bool, I integer, F float. f16 and bf16 are bit patterns. */
#define PL_DTYPES(X)      \
  X(F32, float, 4, F)     \
  X(F64, double, 8, F)    \
  X(F16, uint16_t, 2, F)  \
  X(BF16, uint16_t, 2, F) \
  X(I8, int8_t, 1, I)     \
  X(I16, int16_t, 2, I)   \
  X(I32, int32_t, 4, I)   \
  X(I64, int64_t, 8, I)   \
  X(U8, uint8_t, 1, I)    \
  X(BOOL, uint8_t, 1, B)

typedef enum PlDtype {
#define PL_X(name, ctype, bytes, cls) PL_##name,
  PL_DTYPES(PL_X)
#undef PL_X
      PL_NDTYPE
} PlDtype;

/* Bytes of an element; 0 for what is no dtype. Four bits each in one constant: hot paths ask this several times. */
static inline size_t pl_dtype_size(PlDtype d) {
#define PL_X(name, ctype, bytes, cls) | (uint64_t)(bytes) << 4 * PL_##name
  return (unsigned)d < PL_NDTYPE ? (size_t)((0 PL_DTYPES(PL_X)) >> 4 * (unsigned)d & 15) : 0;
#undef PL_X
}
const char *pl_dtype_name(PlDtype d); /* "f32" … "bool" */
static inline bool pl_is_float(PlDtype d) { return d <= PL_BF16; }
static inline bool pl_is_int(PlDtype d) { return d >= PL_I8 && d <= PL_U8; }
/* The ends of an integer dtype; without stdint.h's limits, which NVRTC has not got. */
static inline int64_t pl_int_most(PlDtype d) {
  const size_t bits = pl_is_int(d) ? 8 * pl_dtype_size(d) : 64;
  return d == PL_U8 ? 255 : (int64_t)(~(uint64_t)0 >> (65 - bits));
}
static inline int64_t pl_int_least(PlDtype d) { return d == PL_U8 ? 0 : -pl_int_most(d) - 1; }

/* ---- attributes --------------------------------------------------------------------------- */

enum { PL_MAX_DIM = 16, PL_MAX_ATTR = 8, PL_ATTR_POOL = 48 };

/* The non-tensor arguments of one call, in the order of the op's attribute table. A list lives in
 * pool[v.list.at …]. Bit i of `set` says that attribute i was given (or has a default): an optional
 * attribute with its bit clear is "none". Bit i of `isint` says that a SCALAR attribute holds v.i rather
 * than v.f. Unused bytes are zero, so two calls compare with memcmp over pl_attrs_size(). */
typedef struct PlAttrs {
  uint16_t set, isint;
  uint16_t nval, npool;
  union PlAttrVal {
    int64_t i;
    double f;
    struct {
      uint32_t at, n;
    } list;
  } v[PL_MAX_ATTR];
  int64_t pool[PL_ATTR_POOL];
} PlAttrs;

static inline size_t pl_attrs_size(const PlAttrs *a) { return offsetof(PlAttrs, pool) + (size_t)a->npool * sizeof(int64_t); }
static inline bool pl_attr_has(const PlAttrs *a, int k) { return (a->set >> k) & 1; }
static inline int64_t pl_attr_i(const PlAttrs *a, int k) { return a->v[k].i; }
static inline double pl_attr_f(const PlAttrs *a, int k) { return a->v[k].f; }
static inline int pl_attr_n(const PlAttrs *a, int k) { return (int)a->v[k].list.n; }
static inline const int64_t *pl_attr_list(const PlAttrs *a, int k) { return a->pool + a->v[k].list.at; }

/* ---- arrays ------------------------------------------------------------------------------- */

/* What a kernel sees of a tensor: a strided window on memory. shape and strides are in elements;
 * stride 0 repeats, negative strides do not occur. `contiguous`: row-major without gaps. */
typedef struct PlArray {
  void *data; /* address of element (0, …, 0) */
  int64_t numel;
  const int64_t *shape, *strides;
  uint8_t dtype, ndim, contiguous;
  uint8_t weak; /* a number from a script: takes part in promotion by its class only */
  union {
    struct {
      uint8_t symbolic; /* no memory behind it: a value of a graph under construction. Kernels never see one */
      uint8_t device;   /* PL_CPU, PL_CUDA + i: whose memory data points to */
    };
    uint16_t elsewhere; /* both: 0 where the CPU has the values */
  };
} PlArray;

#endif
