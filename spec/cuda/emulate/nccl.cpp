// SPDX-License-Identifier: MIT
// For tests: NCCL between processes whose devices are emulated. Data goes through shared memory in pieces: each rank has a
// place that all may read between two barriers, and each pair a box for messages. As with the library, calls are work on a
// stream, and messages of one group are all under way at once. PERILUNE_EMULATE: no-nccl.
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_runtime_api.h"
#include "inside.h"
#include "kernels/convert.h"
#include "language.h"
#include "nccl.h"
extern "C" {
#include "kernels/process_group_device.h"
}

namespace {

enum { RANKS = 8, PIECE = 1 << 15 };

struct Box {
  int full;
  alignas(16) char data[PIECE];
};
struct Shared {
  int arrived, round;
  alignas(16) char place[RANKS][PIECE];
  Box box[RANKS][RANKS]; // from, to
};
struct Comm {
  Shared *all;
  int rank, n;
};
struct Message {
  Comm *c;
  bool send;
  char *at;
  size_t left;
  int peer;
};

int load(int *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
void store(int *p, int v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

void barrier(Comm *c) {
  Shared *s = c->all;
  const int round = load(&s->round);
  if (__atomic_add_fetch(&s->arrived, 1, __ATOMIC_ACQ_REL) == c->n) {
    store(&s->arrived, 0);
    store(&s->round, round + 1);
  } else
    while (load(&s->round) == round) sched_yield();
}

// ---- numbers: ncclDataType_t 0 i8, 1 u8, 2 i32, 4 i64, 6 f16, 7 f32, 8 f64, 9 bf16

size_t size_of(int t) {
  static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return bytes[t];
}
double get(int t, const void *p, size_t i) {
  switch (t) {
    case 6: return plk_f16_to_f32(((const uint16_t *)p)[i]);
    case 7: return ((const float *)p)[i];
    case 8: return ((const double *)p)[i];
    default: return plk_bf16_to_f32(((const uint16_t *)p)[i]);
  }
}
void put(int t, void *p, size_t i, double v) {
  switch (t) {
    case 6: ((uint16_t *)p)[i] = plk_f32_to_f16((float)v); break;
    case 7: ((float *)p)[i] = (float)v; break;
    case 8: ((double *)p)[i] = v; break;
    default: ((uint16_t *)p)[i] = plk_f32_to_bf16((float)v);
  }
}
int64_t get_int(int t, const void *p, size_t i) {
  return t == 0 ? ((const int8_t *)p)[i] : t == 1 ? ((const uint8_t *)p)[i] : t == 2 ? ((const int32_t *)p)[i] : ((const int64_t *)p)[i];
}
void put_int(int t, void *p, size_t i, int64_t v) {
  if (t < 2) ((uint8_t *)p)[i] = (uint8_t)v;
  else if (t == 2) ((int32_t *)p)[i] = (int32_t)v;
  else ((int64_t *)p)[i] = v;
}
template <typename N> N fold(int op, N a, N b) { return op == 0 ? a + b : op == 1 ? a * b : op == 2 ? (a > b ? a : b) : a < b ? a : b; }

// The reduction of what is in all places.
void reduce_places(Comm *c, int t, int op, void *dst, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (t >= 6) {
      double v = get(t, c->all->place[0], i);
      for (int r = 1; r < c->n; r++) v = fold(op, v, get(t, c->all->place[r], i));
      put(t, dst, i, v);
    } else {
      int64_t v = get_int(t, c->all->place[0], i);
      for (int r = 1; r < c->n; r++) {
        const int64_t w = get_int(t, c->all->place[r], i);
        v = op < 2 ? (int64_t)fold<uint64_t>(op, (uint64_t)v, (uint64_t)w) : fold(op, v, w);
      }
      put_int(t, dst, i, v);
    }
  }
}

// ---- work on streams

template <typename F> int launch(cudaStream_t s, F body) {
  return plce_launch(s, dim3(1), dim3(1), 0, "nccl", body) == cudaSuccess ? 0 : 1; // ncclUnhandledCudaError
}

// For each stretch of at most a piece: everybody writes write(first, n) bytes to its place, then read(first, n) runs.
template <typename W, typename R> void in_pieces(Comm *c, size_t count, size_t size, W write, R read) {
  const size_t most = PIECE / size;
  for (size_t at = 0; at < count; at += most) {
    const size_t n = count - at < most ? count - at : most;
    write(at, n);
    barrier(c);
    read(at, n);
    barrier(c);
  }
}

thread_local Message messages[4 * RANKS];
thread_local int nmessage, depth;
thread_local cudaStream_t message_stream;

bool move(Message *m) { // a piece, if it can go now
  Box *b = m->send ? &m->c->all->box[m->c->rank][m->peer] : &m->c->all->box[m->peer][m->c->rank];
  if (load(&b->full) == (m->send ? 1 : 0)) return false;
  const size_t n = m->left < PIECE ? m->left : (size_t)PIECE;
  if (m->send) memcpy(b->data, m->at, n);
  else memcpy(m->at, b->data, n);
  m->at += n;
  m->left -= n;
  store(&b->full, m->send ? 1 : 0);
  return true;
}

int deliver(void) {
  struct List {
    Message m[4 * RANKS];
    int n;
  } list;
  memcpy(list.m, messages, sizeof messages);
  list.n = nmessage;
  nmessage = 0;
  return launch(message_stream, [list]() mutable {
    for (int left = 1; left;) {
      left = 0;
      bool moved = false;
      for (int i = 0; i < list.n; i++)
        if (list.m[i].left) {
          bool first = true; // messages between two ranks stay in order
          for (int k = 0; k < i; k++)
            first = first && !(list.m[k].left && list.m[k].send == list.m[i].send && list.m[k].peer == list.m[i].peer);
          moved = (first && move(&list.m[i])) || moved;
          left += list.m[i].left > 0;
        }
      if (!moved) sched_yield();
    }
  });
}

int message(Comm *c, bool send, const void *at, size_t n, int t, int peer, cudaStream_t s) {
  if (nmessage == 4 * RANKS || peer < 0 || peer >= c->n) return 4; // ncclInvalidArgument
  messages[nmessage++] = Message{c, send, (char *)const_cast<void *>(at), n * size_of(t), peer};
  message_stream = s;
  return depth ? 0 : deliver();
}

} // namespace

// ---- NCCL's functions

extern "C" {

static int ncclGetVersion(int *v) { return *v = 22000, 0; }
static const char *ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : code == 5 ? "invalid usage" : "error"; }

static int ncclGetUniqueId(PlkNcclId *id) {
  static int counter;
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "/perilune-nccl-%ld-%d", (long)getpid(), counter++);
  const int fd = shm_open(id->bytes, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return 2; // ncclSystemError
  close(fd);
  return 0;
}

static int ncclCommInitRank(void **out, int n, PlkNcclId id, int rank) {
  if (n > RANKS || rank < 0 || rank >= n) return 4;
  const int fd = shm_open(id.bytes, O_RDWR, 0600);
  if (fd < 0) return 2;
  void *p = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return 2;
  Comm *c = (Comm *)malloc(sizeof *c);
  if (!c) return 2;
  *c = Comm{(Shared *)p, rank, n};
  barrier(c);
  if (rank == 0) shm_unlink(id.bytes);
  *out = c;
  return 0;
}

static int ncclCommAbort(void *comm) {
  Comm *c = (Comm *)comm;
  munmap(c->all, sizeof(Shared));
  free(c);
  return 0;
}
static int ncclCommGetAsyncError(void *, int *error) { return *error = 0; }

static int ncclAllReduce(const void *src, void *dst, size_t count, int t, int op, void *comm, cudaStream_t s) {
  Comm *c = (Comm *)comm;
  return launch(s, [=] {
    const size_t z = size_of(t);
    in_pieces(c, count, z, [&](size_t at, size_t n) { memcpy(c->all->place[c->rank], (const char *)src + at * z, n * z); },
              [&](size_t at, size_t n) { reduce_places(c, t, op, (char *)dst + at * z, n); });
  });
}
static int ncclReduce(const void *src, void *dst, size_t count, int t, int op, int root, void *comm, cudaStream_t s) {
  Comm *c = (Comm *)comm;
  return launch(s, [=] {
    const size_t z = size_of(t);
    in_pieces(c, count, z, [&](size_t at, size_t n) { memcpy(c->all->place[c->rank], (const char *)src + at * z, n * z); },
              [&](size_t at, size_t n) {
                if (c->rank == root) reduce_places(c, t, op, (char *)dst + at * z, n);
              });
  });
}
static int ncclBroadcast(const void *src, void *dst, size_t count, int t, int root, void *comm, cudaStream_t s) {
  Comm *c = (Comm *)comm;
  return launch(s, [=] {
    const size_t z = size_of(t);
    in_pieces(c, count, z,
              [&](size_t at, size_t n) {
                if (c->rank == root) memcpy(c->all->place[root], (const char *)src + at * z, n * z);
              },
              [&](size_t at, size_t n) {
                if (c->rank != root) memcpy((char *)dst + at * z, c->all->place[root], n * z);
              });
  });
}
static int ncclAllGather(const void *src, void *dst, size_t count, int t, void *comm, cudaStream_t s) {
  Comm *c = (Comm *)comm;
  return launch(s, [=] {
    const size_t z = size_of(t);
    in_pieces(c, count, z, [&](size_t at, size_t n) { memcpy(c->all->place[c->rank], (const char *)src + at * z, n * z); },
              [&](size_t at, size_t n) {
                for (int r = 0; r < c->n; r++) memcpy((char *)dst + ((size_t)r * count + at) * z, c->all->place[r], n * z);
              });
  });
}
static int ncclReduceScatter(const void *src, void *dst, size_t count, int t, int op, void *comm, cudaStream_t s) {
  Comm *c = (Comm *)comm;
  return launch(s, [=] {
    const size_t z = size_of(t);
    for (int to = 0; to < c->n; to++)
      in_pieces(c, count, z,
                [&](size_t at, size_t n) {
                  memcpy(c->all->place[c->rank], (const char *)src + ((size_t)to * count + at) * z, n * z);
                },
                [&](size_t at, size_t n) {
                  if (to == c->rank) reduce_places(c, t, op, (char *)dst + at * z, n);
                });
  });
}
static int ncclSend(const void *src, size_t n, int t, int peer, void *comm, cudaStream_t s) {
  return message((Comm *)comm, true, src, n, t, peer, s);
}
static int ncclRecv(void *dst, size_t n, int t, int peer, void *comm, cudaStream_t s) {
  return message((Comm *)comm, false, dst, n, t, peer, s);
}
static int ncclGroupStart(void) { return depth++, 0; }
static int ncclGroupEnd(void) { return --depth || !nmessage ? 0 : deliver(); }

void (*plce_nccl_symbol(const char *name))(void) {
  static const struct {
    const char *name;
    void (*f)(void);
  } here[] = {
#define HERE(f) {#f, (void (*)(void))f},
      HERE(ncclGetVersion) HERE(ncclGetErrorString) HERE(ncclGetUniqueId) HERE(ncclCommInitRank) HERE(ncclCommAbort)
      HERE(ncclCommGetAsyncError) HERE(ncclAllReduce) HERE(ncclReduce) HERE(ncclBroadcast) HERE(ncclAllGather)
      HERE(ncclReduceScatter) HERE(ncclSend) HERE(ncclRecv) HERE(ncclGroupStart) HERE(ncclGroupEnd)};
  for (size_t i = 0; i < sizeof here / sizeof *here; i++)
    if (strcmp(here[i].name, name) == 0) return here[i].f;
  return NULL;
}
} // extern "C"
