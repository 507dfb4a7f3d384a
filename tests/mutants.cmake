# Mistakes that a test must notice, four of them by chance. All: label long, which resumes. (It compiles: not under
# sanitizers.)
if(TARGET aqpipe AND NOT AQ_SANITIZE)
  add_test(NAME mutants_sample COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/mutants/run
    --build ${CMAKE_BINARY_DIR} --no-build --sample 4 --seed 1 --jobs 2)
  set_tests_properties(mutants_sample PROPERTIES LABELS fault TIMEOUT 900 PROCESSORS 2)
  add_test(NAME mutants_all COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/mutants/run
    --build ${CMAKE_BINARY_DIR} --no-build --tally ${CMAKE_BINARY_DIR}/mutants.tsv --jobs 2)
  set_tests_properties(mutants_all PROPERTIES LABELS "fault;long" TIMEOUT 86400 PROCESSORS 2)
endif()
