# The gradients' module: optimizers and learning rates.
aq_test(test_optimizer LIBS aqsgd data_files LABELS quick)
# The gradient codecs see the module's internal header, to run one table of kernels against another.
aq_test(test_grad_codec LIBS aqsgd LABELS quick conform)
target_include_directories(test_grad_codec PRIVATE ${aqsgd_MODULES})
# Every optimizer and every gradient codec, with 1 to 8 ranks in one process.
aq_test(conform_grad LIBS optimizer_ranks aqsgd LABELS quick conform)
aq_test(test_optimizer_ranks LIBS optimizer_ranks aqsgd LABELS computes quick)
aq_test(test_optimizer_slamb LIBS optimizer_ranks aqsgd LABELS computes quick)
aq_test(test_optimizer_rules LIBS optimizer_ranks aqsgd LABELS computes quick)
aq_test(test_optimizer_outer LIBS optimizer_ranks aqsgd LABELS computes quick)
aq_test(test_optimizer_delay LIBS optimizer_ranks aqsgd LABELS computes quick)
aq_test(test_optimizer_versions LIBS optimizer_ranks aqsgd LABELS quick)
aq_test(test_optimizer_corners LIBS optimizer_ranks aqsgd LABELS quick)
aq_test(test_optimizer_noise LIBS optimizer_ranks aqsgd LABELS computes quick)
aq_test(test_grad_reshard LIBS optimizer_ranks aqsgd LABELS quick)
aq_test(test_grad_choice LIBS optimizer_ranks aqsgd LABELS computes quick)
aq_test(test_grad_toy LIBS aqsgd LABELS computes quick)
