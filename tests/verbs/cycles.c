/* perftest finds the speed of the processor's cycle counter by regression against gettimeofday(), and
 * prints "inf" where other work on the machine disturbs that. Built as a shared library and loaded
 * before it (LD_PRELOAD), this gettimeofday() is the counter itself, at CYCLES_MHZ; built as a program
 * and run on a machine whose clock is good, it prints that number. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static uint64_t cycles(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t count;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
#endif
}

#ifdef PROGRAM
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* The shortest of several looks at both is the least disturbed. */
static void look(double *time, uint64_t *count)
{
    double shortest = 1;
    for (int i = 0; i < 1000; i++) {
        double before = seconds();
        uint64_t between = cycles();
        double after = seconds();
        if (after - before < shortest) {
            shortest = after - before;
            *time = (before + after) / 2;
            *count = between;
        }
    }
}

int main(void)
{
    double first_time = 0, last_time = 0;
    uint64_t first = 0, last = 0;
    look(&first_time, &first);
    nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    look(&last_time, &last);
    printf("%.3f\n", (last - first) / (last_time - first_time) / 1e6);
    return 0;
}
#else
int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    static double mhz;
    (void)zone;
    if (mhz == 0) {
        const char *given = getenv("CYCLES_MHZ");
        mhz = given ? atof(given) : 1000;
    }
    uint64_t microseconds = cycles() / mhz;
    now->tv_sec = microseconds / 1000000;
    now->tv_usec = microseconds % 1000000;
    return 0;
}
#endif
