aq_test(test_base LIBS aqsgd LABELS quick)
