# Devices: every backend in every variant against the plain truth.
aq_test(conform_device LIBS aqsgd aq_stages LABELS conform quick)
target_include_directories(conform_device PRIVATE ${aqsgd_ROOMS})
aq_isolated(conform_device)
aq_test(test_device_training LIBS aqsgd aq_stages LABELS quick)
target_include_directories(test_device_training PRIVATE ${aqsgd_ROOMS})
aq_isolated(test_device_training)
# On a GPU (label gpu, tools/test-gpu): the same two, of kind cuda alone.
if(AQ_CUDA)
  foreach(test conform_device test_device_training)
    add_test(NAME gpu_${test} COMMAND ${test})
    set_tests_properties(gpu_${test} PROPERTIES SKIP_RETURN_CODE 77 LABELS gpu TIMEOUT 300
      ENVIRONMENT "AQ_CONFORM=cuda;AQ_DEVICES=cuda")
  endforeach()
endif()
# cuDNN's attention: its graphs in the library itself, which needs no GPU but a driver's library, if only the toolkit's empty
# one; and what it computes.
if(AQ_CUDA AND AQ_CUDNN_FOUND)
  aq_test(test_cudnn_plans SOURCES cuda/test_cudnn_plans.c LIBS aqsgd aq_dep::cuda LABELS conform TIMEOUT 300)
  target_include_directories(test_cudnn_plans PRIVATE ${aqsgd_ROOMS})
  get_filename_component(folder ${AQ_cudnn_LIBRARY} DIRECTORY)
  file(CREATE_LINK ${CUDAToolkit_LIBRARY_DIR}/stubs/libcuda.so ${CMAKE_BINARY_DIR}/driver/libcuda.so.1 SYMBOLIC)
  set_tests_properties(test_cudnn_plans PROPERTIES
    ENVIRONMENT "LD_LIBRARY_PATH=${folder}:${CUDAToolkit_LIBRARY_DIR}:/usr/lib/x86_64-linux-gnu:${CMAKE_BINARY_DIR}/driver")
  add_test(NAME gpu_conform_device_cudnn COMMAND conform_device test_attention_*)
  set_tests_properties(gpu_conform_device_cudnn PROPERTIES SKIP_RETURN_CODE 77 LABELS gpu TIMEOUT 300
    ENVIRONMENT "AQ_CONFORM=cuda;AQ_DEVICES=cuda;AQ_GPU_ATTENTION=cudnn")
endif()
aq_test(test_device_corners LIBS aqsgd LABELS quick)
target_include_directories(test_device_corners PRIVATE ${aqsgd_ROOMS})
