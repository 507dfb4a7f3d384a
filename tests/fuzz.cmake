# Readers of bytes from outside. Each has one file fuzz_<reader>.c with LLVMFuzzerTestOneInput and a kept corpus in
# corpus/<reader>/. Here it is a short replay (fuzz/fuzz_driver.c): the corpus, and a fixed number of damaged copies of it. With
# the preset fuzz it is libFuzzer's; tools/fuzz builds and runs that.
#
# aq_fuzz(READER RUNS n [LIBS ...] [INCLUDES ...] [LINK options ...] [CORPUS more files, below tests/ ...])
function(aq_fuzz reader)
  cmake_parse_arguments(ARG "" "RUNS" "LIBS;INCLUDES;LINK;CORPUS" ${ARGN})
  set(sources fuzz/fuzz_${reader}.c fuzz/fuzz_common.c)
  if(NOT AQ_FUZZ)
    list(APPEND sources fuzz/fuzz_driver.c)
  endif()
  add_executable(fuzz_${reader} ${sources})
  target_include_directories(fuzz_${reader} PRIVATE ${AQ_TEST_KIT} ${ARG_INCLUDES})
  target_link_libraries(fuzz_${reader} PRIVATE ${ARG_LIBS} aqsgd aq_flags m)
  target_link_options(fuzz_${reader} PRIVATE ${ARG_LINK})
  if(AQ_FUZZ)
    target_link_options(fuzz_${reader} PRIVATE -fsanitize=fuzzer)
    return()
  endif()
  set(corpus corpus/${reader})
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${reader})
    set(corpus)
  endif()
  add_test(NAME fuzz_${reader} COMMAND fuzz_${reader} --runs ${ARG_RUNS} ${corpus} ${ARG_CORPUS}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(fuzz_${reader} PROPERTIES LABELS "fuzz;quick" TIMEOUT 600)
endfunction()

if(AQ_FUZZ) # as in data.cmake
  add_library(data_files STATIC kit/data_files.c)
  target_link_libraries(data_files PUBLIC aqsgd PRIVATE aq_flags)
  target_compile_definitions(data_files PRIVATE AQ_SOURCE_FOLDER="${CMAKE_SOURCE_DIR}")
endif()
aq_fuzz(manifest RUNS 20000 LIBS aq_runtime INCLUDES ${aq_runtime_ROOMS})
aq_fuzz(frame RUNS 100000 LIBS aq_net INCLUDES ${aq_net_ROOMS})
aq_fuzz(codec RUNS 20000)
aq_fuzz(grad RUNS 20000)
aq_fuzz(control RUNS 8000 LIBS aq_runtime aq_dep::jansson INCLUDES ${aq_runtime_ROOMS})
aq_fuzz(split RUNS 20000 LIBS aq_runtime aq_net aq_dep::jansson INCLUDES ${aq_runtime_ROOMS})
aq_fuzz(lengths RUNS 20000 LIBS aq_runtime INCLUDES ${aq_runtime_ROOMS})
aq_fuzz(run RUNS 3000 LIBS aq_runtime aq_dep::jansson INCLUDES ${aq_runtime_ROOMS})
aq_fuzz(keys RUNS 1500 LIBS aq_runtime aq_net aq_dep::ssl aq_dep::crypto
  INCLUDES ${aq_runtime_ROOMS} ${aq_net_ROOMS})
aq_fuzz(handshake RUNS 1500 LIBS aq_net aq_dep::ssl aq_dep::crypto INCLUDES ${aq_net_ROOMS})
aq_fuzz(link RUNS 3000 LIBS aq_net INCLUDES ${aq_net_ROOMS})
aq_virtual_clock(fuzz_link)
aq_fuzz(stripes RUNS 20000 LIBS aq_net INCLUDES ${aq_net_ROOMS})
aq_fuzz(group RUNS 2000 LIBS aq_net INCLUDES ${aq_net_ROOMS}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release,--wrap=aq_bell_wait)
aq_fuzz(edge RUNS 3000 LIBS aq_runtime aq_net aq_storage INCLUDES ${aq_runtime_ROOMS}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release)
aq_fuzz(mirror RUNS 1500 LIBS aq_runtime aq_net aq_storage INCLUDES ${aq_runtime_ROOMS}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release,--wrap=aq_ring_push)
aq_fuzz(probe RUNS 4000 LIBS aq_runtime aq_net aq_dep::jansson INCLUDES ${aq_runtime_ROOMS}
  LINK -Wl,--wrap=aq_link_poll,--wrap=aq_link_send,--wrap=aq_link_release,--wrap=aq_link_finish,--wrap=aq_link_abort,--wrap=aq_link_halt
  -Wl,--wrap=aq_link_stats,--wrap=aq_bell_wait,--wrap=aq_bell_count)
aq_virtual_clock(fuzz_probe)
aq_fuzz(cache RUNS 300 LIBS aq_storage CORPUS golden/cache-1/index.mdb)
aq_fuzz(weights RUNS 10000 LIBS aq_stages
  CORPUS golden/weights_types.safetensors golden/weights_written.safetensors)
aq_fuzz(folder RUNS 5000 LIBS aq_stages)
aq_fuzz(checkpoint RUNS 3000 LIBS aq_runtime aq_stages INCLUDES ${aq_runtime_ROOMS})
aq_fuzz(tokenizer RUNS 1500 LIBS aq_stages data_files)
aq_fuzz(huggingface RUNS 3000 LIBS aq_stages data_files)
aq_fuzz(spm RUNS 3000 LIBS aq_stages)
aq_fuzz(dataset RUNS 10000 LIBS aq_stages data_files)
aq_fuzz(chat RUNS 20000 LIBS aq_stages)
aq_fuzz(stopper RUNS 50000 LIBS aq_stages aq_dep::jansson)
