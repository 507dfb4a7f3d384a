# What is installed, and packages: from there, and not from the build folder.
if(TARGET aqpipe)
  add_test(NAME test_install COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/package/install ${CMAKE_BINARY_DIR})
  set_tests_properties(test_install PROPERTIES LABELS "package;quick" TIMEOUT 300 PROCESSORS 2)
endif()
