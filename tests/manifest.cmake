# The room of the manifest: keys, reader, schedules, programs.
foreach(name test_manifest test_schedule conform_schedule test_lr_ends)
  aq_test(${name} LIBS aq_runtime LABELS quick)
  target_include_directories(${name} PRIVATE ${aq_runtime_ROOMS})
  target_compile_definitions(${name} PRIVATE AQ_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endforeach()
set_tests_properties(conform_schedule PROPERTIES LABELS "quick;conform")
