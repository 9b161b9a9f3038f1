/* SPDX-License-Identifier: MIT
 * See nvrtc.h. A cache file is a head (magic, hash of all that the code depends on, size, hash of the code) and the code;
 * one that does not fit is compiled again and replaced. Files are written beside their place and renamed into it. */
#include "kernels/cuda/libs/nvrtc.h"

#include <errno.h>
#include <nvrtc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/libs/library.h"

#define PLC_RTC_FUNCTIONS(X) \
  X(nvrtcVersion)            \
  X(nvrtcGetErrorString)     \
  X(nvrtcCreateProgram)      \
  X(nvrtcDestroyProgram)     \
  X(nvrtcCompileProgram)     \
  X(nvrtcGetCUBINSize)       \
  X(nvrtcGetCUBIN)           \
  X(nvrtcGetProgramLogSize)  \
  X(nvrtcGetProgramLog)

typedef struct Api {
#define PLC_X(name) __typeof__(&name) name;
  PLC_RTC_FUNCTIONS(PLC_X)
#undef PLC_X
} Api;

static struct {
  pthread_once_t once;
  Api api;
  char missing[256], version[16];
} rtc = {.once = PTHREAD_ONCE_INIT};

static void open_rtc(void) {
  static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", NULL};
  static const PlcSymbol symbols[] = {
#define PLC_X(name) {#name, offsetof(Api, name)},
      PLC_RTC_FUNCTIONS(PLC_X)
#undef PLC_X
          {NULL, 0}};
  int major = 0, minor = 0;
  if (!plc_library_open("NVRTC", files, symbols, &rtc.api, rtc.missing, sizeof rtc.missing)) return;
  (void)rtc.api.nvrtcVersion(&major, &minor);
  snprintf(rtc.version, sizeof rtc.version, "%d.%d", major, minor);
}

const char *plc_nvrtc_version(void) {
  pthread_once(&rtc.once, open_rtc);
  return rtc.missing[0] ? NULL : rtc.version;
}

/* ---- compiling -------------------------------------------------------------------------------------------------- */

enum { HEADERS = 32 };

static PlStatus refused(nvrtcProgram p, nvrtcResult r) {
  size_t n = 0;
  char *log = rtc.api.nvrtcGetProgramLogSize(p, &n) == NVRTC_SUCCESS && n > 1 ? malloc(n + 1) : NULL;
  if (log && rtc.api.nvrtcGetProgramLog(p, log) != NVRTC_SUCCESS) log[0] = '\0';
  PlStatus s =
      pl_fail(PL_ERR_STATE, "nvrtc: a generated kernel does not compile: %s: %.400s", rtc.api.nvrtcGetErrorString(r), log ? log : "");
  free(log);
  return s;
}

static PlStatus compile(const char *source, int arch, void **image, size_t *size) {
  const char *name[HEADERS], *text[HEADERS];
  char target[32];
  int n = 0;
  for (const PlcHeader *h = plc_headers; h->name && n < HEADERS; h++, n++) {
    name[n] = h->name;
    text[n] = h->text;
  }
  nvrtcProgram p = NULL;
  nvrtcResult r = rtc.api.nvrtcCreateProgram(&p, source, "fused.cu", n, text, name);
  if (r != NVRTC_SUCCESS) PL_FAIL(PL_ERR_STATE, "nvrtc: %s", rtc.api.nvrtcGetErrorString(r));
  snprintf(target, sizeof target, "--gpu-architecture=sm_%d", arch);
  const char *const options[] = {target, "--std=c++17", "--fmad=false", "--device-as-default-execution-space", "-dopt=on"};
  r = rtc.api.nvrtcCompileProgram(p, (int)(sizeof options / sizeof *options), options);
  PlStatus s = r == NVRTC_SUCCESS ? PL_OK : refused(p, r);
  size_t bytes = 0;
  char *code = NULL;
  if (s == PL_OK) {
    r = rtc.api.nvrtcGetCUBINSize(p, &bytes);
    code = r == NVRTC_SUCCESS ? malloc(bytes) : NULL;
    if (code) r = rtc.api.nvrtcGetCUBIN(p, code);
    if (!code || r != NVRTC_SUCCESS)
      s = pl_fail(PL_ERR_STATE, "nvrtc: no machine code for sm_%d: %s", arch, rtc.api.nvrtcGetErrorString(r));
  }
  (void)rtc.api.nvrtcDestroyProgram(&p);
  if (s != PL_OK) {
    free(code);
    return s;
  }
  *image = code;
  *size = bytes;
  return PL_OK;
}

/* ---- the cache ------------------------------------------------------------------------------------------------------ */

typedef struct Head {
  char magic[8];
  uint64_t key, size, sum;
} Head;
static const char magic[8] = "PLCUBIN1";

/* FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t mix(uint64_t h, const void *p, size_t n) {
  for (size_t k = 0; k < n; k++) h = (h ^ ((const unsigned char *)p)[k]) * 0x100000001B3u;
  return h;
}
static uint64_t key_of(const char *source, int arch) {
  uint64_t h = mix(0xCBF29CE484222325u, source, strlen(source) + 1);
  h = mix(h, &arch, sizeof arch);
  h = mix(h, rtc.version, strlen(rtc.version) + 1);
  for (const PlcHeader *p = plc_headers; p->name; p++) h = mix(h, p->text, strlen(p->text) + 1);
  return h;
}

/* The file for a key; makes the folder. False: there is no cache. */
static bool path_of(uint64_t key, int arch, char *path, size_t size) {
  const char *own = getenv("PERILUNE_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n = -1;
  if (own) n = *own ? snprintf(path, size, "%s", own) : -1;
  else if (xdg && *xdg) n = snprintf(path, size, "%s/perilune", xdg);
  else if (home && *home) n = snprintf(path, size, "%s/.cache/perilune", home);
  if (n < 0 || (size_t)n + 64 > size) return false;
  for (char *at = path + 1; *at; at++) { /* folder by folder; what is there already is fine */
    if (*at != '/') continue;
    *at = '\0';
    (void)mkdir(path, 0777);
    *at = '/';
  }
  if (mkdir(path, 0777) != 0 && errno != EEXIST) return false;
  snprintf(path + n, size - (size_t)n, "/sm%d-%016llx.cubin", arch, (unsigned long long)key);
  return true;
}

static bool read_cached(const char *path, uint64_t key, void **image, size_t *size) {
  FILE *f = fopen(path, "rb");
  Head h;
  void *code = NULL;
  if (!f) return false;
  bool ok = fread(&h, sizeof h, 1, f) == 1 && memcmp(h.magic, magic, sizeof magic) == 0 && h.key == key && h.size > 0 &&
            h.size < ((uint64_t)1 << 30);
  if (ok) code = malloc((size_t)h.size);
  ok = ok && code && fread(code, 1, (size_t)h.size, f) == h.size && mix(0, code, (size_t)h.size) == h.sum;
  (void)fclose(f);
  if (!ok) {
    free(code);
    return false;
  }
  *image = code;
  *size = (size_t)h.size;
  return true;
}

/* Best effort: a full disk only means that the next process compiles again. */
static void write_cached(const char *path, uint64_t key, const void *image, size_t size) {
  char beside[1100];
  Head h = {.key = key, .size = size, .sum = mix(0, image, size)};
  memcpy(h.magic, magic, sizeof magic);
  snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
  FILE *f = fopen(beside, "wb");
  if (!f) return;
  bool ok = fwrite(&h, sizeof h, 1, f) == 1 && fwrite(image, 1, size, f) == size;
  if (fclose(f) != 0 || !ok || rename(beside, path) != 0) (void)remove(beside);
}

PlStatus plc_nvrtc_compile(const char *source, int arch, void **image, size_t *size, bool *fresh) {
  char path[1024];
  if (fresh) *fresh = false;
  if (!plc_nvrtc_version()) PL_FAIL(PL_ERR_UNSUPPORTED, "%s", rtc.missing);
  const uint64_t key = key_of(source, arch);
  const bool cached = path_of(key, arch, path, sizeof path);
  if (cached && read_cached(path, key, image, size)) return PL_OK;
  PL_TRY(compile(source, arch, image, size));
  if (fresh) *fresh = true;
  if (cached) write_cached(path, key, *image, *size);
  return PL_OK;
}
