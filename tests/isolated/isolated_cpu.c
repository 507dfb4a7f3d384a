/*
 * isolated_cpu.c -- in a program that it is linked to, whatever asks for the CPU gets the isolated device: whole jobs.
 */
#include "device_isolated.h"

__attribute__((constructor)) static void before_main(void)
{
    isolated_register("cpu");
}
