/*
 * control_socket.h -- TCP under the control channel: addresses, listening, connecting, and the greeting of a client.
 *
 * Addresses are those of net/endpoint.h.
 *
 * Locking: pure functions; connecting blocks until its deadline. A meeting (aq_control_meeting_*) does not block,
 * except for a name server where the address has a name; one thread each.
 */
#ifndef RUNTIME_CONTROL_SOCKET_H
#define RUNTIME_CONTROL_SOCKET_H

#include "control.h"
#include "control_token.h"

enum { AQ_CONTROL_PROTOCOL = 1, AQ_ADDRESS_BYTES = 300 };

/* A listening socket. `far` false: only a loopback address is allowed (AQ_INVAL). *port gets the real one.
 * AQ_INVAL, AQ_NOTFOUND: no address. AQ_REFUSED: in use, or no permission. */
enum aq_status aq_control_listen(const char *address, bool far, int *fd, uint16_t *port);

/* The port and a line's end, to the file of --port-file; NULL: none is asked for. The status of aq_file_replace. */
enum aq_status aq_control_port_write(const char *path, uint16_t port);

/* Who is at the other end: its source (aq_source_of) and, where `text` is not NULL, its address for people. */
struct sockaddr;
uint64_t aq_control_source(const struct sockaddr *address, char text[64]);

/* The next that waits at a listening socket. AQ_AGAIN: none does. AQ_NOSPC: none can be taken for now (errno). */
enum aq_status aq_control_accept(int listener, int *fd, uint64_t *source, char peer[64]);

/* A connected socket with keep-alive: a peer that vanished is noticed within about 30 s. AQ_TIMEOUT, AQ_REFUSED,
 * AQ_INVAL, AQ_NOTFOUND. */
enum aq_status aq_control_connect(const char *address, uint64_t deadline_ns, int *fd);
enum aq_status aq_control_keep_alive(int fd);

/* Connect to a daemon and greet it, under TLS where `tls` is not NULL: then the other end must hold the certificate of
 * that host's daemon (aq_endpoint_identity), of our authority. AQ_TLSERR: it does not. AQ_REFUSED: it, or we, do not
 * take the other's proof. AQ_MISMATCH: another protocol. */
struct aq_tls;
enum aq_status aq_control_meet(const char *address, const struct aq_token *token, struct aq_tls *tls,
                               uint64_t deadline_ns, struct aq_control **out);

/*
 * The same without waiting: the caller polls aq_control_meeting_fd for aq_control_meeting_events, or comes back now and
 * then, and calls turn. begin: takes nothing; token and tls are borrowed until end. turn: AQ_AGAIN until the deadline;
 * AQ_OK: *out is the caller's; else as aq_control_meet. end accepts NULL.
 */
struct aq_control_meeting; /* opaque */
enum aq_status aq_control_meeting_begin(const char *address, const struct aq_token *token, struct aq_tls *tls,
                                        uint64_t deadline_ns, struct aq_control_meeting **out);
int aq_control_meeting_fd(const struct aq_control_meeting *meeting);
short aq_control_meeting_events(const struct aq_control_meeting *meeting);
enum aq_status aq_control_meeting_turn(struct aq_control_meeting *meeting, struct aq_control **out);
void aq_control_meeting_end(struct aq_control_meeting *meeting);

/* Raise this process's limit of descriptors to `count`, or to its hard limit: most systems start with 1024, and
 * allow more. Child processes inherit it. A limit that is too low is reported only where a descriptor is missing. */
void aq_control_descriptors(uint64_t count);

#endif
