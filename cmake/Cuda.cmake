# SPDX-License-Identifier: MIT
# The CUDA plug-in build/lib/perilune/perilune_cuda.so, a module of its own that the engine opens at run time; nothing
# else here knows CUDA. PERILUNE_CUDA=AUTO builds it where nvcc, cuDNN's header and a GPU are found, ON insists, OFF does not.
# Where only the GPU lacks, AUTO leaves it to the target `tests`, in build/spec/: does it compile?
# And, for tests, the same sources compiled for the CPU: build/spec/cuda_emulated.so, which needs only a C++ compiler.
set(PERILUNE_CUDA AUTO CACHE STRING "The CUDA plug-in: AUTO (where nvcc, cuDNN and a GPU are found), ON or OFF")
set(PL_CUDA_ARCHS "auto" CACHE STRING
    "CUDA architectures: a list (80-real;90-real), release, or auto (this machine's GPUs, else 90-real with tests, else release)")
set(PL_CUDNN_ROOT "" CACHE PATH "Folder of cuDNN (include/, lib/), also that of a Python wheel (nvidia/cudnn)")
file(GLOB_RECURSE cuda_c CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/cuda/*.c")
list(FILTER cuda_c EXCLUDE REGEX "/kernels/cuda/libs/")
file(GLOB_RECURSE cuda_cu CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu")
file(GLOB cuda_libs CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/cuda/libs/*.c")
# Opened late, so it gets no room in the static thread-local block; a source's options come after the target's.
set_source_files_properties(${cuda_c} ${cuda_libs} PROPERTIES COMPILE_OPTIONS "-ftls-model=global-dynamic")
set(cuda_launcher ${CMAKE_C_COMPILER_LAUNCHER})

# ---- what is there -----------------------------------------------------------------------------------------------
set(cuda_why "")
if(PERILUNE_CUDA STREQUAL "OFF")
  set(cuda_why "PERILUNE_CUDA=OFF")
elseif(PL_SANITIZE)
  set(cuda_why "not in sanitizer builds")
else()
  find_program(PL_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
  if(NOT PL_NVCC)
    set(cuda_why "nvcc not found (CUDA toolkit 12.8 or newer, or -DPL_NVCC=...)")
  else()
    get_filename_component(nvcc_real "${PL_NVCC}" REALPATH)
    get_filename_component(PL_CUDA_ROOT "${nvcc_real}/../.." REALPATH)
    execute_process(COMMAND "${PL_NVCC}" --version OUTPUT_VARIABLE nvcc_text ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" nvcc_release "${nvcc_text}")
    set(nvcc_release "${CMAKE_MATCH_1}")
    find_path(PL_CUDA_INCLUDE cuda_runtime_api.h HINTS "${PL_CUDA_ROOT}/include" "${PL_CUDA_ROOT}/targets/x86_64-linux/include")
    find_library(PL_CUDART NAMES cudart_static HINTS "${PL_CUDA_ROOT}" PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
    # A wheel has headers in include/ and, below lib/, only libcudnn.so.9, which is opened at run time anyway.
    find_program(PL_CUOBJDUMP cuobjdump HINTS "${PL_CUDA_ROOT}/bin") # for tests alone: what the machine code says
    find_path(PL_CUDNN_INCLUDE cudnn.h HINTS "${PL_CUDNN_ROOT}" "$ENV{CUDNN_ROOT}" "${PL_CUDA_ROOT}" PATH_SUFFIXES include)
    if(NOT PL_CUDA_INCLUDE OR NOT PL_CUDART)
      set(cuda_why "nvcc ${nvcc_release} is there, but no cuda_runtime_api.h or libcudart_static.a")
    elseif(NOT PL_CUDNN_INCLUDE)
      set(cuda_why "nvcc ${nvcc_release} is there, but no cudnn.h (-DPL_CUDNN_ROOT=...)")
    elseif(nvcc_release VERSION_LESS 12.8)
      set(cuda_why "nvcc ${nvcc_release} is too old, 12.8 is needed")
    endif()
  endif()
endif()
if(cuda_why AND PERILUNE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "PERILUNE_CUDA=ON: ${cuda_why}")
endif()

# Is it part of the build (build/lib/perilune/), or of tests alone (build/spec/)? And this machine's architectures, where
# they are known.
set(cuda_wanted OFF)
set(gpu_archs "")
set(gpu_unknown OFF) # a GPU, but nobody who says which
if(NOT cuda_why)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE caps ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" caps "${caps}")
  if(NOT caps AND EXISTS /dev/nvidia0)
    set(gpu_unknown ON)
  endif()
  list(TRANSFORM caps REPLACE "\\." "")
  list(FILTER caps EXCLUDE REGEX "^[1-7].$") # not for the plug-in
  list(TRANSFORM caps APPEND "-real")
  list(REMOVE_DUPLICATES caps)
  set(gpu_archs "${caps}")
  if(PERILUNE_CUDA STREQUAL "ON" OR gpu_archs OR gpu_unknown)
    set(cuda_wanted ON)
  endif()
endif()
if(NOT cuda_wanted) # one of an earlier configuration would never be built again, and the engine would open it
  file(REMOVE "${out}/lib/perilune/perilune_cuda.so")
endif()

# For tests alone the kernels of a folder are one unit each: the headers are a third of the compiler's time. Where the plug-in is
# asked for somebody may edit them, and each is compiled by itself. So are these: they share names, or are long.
set(cuda_units "${cuda_cu}")
if(NOT cuda_wanted)
  set(cuda_units "")
  set(folders "")
  foreach(file IN LISTS cuda_cu)
    get_filename_component(folder "${file}" DIRECTORY)
    get_filename_component(folder "${folder}" NAME)
    if(folder STREQUAL "elementwise" OR file MATCHES "/(channels_last|group_norm)\\.cu$")
      list(APPEND cuda_units "${file}")
    else()
      file(RELATIVE_PATH file "${PROJECT_SOURCE_DIR}" "${file}")
      string(APPEND unit_${folder} "#include \"${file}\"\n")
      list(APPEND folders ${folder})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    file(GENERATE OUTPUT "${out}/cuda/units/${folder}.cu" CONTENT "${unit_${folder}}")
    list(APPEND cuda_units "${out}/cuda/units/${folder}.cu")
  endforeach()
endif()

# ---- the plug-in --------------------------------------------------------------------------------------------------
if(cuda_why)
  pl_off("CUDA plug-in" "${cuda_why}")
elseif(NOT cuda_wanted AND NOT PL_TESTS)
  pl_off("CUDA plug-in" "no GPU here; -DPERILUNE_CUDA=ON builds it")
else()
  set(cuda_archs "${PL_CUDA_ARCHS}")
  if(cuda_archs STREQUAL "auto")
    set(cuda_archs "${gpu_archs}")
    if(NOT cuda_archs)
      set(cuda_archs release)
      if(PL_TESTS AND NOT gpu_unknown)
        set(cuda_archs 90-real)
      endif()
    endif()
  endif()
  if(cuda_archs STREQUAL "release")
    set(cuda_archs 80-real 90-real 100-real 100-virtual)
  endif()
  set(gencode "")
  foreach(arch IN LISTS cuda_archs)
    string(REGEX REPLACE "-.*" "" number "${arch}")
    if(arch MATCHES "-virtual$")
      list(APPEND gencode "-gencode=arch=compute_${number},code=compute_${number}")
    else()
      list(APPEND gencode "-gencode=arch=compute_${number},code=sm_${number}")
    endif()
  endforeach()
  # Nobody runs what is compiled for tests alone, and without cuobjdump nobody reads it (spec/cuda/machine_code_spec.lua): then
  # the question is whether it compiles, and the answer takes two fifths of the time.
  set(nvcc_effort -O3)
  if(NOT cuda_wanted AND NOT PL_CUOBJDUMP AND nvcc_release VERSION_GREATER_EQUAL 12.9)
    set(nvcc_effort -O0 --Ofast-compile=max) # of the host's code, and of the device's
  endif()
  set(nvcc_flags -std=c++17 ${nvcc_effort} ${gencode} --fmad=false --compress-mode=size -Wno-deprecated-gpu-targets
      "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wno-unused-function,-ffp-contract=off"
      -diag-suppress=186 --expt-relaxed-constexpr --expt-extended-lambda "-I${PROJECT_SOURCE_DIR}" -DNDEBUG)
  if(PL_WERROR)
    list(APPEND nvcc_flags -Werror=all-warnings)
  endif()
  set(cuda_objects "")
  foreach(file IN LISTS cuda_units)
    get_filename_component(name "${file}" NAME_WE)
    get_filename_component(folder "${file}" DIRECTORY)
    get_filename_component(folder "${folder}" NAME)
    set(object "${out}/cuda/${folder}/${name}.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${out}/cuda/${folder}"
      COMMAND ${cuda_launcher} "${PL_NVCC}" ${nvcc_flags} -MD -MF "${object}.d" -c "${file}" -o "${object}"
      DEPENDS "${file}" DEPFILE "${object}.d" COMMENT "Building CUDA object ${name}.o" VERBATIM)
    list(APPEND cuda_objects "${object}")
  endforeach()
  # The headers that kernels compiled at run time include, as strings.
  set(embed "${PROJECT_SOURCE_DIR}/cmake/CudaHeaders.cmake")
  file(STRINGS "${embed}" embedded REGEX "^    kernels/|^set\\(files")
  string(REGEX MATCHALL "kernels/[a-z0-9_/.]+" embedded "${embedded}")
  list(TRANSFORM embedded PREPEND "${PROJECT_SOURCE_DIR}/")
  add_custom_command(OUTPUT "${out}/cuda/headers.c"
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}" "-DOUT=${out}/cuda/headers.c" -P "${embed}"
    DEPENDS "${embed}" ${embedded} COMMENT "Embedding CUDA headers" VERBATIM)
  add_library(perilune_cuda MODULE ${cuda_c} ${cuda_libs} "${out}/cuda/headers.c" ${cuda_objects})
  target_include_directories(perilune_cuda SYSTEM PRIVATE "${PL_CUDA_INCLUDE}" "${PL_CUDNN_INCLUDE}")
  target_link_libraries(perilune_cuda PRIVATE pl_flags "${PL_CUDART}" Threads::Threads ${CMAKE_DL_LIBS} rt m)
  target_link_options(perilune_cuda PRIVATE "LINKER:-z,nodelete" "LINKER:--exclude-libs,ALL"
                      "$<$<CONFIG:Release>:-s>")
  # The libraries are opened at run time: beside the plug-in, in the toolkit, beside cuDNN's headers (a wheel has lib/ there).
  set(cuda_rpath "$ORIGIN")
  get_filename_component(cudnn_root "${PL_CUDNN_INCLUDE}" DIRECTORY)
  foreach(dir "${PL_CUDA_ROOT}/lib64" "${PL_CUDA_ROOT}/lib" "${cudnn_root}/lib64" "${cudnn_root}/lib")
    if(IS_DIRECTORY "${dir}")
      list(APPEND cuda_rpath "${dir}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES cuda_rpath)
  target_link_options(perilune_cuda PRIVATE "LINKER:--enable-new-dtags") # RUNPATH: LD_LIBRARY_PATH goes before it
  set_target_properties(perilune_cuda PROPERTIES PREFIX "" BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${cuda_rpath}")
  if(cuda_wanted)
    set_target_properties(perilune_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${out}/lib/perilune")
    install(TARGETS perilune_cuda LIBRARY DESTINATION "${PL_CLIBDIR}/perilune")
    list(LENGTH cuda_cu count)
    pl_found("CUDA plug-in" "${nvcc_release}" "sm ${cuda_archs}, ${count} kernel files, ${PL_NVCC}")
  else()
    set_target_properties(perilune_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${out}/spec" EXCLUDE_FROM_ALL ON)
    pl_off("CUDA plug-in" "no GPU here, compiled for tests alone; ./setup build --cuda or -DPERILUNE_CUDA=ON builds it")
  endif()
endif()

# ---- its emulation, for tests ------------------------------------------------------------------------------------------
set(PL_CUDA_EMULATED "")
if(PL_TESTS)
  find_program(PL_CXX NAMES "$ENV{CXX}" c++ g++ clang++)
  if(NOT PL_CXX)
    pl_off("CUDA emulation" "no C++ compiler; the specs of spec/cuda are skipped")
  else()
    set(emulate "${PROJECT_SOURCE_DIR}/spec/cuda/emulate")
    file(GLOB emulate_h CONFIGURE_DEPENDS "${emulate}/*.h")
    set(cxx_flags -std=c++17 -O1 -g1 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics
        -ffp-contract=off -fno-strict-aliasing -Wall -Wextra -Wno-unused-function -Wno-unused-parameter -Wno-attributes -Wno-maybe-uninitialized
        "-I${PROJECT_SOURCE_DIR}" -isystem "${emulate}" -D_GNU_SOURCE)
    if(PL_WERROR)
      list(APPEND cxx_flags -Werror)
    endif()
    # fma() is one instruction here, too, where the processor has it, and not a call.
    set(emulate_level "")
    check_c_compiler_flag("-march=x86-64-v3" PL_CC_KNOWS_v3)
    if(PL_CC_KNOWS_v3 AND PL_CPU_HAS_v3)
      set(emulate_level -march=x86-64-v3)
    endif()
    list(APPEND cxx_flags ${emulate_level})
    # A pack of 16 bytes at an address that is no multiple of 16 faults on a GPU; here it is a trap (guard.cpp).
    list(APPEND cxx_flags -fsanitize=alignment -fsanitize-undefined-trap-on-error)
    # What stands before every kernel that the emulation compiles while it runs, compiled once; gcc takes x.h.gch for x.h where the
    # flags are the same. Other compilers read the header itself.
    set(fused_flags -std=c++17 -Og -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-strict-aliasing -ffp-contract=off -w
        ${emulate_level} -D_GNU_SOURCE "-I${PROJECT_SOURCE_DIR}" -isystem "${emulate}")
    set(fused_before "${out}/cuda/emulated/fused_before.h")
    set(fused_texts "")
    foreach(flag IN LISTS fused_flags)
      string(APPEND fused_texts " '${flag}'")
    endforeach()
    configure_file("${emulate}/fused_before.h" "${fused_before}" COPYONLY)
    execute_process(COMMAND "${PL_CXX}" -dM -E -x c++ /dev/null OUTPUT_VARIABLE cxx_macros ERROR_QUIET)
    set(fused_compiled "")
    set(fused_kept "")
    if(cxx_macros MATCHES "__GNUC__" AND NOT cxx_macros MATCHES "__clang__")
      set(fused_compiled "${fused_before}.gch")
      # Processes share the kernels that they compile, as long as nothing changes that they include.
      set(fused_kept "${out}/cuda/emulated/kept")
      add_custom_command(OUTPUT "${fused_compiled}"
        COMMAND "${CMAKE_COMMAND}" -E rm -rf "${fused_kept}"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${fused_kept}"
        COMMAND "${PL_CXX}" ${fused_flags} -MD -MF "${fused_compiled}.d" -x c++-header "${fused_before}" -o "${fused_compiled}"
        DEPENDS "${fused_before}" ${emulate_h} DEPFILE "${fused_compiled}.d" COMMENT "Building what stands before fused kernels" VERBATIM)
    endif()
    set(emulated_objects "")
    foreach(file IN LISTS cuda_units ITEMS "${emulate}/emulate.cpp" "${emulate}/runtime.cpp"
            "${emulate}/memory.cpp" "${emulate}/streams.cpp" "${emulate}/guard.cpp" "${emulate}/plant.cpp" "${emulate}/fused.cpp"
            "${emulate}/cudnn.cpp" "${emulate}/cudnn_graph.cpp" "${emulate}/cudnn_attention.cpp" "${emulate}/cudnn_ctc.cpp" "${emulate}/nccl.cpp")
      get_filename_component(name "${file}" NAME_WE)
      get_filename_component(folder "${file}" DIRECTORY)
      get_filename_component(folder "${folder}" NAME)
      set(object "${out}/cuda/emulated/${folder}/${name}.o")
      set(defs "")
      if(name STREQUAL "fused") # it compiles what NVRTC would
        set(defs "-DPLC_CXX=\"${PL_CXX}\"" "-DPLC_FUSED_FLAGS=\"${fused_texts}\"" "-DPLC_FUSED_BEFORE=\"${fused_before}\""
                 "-DPLC_FUSED_KEPT=\"${fused_kept}\"")
      endif()
      add_custom_command(OUTPUT "${object}"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${out}/cuda/emulated/${folder}"
        COMMAND ${cuda_launcher} "${PL_CXX}" ${cxx_flags} ${defs} -MD -MF "${object}.d" -x c++ -c "${file}" -o "${object}"
        DEPENDS "${file}" ${emulate_h} DEPFILE "${object}.d" COMMENT "Building emulated CUDA object ${name}.o" VERBATIM)
      list(APPEND emulated_objects "${object}")
    endforeach()
    set(emulated_libs attention.c attention_slices.c capture.c conv.c ctc.c cudnn.c cudnn_api.c cudnn_conv.c cudnn_graph.c cudnn_handle.c
        cudnn_plan.c fastest.c fused_args.c fused_rows.c fused_source.c nccl.c recurrent.c recurrent_net.c)
    list(TRANSFORM emulated_libs PREPEND "${PROJECT_SOURCE_DIR}/kernels/cuda/libs/")
    add_library(perilune_cuda_emulated MODULE EXCLUDE_FROM_ALL ${cuda_c} ${emulated_libs} ${emulated_objects} ${fused_compiled})
    target_include_directories(perilune_cuda_emulated SYSTEM PRIVATE "${emulate}")
    target_link_libraries(perilune_cuda_emulated PRIVATE pl_flags Threads::Threads ${CMAKE_DL_LIBS} m)
    # guard.cpp stands before the allocator
    target_link_options(perilune_cuda_emulated PRIVATE "LINKER:-z,nodelete"
      "LINKER:--wrap=plc_alloc,--wrap=plc_release,--wrap=plc_scratch,--wrap=plc_scratch_free,--wrap=plc_dnn_run,--wrap=plc_dnn_plans")
    set_target_properties(perilune_cuda_emulated PROPERTIES PREFIX "" OUTPUT_NAME cuda_emulated
                          LIBRARY_OUTPUT_DIRECTORY "${out}/spec")
    set(PL_CUDA_EMULATED "${out}/spec/cuda_emulated.so")
    pl_found("CUDA emulation" "yes" "for tests, ${PL_CXX}")
  endif()
endif()
