/* SPDX-License-Identifier: MIT
 * The loops of isa/pool.c for one type: T, I (an integer as wide) and SFX are given. Included twice, no guard.
 * A row with padding is dealt out to `stride` phases, so that the k-th elements of all windows are adjacent. */
#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkP, SFX)
#define N          CAT1(PLK_W, SFX)
#define EVEN       CAT1(even, SFX)
#define ODD        CAT1(odd, SFX)

/* The parts of the room. Windows of a row are rounded up to whole steps: what is beyond is never stored. */
typedef struct FN(Room) {
  int64_t slots, wo, wp;   /* rows kept, windows in a row rounded up, columns of a phase */
  T *line, *phase;         /* a row with its padding [stride * wp]; the same dealt out [stride][wp] */
  T *best, *now, *spread;  /* [slots][wo], [wo], [in] */
  I *code, *code_now, *to; /* [slots][wo], [wo], [wo]: the first place of each window less its column times stride */
  I *column;               /* [wo]: the column times stride */
  int64_t *held;           /* the row in a slot, -1: none */
} FN(Room);

/* fresh: what is alike for all planes is written too. */
static FN(Room) FN(rooms)(const PlkPool *p, void *mem, T fill, bool fresh) {
  const int64_t s = p->stride[2], d = p->dil[2];
  FN(Room) r = {.slots = plk_pool_slots(p), .wo = plk_pool_wide(p), .wp = plk_pool_phase(p)};
  r.held = mem;
  r.line = (T *)(r.held + r.slots);
  r.phase = s == 1 ? r.line : r.line + s * r.wp;
  r.best = r.line + 2 * s * r.wp;
  r.now = r.best + r.slots * r.wo;
  r.spread = r.now + r.wo;
  r.code = (I *)(r.spread + p->in[2]);
  r.code_now = r.code + r.slots * r.wo;
  r.to = r.code_now + r.wo;
  r.column = r.to + r.wo;
  for (int64_t i = 0; i < r.slots; i++) r.held[i] = -1;
  if (!fresh) return r;
  for (int64_t i = 0; i < s * r.wp; i++) r.line[i] = fill; /* no row writes the padding */
  for (int64_t ox = 0; ox < r.wo; ox++) {
    const int64_t from = ox * s - p->pad[2];
    r.to[ox] = (I)(from < 0 ? (-from + d - 1) / d * d : 0);
    r.column[ox] = (I)(ox * s);
  }
  return r;
}

/* A row of x into phases: phase f holds what is at f, f + stride … of the row with its padding. */
static void FN(deal)(const PlkPool *p, const FN(Room) * r, const T *x) {
  const int64_t s = p->stride[2], room = s * r->wp - p->pad[2];
  memcpy(r->line + p->pad[2], x, (size_t)(p->in[2] < room ? p->in[2] : room) * sizeof *x);
  if (s == 2) {
    for (int64_t q = 0; q < r->wp; q += N) {
      const V a = *(const V *)(r->line + 2 * q), b = *(const V *)(r->line + 2 * q + N);
      *(V *)(r->phase + q) = EVEN(a, b);
      *(V *)(r->phase + r->wp + q) = ODD(a, b);
    }
  } else if (s > 2) {
    for (int64_t f = 0; f < s; f++)
      for (int64_t q = 0; q < r->wp; q++) r->phase[f * r->wp + q] = r->line[q * s + f];
  }
}

/* The k-th elements of a row's windows. */
static inline T *FN(kth)(const PlkPool *p, const FN(Room) * r, int64_t k) {
  const int64_t u = k * p->dil[2];
  return r->phase + u % p->stride[2] * r->wp + u / p->stride[2];
}

/* ---- max ---- */

/* A later NaN always wins, else what is greater: a scan in row-major order. */
#define TAKE(x, at)                         \
  {                                         \
    const T v_ = (x);                       \
    const int yes_ = (v_ > b) | (v_ != v_); \
    const I at_ = (at);                     \
    b = yes_ ? v_ : b;                      \
    c = yes_ ? at_ : c;                     \
  }
/* The same without places. */
#define TAKE_VALUE(x)                   \
  {                                     \
    const T v_ = (x);                   \
    b = (v_ > b) | (v_ != v_) ? v_ : b; \
  }
#define EACH(n, ...)                         \
  for (int64_t q = 0; q < (n); q += STEP)    \
    for (int64_t i = q; i < q + STEP; i++) { \
      __VA_ARGS__                            \
    }

/* The first `count` elements of windows (2 or 3 known to the compiler), then one by one. */
PLK_LANE void FN(first)(const T *PL_RESTRICT v0, const T *PL_RESTRICT v1, const T *PL_RESTRICT v2, bool three, I base, I dil,
                        const I *PL_RESTRICT to, T *PL_RESTRICT best, I *PL_RESTRICT code, int64_t n) {
  EACH(n, {
    T b = -(T)INFINITY;
    I c = base + to[i];
    TAKE(v0[i], base)
    TAKE(v1[i], base + dil)
    if (three) TAKE(v2[i], base + 2 * dil)
    best[i] = b;
    code[i] = c;
  })
}
static void FN(take)(T *PL_RESTRICT best, I *PL_RESTRICT code, const T *PL_RESTRICT v, int64_t n, I at) {
  EACH(n, {
    T b = best[i];
    I c = code[i];
    TAKE(v[i], at)
    best[i] = b;
    code[i] = c;
  })
}
static void FN(take_rows)(T *PL_RESTRICT best, I *PL_RESTRICT code, const T *PL_RESTRICT v, const I *PL_RESTRICT from,
                          int64_t n){EACH(n,
                                          {
                                            T b = best[i];
                                            I c = code[i];
                                            TAKE(v[i], from[i])
                                            best[i] = b;
                                            code[i] = c;
                                          })}

PLK_LANE void FN(first_values)(const T *PL_RESTRICT v0, const T *PL_RESTRICT v1, const T *PL_RESTRICT v2, bool three, T *PL_RESTRICT best,
                               int64_t n) {
  EACH(n, {
    T b = v0[i];
    TAKE_VALUE(v1[i])
    if (three) TAKE_VALUE(v2[i])
    best[i] = b;
  })
}
static void FN(take_values)(T *PL_RESTRICT best, const T *PL_RESTRICT v, int64_t n) {
  EACH(n, {
    T b = best[i];
    TAKE_VALUE(v[i])
    best[i] = b;
  })
}

/* The slot with the windows of row `row` of the plane: their maxima, and their places less ox * stride. */
static int64_t FN(max_row)(const PlkPool *p, const FN(Room) * r, const T *x, int64_t row, bool places) {
  const int64_t slot = row % r->slots;
  if (r->held[slot] == row) return slot;
  r->held[slot] = row;
  T *best = r->best + slot * r->wo;
  I *code = r->code + slot * r->wo;
  const I base = (I)(row * p->in[2] - p->pad[2]), d = (I)p->dil[2];
  FN(deal)(p, r, x + row * p->in[2]);
  const T *v0 = FN(kth)(p, r, 0), *v1 = FN(kth)(p, r, 1), *v2 = FN(kth)(p, r, 2);
  int64_t k = p->k[2] < 3 ? p->k[2] : 3;
  if (!places) {
    if (k == 3) FN(first_values)(v0, v1, v2, true, best, r->wo);
    else FN(first_values)(v0, k == 2 ? v1 : v0, v0, false, best, r->wo);
    for (; k < p->k[2]; k++) FN(take_values)(best, FN(kth)(p, r, k), r->wo);
    return slot;
  }
  if (k == 3) FN(first)(v0, v1, v2, true, base, d, r->to, best, code, r->wo);
  else if (k == 2) FN(first)(v0, v1, v1, false, base, d, r->to, best, code, r->wo);
  else FN(first)(v0, v0, v0, false, base, 0, r->to, best, code, r->wo);
  for (; k < p->k[2]; k++) FN(take)(best, code, FN(kth)(p, r, k), r->wo, base + (I)k * d);
  return slot;
}

static void FN(places)(int64_t *PL_RESTRICT index, const I *PL_RESTRICT code, const I *PL_RESTRICT column, int64_t n) {
  for (int64_t i = 0; i < n; i++) index[i] = (int64_t)(code[i] + column[i]);
}

/* Windows along one row alone, a stride of 1 or 2, no places: no row has to be kept, so it is read where it is. */
static bool FN(alone)(const PlkPool *p) {
  bool yes = p->stride[2] <= 2 && p->in[2] < (1 << 28);
  for (int d = 0; d < 2; d++) yes = yes && p->k[d] == 1 && p->stride[d] == 1 && p->pad[d] == 0 && p->out[d] == p->in[d];
  return yes;
}
PLK_LANE V FN(larger)(V b, V v) {
  const CAT1(PlkPM, SFX) m = (CAT1(PlkPM, SFX))(v > b) | (CAT1(PlkPM, SFX))(v != v);
  return (V)(((CAT1(PlkPM, SFX))v & m) | ((CAT1(PlkPM, SFX))b & ~m));
}
/* Windows q … below `to`, one after the other. */
static int64_t FN(windows)(const PlkPool *p, T *y, const T *x, int64_t q, int64_t to) {
  for (; q < to; q++) {
    T b = -(T)INFINITY;
    for (int64_t k = 0, at = q * p->stride[2] - p->pad[2]; k < p->k[2]; k++, at += p->dil[2])
      if (at >= 0 && at < p->in[2]) TAKE_VALUE(x[at])
    y[q] = b;
  }
  return q;
}
PLK_LANE V FN(strided)(const T *x, bool two) { return two ? EVEN(*(const V *)x, *(const V *)(x + N)) : *(const V *)x; }
PLK_LANE int64_t FN(inner_windows)(const PlkPool *p, T *y, const T *x, int64_t q, int64_t to, bool two, int64_t count) {
  const int64_t s = two ? 2 : 1, d = p->dil[2];
  if (to - q < N) return q;
  for (; q < to; q += N) {
    if (to - q < N) q = to - N; /* some of them once more */
    const T *at = x + q * s - p->pad[2];
    V b = FN(strided)(at, two);
    for (int64_t k = 1; k < count; k++) b = FN(larger)(b, FN(strided)(at + k * d, two));
    *(V *)(y + q) = b;
  }
  return to;
}
static void FN(max_alone)(const PlkPool *p, T *y, const T *x) {
  const int64_t s = p->stride[2], k = p->k[2], n = p->out[2], left = (p->pad[2] + s - 1) / s;
  const int64_t last = p->in[2] + p->pad[2] - (p->k[2] - 1) * p->dil[2] - s * N; /* vectors of windows from q on read below x + in */
  const int64_t most = last < 0 ? 0 : last / s + N, inner = most < n ? most : n;
  for (int64_t r = 0; r < p->out[0] * p->out[1]; r++, y += n, x += p->in[2]) {
    int64_t q = FN(windows)(p, y, x, 0, left < n ? left : n);
    if (s == 2) q = k == 3 ? FN(inner_windows)(p, y, x, q, inner, true, 3) : FN(inner_windows)(p, y, x, q, inner, true, k);
    else q = k == 3 ? FN(inner_windows)(p, y, x, q, inner, false, 3) : FN(inner_windows)(p, y, x, q, inner, false, k);
    FN(windows)(p, y, x, q, n);
  }
}

static void FN(max)(const PlkPool *p, T *y, const T *x, int64_t *index, void *mem, bool fresh) {
  if (!index && FN(alone)(p)) {
    FN(max_alone)(p, y, x);
    return;
  }
  const FN(Room) r = FN(rooms)(p, mem, -(T)INFINITY, fresh);
  const int64_t wo = p->out[2];
  for (int64_t oz = 0, o = 0; oz < p->out[0]; oz++)
    for (int64_t oy = 0; oy < p->out[1]; oy++, o += wo) {
      const PlkSpan z = plk_pool_span(p, 0, oz), v = plk_pool_span(p, 1, oy);
      const T *now = NULL;
      const I *code_now = NULL;
      for (int64_t i = z.lo; i < z.hi; i += z.step)
        for (int64_t j = v.lo; j < v.hi; j += v.step) {
          const int64_t slot = FN(max_row)(p, &r, x, i * p->in[1] + j, index != NULL);
          const T *best = r.best + slot * r.wo;
          const I *code = r.code + slot * r.wo;
          if (!now) {
            now = best, code_now = code; /* where it is, until another row is joined with it */
            continue;
          }
          if (now != r.now) {
            memcpy(r.now, now, (size_t)r.wo * sizeof *best);
            if (index) memcpy(r.code_now, code_now, (size_t)r.wo * sizeof *code);
            now = r.now, code_now = r.code_now;
          }
          if (index) FN(take_rows)(r.now, r.code_now, best, code, r.wo);
          else FN(take_values)(r.now, best, r.wo);
        }
      if (y) memcpy(y + o, now, (size_t)wo * sizeof *y);
      if (index) FN(places)(index + o, code_now, r.column, wo);
    }
}

/* ---- average ---- */

static void FN(add)(T *PL_RESTRICT to, const T *PL_RESTRICT v, int64_t n) { EACH(n, to[i] += v[i];) }

static void FN(add_line)(T *PL_RESTRICT to, const T *PL_RESTRICT v, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] += v[i];
}

/* What the windows of an output row are divided by: `rows` of them times the columns that each has. */
static void FN(divisors)(const PlkPool *p, const PlkSpan *z, const PlkSpan *y, const T *columns, T *PL_RESTRICT by) {
  const int64_t rows = p->include_pad ? z->full * y->full : z->count * y->count;
  const T d = (T)p->divisor, n = (T)rows;
  for (int64_t ox = 0; ox < p->out[2]; ox++) by[ox] = p->divisor ? d : n * columns[ox];
}
static void FN(columns)(const PlkPool *p, T *columns) {
  for (int64_t ox = 0; ox < p->out[2]; ox++) {
    const PlkSpan x = plk_pool_span(p, 2, ox);
    columns[ox] = (T)(p->include_pad ? x.full : x.count);
  }
}

static int64_t FN(sum_row)(const PlkPool *p, const FN(Room) * r, const T *x, int64_t row) {
  const int64_t slot = row % r->slots;
  if (r->held[slot] == row) return slot;
  r->held[slot] = row;
  T *sum = r->best + slot * r->wo;
  FN(deal)(p, r, x + row * p->in[2]);
  memcpy(sum, FN(kth)(p, r, 0), (size_t)r->wo * sizeof *sum);
  for (int64_t k = 1; k < p->k[2]; k++) FN(add)(sum, FN(kth)(p, r, k), r->wo);
  return slot;
}

/* Windows side by side. */
static bool FN(apart)(const PlkPool *p) {
  const int64_t k = p->k[2];
  return k > 1 && k == p->stride[2] && p->pad[2] == 0 && p->dil[2] == 1 && k * p->out[2] <= p->in[2] && p->k[1] <= p->stride[1];
}

/* Rows are added first, then the columns of each window. */
static void FN(sum_apart)(const PlkPool *p, const FN(Room) * r, const T *x, const PlkSpan *z, const PlkSpan *v) {
  const int64_t k = p->k[2];
  T *line = r->spread;
  bool first = true;
  for (int64_t i = z->lo; i < z->hi; i += z->step)
    for (int64_t j = v->lo; j < v->hi; j += v->step, first = false) {
      const T *row = x + (i * p->in[1] + j) * p->in[2];
      if (first) memcpy(line, row, (size_t)p->in[2] * sizeof *line);
      else FN(add_line)(line, row, p->in[2]);
    }
  if (k == 2)
    for (int64_t q = 0; q < p->out[2]; q++) r->now[q] = line[2 * q] + line[2 * q + 1];
  else
    for (int64_t q = 0; q < p->out[2]; q++) {
      T sum = line[q * k];
      for (int64_t j = 1; j < k; j++) sum += line[q * k + j];
      r->now[q] = sum;
    }
}

static void FN(avg)(const PlkPool *p, T *y, const T *x, void *mem, bool fresh) {
  const FN(Room) r = FN(rooms)(p, mem, 0, fresh);
  T *by = (T *)r.code_now, *columns = (T *)r.to;
  const bool apart = FN(apart)(p);
  if (fresh) FN(columns)(p, columns);
  for (int64_t oz = 0; oz < p->out[0]; oz++)
    for (int64_t oy = 0; oy < p->out[1]; oy++, y += p->out[2]) {
      const PlkSpan z = plk_pool_span(p, 0, oz), v = plk_pool_span(p, 1, oy);
      if (apart) FN(sum_apart)(p, &r, x, &z, &v);
      else memset(r.now, 0, (size_t)r.wo * sizeof *y);
      for (int64_t i = z.lo; i < z.hi && !apart; i += z.step)
        for (int64_t j = v.lo; j < v.hi; j += v.step) FN(add)(r.now, r.best + FN(sum_row)(p, &r, x, i * p->in[1] + j) * r.wo, r.wo);
      FN(divisors)(p, &z, &v, columns, by);
      for (int64_t ox = 0; ox < p->out[2]; ox++) y[ox] = r.now[ox] / by[ox];
    }
}

/* The row that was dealt out to phases. */
#define GATHER(S) \
  for (int64_t q = q0; q < q1; q++) line[q * (S) + from] = v[q];
static void FN(undeal)(const PlkPool *p, const FN(Room) * r) {
  T *PL_RESTRICT line = r->spread;
  const int64_t s = p->stride[2];
  for (int64_t ph = 0; ph < s; ph++) {
    const T *PL_RESTRICT v = r->phase + ph * r->wp;
    const int64_t from = ph - p->pad[2], q0 = from < 0 ? (-from + s - 1) / s : 0;
    const int64_t inside = from < p->in[2] ? (p->in[2] - from + s - 1) / s : 0, q1 = inside < r->wp ? inside : r->wp;
    if (s == 1) {
      GATHER(1)
    } else if (s == 2) {
      GATHER(2)
    } else {
      GATHER(s)
    }
  }
}
#undef GATHER

/* An output row's shares spread along the row are the same for all rows of its windows. */
static void FN(avg_back)(const PlkPool *p, T *dx, const T *dy, void *mem, bool fresh) {
  const FN(Room) r = FN(rooms)(p, mem, 0, fresh);
  T *by = (T *)r.code_now, *columns = (T *)r.to;
  const bool apart = FN(apart)(p);
  if (fresh) FN(columns)(p, columns);
  for (int64_t ox = 0; ox < r.wo; ox++) r.now[ox] = 0;
  memset(dx, 0, (size_t)p->insize * sizeof *dx);
  memset(r.spread, 0, (size_t)p->in[2] * sizeof *dx); /* columns that no window reaches */
  for (int64_t oz = 0; oz < p->out[0]; oz++)
    for (int64_t oy = 0; oy < p->out[1]; oy++, dy += p->out[2]) {
      const PlkSpan z = plk_pool_span(p, 0, oz), v = plk_pool_span(p, 1, oy);
      FN(divisors)(p, &z, &v, columns, by);
      for (int64_t ox = 0; ox < p->out[2]; ox++) r.now[ox] = dy[ox] / by[ox];
      if (apart && p->k[2] == 2) {
        for (int64_t ox = 0; ox < p->out[2]; ox++) r.spread[2 * ox] = r.spread[2 * ox + 1] = r.now[ox];
      } else if (apart) {
        for (int64_t ox = 0, at = 0; ox < p->out[2]; ox++)
          for (int64_t k = 0; k < p->k[2]; k++) r.spread[at++] = r.now[ox];
      } else {
        memset(r.phase, 0, (size_t)(p->stride[2] * r.wp) * sizeof *dx);
        for (int64_t k = 0; k < p->k[2]; k++) FN(add)(FN(kth)(p, &r, k), r.now, r.wo);
        FN(undeal)(p, &r);
      }
      for (int64_t i = z.lo; i < z.hi; i += z.step)
        for (int64_t j = v.lo; j < v.hi; j += v.step) FN(add_line)(dx + (i * p->in[1] + j) * p->in[2], r.spread, p->in[2]);
    }
}

#undef EVEN
#undef ODD
#undef N
#undef V
#undef EACH
#undef TAKE
#undef TAKE_VALUE
#undef FN
#undef CAT1
#undef CAT2
