# storage/: the message cache.
aq_test(conform_store LIBS aq_storage SOURCES conform/conform_store.c kit/cache_kit.c LABELS quick conform)
aq_test(test_cache LIBS aq_storage SOURCES storage/test_cache.c kit/cache_kit.c LABELS quick)
aq_test(test_cache_marks LIBS aq_storage SOURCES storage/test_cache_marks.c kit/cache_kit.c LABELS quick)
aq_test(test_cache_cells LIBS aq_storage aq_dep::lmdb SOURCES storage/test_cache_cells.c kit/cache_kit.c LABELS quick)
target_include_directories(test_cache_cells PRIVATE ${aq_storage_ROOMS})
aq_test(test_cache_kill LIBS aq_storage SOURCES storage/test_cache_kill.c kit/cache_kit.c LABELS quick fault ARGS 12)
aq_test(test_cache_disk LIBS aq_storage SOURCES storage/test_cache_disk.c kit/cache_kit.c LABELS quick fault)
aq_test(test_cache_bytes LIBS aq_storage SOURCES storage/test_cache_bytes.c kit/cache_kit.c LABELS quick fuzz ARGS 100)
aq_test(test_cache_seal LIBS aq_storage aq_dep::crypto SOURCES storage/test_cache_seal.c kit/cache_kit.c LABELS quick)
target_compile_definitions(test_cache PRIVATE TESTS_FOLDER="${CMAKE_CURRENT_SOURCE_DIR}")
aq_test(test_command_cache LIBS aq_storage aq_dep::jansson SOURCES runtime/test_command_cache.c kit/cache_kit.c LABELS quick
  ARGS $<TARGET_FILE:aqpipe>)
add_dependencies(test_command_cache aqpipe)
# Every call into the disk fails once, and between any two is a crash. Past the page cache, on demand: test_io_errors disk.
aq_test(test_io_errors LIBS aq_storage aq_dep::uring SOURCES storage/test_io_errors.c kit/io_fault.c kit/cache_kit.c LABELS quick fault)
# What holds in the clear holds for sealed caches.
foreach(test conform_store test_cache_marks test_cache_kill test_cache_disk test_cache_bytes test_io_errors)
  string(REPLACE "test_cache_kill" "test_cache_kill;12" command ${test})
  string(REPLACE "test_cache_bytes" "test_cache_bytes;100" command "${command}")
  add_test(NAME ${test}_sealed COMMAND ${command})
  set_tests_properties(${test}_sealed PROPERTIES SKIP_RETURN_CODE 77 LABELS "quick;fault" TIMEOUT 600 ENVIRONMENT AQ_KIT_SEALED=1)
endforeach()
