aq_test(test_base LIBS aqsgd LABELS quick)
aq_test(test_file LIBS aqsgd LABELS quick)
aq_test(test_processor LIBS aqsgd LABELS quick)
target_include_directories(test_processor PRIVATE ${aqsgd_ROOMS})
