/* device_owner.c -- see the header. */
#include "aqsgd/device_owner.h"

#include <stdio.h>

static char owner[AQ_DEVICE_OWNER_BYTES] = "a job without a name";

void aq_device_owner_set(const char *name)
{
    snprintf(owner, sizeof owner, "%s", name);
}

const char *aq_device_owner(void)
{
    return owner;
}
