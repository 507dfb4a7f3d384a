add_test(NAME tidy COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/tidy)
set_tests_properties(tidy PROPERTIES LABELS quick)
# What repeats failed tests in CI, on a tree of toy tests.
add_test(NAME test_flaky COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_flaky)
set_tests_properties(test_flaky PROPERTIES LABELS quick TIMEOUT 900)
# What counts the processor time of each test.
add_test(NAME test_processor_time COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_processor_time)
set_tests_properties(test_processor_time PROPERTIES LABELS quick TIMEOUT 900)
# How much of the English needs a second reading, by page and by folder: tests/prose.budget.
add_test(NAME prose COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/prose)
set_tests_properties(prose PROPERTIES LABELS quick)
# The messages that docs/TROUBLESHOOTING.md explains are those of the programs.
add_test(NAME test_troubleshooting COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/test_troubleshooting)
set_tests_properties(test_troubleshooting PROPERTIES LABELS quick)
# Each promise of docs/RELIABILITY.md and SECURITY.md names a test, and the tests that they name exist.
add_test(NAME test_promises COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_promises)
set_tests_properties(test_promises PROPERTIES LABELS quick)
# Entries of docs/decisions/ have one form, and references to their numbers find them.
add_test(NAME test_decisions COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_decisions)
set_tests_properties(test_decisions PROPERTIES LABELS quick)
# tools/lab claims nothing with less than five seeds, or if the interval crosses the bound.
add_test(NAME test_claims COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_claims)
set_tests_properties(test_claims PROPERTIES LABELS quick)
# Rows of docs/RESULTS.md have machine, commit and command, and what others quote of it is there.
add_test(NAME test_results COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_results)
set_tests_properties(test_results PROPERTIES LABELS quick)
