/* SPDX-License-Identifier: MIT
 * Every elementwise operation in f32 and bf16, with PERILUNE_LANES=long in every dtype that generated kernels take, compiled by NVRTC for
 * sm_90 without a GPU, in groups of sixteen with all kinds of arguments; every operation along rows, one reading another; and the cache
 * on disk. Exit status 77: NVRTC is not installed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/libs/fused_source.h"
#include "kernels/cuda/libs/nvrtc.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

static int failures, compiled, members;
#define CHECK(what, ...)            \
  do {                              \
    if (!(what)) {                  \
      failures++;                   \
      printf("FAILED %s: ", #what); \
      printf(__VA_ARGS__);          \
      puts("");                     \
    }                               \
  } while (0)

static const int arity[] = {
#define PLK_EW(name, nin, result) nin,
#include "kernels/elementwise.def"
#undef PLK_EW
};

enum { IN = 5, EACH = 16 }; /* inputs: one of each kind */
_Static_assert(IN + 1 + EACH <= (int)PLK_FUSED_ARGS && EACH <= (int)PLK_FUSED_MEMBERS, "a group has no room for that");

static bool all_dtypes(void) {
  const char *lanes = getenv("PERILUNE_LANES");
  return lanes && strcmp(lanes, "long") == 0;
}

static void begin(PlkFused *g, PlDtype d) {
  memset(g, 0, sizeof *g);
  for (int k = 0; k < IN; k++) g->arg[k] = (PlkFusedArg){.dtype = (uint8_t)d, .kind = (uint8_t)k};
  g->narg = IN;
  g->arg[g->narg++] = (PlkFusedArg){.dtype = PL_BOOL, .kind = PLK_FUSED_FULL}; /* the condition of WHERE */
}

static void add(PlkFused *g, int code, PlDtype d, PlDtype result) {
  PlkFusedMember *m = &g->member[g->nmember];
  *m = (PlkFusedMember){.code = (int16_t)code,
                        .dtype = (uint8_t)d,
                        .result = (uint8_t)result,
                        .nin = (uint8_t)arity[code],
                        .set = (uint8_t)(g->nmember % 2),
                        .out = (int16_t)g->narg};
  for (int k = 0; k < m->nin; k++) m->in[k] = (int16_t)(-1 - (k + g->nmember) % IN);
  if (code == PLK_EW_WHERE) m->in[0] = -1 - IN;
  g->arg[g->narg++] = (PlkFusedArg){.dtype = (uint8_t)result, .out = true};
  g->nmember++;
}

static void compile(PlkFused *g) {
  char *text = NULL;
  void *image = NULL;
  size_t size = 0;
  if (g->nmember == 0) return;
  PlStatus s = plc_fused_source(g, &text);
  CHECK(s == PL_OK, "%s", pl_message());
  if (s == PL_OK) s = plc_nvrtc_compile(text, 90, &image, &size, NULL);
  CHECK(s == PL_OK && size > 500, "%s\n%s", pl_message(), text);
  compiled++;
  members += g->nmember;
  free(image);
  free(text);
}

static void every_operation(void) {
  static const PlDtype dtypes[] = {PL_F32, PL_F64, PL_F16, PL_BF16, PL_BOOL};
  for (int d = 0; d < 5; d++) {
    if (!all_dtypes() && dtypes[d] != PL_F32 && dtypes[d] != PL_BF16) continue;
    PlkFused g;
    begin(&g, dtypes[d]);
    for (int code = 0; code < PLK_NEW; code++)
      for (int r = 0; r < 5; r++) {
        if (!plc_fused_takes(code, dtypes[d], dtypes[r])) continue;
        add(&g, code, dtypes[d], dtypes[r]);
        if (g.nmember < EACH) continue;
        compile(&g);
        begin(&g, dtypes[d]);
      }
    compile(&g);
  }
}

static int add_row(PlkFused *g, int code, PlDtype d, int nin, const int16_t *in) {
  PlkFusedMember *m = &g->member[g->nmember];
  *m = (PlkFusedMember){.code = (int16_t)code,
                        .dtype = (uint8_t)d,
                        .result = (uint8_t)d,
                        .nin = (uint8_t)nin,
                        .out = (int16_t)g->narg,
                        .set = code == PLK_FUSED_VAR || code == PLK_FUSED_STD || code >= PLK_FUSED_LAYER_NORM,
                        .col = code < PLK_FUSED_SOFTMAX && code >= PLK_FUSED_SUM,
                        .more = {-1, -1}};
  for (int k = 0; k < nin; k++) m->in[k] = in[k];
  if (code == PLK_FUSED_LAYER_NORM_BWD || code == PLK_FUSED_RMS_NORM_BWD) {
    const bool layer = code == PLK_FUSED_LAYER_NORM_BWD;
    for (int k = 2; k < 4; k++) m->in[k] = -1 - PLK_FUSED_COL; /* mean, 1/deviation; then the weight */
    m->in[layer ? 4 : 3] = -1 - PLK_FUSED_ROW;
    m->nin = layer ? 5 : 4;
  }
  g->arg[g->narg++] = (PlkFusedArg){.dtype = (uint8_t)d, .kind = m->col ? PLK_FUSED_COL : PLK_FUSED_FULL, .out = true};
  return g->nmember++;
}

/* All of them in one group, for rows of any length and of one that threads keep; weights of norms in the type of arithmetic, as under
 * autocast. */
static void every_row(void) {
  static const PlDtype dtypes[] = {PL_F32, PL_F64, PL_F16, PL_BF16};
  static const int64_t lengths[] = {0, 1000};
  for (int d = 0; d < 8; d++) {
    if (!all_dtypes() && d != 0 && d != 7) continue; /* f32 in rows of any length, bf16 in those that threads keep */
    const PlDtype t = dtypes[d / 2], wide = t == PL_F64 ? PL_F64 : PL_F32;
    PlkFused g;
    memset(&g, 0, sizeof g);
    g.rows = true;
    g.cols = lengths[d % 2];
    for (int k = 0; k < IN; k++) g.arg[k] = (PlkFusedArg){.dtype = (uint8_t)t, .kind = (uint8_t)k};
    g.arg[PLK_FUSED_ROW].dtype = (uint8_t)wide;
    g.narg = IN;
    int16_t last = -1 - PLK_FUSED_FULL;
    for (int code = PLK_FUSED_SUM; code < PLK_FUSED_ROWS_END; code++) {
      CHECK(plc_fused_takes(code, t, t) && !plc_fused_takes(code, PL_I32, PL_I32), "%d", code);
      const bool norm = code >= PLK_FUSED_LAYER_NORM, two = code >= PLK_FUSED_SOFTMAX_BWD && code < PLK_FUSED_LAYER_NORM;
      const int16_t weight = -1 - PLK_FUSED_ROW, in[3] = {last, norm ? weight : (int16_t)(-1 - PLK_FUSED_FULL), PLK_FUSED_NONE};
      const int m = add_row(&g, code, t, code == PLK_FUSED_LAYER_NORM ? 3 : norm || two ? 2 : 1, in);
      if (norm) {
        g.member[m].more[0] = (int16_t)g.narg;
        g.arg[g.narg++] = (PlkFusedArg){.dtype = (uint8_t)wide, .kind = PLK_FUSED_COL, .out = true};
      }
      if (!g.member[m].col) last = (int16_t)m;
    }
    const int16_t of_columns[3] = {0, -1 - PLK_FUSED_COL, -1}, of_all[3] = {1, last, -1};
    const int col = add_row(&g, PLK_EW_ADD, t, 2, of_columns);
    g.member[col].col = true; /* one value a row of two such */
    g.arg[g.member[col].out].kind = PLK_FUSED_COL;
    g.member[col].set = 0;
    (void)add_row(&g, PLK_EW_MUL, t, 2, of_all);
    compile(&g);
  }
}

/* A chain through several dtypes whose inner results are not stored. */
static void chain(PlkFused *g) {
  memset(g, 0, sizeof *g);
  g->narg = 3;
  g->arg[0] = (PlkFusedArg){.dtype = PL_BF16, .kind = PLK_FUSED_FULL};
  g->arg[1] = (PlkFusedArg){.dtype = PL_F32, .kind = PLK_FUSED_ROW};
  g->arg[2] = (PlkFusedArg){.dtype = PL_BF16, .kind = PLK_FUSED_FULL, .out = true};
  g->nmember = 3;
  g->member[0] = (PlkFusedMember){.code = PLK_EW_CAST, .dtype = PL_BF16, .result = PL_F32, .nin = 1, .in = {-1}, .out = -1};
  g->member[1] = (PlkFusedMember){.code = PLK_EW_MUL, .dtype = PL_F32, .result = PL_F32, .nin = 2, .in = {0, -2}, .out = -1};
  g->member[2] = (PlkFusedMember){.code = PLK_EW_CAST, .dtype = PL_F32, .result = PL_BF16, .nin = 1, .in = {1}, .out = 2};
}

static void cache(void) {
  char folder[] = "/tmp/perilune-cache-XXXXXX", command[128];
  PlkFused g;
  char *text = NULL;
  void *first = NULL, *again = NULL;
  size_t n = 0, m = 0;
  bool fresh = false;
  if (!mkdtemp(folder)) {
    CHECK(false, "no folder for the cache");
    return;
  }
  setenv("PERILUNE_CACHE_DIR", folder, 1);
  chain(&g);
  CHECK(plc_fused_source(&g, &text) == PL_OK, "%s", pl_message());
  CHECK(plc_nvrtc_compile(text, 90, &first, &n, &fresh) == PL_OK && fresh, "%s", pl_message());
  CHECK(plc_nvrtc_compile(text, 90, &again, &m, &fresh) == PL_OK && !fresh, "not found again");
  CHECK(n == m && first && again && memcmp(first, again, n) == 0, "%zu bytes, then %zu", n, m);
  free(again);
  again = NULL;
  snprintf(command, sizeof command, "for f in %s/*; do printf x >> $f; printf y | dd of=$f bs=1 seek=200 conv=notrunc; done 2>/dev/null",
           folder);
  CHECK(system(command) == 0, "no damage done");
  CHECK(plc_nvrtc_compile(text, 90, &again, &m, &fresh) == PL_OK && fresh && n == m, "a damaged file was taken");
  free(first);
  free(again);
  free(text);
  text = strdup("this is no kernel");
  CHECK(text && plc_nvrtc_compile(text, 90, &first, &n, NULL) == PL_ERR_STATE, "nonsense was taken");
  CHECK(strstr(pl_message(), "does not compile") != NULL, "%s", pl_message());
  free(text);
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK(system(command) == 0, "%s stays", folder);
}

int main(void) {
  if (!plc_nvrtc_version()) {
    puts("skipped: NVRTC was not found");
    return 77;
  }
  setenv("PERILUNE_CACHE_DIR", "", 1);
  every_operation();
  every_row();
  cache();
  CHECK(!plc_fused_takes(PLK_EW_GCD, PL_F32, PL_F32) && !plc_fused_takes(PLK_EW_ADD, PL_I32, PL_I32), "what no kernel has");
  printf("NVRTC %s: %d kernels of %d operations, %d failures\n", plc_nvrtc_version(), compiled, members, failures);
  return failures ? 1 : 0;
}
