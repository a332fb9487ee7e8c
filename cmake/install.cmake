# What `cmake --install` puts beside the program: libtidemill.a (the objects of every module), the public headers (by
# tm_module), tidemill.pc and the CMake package. The library is static only, so whoever links it needs what it needs.
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY TM_MODULES)
set(objects "")
set(needed "")
foreach(module ${modules})
  list(APPEND objects $<TARGET_OBJECTS:${module}>)
  get_target_property(libraries ${module} LINK_LIBRARIES)
  list(APPEND needed ${libraries})
endforeach()
list(FILTER needed EXCLUDE REGEX "^tm_")
list(REMOVE_DUPLICATES needed)

add_library(tidemill_library STATIC ${objects})
set_target_properties(tidemill_library PROPERTIES OUTPUT_NAME tidemill EXPORT_NAME tidemill LINKER_LANGUAGE C)
target_include_directories(tidemill_library INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tidemill>)
target_link_libraries(tidemill_library INTERFACE ${needed})

# The same needs in pkg-config's words; a module that brings a new library adds its line here and in the package file.
set(PC_REQUIRES "")
set(PC_LIBS "")
foreach(library ${needed})
  if(library STREQUAL "PkgConfig::URING")
    list(APPEND PC_REQUIRES liburing)
  elseif(library STREQUAL "PkgConfig::XXHASH")
    list(APPEND PC_REQUIRES libxxhash)
  elseif(library STREQUAL "PkgConfig::PCRE2")
    list(APPEND PC_REQUIRES libpcre2-8)
  elseif(library STREQUAL "PkgConfig::UTF8PROC")
    list(APPEND PC_REQUIRES libutf8proc)
  elseif(library STREQUAL "PkgConfig::ZLIB")
    list(APPEND PC_REQUIRES zlib)
  elseif(library STREQUAL "PkgConfig::ZSTD")
    list(APPEND PC_REQUIRES libzstd)
  elseif(library STREQUAL "PkgConfig::YAML")
    list(APPEND PC_REQUIRES yaml-0.1)
  elseif(library STREQUAL "Threads::Threads")
    list(APPEND PC_LIBS -pthread)
  elseif(library STREQUAL "OpenMP::OpenMP_C")
    list(APPEND PC_LIBS ${OpenMP_C_FLAGS})
  elseif(library MATCHES "^[a-z]+$")
    list(APPEND PC_LIBS -l${library})
  else()
    message(FATAL_ERROR "cmake/install.cmake: say how ${library} is named in tidemill.pc")
  endif()
endforeach()
list(JOIN PC_REQUIRES " " PC_REQUIRES)
list(JOIN PC_LIBS " " PC_LIBS)
file(RELATIVE_PATH PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/tidemill.pc.in ${CMAKE_BINARY_DIR}/tidemill.pc @ONLY)
configure_package_config_file(cmake/tidemillConfig.cmake.in ${CMAKE_BINARY_DIR}/tidemillConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidemill)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tidemillConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS tidemill_library EXPORT tidemill ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT tidemill FILE tidemillTargets.cmake NAMESPACE tidemill::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidemill)
install(FILES ${CMAKE_BINARY_DIR}/tidemillConfig.cmake ${CMAKE_BINARY_DIR}/tidemillConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tidemill)
install(FILES ${CMAKE_BINARY_DIR}/tidemill.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Machines that one may not have: `tidemill plan --hardware`.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/hardware/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tidemill/hardware COMPONENT program
  FILES_MATCHING PATTERN "*.json" PATTERN "README.md")
