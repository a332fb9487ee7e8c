# What a user of the program gets (component `program`): the program, its modules, manual pages, completions; as a .deb that
# depends on Debian's libraries, and as a tarball that runs from wherever it is unpacked:
#   cpack --config build/CPackConfig.cmake            (in the build folder, both)
set(pages ${CMAKE_BINARY_DIR}/share)
if(NOT TIDEMILL_SANITIZE)
  add_custom_command(OUTPUT ${pages}/made
    COMMAND ${CMAKE_COMMAND} -E env OMP_NUM_THREADS=1 sh ${CMAKE_SOURCE_DIR}/tools/pages.sh $<TARGET_FILE:tidemill> ${pages}
    COMMAND ${CMAKE_COMMAND} -E touch ${pages}/made
    DEPENDS tidemill ${CMAKE_SOURCE_DIR}/tools/pages.sh COMMENT "manual pages and completions" VERBATIM)
  add_custom_target(pages ALL DEPENDS ${pages}/made)
  install(DIRECTORY ${pages}/ DESTINATION ${CMAKE_INSTALL_DATAROOTDIR} COMPONENT program PATTERN made EXCLUDE)
endif()
set(doc ${CMAKE_INSTALL_DATAROOTDIR}/doc/tidemill)
install(FILES packaging/copyright README.md DESTINATION ${doc} COMPONENT program)
find_program(TIDEMILL_GZIP gzip)
if(TIDEMILL_GZIP)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/changelog.gz
    COMMAND sh -c "${TIDEMILL_GZIP} -9nc ${CMAKE_SOURCE_DIR}/CHANGELOG.md > ${CMAKE_BINARY_DIR}/changelog.gz"
    DEPENDS CHANGELOG.md VERBATIM)
  add_custom_target(changelog ALL DEPENDS ${CMAKE_BINARY_DIR}/changelog.gz)
  install(FILES ${CMAKE_BINARY_DIR}/changelog.gz DESTINATION ${doc} COMPONENT program)
endif()

set(CPACK_PACKAGE_NAME tidemill)
set(CPACK_PACKAGE_VENDOR "the tidemill maintainers")
set(CPACK_PACKAGE_CONTACT "tidemill maintainers <maintainers@tidemill.dev>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fine-tunes language models that are larger than memory")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Full and parameter-efficient fine-tuning of language models on a few GPUs or
none: parameters and Adam states lie in files and are paged by a plan that is
made before the first step. It says first whether a run fits and how long it
takes, and a run that is killed goes on bit for bit.")
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_SOURCE_GENERATOR "")
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};tidemill;program;/")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/package_libraries.cmake) # what is linked; below is what is loaded
set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0-pthread)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libmicrohttpd12, libedit2")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS openmpi-bin)
include(CPack)
