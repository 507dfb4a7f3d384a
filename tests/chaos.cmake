# Faults at seeded moments: the losses stay those of the undisturbed run. More on demand: tests/chaos --faults 1000 --seed 1
if(TARGET aqpipe)
  add_test(NAME chaos
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/chaos --faults 20 --seed 1 --bin $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(chaos PROPERTIES LABELS fault TIMEOUT 1800 PROCESSORS 2)
  add_test(NAME chaos_split # more on demand: tests/chaos_split --faults 1000 --seed 1
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/chaos_split --faults 6 --seed 1 --bin $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(chaos_split PROPERTIES LABELS fault TIMEOUT 900 PROCESSORS 2)
  # More on demand: tests/chaos_rounds --faults 1000. NAME has a small model, and few steps between faults; NAME_whole (label long) has neither.
  function(aq_chaos_rounds name)
    set(command ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/chaos_rounds --bin $<TARGET_FILE_DIR:aqpipe> ${ARGN})
    add_test(NAME ${name} COMMAND ${command} --steps 8 --blocks 2 --channels 16)
    add_test(NAME ${name}_whole COMMAND ${command})
    set_tests_properties(${name} PROPERTIES LABELS fault TIMEOUT 900 PROCESSORS 2)
    set_tests_properties(${name}_whole PROPERTIES LABELS "fault;long" TIMEOUT 3600 PROCESSORS 2)
  endfunction()
  aq_chaos_rounds(chaos_rounds --faults 6 --seed 1)
  aq_chaos_rounds(chaos_rounds_steps --faults 6 --seed 5 --round 1 --set "checkpoint.every=20 steps") # reduce.every: 1
  aq_chaos_rounds(chaos_rounds_delay --faults 6 --seed 3 --set reduce.delay=6) # averages that travel during steps
  aq_chaos_rounds(chaos_rounds_daemons --daemons --faults 8 --seed 5 --rate 4) # a daemon for each replica, and faults that kill one; paced, because a replica is away for long
  add_test(NAME chaos_rounds_lab # docs/RESULTS.md has a long form
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/chaos_rounds --lab --faults 8 --every 1 --seed 1 --stages 1 --blocks 2 --noise 0.3 --set reduce.codec=q4 --set reduce.steps=speed
      --channels 16 --bin $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(chaos_rounds_lab PROPERTIES LABELS fault TIMEOUT 900 PROCESSORS 2 SKIP_RETURN_CODE 77)
  add_test(NAME chaos_split_long
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/chaos_split --faults 40 --seed 2 --bin $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(chaos_split_long PROPERTIES LABELS "fault;long" TIMEOUT 3600 PROCESSORS 2)
  add_test(NAME chaos_lab
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/chaos --lab --faults 6 --seed 1 --bin $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(chaos_lab PROPERTIES LABELS fault TIMEOUT 900 PROCESSORS 2 SKIP_RETURN_CODE 77)
endif()
