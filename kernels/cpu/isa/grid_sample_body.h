/* SPDX-License-Identifier: MIT
 * Reading images at places (kernels/cpu/image/grid_sample.h): T is the element type, FEW four of them, MANY as many
 * of the LANES of 64 bytes as a register holds, F(f) the function f for T. A
 * block of places is taken in two steps: what each reads along each axis, in loops over the places, then the channels. */

/* Up to four elements of one axis for each place: which (-1: none), with what weight, and the weight's slope by the grid. */
typedef struct F(Axis) {
  int32_t at[AXIS_TAPS][B];
  T w[AXIS_TAPS][B], slope[AXIS_TAPS][B];
} F(Axis);

/* All of them, 2 to 64: their offsets within the volume, weights, and slopes by each axis. */
typedef struct F(Taps) {
  int n;
  int64_t at[TAPS][B];
  T w[TAPS][B], slope[3][TAPS][B];
} F(Taps);

/* x mirrored at the borders of n elements until it is within; *sign: the slope of that. */
PLK_LANE T F(mirrored)(T x, T n, bool align, T *sign) {
  const T low = align ? 0 : (T)-0.5, span = align ? n - 1 : n, from = x - low, d = F(vm_abs)(from);
  if (span == 0) {
    *sign = 0;
    return 0;
  }
  const T extra = d - F(vm_trunc)(d / (span + span)) * (span + span), other = (span + span) - extra;
  const bool back = extra > other;
  *sign = (from < 0) != back ? (T)-1 : (T)1;
  return (back ? other : extra) + low;
}

/* Where a place reads: x as `padding` says; *slope becomes 0 where it stays at a border. */
PLK_LANE T F(padded)(T x, T n, int padding, bool align, T *slope) {
  if (padding == PLK_GRID_ZEROS) return x;
  if (padding == PLK_GRID_REFLECTION) {
    T sign;
    x = F(mirrored)(x, n, align, &sign);
    *slope *= sign;
  }
  const T most = n - 1;
  *slope = x > 0 && x < most ? *slope : 0;
  x = x < 0 ? 0 : x;
  return x > most ? most : x;
}

/* An element of n, if x is one: its weight is 0 otherwise, or NaN where x is: a place that is none is not the image's outside. */
PLK_LANE void F(tap)(F(Axis) * a, int k, int64_t b, T x, int32_t n, T w, T slope) {
  const bool in = x >= 0 && x <= (T)(n - 1);
  const int32_t at = (int32_t)(in ? x : 0);
  const bool ok = in & (at < n);
  a->at[k][b] = ok ? at : -1;
  const T none = x == x ? 0 : x;
  a->w[k][b] = ok ? w : none;
  a->slope[k][b] = ok ? slope : none;
}

/* Keys 1981 with a = -0.75: weights at distances 1 + t, t, 1 - t, 2 - t, and their slopes by t. */
PLK_LANE void F(cubic)(T t, T *w, T *slope) {
  const T a = (T)-0.75, u = 1 - t, f = t + 1, h = u + 1;
  w[0] = ((a * f - 5 * a) * f + 8 * a) * f - 4 * a;
  w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  w[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
  w[3] = ((a * h - 5 * a) * h + 8 * a) * h - 4 * a;
  slope[0] = (3 * a * f - 10 * a) * f + 8 * a;
  slope[1] = (3 * (a + 2) * t - 2 * (a + 3)) * t;
  slope[2] = -(3 * (a + 2) * u - 2 * (a + 3)) * u;
  slope[3] = -((3 * a * h - 10 * a) * h + 8 * a);
}

/* Axis d for n places with coordinates p[b * nd]. */
PLK_LANE void F(axis_of)(const PlkGrid *g, int d, const T *p, int64_t n, int mode, int padding, bool align, F(Axis) * a) {
  const int32_t size = (int32_t)g->size[d];
  const T len = (T)size, scale = align ? (len - 1) / 2 : len / 2;
  const int64_t step = g->nd;
  PLK_IVDEP for (int64_t b = 0; b < n; b++) {
    T slope = scale, x = (p[b * step] + 1) * scale - (align ? 0 : (T)0.5);
    if (mode == PLK_GRID_BICUBIC) {
      const T low = F(vm_floor)(x);
      T w[4], s[4], none = 0;
      F(cubic)(x - x == 0 ? x - low : 0, w, s);
      for (int k = 0; k < 4; k++) {
        const T at = F(padded)(low + (T)(k - 1), len, padding, align, &none);
        F(tap)(a, k, b, at, size, w[k], s[k] * scale);
      }
      continue;
    }
    x = F(padded)(x, len, padding, align, &slope);
    if (mode == PLK_GRID_NEAREST) {
      F(tap)(a, 0, b, F(vm_rint)(x), size, 1, 0);
      continue;
    }
    const T low = F(vm_floor)(x), part = x - low;
    F(tap)(a, 0, b, low, size, 1 - part, -slope);
    F(tap)(a, 1, b, low + 1, size, part, slope);
  }
}

/* The loops above, for each mode and padding by itself. */
static void F(axis)(const PlkGrid *g, int d, const T *p, int64_t n, F(Axis) * a) {
#define EACH_PADDING(MODE)                                                                            \
  if (g->padding == PLK_GRID_ZEROS) F(axis_of)(g, d, p, n, MODE, PLK_GRID_ZEROS, g->align, a);        \
  else if (g->padding == PLK_GRID_BORDER) F(axis_of)(g, d, p, n, MODE, PLK_GRID_BORDER, g->align, a); \
  else F(axis_of)(g, d, p, n, MODE, PLK_GRID_REFLECTION, g->align, a);
  if (g->mode == PLK_GRID_BILINEAR) {
    EACH_PADDING(PLK_GRID_BILINEAR)
  } else if (g->mode == PLK_GRID_NEAREST) {
    EACH_PADDING(PLK_GRID_NEAREST)
  } else {
    EACH_PADDING(PLK_GRID_BICUBIC)
  }
#undef EACH_PADDING
}

/* One tap more for each of t with each of the axis; the first time t has one, the element 0. */
static void F(join)(F(Taps) * t, int axes, const F(Axis) * a, int m, int64_t size, int64_t n, bool slopes) {
  F(Taps) *const u = t + 1;
  u->n = t->n * m;
  for (int k = 0, o = 0; k < t->n; k++)
    for (int j = 0; j < m; j++, o++) {
      PLK_IVDEP for (int64_t b = 0; b < n; b++) {
        const int64_t at = t->at[k][b];
        u->at[o][b] = (at < 0) | (a->at[j][b] < 0) ? -1 : at * size + a->at[j][b];
        u->w[o][b] = t->w[k][b] * a->w[j][b];
      }
      for (int d = 0; slopes && d < axes; d++) PLK_IVDEP for (int64_t b = 0; b < n; b++) u->slope[d][o][b] = t->slope[d][k][b] * a->w[j][b];
      if (slopes) PLK_IVDEP for (int64_t b = 0; b < n; b++) u->slope[axes][o][b] = t->w[k][b] * a->slope[j][b];
    }
}

/* t[g->nd - 1]: what n places read. The grid names the last dim first. */
static const F(Taps) * F(taps)(const PlkGrid *g, const T *grid, int64_t n, F(Taps) * t, bool slopes) {
  const int m = g->mode == PLK_GRID_BILINEAR ? 2 : g->mode == PLK_GRID_NEAREST ? 1 : 4;
  F(Axis) a;
  for (int d = 0; d < g->nd; d++) {
    F(axis)(g, d, grid + (g->nd - 1 - d), n, &a);
    if (d > 0) {
      F(join)(t + d - 1, d, &a, m, g->size[d], n, slopes);
      continue;
    }
    t->n = m;
    for (int j = 0; j < m; j++) PLK_IVDEP for (int64_t b = 0; b < n; b++) {
        t->at[j][b] = a.at[j][b];
        t->w[j][b] = a.w[j][b];
        t->slope[0][j][b] = a.slope[j][b];
      }
  }
  return t + g->nd - 1;
}

/* ---- channels side by side ---- */

/* L channels, in vectors V. */
#define EACH(V, L, h) for (int h = 0; h < (L); h += (int)(sizeof(V) / sizeof(T)))
#define PACKED(NAME, V, L)                                                                                                                 \
  PLK_LANE void F(read_##NAME)(const F(Taps) * t, int m, int64_t n, const T *x, T *tile) {                                                 \
    for (int64_t b = 0; b < n; b++) EACH(V, L, h) {                                                                                        \
        V y = *(const V *)(x + (t->at[0][b] + 1) * (L) + h) * t->w[0][b];                                                                  \
        for (int k = 1; k < m; k++) y += *(const V *)(x + (t->at[k][b] + 1) * (L) + h) * t->w[k][b];                                       \
        *(V *)(tile + b * (L) + h) = y;                                                                                                    \
      }                                                                                                                                    \
  }                                                                                                                                        \
  static void F(sample_##NAME)(const PlkGrid *g, const F(Taps) * t, int64_t n, const T *x, T *y) {                                         \
    T tile[B * (L)];                                                                                                                       \
    for (int64_t c = 0; c < g->C; c += (L), x += (g->volume + 1) * (L)) {                                                                  \
      if (t->n == 4) F(read_##NAME)(t, 4, n, x, tile);                                                                                     \
      else F(read_##NAME)(t, t->n, n, x, tile);                                                                                            \
      g->turn(y + c * g->places, g->places, tile, (L), n, g->C - c < (L) ? g->C - c : (L));                                                \
    }                                                                                                                                      \
  }                                                                                                                                        \
  static void F(back_##NAME)(const PlkGrid *g, const F(Taps) * t, int64_t n, int64_t channels, const T *x, const T *dy, T *dx, T *dgrid) { \
    T tile[B * (L)];                                                                                                                       \
    if (channels < (L)) memset(tile, 0, sizeof tile);                                                                                      \
    g->turn(tile, (L), dy, g->places, channels, n);                                                                                        \
    for (int64_t b = 0; b < n; b++) {                                                                                                      \
      if (dx) EACH(V, L, h) {                                                                                                              \
          const V d = *(const V *)(tile + b * (L) + h);                                                                                    \
          for (int k = 0; k < t->n; k++) *(V *)(dx + (t->at[k][b] + 1) * (L) + h) += d * t->w[k][b];                                       \
        }                                                                                                                                  \
      for (int i = 0; dgrid && i < g->nd; i++) {                                                                                           \
        V part[(L) * sizeof(T) / sizeof(V)], *to = part;                                                                                   \
        EACH(V, L, h) {                                                                                                                    \
          V s = *(const V *)(x + (t->at[0][b] + 1) * (L) + h) * t->slope[i][0][b];                                                         \
          for (int k = 1; k < t->n; k++) s += *(const V *)(x + (t->at[k][b] + 1) * (L) + h) * t->slope[i][k][b];                           \
          *to++ = *(const V *)(tile + b * (L) + h) * s;                                                                                    \
        }                                                                                                                                  \
        dgrid[b * g->nd + (g->nd - 1 - i)] = F(sum_##NAME)(part);                                                                          \
      }                                                                                                                                    \
    }                                                                                                                                      \
  }
PACKED(few, FEW, PLK_GRID_FEW)
PACKED(many, MANY, LANES)
#undef EACH
#undef PACKED

/* ---- planes ---- */

static void F(sample_planes)(const PlkGrid *g, const F(Taps) * t, int64_t n, const T *x, T *y) {
  for (int64_t c = 0; c < g->C; c++) {
    const T *const plane = x + c * g->volume;
    for (int64_t b = 0; b < n; b++) {
      T v = 0;
      for (int k = 0; k < t->n; k++) {
        const int64_t at = t->at[k][b];
        const T u = (at < 0 ? 0 : plane[at]) * t->w[k][b];
        v = k ? v + u : u;
      }
      y[c * g->places + b] = v;
    }
  }
}

static void F(back_planes)(const PlkGrid *g, const F(Taps) * t, int64_t n, int64_t channels, const T *x, const T *dy, T *dx, T *dgrid) {
  if (dgrid) memset(dgrid, 0, (size_t)(n * g->nd) * sizeof *dgrid);
  for (int64_t c = 0; c < channels; c++)
    for (int64_t b = 0; b < n; b++) {
      const T d = dy[c * g->places + b];
      for (int k = 0; dx && k < t->n; k++)
        if (t->at[k][b] >= 0) dx[c * g->volume + t->at[k][b]] += d * t->w[k][b];
      for (int i = 0; dgrid && i < g->nd; i++) {
        T s = 0;
        for (int k = 0; k < t->n; k++) s += (t->at[k][b] < 0 ? 0 : x[c * g->volume + t->at[k][b]]) * t->slope[i][k][b];
        dgrid[b * g->nd + (g->nd - 1 - i)] += d * s;
      }
    }
}

/* ---- both ---- */

static void F(sample)(const PlkGrid *g, const T *grid, int64_t n, const T *x, T *y) {
  F(Taps) room[3];
  const F(Taps) *const t = F(taps)(g, grid, n, room, false);
  if (g->lanes == 0) F(sample_planes)(g, t, n, x, y);
  else if (g->lanes == PLK_GRID_FEW) F(sample_few)(g, t, n, x, y);
  else F(sample_many)(g, t, n, x, y);
}

static void F(back)(const PlkGrid *g, const T *grid, int64_t n, int64_t channels, const T *x, const T *dy, T *dx, T *dgrid) {
  F(Taps) room[3];
  if (dgrid && g->mode == PLK_GRID_NEAREST) { /* no slope: a product of 0 and what is read would be NaN where that is infinite */
    memset(dgrid, 0, (size_t)(n * g->nd) * sizeof *dgrid);
    dgrid = NULL;
  }
  const F(Taps) *const t = F(taps)(g, grid, n, room, dgrid != NULL);
  if (g->lanes == 0) F(back_planes)(g, t, n, channels, x, dy, dx, dgrid);
  else if (g->lanes == PLK_GRID_FEW) F(back_few)(g, t, n, channels, x, dy, dx, dgrid);
  else F(back_many)(g, t, n, channels, x, dy, dx, dgrid);
}
