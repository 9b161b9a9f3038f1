-- SPDX-License-Identifier: MIT
-- perilune build MODEL -o OUT: a program or library that runs one model without Lua and without the engine. The plan is
-- written as C (engine/deploy/emit.c), weights are bytes beside it, and the linker takes the kernels that it names.
local core = require "perilune.core"
local shell = require "perilune.shell"
local show = require "perilune.repl.show"

local M = {}

local C_TYPES = { f32 = "float", f64 = "double", f16 = "uint16_t", bf16 = "uint16_t", i8 = "int8_t", i16 = "int16_t",
  i32 = "int32_t", i64 = "int64_t", u8 = "uint8_t", bool = "uint8_t" }

-- ---- the system -------------------------------------------------------------------------------------------------

local quoted = shell.quote

local function exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

local function write(path, text)
  local f, message = io.open(path, "wb")
  if not f then return nil, message end
  local ok, why = f:write(text)
  local closed, too = f:close()
  return ok and closed, why or too
end

local function read(path)
  local f = io.open(path, "rb")
  local text = f and f:read "a"
  if f then f:close() end
  return text
end

-- Runs a tool; nil and what it said if it fails.
local function run(dir, command, ...)
  local words = { command }
  for _, word in ipairs { ... } do words[#words + 1] = quoted(word) end
  local line = table.concat(words, " ")
  if os.execute(("%s > %s 2>&1"):format(line, quoted(dir .. "/log"))) then return true end
  local log = read(dir .. "/log") or ""
  return nil, ("%s failed:\n%s"):format(command, #log > 2000 and log:sub(1, 2000) .. "…" or log)
end

-- Where archives and headers are: in a build folder, or below a prefix.
local function places()
  local module = package.searchpath("perilune.core", package.cpath)
  local folder = module and module:match "^(.*)/perilune/core%.so$"
  if not folder then return nil, "the modules of perilune are nowhere" end
  for _, at in ipairs { { folder, folder .. "/../share/perilune/../.." },
    { folder .. "/../..", folder .. "/../../../include/perilune" } } do
    if exists(at[1] .. "/libperilune_kernels.a") and exists(at[2] .. "/kernels/program.h") then
      return { libraries = at[1], include = at[2] }
    end
  end
  return nil, ("libperilune_kernels.a and its headers are not beside %s: they are installed where PL_DEVEL is on")
    :format(folder)
end

-- Free sizes of a saved graph by name, of --size NAME=N; nil, message. (An ONNX file has them fixed when it becomes a
-- graph.)
local function sizes_of(list)
  local out = {}
  for _, text in ipairs(list or {}) do
    local name, n = text:match "^(.+)=(%d+)$"
    out[name or ""] = n and math.tointeger(tonumber(n))
    if not out[name] then return nil, ("--size is NAME=N, got '%s'"):format(text) end
  end
  return out
end

-- ---- source ---------------------------------------------------------------------------------------------------------

local function identifier(s) return (s:gsub("[^%w_]", "_")) end

-- in_NAME and out_NAME, each once, also in capitals, as macros have them.
local function parameters(ports, kind)
  local used, list = {}, {}
  for i, p in ipairs(ports) do
    local name = kind .. "_" .. identifier(p.name)
    while used[name:upper()] do name = name .. "_" .. i end
    used[name:upper()] = true
    list[i] = { name = name, port = p, const = kind == "in" and "const " or "", type = C_TYPES[p.dtype] }
  end
  return list
end

local function shape_text(p) return ("%s[%s]"):format(p.dtype, table.concat(p.shape, ",")) end

local function signature(name, all)
  local list = { name .. "_session *s" }
  for _, x in ipairs(all) do list[#list + 1] = ("%s%s *%s"):format(x.const, x.type, x.name) end
  return ("int %s_run(%s)"):format(name, table.concat(list, ", "))
end

-- The first words of a header tell who made it.
local function first_words(name) return ("/* %s: "):format(name), ", made by perilune build.\n" end

local function header_text(name, all, about)
  local guard, lines = name:upper() .. "_H", {}
  for _, x in ipairs(all) do
    lines[#lines + 1] = (" *   %s: %s, %d bytes"):format(x.name, shape_text(x.port), x.port.bytes)
  end
  local sizes = {}
  for _, x in ipairs(all) do
    local n = 1
    for _, k in ipairs(x.port.shape) do n = n * k end
    sizes[#sizes + 1] = ("#define %s_%s_COUNT %d"):format(name:upper(), x.name:upper(), n)
  end
  local before, behind = first_words(name)
  return before .. about.model .. behind .. (([[
 * Tensors are contiguous and row-major; addresses are multiples of the element's size; f16 and bf16 are their bits,
 * bool is 0 or 1. Memory is the caller's.
%s
 * A session is one thread's at a time and has %d bytes of memory and what its kernels need; any number of sessions
 * run at once and share the weights. Link with%s. */
#ifndef %s
#define %s
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* elements */
%s
typedef struct @_session @_session;
/* NULL: out of memory. */
@_session *@_open(void);
void @_close(@_session *s); /* NULL is fine */
/* Threads of a run; 1 at first. */
void @_threads(@_session *s, int n);
/* 0, or an error: @_message() says which. Outputs share no memory with anything else. */
%s;
/* What the calling thread's last error was. Never NULL. */
const char *@_message(void);
#ifdef __cplusplus
}
#endif
#endif
]]):gsub("@", (name:gsub("%%", "%%%%")))):format(table.concat(lines, "\n"), about.arena, about.link, guard,
    guard, table.concat(sizes, "\n"), signature(name, all))
end

-- The functions behind the tables that emit.c writes.
local function functions_text(name, ins, outs, weights)
  local all, in_list, out_list = {}, {}, {}
  for _, x in ipairs(ins) do
    all[#all + 1] = x
    in_list[#in_list + 1] = x.name
  end
  for _, x in ipairs(outs) do
    all[#all + 1] = x
    out_list[#out_list + 1] = x.name
  end
  return (([[
__asm__(".section .rodata.@_weights,\"a\",@progbits\n.balign 64\n.globl @_weights\n.hidden @_weights\n@_weights:\n"
        ".incbin \"%s\"\n.previous\n");
#include <stdlib.h>
#include "%s.h"
#define EXPORT __attribute__((visibility("default")))
struct @_session {
  PlkSession *run;
  int threads;
};
EXPORT @_session *@_open(void) {
  @_session *s = malloc(sizeof *s);
  if (!s || plk_session_new(&s->run, &program) != PL_OK) {
    free(s);
    return NULL;
  }
  s->threads = 1;
  return s;
}
EXPORT void @_close(@_session *s) {
  if (s) plk_session_free(s->run);
  free(s);
}
EXPORT void @_threads(@_session *s, int n) {
  if (s) s->threads = n < 1 ? 1 : n;
}
EXPORT const char *@_message(void) { return pl_message(); }
EXPORT %s {
  if (!s) return (int)pl_fail(PL_ERR_ARG, "the session is NULL, as @_open gives it where memory is out");
  const void *const in_all[] = {%s};
  void *const out_all[] = {%s};
  return (int)plk_session_run(s->run, s->threads, in_all, out_all);
}
]]):gsub("@(%w*)", function(word)
    if word == "progbits" then return "@progbits" end
    return name .. word
  end)):format(weights, name, signature(name, all), #in_list > 0 and table.concat(in_list, ", ") or "NULL",
    table.concat(out_list, ", "))
end

-- Without other libraries: the kernels' own code alone, and no threads of OpenMP's.
local OWN = [[
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
void *dlopen(const char *name, int flags);
void *dlsym(void *handle, const char *name);
char *dlerror(void);
int omp_get_max_threads(void);
int omp_in_parallel(void);
int omp_get_num_places(void);
int omp_get_proc_bind(void);
int omp_get_place_num_procs(int place);
void omp_get_place_proc_ids(int place, int *ids);
void omp_set_num_threads(int n);
void *dlopen(const char *name, int flags) { return (void)name, (void)flags, NULL; }
void *dlsym(void *handle, const char *name) { return (void)handle, (void)name, NULL; }
char *dlerror(void) { return NULL; }
int omp_get_max_threads(void) {
  const char *asked = getenv("OMP_NUM_THREADS");
  const long n = asked ? atol(asked) : sysconf(_SC_NPROCESSORS_ONLN);
  return n < 1 ? 1 : (int)n;
}
int omp_in_parallel(void) { return 0; }
int omp_get_num_places(void) { return 0; }
int omp_get_proc_bind(void) { return 0; }
int omp_get_place_num_procs(int place) { return (void)place, 0; }
void omp_get_place_proc_ids(int place, int *ids) { (void)place, (void)ids; }
void omp_set_num_threads(int n) { (void)n; }
]]

local MAIN = [[
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", "@", what);
  return 1;
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
static void tell(const char *what, const PlkPort *p, int n) {
  for (int i = 0; i < n; i++) {
    printf("%s %s %s[", what, p[i].name, pl_dtype_name((PlDtype)p[i].dtype));
    for (int d = 0; d < p[i].ndim; d++) printf("%s%lld", d ? "," : "", (long long)p[i].shape[d]);
    printf("] %lld bytes\n", (long long)p[i].bytes);
  }
}
int main(int argc, char **argv) {
  PlkSession *s;
  int at = 1, threads = 1;
  long times = 0;
  void *in[PORTS], *out[PORTS];
  for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
    if (strcmp(argv[at], "--info") == 0) {
      tell("input", program.in, program.nin);
      tell("output", program.out, program.nout);
      return 0;
    }
    if (strcmp(argv[at], "--threads") == 0 && at + 1 < argc) threads = atoi(argv[++at]);
    else if (strcmp(argv[at], "--time") == 0 && at + 1 < argc) times = atol(argv[++at]);
    else return failed("--info, --threads N and --time N are known");
  }
  if (argc - at != program.nin) {
    fprintf(stderr, "usage: %s [--info | --threads N | --time N] INPUT...\nINPUT is a file with the bytes of an input, "
            "- is standard input; the outputs' bytes go to standard output. --info lists them.\n", argv[0]);
    return 2;
  }
  for (int i = 0; i < program.nin; i++) {
    const size_t n = (size_t)program.in[i].bytes;
    FILE *f = strcmp(argv[at + i], "-") == 0 ? stdin : fopen(argv[at + i], "rb");
    if (!f || !(in[i] = aligned_alloc(64, (n + 64) / 64 * 64)) || fread(in[i], 1, n, f) != n || fgetc(f) != EOF) {
      fprintf(stderr, "%s: %s is no file of %zu bytes\n", argv[0], argv[at + i], n);
      return 1;
    }
    if (f != stdin) fclose(f);
  }
  for (int i = 0; i < program.nout; i++)
    if (!(out[i] = aligned_alloc(64, ((size_t)program.out[i].bytes + 64) / 64 * 64))) return failed("out of memory");
  if (plk_session_new(&s, &program) != PL_OK) return failed(pl_message());
  if (plk_session_run(s, threads, (const void *const *)in, out) != PL_OK) return failed(pl_message());
  if (times > 0) {
    const double begin = now();
    for (long k = 0; k < times; k++)
      if (plk_session_run(s, threads, (const void *const *)in, out) != PL_OK) return failed(pl_message());
    fprintf(stderr, "%.3f ms a run\n", (now() - begin) / (double)times);
  }
  for (int i = 0; i < program.nout; i++)
    if (fwrite(out[i], 1, (size_t)program.out[i].bytes, stdout) != (size_t)program.out[i].bytes)
      return failed("cannot write");
  return fflush(stdout) != 0;
}
]]

-- ---- linking --------------------------------------------------------------------------------------------------------

-- The compiler: CC, or cc.
local function compiler(dir)
  local cc = os.getenv "CC"
  if not cc or cc == "" then cc = "cc" end
  if run(dir, ("command -v %s"):format(cc:match "^%S+")) then return cc end
  return nil, ("there is no C compiler '%s': install gcc, or name one in CC"):format(cc)
end

local function tools(dir, ...)
  for _, tool in ipairs { ... } do
    if not run(dir, "command -v " .. tool) then return nil, ("there is no '%s' (binutils has it)"):format(tool) end
  end
  return true
end

local FLAGS = "-std=c11 -O1 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -w -D_GNU_SOURCE"

-- What all forms link: our objects, then both archives, of which the linker keeps what is reached.
local function inputs(at, objects)
  local list = { table.unpack(objects) }
  list[#list + 1] = at.libraries .. "/libperilune_engine.a"
  list[#list + 1] = at.libraries .. "/libperilune_kernels.a"
  return list
end

local API = { "_open", "_close", "_threads", "_run", "_message" }

-- nil and a sentence if a program cannot have functions of that name, or a header: C's library has them, as sem_open,
-- or the archives, as pl_message. The tools know: what is nobody's they report as undefined.
local function name_is_free(dir, cc, at, name, kind)
  local text, calls = {}, {}
  if kind ~= "app" then text[1] = ("#if __has_include(<%s.h>)\n#error TAKEN_HEADER\n#endif"):format(name) end
  for _, f in ipairs(API) do
    text[#text + 1] = ("char %s%s();"):format(name, f)
    calls[#calls + 1] = ("%s%s()"):format(name, f)
  end
  text[#text + 1] = ("int main(void) { return %s; }\n"):format(table.concat(calls, " + "))
  local ok, message = write(dir .. "/names.c", table.concat(text, "\n"))
  if not ok then return nil, message end
  run(dir, cc .. " -std=gnu11 -w -fno-builtin", table.unpack(inputs(at, { dir .. "/names.c", "-o", dir .. "/names",
    "-fopenmp", "-ldl", "-lm", "-lpthread" })))
  local log = read(dir .. "/log") or ""
  if log:find("TAKEN_HEADER", 1, true) then
    return nil, ("the name '%s' is taken: the system has a header %s.h; give another by --name"):format(name, name)
  end
  for _, f in ipairs(API) do
    if not log:find(name .. f, 1, true) then
      return nil, ("the name '%s' is taken: there is a function %s%s in C's or perilune's libraries; give another by "
        .. "--name"):format(name, name, f)
    end
  end
  return true
end

-- nil and a sentence if a header would overwrite what this command did not write.
local function header_is_ours(path, name)
  local text = read(path)
  local before, behind = first_words(name)
  if not text or (text:sub(1, #before) == before and text:find(behind, #before, true)) then return true end
  return nil, ("%s is there, and was not made by perilune build: move it, or name the library's header by --name")
    :format(show.printable(path))
end

local linkers = {}

function linkers.app(dir, cc, at, objects, out, options)
  local list = inputs(at, objects)
  local libraries = options.static and { "-lm", "-lpthread" } or { "-fopenmp", "-ldl", "-lm", "-lpthread" }
  table.move(libraries, 1, #libraries, #list + 1, list)
  local how = cc .. (options.static and " -static" or "") .. " -Wl,--gc-sections,--as-needed,-s,-z,relro,-z,now -o "
  return run(dir, how .. quoted(out), table.unpack(list))
end

linkers[".so"] = function(dir, cc, at, objects, out, options)
  local list = inputs(at, objects)
  local libraries = options.static and { "-lm", "-lpthread" } or { "-fopenmp", "-ldl", "-lm", "-lpthread" }
  table.move(libraries, 1, #libraries, #list + 1, list)
  local names = {}
  for i, f in ipairs(API) do names[i] = options.name .. f .. ";" end
  local ok, message = write(dir .. "/map", ("{ global: %s local: *; };\n"):format(table.concat(names, " ")))
  if not ok then return nil, message end
  local how = "%s -shared -Wl,--version-script=%s,--gc-sections,--as-needed,-s,-z,relro,-z,now,-z,defs,-soname,%s -o %s"
  return run(dir, how:format(cc, quoted(dir .. "/map"), quoted(out:match "[^/]*$"), quoted(out)), table.unpack(list))
end

linkers[".a"] = function(dir, cc, at, objects, out, options)
  local ok, message = tools(dir, "objcopy", "ar")
  if not ok then return nil, message end
  local roots = {}
  for i, f in ipairs(API) do roots[i] = "-Wl,-u," .. options.name .. f end
  local all = ("%s/%s_all.o"):format(dir, options.name)
  local how = "%s -r -nostdlib -Wl,--gc-sections %s -o %s"
  ok, message = run(dir, how:format(cc, table.concat(roots, " "), quoted(all)), table.unpack(inputs(at, objects)))
  if not ok then return nil, message end
  local keep = {}
  for i, f in ipairs(API) do keep[i] = "--keep-global-symbol=" .. options.name .. f end
  ok, message = run(dir, "objcopy --strip-debug " .. table.concat(keep, " "), all)
  if not ok then return nil, message end
  os.remove(out)
  return run(dir, "ar rcs " .. quoted(out), all)
end

-- ---- the command ----------------------------------------------------------------------------------------------------

local function build(dir, model, from, out, options)
  local ending = out:match "%.[%w]+$"
  local kind = linkers[ending] and ending or "app"
  local name = options.name
  local cc, at, message
  cc, message = compiler(dir)
  if not cc then return nil, message end
  at, message = places()
  if not at then return nil, message end
  local beside = kind ~= "app" and (out:match "^(.*/)" or "") .. name .. ".h" or nil
  local ok
  if beside then
    ok, message = header_is_ours(beside, name)
    if not ok then return nil, message end
  end
  ok, message = name_is_free(dir, cc, at, name, kind)
  if not ok then return nil, message end
  local source, weights = dir .. "/program.c", dir .. "/program.weights"
  local about, sizes
  sizes, message = sizes_of(model == from and options.size or {})
  if not sizes then return nil, message end
  about, message = core.deploy_program(from, name, source, weights, sizes, options.static)
  if not about then return nil, message end
  about.model = model:match "[^/]*$"
  about.link = kind ~= ".a" and " this library alone" or options.static and " -lm -lpthread"
    or " -fopenmp -ldl -lm -lpthread"
  local ins, outs = parameters(about.inputs, "in"), parameters(about.outputs, "out")
  local all = table.move(outs, 1, #outs, #ins + 1, { table.unpack(ins) })
  local header = header_text(name, all, about)
  local text = read(source) .. functions_text(name, ins, outs, weights)
  if kind == "app" then
    text = text .. MAIN:gsub("PORTS", tostring(math.max(#ins, #outs, 1))):gsub("@", (name:gsub("%%", "%%%%")))
  end
  for path, bytes in pairs { [source] = text, [("%s/%s.h"):format(dir, name)] = header, [dir .. "/own.c"] = OWN } do
    ok, message = write(path, bytes)
    if not ok then return nil, message end
  end
  local objects = { dir .. "/program.o" }
  local flags = ("%s %s -I%s -iquote %s -c"):format(cc, FLAGS, quoted(at.include), quoted(dir))
  ok, message = run(dir, flags, source, "-o", objects[1])
  if ok and options.static then
    objects[2] = dir .. "/own.o"
    ok, message = run(dir, flags, dir .. "/own.c", "-o", objects[2])
  end
  if ok then ok, message = linkers[kind](dir, cc, at, objects, out, options) end
  if not ok then
    if options.static and message:find "cannot find %-l" then
      message = "the system has no static libraries of C (libc6-dev has them on Debian)\n" .. message
    end
    return nil, message
  end
  if beside then
    ok, message = write(beside, header)
    if not ok then return nil, message end
  end
  local f = assert(io.open(out, "rb"))
  local size = f:seek "end"
  f:close()
  f = assert(io.open(weights, "rb"))
  local bytes = f:seek "end"
  f:close()
  return ("%s: %.2f MB, of which %.2f MB are weights%s"):format(show.printable(out), size / 1e6, bytes / 1e6,
    beside and "; " .. show.printable(beside) or "")
end

--- What is wrong with the arguments; nil if nothing is. Fills in options.name.
function M.problem(out, options)
  if out:find "%.so%.[%d.]+$" or out:find "%.dylib$" or out:find "%.dll$" then
    return ("'%s': the names of libraries end in .so or .a"):format(out)
  end
  if not options.name then
    options.name = identifier((out:match "[^/]*$"):gsub("%.%w+$", ""):gsub("^lib", ""))
  end
  if not options.name:find "^[%a_][%w_]*$" then
    return ("'%s' is no name in C; give one by --name"):format(options.name)
  end
  if options.name:find "^_" then
    return ("'%s': names that begin with _ are C's own; give another by --name"):format(options.name)
  end
  for _, prefix in ipairs { "pl", "plk", "perilune" } do
    if options.name:lower():find(("^%s_?$"):format(prefix)) then
      return ("'%s': perilune's own functions begin so; give another by --name"):format(options.name)
    end
  end
end

-- options: {name=, static=, size=}. → exit status
function M.run(model, out, options)
  local function failed(message)
    io.stderr:write("perilune build: ", show.printable(message):gsub("\\n", "\n"), "\n")
    return 1
  end
  for _, path in ipairs { model, model .. ".safetensors" } do
    if exists(out) and os.execute(("test %s -ef %s"):format(quoted(out), quoted(path))) then
      return failed(out .. " is the model itself")
    end
  end
  local dir, message = shell.temporary_folder()
  if not dir then return failed(message) end
  local from = model
  if model:find "%.onnx$" then
    from = dir .. "/model.graph"
    local convert = require "perilune.command.convert"
    local ok
    ok, message = convert.graph(model, from, { size = options.size, fixed = true })
    if not ok then from = nil end
  end
  local text
  if from then text, message = build(dir, model, from, out, options) end
  shell.remove(dir)
  if not text then return failed(message) end
  print(text)
  return 0
end

return M
