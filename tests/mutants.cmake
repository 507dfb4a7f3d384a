# Mistakes that a test must notice, ten of them by chance. All: tests/mutants/run. (It compiles: not under sanitizers.)
if(TARGET aqpipe AND NOT AQ_SANITIZE)
  add_test(NAME mutants_sample COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/mutants/run
    --build ${CMAKE_BINARY_DIR} --no-build --sample 10 --seed 1 --jobs 2)
  set_tests_properties(mutants_sample PROPERTIES LABELS fault TIMEOUT 900 PROCESSORS 2)
endif()
