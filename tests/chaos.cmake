# Faults at seeded moments: the losses stay those of the undisturbed run. More on demand: tests/chaos --faults 1000 --seed 1
if(TARGET aqpipe)
  add_test(NAME chaos
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/chaos --faults 20 --seed 1 --bin $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(chaos PROPERTIES LABELS fault TIMEOUT 1800 PROCESSORS 2)
endif()
