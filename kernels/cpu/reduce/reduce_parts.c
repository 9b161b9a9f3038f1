/* SPDX-License-Identifier: MIT
 * Reductions with all their loops. */
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/reduce/reduce_run.h"

PLK_ISA_DECLARE(const PlkReduceLoops, plk_reduce_table);
const PlkReduceLoops *plk_reduce_loops(void) { return &PLK_ISA_PICK(plk_reduce_table); }
PLK_ISA_DECLARE(const PlkIntLoops, plk_int_table);
static const PlkIntLoops *integers(void) { return &PLK_ISA_PICK(plk_int_table); }
PLK_ISA_DECLARE(const PlkMapLoops, plk_map_table);
const PlkMapLoops *plk_map_loops(void) { return &PLK_ISA_PICK(plk_map_table); }

PlStatus plk_reduce_run(const PlkReduceJob *job) {
  static const PlkReduceParts all = {plk_reduce_loops, plk_map_loops, integers, plk_softmax_loops};
  PlkReduceJob with = *job;
  with.parts = &all;
  return plk_reduce_run_parts(&with);
}
