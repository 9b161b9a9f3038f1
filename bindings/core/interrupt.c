/* SPDX-License-Identifier: MIT
 * The one symbol of engine.so beside luaopen_*: lets a host's signal handler stop running kernels.
 * loader/loader.c looks it up for the perilune command. */
#include <stdatomic.h>

#include "bindings/core/lib.h"
#include "kernels/kernel.h"

/* → whether the interruption has to wait, as something is being written. */
bool perilune_interrupt(bool on) __attribute__((visibility("default")));

static atomic_bool asked, spare; /* lock-free: a signal handler asks first, then the hook that raises */

void l_interrupt_spare(void) { atomic_store_explicit(&spare, true, memory_order_relaxed); }

bool perilune_interrupt(bool on) {
  plk_interrupt(on);
  const bool again = atomic_exchange_explicit(&asked, on, memory_order_relaxed) && on;
  return plk_interrupt_held() || (again && atomic_exchange_explicit(&spare, false, memory_order_relaxed));
}
