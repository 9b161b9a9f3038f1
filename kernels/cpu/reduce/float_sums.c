/* SPDX-License-Identifier: MIT
 * sum and mean of f32 and f64, with the bits of plk_cpu_reduce and nothing else: programs of one model are linked with it
 * (engine/deploy/emit.c), and so without the loops of other reductions, which are more than all the rest of a small network. */
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/reduce/reduce_run.h"
#include "kernels/reduce.h"

PLK_ISA_DECLARE(const PlkReduceLoops, plk_float_sums_table);
const PlkReduceLoops *plk_float_sums_loops(void) { return &PLK_ISA_PICK(plk_float_sums_table); }

PlStatus plk_cpu_float_sums(const PlkCall *c) {
  static const PlkReduceParts sums = {.loops = plk_float_sums_loops};
  const PlkReduceJob job = {.x = c->in[0],
                            .mask = plk_reduce_mask(c, 0),
                            .out = c->out[0],
                            .comp = plk_comp(c->out[0]->dtype),
                            .post = c->code == PLK_R_MEAN ? PLK_POST_MEAN : PLK_POST_NONE,
                            .parts = &sums};
  return plk_reduce_run_parts(&job);
}
