# Devices: every backend in every variant against the plain truth.
# In a CUDA build they are in the program of the tests that run on a GPU.
set(with_gpu)
if(AQ_CUDA)
  set(with_gpu PROGRAM test_gpu)
endif()
aq_test(conform_device ${with_gpu} LIBS aqsgd aq_stages LABELS conform quick PARTS 2)
target_include_directories(conform_device PRIVATE ${aqsgd_ROOMS})
aq_isolated(conform_device)
aq_test(test_device_training ${with_gpu} LIBS aqsgd aq_stages LABELS computes quick)
target_include_directories(test_device_training PRIVATE ${aqsgd_ROOMS})
aq_isolated(test_device_training)
# On a GPU (label gpu, tools/test-gpu): the same two, of kind cuda alone.
if(AQ_CUDA)
  foreach(test conform_device test_device_training)
    aq_test_again(gpu_${test} OF ${test} LABELS gpu TIMEOUT 300 ENVIRONMENT AQ_TESTS=long AQ_CONFORM=cuda AQ_DEVICES=cuda)
  endforeach()
endif()
# cuDNN's attention: its graphs in the library itself, which needs no GPU but a driver's library, if only the toolkit's empty
# one; and what it computes.
if(AQ_CUDA AND AQ_CUDNN_FOUND)
  aq_test(test_cudnn_plans ALONE LIBS aqsgd aq_dep::cuda LABELS conform TIMEOUT 900)
  target_include_directories(test_cudnn_plans PRIVATE ${aqsgd_ROOMS})
  get_filename_component(folder ${AQ_cudnn_LIBRARY} DIRECTORY)
  file(CREATE_LINK ${CUDAToolkit_LIBRARY_DIR}/stubs/libcuda.so ${CMAKE_BINARY_DIR}/driver/libcuda.so.1 SYMBOLIC)
  set_tests_properties(test_cudnn_plans PROPERTIES
    ENVIRONMENT "LD_LIBRARY_PATH=${folder}:${CUDAToolkit_LIBRARY_DIR}:/usr/lib/x86_64-linux-gnu:${CMAKE_BINARY_DIR}/driver")
  aq_test_again(gpu_conform_device_cudnn OF conform_device ARGS test_attention_* LABELS gpu TIMEOUT 300
    ENVIRONMENT AQ_TESTS=long AQ_CONFORM=cuda AQ_DEVICES=cuda AQ_GPU_ATTENTION=cudnn)
endif()
aq_test(test_device_corners LIBS aqsgd LABELS quick)
target_include_directories(test_device_corners PRIVATE ${aqsgd_ROOMS})
