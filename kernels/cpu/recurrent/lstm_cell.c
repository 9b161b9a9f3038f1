/* SPDX-License-Identifier: MIT
 * Drives the rows of LSTM gates (see kernels/recurrent.h): blocks of rows, each row alone. */
#include "kernels/cpu/recurrent/lstm.h"

#include "kernels/cpu/isa/level.h"
#include "kernels/recurrent.h"

PLK_ISA_DECLARE(const PlkLstmLoops, plk_lstm);

enum { MOST = 10 };

typedef struct Job {
  PlkLstmRow row;
  int64_t H;
  int n;
  char *at[MOST];
  int64_t step[MOST]; /* bytes a row */
} Job;

static PlStatus rows(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  for (int64_t r = begin; r < end; r++) {
    void *p[MOST];
    for (int k = 0; k < j->n; k++) p[k] = j->at[k] + r * j->step[k];
    j->row(p, j->H);
  }
  return plk_poll();
}

/* `cell`: the input [N,H]. Outputs that nobody wants are written to a spare place. */
static PlStatus run(const PlkCall *call, const PlArray *cell, const PlkLstmRow *row) {
  int64_t N = cell->shape[0], H = cell->shape[1];
  size_t size = pl_dtype_size((PlDtype)cell->dtype);
  Job j = {.row = row[cell->dtype == PL_F64], .H = H, .n = call->nin + call->nout};
  void *spare = NULL;
  for (int k = 0; k < j.n; k++) {
    const PlArray *a = k < call->nin ? call->in[k] : call->out[k - call->nin];
    if (a) {
      j.at[k] = a->data;
      j.step[k] = a->shape[1] * (int64_t)size;
    } else if (!spare) { /* one place a row, for threads keep apart */
      PL_TRY(plk_scratch((size_t)(N * H) * 4 * size, &spare));
    }
  }
  for (int k = 0; k < j.n; k++)
    if (!j.at[k] && spare) j.at[k] = spare, j.step[k] = 4 * H * (int64_t)size;
  int64_t block = H > 0 && H < PLK_GRAIN ? PLK_GRAIN / 8 / H + 1 : 1;
  PlStatus s = N * H > 0 ? plk_parallel(N, block, rows, &j) : PL_OK;
  plk_scratch_free(spare);
  return s;
}

PlStatus plk_cpu_lstm_gates(const PlkCall *call) { return run(call, call->in[1], PLK_ISA_PICK(plk_lstm).gates); }
PlStatus plk_cpu_lstm_gates_bwd(const PlkCall *call) { return run(call, call->in[3], PLK_ISA_PICK(plk_lstm).bwd); }
PlStatus plk_cpu_lstm_gates_bwd2(const PlkCall *call) { return run(call, call->in[3], PLK_ISA_PICK(plk_lstm).bwd2); }
