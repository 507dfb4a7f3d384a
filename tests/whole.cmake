# Label long: tests that take minutes and seldom find more than their short forms, which CI runs. tools/test -- -L long runs them.
# This file names tests of the other files, so it is read last.
function(aq_long)
  foreach(test ${ARGN})
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY LABELS long)
    endif()
  endforeach()
endfunction()

# aq_whole(TEST [AS NAME] [ARGS ...] [ENVIRONMENT ...]): TEST_whole, or NAME_whole, has all cases of its tables (kit/sample.h), while TEST has a part of them.
function(aq_whole test)
  if(TARGET ${test} AND NOT AQ_SANITIZE)
    cmake_parse_arguments(ARG "" "AS" "ENVIRONMENT;ARGS" ${ARGN})
    if(NOT ARG_AS)
      set(ARG_AS ${test})
    endif()
    aq_test_again(${ARG_AS}_whole OF ${test} ARGS ${ARG_ARGS} LABELS long TIMEOUT 3600
      ENVIRONMENT AQ_TESTS=long ${ARG_ENVIRONMENT})
  endif()
endfunction()

aq_whole(conform_model)
aq_whole(conform_device)
if(TEST conform_device_cuda) # emulated
  aq_whole(conform_collective_device)
  aq_whole(test_device_training_cuda ENVIRONMENT AQ_DEVICES=cuda)
  aq_whole(test_edge_cuda ENVIRONMENT AQ_DEVICES=cuda AQ_GPU=required CUDA_HOST_GPUS=2 ARGS test_edge_o*)
  aq_whole(conform_device_cuda ENVIRONMENT AQ_CONFORM=cuda)
  aq_whole(conform_device_cuda AS conform_device_cuda_plain ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0 CUBLASLT_HOST_FUSES=0
    ARGS test_*matmul*)
  aq_whole(conform_device_cuda AS conform_device_cuda_warps ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_CAPABILITY=80
    ARGS test_attention_*)
  aq_whole(conform_device_cuda AS conform_device_cuda_cudnn ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0
    AQ_GPU_ATTENTION=cudnn AQ_LOG=device:0 ARGS test_attention_*)
  aq_whole(conform_device_cuda AS conform_device_cuda_cudnn_parts ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0
    AQ_GPU_ATTENTION=cudnn AQ_LOG=device:0 ARGS test_parts_match_truth)
  aq_whole(conform_device_cuda AS conform_device_cuda_cudnn_conv ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0
    AQ_GPU_CONVOLUTION=cudnn AQ_LOG=device:0 ARGS test_conv_*)
endif()

# Short form: test_cuda_codec, which takes other steps through the same configurations.
aq_long(cuda_codec_more test_codec_gpu)
# Short form: test_stage with every other variant, and the plain truth in conform_model.
aq_long(test_stage_plain)
# Short form: cuda_ptx, which leaves out device kernels that store no bytes, and the machine code.
add_test(NAME cuda_ptx_whole COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cuda_ptx --whole)
set_tests_properties(cuda_ptx_whole PROPERTIES SKIP_RETURN_CODE 77 LABELS long TIMEOUT 1800)
# Short form: test_install, which installs the same files.
aq_long(test_tarball)
if(TARGET aqpipe AND NOT AQ_SANITIZE)
  # Models at the size of GPT-2, golden runs with each level of vectors, and the tables of papers that need jobs.
  aq_long(golden_runs test_papers)
  add_test(NAME golden_runs_plain COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/golden_runs --build $<TARGET_FILE_DIR:aqpipe>
    --against ${CMAKE_CURRENT_SOURCE_DIR}/golden/runs.json --level plain)
  add_test(NAME test_papers_planned
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/test_papers $<TARGET_FILE_DIR:aqpipe> --planned)
  add_test(NAME parity_whole COMMAND ${PROJECT_SOURCE_DIR}/tools/parity --no-make --build ${CMAKE_BINARY_DIR})
  set_tests_properties(parity_whole PROPERTIES LABELS long TIMEOUT 3600 PROCESSORS 2 SKIP_RETURN_CODE 77)
  set_tests_properties(golden_runs_plain test_papers_planned PROPERTIES LABELS e2e TIMEOUT 900 PROCESSORS 2 SKIP_RETURN_CODE 77)
endif()

# aq_parts(TEST OUT): a test and its other parts (PARTS in CMakeLists.txt).
function(aq_parts test out)
  set(parts)
  set(part ${test})
  set(number 1)
  while(TEST ${part})
    list(APPEND parts ${part})
    math(EXPR number "${number} + 1")
    set(part ${test}_part_${number})
  endwhile()
  set(${out} ${parts} PARENT_SCOPE)
endfunction()

# Not quick, because they take more than two processor seconds. tools/test --quick leaves them out; the sanitizers do not.
function(aq_slow)
  foreach(test ${ARGN})
    aq_parts(${test} parts)
    foreach(part ${parts})
      get_property(labels TEST ${part} PROPERTY LABELS)
      list(REMOVE_ITEM labels quick)
      set_property(TEST ${part} PROPERTY LABELS ${labels})
    endforeach()
  endforeach()
endfunction()
aq_slow(
  test_wrapped_folders test_codec_distributions test_codec test_codec_ec test_daemon test_metrics_file conform_codec
  test_plot
  test_split_data test_cuda_grad test_split_audit test_cuda_codec test_cuda_device test_cuda_graph_models
  conform_collective_device
  conform_grad_device conform_device_cuda_plain test_device_training_cuda conform_device_cuda_cudnn
  conform_device_cuda_warps test_bench_allreduce_on_host test_huggingface test_text_tokens test_edge_processes_cuda
  test_edge_cuda test_chat_transformers test_sampling_reference e2e_images e2e_isolated e2e_codecs e2e_warmup
  e2e_packed e2e_folders e2e_examples e2e_families test_job_torch test_images_reference conform_device
  test_folders_transformers test_correlation_torch test_edge test_resnet_torch fuzz_stripes conform_grad
  test_optimizer_ranks test_grad_toy test_generate_transformers conform_collective test_library conform_transport
  test_balance test_wanlab test_scale test_stage_base test_io_errors test_io_errors_sealed test_troubleshooting
  conform_model test_gguf_readers test_data_forms test_grad_codec test_keys test_cuda_vocabulary test_wrong_inputs
  conform_device_cuda_cudnn_conv e2e_replicas_planned fuzz_clients fuzz_dataset test_image_files)

# These take longest, so they start first: at the end no test runs alone on an idle machine.
function(aq_first)
  foreach(test ${ARGN})
    aq_parts(${test} parts)
    set_property(TEST ${parts} PROPERTY COST 100)
  endforeach()
endfunction()
aq_first(
  test_relay test_wanlab e2e_mpi
  test_split_audit_text test_lab chaos_rounds_delay test_scale_check test_wrapped_folders cuda_ptx
  test_convergence conform_device_cuda conform_model parity e2e_edges_gpu_fault_on_host
  e2e_replicas_one_gpu_on_host test_generate_transformers simulate conform_device e2e_freeze_gpu_on_host
  e2e_lora_gpu_on_host e2e_split_ahead test_edge_cuda e2e_glue golden_runs_plain test_cuda_codec
  e2e_replicas_gpu_on_host mutants_sample e2e_edges_gpu_on_host e2e_gpu_on_host e2e_split_many test_split_audit
  e2e_defaults conform_collective_device test_watch_cost e2e_split_wan conform_device_cuda_warps
  test_edge_processes_cuda conform_grad_device e2e_replicas_defaults e2e_gpu_default_on_host
  e2e_split_audit conform_device_cuda_cudnn test_folders_transformers e2e_staleness_resume e2e_mirror
  conform_collective test_scale conform_transport simulate_power e2e_replicas_optimizers test_cuda_grad
  e2e_split_privacy_gpu_on_host e2e_split_example test_resnet_torch attack_links e2e_replicas_codecs
  test_tokenizer_reference e2e_staleness_replicas conform_codec test_library_torch e2e_local_resume e2e_split_rounds
  e2e_examples e2e_freeze_prefix e2e_probe_trouble e2e_rounds_coded e2e_rounds_speed e2e_split_audit_kinds)

# A whole job counts as two processors. These wait for most of their time, for links, clocks and deadlines (docs/DECISIONS.md
# 1226): they count as one, so that others run beside them.
function(aq_waits)
  foreach(test ${ARGN})
    if(TEST ${test})
      set_property(TEST ${test} PROPERTY PROCESSORS 1)
    endif()
  endforeach()
endfunction()
aq_waits(
  e2e_wan e2e_wan_far chaos_split chaos_lab chaos_rounds_lab e2e_split_wan_epsilon e2e_probe e2e_probe_trouble e2e_probe_blocked
  e2e_probe_moves e2e_split_stalls e2e_split_global_away e2e_split_global_crowd e2e_split_hostile e2e_rounds_hosts_more
  e2e_relay_nat e2e_tls_daemon e2e_report_to e2e_split_labels_owed e2e_split_nothing e2e_split_refused
  e2e_split_epsilon_damaged e2e_long_outage e2e_rounds_steps_late e2e_mpi attack_daemon)
