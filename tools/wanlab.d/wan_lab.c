/*
 * wan_lab.c -- see wan_lab.h. Three processes: the caller, which waits; the lab, first of a process namespace, which
 * moves packets; and the command, at end 0. The lab holds a descriptor of each end's namespace and a pipe for changes
 * under fixed numbers, so that processes in the lab find them at /proc/1/fd. A pipe shows the end of the caller.
 *
 * The lab asks for SCHED_FIFO: a packet that waits for a processor that trains would get a wrong delay. --stats prints
 * the processor time of the lab.
 */
#include "wan_lab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const AREA = "wanlab", *const CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control";

/* FD_CHANGES, then the namespaces: descriptors of the lab. */
enum { FD_CHANGES = 99, FD_ENDS = 100, READS_AT_ONCE = 64, QUEUE_PACKETS = 10000, GRACE_S = 10, SIGNALS = 4 };
enum { ASKED_LAB = 1, ASKED_CALLER = 2 };              /* who got a signal */
enum { MOMENT_NS = 50000000, CALLER_NS = 2000000000 }; /* for so long the other may have got it, too */
#define PASSED_ON SIGRTMIN /* by the caller; its value is the signal. Two equal standard signals would become one */
static const uint32_t NET = 0x0a4f0000; /* 10.79.0.0/24     */

struct lab {
    const struct aq_wan_lab *wanted;
    int tun[AQ_WAN_ENDS_MAX];
    int caller, signals, changes; /* what is waited for: the pipe of the caller, signals, changes */
    pid_t command;
    uint64_t asked_ns;            /* when a signal is passed on to the command; AQ_NEVER */
    int asked, asked_by;          /* ASKED_: who got it; which */
    uint64_t began_ns, killed_ns; /* killed_ns: when the command is given up; AQ_NEVER  */
    bool ended;
    int code;
    uint32_t due_count;
    struct aq_wan_change due[AQ_WAN_CHANGES_MAX]; /* that are still to come; at_ns is absolute */
    struct aq_wan_line lines[AQ_WAN_ENDS_MAX][AQ_WAN_ENDS_MAX];
};

const char *aq_wan_lab_cannot(void)
{
    static char text[160];
    if (geteuid() != 0)
        return "needs root: network namespaces and TUN devices need CAP_SYS_ADMIN and CAP_NET_ADMIN; try sudo";
    const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        return NULL;
    }
    snprintf(text, sizeof text, "/dev/net/tun: %s; modprobe tun, or in a container --device /dev/net/tun",
             strerror(errno));
    return text;
}

/* ---- ends ---- */

static enum aq_status set_up_device(int socket_fd, const char *name, uint32_t address, uint32_t mtu)
{
    struct ifreq request = {0};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (address) {
        memcpy(&request.ifr_addr, &in, sizeof in);
        AQ_SYS(ioctl(socket_fd, SIOCSIFADDR, &request));
        in.sin_addr.s_addr = htonl(0xffffff00);
        memcpy(&request.ifr_netmask, &in, sizeof in);
        AQ_SYS(ioctl(socket_fd, SIOCSIFNETMASK, &request));
        request.ifr_mtu = (int)mtu;
        AQ_SYS(ioctl(socket_fd, SIOCSIFMTU, &request));
        request.ifr_qlen = QUEUE_PACKETS; /* lines drop, the device does not */
        AQ_SYS(ioctl(socket_fd, SIOCSIFTXQLEN, &request));
    }
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    AQ_SYS(ioctl(socket_fd, SIOCSIFFLAGS, &request));
    return AQ_OK;
}

/* In the end's namespace. */
static enum aq_status open_device(uint32_t end, uint32_t mtu, int *out)
{
    struct ifreq request = {.ifr_name = "wan0", .ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    const int tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (tun < 0) return aq_fail_errno(AREA, "/dev/net/tun");
    *out = tun;
    AQ_SYS(ioctl(tun, TUNSETIFF, &request));
    AQ_SYS(ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4));
    const int socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) return aq_fail_errno(AREA, "a socket for the end's device");
    enum aq_status status = set_up_device(socket_fd, "lo", 0, 0);
    if (status == AQ_OK) status = set_up_device(socket_fd, "wan0", NET + end + 1, mtu);
    close(socket_fd);
    return status;
}

static enum aq_status open_ends(struct lab *lab)
{
    for (uint32_t end = 0; end < lab->wanted->ends; end++) {
        if (unshare(CLONE_NEWNET) != 0)
            return aq_fail_errno(AREA, "no network namespaces here (CAP_SYS_ADMIN is needed)");
        const int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (fd < 0 || dup3(fd, FD_ENDS + (int)end, O_CLOEXEC) < 0)
            return aq_fail_errno(AREA, "the namespace of end %u", end);
        close(fd);
        AQ_TRY(open_device(end, lab->wanted->mtu, &lab->tun[end]));
    }
    return AQ_OK;
}

static enum aq_status open_changes(struct lab *lab)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 || dup3(ends[1], FD_CHANGES, O_CLOEXEC) < 0)
        return aq_fail_errno(AREA, "a pipe for changes");
    close(ends[1]);
    lab->changes = ends[0];
    return AQ_OK;
}

/* ---- changes ---- */

const char *aq_wan_change_wrong(const struct aq_wan_change *change, uint32_t ends)
{
    const struct aq_wan_rules *const both[2] = {&change->ahead, &change->back};
    const bool all = change->from == AQ_WAN_ALL && change->to == AQ_WAN_ALL;
    if (!all && (change->from < 0 || change->from >= (int32_t)ends)) return "there is no such end";
    if (change->to != AQ_WAN_ALL && (change->to < 0 || change->to >= (int32_t)ends || change->to == change->from))
        return "there is no such link";
    for (int i = 0; i < 2; i++) {
        const struct aq_wan_rules *rules = both[i];
        if (!(rules->rate_mbps >= 0 && rules->rate_mbps <= 1e5)) return "a rate is from 0 (no limit) to 100000 Mbit/s";
        if (!(rules->delay_ms >= 0 && rules->delay_ms <= 1e4)) return "a delay is from 0 to 10000 ms";
        if (!(rules->jitter_ms >= 0 && rules->jitter_ms <= 1e4)) return "a jitter is from 0 to 10000 ms";
        if (!(rules->loss >= 0 && rules->loss <= 1)) return "a loss is from 0 to 100 percent";
        if (!(rules->queue_ms >= -1 && rules->queue_ms <= 1e5)) return "a queue is from 0 to 100000 ms";
    }
    return memchr(change->congestion, 0, sizeof change->congestion) ? NULL : "a name of 15 letters at most is wanted";
}

static void take_rules(struct aq_wan_rules *to, uint32_t given, const struct aq_wan_rules *from)
{
    if (given & AQ_WAN_RATE) to->rate_mbps = from->rate_mbps;
    if (given & AQ_WAN_DELAY) to->delay_ms = from->delay_ms;
    if (given & AQ_WAN_JITTER) to->jitter_ms = from->jitter_ms;
    if (given & AQ_WAN_LOSS) to->loss = from->loss;
    if (given & AQ_WAN_QUEUE) to->queue_ms = from->queue_ms;
    if (given & AQ_WAN_BLACKHOLE) to->blackhole_bytes = from->blackhole_bytes;
}

/* The lab enters the end, because /proc/sys/net is per namespace. */
static enum aq_status set_congestion(uint32_t end, const char *name)
{
    if (setns(FD_ENDS + (int)end, CLONE_NEWNET) != 0) return aq_fail_errno(AREA, "cannot enter end %u", end);
    const int fd = open(CONGESTION, O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && aq_write_all(fd, name, strlen(name));
    const enum aq_status status =
        done ? AQ_OK
             : aq_fail_errno(
                   AREA,
                   "congestion control '%s' at end %u; /proc/sys/net/ipv4/tcp_available_congestion_control lists them",
                   name, end);
    if (fd >= 0) close(fd);
    return status;
}

static enum aq_status apply(struct lab *lab, const struct aq_wan_change *change)
{
    const int32_t ends = (int32_t)lab->wanted->ends, from = change->from, to = change->to;
    for (int32_t a = 0; a < ends; a++)
        for (int32_t b = 0; b < ends; b++) {
            const bool ahead = from == AQ_WAN_ALL ? a < b : a == from && (to == AQ_WAN_ALL || b == to);
            const bool back = from == AQ_WAN_ALL ? a > b : b == from && (to == AQ_WAN_ALL || a == to);
            if (a != b && (ahead || back))
                take_rules(&lab->lines[a][b].rules, change->given, ahead ? &change->ahead : &change->back);
        }
    for (int32_t end = 0; (change->given & AQ_WAN_CONGESTION) && end < ends; end++)
        if (from == AQ_WAN_ALL || end == from || end == to) AQ_TRY(set_congestion((uint32_t)end, change->congestion));
    return AQ_OK;
}

/* Those whose time has come, in order. */
static enum aq_status apply_due(struct lab *lab, uint64_t now_ns)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < lab->due_count; i++) {
        const struct aq_wan_change change = lab->due[i];
        if (change.at_ns > now_ns)
            lab->due[kept++] = change;
        else
            AQ_TRY(apply(lab, &change));
    }
    lab->due_count = kept;
    return AQ_OK;
}

static enum aq_status add_change(struct lab *lab, const struct aq_wan_change *change, uint64_t from_ns)
{
    const char *wrong = aq_wan_change_wrong(change, lab->wanted->ends);
    if (!wrong && lab->due_count == AQ_WAN_CHANGES_MAX) wrong = "too many changes are still to come";
    if (wrong) return aq_fail(AQ_INVAL, AREA, "%s", wrong);
    lab->due[lab->due_count] = *change;
    lab->due[lab->due_count++].at_ns += from_ns;
    return AQ_OK;
}

/* A change from a process in the lab: its sender reported any fault, which ends nothing here. */
static void hear_change(struct lab *lab, uint64_t now_ns)
{
    struct aq_wan_change change;
    if (read(lab->changes, &change, sizeof change) == (ssize_t)sizeof change) (void)add_change(lab, &change, now_ns);
}

/* ---- packets ---- */

/* The clock is read after each packet. With an earlier time the packet would leave too early. */
static enum aq_status move_in(struct lab *lab, uint32_t end)
{
    static uint8_t bytes[AQ_WAN_READ_BYTES];
    for (int i = 0; i < READS_AT_ONCE; i++) {
        const ssize_t count = read(lab->tun[end], bytes, sizeof bytes);
        uint32_t address;
        if (count < 0) return AQ_OK; /* nothing more, or the command has taken the device down */
        if (!aq_wan_target(bytes, (size_t)count, &address)) continue;
        const uint32_t to = address - NET - 1;
        if (to >= lab->wanted->ends || to == end) continue;
        const enum aq_status status = aq_wan_line_offer(&lab->lines[end][to], aq_clock_ns(), bytes, (size_t)count);
        if (status != AQ_OK && status != AQ_PROTO) return status;
    }
    return AQ_OK;
}

static enum aq_status move_out(struct lab *lab, uint64_t now_ns)
{
    for (uint32_t a = 0; a < lab->wanted->ends; a++)
        for (uint32_t b = 0; b < lab->wanted->ends; b++)
            if (aq_wan_line_wake_ns(&lab->lines[a][b]) <= now_ns)
                AQ_TRY(aq_wan_line_deliver(&lab->lines[a][b], now_ns, lab->tun[b]));
    return AQ_OK;
}

static uint64_t next_wake_ns(const struct lab *lab)
{
    uint64_t wake_ns = lab->killed_ns < lab->asked_ns ? lab->killed_ns : lab->asked_ns;
    for (uint32_t a = 0; a < lab->wanted->ends; a++)
        for (uint32_t b = 0; b < lab->wanted->ends; b++) {
            const uint64_t line_ns = aq_wan_line_wake_ns(&lab->lines[a][b]);
            if (line_ns < wake_ns) wake_ns = line_ns;
        }
    for (uint32_t i = 0; i < lab->due_count; i++)
        if (lab->due[i].at_ns < wake_ns) wake_ns = lab->due[i].at_ns;
    return wake_ns;
}

/* ---- processes ---- */

/* Not by the terminal, whose interrupts reach the command by themselves. */
static bool was_sent(int code)
{
    return code == SI_USER || code == SI_QUEUE || code == SI_TKILL;
}

/*
 * A signal sent only to the caller or only to the lab is passed on to the command. A signal that both got went to their
 * process group, so the command has it. The lab has its own by the time that the caller's comes, but the caller of a
 * busy machine may take long.
 */
static void hear_request(struct lab *lab, const struct signalfd_siginfo *info)
{
    const bool by_caller = (int)info->ssi_signo == PASSED_ON;
    if (!was_sent(info->ssi_code)) return;
    lab->asked |= by_caller ? ASKED_CALLER : ASKED_LAB;
    lab->asked_by = by_caller ? info->ssi_int : (int)info->ssi_signo;
    lab->asked_ns = aq_clock_after(lab->asked & ASKED_CALLER ? MOMENT_NS : CALLER_NS);
    if (lab->killed_ns == AQ_NEVER) lab->killed_ns = aq_clock_after(GRACE_S * UINT64_C(1000000000));
}

static void pass_request(struct lab *lab)
{
    if (lab->asked != (ASKED_CALLER | ASKED_LAB)) (void)kill(lab->command, lab->asked_by); /* it may have ended */
    lab->asked = 0;
    lab->asked_ns = AQ_NEVER;
}

static void hear_signal(struct lab *lab)
{
    struct signalfd_siginfo info;
    int code;
    pid_t process;
    if (read(lab->signals, &info, sizeof info) != (ssize_t)sizeof info) return;
    if (info.ssi_signo != SIGCHLD) {
        hear_request(lab, &info);
        return;
    }
    while ((process = waitpid(-1, &code, WNOHANG)) > 0) /* orphans come to the first process */
        if (process == lab->command) {
            lab->ended = true;
            lab->code = WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
        }
}

static enum aq_status loop(struct lab *lab)
{
    struct pollfd fds[AQ_WAN_ENDS_MAX + 3];
    const uint32_t ends = lab->wanted->ends;
    for (uint32_t i = 0; i < ends; i++)
        fds[i] = (struct pollfd){.fd = lab->tun[i], .events = POLLIN};
    fds[ends] = (struct pollfd){.fd = lab->signals, .events = POLLIN};
    fds[ends + 1] = (struct pollfd){.fd = lab->changes, .events = POLLIN};
    fds[ends + 2] = (struct pollfd){.fd = lab->caller, .events = 0};
    while (!lab->ended) {
        uint64_t now_ns = aq_clock_ns();
        const uint64_t wake_ns = next_wake_ns(lab), wait_ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
        const struct timespec wait = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
        if (ppoll(fds, ends + 3, wake_ns == AQ_NEVER ? NULL : &wait, NULL) < 0 && errno != EINTR)
            return aq_fail_errno(AREA, "cannot wait for packets");
        now_ns = aq_clock_ns();
        if (fds[ends + 2].revents) return AQ_ABORTED; /* no caller is left */
        if (now_ns >= lab->killed_ns)
            return aq_fail(AQ_ABORTED, AREA, "the command still runs %d s after the signal: everything is ended",
                           GRACE_S);
        if (fds[ends].revents) hear_signal(lab);
        if (now_ns >= lab->asked_ns) pass_request(lab);
        if (fds[ends + 1].revents) hear_change(lab, now_ns);
        AQ_TRY(apply_due(lab, now_ns));
        for (uint32_t i = 0; i < ends; i++)
            if (fds[i].revents) AQ_TRY(move_in(lab, i));
        AQ_TRY(move_out(lab, aq_clock_ns()));
    }
    return AQ_OK;
}

static void print_stats(const struct lab *lab)
{
    const double seconds = 1e-9 * (double)(aq_clock_ns() - lab->began_ns);
    fprintf(stderr, "wanlab: line    packets       MB      lost queue full too big  late at most\n");
    for (uint32_t a = 0; a < lab->wanted->ends; a++)
        for (uint32_t b = 0; b < lab->wanted->ends; b++) {
            const struct aq_wan_counts *counts = &lab->lines[a][b].counts;
            if (counts->packets + counts->lost + counts->full + counts->blackholed == 0) continue;
            fprintf(stderr, "wanlab: %2u>%-2u %10llu %8.2f %9llu %10llu %7llu %10.2f ms\n", a, b,
                    (unsigned long long)counts->packets, (double)counts->bytes * 1e-6, (unsigned long long)counts->lost,
                    (unsigned long long)counts->full, (unsigned long long)counts->blackholed,
                    (double)counts->late_ns_max * 1e-6);
        }
    fprintf(stderr, "wanlab: %.1f s, the lab itself took %.3f of a core\n", seconds,
            1e-9 * (double)aq_clock_cpu_ns() / seconds);
}

static enum aq_status start_command(struct lab *lab, const sigset_t *before)
{
    char ends[16];
    snprintf(ends, sizeof ends, "%u", lab->wanted->ends);
    lab->began_ns = aq_clock_ns();
    lab->command = fork();
    if (lab->command < 0) return aq_fail_errno(AREA, "cannot start the command");
    if (lab->command > 0) return AQ_OK;
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    if (setenv("AQPIPE_WANLAB", ends, 1) != 0 || setns(FD_ENDS, CLONE_NEWNET) != 0) {
        (void)aq_fail_errno(AREA, "cannot put the command at end 0");
        _exit(1);
    }
    const int code = lab->wanted->run(lab->wanted->context);
    fflush(NULL);
    _exit(code);
}

static void hurry(void)
{
    const struct sched_param param = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param) != 0 && setpriority(PRIO_PROCESS, 0, -20) != 0)
        aq_log(AREA, AQ_LOG_WARNING, "no priority for the lab: packets are late when the machine is busy");
}

/* The first process of the namespace; AQ_OK: the command has ended, with lab->code. */
static enum aq_status lab_process(struct lab *lab, const sigset_t *signals, const sigset_t *before)
{
    const struct aq_wan_lab *wanted = lab->wanted;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        return aq_fail_errno(AREA, "cannot mount a /proc for the lab (in a container: --privileged)");
    AQ_TRY(open_ends(lab));
    AQ_TRY(open_changes(lab));
    lab->signals = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (lab->signals < 0) return aq_fail_errno(AREA, "no signalfd");
    for (uint32_t a = 0; a < wanted->ends; a++)
        for (uint32_t b = 0; b < wanted->ends; b++)
            aq_wan_line_init(&lab->lines[a][b], wanted->seed, a * AQ_WAN_ENDS_MAX + b);
    lab->killed_ns = lab->asked_ns = AQ_NEVER;
    const uint64_t now_ns = aq_clock_ns();
    for (uint32_t i = 0; i < wanted->change_count; i++)
        AQ_TRY(add_change(lab, &wanted->changes[i], now_ns));
    AQ_TRY(apply_due(lab, now_ns));
    AQ_TRY(start_command(lab, before));
    hurry();
    const enum aq_status status = loop(lab);
    if (wanted->stats) print_stats(lab);
    return status;
}

/* Waits for the lab's end; passes on signals to this process. */
static enum aq_status await_lab(pid_t process, const sigset_t *signals, int *code)
{
    siginfo_t info;
    for (;;) {
        const pid_t ended = waitpid(process, code, WNOHANG);
        if (ended == process) break;
        if (ended < 0) return aq_fail_errno(AREA, "cannot wait for the lab");
        const int signal = sigwaitinfo(signals, &info);
        if (signal > 0 && signal != SIGCHLD && was_sent(info.si_code))
            (void)sigqueue(process, PASSED_ON, (union sigval){.sival_int = signal});
    }
    if (!WIFEXITED(*code)) return aq_fail(AQ_ABORTED, AREA, "the lab was ended by signal %d", WTERMSIG(*code));
    *code = WEXITSTATUS(*code);
    return AQ_OK;
}

enum aq_status aq_wan_lab_run(const struct aq_wan_lab *wanted, int *code)
{
    static struct lab lab;
    static const int waited[SIGNALS] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
    const char *cannot = aq_wan_lab_cannot();
    if (cannot) return aq_fail(AQ_NODEV, AREA, "%s", cannot);
    AQ_ASSERT(wanted->ends >= 2 && wanted->ends <= AQ_WAN_ENDS_MAX && wanted->change_count <= AQ_WAN_CHANGES_MAX);
    sigset_t signals, before;
    sigemptyset(&signals);
    for (int i = 0; i < SIGNALS; i++)
        sigaddset(&signals, waited[i]);
    sigaddset(&signals, PASSED_ON);
    int alive[2];
    const int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (own < 0 || pipe2(alive, O_CLOEXEC) != 0) return aq_fail_errno(AREA, "cannot start");
    fflush(NULL);
    (void)sigprocmask(SIG_BLOCK, &signals, &before);
    pid_t process = -1;
    enum aq_status status = AQ_OK;
    if (unshare(CLONE_NEWPID) != 0 || (process = fork()) < 0)
        status = aq_fail_errno(AREA, "no process namespace (CAP_SYS_ADMIN is needed)");
    if (process == 0) {
        close(alive[1]);
        lab = (struct lab){.wanted = wanted, .caller = alive[0]};
        status = lab_process(&lab, &signals, &before);
        _exit(status == AQ_OK ? lab.code : 1);
    }
    (void)setns(own, CLONE_NEWPID); /* children to come are not the lab's */
    close(own);
    close(alive[0]);
    if (status == AQ_OK) status = await_lab(process, &signals, code);
    close(alive[1]);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

/* ---- in the lab ---- */

uint32_t aq_wan_ends(void)
{
    const char *text = getenv("AQPIPE_WANLAB");
    const unsigned long ends = text ? strtoul(text, NULL, 10) : 0;
    return ends <= AQ_WAN_ENDS_MAX ? (uint32_t)ends : 0;
}

/* The lab's descriptor of that number. */
static int lab_open(int number, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/1/fd/%d", number);
    return open(path, flags | O_CLOEXEC);
}

enum aq_status aq_wan_enter(uint32_t end)
{
    if (end >= aq_wan_ends()) return AQ_NOTFOUND;
    const int fd = lab_open(FD_ENDS + (int)end, O_RDONLY);
    if (fd < 0) return AQ_NOTFOUND;
    const enum aq_status status =
        setns(fd, CLONE_NEWNET) == 0 ? AQ_OK : aq_fail_errno(AREA, "cannot enter end %u", end);
    close(fd);
    return status;
}

enum aq_status aq_wan_tell(const struct aq_wan_change *change)
{
    _Static_assert(sizeof *change <= 512, "a pipe takes at once what is short");
    const int fd = aq_wan_ends() ? lab_open(FD_CHANGES, O_WRONLY) : -1;
    if (fd < 0) return AQ_NOTFOUND;
    const bool told = aq_write_all(fd, change, sizeof *change);
    const enum aq_status status = told ? AQ_OK : aq_fail_errno(AREA, "cannot reach the lab");
    close(fd);
    return status;
}
