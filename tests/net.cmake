# The net room: frames, links, transports, tools/netlab.
function(aq_net_test name)
  aq_test(${name} LIBS aq_net ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/net)
endfunction()

aq_net_test(test_frame LABELS quick)
aq_net_test(test_packed LABELS quick)
aq_net_test(test_parts LABELS quick)
aq_net_test(test_hostile_reader LABELS quick)
aq_net_test(test_link LABELS quick)
aq_net_test(test_hostile LABELS quick)
aq_net_test(test_heal LABELS fault)
aq_net_test(conform_transport LABELS quick conform)
aq_net_test(conform_collective SOURCES conform_collective.c collective_cases.c LABELS quick conform)
aq_net_test(conform_collective_mpi SOURCES conform_collective_mpi.c collective_cases.c LABELS quick conform)
if(AQ_CUDA AND AQ_NCCL)
  aq_net_test(conform_collective_gpu SOURCES conform_collective_gpu.c collective_cases.c LABELS gpu)
  aq_net_test(conform_grad_gpu SOURCES conform_grad_device.c LABELS gpu TIMEOUT 300)
  target_include_directories(conform_grad_gpu PRIVATE ${CMAKE_SOURCE_DIR}/aqsgd)
endif()
if(AQ_MPI) # it has run alone, W = 1; here with ranks, more than there are cores where need be
  foreach(ranks 2 3 4)
    add_test(NAME conform_collective_mpi_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --allow-run-as-root
      ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:conform_collective_mpi>)
    set_tests_properties(conform_collective_mpi_${ranks} PROPERTIES LABELS "quick;conform" TIMEOUT 120)
  endforeach()
endif()

add_test(NAME test_netlab COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_netlab)
set_tests_properties(test_netlab PROPERTIES SKIP_RETURN_CODE 77 LABELS quick TIMEOUT 300 RUN_SERIAL TRUE)

add_test(NAME test_bench_allreduce COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_bench_allreduce $<TARGET_FILE:aqpipe>)
set_tests_properties(test_bench_allreduce PROPERTIES LABELS quick TIMEOUT 120)
