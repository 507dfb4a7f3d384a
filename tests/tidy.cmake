add_test(NAME tidy COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/tidy)
set_tests_properties(tidy PROPERTIES LABELS quick)
# How much of the English needs a second reading, by page and by folder: tests/prose.budget.
add_test(NAME prose COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/prose)
set_tests_properties(prose PROPERTIES LABELS quick)
