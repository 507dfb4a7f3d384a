# The net room: frames, links, transports, tools/netlab.
function(aq_net_test name)
  aq_test(${name} LIBS aq_net ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/net)
endfunction()

aq_net_test(test_frame LABELS quick)
aq_net_test(test_link LABELS quick)
aq_net_test(test_heal LABELS fault)
aq_net_test(conform_transport LABELS quick conform)
aq_net_test(conform_collective LABELS quick conform)

add_test(NAME test_netlab COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_netlab)
set_tests_properties(test_netlab PROPERTIES SKIP_RETURN_CODE 77 LABELS quick TIMEOUT 300 RUN_SERIAL TRUE)
