/* SPDX-License-Identifier: MIT
 * The one symbol of engine.so beside luaopen_*: lets a host's signal handler stop running kernels.
 * loader/loader.c looks it up for the perilune command. */
#include "kernels/kernel.h"

/* → whether the interruption has to wait, as something is being written. */
bool perilune_interrupt(bool on) __attribute__((visibility("default")));

bool perilune_interrupt(bool on) {
  plk_interrupt(on);
  return plk_interrupt_held();
}
