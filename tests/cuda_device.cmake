# The CUDA backend on the host: its own sources over a runtime of tests (cuda_host/runtime) and the emulated kernels. Where
# CUDA itself is built the names are taken, and a GPU is asked instead (label gpu).
if(NOT COMMAND aq_cuda_test OR AQ_CUDA)
  return()
endif()
add_library(aq_cuda_on_host OBJECT cuda_host/runtime/device_on_host.c cuda_host/runtime/cuda_runtime_host.c
  cuda_host/runtime/cuda_streams_host.c cuda_host/runtime/cuda_memory_host.c cuda_host/runtime/cuda_ipc_host.c
  cuda_host/runtime/cudnn_host.c)
target_include_directories(aq_cuda_on_host PUBLIC cuda_host/runtime cuda_host ${aqsgd_MODULES})
target_include_directories(aq_cuda_on_host PRIVATE ${aqsgd_MODULES})
target_link_libraries(aq_cuda_on_host PRIVATE aqsgd aq_flags)
function(aq_cuda_on_host_test name)
  aq_cuda_test(${name} ${ARGN})
  aq_test_objects(${name} aq_cuda_on_host)
  target_link_libraries(${name} PRIVATE aq_stages)
  aq_isolated(${name})
  target_include_directories(${name} PRIVATE cuda_host/runtime ${aqsgd_MODULES})
endfunction()

# What is over NCCL (the group, pairs), over an NCCL of tests.
add_library(aq_nccl_on_host OBJECT cuda_host/runtime/nccl_channel_on_host.c cuda_host/runtime/nccl_ranks_on_host.c
  cuda_host/runtime/group_nccl_on_host.c
  cuda_host/runtime/pair_on_host.c cuda_host/runtime/pair_nccl_on_host.c cuda_host/runtime/pair_ipc_on_host.c
  cuda_host/runtime/nccl_host.c)
target_include_directories(aq_nccl_on_host PRIVATE cuda_host/runtime ${aq_net_MODULES})
target_link_libraries(aq_nccl_on_host PRIVATE aq_net aq_flags)
aq_cuda_on_host_test(conform_collective_device LIBS collective_cases LABELS conform quick TIMEOUT 900 PARTS 2
  PROCESSORS 2) # some of its cases wait on the real clock
aq_test_objects(conform_collective_device aq_nccl_on_host)
target_include_directories(conform_collective_device PRIVATE ${aq_net_MODULES})
target_link_libraries(conform_collective_device PRIVATE aq_net)

# Optimizers over such groups.
aq_cuda_on_host_test(conform_grad_device LABELS computes conform quick TIMEOUT 900)
aq_test_objects(conform_grad_device aq_nccl_on_host)
target_link_libraries(conform_grad_device PRIVATE aq_net)

# Two GPUs, and what goes from one to the other.
aq_cuda_on_host_test(test_pair LABELS quick TIMEOUT 900)
aq_test_objects(test_pair aq_nccl_on_host)
target_link_libraries(test_pair PRIVATE aq_net)

aq_cuda_on_host_test(test_pair_ipc LABELS quick TIMEOUT 900)
aq_test_objects(test_pair_ipc aq_nccl_on_host)
target_link_libraries(test_pair_ipc PRIVATE aq_net)

aq_cuda_on_host_test(test_cuda_device LIBS codec_common LABELS quick)
aq_cuda_on_host_test(test_cuda_cudnn LIBS codec_common LABELS quick)
aq_cuda_on_host_test(test_cuda_fastest LIBS codec_common LABELS quick ENVIRONMENT CUDA_HOST_WATCH=0)
aq_cuda_on_host_test(test_cuda_vocabulary LIBS codec_common LABELS quick)
aq_cuda_on_host_test(test_cuda_graph LIBS codec_common LABELS quick)
aq_cuda_on_host_test(test_cuda_graph_models LIBS codec_common LABELS quick computes TIMEOUT 900 ENVIRONMENT CUDA_HOST_WATCH=0)
aq_test_again(cuda_graph_cudnn OF test_cuda_graph_models LABELS computes TIMEOUT 900
  ENVIRONMENT CUDA_HOST_WATCH=0 AQ_GPU_ATTENTION=cudnn AQ_GPU_CONVOLUTION=cudnn AQ_LOG=device:0)
aq_cuda_on_host_test(test_cuda_lock LABELS quick)
aq_cuda_on_host_test(test_cuda_gpus LIBS codec_common LABELS quick)
aq_cuda_on_host_test(test_cuda_codec_device LIBS codec_common LABELS quick)
# The calls of the test of label gpu, few configurations: test_cuda_codec has them all.
aq_cuda_on_host_test(test_codec_gpu LIBS codec_common LABELS quick ARGS 997 "test_*codec_of_the_table*" ENVIRONMENT AQ_GPU=required)
# The conformance of devices, of kind cuda alone: with every ending of a product that cuBLASLt has, and with none.
aq_cuda_on_host_test(conform_device_cuda LABELS conform TIMEOUT 900 PARTS 4 ENVIRONMENT AQ_CONFORM=cuda)
target_compile_definitions(conform_device_cuda PRIVATE AQ_CUDA_ON_HOST)
aq_test_again(conform_device_cuda_plain OF conform_device_cuda ARGS test_*matmul* LABELS computes conform quick TIMEOUT 900
  ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0 CUBLASLT_HOST_FUSES=0)

# Attention on GPUs other than Hopper, which have no warpgroup products.
aq_test_again(conform_device_cuda_warps OF conform_device_cuda ARGS test_attention_* LABELS computes conform quick TIMEOUT 900
  ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_CAPABILITY=80)

# Its attention and its convolutions by cuDNN, where that can.
aq_test_again(conform_device_cuda_cudnn OF conform_device_cuda ARGS test_attention_* LABELS computes conform quick TIMEOUT 900
  ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0 AQ_GPU_ATTENTION=cudnn AQ_LOG=device:0)
aq_test_again(conform_device_cuda_cudnn_parts OF conform_device_cuda ARGS test_parts_match_truth LABELS computes conform quick
  TIMEOUT 900 ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0 AQ_GPU_ATTENTION=cudnn AQ_LOG=device:0)
aq_test_again(conform_device_cuda_cudnn_conv OF conform_device_cuda ARGS test_conv_* LABELS computes conform quick TIMEOUT 900
  ENVIRONMENT AQ_CONFORM=cuda CUDA_HOST_WATCH=0 AQ_GPU_CONVOLUTION=cudnn AQ_LOG=device:0)

# A whole stage through the backend: matrix products on the host, every kernel emulated.
aq_cuda_on_host_test(test_device_training_cuda LABELS computes quick TIMEOUT 900 ENVIRONMENT AQ_DEVICES=cuda)

# Both ends of an edge on that backend: kernels, copies and events on three late streams, and NCCL's.
aq_cuda_on_host_test(test_edge_cuda ALONE SOURCES runtime/test_edge.c LABELS quick TIMEOUT 900 PARTS 4
  ENVIRONMENT AQ_DEVICES=cuda AQ_GPU=required CUDA_HOST_GPUS=2)
aq_test_objects(test_edge_cuda aq_nccl_on_host)
target_link_libraries(test_edge_cuda PRIVATE aq_runtime)
target_link_options(test_edge_cuda PRIVATE -Wl,--wrap=aq_codec_decode_batch)
target_include_directories(test_edge_cuda PRIVATE ${aq_runtime_MODULES})

# Every codec between two processes, a GPU each; device memory holds anything where zeroes are promised.
aq_cuda_on_host_test(test_edge_processes_cuda SOURCES runtime/test_edge_processes.c LABELS quick TIMEOUT 900
  ENVIRONMENT AQ_GPU=required CUDA_HOST_GPUS=2 CUDA_HOST_FRESH=poison)
aq_test_objects(test_edge_processes_cuda aq_nccl_on_host)
target_link_libraries(test_edge_processes_cuda PRIVATE aq_runtime)
target_include_directories(test_edge_processes_cuda PRIVATE ${aq_runtime_MODULES})

aq_cuda_on_host_test(test_neighbour_edge_cuda SOURCES runtime/test_neighbour_edge.c LABELS quick TIMEOUT 900
  ENVIRONMENT AQ_DEVICES=cuda AQ_NEIGHBOUR_SEEDS=6)
aq_test_objects(test_neighbour_edge_cuda aq_nccl_on_host)
target_link_libraries(test_neighbour_edge_cuda PRIVATE aq_runtime)
target_include_directories(test_neighbour_edge_cuda PRIVATE ${aq_runtime_MODULES})

# The programs with that backend, for whole jobs: a GPU stage next to a CPU stage, their caches one.
foreach(program aqpipe aqpiped aqpipe_faulty aqpipe-bench)
  string(REPLACE _faulty "" main ${program})
  set(source ${PROJECT_SOURCE_DIR}/runtime/cli/main_${main}.c)
  set(library)
  if(program STREQUAL aqpipe-bench)
    set(source ${PROJECT_SOURCE_DIR}/tools/bench/main_bench.c)
    set(library aq_bench)
  endif()
  add_executable(${program}_cuda_host ${source} $<TARGET_OBJECTS:aq_cuda_on_host> $<TARGET_OBJECTS:aq_nccl_on_host>)
  target_include_directories(${program}_cuda_host PRIVATE ${aq_bench_MODULES} ${aq_runtime_MODULES})
  target_link_libraries(${program}_cuda_host PRIVATE ${library} aq_runtime aq_cuda_host aqsgd aq_flags Threads::Threads m)
  set_target_properties(${program}_cuda_host PROPERTIES OUTPUT_NAME ${program} LINKER_LANGUAGE CXX
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/cuda_host)
  aq_started(${program}_cuda_host)
endforeach()
aq_faulty(aqpipe_faulty_cuda_host)
add_test(NAME test_bench_allreduce_on_host
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/test_bench_allreduce $<TARGET_FILE:aqpipe_cuda_host> cuda)
set_tests_properties(test_bench_allreduce_on_host PROPERTIES LABELS quick TIMEOUT 900)
foreach(scenario gpu gpu_default gpu_attention gpu_graphs replicas_one_gpu replicas_gpu edges_gpu edges_gpu_fault freeze_gpu lora_gpu split_privacy_gpu
    images_gpu)
  add_test(NAME e2e_${scenario}_on_host
    COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run ${CMAKE_BINARY_DIR}/bin/cuda_host ${scenario})
  set_tests_properties(e2e_${scenario}_on_host PROPERTIES LABELS e2e TIMEOUT 900 PROCESSORS 2
    ENVIRONMENT "AQ_GPU=required;CUDA_HOST_WATCH=0") # conformance tests watch the same kernels
endforeach()
add_test(NAME e2e_gpu_bad_input
  COMMAND ${AQ_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/run ${CMAKE_BINARY_DIR}/bin/cuda_host gpu_bad_input)
set_tests_properties(e2e_gpu_bad_input PROPERTIES LABELS e2e TIMEOUT 900 PROCESSORS 2)
