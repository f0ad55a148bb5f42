/* Preloaded, it makes every process do 2.5 times the work: after each 10 ms of its CPU time, one of its threads computes
   for 15 ms more. This is CPU time, so that it also holds on a busy machine. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define NS_PER_S 1000000000L
#define WORK_NS 10000000L
#define MORE_NS 15000000L

static timer_t timer;

static void rearm(void) {
    struct itimerspec once = {{0, 0}, {0, WORK_NS}};
    timer_settime(timer, 0, &once, NULL);
}

static long cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void work_more(int number) {
    int saved = errno;
    long end = cpu_ns() + MORE_NS;
    (void)number;
    while (cpu_ns() < end)
        for (volatile int i = 0; i < 100000; i++) {}
    rearm();
    errno = saved;
}

/* A fork does not inherit the timer. An exec deletes it, and the constructor runs again. */
static void begin(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) == 0) rearm();
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_handler = work_more, .sa_flags = SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
    pthread_atfork(NULL, NULL, begin);
    begin();
}
