/* SPDX-License-Identifier: MIT
 * Convolution plans: from a key to compiled primitives in the library's favourite layouts, and running them.
 * onednn_conv_cache.c keeps them. */
#include "kernels/cpu/onednn/onednn_conv_plan.h"

#ifdef PLK_HAVE_ONEDNN

#include <string.h>

#define lib plk_dnnl()

/* ---- memory descriptors ---- */

/* dims and element strides of tensor `which`; returns the number of dims. */
static int layout(const PlkConvKey *q, int which, dnnl_dims_t dims, dnnl_dims_t strides) {
  const int64_t *sp = which == PLK_CONV_X ? q->in : which == PLK_CONV_W ? q->k : q->out;
  int64_t plane = 1;
  for (int i = 0; i < q->nd; i++) plane *= sp[i];
  int at = 0;
  if (which == PLK_CONV_W) {
    if (q->g > 1) dims[at] = q->g, strides[at++] = q->o * q->wo;
    dims[at] = q->o, strides[at++] = q->wo;
    dims[at] = q->c, strides[at++] = plane;
  } else {
    dims[at] = q->n, strides[at++] = which == PLK_CONV_X ? q->xn : q->yn;
    dims[at] = q->g * (which == PLK_CONV_X ? q->c : q->o), strides[at++] = plane;
  }
  for (int i = 0; i < q->nd; i++) {
    plane /= sp[i];
    dims[at] = sp[i], strides[at++] = plane;
  }
  return at;
}

/* Weight gradients are partial sums, so they stay f32. */
static dnnl_data_type_t type_of(const PlkConvKey *q, int which) {
  return q->bf16 && !(q->kind == PLK_CONV_BWD_WEIGHT && which == PLK_CONV_W) ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t md_strided(Md *md, int nd, const dnnl_dims_t dims, const dnnl_dims_t st, dnnl_data_type_t type) {
#if PLK_DNNL_V3
  return lib->memory_desc_create_with_strides(md, nd, dims, type, st);
#else
  return lib->memory_desc_init_by_strides(md, nd, dims, type, st);
#endif
}

static dnnl_status_t md_any(Md *md, int nd, const dnnl_dims_t dims, dnnl_data_type_t type) {
#if PLK_DNNL_V3
  return lib->memory_desc_create_with_tag(md, nd, dims, type, dnnl_format_tag_any);
#else
  return lib->memory_desc_init_by_tag(md, nd, dims, type, dnnl_format_tag_any);
#endif
}

/* Two spatial dims, in blocks of that many channels. */
static dnnl_status_t md_blocked(Md *md, const dnnl_dims_t dims, dnnl_data_type_t type, int64_t block) {
  const dnnl_format_tag_t tag = block == 16 ? dnnl_aBcd16b : dnnl_aBcd8b;
#if PLK_DNNL_V3
  return lib->memory_desc_create_with_tag(md, 4, dims, type, tag);
#else
  return lib->memory_desc_init_by_tag(md, 4, dims, type, tag);
#endif
}

/* One image of a batch. */
static dnnl_status_t md_image(Md *md, MdRef batch, const dnnl_dims_t dims) {
  dnnl_dims_t one, from = {0};
  memcpy(one, dims, sizeof one);
  one[0] = 1;
#if PLK_DNNL_V3
  return lib->memory_desc_create_submemory(md, batch, one, from);
#else
  return lib->memory_desc_init_submemory(md, batch, one, from);
#endif
}

static void md_drop(Md *md) {
#if PLK_DNNL_V3
  if (*md) lib->memory_desc_destroy(*md);
  *md = NULL;
#else
  (void)md;
#endif
}

/* ---- plans ---- */

typedef struct Geometry {
  dnnl_dims_t stride, dil, lo, hi;
} Geometry;

static dnnl_status_t describe(dnnl_primitive_desc_t *pd, int64_t kind, const Md m[3], const Md *bias, const Geometry *g,
                              dnnl_primitive_attr_t at, dnnl_primitive_desc_t hint) {
  const dnnl_alg_kind_t alg = dnnl_convolution_direct;
#if PLK_DNNL_V3
  MdRef b = bias ? *bias : NULL;
  if (kind == PLK_CONV_FWD)
    return lib->convolution_forward_primitive_desc_create(pd, lib->engine, dnnl_forward_training, alg, m[0], m[1], b, m[2], g->stride,
                                                          g->dil, g->lo, g->hi, at);
  if (kind == PLK_CONV_BWD_INPUT)
    return lib->convolution_backward_data_primitive_desc_create(pd, lib->engine, alg, m[0], m[1], m[2], g->stride, g->dil, g->lo, g->hi,
                                                                hint, at);
  return lib->convolution_backward_weights_primitive_desc_create(pd, lib->engine, alg, m[0], m[1], NULL, m[2], g->stride, g->dil, g->lo,
                                                                 g->hi, hint, at);
#else
  dnnl_convolution_desc_t d;
  dnnl_status_t s;
  if (kind == PLK_CONV_FWD)
    s = lib->dilated_convolution_forward_desc_init(&d, dnnl_forward_training, alg, &m[0], &m[1], bias, &m[2], g->stride, g->dil, g->lo,
                                                   g->hi);
  else if (kind == PLK_CONV_BWD_INPUT)
    s = lib->dilated_convolution_backward_data_desc_init(&d, alg, &m[0], &m[1], &m[2], g->stride, g->dil, g->lo, g->hi);
  else s = lib->dilated_convolution_backward_weights_desc_init(&d, alg, &m[0], &m[1], NULL, &m[2], g->stride, g->dil, g->lo, g->hi);
  return s != dnnl_success ? s : lib->primitive_desc_create(pd, &d, at, lib->engine, hint);
#endif
}

/* Asks for the convolution in the library's favourite layouts. */
static dnnl_status_t plan_describe(PlkConvPlan *p, dnnl_primitive_attr_t at) {
  const PlkConvKey *q = &p->key;
  Geometry g;
  memset(&g, 0, sizeof g);
  for (int i = 0; i < q->nd; i++) {
    g.stride[i] = q->stride[i], g.dil[i] = q->dil[i] - 1; /* the library counts gaps */
    g.lo[i] = g.hi[i] = q->pad[i];
  }
  Md asked[3], narrow_w; /* the forward pass that backward is given has narrow weights */
  memset(asked, 0, sizeof asked);
  memset(&narrow_w, 0, sizeof narrow_w);
  dnnl_status_t s = dnnl_success;
  for (int i = 0; i < 3 && s == dnnl_success; i++) {
    dnnl_dims_t dims, st;
    int nd = layout(q, i, dims, st);
    const int64_t block = i == PLK_CONV_X ? q->xblock : i == PLK_CONV_Y ? q->yblock : 0;
    s = block ? md_blocked(&p->plain[i], dims, type_of(q, i), block) : md_strided(&p->plain[i], nd, dims, st, type_of(q, i));
    if (s == dnnl_success) s = block ? md_blocked(&asked[i], dims, type_of(q, i), block) : md_any(&asked[i], nd, dims, type_of(q, i));
    if (s == dnnl_success && i == PLK_CONV_W) s = md_any(&narrow_w, nd, dims, q->bf16 ? dnnl_bf16 : dnnl_f32);
  }
  if (s == dnnl_success && q->has_bias) {
    dnnl_dims_t dims = {q->g * q->o}, st = {1};
    s = md_strided(&p->bias, 1, dims, st, q->bf16 ? dnnl_bf16 : dnnl_f32);
  }
  dnnl_primitive_desc_t fwd = NULL;
  const Md *bias = q->has_bias ? &p->bias : NULL;
  const Md hint[3] = {asked[0], narrow_w, asked[2]};
  if (s == dnnl_success) s = describe(&fwd, PLK_CONV_FWD, hint, bias, &g, at, NULL);
  if (s == dnnl_success && q->kind == PLK_CONV_FWD) {
    p->pd = fwd;
    fwd = NULL;
  } else if (s == dnnl_success) {
    s = describe(&p->pd, q->kind, asked, NULL, &g, at, fwd);
  }
  if (fwd) lib->primitive_desc_destroy(fwd);
  for (int i = 0; i < 3; i++) md_drop(&asked[i]);
  md_drop(&narrow_w);
  return s;
}

/* The tensor that a direction writes: y, x or w. */
static int written(int64_t kind) { return kind == PLK_CONV_FWD ? PLK_CONV_Y : kind == PLK_CONV_BWD_INPUT ? PLK_CONV_X : PLK_CONV_W; }

static dnnl_status_t reorder_make(dnnl_primitive_t *out, MdRef from, MdRef to, dnnl_primitive_attr_t at) {
  dnnl_primitive_desc_t rd = NULL;
  dnnl_status_t s = lib->reorder_primitive_desc_create(&rd, from, lib->engine, to, lib->engine, at);
  if (s == dnnl_success) s = lib->primitive_create(out, rd);
  if (rd) lib->primitive_desc_destroy(rd);
  return s;
}

/* For tensors that several plans read: blocked image by image, ahead of them. Without it (image_bytes 0) each
 * plan blocks its own. */
static void plan_image(PlkConvPlan *p, dnnl_primitive_attr_t at) {
  const int i = (int)p->key.common;
  dnnl_dims_t dims, st;
  layout(&p->key, i, dims, st);
  dnnl_status_t s = md_image(&p->image[0], REF(p->plain[i]), dims);
  if (s == dnnl_success) s = md_image(&p->image[1], p->blocked[i], dims);
  if (s == dnnl_success) s = reorder_make(&p->by_image, REF(p->image[0]), REF(p->image[1]), at);
  const size_t each = p->bytes[i] / (size_t)p->key.n;
  if (s == dnnl_success && p->bytes[i] % (size_t)p->key.n == 0 && each % 64 == 0) p->image_bytes = each;
}

static dnnl_status_t plan_reorders(PlkConvPlan *p, dnnl_primitive_attr_t at) {
  static const dnnl_query_t md_of[3][3] = {{dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
                                           {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
                                           {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
  for (int i = 0; i < 3; i++) {
    p->blocked[i] = lib->primitive_desc_query_md(p->pd, md_of[p->key.kind][i], 0);
    if (lib->memory_desc_equal(p->blocked[i], REF(p->plain[i]))) continue;
    p->bytes[i] = lib->memory_desc_get_size(p->blocked[i]);
    bool out = written(p->key.kind) == i;
    MdRef from = out ? p->blocked[i] : REF(p->plain[i]);
    MdRef to = out ? REF(p->plain[i]) : p->blocked[i];
    dnnl_status_t s = reorder_make(&p->reorder[i], from, to, at);
    if (s != dnnl_success) return s;
    if (i == p->key.common) plan_image(p, at);
  }
  p->pad = lib->primitive_desc_query_md(p->pd, dnnl_query_scratchpad_md, 0);
  p->scratch = lib->memory_desc_get_size(p->pad);
  return dnnl_success;
}

void plk_conv_plan_clear(PlkConvPlan *p) {
  for (int i = 0; i < 3; i++) {
    if (p->reorder[i]) lib->primitive_destroy(p->reorder[i]);
    md_drop(&p->plain[i]);
  }
  if (p->by_image) lib->primitive_destroy(p->by_image);
  md_drop(&p->image[0]);
  md_drop(&p->image[1]);
  md_drop(&p->bias);
  if (p->conv) lib->primitive_destroy(p->conv);
  if (p->pd) lib->primitive_desc_destroy(p->pd);
}

PlStatus plk_conv_plan_build(PlkConvPlan *p) {
  int saved = plk_dnnl_alone(); /* a primitive fixes its thread count when it is made */
  dnnl_primitive_attr_t at = NULL, plain_at = NULL;
  dnnl_status_t s = lib->primitive_attr_create(&at);
  if (s == dnnl_success) s = lib->primitive_attr_create(&plain_at);
  if (s == dnnl_success) s = lib->primitive_attr_set_scratchpad_mode(at, dnnl_scratchpad_mode_user);
  if (s == dnnl_success) s = plan_describe(p, at);
  const char *impl = "";
  if (s == dnnl_success) lib->primitive_desc_query(p->pd, dnnl_query_impl_info_str, 0, (void *)&impl);
  if (s == dnnl_success && strncmp(impl, "ref", 3) == 0) s = dnnl_unimplemented;
  if (s == dnnl_success) s = lib->primitive_create(&p->conv, p->pd);
  if (s == dnnl_success) s = plan_reorders(p, plain_at);
  if (at) lib->primitive_attr_destroy(at);
  if (plain_at) lib->primitive_attr_destroy(plain_at);
  plk_dnnl_alone_end(saved);
  if (s == dnnl_out_of_memory) return plk_dnnl_check(s, "convolution");
  p->head.none = s != dnnl_success; /* our own kernel takes it */
  return PL_OK;
}

/* ---- execution ---- */

size_t plk_onednn_conv_bytes(const PlkConvPlan *plan, int which) { return plan->bytes[which]; }
size_t plk_onednn_conv_image_bytes(const PlkConvPlan *plan) { return plan->image_bytes; }
size_t plk_onednn_conv_scratch(const PlkConvPlan *plan) { return plan->scratch; }

bool plk_onednn_conv_same_weights(const PlkConvPlan *p, const PlkConvPlan *q) {
  return lib->memory_desc_equal(p->blocked[PLK_CONV_W], q->blocked[PLK_CONV_W]);
}

bool plk_onednn_conv_same_images(const PlkConvPlan *p, const PlkConvPlan *q) {
  return p->image_bytes && p->image_bytes == q->image_bytes && lib->memory_desc_equal(REF(p->image[1]), REF(q->image[1]));
}

PlStatus plk_onednn_conv_reorder_image(const PlkConvPlan *p, void *plain, void *blocked) {
  const PlkDnnlArg args[2] = {{DNNL_ARG_FROM, REF(p->image[0]), plain}, {DNNL_ARG_TO, REF(p->image[1]), blocked}};
  return plk_dnnl_execute(p->by_image, args, 2, "reorder");
}

PlStatus plk_onednn_conv_reorder(const PlkConvPlan *p, int which, void *plain, void *blocked) {
  bool out = written(p->key.kind) == which;
  PlkDnnlArg ours = {out ? DNNL_ARG_TO : DNNL_ARG_FROM, REF(p->plain[which]), plain};
  PlkDnnlArg theirs = {out ? DNNL_ARG_FROM : DNNL_ARG_TO, p->blocked[which], blocked};
  return plk_dnnl_execute(p->reorder[which], (PlkDnnlArg[]){ours, theirs}, 2, "reorder");
}

PlStatus plk_onednn_conv_run(const PlkConvPlan *p, void *x, void *w, void *y, void *bias, void *scratch) {
  static const int name[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                 {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                 {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  void *data[3] = {x, w, y};
  PlkDnnlArg args[5];
  int n = 0;
  for (int i = 0; i < 3; i++) args[n++] = (PlkDnnlArg){name[p->key.kind][i], p->blocked[i], data[i]};
  if (p->scratch) args[n++] = (PlkDnnlArg){DNNL_ARG_SCRATCHPAD, p->pad, scratch};
  if (p->key.has_bias && p->key.kind == PLK_CONV_FWD) args[n++] = (PlkDnnlArg){DNNL_ARG_BIAS, REF(p->bias), bias};
  return plk_dnnl_execute(p->conv, args, n, "convolution");
}

#endif
