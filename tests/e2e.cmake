# Whole jobs, as a user runs them. Those that kill and cut take longer: they are not quick.
if(TARGET aqpipe)
  add_library(power_loss MODULE power_loss.c)
  target_link_libraries(power_loss PRIVATE aq_flags ${CMAKE_DL_LIBS})
  set_target_properties(power_loss PROPERTIES LIBRARY_OUTPUT_DIRECTORY $<TARGET_FILE_DIR:aqpipe>)
  foreach(scenario equal apart cut codecs fp16 bad_input resume restart restart_daemon lost_disk outage packed long_outage dials power
      replicas replicas_resume replicas_bad_input replicas_optimizers
      replicas_reshard replicas_apart replicas_auto replicas_nan replicas_machines)
    add_test(NAME e2e_${scenario}
      COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e $<TARGET_FILE_DIR:aqpipe> ${scenario})
    set_tests_properties(e2e_${scenario} PROPERTIES LABELS "e2e;fault" TIMEOUT 1200 PROCESSORS 2)
  endforeach()
  add_test(NAME test_convergence COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/test_convergence $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_convergence PROPERTIES LABELS e2e TIMEOUT 1200 PROCESSORS 2)
  add_test(NAME test_bench_gpu COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_bench_gpu $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_bench_gpu PROPERTIES LABELS e2e TIMEOUT 300 PROCESSORS 2)
  if(AQ_CUDA)
    foreach(scenario gpu replicas_one_gpu)
      add_test(NAME e2e_${scenario} COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e $<TARGET_FILE_DIR:aqpipe> ${scenario})
      set_tests_properties(e2e_${scenario} PROPERTIES LABELS gpu TIMEOUT 300 SKIP_RETURN_CODE 77)
    endforeach()
  endif()
  set_tests_properties(e2e_equal e2e_apart e2e_cut e2e_codecs e2e_fp16 e2e_packed e2e_bad_input PROPERTIES LABELS "e2e;quick")
endif()
