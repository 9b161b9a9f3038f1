/* SPDX-License-Identifier: MIT
 * All decisions of a small graph: every set of nodes that may be computed again is planned, but for sets in which a node is
 * read by nobody, since they are the same as without it. At most 2^MOST_NODES plans. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/recompute/policy_internal.h"

enum { MOST_NODES = 10 };

/* Nodes that some decision repeats: what backward reads, and what those read. Returns how many; -1: more than fit. */
static int repeatable(const PlRecompute *m, uint8_t *need, int32_t *list) {
  int n = 0;
  memcpy(need, m->back, (size_t)m->nstores);
  for (int32_t i = m->first - 1; i >= 0; i--) {
    bool read = false;
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) read |= need[m->out[e]] && !m->held[m->out[e]];
    if (!read || !m->may[i]) continue;
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) need[m->in[e]] = 1;
    if (m->force[i]) continue;
    if (n == MOST_NODES) return -1;
    list[n++] = i; /* readers before what they read */
  }
  return n;
}

/* Sets m->again; false: some node of the set is read by nobody. */
static bool decide(PlRecompute *m, int n, const int32_t *list, uint32_t set, uint8_t *need) {
  memcpy(m->again, m->force, (size_t)m->first);
  for (int k = 0; k < n; k++)
    if (set >> k & 1) m->again[list[k]] = 1;
  memcpy(need, m->back, (size_t)m->nstores);
  for (int32_t i = m->first - 1; i >= 0; i--) {
    bool read = false;
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) read |= need[m->out[e]] != 0;
    if (!m->again[i]) continue;
    if (!read && !m->force[i]) return false;
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1] && read; e++) need[m->in[e]] = 1;
  }
  return true;
}

PlStatus pl_choose_all(Search *s, PlRecompute *m) {
  int32_t list[MOST_NODES];
  uint8_t *need = malloc((size_t)m->nstores + 1);
  if (!need) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  int n = repeatable(m, need, list);
  PlStatus st = PL_OK;
  for (uint32_t set = 1; n > 0 && set < 1u << n && st == PL_OK; set++)
    if (decide(m, n, list, set, need)) st = pl_choose_consider(s, m, "all");
  free(need);
  return st;
}
