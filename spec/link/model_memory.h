/* SPDX-License-Identifier: MIT
 * What the programs of spec/link that run models share: memory for inputs and outputs, inputs by a formula, and a hash of bits. */
#ifndef PL_SPEC_LINK_MODEL_MEMORY_H
#define PL_SPEC_LINK_MODEL_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/deploy/perilune_model.h"

enum { PORTS = 64 };
#define HASH_BEGIN UINT64_C(14695981039346656037)

/* FNV-1a */
static inline uint64_t hash(const void *p, size_t n, uint64_t h) {
  for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)p)[i]) * UINT64_C(1099511628211);
  return h;
}

typedef struct Memory {
  void *in[PORTS], *out[PORTS];
  size_t bytes[PORTS];
  int32_t nin, nout;
} Memory;

static inline void release(Memory *m) {
  for (int i = 0; i < m->nin; i++) free(m->in[i]);
  for (int i = 0; i < m->nout; i++) free(m->out[i]);
}

/* Sixteenths, or small integers. */
static inline void fill(const perilune_tensor_info *t, void *to, size_t variant) {
  const size_t n = t->bytes / perilune_dtype_size(t->dtype);
  for (size_t k = 0; k < n; k++) {
    const int v = (int)((7 * k + 3 * variant) % 33) - 16;
    if (t->dtype == PERILUNE_F32) ((float *)to)[k] = (float)v / 16;
    else if (t->dtype == PERILUNE_F64) ((double *)to)[k] = v / 16.0;
    else if (t->dtype == PERILUNE_I64) ((int64_t *)to)[k] = (v + 16) % 2;
    else memset((char *)to + k * perilune_dtype_size(t->dtype), 0, perilune_dtype_size(t->dtype));
  }
}

/* Memory for nin inputs, filled, and nout outputs, as the session's sizes are; s NULL: as the model says. */
static inline bool prepare_ports(perilune_model *model, perilune_session *s, int32_t nin, int32_t nout, size_t variant, Memory *m) {
  perilune_tensor_info t;
  memset(m, 0, sizeof *m);
  if (nin > PORTS || nout > PORTS) return false;
  m->nin = nin;
  m->nout = nout;
  for (int32_t i = 0; i < nin; i++) {
    if (s ? perilune_session_input(s, i, &t) : perilune_model_input(model, i, &t)) return false;
    if (!(m->in[i] = malloc(t.bytes + 1))) return false;
    fill(&t, m->in[i], variant);
  }
  for (int32_t i = 0; i < nout; i++) {
    if (s ? perilune_session_output(s, i, &t) : perilune_model_output(model, i, &t)) return false;
    if (!(m->out[i] = malloc(t.bytes + 1))) return false;
    m->bytes[i] = t.bytes;
  }
  return true;
}

/* The bits of all outputs. */
static inline uint64_t outputs(const Memory *m) {
  uint64_t h = HASH_BEGIN;
  for (int32_t i = 0; i < m->nout; i++) h = hash(m->out[i], m->bytes[i], h);
  return h;
}

#endif
