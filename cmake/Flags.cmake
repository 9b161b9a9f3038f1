# SPDX-License-Identifier: MIT
# One interface target, pl_flags, carries the language, warning and code generation flags of all our C.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG")
if(PL_QUICK)
  set(CMAKE_C_FLAGS_RELEASE "-O1 -DNDEBUG") # the hot loops get more, see Isa.cmake
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_SKIP_INSTALL_RPATH OFF)

add_library(pl_flags INTERFACE)
target_include_directories(pl_flags INTERFACE "${PROJECT_SOURCE_DIR}")
target_include_directories(pl_flags SYSTEM INTERFACE ${PL_SYSTEM_INCLUDE})
target_compile_definitions(pl_flags INTERFACE _GNU_SOURCE PL_VERSION="${PROJECT_VERSION}")
target_compile_options(pl_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
  -ffp-contract=off -ffunction-sections -fdata-sections
  # Thread-locals (message, scratch) are read on the hot path: no call of __tls_get_addr.
  -ftls-model=initial-exec -fno-plt)
# Hardening, checked by spec/cmake/hardened_spec.lua: canaries, checked library calls, and tables of the linker that are
# read-only from the start. Sanitizers check more than canaries and FORTIFY do, and want the plain calls; with canaries gcc
# places variables of 64-byte alignment in AddressSanitizer's frames at addresses that are no multiples of 64.
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C) # with POSITION_INDEPENDENT_CODE above: programs are position-independent
check_c_compiler_flag(-fstack-protector-strong PL_CC_STACK_PROTECTOR)
if(PL_CC_STACK_PROTECTOR AND NOT PL_SANITIZE)
  target_compile_options(pl_flags INTERFACE -fstack-protector-strong)
endif()
if(NOT PL_SANITIZE)
  target_compile_options(pl_flags INTERFACE "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
endif()
target_link_options(pl_flags INTERFACE "LINKER:-z,relro,-z,now" "LINKER:-z,noexecstack")
# The same bytes wherever the tree and the build folder are.
check_c_compiler_flag(-ffile-prefix-map=/a=b PL_CC_PREFIX_MAP)
if(PL_CC_PREFIX_MAP)
  target_compile_options(pl_flags INTERFACE "-ffile-prefix-map=${PROJECT_SOURCE_DIR}=." "-ffile-prefix-map=${PROJECT_BINARY_DIR}=build")
endif()

# The kernels open BLAS and oneDNN on first use; then nothing needs these libraries at start.
target_link_options(pl_flags INTERFACE "LINKER:--as-needed")
if(NOT OpenMP_C_FOUND)
  target_compile_options(pl_flags INTERFACE -Wno-unknown-pragmas) # omp pragmas then mean nothing
endif()
if(PL_WERROR)
  target_compile_options(pl_flags INTERFACE -Werror)
endif()

if(PL_SANITIZE STREQUAL "address")
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined
      -fno-omit-frame-pointer)
  target_compile_definitions(pl_flags INTERFACE PL_ASAN=1)
elseif(PL_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread -fno-omit-frame-pointer)
  target_compile_definitions(pl_flags INTERFACE PL_TSAN=1)
elseif(NOT PL_SANITIZE STREQUAL "")
  message(FATAL_ERROR "PL_SANITIZE=${PL_SANITIZE}: address and thread are known")
endif()
if(PL_SANITIZE)
  target_compile_options(pl_flags INTERFACE ${sanitize})
  target_link_options(pl_flags INTERFACE ${sanitize})
  pl_report("sanitizer" "${PL_SANITIZE}" "${sanitize}")
else()
  pl_report("sanitizer" "off" "PL_SANITIZE is empty (presets asan and tsan set it)")
endif()
