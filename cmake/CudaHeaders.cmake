# SPDX-License-Identifier: MIT
# cmake -DROOT=… -DOUT=… -P CudaHeaders.cmake: writes OUT, a C file with the text of every header that a kernel compiled at
# run time may include (kernels/cuda/libs/nvrtc.h). System headers are stand-ins: NVRTC has the functions built in.
set(files kernels/cuda/elementwise/fused.h kernels/cuda/elementwise/elementwise_math.h kernels/cuda/elementwise/math.h
    kernels/cuda/elementwise/half_math.h kernels/cuda/device.h kernels/cuda/elementwise/elementwise_cases.h kernels/cuda/elementwise/elementwise_slow.h
    kernels/special_formulas.h kernels/elementwise_formulas.h kernels/activation_formulas.h kernels/elementwise.def
    kernels/elementwise_codes.h kernels/base.h)
set(text "/* Made by cmake/CudaHeaders.cmake. */\n#include <stddef.h>\n#include \"kernels/cuda/libs/nvrtc.h\"\n")
string(APPEND text "const PlcHeader plc_headers[] = {\n")
function(add name content)
  string(REPLACE "\\" "\\\\" content "${content}")
  string(REPLACE "\"" "\\\"" content "${content}")
  string(REPLACE "\n" "\\n\"\n\"" content "${content}")
  set(text "${text}{\"${name}\",\n\"${content}\"},\n" PARENT_SCOPE)
endfunction()
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" content)
  add("${file}" "${content}")
endforeach()
add("kernels/cuda/cuda.h" "#include \"kernels/base.h\"
typedef struct PlcFlag { int set, base; const char *name; int64_t value, size; } PlcFlag;
typedef enum PlcFault { PLC_FAULT_NONE, PLC_FAULT_INDEX, PLC_FAULT_ZERO_DIVISION, PLC_FAULT_PROBABILITY } PlcFault;
")
add("stdint.h" "#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned uint32_t; typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#define INT64_C(x) x##LL
#define UINT64_C(x) x##ULL
#define INT32_MAX 2147483647
#define INT32_MIN (-2147483647 - 1)
#define INT64_MAX 9223372036854775807LL
#define INT64_MIN (-9223372036854775807LL - 1)
#define UINT64_MAX 18446744073709551615ULL
")
add("stddef.h" "#pragma once\ntypedef decltype(sizeof 0) size_t;\n#define offsetof(t, m) ((size_t)&((t *)0)->m)\n")
add("math.h" "#pragma once\n#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fffffff)\n")
foreach(empty stdarg.h stdbool.h)
  add(${empty} "#pragma once\n")
endforeach()
add("string.h" "#pragma once\n#include \"stddef.h\"\n")
string(APPEND text "{NULL, NULL}};\n")
file(WRITE "${OUT}" "${text}")
