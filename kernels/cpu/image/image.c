/* SPDX-License-Identifier: MIT
 * See kernels/image.h. Resampling is separable: first columns, whole rows at a time, then along the rows. Filters and
 * their sampling points are those of Pillow and of PyTorch's antialiased interpolation: output pixel i looks at
 * (i + 1/2) in/out, with the filter stretched by in/out when shrinking. */
#include "kernels/image.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/image/image.h"
#include "kernels/kernel.h"

/* ---- weights ------------------------------------------------------------------------------------------------------ */

typedef struct Weights {
  int most; /* taps per output */
  int *first, *n;
  float *w; /* most per output */
  int16_t *fixed;
} Weights;

static double bilinear(double x) {
  x = fabs(x);
  return x < 1 ? 1 - x : 0;
}

/* Keys 1981. */
static double bicubic(double x, double a) {
  x = fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* The fixed weights sum to exactly one: what rounding lost goes to the largest. */
static void fix(const float *w, int n, int16_t *to) {
  enum { ONE = 1 << PLK_IMAGE_WEIGHT_BITS };
  int sum = 0, top = 0;
  for (int k = 0; k < n; k++) {
    to[k] = (int16_t)lrintf(w[k] * ONE);
    sum += to[k];
    if (to[k] > to[top]) top = k;
  }
  to[top] = (int16_t)(to[top] + ONE - sum);
}

static int64_t within(int64_t at, int64_t n) { return at < 0 ? 0 : at < n ? at : n - 1; }

/* Four points around, those outside being the border's: PyTorch's bicubic without antialias, whose a is -3/4. */
static void fill_points(Weights *t, int64_t i, int64_t in, double scale) {
  float *w = t->w + i * t->most;
  const double x = ((double)i + 0.5) * scale - 0.5;
  const int64_t at = (int64_t)floor(x), lo = within(at - 1, in);
  t->first[i] = (int)lo;
  t->n[i] = (int)(within(at + 2, in) + 1 - lo);
  for (int k = 0; k < t->n[i]; k++) w[k] = 0;
  for (int64_t k = at - 1; k <= at + 2; k++) w[within(k, in) - lo] += (float)bicubic((double)k - x, -0.75);
  fix(w, t->n[i], t->fixed + i * t->most);
}

/* As Pillow, whose a is -1/2; weights of points outside go to those inside. */
static void fill_output(Weights *t, int64_t i, int64_t in, double scale, PlkFilter filter, double support, double stretch) {
  float *w = t->w + i * t->most;
  double center = ((double)i + 0.5) * scale, sum = 0;
  int64_t lo = (int64_t)(center - support + 0.5), hi = (int64_t)(center + support + 0.5);
  if (lo < 0) lo = 0;
  if (hi > in) hi = in;
  if (filter == PLK_NEAREST) {
    lo = (int64_t)center < in ? (int64_t)center : in - 1;
    hi = lo + 1;
  }
  if (hi - lo > t->most) hi = lo + t->most;
  t->first[i] = (int)lo;
  t->n[i] = (int)(hi - lo);
  for (int k = 0; k < t->n[i]; k++) {
    double x = ((double)(lo + k) - center + 0.5) / stretch;
    double v = filter == PLK_NEAREST ? 1 : filter == PLK_BILINEAR ? bilinear(x) : bicubic(x, -0.5);
    w[k] = (float)v;
    sum += v;
  }
  for (int k = 0; k < t->n[i]; k++) w[k] = (float)(w[k] / sum);
  fix(w, t->n[i], t->fixed + i * t->most);
}

static PlStatus make_weights(Weights *t, int64_t in, int64_t out, PlkFilter filter, bool antialias) {
  double scale = (double)in / (double)out, stretch = antialias && scale > 1 ? scale : 1;
  double support = (filter == PLK_BICUBIC ? 2 : 1) * stretch;
  t->most = filter == PLK_NEAREST ? 1 : (int)ceil(support) * 2 + 1;
  size_t n = (size_t)out, per = sizeof *t->w + sizeof *t->fixed;
  void *mem;
  PL_TRY(plk_scratch(n * ((size_t)t->most * per + 2 * sizeof(int)), &mem));
  t->first = mem;
  t->n = t->first + n;
  t->w = (float *)(void *)(t->n + n);
  t->fixed = (int16_t *)(void *)(t->w + n * (size_t)t->most);
  for (int64_t i = 0; i < out; i++) {
    if (filter == PLK_BICUBIC && !antialias) fill_points(t, i, in, scale);
    else fill_output(t, i, in, scale, filter, support, stretch);
  }
  return PL_OK;
}

/* ---- along the rows --------------------------------------------------------------------------------------------------- */

static uint8_t clip(int32_t v) { return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v); }

/* One output row of c channels, c known to the compiler. */
static inline __attribute__((always_inline)) void row_u8(const Weights *t, const int16_t *from, uint8_t *to, int64_t w, bool flip,
                                                         const int c) {
  enum { SHIFT = PLK_IMAGE_WEIGHT_BITS + PLK_IMAGE_ROW_BITS };
  for (int64_t x = 0; x < w; x++) {
    const int16_t *p = from + (int64_t)t->first[x] * c, *wt = t->fixed + x * t->most;
    int32_t acc[PLK_IMAGE_CHANNELS];
    for (int k = 0; k < c; k++) acc[k] = 1 << (SHIFT - 1);
    for (int j = 0; j < t->n[x]; j++, p += c)
      for (int k = 0; k < c; k++) acc[k] += p[k] * wt[j];
    uint8_t *q = to + (flip ? w - 1 - x : x) * c;
    for (int k = 0; k < c; k++) q[k] = clip(acc[k] >> SHIFT);
  }
}

static inline __attribute__((always_inline)) void row_f32(const Weights *t, const float *from, float *to, int64_t w, bool flip,
                                                          const int c) {
  for (int64_t x = 0; x < w; x++) {
    const float *p = from + (int64_t)t->first[x] * c, *wt = t->w + x * t->most;
    float acc[PLK_IMAGE_CHANNELS] = {0};
    for (int j = 0; j < t->n[x]; j++, p += c)
      for (int k = 0; k < c; k++) acc[k] += p[k] * wt[j];
    float *q = to + (flip ? w - 1 - x : x) * c;
    for (int k = 0; k < c; k++) q[k] = acc[k];
  }
}

#define ROW(T, t, from, to, w, flip, c)                  \
  do {                                                   \
    if ((c) == 3) row_##T(t, from, to, w, flip, 3);      \
    else if ((c) == 1) row_##T(t, from, to, w, flip, 1); \
    else if ((c) == 4) row_##T(t, from, to, w, flip, 4); \
    else row_##T(t, from, to, w, flip, 2);               \
  } while (0)

/* ---- both -------------------------------------------------------------------------------------------------------------- */

typedef struct Job {
  const Weights *down, *across;
  const void *rows; /* interleaved, row after row */
  int64_t stride, len, c, w;
  bool is_float, flip;
  void *line, *to;
} Job;

static void one_row(const Job *j, int64_t y) {
  const PlkImageLoops *loops = &PLK_ISA_PICK(plk_image);
  const Weights *d = j->down;
  int64_t at = (int64_t)d->first[y] * j->stride;
  if (j->is_float) {
    loops->columns_f32((const float *)j->rows + at, j->stride, d->w + y * d->most, d->n[y], j->line, j->len);
    ROW(f32, j->across, (const float *)j->line, (float *)j->to + y * j->w * j->c, j->w, j->flip, (int)j->c);
  } else {
    loops->columns_u8((const uint8_t *)j->rows + at, j->stride, d->fixed + y * d->most, d->n[y], j->line, j->len);
    ROW(u8, j->across, (const int16_t *)j->line, (uint8_t *)j->to + y * j->w * j->c, j->w, j->flip, (int)j->c);
  }
}

static PlStatus run(const PlkImage *from, const Weights *down, const Weights *across, void *to, int64_t h, int64_t w, bool flip) {
  size_t element = from->is_float ? sizeof(float) : 1;
  bool ready = from->sc == 1 && from->sw == from->c;
  int64_t len = from->w * from->c;
  void *line, *copy = NULL;
  PL_TRY(plk_scratch((size_t)len * (from->is_float ? sizeof(float) : sizeof(int16_t)), &line));
  PlStatus st = ready ? PL_OK : plk_scratch((size_t)(from->h * len) * element, &copy);
  if (st == PL_OK && copy) plk_image_interleave(from, copy);
  Job j = {.down = down,
           .across = across,
           .rows = copy ? copy : from->data,
           .stride = copy ? len : from->sh,
           .len = len,
           .c = from->c,
           .w = w,
           .is_float = from->is_float,
           .flip = flip,
           .line = line,
           .to = to};
  for (int64_t y = 0; st == PL_OK && y < h; y++) {
    one_row(&j, y);
    if (y % 64 == 0) st = plk_poll();
  }
  plk_scratch_free(copy);
  plk_scratch_free(line);
  return st;
}

/* As Pillow: along the rows first, to bytes, so that what bicubic throws beyond 0 and 255 is cut before the columns see it. */
static PlStatus run_cut(const PlkImage *from, const Weights *down, const Weights *across, void *to, int64_t h, int64_t w, bool flip) {
  Weights every_row, every_column; /* of the picture between: each its own */
  void *mem;
  PL_TRY(plk_scratch((size_t)(from->h * w * from->c), &mem));
  const PlkImage between = {.data = mem, .c = from->c, .h = from->h, .w = w, .sc = 1, .sh = w * from->c, .sw = from->c};
  PlStatus st = make_weights(&every_row, from->h, from->h, PLK_NEAREST, false);
  if (st == PL_OK) {
    st = make_weights(&every_column, w, w, PLK_NEAREST, false);
    if (st == PL_OK) {
      st = run(from, &every_row, across, mem, from->h, w, flip);
      if (st == PL_OK) st = run(&between, down, &every_column, to, h, w, false);
      plk_scratch_free(every_column.first);
    }
    plk_scratch_free(every_row.first);
  }
  plk_scratch_free(mem);
  return st;
}

PlStatus plk_image_resize(const PlkImage *from, void *to, int64_t h, int64_t w, PlkFilter filter, bool antialias, bool flip) {
  Weights down, across;
  const bool cut = filter == PLK_BICUBIC && antialias && !from->is_float;
  PL_TRY(make_weights(&down, from->h, h, filter, antialias));
  PlStatus st = make_weights(&across, from->w, w, filter, antialias);
  if (st == PL_OK) {
    st = (cut ? run_cut : run)(from, &down, &across, to, h, w, flip);
    plk_scratch_free(across.first);
  }
  plk_scratch_free(down.first);
  return st;
}

/* ---- moving ------------------------------------------------------------------------------------------------------------- */

void plk_image_interleave(const PlkImage *from, void *to) {
  const uint8_t *b = from->data;
  const float *f = from->data;
  uint8_t *tb = to;
  float *tf = to;
  if (!from->is_float && from->sc == 1 && from->sw == from->c) {
    for (int64_t y = 0; y < from->h; y++) memcpy(tb + y * from->w * from->c, b + y * from->sh, (size_t)(from->w * from->c));
    return;
  }
  for (int64_t y = 0; y < from->h; y++)
    for (int64_t k = 0; k < from->c; k++) {
      int64_t in = y * from->sh + k * from->sc, out = y * from->w * from->c + k;
      if (from->is_float)
        for (int64_t x = 0; x < from->w; x++) tf[out + x * from->c] = f[in + x * from->sw];
      else
        for (int64_t x = 0; x < from->w; x++) tb[out + x * from->c] = b[in + x * from->sw];
    }
}

void plk_image_to_float(const PlkImage *from, float *to, const float *scale, const float *shift) {
  const PlkImageLoops *loops = &PLK_ISA_PICK(plk_image);
  for (int64_t k = 0; k < from->c; k++)
    for (int64_t y = 0; y < from->h; y++) {
      float *row = to + (k * from->h + y) * from->w;
      int64_t at = k * from->sc + y * from->sh;
      if (!from->is_float) {
        loops->plane_u8((const uint8_t *)from->data + at, from->sw, scale[k], shift[k], row, from->w);
        continue;
      }
      const float *f = (const float *)from->data + at;
      for (int64_t x = 0; x < from->w; x++) row[x] = f[x * from->sw] * scale[k] + shift[k];
    }
}

/* ---- colours -------------------------------------------------------------------------------------------------------------- */

/* Values as floats from 0 to `top`; bytes are cut, not rounded, as torchvision's conversion does. */
static float get(const void *p, bool is_float, int64_t i) { return is_float ? ((const float *)p)[i] : (float)((const uint8_t *)p)[i]; }

static void put(void *p, bool is_float, int64_t i, float v) {
  float top = is_float ? 1.0f : 255.0f;
  v = v < 0 ? 0 : v > top ? top : v;
  if (is_float) ((float *)p)[i] = v;
  else ((uint8_t *)p)[i] = (uint8_t)v;
}

static float gray(const void *p, bool is_float, int64_t i) {
  float v = 0.2989f * get(p, is_float, i) + 0.587f * get(p, is_float, i + 1) + 0.114f * get(p, is_float, i + 2);
  return is_float ? v : floorf(v);
}

static float mean_gray(const void *p, bool is_float, int64_t n, int64_t c) {
  double sum = 0;
  for (int64_t i = 0; i < n * c; i += c) sum += (double)(c >= 3 ? gray(p, is_float, i) : get(p, is_float, i));
  return (float)(sum / (double)n);
}

/* Smith 1978: hue from 0 to 1, turned, and back. */
static void turn_hue(float *rgb, float by) {
  float hi = fmaxf(rgb[0], fmaxf(rgb[1], rgb[2])), lo = fminf(rgb[0], fminf(rgb[1], rgb[2])), d = hi - lo;
  if (d <= 0) return;
  float h = rgb[0] == hi ? (rgb[1] - rgb[2]) / d : rgb[1] == hi ? 2 + (rgb[2] - rgb[0]) / d : 4 + (rgb[0] - rgb[1]) / d;
  h = h / 6 + by;
  h = (h - floorf(h)) * 6;
  int sector = (int)h % 6;
  float s = d / hi, f = h - floorf(h), p = hi * (1 - s), q = hi * (1 - s * f), t = hi * (1 - s * (1 - f));
  const float table[6][3] = {{hi, t, p}, {q, hi, p}, {p, hi, t}, {p, q, hi}, {t, p, hi}, {hi, p, q}};
  memcpy(rgb, table[sector], 3 * sizeof *rgb);
}

static void adjust_hue(void *p, bool is_float, int64_t n, int64_t c, float by) {
  const float top = is_float ? 1.0f : 255.0f;
  for (int64_t i = 0; i < n * c; i += c) {
    float rgb[3];
    for (int k = 0; k < 3; k++) rgb[k] = get(p, is_float, i + k) / top;
    turn_hue(rgb, by);
    for (int k = 0; k < 3; k++) put(p, is_float, i + k, is_float ? rgb[k] : rgb[k] * 255.999f);
  }
}

void plk_image_adjust(void *p, bool is_float, int64_t n, int64_t c, PlkAdjust what, float factor) {
  int64_t colours = c >= 3 ? 3 : 1; /* alpha stays */
  if (what == PLK_HUE || what == PLK_SATURATION) {
    if (c < 3) return;
    if (what == PLK_HUE) {
      adjust_hue(p, is_float, n, c, factor);
      return;
    }
  }
  float other = what == PLK_CONTRAST ? mean_gray(p, is_float, n, c) : 0;
  for (int64_t i = 0; i < n * c; i += c) {
    if (what == PLK_SATURATION) other = gray(p, is_float, i);
    for (int64_t k = 0; k < colours; k++) put(p, is_float, i + k, factor * get(p, is_float, i + k) + (1 - factor) * other);
  }
}
