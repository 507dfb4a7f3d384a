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
endif()

# Short form: test_cuda_codec, which takes other steps through the same configurations.
aq_long(cuda_codec_more test_codec_gpu)
# Short form: test_stage with every other variant, and the plain truth in conform_model.
aq_long(test_stage_plain)
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
  set_tests_properties(golden_runs_plain test_papers_planned PROPERTIES LABELS e2e TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
endif()
