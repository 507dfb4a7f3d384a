aq_test(test_base LIBS aqsgd LABELS quick)
aq_test(test_file LIBS aqsgd LABELS quick)
