/* SPDX-License-Identifier: MIT
 * The threads that share a parallel loop with the thread that runs it. */
#ifndef PL_KERNELS_CPU_TEAM_H
#define PL_KERNELS_CPU_TEAM_H

/* Calls work(ctx, 0) here and, as far as they come in time, work(ctx, i) on helpers 1 … n-1, and returns once all
 * that began have ended: work must do everything even if no helper comes. A second thread that asks while the team
 * is busy works alone; so does work itself. */
void plk_team_run(int n, void (*work)(void *ctx, int who), void *ctx);

#endif
