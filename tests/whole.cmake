# Label long: what takes minutes and rarely finds more than its short form in CI. On demand: tools/test --long, ctest -L long.
# This file is the last one read: it names tests of the others.
if(AQ_SANITIZE)
  return()
endif()

# Tests that CI leaves out; tests/whole.md says which test has their place there.
function(aq_long)
  foreach(test ${ARGN})
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY LABELS long)
    endif()
  endforeach()
endfunction()

# aq_whole(NAME OF test [ARGS ...] [ENVIRONMENT ...]): a test with all cases of its tables (kit/sample.h); CI runs a part of them.
function(aq_whole name)
  cmake_parse_arguments(ARG "" "OF" "ARGS;ENVIRONMENT" ${ARGN})
  if(NOT TARGET ${ARG_OF})
    return()
  endif()
  get_target_property(command ${ARG_OF} AQ_TEST_COMMAND)
  if(NOT command)
    set(command ${ARG_OF})
  endif()
  add_test(NAME ${name} COMMAND ${command} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS long TIMEOUT 3600 ENVIRONMENT
    "AQ_TESTS=long;${ARG_ENVIRONMENT}")
endfunction()

if(TEST conform_device_cuda)
  aq_whole(conform_device_cuda_whole OF conform_device_cuda ENVIRONMENT AQ_CONFORM=cuda)
  aq_whole(conform_device_cuda_plain_whole OF conform_device_cuda ARGS test_*matmul*
    ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0 CUBLASLT_HOST_FUSES=0)
  aq_whole(conform_device_cuda_warps_whole OF conform_device_cuda ARGS test_attention_*
    ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_CAPABILITY=80)
  aq_whole(conform_device_cuda_cudnn_whole OF conform_device_cuda ARGS test_attention_*
    ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0 AQ_GPU_ATTENTION=cudnn AQ_LOG=device:0)
  aq_whole(test_device_training_cuda_whole OF test_device_training_cuda ENVIRONMENT AQ_DEVICES=cuda)
  aq_whole(test_edge_cuda_whole OF test_edge_cuda ARGS test_edge_o* ENVIRONMENT AQ_DEVICES=cuda AQ_GPU=required CUDA_HOST_GPUS=2)
  aq_whole(conform_collective_device_whole OF conform_collective_device)
endif()
aq_whole(conform_model_whole OF conform_model)
aq_long(cuda_codec_more test_codec_gpu)
aq_long(test_tarball)
