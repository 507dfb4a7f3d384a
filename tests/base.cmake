aq_test(test_base LIBS aqsgd LABELS quick threads)
aq_virtual_clock(test_base)
aq_test(test_file LIBS aqsgd LABELS quick)
aq_test(test_control_group LIBS aqsgd LABELS quick)
aq_test(test_processor LIBS aqsgd LABELS quick)
target_include_directories(test_processor PRIVATE ${aqsgd_MODULES})
# The layer for a processor that has none of our vectors.
add_test(NAME build_aarch64 COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/build_aarch64)
set_tests_properties(build_aarch64 PROPERTIES SKIP_RETURN_CODE 77 LABELS quick TIMEOUT 900)
