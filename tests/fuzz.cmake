# Readers of bytes from outside. Each has one file fuzz_<reader>.c with LLVMFuzzerTestOneInput, and a corpus in corpus/<reader>/.
# In most builds fuzz_<reader> is a short replay: the corpus and a fixed number of damaged copies of it (`test_fuzz READER ...`,
# fuzz/fuzz_driver.c). With AQ_FUZZ (preset asan) each is a program of libFuzzer's, which tools/fuzz builds and runs.
#
# aq_fuzz(READER RUNS n [LIBS ...] [INCLUDES ...] [LINK options ...] [CORPUS more files, below tests/ ...])
# A target with LINK options, which replace symbols, has a program of its own.
function(aq_fuzz reader)
  cmake_parse_arguments(ARG "" "RUNS" "LIBS;INCLUDES;LINK;CORPUS" ${ARGN})
  set(target fuzz_${reader})
  set(command ${target})
  set(alone ON)
  if(AQ_FUZZ)
    add_executable(${target} fuzz/fuzz_${reader}.c)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  elseif(ARG_LINK)
    add_executable(${target} fuzz/fuzz_${reader}.c $<TARGET_OBJECTS:fuzz_driver>)
  else()
    add_library(${target} OBJECT fuzz/fuzz_${reader}.c)
    set_property(GLOBAL APPEND PROPERTY AQ_FUZZ_TARGETS ${target})
    set(command test_fuzz)
    set(alone OFF)
  endif()
  set_target_properties(${target} PROPERTIES AQ_TEST_COMMAND ${command} AQ_TEST_ALONE ${alone})
  target_include_directories(${target} PRIVATE ${AQ_TEST_KIT} ${ARG_INCLUDES})
  target_link_libraries(${target} PRIVATE ${ARG_LIBS} fuzz_common aqsgd aq_flags m)
  if(ARG_LINK)
    target_link_options(${target} PRIVATE ${ARG_LINK})
  endif()
  if(AQ_FUZZ)
    add_dependencies(fuzz_targets ${target})
    return()
  endif()
  target_compile_definitions(${target} PRIVATE AQ_FUZZ_NAME="${reader}" LLVMFuzzerTestOneInput=fuzz_${reader}_input)
  target_compile_options(${target} PRIVATE -include${CMAKE_CURRENT_SOURCE_DIR}/fuzz/fuzz_entry.h)
  set(corpus corpus/${reader})
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${reader})
    set(corpus)
  endif()
  add_test(NAME ${target} COMMAND ${command} ${reader} --runs ${ARG_RUNS} ${corpus} ${ARG_CORPUS}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${target} PROPERTIES LABELS "fuzz;quick" TIMEOUT 900)
endfunction()

# The shared program of the replays: called when all targets are known.
function(aq_fuzz_program)
  get_property(targets GLOBAL PROPERTY AQ_FUZZ_TARGETS)
  set(objects)
  set(libraries)
  foreach(target ${targets})
    get_target_property(own_objects ${target} AQ_TEST_OBJECTS)
    get_target_property(own_libraries ${target} LINK_LIBRARIES)
    list(APPEND objects ${target} ${own_objects})
    list(APPEND libraries ${own_libraries})
  endforeach()
  list(REMOVE_DUPLICATES objects)
  list(FILTER objects EXCLUDE REGEX "-NOTFOUND$")
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  list(REMOVE_DUPLICATES libraries)
  add_executable(test_fuzz $<TARGET_OBJECTS:fuzz_driver> ${objects})
  target_link_libraries(test_fuzz PRIVATE ${libraries})
endfunction()

add_library(fuzz_common STATIC EXCLUDE_FROM_ALL fuzz/fuzz_common.c)
target_include_directories(fuzz_common PRIVATE ${AQ_TEST_KIT})
target_link_libraries(fuzz_common PUBLIC aqsgd PRIVATE aq_flags)
if(AQ_SANITIZE MATCHES "thread")
  return() # they have one thread
endif()
if(AQ_FUZZ)
  add_custom_target(fuzz_targets)
else()
  add_library(fuzz_driver OBJECT fuzz/fuzz_driver.c)
  target_include_directories(fuzz_driver PRIVATE ${AQ_TEST_KIT})
  target_link_libraries(fuzz_driver PRIVATE aqsgd aq_flags)
endif()
aq_fuzz(manifest RUNS 20000 LIBS aq_runtime INCLUDES ${aq_runtime_MODULES})
aq_fuzz(frame RUNS 100000 LIBS aq_net INCLUDES ${aq_net_MODULES})
aq_fuzz(codec RUNS 20000)
aq_fuzz(grad RUNS 20000)
aq_fuzz(control RUNS 8000 LIBS aq_runtime aq_dep::jansson INCLUDES ${aq_runtime_MODULES})
aq_fuzz(split RUNS 20000 LIBS aq_runtime aq_net aq_dep::jansson INCLUDES ${aq_runtime_MODULES})
aq_fuzz(lengths RUNS 20000 LIBS aq_runtime INCLUDES ${aq_runtime_MODULES})
aq_fuzz(run RUNS 3000 LIBS aq_runtime aq_dep::jansson INCLUDES ${aq_runtime_MODULES})
aq_fuzz(keys RUNS 1500 LIBS aq_runtime aq_net aq_dep::ssl aq_dep::crypto
  INCLUDES ${aq_runtime_MODULES} ${aq_net_MODULES})
aq_fuzz(handshake RUNS 1500 LIBS aq_net aq_dep::ssl aq_dep::crypto INCLUDES ${aq_net_MODULES})
aq_fuzz(link RUNS 3000 LIBS aq_net INCLUDES ${aq_net_MODULES})
aq_virtual_clock(fuzz_link)
aq_fuzz(stripes RUNS 20000 LIBS aq_net INCLUDES ${aq_net_MODULES})
aq_fuzz(quic_pieces RUNS 400 LIBS aq_net INCLUDES ${aq_net_MODULES})
aq_fuzz(group RUNS 2000 LIBS aq_net INCLUDES ${aq_net_MODULES}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release,--wrap=aq_eventcount_wait,--wrap=aq_clock_ns)
aq_fuzz(edge RUNS 3000 LIBS aq_runtime aq_net aq_storage INCLUDES ${aq_runtime_MODULES}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release)
aq_fuzz(mirror RUNS 1500 LIBS aq_runtime aq_net aq_storage INCLUDES ${aq_runtime_MODULES}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release,--wrap=aq_ring_push)
aq_fuzz(probe RUNS 4000 LIBS aq_runtime aq_net aq_dep::jansson INCLUDES ${aq_runtime_MODULES}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release,--wrap=aq_link_finish,--wrap=aq_link_abort,--wrap=aq_link_halt
  -Wl,--wrap=aq_link_stats,--wrap=aq_eventcount_wait,--wrap=aq_eventcount_read)
aq_virtual_clock(fuzz_probe)
aq_fuzz(cache RUNS 300 LIBS aq_storage CORPUS golden/cache-1/index.mdb)
aq_fuzz(weights RUNS 10000 LIBS aq_stages
  CORPUS golden/weights_types.safetensors golden/weights_written.safetensors)
aq_fuzz(folder RUNS 5000 LIBS aq_stages)
aq_fuzz(checkpoint RUNS 3000 LIBS aq_runtime aq_stages INCLUDES ${aq_runtime_MODULES})
aq_fuzz(tokenizer RUNS 1500 LIBS aq_stages data_files)
aq_fuzz(huggingface RUNS 3000 LIBS aq_stages data_files)
aq_fuzz(spm RUNS 3000 LIBS aq_stages)
aq_fuzz(dataset RUNS 10000 LIBS aq_stages data_files)
aq_fuzz(images RUNS 6000 LIBS aq_stages INCLUDES ${aq_stages_MODULES})
aq_fuzz(records RUNS 6000 LIBS aq_stages aq_dep::jansson INCLUDES ${aq_stages_MODULES})
aq_fuzz(chat RUNS 20000 LIBS aq_stages)
aq_fuzz(stopper RUNS 50000 LIBS aq_stages aq_dep::jansson)
aq_fuzz(sums RUNS 4000 LIBS aq_runtime aq_net INCLUDES ${aq_runtime_MODULES}
  LINK -Wl,--wrap=turn_miss,--wrap=server_fails,--wrap=state_mark,--wrap=aq_progress_say
       -Wl,--wrap=aq_split_adder_add,--wrap=aq_split_adder_done)
if(AQ_WITH_MICROHTTPD)
  aq_fuzz(page RUNS 1500 LIBS aq_runtime INCLUDES ${aq_runtime_MODULES})
endif()
# The server of split learning with several clients: what it reaches is in memory (fuzz/clients_world.c).
set(wrapped
  accept4 aq_child_start aq_control_certified aq_control_check aq_control_close aq_control_fd aq_control_flush
  aq_control_keep_alive aq_control_limit aq_control_listen aq_control_open aq_control_open_stranger aq_control_peer
  aq_control_pending aq_control_push aq_control_queue aq_control_receive aq_control_secure aq_control_send
  aq_control_waiting aq_file_load aq_file_open aq_file_remove aq_file_replace aq_job_close aq_job_load aq_json_replace
  aq_owned_claim_run aq_plan_hash aq_plan_manifest aq_plan_open aq_progress_say aq_run_lock aq_run_make_folder
  aq_run_mark_read aq_split_copy aq_split_in_close aq_split_in_done aq_split_in_open aq_split_in_piece
  aq_split_job_close aq_split_job_open aq_split_labels_take aq_split_lengths_take aq_split_out_line aq_split_out_open
  aq_split_part_bytes_max aq_tls_close aq_tls_open aq_tls_session_open caches_wipe close kill model_leave poll read
  report_leave shown_close shown_end shown_open shown_tell socketpair sums_close sums_forget sums_open sums_path
  sums_polls sums_serve turn_check waitpid weights_average weights_begin)
list(TRANSFORM wrapped PREPEND "-Wl,--wrap=")
aq_fuzz(clients RUNS 4000 LIBS aq_runtime aq_net aq_dep::jansson INCLUDES ${aq_runtime_MODULES} ${aq_net_MODULES}
  LINK ${wrapped})
target_sources(fuzz_clients PRIVATE fuzz/clients_world.c)
aq_virtual_clock(fuzz_clients)
aq_fuzz(import RUNS 800 LIBS aq_runtime aq_stages INCLUDES ${aq_runtime_MODULES}
  LINK -Wl,--wrap=aq_out_text,--wrap=aq_out_raw)
if(NOT AQ_FUZZ)
  aq_fuzz_program()
endif()
