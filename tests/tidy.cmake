add_test(NAME tidy COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/tidy)
set_tests_properties(tidy PROPERTIES LABELS quick)
