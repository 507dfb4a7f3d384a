# Stages: models against PyTorch, cuts against uncut, measured against used.
if(AQ_TORCH_PYTHON)
  aq_test(test_stage_torch LIBS aq_stages LABELS stage
    ARGS ${AQ_TORCH_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/torch_gpt2.py)
else()
  aq_test(test_stage_torch LIBS aq_stages LABELS stage)
endif()
aq_test(conform_model LIBS aq_stages LABELS stage quick conform PARTS 3)
target_include_directories(conform_model PRIVATE ${aq_stages_ROOMS})
aq_test(conform_task LIBS aq_stages LABELS stage quick conform)
target_include_directories(conform_task PRIVATE ${aq_stages_ROOMS})
aq_test(test_stage LIBS aq_stages LABELS stage quick)
# The same promises in the other variants of the CPU's kernels; the line above runs the best one.
foreach(variant plain base avx2 avx512)
  aq_test_again(test_stage_${variant} OF test_stage LABELS stage quick computes ENVIRONMENT AQ_CPU=${variant})
endforeach()
# A published folder's model run once: what tools/parity compares with.
add_executable(folder_run kit/folder_run.c)
target_link_libraries(folder_run PRIVATE aq_stages aq_flags)
add_test(NAME parity COMMAND ${PROJECT_SOURCE_DIR}/tools/parity --no-make --short --build ${CMAKE_BINARY_DIR})
set_tests_properties(parity PROPERTIES LABELS e2e TIMEOUT 1200 PROCESSORS 2 SKIP_RETURN_CODE 77)
