# SPDX-License-Identifier: MIT
# CTest lanes. Labels: unit (link, specs), lint, golden, asan-tenth (in sanitizer builds, a fixed
# tenth of the golden cases). Specs run one process a file, so a crash names its file.
find_program(PL_BUSTED busted)
find_program(PL_LUACHECK luacheck)
find_program(PL_LUAJIT luajit)
set(src "${PROJECT_SOURCE_DIR}")
set(golden_dir "${src}/../shared/golden")

# Semicolons separate list items in CMake; Lua's paths need real ones.
set(lua_path "${src}/lua/?.lua\;${src}/lua/?/init.lua\;${src}/?.lua\;\;")
# intercept_tls_get_addr: otherwise LeakSanitizer now and then crashes at exit, where threads have ended. handle_sigill: what UBSan
# finds in the build of ./setup test is a trap, whose stack AddressSanitizer prints; ./setup asan says in words what it was.
set(asan_options "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:intercept_tls_get_addr=0:handle_sigill=1")
set(PL_TEST_ENV
  "LUA_PATH_5_4=${lua_path}" "LUA_CPATH_5_4=${out}/lib/?.so\;\;"
  "PERILUNE_ROOT=${src}" "PERILUNE_BUILD=${out}" "PERILUNE_SANITIZE=${PL_SANITIZE}"
  "OMP_NUM_THREADS=2" # several test processes share the cores
  "ASAN_OPTIONS=${asan_options}"
  "LSAN_OPTIONS=suppressions=${src}/cmake/lsan.supp:print_suppressions=0"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=ignore_noninstrumented_modules=1")

# Limits are for a test that hangs, and are given for a machine that has nothing else to do. One that computes for ever is
# stopped by the processor time it took (cmake/limit.sh), twice the limit for its two threads, however busy the machine is; one
# that waits for ever by the clock, after several times the limit.
set(PL_TEST_PATIENCE 5 CACHE STRING "Factor of the tests' time limits on the clock")
function(pl_test name label timeout)
  math(EXPR seconds "${timeout} * 2")
  if(PL_SANITIZE)
    math(EXPR seconds "${seconds} * 5")
  endif()
  math(EXPR timeout "${timeout} * ${PL_TEST_PATIENCE}")
  add_test(NAME ${name} COMMAND bash "${src}/cmake/limit.sh" ${seconds} ${ARGN} WORKING_DIRECTORY "${src}")
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${PL_TEST_ENV}" LABELS "${label}"
                       TIMEOUT ${timeout} SKIP_RETURN_CODE 77)
endfunction()

# What only tests need is no part of `all`: the target `tests` builds it, and everything else with it.
add_custom_target(tests)
foreach(target perilune_shared perilune_core_module perilune_terminal_module perilune_httpd_module perilune_zeromq_module perilune_mpi perilune perilune_cuda
               perilune_cuda_emulated)
  if(TARGET ${target})
    add_dependencies(tests ${target})
  endif()
endforeach()
# The test does not run before these targets are built: no test passes with a program of yesterday, or is skipped for want of one.
function(pl_needs test)
  foreach(target IN LISTS ARGN)
    if(NOT TEST "build/${target}")
      add_test(NAME "build/${target}" COMMAND "${CMAKE_COMMAND}" --build "${out}" --target ${target} --config $<CONFIG>)
      # one build at a time in one folder
      set_tests_properties("build/${target}" PROPERTIES FIXTURES_SETUP "built/${target}" RESOURCE_LOCK build TIMEOUT 3600)
      add_dependencies(tests ${target})
    endif()
    set_property(TEST ${test} APPEND PROPERTY FIXTURES_REQUIRED "built/${target}")
  endforeach()
endfunction()
function(pl_emulated test) # the device is the emulated one
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "PERILUNE_CUDA_PLUGIN=${PL_CUDA_EMULATED}" "PERILUNE_CUDA_QUIET=1" ${ARGN})
  set_property(TEST ${test} APPEND PROPERTY LABELS cuda)
  pl_needs(${test} perilune_cuda_emulated)
endfunction()

# ---- link: C programs without Lua: one trains, one measures the vector functions ---------------------
file(GLOB link_src CONFIGURE_DEPENDS "${src}/spec/link/*.c")
foreach(file ${link_src})
  get_filename_component(name "${file}" NAME_WE)
  add_executable(link_${name} EXCLUDE_FROM_ALL ${file})
  target_link_libraries(link_${name} PRIVATE perilune_engine pl_flags Threads::Threads)
  set_target_properties(link_${name} PROPERTIES BUILD_RPATH "${PL_RPATH}"
                        RUNTIME_OUTPUT_DIRECTORY "${out}/spec")
  pl_test(link_${name} unit 120 "$<TARGET_FILE:link_${name}>")
  pl_needs(link_${name} link_${name})
  if(name STREQUAL "ulp") # more numbers with PERILUNE_LANES=long
    set_property(TEST link_ulp APPEND PROPERTY LABELS lanes)
  endif()
  if(name MATCHES "^(fork|team|threads)$")
    set_property(TEST link_${name} APPEND PROPERTY LABELS tsan)
  endif()
endforeach()

# ---- CUDA: what its libraries say without a GPU; counted as skipped where they are not there ---------------
if(TARGET perilune_cuda)
  set(dnn "${src}/kernels/cuda/libs")
  add_executable(cuda_cudnn EXCLUDE_FROM_ALL "${src}/spec/cuda/cudnn.c" "${src}/kernels/base.c" "${dnn}/library.c" "${dnn}/cudnn_api.c"
                 "${dnn}/cudnn_graph.c" "${dnn}/cudnn_plan.c" "${dnn}/cudnn_conv.c" "${dnn}/cudnn_attention.c" "${dnn}/attention_slices.c"
                 "${dnn}/recurrent_net.c")
  target_include_directories(cuda_cudnn SYSTEM PRIVATE "${PL_CUDA_INCLUDE}" "${PL_CUDNN_INCLUDE}")
  target_link_libraries(cuda_cudnn PRIVATE pl_flags Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(cuda_cudnn PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${out}/spec")
  add_library(cuda_driver SHARED EXCLUDE_FROM_ALL "${src}/spec/cuda/driver.c")
  add_dependencies(cuda_cudnn cuda_driver)
  set_target_properties(cuda_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY "${out}/spec/driver")
  pl_test(cuda_cudnn unit 600 "$<TARGET_FILE:cuda_cudnn>")
  pl_needs(cuda_cudnn cuda_cudnn)
  set_property(TEST cuda_cudnn APPEND PROPERTY ENVIRONMENT
    "LD_LIBRARY_PATH=${out}/spec/driver:${PL_CUDNN_INCLUDE}/../lib:${PL_CUDA_ROOT}/lib64:$ENV{LD_LIBRARY_PATH}")
  add_executable(cuda_fused EXCLUDE_FROM_ALL "${src}/spec/cuda/fused.c" "${src}/kernels/base.c" "${dnn}/library.c" "${dnn}/nvrtc.c"
                 "${dnn}/fused_source.c" "${dnn}/fused_rows.c" "${out}/cuda/headers.c")
  target_include_directories(cuda_fused SYSTEM PRIVATE "${PL_CUDA_INCLUDE}")
  target_link_libraries(cuda_fused PRIVATE pl_flags Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(cuda_fused PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${out}/spec")
  pl_test(cuda_fused unit 300 "$<TARGET_FILE:cuda_fused>")
  pl_needs(cuda_fused cuda_fused)
  set_property(TEST cuda_fused APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=${PL_CUDA_ROOT}/lib64:$ENV{LD_LIBRARY_PATH}")
else()
  pl_test(cuda_fused unit 60 sh -c "echo 'skipped: the CUDA plug-in is not built'; exit 77")
  pl_test(cuda_cudnn unit 60 sh -c "echo 'skipped: the CUDA plug-in is not built'; exit 77")
endif()

# ---- pty: plays keys to a program on a terminal of its own, for spec/command/repl_spec.lua -------------------
add_executable(pty EXCLUDE_FROM_ALL "${src}/spec/support/programs/pty.c")
target_link_libraries(pty PRIVATE pl_flags util)
set_target_properties(pty PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${out}/spec")

# ---- faults: system calls and allocations that fail, for spec/lanes/; by LD_PRELOAD --------------------
add_library(faults SHARED EXCLUDE_FROM_ALL "${src}/spec/support/programs/faults.c")
target_include_directories(faults PRIVATE "${PROJECT_SOURCE_DIR}")
target_compile_options(faults PRIVATE -Wall -Wextra -O1)
target_compile_definitions(faults PRIVATE _GNU_SOURCE)
target_link_libraries(faults PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(faults PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${out}/spec")

# ---- states: further Lua states on one thread, for spec/lua/states_spec.lua; Lua's own symbols are the host's ---------
add_library(states SHARED EXCLUDE_FROM_ALL "${src}/spec/support/programs/states.c")
target_include_directories(states SYSTEM PRIVATE "${PL_LUA_INCLUDE}")
target_link_libraries(states PRIVATE pl_flags)
set_target_properties(states PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${out}/spec")

# ---- sockets: clients that do as a spec wants, for spec/http/ ------------------------------------------------------
add_library(sockets SHARED EXCLUDE_FROM_ALL "${src}/spec/support/programs/sockets.c")
target_include_directories(sockets SYSTEM PRIVATE "${PL_LUA_INCLUDE}")
target_link_libraries(sockets PRIVATE pl_flags)
set_target_properties(sockets PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${out}/spec")

# ---- specs -----------------------------------------------------------------------------------------
# A sanitizer's runtime must come first in the process: our interpreter is linked with it, lua5.4 is not.
set(runner "")
if(PL_SANITIZE AND TARGET perilune)
  set(runner "$<TARGET_FILE:perilune>" run "${PL_BUSTED}" --)
elseif(PL_LUA_COMMAND AND NOT PL_SANITIZE)
  set(runner "${PL_LUA_COMMAND}" "${PL_BUSTED}")
endif()
file(GLOB_RECURSE specs CONFIGURE_DEPENDS RELATIVE "${src}/spec" "${src}/spec/*_spec.lua")
if(PL_BUSTED AND runner)
  foreach(spec IN LISTS specs)
    string(REGEX REPLACE "_spec\\.lua$" "" name "${spec}")
    if(name STREQUAL "cmake/layering")
      pl_test(layering lint 120 ${runner} "spec/${spec}")
    else()
      pl_test("spec/${name}" unit 600 ${runner} "spec/${spec}")
      if(name MATCHES "^cuda/" AND PL_CUDA_EMULATED)
        pl_emulated("spec/${name}")
      endif()
      if(name MATCHES "^cuda/(failures|machine_code)$" AND TARGET perilune_cuda)
        pl_needs("spec/${name}" perilune_cuda)
      endif()
      if(name STREQUAL "cuda/machine_code" AND PL_CUOBJDUMP)
        set_property(TEST "spec/${name}" APPEND PROPERTY ENVIRONMENT "PERILUNE_CUOBJDUMP=${PL_CUOBJDUMP}")
      endif()
      # the programs that its text names, pty through spec/support/terminal.lua
      file(STRINGS "${src}/spec/${spec}" named REGEX "spec\\.support\\.terminal|spec/link_[a-z]+|lib(faults|states|sockets)")
      if(named MATCHES "spec/link_([a-z]+)")
        pl_needs("spec/${name}" "link_${CMAKE_MATCH_1}")
      endif()
      if(named MATCHES "spec\\.support")
        pl_needs("spec/${name}" pty)
      endif()
      if(named MATCHES "libstates")
        pl_needs("spec/${name}" states)
      endif()
      if(named MATCHES "libsockets")
        pl_needs("spec/${name}" sockets)
      endif()
      if(named MATCHES "libfaults" AND NOT PL_SANITIZE)
        pl_needs("spec/${name}" faults)
      endif()
      if(name MATCHES "^lanes/|^http/serve$")
        # short here; ./setup lanes sets PERILUNE_LANES=long
        set_property(TEST "spec/${name}" APPEND PROPERTY LABELS lanes)
        set_tests_properties("spec/${name}" PROPERTIES TIMEOUT 7200)
      endif()
      if(name STREQUAL "docs/examples")
        # The same bits on any number of threads (spec/lanes): one does not wait for another that a busy processor keeps.
        set_property(TEST "spec/${name}" APPEND PROPERTY ENVIRONMENT "OMP_NUM_THREADS=1")
      endif()
      if(name STREQUAL "cmake/install")
        set_property(TEST "spec/${name}" APPEND PROPERTY RESOURCE_LOCK build) # it runs targets
      endif()
      if(name MATCHES "^(deploy/(abi|crowd|sizes)|kernels/threads|data/.*|http/.*|distributed/.*|command/kernel.*|lua/states|call/reliability|autograd/vmap|jit/call|graph/run|nn/(attention|functional|recurrent)|optim/optimizers|ops/(random|values))$")
        set_property(TEST "spec/${name}" APPEND PROPERTY LABELS tsan) # where threads meet; see ./setup tsan
      endif()
      if(name MATCHES "^fuzz/(scripts|hostile|programs|readers)$")
        set_property(TEST "spec/${name}" APPEND PROPERTY LABELS fuzz) # damaged files, random programs, hostile calls
      endif()
      if(name STREQUAL "fuzz/readers")
        # no file justifies an allocation of that size; ./setup lanes runs this in the sanitizer build
        set_property(TEST "spec/${name}" APPEND PROPERTY ENVIRONMENT
          "ASAN_OPTIONS=${asan_options}:allocator_may_return_null=1:max_allocation_size_mb=64")
        set_property(TEST "spec/${name}" APPEND PROPERTY LABELS lanes-asan)
        set_tests_properties("spec/${name}" PROPERTIES TIMEOUT 20000)
      endif()
    endif()
  endforeach()
  # Specs of gradients and traces once more, with collections forced where the bindings may collect (every n-th place from
  # the k-th on), where Lua makes an object, or nowhere. All at every place: cmake -DPERILUNE_COLLECTOR=ON, ctest -L collector-long
  option(PERILUNE_COLLECTOR "ctest -L collector-long: collections at every place, for an hour" OFF)
  set(kept autograd/keys autograd/promises autograd/higher_order autograd/corners autograd/aliases autograd/functional autograd/vmap
      autograd/manager autograd/forward_mode jit/trace jit/aliases jit/call jit/guards jit/inplace jit/second_order jit/training jit/transforms
      kernels/copies nn/hooks fuzz/programs_found)
  foreach(name IN LISTS kept)
    if(NOT EXISTS "${src}/spec/${name}_spec.lua")
      message(FATAL_ERROR "cmake/Tests.cmake names spec/${name}_spec.lua, which is not there")
    endif()
    foreach(points 11+2 alloc:301+7 stop)
      string(REGEX REPLACE "[:+].*" "" short "${points}")
      if(short STREQUAL "alloc" AND name STREQUAL "jit/guards")
        set(points alloc:701+7) # the spec with the most objects
      endif()
      set(test "collector/${short}/${name}")
      pl_test(${test} collector 600 ${runner} "spec/${name}_spec.lua")
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "PERILUNE_COLLECT=${points}")
    endforeach()
    if(PERILUNE_COLLECTOR)
      foreach(points 1 storage:1 alloc:7+1 alloc:7+2 alloc:7+3 alloc:7+4 alloc:7+5 alloc:7+6 alloc:7+7)
        set(test "collector-long/${points}/${name}")
        pl_test(${test} collector-long 3600 ${runner} "spec/${name}_spec.lua")
        set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "PERILUNE_COLLECT=${points}")
      endforeach()
    endif()
  endforeach()
  foreach(name autograd/promises autograd/saved_tensors jit/second_order nn/hooks) # and where the engine makes a tensor's memory
    pl_test("collector/storage/${name}" collector 600 ${runner} "spec/${name}_spec.lua")
    set_property(TEST "collector/storage/${name}" APPEND PROPERTY ENVIRONMENT "PERILUNE_COLLECT=storage:11+3")
  endforeach()
  # Kernels once more as processors of lower levels run them (cmake/Isa.cmake); a level that this one lacks falls back.
  foreach(level IN LISTS PL_ISA_LEVELS)
    foreach(name kernels/conv kernels/copies kernels/int_mm kernels/loops kernels/matvec kernels/one_value kernels/pool
                 kernels/products kernels/reductions kernels/short_rows kernels/vector_math ops/values)
      if(NOT EXISTS "${src}/spec/${name}_spec.lua")
        message(FATAL_ERROR "cmake/Tests.cmake names spec/${name}_spec.lua, which is not there")
      endif()
      if(NOT level STREQUAL "v4" AND level IN_LIST levels AND PL_CC_KNOWS_${level})
        pl_test("isa/${level}/${name}" unit 600 ${runner} "spec/${name}_spec.lua")
        set_property(TEST "isa/${level}/${name}" APPEND PROPERTY ENVIRONMENT "PERILUNE_ISA=${level}")
      endif()
    endforeach()
  endforeach()
  # Some of them once more with tensors on the emulated device; all: bench/gpu.sh --device emulated specs moved
  foreach(spec cuda:autograd/keys cuda:autograd/functional cuda:autograd/vmap cuda:nn/module cuda:nn/layers cuda:nn/pytorch
               cuda:optim/optimizers cuda:call/autocast cuda:data/datasets cuda:data/loader cuda:ops/pytorch cuda:io/save_load
               cuda:tensor/channels_last cuda:jit/call cuda:jit/modes cuda:jit/sizes cuda:lua/reclaim cuda:lua/tools cuda:graph/passes cuda:graph/fuse cuda:ops/casts cuda:ops/edges cuda:ops/ends
               cuda:ops/overlap cuda:ops/half_rounding moved:ops/composites moved:nn/layers
               moved:lua/metrics moved:docs/embedding moved:nn/pytorch moved:ops/pytorch moved:lua/plot moved:graph/symbolic
               moved:jit/inplace moved:ops/random moved:call/misuse moved:tensor/printing moved:graph/io moved:ops/wrong_calls)
    string(REPLACE ":" ";" spec "${spec}")
    list(GET spec 0 mode)
    list(GET spec 1 name)
    if(NOT EXISTS "${src}/spec/${name}_spec.lua")
      message(FATAL_ERROR "cmake/Tests.cmake names spec/${name}_spec.lua, which is not there")
    endif()
    if(PL_CUDA_EMULATED)
      set(test "device/${mode}/${name}")
      pl_test(${test} unit 600 ${runner} "spec/${name}_spec.lua")
      pl_emulated(${test} "PERILUNE_TEST_DEVICE=${mode}")
      if(name STREQUAL "docs/embedding")
        pl_needs(${test} link_embed)
      endif()
    endif()
  endforeach()
  # Kernels with every block of memory between forbidden pages, each launch in two orders of threads.
  if(PL_CUDA_EMULATED)
    foreach(name cuda/ops cuda/shapes)
      pl_test("device/twice/${name}" unit 600 ${runner} "spec/${name}_spec.lua")
      pl_emulated("device/twice/${name}" "PERILUNE_EMULATE=twice")
    endforeach()
    # Convolutions as cuDNN's graphs, which the emulated library plans and computes.
    foreach(name cuda/ops ops/half_rounding ops/overlap ops/gradients ops/gradient_dtypes tensor/channels_last)
      pl_test("device/conv/${name}" unit 600 ${runner} --filter conv "spec/${name}_spec.lua")
      pl_emulated("device/conv/${name}" "PERILUNE_TEST_DEVICE=cuda;PERILUNE_EMULATE=conv")
    endforeach()
  endif()
  pl_found("specs" "busted" "${PL_BUSTED}")
else()
  pl_off("specs" "busted or lua5.4 not found (lua-busted; ./setup test installs it)")
endif()

# ---- luacheck ----------------------------------------------------------------------------------------
if(PL_LUACHECK)
  set(checked lua)
  foreach(dir spec bench examples docs/make)
    file(GLOB_RECURSE any CONFIGURE_DEPENDS "${src}/${dir}/*.lua")
    if(any)
      list(APPEND checked ${dir})
    endif()
  endforeach()
  # LuaJIT's interpreter takes half the time; its compiler only adds to it. Where luacheck is a program of another kind, such as
  # LuaRocks' script for the shell, it runs by itself.
  set(run_luacheck "${PL_LUACHECK}")
  if(PL_LUAJIT)
    execute_process(COMMAND "${PL_LUAJIT}" -joff "${PL_LUACHECK}" --version RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed EQUAL 0)
      set(run_luacheck "${PL_LUAJIT}" -joff "${PL_LUACHECK}")
    endif()
  endif()
  pl_test(luacheck lint 120 ${run_luacheck} --quiet --no-color ${checked})
  pl_found("luacheck" "yes" "${PL_LUACHECK}")
else()
  pl_off("luacheck" "not found (lua-check; ./setup test installs it)")
endif()

# ---- clang-format: other versions than .clang-format names lay out some lines otherwise -----------------------------------
find_program(PL_CLANG_FORMAT NAMES clang-format-14 clang-format)
if(PL_CLANG_FORMAT)
  execute_process(COMMAND "${PL_CLANG_FORMAT}" --version OUTPUT_VARIABLE pl_clang_format_version ERROR_QUIET)
endif()
if(PL_CLANG_FORMAT AND pl_clang_format_version MATCHES "version 14\\.")
  pl_test(format lint 120 sh "${src}/cmake/format.sh" "${PL_CLANG_FORMAT}")
  pl_found("clang-format" "yes" "${PL_CLANG_FORMAT}")
else()
  pl_off("clang-format" "version 14 not found (clang-format-14)")
endif()

# ---- the GPU benchmarks, dry: two workloads and the report on the CPU -----------------------------------
if(TARGET perilune)
  pl_test(bench_gpu unit 300 sh -c "rm -rf '${out}/spec/gpu' && bench/gpu.sh --build '${out}' --out '${out}/spec/gpu' --device cpu --tiny probe && '$<TARGET_FILE:perilune>' run bench/gpu.lua -- --device cpu --tiny --modes eager compile --only gemm_bf16_4096 mlp_step_b64 --json '${out}/spec/gpu/perilune.jsonl' && bench/gpu.sh --build '${out}' --out '${out}/spec/gpu' report | grep -q 'mlp_step_b64 | compile | [0-9]'")
endif()

# ---- golden vectors -------------------------------------------------------------------------------------
file(GLOB golden CONFIGURE_DEPENDS "${src}/spec/golden.lua")
if(golden AND TARGET perilune)
  # sh PERILUNE DIRECTORY [every-tenth]; the tenth is fixed by name, so a failure comes back.
  set(run_golden sh "${src}/cmake/golden.sh" "$<TARGET_FILE:perilune>" "${golden_dir}")
  if(PL_SANITIZE)
    pl_test(golden-tenth asan-tenth 600 ${run_golden} tenth)
  else()
    pl_test(golden golden 600 ${run_golden})
    pl_test(golden_onnx golden 600 ${run_golden} onnx)
  endif()
  if(PL_CUDA_EMULATED) # bench/gpu.sh golden, a tenth of it
    pl_test(device/golden golden 600 ${run_golden} device)
    pl_emulated(device/golden "PERILUNE_EMULATE=open")
  endif()
endif()

# ---- order: the longest first, so that no processor waits for one at the end ---------------------------------
# Seconds of processor time, as measured once, of all that take six or more; CTest takes all others by what they took the last time,
# which in a new build folder is nothing.
foreach(cost spec/docs/contributing=66 spec/docs/examples=50 cuda_cudnn=49 spec/cuda/jit=41 cuda_fused=35
             spec/fuzz/programs=32 spec/lanes/interrupts=23 luacheck=20 spec/cuda/groups=29
             device/twice/cuda/shapes=26 spec/cmake/install=26 spec/autograd/forward_mode_kernels=24 spec/nn/calibrated=24 spec/ops/inplace_orders=20 spec/tensor/strides=20
             spec/cuda/heads=19 spec/command/interrupt=19 spec/fuzz/readers=18 spec/cuda/memory=16 spec/cuda/shapes=15
             spec/fuzz/identities=14 spec/docs/types=14 spec/nn/int8=14 spec/ops/duality=14 spec/command/prompt=12
             device/twice/cuda/ops=12 spec/autograd/rematerialization=12 spec/command/repl=11 spec/fuzz/hostile=11
             spec/docs/lint=11 spec/call/reliability=10 link_ulp=10 spec/docs/generated=10 spec/graph/blocks=10
             spec/jit/fuzz=10 spec/data/chat_template=9 spec/jit/sizes=9 spec/kernels/matvec=9 isa/v2/kernels/matvec=9
             isa/v3/kernels/matvec=9 spec/call/sweep=8 spec/distributed/training=8 spec/cuda/norms=8 spec/models/decoder=8
             spec/cuda/ops=7 spec/command/subcommands=7 spec/docs/help=6 spec/cuda/launches=6 device/cuda/optim/optimizers=6
             spec/deploy/abi=6 spec/graph/run=6 spec/ops/gradients=6 spec/ops/shape_rules=6 spec/tensor/layouts=6)
  string(REPLACE "=" ";" cost "${cost}")
  list(GET cost 0 name)
  list(GET cost 1 seconds)
  if(TEST ${name})
    set_tests_properties(${name} PROPERTIES COST ${seconds})
  elseif(name MATCHES "^spec/" AND NOT EXISTS "${PROJECT_SOURCE_DIR}/${name}_spec.lua")
    message(FATAL_ERROR "cmake/Tests.cmake has a cost of ${name}, whose file is not there")
  endif()
endforeach()
