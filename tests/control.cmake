# The control room: channel, daemon, launcher, report.
aq_test(test_control LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_control PRIVATE ${aq_runtime_ROOMS})
aq_test(test_daemon LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_daemon PRIVATE ${aq_runtime_ROOMS})
aq_test(test_confine LIBS aq_runtime LABELS quick)
target_include_directories(test_confine PRIVATE ${aq_runtime_ROOMS})

# Processes: the real daemon and launcher, with a worker that trains nothing and misbehaves on demand.
add_executable(puppet_worker kit/puppet_worker.c)
target_include_directories(puppet_worker PRIVATE ${aq_runtime_ROOMS})
target_link_libraries(puppet_worker PRIVATE aq_runtime aq_dep::jansson aq_flags)
aq_test(test_supervision LIBS aq_runtime aq_dep::jansson LABELS fault
        ARGS $<TARGET_FILE:aqpiped> $<TARGET_FILE:puppet_worker> TIMEOUT 900)
target_include_directories(test_supervision PRIVATE ${aq_runtime_ROOMS})
add_dependencies(test_supervision aqpiped puppet_worker)

aq_test(test_puppets LIBS aq_runtime aq_dep::jansson LABELS fault
        ARGS $<TARGET_FILE:aqpiped> $<TARGET_FILE:puppet_worker> 64)
target_include_directories(test_puppets PRIVATE ${aq_runtime_ROOMS})
add_dependencies(test_puppets aqpiped puppet_worker)

aq_test(test_run_folder LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_run_folder PRIVATE ${aq_runtime_ROOMS})

aq_test(test_owned_folder LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_owned_folder PRIVATE ${aq_runtime_ROOMS})

aq_test(test_options LIBS aq_runtime LABELS quick)
target_include_directories(test_options PRIVATE ${aq_runtime_ROOMS})

aq_test(test_run_enter LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_run_enter PRIVATE ${aq_runtime_ROOMS})

aq_test(test_launcher_bounds LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_launcher_bounds PRIVATE ${aq_runtime_ROOMS})
aq_test(test_bits_auto LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_bits_auto PRIVATE ${aq_runtime_ROOMS})

aq_test(test_probe LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_probe PRIVATE ${aq_runtime_ROOMS} ${aq_net_ROOMS})

aq_test(test_metrics_file LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_metrics_file PRIVATE ${aq_runtime_ROOMS})

aq_test(test_progress LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_progress PRIVATE ${aq_runtime_ROOMS})

aq_test(test_report LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_report PRIVATE ${aq_runtime_ROOMS})

aq_test(test_page_without SOURCES runtime/test_page_without.c ${PROJECT_SOURCE_DIR}/runtime/status/page.c LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_page_without PRIVATE ${aq_runtime_ROOMS})
target_compile_options(test_page_without PRIVATE -UAQ_MICROHTTPD)
aq_test(test_board LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_board PRIVATE ${aq_runtime_ROOMS})

aq_test(test_best LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_best PRIVATE ${aq_runtime_ROOMS})
aq_test(test_ssh_host LIBS aq_runtime LABELS quick)
target_include_directories(test_ssh_host PRIVATE ${aq_runtime_ROOMS})
aq_test(test_lengths LIBS aq_runtime LABELS quick)
target_include_directories(test_lengths PRIVATE ${aq_runtime_ROOMS})
aq_test(test_cut_privacy LIBS aq_runtime LABELS quick)
target_include_directories(test_cut_privacy PRIVATE ${aq_runtime_ROOMS})
aq_test(test_loss_scale LIBS aq_runtime LABELS quick)
target_include_directories(test_loss_scale PRIVATE ${aq_runtime_ROOMS})
aq_test(test_restart LIBS aq_runtime aq_dep::jansson LABELS quick)
aq_virtual_clock(test_restart)
target_include_directories(test_restart PRIVATE ${aq_runtime_ROOMS})
add_test(NAME test_plot COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_plot.py $<TARGET_FILE:aqpipe>)
set_tests_properties(test_plot PROPERTIES LABELS quick)
add_test(NAME test_follow COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_follow.py)
set_tests_properties(test_follow PROPERTIES LABELS quick TIMEOUT 120)
add_test(NAME test_demo COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_demo.py)
set_tests_properties(test_demo PROPERTIES LABELS quick)
add_test(NAME test_split_data COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_split_data)
set_tests_properties(test_split_data PROPERTIES LABELS quick)
add_test(NAME test_split_audit COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_split_audit)
set_tests_properties(test_split_audit PROPERTIES LABELS quick SKIP_RETURN_CODE 77 ENVIRONMENT OPENBLAS_NUM_THREADS=1)
add_test(NAME test_split_dp COMMAND ${AQ_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_split_dp)
set_tests_properties(test_split_dp PROPERTIES LABELS quick SKIP_RETURN_CODE 77)
aq_test(test_hostile_control LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_hostile_control PRIVATE ${aq_runtime_ROOMS})
aq_test(test_watch LIBS aq_runtime LABELS quick)
target_include_directories(test_watch PRIVATE ${aq_runtime_ROOMS})
aq_test(test_hostile_daemon LIBS aq_runtime aq_dep::jansson LABELS quick)
target_include_directories(test_hostile_daemon PRIVATE ${aq_runtime_ROOMS})
