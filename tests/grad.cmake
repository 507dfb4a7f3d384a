# The gradients' room: optimizers and learning rates.
aq_test(test_optimizer LIBS aqsgd data_files LABELS quick)
# The gradient codecs see the room's internal header, to run one table of kernels against another.
aq_test(test_grad_codec LIBS aqsgd LABELS quick conform)
target_include_directories(test_grad_codec PRIVATE ${aqsgd_ROOMS})
# Every optimizer and every gradient codec, with 1 to 8 ranks in one process.
aq_test(conform_grad SOURCES conform/conform_grad.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick conform)
aq_test(test_optimizer_ranks SOURCES aqsgd/test_optimizer_ranks.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_optimizer_rules SOURCES aqsgd/test_optimizer_rules.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_optimizer_outer SOURCES aqsgd/test_optimizer_outer.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_optimizer_versions SOURCES aqsgd/test_optimizer_versions.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_optimizer_corners SOURCES aqsgd/test_optimizer_corners.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_optimizer_noise SOURCES aqsgd/test_optimizer_noise.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_grad_reshard SOURCES aqsgd/test_grad_reshard.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_grad_choice SOURCES aqsgd/test_grad_choice.c kit/optimizer_ranks.c LIBS aqsgd LABELS quick)
aq_test(test_grad_toy LIBS aqsgd LABELS quick)
