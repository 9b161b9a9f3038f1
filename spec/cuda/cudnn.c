/* SPDX-License-Identifier: MIT
 * The graphs that perilune gives to cuDNN, without a GPU: every descriptor is accepted, an engine is found and compiled for
 * an H200 that is only described (and a stand-in driver, driver.c), wrong shapes are refused, plans are kept. Recurrent nets
 * and CTC are described in every form.
 * Exit status 77: cuDNN is not installed, or too old to plan for a described device (9.11 can). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/libs/cudnn_ops.h"
#include "kernels/cuda/libs/fastest.h"
#include "kernels/cuda/libs/recurrent_net.h"

static int failures;
#define CHECK(what, ...)                                       \
  do {                                                         \
    if (!(what)) {                                             \
      failures++;                                              \
      printf("FAILED %s:%d: %s: ", __FILE__, __LINE__, #what); \
      printf(__VA_ARGS__);                                     \
      puts("");                                                \
    }                                                          \
  } while (0)

static const char h200[] = "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
                           "\"multiProcessorCount\":132,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
                           "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
                           "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
                           "\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,"
                           "\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,\"cudaDeviceId\":0,"
                           "\"totalGlobalMem\":150754820096}";

static bool describe_device(const PlcDnnApi *api, PlcDnnTarget *t) {
  return api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &t->device) == CUDNN_STATUS_SUCCESS &&
         api->cudnnBackendSetAttribute(t->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(h200),
                                       h200) == CUDNN_STATUS_SUCCESS &&
         api->cudnnBackendFinalize(t->device) == CUDNN_STATUS_SUCCESS;
}

/* ---- convolution ---------------------------------------------------------------------------------------------- */

typedef struct ConvCase {
  int spatial;
  int64_t n, c, in[3], o, k[3], stride, padding, dilation, groups;
} ConvCase;

static void dense(PlArray *a, int64_t *dims, bool last_channels) {
  const int nd = a->ndim;
  int64_t *strides = dims + 8, step = 1;
  a->shape = dims;
  a->strides = strides;
  if (last_channels) {
    strides[1] = 1;
    step = dims[1];
  }
  for (int d = nd - 1; d >= 0; d--) {
    if (d == 1 && last_channels) continue;
    strides[d] = step;
    step *= dims[d];
  }
}

static void conv_key(PlcConvKey *key, const ConvCase *c, PlcConvKind kind, PlDtype dtype, bool last_channels) {
  int64_t dims[3][16] = {{c->n, c->c}, {c->o, c->c / c->groups}, {c->n, c->o}}, stride[3], padding[3], dilation[3];
  PlArray a[3];
  for (int d = 0; d < c->spatial; d++) {
    dims[0][2 + d] = c->in[d];
    dims[1][2 + d] = c->k[d];
    dims[2][2 + d] = (c->in[d] + 2 * c->padding - c->dilation * (c->k[d] - 1) - 1) / c->stride + 1;
    stride[d] = c->stride, padding[d] = c->padding, dilation[d] = c->dilation;
  }
  for (int i = 0; i < 3; i++) {
    a[i] = (PlArray){.dtype = (uint8_t)dtype, .ndim = (uint8_t)(2 + c->spatial)};
    dense(&a[i], dims[i], last_channels);
  }
  plc_conv_key(key, kind, c->spatial, &a[0], &a[1], &a[2], stride, padding, dilation);
  key->align = 16;
  key->deterministic = 1;
  key->exact = dtype == PL_F32;
  key->workspace = (int64_t)1 << 30;
}

/* Planning takes seconds for some of hundreds of cases: PERILUNE_LANES=long takes them all, without it some that differ in all they can. */
static bool all_cases(void) {
  const char *lanes = getenv("PERILUNE_LANES");
  return lanes && strcmp(lanes, "long") == 0;
}

static bool planned(const PlcConvKey *key, PlcDnnTarget t) {
  PlcPlan *plan = NULL;
  PlStatus s = plc_conv_plan(key, t, &plan);
  plc_plan_release(plan);
  return s == PL_OK;
}

/* Halves with a bias are rounded once: it is in the kernel, or sums leave it in f32, or copies in f32 do the work. The last two ways are
 * also those of transposed convolutions. */
static void halves(const ConvCase *c, size_t i, PlDtype dtype, PlcDnnTarget t) {
  PlcConvKey biased, wide, copies, turned, turned_copies;
  conv_key(&biased, c, PLC_CONV, dtype, false);
  wide = biased;
  biased.bias = wide.wide = 1;
  conv_key(&copies, c, PLC_CONV, PL_F32, false);
  copies.exact = 0;
  conv_key(&turned, c, PLC_CONV_DATA, dtype, false);
  turned.wide = 1;
  conv_key(&turned_copies, c, PLC_CONV_DATA, PL_F32, false);
  turned_copies.exact = 0;
  const bool four = planned(&turned, t), five = planned(&turned_copies, t);
  printf("case %zu %s, transposed: f32 sums %d, f32 copies %d\n", i, pl_dtype_name(dtype), four, five);
  CHECK(five, "case %zu %s, transposed: %s", i, pl_dtype_name(dtype), pl_message());
  const bool one = planned(&biased, t), two = planned(&wide, t), three = planned(&copies, t);
  printf("case %zu %s: bias inside %d, f32 sums %d, f32 copies %d\n", i, pl_dtype_name(dtype), one, two, three);
  CHECK(three && (i == 1 || i == 2 || i > 4 || two), "case %zu %s: %s", i, pl_dtype_name(dtype), pl_message());
}

static void convolutions(PlcDnnTarget t) {
  static const ConvCase cases[] = {
      {2, 32, 64, {56, 56}, 64, {3, 3}, 1, 1, 1, 1}, {2, 2, 3, {64, 64}, 64, {7, 7}, 2, 3, 1, 1},
      {2, 4, 32, {14, 14}, 32, {3, 3}, 1, 1, 1, 32}, {1, 4, 16, {128}, 32, {5}, 1, 2, 1, 1},
      {2, 2, 8, {16, 16}, 8, {3, 3}, 1, 2, 2, 2},    {2, 1, 1, {8, 8}, 1, {3, 3}, 1, 0, 1, 1},
      {2, 2, 5, {9, 7}, 6, {3, 2}, 2, 1, 1, 1},      {3, 2, 4, {6, 7, 8}, 8, {3, 3, 3}, 1, 1, 1, 1},
      {2, 4, 64, {14, 14}, 256, {1, 1}, 1, 0, 1, 1}, {2, 4, 256, {14, 14}, 512, {1, 1}, 2, 0, 1, 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (PlcConvKind kind = PLC_CONV; kind <= PLC_CONV_FILTER; kind++)
      for (int form = 0; form < 8; form++) { /* f32, f64, f16, bf16; these again with channels last, bf16 then with a bias */
        PlcConvKey key;
        PlcPlan *plan = NULL;
        const PlDtype dtype = (PlDtype)(form & 3);
        const bool last = form > 3;
        if ((last && cases[i].spatial == 1) || (dtype == PL_F64 && (last || i > 3))) continue;
        if (!all_cases() && (i + (size_t)kind + (size_t)form) % 3 != 0) continue;
        conv_key(&key, &cases[i], kind, dtype, last);
        if (last && dtype == PL_BF16 && kind == PLC_CONV) key.bias = key.relu = 1;
        PlStatus s = plc_conv_plan(&key, t, &plan);
        CHECK(s == PL_OK, "case %zu direction %d %s, channels last %d: %s", i, (int)kind, pl_dtype_name(dtype), last, pl_message());
        plc_plan_release(plan);
        if (!last && dtype >= PL_F16 && kind == PLC_CONV) halves(&cases[i], i, dtype, t);
      }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void sdpa_key(PlcSdpaKey *k, bool backward, bool deterministic, bool causal, PlDtype dtype, int64_t L, int64_t S, int64_t E) {
  memset(k, 0, sizeof *k);
  k->what = 'A';
  k->backward = backward;
  k->dtype = (int32_t)dtype;
  k->causal = causal;
  k->align = k->rows_align = 16;
  k->deterministic = deterministic;
  k->B = 2, k->H = 4, k->L = L, k->S = S, k->E = k->D = E;
  k->workspace = (int64_t)1 << 30;
  const int64_t rows[4] = {4 * L * E, L * E, E, 1}, cols[4] = {4 * S * E, S * E, E, 1};
  int64_t *const as_q[] = {k->q, k->o, k->dy, k->dq}, *const as_k[] = {k->k, k->v, k->dk, k->dv};
  for (int i = 0; i < 4; i++) {
    memcpy(as_q[i], rows, sizeof rows);
    memcpy(as_k[i], cols, sizeof cols);
  }
}

/* Heads side by side: queries, keys and values of one projection, their gradients joined, results in rows of all heads. */
static void side_by_side(PlcSdpaKey *k) {
  int64_t *const parts[] = {k->q, k->k, k->v, k->dq, k->dk, k->dv}, *const rows[] = {k->o, k->dy};
  for (int i = 0; i < 8; i++) {
    int64_t *s = i < 6 ? parts[i] : rows[i - 6];
    s[2] = (i < 6 ? 3 : 1) * k->H * k->E, s[1] = k->E;
    s[0] = s[2] * (i < 6 && i % 3 ? k->S : k->L);
  }
}

static void attention(PlcDnnTarget t) {
  for (int form = 0; form < 32; form++) {
    if (!all_cases() && form % 5 != 1) continue;
    const bool backward = form & 1, deterministic = form & 2, causal = form & 4;
    const PlDtype dtype = form & 8 ? PL_F16 : PL_BF16;
    const bool odd = form % 3 == 0; /* lengths that fill no tile */
    PlcSdpaKey key;
    PlcPlan *plan = NULL;
    sdpa_key(&key, backward, deterministic, causal, dtype, odd ? 100 : 1024, odd ? 77 : 1024, form & 4 ? 64 : 128);
    if (form & 16) side_by_side(&key);
    if (odd && (form & 16)) key.rows_align = 4; /* as a slice of the batch may begin */
    PlStatus s = plc_sdpa_plan(&key, t, &plan);
    CHECK(s == PL_OK, "backward %d deterministic %d causal %d %s odd %d: %s", backward, deterministic, causal, pl_dtype_name(dtype), odd,
          pl_message());
    plc_plan_release(plan);
  }
}

/* Slices cover everything, never grow, and end at one head. */
static void slices(void) {
  for (int64_t B = 1; B < 9; B++)
    for (int64_t H = 1; H < 9; H++)
      for (int64_t fit = 0; fit < 70; fit += 3) {
        PlcSdpaKey k;
        int64_t nb, nh, before = B * H + 1;
        sdpa_key(&k, true, true, false, PL_BF16, 64, 64, 64);
        k.B = B, k.H = H, k.workspace = fit * 2 * 64 * 64;
        int step = 0;
        for (; plc_sdpa_slice(&k, step, &nb, &nh); step++) {
          CHECK(nb >= 1 && nh >= 1 && nb <= B && nh <= H && (nb == 1 || nh == H), "%lld %lld", (long long)nb, (long long)nh);
          CHECK(step == 0 || fit < 1 || nb * nh <= fit || nb * nh == 1, "%lld of %lld", (long long)(nb * nh), (long long)fit);
          CHECK(nb * nh <= before, "%lld after %lld", (long long)(nb * nh), (long long)before);
          before = nb * nh;
        }
        CHECK(before == 1 && step < 10, "%lldx%lld ends at %lld after %d", (long long)B, (long long)H, (long long)before, step);
      }
}

/* Shapes whose deterministic gradient wants more workspace than there is: cut into slices, each has a plan. */
static void long_attention(PlcDnnTarget t) {
  static const int64_t shapes[][4] = {{64, 12, 1024, 64}, {1, 64, 8192, 128}, {8, 32, 4096, 128}, {32, 12, 1024, 64}, {1, 8, 32768, 128}};
  for (size_t i = 0; i < (all_cases() ? sizeof shapes / sizeof *shapes : 2);
       i++) { /* causal: without, the workspace is the same, and planning takes long */
    const bool causal = true;
    const int64_t B = shapes[i][0], H = shapes[i][1], L = shapes[i][2], E = shapes[i][3];
    PlcSdpaKey whole;
    sdpa_key(&whole, true, true, causal, PL_BF16, L, L, E);
    whole.B = B, whole.H = H;
    int64_t *const strides[] = {whole.q, whole.k, whole.v, whole.o, whole.dy, whole.dq, whole.dk, whole.dv};
    for (int k = 0; k < 8; k++) strides[k][0] = H * L * E;
    if (2 * L * L > whole.workspace) whole.workspace = 2 * L * L + (2 * L * L >> 4);
    int step = 0;
    int64_t nb, nh;
    bool found = false;
    while (!found && plc_sdpa_slice(&whole, step, &nb, &nh)) {
      PlcSdpaKey part = whole;
      PlcPlan *plan = NULL;
      part.B = nb, part.H = nh;
      found = plc_sdpa_plan(&part, t, &plan) == PL_OK;
      if (found)
        printf("attention gradient %lldx%lldx%lldx%lld causal: try %d, %lld batches of %lld heads, workspace %zu MiB\n", (long long)B,
               (long long)H, (long long)L, (long long)E, step, (long long)nb, (long long)nh, plc_plan_workspace(plan, -1) >> 20);
      plc_plan_release(plan);
      step++;
    }
    CHECK(found && step <= 3, "%lldx%lldx%lldx%lld: %d tries: %s", (long long)B, (long long)H, (long long)L, (long long)E, step,
          pl_message());
  }
}

/* ---- recurrent nets: what can be described without a device ------------------------------------------------------------- */

static PlStatus describe_net(const PlcDnnApi *api, const PlkRecurrent *key, const int64_t *lengths) {
  PlcNet net = {.key = *key};
  PlcSequences q = {.x = NULL};
  PlStatus s = plc_net_describe(api, &net);
  if (s == PL_OK) s = plc_sequences_describe(api, &net, 7, 3, lengths, &q);
  plc_sequences_free(api, &q);
  plc_net_free(api, &net);
  return s;
}

static void recurrent(const PlcDnnApi *api) {
  static const int32_t dtypes[] = {PL_F32, PL_F16, PL_BF16};
  static const int64_t lengths[] = {3, 7, 1}, none[] = {3, 0, 1}, longer[] = {3, 8, 1};
  for (int form = 0; form < 3 * 128; form++) {
    const PlkRecurrent key = {.mode = form & 3,
                              .dtype = dtypes[form >> 7],
                              .input = 5,
                              .hidden = 6,
                              .proj = form & 4 ? 4 : 0,
                              .layers = form & 8 ? 3 : 1,
                              .directions = form & 16 ? 2 : 1,
                              .bias = form & 32 ? 1 : 0,
                              .tf32 = form & 64 ? 1 : 0,
                              .train = 1};
    const bool sound = key.mode == PLK_RNN_LSTM || !key.proj;
    PlStatus s = describe_net(api, &key, form & 1 ? lengths : NULL);
    CHECK((s == PL_OK) == sound, "net %d: %s", form, pl_message());
  }
  const PlkRecurrent good = {.mode = PLK_RNN_GRU, .dtype = PL_F32, .input = 5, .hidden = 6, .layers = 1, .directions = 1, .train = 1};
  PlkRecurrent wide = good;
  wide.dtype = PL_F64;
  CHECK(describe_net(api, &wide, NULL) == PL_ERR_UNSUPPORTED, "f64 was taken");
  CHECK(describe_net(api, &good, none) == PL_ERR_ARG && describe_net(api, &good, longer) == PL_ERR_ARG,
        "lengths of 0 or 8 of 7 were taken");
}

/* ---- CTC: what can be described without a device --------------------------------------------------------------------- */

static void ctc(const PlcDnnApi *api) {
  cudnnCTCLossDescriptor_t d = NULL;
  CHECK(api->cudnnCreateCTCLossDescriptor(&d) == CUDNN_STATUS_SUCCESS, "no descriptor");
  for (int longest = 1; longest < 256; longest += 127)
    CHECK(api->cudnnSetCTCLossDescriptor_v9(d, CUDNN_DATA_FLOAT, CUDNN_LOSS_NORMALIZATION_SOFTMAX, CUDNN_CTC_ZERO_OOB_GRADIENTS, longest) ==
              CUDNN_STATUS_SUCCESS,
          "%d letters", longest);
  CHECK(api->cudnnDestroyCTCLossDescriptor(d) == CUDNN_STATUS_SUCCESS, "not given back");
}

/* ---- refusals ------------------------------------------------------------------------------------------------------- */

static void refusals(PlcDnnTarget t) {
  static const ConvCase good = {2, 2, 8, {16, 16}, 8, {3, 3}, 1, 1, 1, 1};
  PlcConvKey c;
  PlcSdpaKey a;
  PlcPlan *plan = NULL;
  conv_key(&c, &good, PLC_CONV, PL_F32, false);
  c.y[2]--; /* not what x, w and padding give */
  CHECK(plc_conv_plan(&c, t, &plan) != PL_OK && !plan, "an output of the wrong size was taken");
  CHECK(strncmp(pl_message(), "cudnn: ", 7) == 0, "%s", pl_message());
  conv_key(&c, &good, PLC_CONV_DATA, PL_F32, false);
  c.w[1] = 3; /* divides nothing */
  CHECK(plc_conv_plan(&c, t, &plan) != PL_OK && !plan, "a weight of the wrong channels was taken");
  sdpa_key(&a, false, true, false, PL_BF16, 64, 64, 12);
  CHECK(plc_sdpa_plan(&a, t, &plan) == PL_ERR_UNSUPPORTED && !plan, "a head size of 12 was taken");
  sdpa_key(&a, false, true, false, PL_F32, 64, 64, 64);
  CHECK(plc_sdpa_plan(&a, t, &plan) == PL_ERR_UNSUPPORTED && !plan, "attention of f32 was taken");
}

/* Of a 1 x 1 weight both layouts are the same memory: beside images that are channels last its strides say so. */
static void single_dims(void) {
  static const ConvCase one = {2, 2, 8, {5, 5}, 16, {1, 1}, 1, 0, 1, 1};
  PlcConvKey last, rows, mixed;
  conv_key(&last, &one, PLC_CONV, PL_F16, true);
  conv_key(&rows, &one, PLC_CONV, PL_F16, false);
  CHECK(last.ws[0] == 8 && last.ws[1] == 1 && last.ws[2] == 8 && last.ws[3] == 8, "%lld %lld", (long long)last.ws[2],
        (long long)last.ws[3]);
  CHECK(rows.xs[1] == 25 && rows.ys[1] == 25, "%lld", (long long)rows.xs[1]);
  int64_t x[16] = {2, 8, 5, 5}, w[16] = {16, 8, 1, 1}, y[16] = {2, 16, 5, 5}, unit[2] = {1, 1}, zero[2] = {0, 0};
  PlArray a[3] = {{.dtype = PL_F16, .ndim = 4}, {.dtype = PL_F16, .ndim = 4}, {.dtype = PL_F16, .ndim = 4}};
  dense(&a[0], x, true);
  dense(&a[1], w, false);
  dense(&a[2], y, true);
  plc_conv_key(&mixed, PLC_CONV, 2, &a[0], &a[1], &a[2], unit, zero, unit);
  CHECK(memcmp(mixed.ws, last.ws, sizeof last.ws) == 0 && memcmp(mixed.xs, last.xs, sizeof last.xs) == 0, "the weight's strides differ");
}

/* ---- plans are kept, strides of single dims mean nothing --------------------------------------------------------------- */

static int made;
static PlStatus counted(const void *key, PlcDnnTarget t, PlcPlan **out) {
  made++;
  return plc_conv_plan(key, t, out);
}

static void cache(PlcDnnTarget t) {
  static const ConvCase good = {2, 2, 8, {16, 16}, 8, {3, 3}, 1, 1, 1, 1};
  PlcConvKey key;
  PlcPlan *first = NULL, *again = NULL, *other = NULL;
  conv_key(&key, &good, PLC_CONV, PL_F16, false);
  CHECK(plc_plan_get(&key, sizeof key, t, counted, &first) == PL_OK, "%s", pl_message());
  CHECK(plc_plan_get(&key, sizeof key, t, counted, &again) == PL_OK && again == first && made == 1, "made %d plans", made);
  key.padding[0] = 7; /* y does not fit any more */
  CHECK(plc_plan_get(&key, sizeof key, t, counted, &other) != PL_OK && !other && made == 2, "made %d plans", made);
  CHECK(plc_plan_get(&key, sizeof key, t, counted, &other) == PL_ERR_UNSUPPORTED && made == 2, "asked again: %d", made);
  plc_plan_release(first);
  plc_plan_release(again);
  plc_plans_clear();
}

/* Several ways while somebody measures: the fastest of those that run stays, and what was planned before is planned again. */
static void ways(PlcDnnTarget t) {
  static const ConvCase good = {2, 8, 64, {28, 28}, 64, {3, 3}, 1, 1, 1, 1};
  static const double times[PLC_PLAN_WAYS] = {3, 2, 0, 5, 2.5, 9}, none[PLC_PLAN_WAYS] = {0};
  PlcConvKey key;
  PlcPlan *plan = NULL, *again = NULL;
  conv_key(&key, &good, PLC_CONV, PL_F16, true);
  key.deterministic = 0;
  CHECK(plc_plan_get(&key, sizeof key, t, plc_conv_plan, &plan) == PL_OK && plc_plan_ways(plan) == 1, "%s", pl_message());
  plc_plan_release(plan);
  plc_plans_measure(true);
  CHECK(plc_plan_get(&key, sizeof key, t, plc_conv_plan, &plan) == PL_OK, "%s", pl_message());
  const int n = plc_plan_ways(plan);
  printf("a convolution has %d ways\n", n);
  CHECK(n > 1, "%d ways", n);
  const size_t second = plc_plan_workspace(plan, 1);
  CHECK(plc_ways_choose(3, (const double[]){3, 2.95, 2.92}) == 0, "another than the first guess for less than 3 %%");
  CHECK(plc_ways_choose(3, (const double[]){0, 2.95, 2.8}) == 2 && plc_ways_choose(3, (const double[]){3, 2.8, 2.7}) == 2,
        "not the fastest");
  plc_plan_decide(plan, times);
  CHECK(plc_plan_ways(plan) == 1 && plc_plan_workspace(plan, -1) == second, "%zu, %zu", plc_plan_workspace(plan, -1), second);
  CHECK(plc_plan_get(&key, sizeof key, t, plc_conv_plan, &again) == PL_OK && again == plan, "it was planned again");
  plc_plan_release(plan);
  plc_plan_release(again);
  key.padding[1] = key.padding[0] = 0, key.y[2] -= 2, key.y[3] -= 2;
  CHECK(plc_plan_get(&key, sizeof key, t, plc_conv_plan, &plan) == PL_OK, "%s", pl_message());
  plc_plan_decide(plan, none); /* the first, if nothing could be measured */
  CHECK(plc_plan_workspace(plan, -1) == plc_plan_workspace(plan, 0), "not the first");
  plc_plan_release(plan);
  plc_plans_measure(false);
  plc_plans_clear();
}

static void strides(void) {
  PlcShape s = {.ndim = 4, .dim = {1, 1, 5, 7}, .stride = {0, 0, 7, 1}};
  plc_shape_normalize(&s);
  CHECK(s.stride[0] == 35 && s.stride[1] == 35 && s.stride[2] == 7, "%lld %lld", (long long)s.stride[0], (long long)s.stride[1]);
  PlcShape t = {.ndim = 4, .dim = {8, 3, 1, 1}, .stride = {3, 1, 99, 99}};
  plc_shape_normalize(&t);
  CHECK(t.stride[0] == 3 && t.stride[1] == 1 && t.stride[2] == 1 && t.stride[3] == 1, "%lld %lld", (long long)t.stride[2],
        (long long)t.stride[3]);
}

int main(void) {
  const PlcDnnApi *api;
  PlcDnnTarget t = {NULL, NULL};
  if (plc_dnn_api(&api) != PL_OK) {
    printf("skipped: %s\n", pl_message());
    return 77;
  }
  if (!describe_device(api, &t)) {
    printf("skipped: cuDNN %s does not plan for a described device\n", plc_dnn_version());
    return 77;
  }
  strides();
  single_dims();
  recurrent(api);
  ctc(api);
  convolutions(t);
  attention(t);
  long_attention(t);
  slices();
  refusals(t);
  cache(t);
  ways(t);
  (void)api->cudnnBackendDestroyDescriptor(t.device);
  printf("cuDNN %s: %d failures\n", plc_dnn_version(), failures);
  return failures ? 1 : 0;
}
