# The gradients' room: optimizers and learning rates.
aq_test(test_optimizer LIBS aqsgd data_files LABELS quick)
# The gradient codecs see the room's internal header, to run one table of kernels against another.
aq_test(test_grad_codec LIBS aqsgd LABELS quick conform)
target_include_directories(test_grad_codec PRIVATE ${PROJECT_SOURCE_DIR}/aqsgd)
