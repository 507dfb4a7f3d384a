# CUDA, where it is asked for (AQ_CUDA, preset cuda). Nothing here looks for a GPU: a build machine needs none, and the
# program that comes out runs without one too.
#
# Files of CUDA are known by name: cuda_*.c, *_cuda.c and every .cu; without AQ_CUDA they are in no target. C sees the build
# by AQ_WITH_CUDA, AQ_WITH_NCCL and AQ_WITH_CUDNN (0 or 1).
set(AQ_CUDA_FILES "/(cuda_[^/]*|[^/]*_cuda(_[^/]*)?)\\.(c|cu)$|/[^/]*\\.cu$")

# Targets see these whatever the options say.
target_compile_definitions(aq_flags INTERFACE
  AQ_WITH_CUDA=$<BOOL:${AQ_CUDA}> AQ_WITH_NCCL=$<AND:$<BOOL:${AQ_CUDA}>,$<BOOL:${AQ_NCCL}>>)

# aq_cuda_sources(LIST): take CUDA's files out of a list of sources where CUDA is off.
function(aq_cuda_sources list)
  if(NOT AQ_CUDA)
    list(FILTER ${list} EXCLUDE REGEX "${AQ_CUDA_FILES}")
  elseif(NOT AQ_CUDNN_FOUND)
    list(FILTER ${list} EXCLUDE REGEX "/cuda_cudnn[^/]*\\.c$")
  endif()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

if(NOT AQ_CUDA)
  target_compile_definitions(aq_flags INTERFACE AQ_WITH_CUDNN=0)
  return()
endif()

# nvcc where the toolkit puts it, when neither PATH nor CUDACXX names one.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(AQ_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(NOT AQ_NVCC)
    message(FATAL_ERROR "AQ_CUDA is on and there is no nvcc: install the CUDA Toolkit 13, or name it with CUDACXX=.../bin/nvcc")
  endif()
  set(CMAKE_CUDA_COMPILER ${AQ_NVCC})
endif()

# Ampere, Hopper and Blackwell as machine code, and the last as PTX for what comes after.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100 CACHE STRING "GPU architectures, as CMake's CUDA_ARCHITECTURES" FORCE)
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
enable_language(CUDA)
# CMake 3.25 calls nvToolsExt old by a property of its target, and fails where there is none: toolkit 13 has no such library.
if(NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit 12.0 REQUIRED)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo -DNDEBUG")
endif()

# What the program says, and asks, where a GPU is none of them.
list(JOIN CMAKE_CUDA_ARCHITECTURES "," AQ_CUDA_ARCHITECTURES)

# Hopper's warpgroup products (cuda_wgmma.cuh) exist only in machine code of its own feature set.
string(REGEX REPLACE "(^|;)90($|-|;)" "\\190a\\2" CMAKE_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")

# Kernels: the repository's warnings, and contraction off everywhere, as for C: decode must give the CPU's bits, and a kernel that
# wants a fused multiply-add says so (fmaf).
target_compile_options(aq_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcudafe=--display_error_number;-Xcompiler=-Wall,-Wextra,-fvisibility=hidden,-fno-math-errno>")
if(AQ_WERROR)
  target_compile_options(aq_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()

# CUDA's libraries are loaded at run time (aqsgd/gpu_library.h): the build needs their headers, which are the toolkit's, the
# system's, or of a package that somebody names. Where the build machine has the libraries is one of the places where
# programs look (AQ_GPU_FOLDERS; tools/package.d/gather.py packs no build with a folder outside /usr and /opt).
find_path(AQ_cublasLt_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(AQ_cublasLt_LIBRARY NAMES cublasLt libcublasLt.so.${CUDAToolkit_VERSION_MAJOR} HINTS ${CUDAToolkit_LIBRARY_DIR})
mark_as_advanced(AQ_cublasLt_INCLUDE AQ_cublasLt_LIBRARY)
if(NOT AQ_cublasLt_INCLUDE)
  message(FATAL_ERROR "cublasLt.h is not here: install the toolkit's libcublas-dev, or name what a package has with "
    "-DAQ_cublasLt_INCLUDE=.../include")
endif()

add_library(aq_dep::cuda INTERFACE IMPORTED)
target_include_directories(aq_dep::cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${AQ_cublasLt_INCLUDE})
target_link_libraries(aq_dep::cuda INTERFACE CUDA::cudart_static ${CMAKE_DL_LIBS})
target_compile_definitions(aq_dep::cuda INTERFACE AQ_CUDA_ARCHITECTURES="${AQ_CUDA_ARCHITECTURES}")

# cuDNN's attention and convolutions, to compare with (AQ_GPU_ATTENTION=cudnn, AQ_GPU_CONVOLUTION=cudnn): its headers here, its
# library when a program asks for it.
set(AQ_CUDNN_FOUND OFF)
if(NOT AQ_CUDNN STREQUAL "OFF")
  find_path(AQ_cudnn_INCLUDE cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(AQ_cudnn_LIBRARY NAMES libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} ${AQ_cudnn_INCLUDE}/../lib)
  mark_as_advanced(AQ_cudnn_INCLUDE AQ_cudnn_LIBRARY)
  set(version 0)
  if(AQ_cudnn_INCLUDE)
    file(STRINGS ${AQ_cudnn_INCLUDE}/cudnn_version.h lines REGEX "define CUDNN_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2" version "${lines}")
  endif()
  if(version VERSION_GREATER_EQUAL 9.21)
    set(AQ_CUDNN_FOUND ON)
    target_include_directories(aq_dep::cuda SYSTEM BEFORE INTERFACE ${AQ_cudnn_INCLUDE}) # the toolkit may have an older one
    target_compile_definitions(aq_dep::cuda INTERFACE AQ_CUDNN_LIBRARY="${AQ_cudnn_LIBRARY}")
    message(STATUS "cuDNN ${version}: its attention and convolutions are built (AQ_GPU_ATTENTION, AQ_GPU_CONVOLUTION)")
  elseif(AQ_CUDNN STREQUAL "ON")
    message(FATAL_ERROR "AQ_CUDNN is ON and cuDNN 9.21 or newer is not here (found: ${version}): pip install nvidia-cudnn-cu13, and "
      "-DAQ_cudnn_INCLUDE=.../nvidia/cudnn/include -DAQ_cudnn_LIBRARY=.../nvidia/cudnn/lib/libcudnn.so.9")
  else()
    message(STATUS "no cuDNN 9.21 here: only the attention and convolutions of aqpipe")
  endif()
endif()

target_compile_definitions(aq_flags INTERFACE AQ_WITH_CUDNN=$<BOOL:${AQ_CUDNN_FOUND}>)

if(AQ_NCCL)
  find_path(AQ_nccl_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(AQ_nccl_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  mark_as_advanced(AQ_nccl_INCLUDE AQ_nccl_LIBRARY)
  if(NOT AQ_nccl_INCLUDE)
    message(FATAL_ERROR "nccl.h is not here: apt-get install libnccl-dev, name its folder with -DAQ_nccl_INCLUDE=.../include, or "
      "build with -DAQ_NCCL=OFF")
  endif()
  add_library(aq_dep::nccl INTERFACE IMPORTED)
  target_include_directories(aq_dep::nccl SYSTEM INTERFACE ${AQ_nccl_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(aq_dep::nccl INTERFACE CUDA::cudart_static)
endif()

set(folders)
foreach(library ${AQ_cublasLt_LIBRARY} ${AQ_nccl_LIBRARY} ${AQ_cudnn_LIBRARY})
  if(library)
    get_filename_component(folder ${library} DIRECTORY)
    list(APPEND folders ${folder})
  endif()
endforeach()
list(REMOVE_DUPLICATES folders)
list(JOIN folders ":" folders)
set(AQ_GPU_FOLDERS "${folders}" CACHE STRING "Where programs look for CUDA's libraries last, separated by colons")
mark_as_advanced(AQ_GPU_FOLDERS)
