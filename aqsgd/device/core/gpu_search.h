/*
 * gpu_search.h -- the order in which folders are searched for CUDA's libraries, for gpu_library.c and its test.
 */
#ifndef AQSGD_GPU_SEARCH_H
#define AQSGD_GPU_SEARCH_H

#include "aqsgd/gpu_library.h"

/* A folder, lent for the call, or NULL where the system's loader is asked. True: stop. */
typedef bool gpu_visit(void *context, const char *folder);

/* Visits the folders in the order of gpu_library.h. True: a visit returned stop. */
bool gpu_folders_visit(enum aq_gpu_library which, gpu_visit *visit, void *context);

/*
 * The folders beside a program, given by its path: those of PyPI's packages in the same site-packages or dist-packages.
 * None of a program elsewhere, because any user may own the folder around it. True: a visit returned stop.
 */
bool gpu_beside_visit(const char *program, enum aq_gpu_library which, gpu_visit *visit, void *context);

#endif
