# `cmake --install`: programs, manual pages, completion, the daemon's unit, examples, licence. Paths are GNUInstallDirs', so
# that a packager sets them (debian/rules); programs get no run path: their libraries are the system's.
include(GNUInstallDirs)
set(AQ_INSTALL_UNITS "lib/systemd/system" CACHE STRING "Where aqpiped.service goes: under the prefix, or absolute")
set(AQ_INSTALL_BASH "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" CACHE STRING "Where bash looks for completion")
set(AQ_INSTALL_ZSH "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions" CACHE STRING "Where zsh looks (its $fpath)")
set(AQ_INSTALL_FISH "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" CACHE STRING "Where fish looks")
option(AQ_COMPLETION "Write the shells' completion with the programs that were built (OFF: cross builds)" ON)
mark_as_advanced(AQ_INSTALL_UNITS AQ_INSTALL_BASH AQ_INSTALL_ZSH AQ_INSTALL_FISH)

get_property(programs GLOBAL PROPERTY AQ_INSTALLED) # aqpipe, aqpiped, aqpipe-bench
install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(CODE "foreach(program aqpipe aqpiped aqpipe-bench) # the run path is for packages that bring libraries (CMakeLists.txt)
  file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\${program}\")
endforeach()")
install(FILES docs/man/aqpipe.1 docs/man/aqpiped.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}
  FILES_MATCHING PATTERN "*.md" PATTERN "*.png" PATTERN "*.svg" PATTERN man EXCLUDE)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} USE_SOURCE_PERMISSIONS
  FILES_MATCHING PATTERN "*.yaml" PATTERN "*.md" PATTERN "*.c" PATTERN "*.py" PATTERN "*.jinja" PATTERN make-data PATTERN compare PATTERN shapes
  PATTERN text EXCLUDE PATTERN run EXCLUDE)
foreach(example split-cifar10 split-images split-reports split-text) # a program that is called as run folders are
  install(PROGRAMS examples/${example}/run DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/${example})
endforeach()
install(PROGRAMS tools/text tools/follow tools/split-here tools/split-data tools/split-audit
  DESTINATION ${CMAKE_INSTALL_DATADIR}/aqpipe/tools)
install(FILES tools/program.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/aqpipe/tools)
install(DIRECTORY tools/split-audit.d DESTINATION ${CMAKE_INSTALL_DATADIR}/aqpipe/tools FILES_MATCHING PATTERN "*.py")
install(FILES share/grafana/aqpipe.json DESTINATION ${CMAKE_INSTALL_DATADIR}/aqpipe/grafana)
install(FILES share/prometheus/aqpipe.rules.yml DESTINATION ${CMAKE_INSTALL_DATADIR}/aqpipe/prometheus)

# A unit names its program by its place: that of the prefix that is installed to (cmake --install --prefix).
foreach(unit aqpiped.service aqpipe-split-server@.service aqpipe-relay.service)
  install(CODE "set(CMAKE_INSTALL_FULL_BINDIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
configure_file(\"${PROJECT_SOURCE_DIR}/tools/systemd/${unit}.in\" \"${CMAKE_BINARY_DIR}/${unit}\" @ONLY)")
  install(FILES ${CMAKE_BINARY_DIR}/${unit} DESTINATION ${AQ_INSTALL_UNITS})
endforeach()

# The programs write their own completion, from their tables of options.
if(AQ_COMPLETION AND NOT CMAKE_CROSSCOMPILING)
  set(scripts)
  foreach(shell bash zsh fish)
    foreach(program aqpipe aqpiped)
      set(script ${CMAKE_BINARY_DIR}/completion/${shell}/${program})
      if(program STREQUAL aqpipe)
        set(asked help completion ${shell})
      else()
        set(asked --completion=${shell})
      endif()
      add_custom_command(OUTPUT ${script}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/completion/${shell}
        COMMAND $<TARGET_FILE:${program}> ${asked} > ${script}
        DEPENDS ${program} aqpipe-bench VERBATIM) # which prints its part
      list(APPEND scripts ${script})
    endforeach()
  endforeach()
  add_custom_target(completion ALL DEPENDS ${scripts})
  foreach(program aqpipe aqpiped)
    install(FILES ${CMAKE_BINARY_DIR}/completion/bash/${program} DESTINATION ${AQ_INSTALL_BASH})
    install(FILES ${CMAKE_BINARY_DIR}/completion/zsh/${program} DESTINATION ${AQ_INSTALL_ZSH} RENAME _${program})
    install(FILES ${CMAKE_BINARY_DIR}/completion/fish/${program} DESTINATION ${AQ_INSTALL_FISH} RENAME ${program}.fish)
  endforeach()
endif()

# libaqsgd for programs: the library, its header, what pkg-config and CMake's find_package(aqsgd) read.
if(TARGET aqsgd_shared)
  include(CMakePackageConfigHelpers)
  install(TARGETS aqsgd_shared EXPORT aqsgd LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES aqsgd/library/include/aqsgd.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT aqsgd FILE aqsgdConfig.cmake NAMESPACE aqsgd:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/aqsgd)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/aqsgdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/aqsgdConfigVersion.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/aqsgd)
  install(CODE "set(AQ_PC_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
set(AQ_PC_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
set(AQ_PC_VERSION \"${PROJECT_VERSION}\")
configure_file(\"${PROJECT_SOURCE_DIR}/aqsgd/library/aqsgd.pc.in\" \"${CMAKE_BINARY_DIR}/aqsgd.pc\" @ONLY)")
  install(FILES ${CMAKE_BINARY_DIR}/aqsgd.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
