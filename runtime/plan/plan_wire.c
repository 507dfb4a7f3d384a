/*
 * plan_wire.c -- bytes of a frame on the wire: with its header, and with those of TCP/IP and Ethernet.
 */
#include "plan_private.h"
#include "security.h"

uint64_t aq_wire_bytes(uint64_t body_bytes, bool loopback)
{
    const uint64_t bytes = AQ_WIRE_HEADER_BYTES + body_bytes;
    const uint64_t segment = loopback ? AQ_WIRE_LOOPBACK_BYTES : AQ_WIRE_SEGMENT_BYTES;
    return bytes + (bytes + segment - 1) / segment * AQ_WIRE_PACKET_BYTES;
}

bool aq_plan_edge_loopback(const struct aq_job *job, uint32_t edge)
{
    const char *address = job->pipeline.stages[aq_job_listener(job, edge, edge + 1)].address;
    return aq_job_same_host(job, edge, edge + 1) && !aq_job_relayed(job, edge, edge + 1) &&
           (address ? aq_security_inside(address) : aq_security_inside_host(job->link.host));
}
