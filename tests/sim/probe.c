/*
 * probe.c -- small programs for test_simulator: each does one thing that the simulated world must get right.
 *
 *     sim_probe hang | poll | hour | spin | serve PORT | ask PORT | child | two
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int counter;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int stream(const char *port, bool listens)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    at.sin_addr.s_addr = htonl(0x7f000001);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!listens) return connect(fd, (struct sockaddr *)&at, sizeof at) == 0 ? fd : -1;
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 8) != 0) return -1;
    return accept(fd, NULL, NULL);
}

/* What it is told, and when, until the other end hangs up. */
static int serve(const char *port)
{
    char byte;
    const int fd = stream(port, true);
    while (fd >= 0 && read(fd, &byte, 1) == 1) {
        printf("%c %.3f\n", byte, now());
        fflush(stdout);
    }
    return fd < 0;
}

static int ask(const char *port)
{
    const struct timespec second = {.tv_sec = 1};
    const int fd = stream(port, false);
    for (char byte = 'a'; byte < 'f'; byte++) {
        if (fd < 0 || write(fd, &byte, 1) != 1) return 1;
        printf("%c %.3f\n", byte, now());
        nanosleep(&second, NULL);
    }
    return 0;
}

static void *count_up(void *context)
{
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_lock(&mutex);
        const int seen = counter;
        (void)now(); /* a moment in which another could have come */
        (void)poll(NULL, 0, 0);
        counter = seen + 1;
        pthread_mutex_unlock(&mutex);
    }
    return context;
}

static int two(void)
{
    pthread_t threads[2];
    unsigned char chance[4];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, count_up, NULL) != 0) return 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    if (getrandom(chance, sizeof chance, 0) != sizeof chance) return 1;
    printf("%d %02x%02x%02x%02x\n", counter, chance[0], chance[1], chance[2], chance[3]);
    return 0;
}

static int child(void)
{
    int how = 0;
    const pid_t self = getpid(), pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    kill(pid, SIGKILL);
    const pid_t got = waitpid(pid, &how, 0);
    printf("%d %d %d\n", got == pid && pid > self, WIFSIGNALED(how), WTERMSIG(how));
    return 0;
}

int main(int count, char **arguments)
{
    const char *const what = count > 1 ? arguments[1] : "", *const port = count > 2 ? arguments[2] : "0";
    if (strcmp(what, "serve") == 0) return serve(port);
    if (strcmp(what, "ask") == 0) return ask(port);
    if (strcmp(what, "child") == 0) return child();
    if (strcmp(what, "two") == 0) return two();
    if (strcmp(what, "poll") == 0) return poll(NULL, 0, -1);
    if (strcmp(what, "hang") == 0) return pthread_mutex_lock(&mutex) + pthread_mutex_lock(&mutex);
    const double begin = now();
    const struct timespec hour = {.tv_sec = 3600};
    if (strcmp(what, "hour") == 0) nanosleep(&hour, NULL);
    while (strcmp(what, "spin") == 0 && now() < begin + 0.01)
        continue;
    printf("%.3f\n", now() - begin);
    return 0;
}
