/* SPDX-License-Identifier: MIT
 * The table of convolution plans. */
#include "kernels/cpu/onednn/onednn_conv_plan.h"

#ifdef PLK_HAVE_ONEDNN

#include <stddef.h>

enum { NPLANS = 256 }; /* a step of ResNet-50 uses about 100 */
static PlkPlanSlot slots[NPLANS];

static PlStatus build(PlkPlanHead *p) { return plk_conv_plan_build((PlkConvPlan *)(void *)p); }
static void clear(PlkPlanHead *p) { plk_conv_plan_clear((PlkConvPlan *)(void *)p); }

_Static_assert(offsetof(struct PlkConvPlan, key) == sizeof(PlkPlanHead), "the key follows the head");
_Static_assert(sizeof(PlkConvKey) % sizeof(int64_t) == 0, "a key is a list of integers");
static PlkPlanTable table = {.what = "a convolution plan",
                             .plan_bytes = sizeof(PlkConvPlan),
                             .key_bytes = sizeof(PlkConvKey),
                             .build = build,
                             .clear = clear,
                             .sets = 1,
                             .ways = NPLANS,
                             .slots = slots,
                             .lock = PTHREAD_MUTEX_INITIALIZER};

static void fork_prepare(void) { pthread_mutex_lock(&table.lock); }
static void fork_done(void) { pthread_mutex_unlock(&table.lock); }

bool plk_dnnl_watch_forks(void) { return pthread_atfork(fork_prepare, fork_done, fork_done) == 0; }

PlStatus plk_onednn_conv_get(const PlkConvKey *key, PlkConvPlan **out) {
  PlkPlanHead *p;
  PlStatus s = plk_plan_get(&table, key, &p);
  *out = (PlkConvPlan *)(void *)p;
  return s;
}

void plk_onednn_conv_put(PlkConvPlan *plan) { plk_plan_put(&table, (PlkPlanHead *)(void *)plan); }

#endif
