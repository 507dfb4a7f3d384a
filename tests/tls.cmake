# TLS: who gets in, and which files are refused. (What a link does under tls+ is in conform_transport.)
aq_net_test(test_endpoint LABELS quick)
aq_net_test(test_tls LABELS quick)
target_link_libraries(test_tls PRIVATE aq_dep::ssl aq_dep::crypto)
aq_net_test(test_revoked LABELS quick threads) # by lists that the authority signs
target_link_libraries(test_revoked PRIVATE aq_dep::ssl aq_dep::crypto)
aq_virtual_clock(test_revoked)

# Jobs under TLS, from `aqpipe keys` to their losses.
if(TARGET aqpipe)
  foreach(scenario tls quic tls_daemon)
    add_test(NAME e2e_${scenario}
      COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run $<TARGET_FILE_DIR:aqpipe> ${scenario})
    set_tests_properties(e2e_${scenario} PROPERTIES LABELS "e2e;fault" TIMEOUT 1200 PROCESSORS 2)
  endforeach()
endif()
