/* SPDX-License-Identifier: MIT
 * Kernels that read or write at positions given by tensors, and the searches. Index values are counted from
 * the op's index_base attribute; all of them are checked before anything is written. Where several values
 * meet one position they are taken in index order, at any thread count.
 * Attribute positions are those of engine/ops/index/ and engine/ops/sort/search.c. */
#ifndef PL_KERNELS_INDEX_H
#define PL_KERNELS_INDEX_H

#include "kernels/kernel.h"

/* kernels/cpu/index/index.c: reading */
PlStatus plk_cpu_gather(const PlkCall *call);         /* x, index; dim, base. code 1: negatives wrap */
PlStatus plk_cpu_take_along_dim(const PlkCall *call); /* x, index; dim or none, base */
PlStatus plk_cpu_index_select(const PlkCall *call);   /* x, index; dim, base */
PlStatus plk_cpu_take(const PlkCall *call);           /* x, index; base */
PlStatus plk_cpu_embedding(const PlkCall *call);      /* weight, ids; padding_idx, by_freq, base */
PlStatus plk_cpu_index(const PlkCall *call);          /* x, indices…; dims, base */
PlStatus plk_cpu_one_hot(const PlkCall *call);        /* x; num_classes, base */

/* kernels/cpu/index/mask.c */
PlStatus plk_cpu_masked_fill(const PlkCall *call);        /* x, mask, value */
PlStatus plk_cpu_masked_select(const PlkCall *call);      /* x, mask */
PlStatus plk_cpu_masked_select_bwd(const PlkCall *call);  /* dy, mask; shape */
PlStatus plk_cpu_masked_scatter(const PlkCall *call);     /* x, mask, src */
PlStatus plk_cpu_masked_scatter_bwd(const PlkCall *call); /* dy, mask; shape */
PlStatus plk_cpu_nonzero(const PlkCall *call);            /* x; base */

/* kernels/cpu/index/scatter.c: writing */
PlStatus plk_cpu_scatter(const PlkCall *call);        /* x, index, src; dim, base, reduce. code 1: add */
PlStatus plk_cpu_scatter_reduce(const PlkCall *call); /* x, index, src; dim, reduce, include_self, base */
PlStatus plk_cpu_gather_bwd(const PlkCall *call);     /* dy, index; shape, dim, base */
/* dy, index; dim, base. Out dx: dy, zeros at the index; dsrc, of index's shape: dy there, once, for the last who wrote. */
PlStatus plk_cpu_scatter_bwd(const PlkCall *call);

/* kernels/cpu/index/index_write.c: writing whole rows */
PlStatus plk_cpu_index_add(const PlkCall *call);        /* x, index, src; dim, alpha, base */
PlStatus plk_cpu_index_copy(const PlkCall *call);       /* x, index, src; dim, base */
PlStatus plk_cpu_index_fill(const PlkCall *call);       /* x, index, value; dim, base */
PlStatus plk_cpu_index_put(const PlkCall *call);        /* x, value, indices…; dims, accumulate, base */
PlStatus plk_cpu_index_bwd(const PlkCall *call);        /* dy, indices…; shape, dims, base */
PlStatus plk_cpu_index_select_bwd(const PlkCall *call); /* dy, index; shape, dim, base */
PlStatus plk_cpu_cache_write(const PlkCall *call);      /* cache, src, at; base. All contiguous; cache is written in place */
PlStatus plk_cpu_take_bwd(const PlkCall *call);         /* dy, index; shape, base */
PlStatus plk_cpu_embedding_bwd(const PlkCall *call);    /* dy, ids; num, padding_idx, by_freq, base */

/* kernels/cpu/sort/search.c */
PlStatus plk_cpu_searchsorted(const PlkCall *call); /* sorted, values, sorter?; right, base, int32, side */
PlStatus plk_cpu_bucketize(const PlkCall *call);    /* x, boundaries; right, base */
PlStatus plk_cpu_bincount(const PlkCall *call);     /* x, weights?; minlength, base */
PlStatus plk_cpu_isin(const PlkCall *call);         /* elements, test; invert */
PlStatus plk_cpu_unique(const PlkCall *call);       /* x; …, inverse? (1), counts? (2), dim (3), base (4) */

/* What infer rules of value-dependent shapes ask for. */
PlStatus plk_cpu_count_nonzero(const PlArray *x, int64_t *count);
PlStatus plk_cpu_index_max(const PlArray *x, int64_t *max); /* INT64_MIN if empty */
PlStatus plk_cpu_unique_count(const PlArray *x, int dim, int64_t *count);

/* What takes a dim of x: nothing, one integer (a 0-d tensor), or positions. */
typedef enum PlkTaken { PLK_FREE, PLK_ONE, PLK_POSITIONS } PlkTaken;

/* Where the positions' own dims go in the result: how many free dims come before them. Where they were if the dims that
 * positions take are adjacent, else in front. A dim that one integer takes is gone, as if a number had picked it. */
static inline int plk_index_where(int ndim, const uint8_t *taken) {
  int free = 0, where = -1;
  bool apart = false;
  for (int d = 0; d < ndim; d++) {
    if (taken[d] == PLK_FREE) {
      free++;
      apart = where >= 0;
    } else if (taken[d] == PLK_POSITIONS) {
      if (where >= 0 && apart) return 0;
      if (where < 0) where = free;
    }
  }
  return where < 0 ? 0 : where;
}

/* How a list of index tensors addresses x: which dims, what broadcast shape, where it goes in the result.
 * A bool mask means the positions of its trues and takes as many dims as it has. */
typedef struct PlkIndexPlan {
  int n; /* indices */
  struct {
    int dim, ndim; /* the dims of x it takes */
    bool mask;
    int64_t count; /* a mask's trues */
  } at[PL_MAX_DIM];
  uint8_t taken[PL_MAX_DIM]; /* PlkTaken of x's dims */
  int nb;                    /* the indices' broadcast shape */
  int64_t bshape[PL_MAX_DIM];
  int64_t np; /* its number of positions */
  int where;  /* in the result: how many free dims come before the broadcast ones */
  int ndim;   /* of the result */
  int64_t shape[PL_MAX_DIM];
} PlkIndexPlan;

/* ndim and shape are x's; index[0 … n-1] the tensors; dims (may be NULL: from the first dim on) where each
 * begins. plk_index_where says where the indices' dims go.
 * Errors: PL_ERR_INDEX, PL_ERR_SHAPE, PL_ERR_DTYPE naming the op. */
PlStatus plk_cpu_index_plan(const char *op, int ndim, const int64_t *shape, int n, const PlArray *const *index, int ndims,
                            const int64_t *dims, PlkIndexPlan *plan);
/* The same without a look at values, every mask as one with a single true: all is checked but how many positions there are. */
PlStatus plk_cpu_index_plan_by_shape(const char *op, int ndim, const int64_t *shape, int n, const PlArray *const *index, int ndims,
                                     const int64_t *dims, PlkIndexPlan *plan);

#endif
