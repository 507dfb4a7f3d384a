# Kernels without a GPU: every .cu of the repository as C++ under the launch emulation (cuda_host/cuda_host.h), against the CPU.
#
# aq_cuda_host is the emulation and all kernels; a test that links it calls the launchers on plain memory. It needs a C++
# compiler and nothing of CUDA.
# What nvcc makes of the codec's kernels; needs nvcc and nothing else.
add_test(NAME cuda_ptx COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cuda_ptx)
set_tests_properties(cuda_ptx PROPERTIES SKIP_RETURN_CODE 77 LABELS conform TIMEOUT 900)

option(AQ_CUDA_HOST "Test the CUDA kernels on the CPU, where there is a C++ compiler" ON)
include(CheckLanguage)
check_language(CXX)
if(NOT AQ_CUDA_HOST OR NOT CMAKE_CXX_COMPILER)
  message(STATUS "CUDA kernels are not tested on the CPU: no C++ compiler, or AQ_CUDA_HOST is off")
  return()
endif()
# The emulation watches each access of a kernel itself, and knows more of it than a sanitizer (which byte nobody wrote).
if(AQ_SANITIZE)
  message(STATUS "CUDA kernels are not tested on the CPU under a sanitizer: the emulation watches their accesses")
  return()
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
endif()
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
string(TOUPPER ${CMAKE_BUILD_TYPE} build_type)
set(CMAKE_CXX_FLAGS_${build_type} ${CMAKE_C_FLAGS_${build_type}})

# The project's flags of C, less what only C has (a struct and a function of one name shadow each other in C++).
set(options ${AQ_C_OPTIONS})
list(REMOVE_ITEM options -Wstrict-prototypes -Wmissing-prototypes -Wshadow)
add_library(aq_flags_cuda_host INTERFACE)
target_compile_options(aq_flags_cuda_host INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
target_link_libraries(aq_flags_cuda_host INTERFACE aq_flags)

# A multiply-add that is fused by a call takes half of the emulation's time. These programs run on the machine that builds them:
# where it fuses, so do they. What the kernels do not fuse stays apart (-ffp-contract=off).
if(AQ_X86_64 AND NOT CMAKE_CROSSCOMPILING)
  include(CheckCSourceRuns)
  check_c_source_runs("int main(void) { return !__builtin_cpu_supports(\"fma\"); }" AQ_CUDA_HOST_FMA)
  if(AQ_CUDA_HOST_FMA)
    target_compile_options(aq_flags_cuda_host INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-mfma>)
  endif()
endif()

# As aq_instruction_sets does for variants: what is said here holds in this folder alone, a CUDA build has its own rules.
# The compiler tells cuda_host_watch.cpp of each access of a kernel; ThreadSanitizer itself is not linked.
if(NOT AQ_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(watched -fsanitize=thread --param=tsan-instrument-func-entry-exit=0 -g1 -Wno-tsan)
endif()
function(aq_cuda_host_sources)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++;${watched}" COMPILE_DEFINITIONS AQ_CUDA_HOST)
endfunction()

file(GLOB CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/aqsgd/device/cuda/cuda_*.cu
  ${PROJECT_SOURCE_DIR}/aqsgd/device/cuda/*/cuda_*.cu ${PROJECT_SOURCE_DIR}/aqsgd/codec/cuda/cuda_*.cu ${PROJECT_SOURCE_DIR}/aqsgd/grad/cuda/cuda_*.cu)
aq_cuda_host_sources(${CUDA_KERNELS})
set(emulation cuda_host/cuda_host.cpp cuda_host/cuda_host_mma.cpp cuda_host/cuda_host_switch.cpp
  cuda_host/cuda_host_watch.cpp)
add_library(aq_cuda_host STATIC ${emulation} ${CUDA_KERNELS})
target_compile_options(aq_cuda_host PRIVATE -O2) # also where the rest is -O1, for sanitizers
target_include_directories(aq_cuda_host PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/cuda_host ${aqsgd_MODULES}
  PRIVATE ${aqsgd_MODULES})
target_link_libraries(aq_cuda_host PUBLIC aqsgd PRIVATE aq_flags_cuda_host)

# aq_cuda_test(NAME ...): aq_test with the emulation, in the program test_cuda.
function(aq_cuda_test name)
  set(program PROGRAM test_cuda)
  if("ALONE" IN_LIST ARGN)
    set(program)
  endif()
  aq_test(${name} ${program} LIBS aq_cuda_host aqsgd ${ARGN})
  target_include_directories(${name} PRIVATE ${aqsgd_MODULES})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

# aq_cuda_kernels(TEST file ...): kernels of the test itself.
function(aq_cuda_kernels test)
  aq_cuda_host_sources(${ARGN})
  add_library(${test}_kernels OBJECT ${ARGN})
  target_link_libraries(${test}_kernels PRIVATE aq_cuda_host aq_flags_cuda_host)
  aq_test_objects(${test} ${test}_kernels)
endfunction()

aq_cuda_test(test_cuda_host LABELS quick)
aq_cuda_kernels(test_cuda_host cuda/test_cuda_host.cu)
aq_cuda_test(test_cuda_codec LIBS codec_common LABELS quick conform PARTS 3)
aq_cuda_test(test_cuda_grad LABELS quick conform)
aq_test_again(cuda_codec_more OF test_cuda_codec ARGS 11 LABELS conform TIMEOUT 900)
