aq_test(test_edge ALONE LIBS aq_runtime aq_stages aq_net aq_storage aqsgd LABELS quick threads PARTS 2)
target_include_directories(test_edge PRIVATE ${aq_runtime_MODULES} ${aqsgd_MODULES})
aq_isolated(test_edge)
target_link_options(test_edge PRIVATE -Wl,--wrap=aq_codec_decode_batch)

# On a GPU (label gpu, tools/test-gpu): every codec between two processes.
if(AQ_CUDA)
  aq_test(test_edge_processes PROGRAM test_gpu LIBS aq_runtime aq_stages aq_net aq_storage aqsgd LABELS gpu TIMEOUT 120)
  target_include_directories(test_edge_processes PRIVATE ${aq_runtime_MODULES} ${aqsgd_MODULES})
  aq_isolated(test_edge_processes)
endif()

aq_test(test_guard LIBS aq_runtime aqsgd LABELS quick)
target_include_directories(test_guard PRIVATE ${aq_runtime_MODULES} ${aqsgd_MODULES})

# A neighbour that misbehaves: copies of checkpoints; rows, messages and requests.
foreach(test neighbour neighbour_edge)
  aq_test(test_${test} LIBS aq_runtime aq_stages aq_net aq_storage aqsgd LABELS quick threads)
endforeach()
foreach(test hostile_edge edge_key whole_edge)
  aq_test(test_${test} LIBS aq_runtime aq_stages aq_net aq_storage aqsgd LABELS quick)
endforeach()
foreach(test neighbour neighbour_edge hostile_edge edge_key whole_edge)
  target_include_directories(test_${test} PRIVATE ${aq_runtime_MODULES})
endforeach()

aq_test(test_sums LIBS aq_runtime aq_stages aq_net aq_storage aqsgd aq_dep::jansson LABELS quick)
target_include_directories(test_sums PRIVATE ${aq_runtime_MODULES})
