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
aq_test(test_device_corners LIBS aqsgd LABELS quick)
target_include_directories(test_device_corners PRIVATE ${aqsgd_ROOMS})
