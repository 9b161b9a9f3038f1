/* SPDX-License-Identifier: MIT
 * The source text of a fused group: one kernel, one line an operation, in the words of kernels/cuda/elementwise/fused.h. It depends on
 * the group alone, not on sizes, addresses or parameters, so equal groups of different shapes share a kernel. */
#include "kernels/cuda/libs/fused_source.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

static const char *const code_name[] = {
#define PLK_EW(name, nin, result) #name,
#include "kernels/elementwise.def"
#undef PLK_EW
};

/* ---- what can be a member ----------------------------------------------------------------------------------- */

static bool tests(int code) { return code >= PLK_EW_EQ && code <= PLK_EW_SIGNBIT; }

/* C's operator for an operation on bools, NULL: there is none. */
static const char *bool_operator(int code) {
  switch (code) {
  case PLK_EW_LOGICAL_AND:
  case PLK_EW_BITWISE_AND:
  case PLK_EW_MUL: return "&";
  case PLK_EW_LOGICAL_OR:
  case PLK_EW_BITWISE_OR:
  case PLK_EW_ADD: return "|";
  case PLK_EW_LOGICAL_XOR:
  case PLK_EW_BITWISE_XOR:
  case PLK_EW_NE: return "^";
  case PLK_EW_EQ: return "==";
  case PLK_EW_LOGICAL_NOT:
  case PLK_EW_BITWISE_NOT: return "!";
  default: return NULL;
  }
}

static bool takes_along(int code, PlDtype dtype, PlDtype result) {
  return code >= PLK_FUSED_SUM && code < PLK_FUSED_ROWS_END && pl_is_float(dtype) && result == dtype;
}

bool plc_fused_takes(int code, PlDtype dtype, PlDtype result) {
  if (takes_along(code, dtype, result)) return true;
  if (code < 0 || code >= PLK_NEW) return false;
  const bool known = pl_is_float(dtype) || dtype == PL_BOOL;
  if (code == PLK_EW_CAST) return known && (pl_is_float(result) || result == PL_BOOL);
  if (!known) return false;
  if (code == PLK_EW_COPY || code == PLK_EW_WHERE) return result == dtype;
  if (dtype == PL_BOOL) return result == PL_BOOL && bool_operator(code);
  if (code == PLK_EW_NEXTAFTER && (dtype == PL_F16 || dtype == PL_BF16)) return false; /* by bits: a kernel of its own */
  if ((code >= PLK_EW_BITWISE_AND && code <= PLK_EW_BITWISE_RIGHT_SHIFT) || code == PLK_EW_GCD || code == PLK_EW_LCM) return false;
  return result == (tests(code) ? PL_BOOL : dtype);
}

/* What one block a row does as well as several: where kernels of their own have one, too (launch in reduce.cu), so that sums
 * add up in the same order. */
bool plc_fused_takes_rows(int64_t rows, int64_t cols) { return cols <= 4096 || rows >= 1024; }

/* ---- text ----------------------------------------------------------------------------------------------------- */

void plc_say(PlcText *t, const char *fmt, ...) {
  if (t->failed) return;
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(t->s + t->n, t->room - t->n, fmt, args);
  va_end(args);
  if (n < 0) {
    t->failed = true;
    return;
  }
  if (t->n + (size_t)n + 1 > t->room) {
    size_t room = 2 * (t->n + (size_t)n + 1);
    char *s = realloc(t->s, room);
    if (!s) {
      t->failed = true;
      return;
    }
    t->s = s;
    t->room = room;
    va_start(args, fmt);
    (void)vsnprintf(t->s + t->n, room - t->n, fmt, args);
    va_end(args);
  }
  t->n += (size_t)n;
}

const char *plc_fused_element(int dtype) {
  switch (dtype) {
  case PL_F64: return "double";
  case PL_F16: return "plc_f16";
  case PL_BF16: return "plc_bf16";
  case PL_BOOL: return "plc_bool";
  default: return "float";
  }
}
const char *plc_fused_math(int dtype) { return dtype == PL_F64 ? "double" : dtype == PL_BOOL ? "uint8_t" : "float"; }

int plc_fused_pack(const PlkFused *g) {
  size_t widest = 2;
  for (int k = 0; k < g->narg; k++) {
    const size_t size = g->arg[k].kind == PLK_FUSED_NUMBER ? 0 : pl_dtype_size((PlDtype)g->arg[k].dtype); /* numbers have no memory */
    if (size > widest) widest = size;
  }
  return (int)(16 / widest);
}

/* As plc_row_threads of kernels/cuda/device.h. */
int plc_fused_width(int64_t cols) { return cols <= 128 ? 32 : cols <= 1024 ? 128 : 256; }

static void load(PlcText *t, const PlkFused *g, int k) {
  static const char *const how[] = {"fused_full", "fused_row", "fused_col", "fused_one", "fused_number"};
  const PlkFusedArg *a = &g->arg[k];
  const bool place = a->kind <= PLK_FUSED_COL;
  plc_say(t, "    %s x%d[N]; %s<%s, N>(a, %d, %sx%d);\n", plc_fused_math(a->dtype), k, how[a->kind], plc_fused_element(a->dtype), k,
          place ? "e, valid, " : "", k);
}

static void operand(char *name, size_t size, int in) { snprintf(name, size, in < 0 ? "x%d" : "v%d", in < 0 ? -1 - in : in); }

void plc_fused_compute(PlcText *t, const PlkFusedMember *m, int at, int params) {
  char x[3][16];
  for (int k = 0; k < 3; k++) operand(x[k], sizeof x[k], m->in[k < m->nin ? k : 0]);
  plc_say(t, "    %s v%d[N]; ", plc_fused_math(m->result), at);
  if (m->code == PLK_EW_COPY) plc_say(t, "for (int j = 0; j < N; j++) v%d[j] = %s[j];\n", at, x[0]);
  else if (m->code == PLK_EW_CAST)
    plc_say(t, "for (int j = 0; j < N; j++) v%d[j] = (%s)(%s[j]%s);\n", at, plc_fused_math(m->result), x[0],
            m->result == PL_BOOL ? " != 0" : "");
  else if (m->code == PLK_EW_WHERE) plc_say(t, "for (int j = 0; j < N; j++) v%d[j] = %s[j] ? %s[j] : %s[j];\n", at, x[0], x[1], x[2]);
  else if (m->dtype == PL_BOOL && m->nin == 1) plc_say(t, "for (int j = 0; j < N; j++) v%d[j] = !%s[j];\n", at, x[0]);
  else if (m->dtype == PL_BOOL)
    plc_say(t, "for (int j = 0; j < N; j++) v%d[j] = (uint8_t)((%s[j] != 0) %s (%s[j] != 0));\n", at, x[0], bool_operator(m->code), x[1]);
  else if (tests(m->code)) plc_say(t, "ew_test<N>(PLK_EW_%s, %s, %s, v%d);\n", code_name[m->code], x[0], x[1], at);
  else
    plc_say(t, "ew_same<N, ew_kind(PLK_EW_%s), %d>(PLK_EW_%s, %s, %s, %s, v%d, %s[%d]);\n", code_name[m->code],
            m->dtype == PL_F16 || m->dtype == PL_BF16, code_name[m->code], x[0], x[1], x[2], at, m->set ? "a.p" : "none",
            m->set ? params : 0);
  if (m->result == PL_F16 || m->result == PL_BF16) plc_say(t, "    fused_round<%s, N>(v%d);\n", plc_fused_element(m->result), at);
}

static void elementwise(PlcText *t, const PlkFused *g) {
  int params = 0;
  plc_say(t, "  FUSED_UNTIL(a.numel) {\n    const int64_t e = i * N;\n"
             "    const int valid = a.numel - e < N ? (int)(a.numel - e) : N;\n");
  for (int k = 0; k < g->narg; k++)
    if (!g->arg[k].out) load(t, g, k);
  for (int i = 0; i < g->nmember; i++) {
    const PlkFusedMember *m = &g->member[i];
    plc_fused_compute(t, m, i, params);
    if (m->out >= 0) plc_say(t, "    fused_store<%s, N>(a, %d, e, valid, v%d);\n", plc_fused_element(m->result), m->out, i);
    params += m->set != 0;
  }
  plc_say(t, "  }\n");
}

PlStatus plc_fused_source(const PlkFused *g, char **out) {
  PlcText t = {.s = malloc(4096), .room = 4096};
  if (!t.s) PL_FAIL(PL_ERR_OOM, "out of memory to write a kernel");
  plc_say(&t, "#include \"kernels/cuda/elementwise/fused.h\"\nenum { N = %d };\n", g->rows ? 1 : plc_fused_pack(g));
  if (g->rows) {
    const int64_t cols = plc_fused_kept(g) ? g->cols : 0;
    const int width = cols ? plc_fused_width(cols) : 0;
    plc_say(&t, "enum { COLS = %d, WIDTH = %d, KEEP = %d };\n", (int)cols, width, cols ? ((int)cols + width - 1) / width : 0);
  }
  plc_say(&t, "FUSED_KERNEL plc_fused(const FusedArgs a) {\n  const EwParams none[1] = {};\n  (void)none;\n");
  if (g->rows) plc_fused_rows(&t, g);
  else elementwise(&t, g);
  plc_say(&t, "}\n");
  if (t.failed) {
    free(t.s);
    PL_FAIL(PL_ERR_OOM, "out of memory to write a kernel");
  }
  *out = t.s;
  return PL_OK;
}
