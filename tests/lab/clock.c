/* A wall clock that is wrong: the lab preloads it into every program of a host whose clock is skewed.
 *
 * The skew (ns) lies in a file that is mapped, so that a step of the clock moves running programs too.
 * Monotonic clocks stay true, as on a machine whose wall clock was set wrong. Not covered: file times,
 * which are the kernel's, and programs that ask the kernel without libc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define PAGE 4096

static volatile long long *page;

__attribute__((constructor)) static void look(void) {
    int handle = open("/etc/lab-clock", O_RDONLY | O_CLOEXEC);
    void *found = handle < 0 ? MAP_FAILED : mmap(0, PAGE, PROT_READ, MAP_SHARED, handle, 0);
    if (found != MAP_FAILED) page = found;
    if (handle >= 0) close(handle);
}

static struct timespec moved(struct timespec t, long long ns) {
    long long all = t.tv_sec * SECOND + t.tv_nsec + ns;
    return (struct timespec){.tv_sec = all / SECOND, .tv_nsec = all % SECOND};
}

static long long skew(void) { return page ? *page : 0; }

int clock_gettime(clockid_t clock, struct timespec *t) {
    int code = syscall(SYS_clock_gettime, clock, t);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *t = moved(*t, skew());
    return code;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *t = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* A deadline by the wrong clock means another moment to the kernel; one that is no date is monotonic. */
static struct timespec true_deadline(const struct timespec *t) {
    return t->tv_sec > (1 << 30) ? moved(*t, -skew()) : *t;
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec until = true_deadline(t);
    return real(c, m, &until);
}

int sem_timedwait(sem_t *s, const struct timespec *t) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec until = true_deadline(t);
    return real(s, &until);
}
