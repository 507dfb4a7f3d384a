# The plan: cut, memory, bytes, hash, prediction.
aq_test(test_plan LIBS aq_runtime LABELS quick)
target_include_directories(test_plan PRIVATE ${CMAKE_SOURCE_DIR}/runtime)
target_compile_definitions(test_plan PRIVATE AQ_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
