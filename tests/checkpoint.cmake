# Checkpoints beside the training, and what a run may go on from.
if(TARGET aqpipe)
  foreach(scenario background wrong_position mirror)
    add_test(NAME e2e_${scenario}
      COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e $<TARGET_FILE_DIR:aqpipe> ${scenario})
    set_tests_properties(e2e_${scenario} PROPERTIES LABELS "e2e;fault" TIMEOUT 1200 PROCESSORS 2)
  endforeach()
endif()
