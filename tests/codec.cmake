# The codecs. They see the module's internal header, to run one table of kernels against another.
foreach(codec_test test_codec test_codec_quality test_codec_ec test_codec_distributions test_codec_lowrank test_codec_rows test_codec_corners conform_codec)
  set(labels quick conform)
  if(codec_test MATCHES "quality|distributions")
    list(APPEND labels computes)
  endif()
  aq_test(${codec_test} LIBS codec_common aqsgd LABELS ${labels})
  target_include_directories(${codec_test} PRIVATE ${aqsgd_MODULES})
endforeach()
if(NOT AQ_X86_64)
  set_source_files_properties(aqsgd/test_codec_ec.c PROPERTIES COMPILE_OPTIONS -fno-tree-vectorize) # gcc 12 for aarch64 fails there
endif()
aq_test(test_codec_golden LIBS codec_common aqsgd LABELS quick
  ARGS ${CMAKE_CURRENT_SOURCE_DIR}/golden)
target_include_directories(test_codec_golden PRIVATE ${aqsgd_MODULES})
# The page docs/FORMAT.md, in another language, against the same golden bodies.
find_program(AQ_NUMPY_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
if(AQ_NUMPY_PYTHON)
  add_test(NAME codec_format_page COMMAND ${AQ_NUMPY_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/golden/codec_check.py)
  set_tests_properties(codec_format_page PROPERTIES SKIP_RETURN_CODE 77 LABELS quick TIMEOUT 900)
endif()
# On a GPU (label gpu, tools/test-gpu): the whole table, over the calls that edges make.
if(AQ_CUDA)
  aq_test(test_codec_gpu PROGRAM test_gpu LIBS codec_common aqsgd LABELS gpu TIMEOUT 300 ARGS 11)
  target_include_directories(test_codec_gpu PRIVATE ${aqsgd_MODULES} ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
endif()
