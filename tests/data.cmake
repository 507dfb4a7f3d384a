# The data room: tokenizers, text data sets, the sampler, weights files.
add_library(data_files STATIC kit/data_files.c)
target_link_libraries(data_files PUBLIC aqsgd PRIVATE aq_flags)
target_compile_definitions(data_files PRIVATE AQ_SOURCE_FOLDER="${CMAKE_SOURCE_DIR}")

aq_test(test_tokenizer LIBS aq_stages data_files LABELS quick)
aq_test(conform_tokenizer LIBS aq_stages data_files LABELS quick conform)
aq_test(test_tokenizer_published LIBS aq_stages data_files LABELS quick)
target_include_directories(test_tokenizer PRIVATE ${aq_stages_ROOMS})
target_include_directories(conform_tokenizer PRIVATE ${aq_stages_ROOMS})
aq_test(test_dataset LIBS aq_stages data_files LABELS quick)
aq_test(conform_dataset LIBS aq_stages data_files LABELS quick conform)
aq_test(test_weights LIBS aq_stages data_files LABELS quick)
target_compile_definitions(test_weights PRIVATE AQ_GOLDEN="${CMAKE_CURRENT_SOURCE_DIR}/golden")
