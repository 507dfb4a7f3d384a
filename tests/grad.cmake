# The gradients' room: optimizers and learning rates.
aq_test(test_optimizer LIBS aqsgd data_files LABELS quick)
