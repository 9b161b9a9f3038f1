# SPDX-License-Identifier: MIT
# What is installed beside the command and the Lua files: the C library with its pkg-config file; then the targets
# that take it away again (uninstall), make a Debian package (package) and a source rock (rock).

# ---- C library: archives, headers, perilune.pc -----------------------------------------------------
option(PL_DEVEL "Install the C library, its headers and perilune.pc" ON)
if(PL_DEVEL)
  # Libraries that the archives need at link time. BLAS and oneDNN are opened by the kernels themselves.
  set(pc_libs "")
  foreach(lib IN LISTS PL_ENGINE_LIBS PL_KERNEL_LIBS)
    if(lib STREQUAL "OpenMP::OpenMP_C")
      string(APPEND pc_libs " ${OpenMP_C_FLAGS}")
    elseif(lib STREQUAL "ZLIB::ZLIB")
      string(APPEND pc_libs " -lz")
    elseif(NOT lib STREQUAL "${PL_OPENBLAS_LIBRARY}" AND NOT lib STREQUAL "${PL_ONEDNN_LIBRARY}")
      get_filename_component(name "${lib}" NAME_WE)
      string(REGEX REPLACE "^lib" "-l" name "${name}")
      string(APPEND pc_libs " ${name}")
    endif()
  endforeach()
  configure_file("${PROJECT_SOURCE_DIR}/cmake/perilune.pc.in" "${out}/perilune.pc" @ONLY)
  file(WRITE "${out}/include/perilune.h" "/* SPDX-License-Identifier: MIT */\n#include <engine/perilune.h>\n")
  install(FILES "${out}/perilune.pc" DESTINATION "lib/pkgconfig")
  install(FILES "${out}/include/perilune.h" DESTINATION "include/perilune")
  install(FILES "${PROJECT_SOURCE_DIR}/engine/perilune.h" DESTINATION "include/perilune/engine")
  # program.h and what it includes: for what perilune build writes
  foreach(header base kernel program)
    install(FILES "${PROJECT_SOURCE_DIR}/kernels/${header}.h" DESTINATION "include/perilune/kernels")
  endforeach()
  install(TARGETS perilune_engine perilune_kernels ARCHIVE DESTINATION "lib")
  # the C ABI of programs that run models
  install(FILES "${PROJECT_SOURCE_DIR}/engine/deploy/perilune_model.h" DESTINATION "include/perilune")
  install(TARGETS perilune_shared LIBRARY DESTINATION "lib")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/perilune-model.pc.in" "${out}/perilune-model.pc" @ONLY)
  install(FILES "${out}/perilune-model.pc" DESTINATION "lib/pkgconfig")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/embed" DESTINATION "share/doc/perilune")
endif()

# ---- what ./setup demo built --------------------------------------------------------------------------
if(PL_QUICK)
  install(CODE "
  if(\"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\" MATCHES \"/_CPack_Packages/\")
    message(FATAL_ERROR \"this build is for this machine's processor alone (./setup demo); ./setup build makes one to pack\")
  endif()
  message(STATUS \"this build is for this machine's processor alone (./setup demo); ./setup build makes one for all\")")
endif()

# ---- uninstall ---------------------------------------------------------------------------------------
# CPack runs the installation, too, and so overwrites install_manifest.txt: what is to be taken away stands in a list of its
# own, below the prefix.
set(manifest "${out}/installed.txt")
install(CODE "
  if(NOT \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\" MATCHES \"/_CPack_Packages/\" AND NOT CMAKE_INSTALL_COMPONENT)
    list(JOIN CMAKE_INSTALL_MANIFEST_FILES \"\\n\" files)
    file(WRITE \"${manifest}\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\\n\${files}\\n\")
  endif()")
add_custom_target(uninstall COMMAND "${CMAKE_COMMAND}" "-DMANIFEST=${manifest}"
                  -P "${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake")

# ---- source rock: build/rock/perilune-VERSION-1.src.rock ----------------------------------------------
find_program(PL_LUAROCKS luarocks)
if(PL_LUAROCKS)
  add_custom_target(rock COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DOUT=${out}/rock"
                    "-DVERSION=${PROJECT_VERSION}" "-DLUAROCKS=${PL_LUAROCKS}"
                    -P "${PROJECT_SOURCE_DIR}/cmake/rock.cmake")
endif()

# ---- Debian package ------------------------------------------------------------------------------------
set(CPACK_GENERATOR "DEB")
set(CPACK_PACKAGE_NAME "perilune")
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "perilune maintainers <perilune@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Deep learning engine driven from Lua")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Tensors, gradients, neural networks and data loading for Lua 5.4,
 on a C engine of its own: a command with a prompt, Lua modules, a C library.")
set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
set(CPACK_PACKAGE_DIRECTORY "${out}/package")
set(CPACK_DEBIAN_FILE_NAME "DEB-DEFAULT")
set(CPACK_DEBIAN_PACKAGE_SECTION "science")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libopenblas0-openmp, libdnnl2")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "lua5.4, dataset-fashion-mnist")
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/cmake/package_tools.cmake")
include(CPack)
