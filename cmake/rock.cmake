# SPDX-License-Identifier: MIT
# A source rock that installs offline: SOURCE's files as a tarball, a rockspec that names it, both packed by luarocks
# into OUT. The version comes from project().
find_program(GIT git)
set(name "perilune-${VERSION}")
file(REMOVE_RECURSE "${OUT}")
file(MAKE_DIRECTORY "${OUT}/${name}")
set(listed 1)
if(GIT AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND "${GIT}" ls-files WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE files
                  RESULT_VARIABLE listed OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" files "${files}")
endif()
if(NOT listed EQUAL 0) # a copy without its history
  file(GLOB_RECURSE files RELATIVE "${SOURCE}" "${SOURCE}/*")
  list(FILTER files EXCLUDE REGEX "^(build|build.luarocks)/")
endif()
foreach(file IN LISTS files)
  if(EXISTS "${SOURCE}/${file}")
    get_filename_component(folder "${file}" DIRECTORY)
    file(COPY "${SOURCE}/${file}" DESTINATION "${OUT}/${name}/${folder}")
  endif()
endforeach()
execute_process(COMMAND "${CMAKE_COMMAND}" -E tar czf "${name}.tar.gz" "${name}" WORKING_DIRECTORY "${OUT}"
                RESULT_VARIABLE failed)
file(READ "${SOURCE}/rockspec/perilune-scm-1.rockspec" spec)
string(REPLACE "version = \"scm-1\"" "version = \"${VERSION}-1\"" spec "${spec}")
string(REGEX REPLACE "source = {[^}]*}" "source = {\n  url = \"file://${OUT}/${name}.tar.gz\",\n  dir = \"${name}\",\n}"
       spec "${spec}")
file(WRITE "${OUT}/${name}-1.rockspec" "${spec}")
if(NOT failed)
  execute_process(COMMAND "${LUAROCKS}" --lua-version=5.4 pack "${name}-1.rockspec" WORKING_DIRECTORY "${OUT}"
                  RESULT_VARIABLE failed)
endif()
if(failed OR NOT EXISTS "${OUT}/${name}-1.src.rock")
  message(FATAL_ERROR "the rock could not be packed")
endif()
file(REMOVE_RECURSE "${OUT}/${name}")
message(STATUS "${OUT}/${name}-1.src.rock")
