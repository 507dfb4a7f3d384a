# Devices: every backend in every variant against the plain truth.
aq_test(conform_device LIBS aqsgd aq_stages LABELS conform quick)
target_include_directories(conform_device PRIVATE ${CMAKE_SOURCE_DIR}/aqsgd/device)
