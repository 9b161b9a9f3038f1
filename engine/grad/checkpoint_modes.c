/* SPDX-License-Identifier: MIT
 * Modes that ops depend on beside their inputs: a checkpoint's function runs again under those of its first run. */
#include <stdlib.h>

#include "engine/device/device.h"
#include "engine/grad/checkpoint_internal.h"
#include "kernels/gemm.h"

/* Those settings of the plug-in that change results. It is open where its memory is in use. */
static const int settings[] = {PL_DEVICE_DETERMINISTIC, PL_DEVICE_CUDNN};
enum { NSETTINGS = sizeof settings / sizeof *settings };

static const PlDeviceTable *open_table(void) {
  return __atomic_load_n(&pl_device_handed_out, __ATOMIC_RELAXED) > 0 ? pl_device_open() : NULL;
}

void pl_ck_modes_read(PlCkModes *m) {
  *m = (PlCkModes){.thread = pl_modes_now(),
                   .seed = pl_state.seed,
                   .stream = pl_state.stream,
                   .offset = pl_state.offset,
                   .seeded = pl_state.seeded,
                   .ambient_muted = pl_state.ambient_muted,
                   .floating = pl_default_float(),
                   .precision = (int)plk_matmul_precision(),
                   .settings = -1};
  const PlDeviceTable *t = open_table();
  if (!t) return;
  m->settings = 0;
  for (int i = 0; i < NSETTINGS; i++) m->settings |= (t->get((PlDeviceSetting)settings[i]) != 0) << i;
}

void pl_ck_modes_set(const PlCkModes *m) {
  pl_modes_set(&m->thread);
  pl_state.seed = m->seed;
  pl_state.stream = m->stream;
  pl_state.offset = m->offset;
  pl_state.seeded = m->seeded;
  pl_state.ambient_muted = m->ambient_muted;
  if (pl_default_float() != m->floating) pl_set_default_float(m->floating);
  if ((int)plk_matmul_precision() != m->precision) plk_set_matmul_precision((PlkPrecision)m->precision);
  const PlDeviceTable *t = m->settings >= 0 ? open_table() : NULL;
  for (int i = 0; t && i < NSETTINGS; i++) {
    const bool on = (m->settings >> i) & 1;
    if ((t->get((PlDeviceSetting)settings[i]) != 0) != on) t->set((PlDeviceSetting)settings[i], on);
  }
}

/* ---- keys -------------------------------------------------------------------------------------------------- */

static PlCkKey describe(const PlKey *k) {
  return (PlCkKey){.born = k->born, .active = k->active, .recording = k->recording, .muted = k->muted};
}

PlStatus pl_ck_keys_read(PlCheckpoint *c) {
  size_t n = 1;
  for (const PlKey *k = pl_state.keys; k; k = k->next) n++;
  c->keys = malloc(n * sizeof *c->keys);
  if (!c->keys) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  c->keys[0] = describe(pl_key_ambient());
  c->nkeys = 1;
  for (const PlKey *k = pl_state.keys; k; k = k->next) c->keys[c->nkeys++] = describe(k);
  return PL_OK;
}

struct PlCkKeysWas {
  size_t n;
  struct {
    PlKey *key;
    PlCkKey was;
  } at[];
};

static const PlCkKey *then(const PlCheckpoint *c, uint64_t born) {
  for (size_t i = 0; i < c->nkeys; i++)
    if (c->keys[i].born == born) return &c->keys[i];
  return NULL;
}

/* Those made since forward see nothing of it. One that was finalized stays so, but for its last backward. */
static void set_key(const PlCheckpoint *c, PlKey *k) {
  const PlCkKey *was = then(c, k->born);
  if (!was) {
    k->muted++;
    return;
  }
  if (k->walking) k->active = was->active;
  k->recording = was->recording;
  k->muted = was->muted;
}

PlStatus pl_ck_keys_set(const PlCheckpoint *c, PlCkKeysWas **out) {
  size_t n = 1;
  for (const PlKey *k = pl_state.keys; k; k = k->next) n++;
  PlCkKeysWas *w = malloc(sizeof *w + n * sizeof *w->at);
  if (!w) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  w->n = 0;
  PlKey *k = pl_key_ambient();
  for (PlKey *next = pl_state.keys; k; k = next, next = k ? k->next : NULL) {
    w->at[w->n].key = k;
    w->at[w->n++].was = describe(k);
    if (!k->is_ambient) pl_key_retain(k);
    set_key(c, k);
  }
  *out = w;
  return PL_OK;
}

void pl_ck_keys_back(PlCkKeysWas *w) {
  for (size_t i = 0; i < w->n; i++) {
    PlKey *k = w->at[i].key;
    if (k->walking) k->active = w->at[i].was.active;
    k->recording = w->at[i].was.recording;
    k->muted = w->at[i].was.muted;
    if (!k->is_ambient) pl_key_release(k);
  }
  free(w);
}

/* Could this key of forward's record in the run that goes on? */
bool pl_ck_key_runs(const PlCheckpoint *c, uint64_t born) {
  const PlCkKey *was = then(c, born);
  if (born == 0) return was && was->recording;
  for (const PlKey *k = pl_state.keys; k; k = k->next)
    if (k->born == born) return k->active;
  return false;
}
