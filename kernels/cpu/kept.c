/* SPDX-License-Identifier: MIT
 * See kernels/kernel.h. */
#include "kernels/kernel.h"

#include <stdlib.h>

void *plk_kept_form(PlkKept *k) { return __atomic_load_n(&k->form, __ATOMIC_ACQUIRE); }

void *plk_kept_alloc(size_t bytes) {
  const size_t whole = (bytes + 63) & ~(size_t)63;
  return whole < bytes ? NULL : aligned_alloc(64, whole ? whole : 64);
}

void *plk_kept_leave(PlkKept *k, void *form) {
  void *before = NULL;
  if (__atomic_compare_exchange_n(&k->form, &before, form, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return form;
  free(form);
  return before;
}

void plk_kept_drop(void *form) { free(form); }

void plk_kept_clear(PlkKept *k, int n) {
  for (int i = 0; k && i < n; i++) {
    free(k[i].form);
    k[i].form = NULL;
  }
}
