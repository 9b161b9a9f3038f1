/* SPDX-License-Identifier: MIT
 * perilune inside a C program: the host owns the data and the loop, a script owns the model. Build and run:
 *   cc embed.c -o embed $(pkg-config --cflags --libs lua5.4) \
 *     -DLUA_PATH_="\"$(pkg-config --variable=lua_path perilune)\"" \
 *     -DLUA_CPATH_="\"$(pkg-config --variable=lua_cpath perilune)\""
 *   ./embed model.lua
 * Arrays pass as strings of bytes (T.from_string, x:to_string()): one copy, no Lua number in between. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

enum { SAMPLES = 256, STEPS = 400 };

/* Prints what went wrong and takes it from the stack. */
static int failed(lua_State *L, const char *what) {
  fprintf(stderr, "embed: %s: %s\n", what, lua_tostring(L, -1));
  lua_pop(L, 1);
  return 1;
}

/* Makes `require "perilune"` find the modules that pkg-config named at build time. */
static void set_paths(lua_State *L) {
  lua_getglobal(L, "package");
  lua_pushfstring(L, "%s;", LUA_PATH_);
  lua_getfield(L, -2, "path");
  lua_concat(L, 2);
  lua_setfield(L, -2, "path");
  lua_pushfstring(L, "%s;", LUA_CPATH_);
  lua_getfield(L, -2, "cpath");
  lua_concat(L, 2);
  lua_setfield(L, -2, "cpath");
  lua_pop(L, 1);
}

/* model.step(x, y) → loss; the model's table is at index 1. */
static int step(lua_State *L, const float *x, const float *y, double *loss) {
  lua_getfield(L, 1, "step");
  lua_pushlstring(L, (const char *)x, SAMPLES * sizeof *x);
  lua_pushlstring(L, (const char *)y, SAMPLES * sizeof *y);
  if (lua_pcall(L, 2, 1, 0) != LUA_OK) return failed(L, "step");
  *loss = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return 0;
}

/* model.predict(x) → bytes of as many floats */
static int predict(lua_State *L, const float *x, size_t n, float *out) {
  lua_getfield(L, 1, "predict");
  lua_pushlstring(L, (const char *)x, n * sizeof *x);
  if (lua_pcall(L, 1, 1, 0) != LUA_OK) return failed(L, "predict");
  size_t size = 0;
  const char *bytes = lua_tolstring(L, -1, &size);
  int wrong = !bytes || size != n * sizeof *out;
  if (!wrong) memcpy(out, bytes, size);
  lua_pop(L, 1);
  return wrong;
}

static int run(lua_State *L, const char *script) {
  static float x[SAMPLES], y[SAMPLES];
  const float asked[3] = {-1.0f, 0.5f, 2.0f};
  float got[3];
  double loss = 0, worst = 0;
  if (luaL_loadfile(L, script) != LUA_OK || lua_pcall(L, 0, 1, 0) != LUA_OK) return failed(L, script);
  for (int i = 0; i < SAMPLES; i++) {
    x[i] = -3.0f + 6.0f * (float)i / SAMPLES;
    y[i] = sinf(x[i]);
  }
  for (int i = 0; i < STEPS; i++)
    if (step(L, x, y, &loss)) return 1;
  if (predict(L, asked, 3, got)) return 1;
  for (int i = 0; i < 3; i++) {
    double error = fabs((double)got[i] - sin((double)asked[i]));
    if (error > worst) worst = error;
    printf("sin(%.1f) = %.4f, the network says %.4f\n", (double)asked[i], sin((double)asked[i]), (double)got[i]);
  }
  printf("loss %.6f, largest error %.4f\n", loss, worst);
  if (worst > 0.1) return fputs("embed: it did not learn\n", stderr), 1;
  puts("ok");
  return 0;
}

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  if (!L) return fputs("embed: out of memory\n", stderr), 1;
  luaL_openlibs(L);
  set_paths(L);
  int status = run(L, argc > 1 ? argv[1] : "model.lua");
  lua_close(L); /* frees every tensor */
  return status;
}
