# The gradients' room: optimizers and learning rates.
aq_test(test_optimizer LIBS aqsgd data_files LABELS quick)
# The gradient codecs see the room's internal header, to run one table of kernels against another.
aq_test(test_grad_codec LIBS aqsgd LABELS quick conform)
target_include_directories(test_grad_codec PRIVATE ${aqsgd_ROOMS})
# Every optimizer and every gradient codec, with 1 to 8 ranks in one process.
aq_test(conform_grad SOURCES conform_grad.c optimizer_ranks.c LIBS aqsgd LABELS quick conform)
aq_test(test_optimizer_ranks SOURCES test_optimizer_ranks.c optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_optimizer_rules SOURCES test_optimizer_rules.c optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_optimizer_corners SOURCES test_optimizer_corners.c optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_grad_reshard SOURCES test_grad_reshard.c optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_grad_choice SOURCES test_grad_choice.c optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_grad_toy LIBS aqsgd LABELS quick)
