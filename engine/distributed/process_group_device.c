/* SPDX-License-Identifier: MIT
 * Calls on tensors of a GPU, which go from GPU to GPU: the device plug-in's extension "nccl" (kernels/process_group_device.h). */
#include <stdio.h>
#include <stdlib.h>

#include "engine/device/device.h"
#include "engine/distributed/process_group.h"
#include "engine/grad/checkpoint.h"
#include "engine/tensor/tensor.h"

struct PlGroupDevice {
  void *group;
  int gpu, rank, n;
};

static PlStatus library(const PlkNcclTable **out) {
  const PlDeviceTable *t = NULL;
  PL_TRY(pl_device(&t));
  const PlkNcclTable *nccl = t->extension("nccl");
  if (!nccl) PL_FAIL(PL_ERR_UNSUPPORTED, "NCCL: this build's CUDA plug-in has none");
  *out = nccl;
  return PL_OK;
}

PlStatus pl_group_device_library(char *version, size_t size) {
  const PlkNcclTable *nccl;
  PL_TRY(library(&nccl));
  return nccl->open(version, size);
}

PlStatus pl_group_device_id(PlkNcclId *out) {
  const PlkNcclTable *nccl;
  char version[32];
  PL_TRY(library(&nccl));
  PL_TRY(nccl->open(version, sizeof version));
  return nccl->id(out);
}

PlStatus pl_group_device_new(PlGroupDevice **out, const PlkNcclId *id, int gpu, int rank, int n) {
  const PlkNcclTable *nccl;
  char version[32];
  PL_TRY(library(&nccl));
  PL_TRY(nccl->open(version, sizeof version));
  PlGroupDevice *g = calloc(1, sizeof *g);
  if (!g) PL_FAIL(PL_ERR_OOM, "process group: out of memory");
  *g = (PlGroupDevice){.gpu = gpu, .rank = rank, .n = n};
  PlStatus s = nccl->group_new(gpu, id, rank, n, &g->group);
  if (s != PL_OK) {
    free(g);
    return s;
  }
  *out = g;
  return PL_OK;
}

void pl_group_device_release(PlGroupDevice *g) {
  const PlkNcclTable *nccl;
  if (!g) return;
  if (library(&nccl) == PL_OK) nccl->group_free(g->group);
  free(g);
}

bool pl_group_device_takes(PlGroupKind kind, PlGroupOp op, PlDtype dtype) {
  const PlkNcclTable *nccl;
  return library(&nccl) == PL_OK && nccl->takes(kind, op, dtype);
}

PlStatus pl_group_device_start(PlGroupDevice *g, const PlGroupCall *call, PlTensor *src, PlTensor *dst) {
  const PlkNcclTable *nccl;
  PlGroupCall c = *call;
  PL_TRY(library(&nccl));
  const PlTensor *t = dst ? dst : src;
  if (t && t->a.device != PL_CUDA + g->gpu)
    PL_FAIL(PL_ERR_ARG,
            "%s: %s is on %s, this group on GPU %d, where its first call was; one GPU a process, "
            "T.cuda.set_device(T.distributed.get_node_local_rank())",
            c.name, pl_desc_text(&t->a), pl_device_name(t->a.device), g->gpu);
  PL_TRY(pl_group_fit(&c, src, dst, g->rank, g->n, PL_CUDA + g->gpu));
  if (!nccl->takes(c.kind, c.op, c.dtype)) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: NCCL does not do this", c.name);
  c.group = g->group;
  c.src = src ? src->a.data : NULL;
  c.dst = dst ? dst->a.data : NULL;
  if (dst && PL_UNLIKELY(pl_watched())) PL_TRY(pl_checkpoint_writes(c.name, dst));
  PL_TRY(nccl->check(g->group));
  PL_TRY(nccl->start(&c));
  if (dst) dst->storage->version++;
  if (dst && PL_UNLIKELY(pl_watched())) pl_checkpoint_wrote(dst);
  return PL_OK;
}
