aq_test(test_edge LIBS aq_runtime aq_stages aq_net aq_storage aqsgd LABELS quick)
target_include_directories(test_edge PRIVATE ${CMAKE_SOURCE_DIR}/runtime)

# A neighbour that misbehaves: copies of checkpoints.
aq_test(test_neighbour LIBS aq_runtime aq_stages aq_net aq_storage aqsgd LABELS quick)
target_include_directories(test_neighbour PRIVATE ${CMAKE_SOURCE_DIR}/runtime)
aq_test(test_hostile_edge LIBS aq_runtime aq_stages aq_net aq_storage aqsgd LABELS quick)
target_include_directories(test_hostile_edge PRIVATE ${CMAKE_SOURCE_DIR}/runtime)
