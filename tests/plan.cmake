# The plan: cut, memory, bytes, hash, prediction.
aq_test(test_plan LIBS aq_runtime LABELS quick)
target_include_directories(test_plan PRIVATE ${aq_runtime_ROOMS})
target_compile_definitions(test_plan PRIVATE AQ_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
aq_test(test_balance LIBS aq_runtime LABELS quick)
target_include_directories(test_balance PRIVATE ${aq_runtime_ROOMS})
aq_test(test_distance LIBS aq_runtime LABELS quick)
target_include_directories(test_distance PRIVATE ${aq_runtime_ROOMS})
