# The libraries that a .deb asks for; cpack runs this when the files are put together. What the program links it depends on. What its
# modules link is recommended: a module is loaded where there is use for it (ranks: under a launcher), and the program says what it
# lacks then.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
set(root ${CPACK_TEMPORARY_DIRECTORY})
file(GLOB_RECURSE modules ${root}/usr/lib/libtidemill_*.so)
set(asked -dDepends -e${root}/usr/bin/tidemill -dRecommends)
foreach(module ${modules})
  list(APPEND asked -e${module})
endforeach()
set(work ${CPACK_TOPLEVEL_DIRECTORY}/libraries)
file(WRITE ${work}/debian/control "") # dpkg-shlibdeps wants one
execute_process(COMMAND dpkg-shlibdeps --ignore-missing-info -O ${asked} WORKING_DIRECTORY ${work}
  OUTPUT_VARIABLE said ERROR_VARIABLE why RESULT_VARIABLE rc)
file(REMOVE_RECURSE ${work})
if(NOT rc EQUAL 0)
  message(FATAL_ERROR "dpkg-shlibdeps (of dpkg-dev): ${rc}: ${why}")
endif()
foreach(field Depends Recommends)
  string(TOUPPER CPACK_DEBIAN_PACKAGE_${field} variable)
  if(said MATCHES "shlibs:${field}=([^\n]+)")
    set(${variable} "${CMAKE_MATCH_1}, ${${variable}}")
  endif()
endforeach()
