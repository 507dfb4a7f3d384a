# Devices: every backend in every variant against the plain truth.
# In a CUDA build they are in the program of the tests that run on a GPU.
set(with_gpu)
if(AQ_CUDA)
  set(with_gpu PROGRAM test_gpu)
endif()
aq_test(conform_device ${with_gpu} LIBS aqsgd aq_stages LABELS conform quick PARTS 2)
target_include_directories(conform_device PRIVATE ${aqsgd_MODULES})
aq_isolated(conform_device)
aq_test(test_device_training ${with_gpu} LIBS aqsgd aq_stages LABELS computes quick)
target_include_directories(test_device_training PRIVATE ${aqsgd_MODULES})
aq_isolated(test_device_training)
# On a GPU (label gpu, tools/test-gpu): the same two, of kind cuda alone. The truth on the CPU takes most of the time: in parts.
if(AQ_CUDA)
  aq_test_again(gpu_conform_device OF conform_device LABELS gpu TIMEOUT 300 PARTS 6
    ENVIRONMENT AQ_TESTS=long AQ_CONFORM=cuda AQ_DEVICES=cuda)
  aq_test_again(gpu_test_device_training OF test_device_training LABELS gpu TIMEOUT 300
    ENVIRONMENT AQ_TESTS=long AQ_CONFORM=cuda AQ_DEVICES=cuda)
endif()
# cuDNN's attention and convolutions: their graphs in the library itself, which needs no GPU but a driver's library, if only the toolkit's empty
# one; and what they compute.
if(AQ_CUDA AND AQ_CUDNN_FOUND)
  aq_test(test_cudnn_plans ALONE LIBS aqsgd aq_dep::cuda LABELS conform TIMEOUT 900)
  target_include_directories(test_cudnn_plans PRIVATE ${aqsgd_MODULES})
  get_filename_component(folder ${AQ_cudnn_LIBRARY} DIRECTORY)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/driver)
  file(CREATE_LINK ${CUDAToolkit_LIBRARY_DIR}/stubs/libcuda.so ${CMAKE_BINARY_DIR}/driver/libcuda.so.1 SYMBOLIC)
  set_tests_properties(test_cudnn_plans PROPERTIES
    ENVIRONMENT "LD_LIBRARY_PATH=${folder}:${CUDAToolkit_LIBRARY_DIR}:/usr/lib/x86_64-linux-gnu:${CMAKE_BINARY_DIR}/driver")
  aq_test_again(gpu_conform_device_cudnn OF conform_device ARGS test_attention_* LABELS gpu TIMEOUT 300
    ENVIRONMENT AQ_TESTS=long AQ_CONFORM=cuda AQ_DEVICES=cuda AQ_GPU_ATTENTION=cudnn)
  aq_test_again(gpu_conform_device_cudnn_parts OF conform_device ARGS test_parts_match_truth LABELS gpu TIMEOUT 300
    ENVIRONMENT AQ_TESTS=long AQ_CONFORM=cuda AQ_DEVICES=cuda AQ_GPU_ATTENTION=cudnn)
  aq_test_again(gpu_conform_device_cudnn_conv OF conform_device ARGS test_conv_* LABELS gpu TIMEOUT 300
    ENVIRONMENT AQ_TESTS=long AQ_CONFORM=cuda AQ_DEVICES=cuda AQ_GPU_CONVOLUTION=cudnn)
endif()
aq_test(test_device_corners LIBS aqsgd LABELS quick)
target_include_directories(test_device_corners PRIVATE ${aqsgd_MODULES})
# CUDA's libraries as they are found at run time, with libraries in their place. NVIDIA's headers are those of the emulation.
if(NOT AQ_CUDA)
  set(stand ${CMAKE_BINARY_DIR}/gpu_stand)
  foreach(library cublaslt nccl cublaslt_old)
    add_library(stand_${library} SHARED gpu_stand/stand.c)
    target_include_directories(stand_${library} PRIVATE cuda_host/runtime cuda_host ${PROJECT_SOURCE_DIR}/aqsgd/include)
    target_link_libraries(stand_${library} PRIVATE aq_flags)
    set_target_properties(stand_${library} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${stand}/whole OUTPUT_NAME cublasLt SOVERSION 13)
  endforeach()
  set_target_properties(stand_nccl PROPERTIES OUTPUT_NAME nccl SOVERSION 2)
  set_target_properties(stand_cublaslt_old PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${stand}/old)
  target_compile_definitions(stand_cublaslt PRIVATE AQ_GPU_FUNCTIONS_CUBLASLT)
  target_compile_definitions(stand_nccl PRIVATE AQ_GPU_FUNCTIONS_NCCL)
  target_compile_definitions(stand_cublaslt_old PRIVATE STAND_OLD)
  # A cuBLASLt of this machine may be tried and unloaded, which leaves a pool of its libstdc++ behind.
  aq_test(test_gpu_library ALONE LIBS aqsgd LABELS quick
    ENVIRONMENT ASAN_OPTIONS=detect_leaks=0:abort_on_error=0)
  if(TARGET test_gpu_library)
    add_dependencies(test_gpu_library stand_cublaslt stand_nccl stand_cublaslt_old)
    target_include_directories(test_gpu_library PRIVATE cuda_host/runtime cuda_host ${aqsgd_MODULES})
    target_compile_definitions(test_gpu_library PRIVATE STAND_FOLDER="${stand}/whole" STAND_OLD_FOLDER="${stand}/old")
  endif()
endif()
