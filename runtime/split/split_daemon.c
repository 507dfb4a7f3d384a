/* split_daemon.c -- see the header. */
#include "split_daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "confine.h"
#include "run_folder.h"

static const char *const AREA = "split";
enum { END_S = 10, FOLDERS_MAX = 24, WORDS_MAX = 10 + 2 * FOLDERS_MAX };

#define WORD(text) ((char *)(uintptr_t)(text))

/* The words of its command line, and the folders of files in them. */
struct words {
    char *of[WORDS_MAX];
    char folders[FOLDERS_MAX][AQ_RUN_PATH_BYTES];
    int count, folder_count;
};

/* Data may be read in the folder of that file, or in that folder. */
static void allow(struct words *words, const char *path)
{
    struct stat about;
    if (!path || words->folder_count == FOLDERS_MAX) return;
    char *folder = words->folders[words->folder_count];
    if (snprintf(folder, AQ_RUN_PATH_BYTES, "%s", path) >= AQ_RUN_PATH_BYTES) return;
    char *slash = strrchr(folder, '/');
    if ((stat(folder, &about) != 0 || !S_ISDIR(about.st_mode)) && slash && slash > folder) *slash = 0;
    for (int i = 0; i < words->folder_count; i++)
        if (strcmp(words->folders[i], folder) == 0) return;
    words->folder_count++;
    words->of[words->count++] = WORD("--allow-data");
    words->of[words->count++] = folder;
}

/* The paths that the daemon and its workers may read and write; where the kernel cannot confine them the daemon still
 * refuses jobs that name others. */
static void words_fill(const struct aq_job *job, const char *const *writes, const char *begin, struct words *words)
{
    static const char *const begins[] = {"aqpiped", "--fd", "3"};
    const char *const others[] = {begin,          job->security.keys, job->model.weights, job->data.tokenizer_path,
                                  job->data.chat, job->data.cache};
    words->count = words->folder_count = 0;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        words->of[words->count++] = WORD(begins[i]);
    for (; *writes; writes++) {
        words->of[words->count++] = WORD("--allow-run");
        words->of[words->count++] = WORD(*writes);
    }
    if (!aq_confine_able()) words->of[words->count++] = WORD("--without-landlock");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        allow(words, others[i]);
    for (uint32_t i = 0; i < job->data.train_count; i++)
        allow(words, job->data.train[i]);
    for (uint32_t i = 0; i < job->data.heldout_count; i++)
        allow(words, job->data.heldout[i]);
    words->of[words->count] = NULL;
}

enum aq_status aq_split_daemon_begin(struct aq_split_daemon *daemon, const char *program, const struct aq_job *job,
                                     const char *const *writes, const char *begin)
{
    int channel[2];
    static struct words words;
    words_fill(job, writes, begin, &words);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0)
        return aq_fail_errno(AREA, "cannot open a channel to the daemon");
    enum aq_status status = aq_control_open(channel[0], &daemon->control);
    if (status != AQ_OK) {
        close(channel[0]);
    } else {
        aq_control_queue(daemon->control, AQ_CONTROL_LINE_BYTES_MAX + (1 << 20));
        const struct aq_child child = {.program = program,
                                       .arguments = (const char *const *)words.of,
                                       .fds = {{AQ_CHILD_NULL, 0}, {channel[1], AQ_CONTROL_FD}},
                                       .fd_count = 2};
        status = aq_child_start(&child, program, &daemon->pid);
    }
    close(channel[1]);
    return status;
}

void aq_split_daemon_end(struct aq_split_daemon *daemon)
{
    const struct timespec moment = {.tv_nsec = 2 * 1000 * 1000};
    aq_control_close(daemon->control); /* it ends with its connection, after it has reaped its workers */
    daemon->control = NULL;
    const uint64_t deadline = aq_clock_after(END_S * UINT64_C(1000000000));
    while (daemon->pid > 0) {
        const pid_t got = waitpid(daemon->pid, NULL, WNOHANG);
        if (got != 0) break;
        if (aq_clock_ns() > deadline) {
            kill(daemon->pid, SIGKILL);
            while (waitpid(daemon->pid, NULL, 0) == -1 && errno == EINTR)
                continue;
            break;
        }
        nanosleep(&moment, NULL);
    }
    daemon->pid = 0;
}
