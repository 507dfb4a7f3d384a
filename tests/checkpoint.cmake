# Checkpoints beside the training, and what a run may go on from.
if(TARGET aqpipe)
  foreach(scenario background wrong_position mirror extend extend_schedule late)
    add_test(NAME e2e_${scenario}
      COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run $<TARGET_FILE_DIR:aqpipe> ${scenario})
    set_tests_properties(e2e_${scenario} PROPERTIES LABELS "e2e;fault" TIMEOUT 1200 PROCESSORS 2)
  endforeach()
endif()
aq_test(test_io_runtime ALONE LIBS aq_runtime aq_dep::jansson aq_dep::uring SOURCES runtime/test_io_runtime.c kit/io_fault.c LABELS quick fault threads)
target_include_directories(test_io_runtime PRIVATE ${aq_runtime_MODULES})
