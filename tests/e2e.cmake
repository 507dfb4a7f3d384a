# Whole jobs, as a user runs them. Those that kill and cut take longer: they are not quick.
if(TARGET aqpipe)
  # The programs whose CPU is the isolated device (isolated/device_isolated.c): scenarios isolated and replicas_isolated.
  foreach(program aqpipe aqpiped)
    add_executable(${program}_isolated ${PROJECT_SOURCE_DIR}/runtime/cli/main_${program}.c isolated/isolated_cpu.c)
    aq_isolated(${program}_isolated)
    target_include_directories(${program}_isolated PRIVATE ${aq_runtime_ROOMS})
    target_link_libraries(${program}_isolated PRIVATE $<$<STREQUAL:${program},aqpipe>:aq_bench> aq_runtime aqsgd aq_flags Threads::Threads m)
    set_target_properties(${program}_isolated PROPERTIES OUTPUT_NAME ${program}
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/isolated)
  endforeach()
  # The program that workers of tests run where links are to break and checkpoints to be slow.
  add_executable(aqpipe_faulty ${PROJECT_SOURCE_DIR}/runtime/cli/main_aqpipe.c)
  aq_faulty(aqpipe_faulty)
  target_include_directories(aqpipe_faulty PRIVATE ${aq_runtime_ROOMS})
  target_link_libraries(aqpipe_faulty PRIVATE aq_bench aq_runtime aq_flags)
  foreach(library power_loss clock_jump) # for LD_PRELOAD
    add_library(${library} MODULE kit/${library}.c)
    target_link_libraries(${library} PRIVATE aq_flags ${CMAKE_DL_LIBS})
    set_target_properties(${library} PROPERTIES LIBRARY_OUTPUT_DIRECTORY $<TARGET_FILE_DIR:aqpipe>)
  endforeach()
  foreach(scenario doctor seen equal zero_bubble images tables tables_resume tables_bad_input instruct early_stop deberta deberta_resume glue isolated cut codecs warmup examples fp16 bad_input resume guard stop restart restart_daemon lost_disk outage clock packed long_outage dials power
      freeze freeze_cut freeze_optimizers freeze_prefix folders
      replicas replicas_resume replicas_bad_input replicas_optimizers replicas_defaults
      replicas_reshard replicas_isolated replicas_auto replicas_nan replicas_machines wan probe balance page
      staleness staleness_resume staleness_replicas staleness_fp16 staleness_lost staleness_frozen staleness_memory
      lora lora_cut lora_export lora_packed
      local local_resume local_reshard local_void
      generate eval)
    add_test(NAME e2e_${scenario}
      COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run $<TARGET_FILE_DIR:aqpipe> ${scenario})
    set_tests_properties(e2e_${scenario} PROPERTIES LABELS "e2e;fault" TIMEOUT 1200 PROCESSORS 2)
  endforeach()
  foreach(scenario split split_leaves split_refused split_example)
    add_test(NAME e2e_${scenario} COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run $<TARGET_FILE_DIR:aqpipe> ${scenario})
    set_tests_properties(e2e_${scenario} PROPERTIES LABELS "e2e;fault" TIMEOUT 300 PROCESSORS 2)
  endforeach()
  add_test(NAME e2e_ssh COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run $<TARGET_FILE_DIR:aqpipe> ssh)
  set_tests_properties(e2e_ssh PROPERTIES LABELS "e2e;fault" TIMEOUT 300 PROCESSORS 2)
  add_test(NAME e2e_families COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run $<TARGET_FILE_DIR:aqpipe> families)
  set_tests_properties(e2e_families PROPERTIES LABELS "e2e;quick" TIMEOUT 1200 PROCESSORS 2)
  add_test(NAME golden_runs COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/golden_runs --build $<TARGET_FILE_DIR:aqpipe>
    --against ${CMAKE_CURRENT_SOURCE_DIR}/golden/runs.json)
  set_tests_properties(golden_runs PROPERTIES LABELS e2e TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
  add_test(NAME test_convergence COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/test_convergence $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_convergence PROPERTIES LABELS e2e TIMEOUT 1200 PROCESSORS 2)
  add_test(NAME test_lab COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/test_lab $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_lab PROPERTIES LABELS e2e TIMEOUT 1200 PROCESSORS 2)
  add_test(NAME test_bench COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_bench $<TARGET_FILE:aqpipe>)
  set_tests_properties(test_bench PROPERTIES LABELS e2e TIMEOUT 120)
  add_test(NAME test_bench_gpu COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_bench_gpu $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_bench_gpu PROPERTIES LABELS e2e TIMEOUT 300 PROCESSORS 2)
  if(AQ_CUDA)
    set(with_nccl)
    if(AQ_NCCL)
      set(with_nccl edges_gpu)
    endif()
    foreach(scenario gpu replicas_one_gpu freeze_gpu lora_gpu ${with_nccl})
      add_test(NAME e2e_${scenario} COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run $<TARGET_FILE_DIR:aqpipe> ${scenario})
      set_tests_properties(e2e_${scenario} PROPERTIES LABELS gpu TIMEOUT 300 SKIP_RETURN_CODE 77)
    endforeach()
  endif()
  set_tests_properties(e2e_images e2e_glue e2e_wan e2e_probe e2e_page PROPERTIES SKIP_RETURN_CODE 77)
  set_tests_properties(e2e_page PROPERTIES TIMEOUT 300)
  set_tests_properties(e2e_generate e2e_eval PROPERTIES LABELS "e2e;quick")
  set_tests_properties(e2e_folders e2e_seen e2e_equal e2e_images e2e_isolated e2e_cut e2e_codecs e2e_warmup e2e_examples e2e_fp16 e2e_packed e2e_bad_input PROPERTIES LABELS "e2e;quick")
endif()
if(TARGET aqpipe AND AQ_TORCH_PYTHON)
  # Runs are compared with runs elsewhere; here with an implementation that shares no fault with ours.
  add_test(NAME test_job_torch COMMAND ${AQ_TORCH_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_job_torch $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_job_torch PROPERTIES LABELS "e2e;quick" TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
  add_test(NAME test_folders_transformers COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_folders_transformers $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_folders_transformers PROPERTIES LABELS "e2e;quick" TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
  add_test(NAME test_images_reference COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_images_reference $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_images_reference PROPERTIES LABELS "e2e;quick" TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
endif()
if(TARGET aqpipe)
  add_test(NAME test_resnet_torch COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_resnet_torch $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_resnet_torch PROPERTIES LABELS "e2e;quick" TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
  # Beside transformers, where tools/parity has made its environment.
  add_test(NAME test_generate_transformers COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_generate_transformers $<TARGET_FILE_DIR:aqpipe>)
  set_tests_properties(test_generate_transformers PROPERTIES LABELS "e2e;quick" TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
endif()
