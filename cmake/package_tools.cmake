# SPDX-License-Identifier: MIT
# Before a Debian package is made: its dependencies are found by dpkg-shlibdeps, which needs file. Without them CPack stops with
# an error of its own, or makes a package that depends on nothing.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(missing "")
  foreach(program file dpkg-shlibdeps)
    find_program(PL_PACKAGE_${program} ${program})
    if(NOT PL_PACKAGE_${program})
      string(APPEND missing " ${program}")
    endif()
  endforeach()
  if(missing)
    message(FATAL_ERROR "the package needs${missing}, which is not here: apt-get install file dpkg-dev")
  endif()
endif()
