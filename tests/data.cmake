# The data module: tokenizers, text data sets, the sampler, weights files.
add_library(data_files STATIC kit/data_files.c)
target_link_libraries(data_files PUBLIC aqsgd PRIVATE aq_flags)
target_compile_definitions(data_files PRIVATE AQ_SOURCE_FOLDER="${CMAKE_SOURCE_DIR}")

aq_test(test_tokenizer LIBS aq_stages data_files LABELS quick)
aq_test(test_huggingface LIBS aq_stages data_files LABELS quick)
aq_test(test_pieces LIBS aq_stages data_files LABELS quick)
target_include_directories(test_pieces PRIVATE ${aq_stages_MODULES})
aq_test(test_text_tokens LIBS aq_stages data_files LABELS quick)
aq_test(test_sentencepiece LIBS aq_stages data_files LABELS quick)
target_include_directories(test_sentencepiece PRIVATE ${aq_stages_MODULES})
aq_test(conform_tokenizer LIBS aq_stages data_files LABELS quick conform)
aq_test(test_tokenizer_published LIBS aq_stages data_files LABELS quick)
target_include_directories(test_tokenizer PRIVATE ${aq_stages_MODULES})
target_include_directories(conform_tokenizer PRIVATE ${aq_stages_MODULES})
aq_test(test_augment LIBS aq_stages LABELS computes quick)
aq_test(test_dataset LIBS aq_stages data_files LABELS quick)
aq_test(conform_dataset LIBS aq_stages data_files LABELS quick conform)
aq_test(test_instruct LIBS aq_stages data_files LABELS quick)
aq_test(test_data_forms LIBS aq_stages data_files aq_dep::jansson aq_dep::zlib aq_dep::zstd LABELS quick)
target_include_directories(test_data_forms PRIVATE ${aq_stages_MODULES})
aq_test(test_tsv LIBS aq_stages data_files LABELS quick)
aq_test(test_weights LIBS aq_stages data_files LABELS quick)
aq_test(test_model_folder LIBS aq_stages data_files LABELS quick)
aq_test(test_weights_set LIBS aq_stages data_files LABELS quick)
aq_test(test_gguf LIBS aq_stages data_files LABELS quick)
target_compile_definitions(test_weights PRIVATE AQ_GOLDEN="${CMAKE_CURRENT_SOURCE_DIR}/golden")
# Against the package `tokenizers`: where it is not, the test skips and says so.
add_executable(tokenize_lines stages/tokenize_lines.c)
target_link_libraries(tokenize_lines PRIVATE aq_stages aq_flags)
add_test(NAME test_tokenizer_reference
  COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_tokenizer_reference $<TARGET_FILE_DIR:tokenize_lines>)
set_tests_properties(test_tokenizer_reference PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)

# Chat templates: by what they must give, and beside jinja2 where a Python has it (Debian: python3-jinja2).
aq_test(test_chat LIBS aq_stages data_files LABELS quick)
target_compile_definitions(test_chat PRIVATE AQ_CHAT_TEMPLATES="${CMAKE_CURRENT_SOURCE_DIR}/chat")
add_executable(chat_lines stages/chat_lines.c)
target_link_libraries(chat_lines PRIVATE aq_stages aq_dep::jansson aq_flags)
add_test(NAME test_chat_jinja COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_chat_jinja $<TARGET_FILE:chat_lines>
  ${CMAKE_CURRENT_SOURCE_DIR}/chat)
add_test(NAME test_chat_transformers COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_chat_transformers $<TARGET_FILE:chat_lines>
  ${CMAKE_CURRENT_SOURCE_DIR}/chat)
set_tests_properties(test_chat_jinja test_chat_transformers PROPERTIES LABELS quick SKIP_RETURN_CODE 77)

# From logits to tokens to text.
aq_test(test_sampling LIBS aq_stages LABELS computes quick)
add_executable(sampling_rows stages/sampling_rows.c)
target_link_libraries(sampling_rows PRIVATE aq_stages aq_dep::jansson aq_flags)
add_test(NAME test_sampling_reference COMMAND ${parity_python} -B ${CMAKE_CURRENT_SOURCE_DIR}/test_sampling_reference $<TARGET_FILE:sampling_rows>)
set_tests_properties(test_sampling_reference PROPERTIES LABELS quick SKIP_RETURN_CODE 77)
