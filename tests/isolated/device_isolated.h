/*
 * device_isolated.h -- the CPU as a device of its own kind, for tests: see device_isolated.c. CMake:
 * aq_isolated(TARGET).
 *
 * Locking: before threads start.
 */
#ifndef DEVICE_ISOLATED_H
#define DEVICE_ISOLATED_H

/* aq_device_open finds it under this kind from here on; "cpu": instead of the CPU. */
void isolated_register(const char *kind);

#endif
