/*
 * device_owner.h -- the name of this process for others that need its GPU.
 *
 * A GPU is for one owner at a time (struct aq_device_config's owner, a number). The error of a refused process has the
 * name and the process id of the holder.
 *
 * Locking: set it before a device is opened, by the thread that opens it.
 */
#ifndef AQSGD_DEVICE_OWNER_H
#define AQSGD_DEVICE_OWNER_H

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_DEVICE_OWNER_BYTES = 128 };

/* Copied, and cut after AQ_DEVICE_OWNER_BYTES - 1 bytes; a run folder, for instance. */
void aq_device_owner_set(const char *name);
const char *aq_device_owner(void); /* "a job without a name" before the first call */

#ifdef __cplusplus
}
#endif
#endif
