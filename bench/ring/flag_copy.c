/* The program with which `caravan bench ring` compares the ring: it copies records through slots in
 * shared memory, each with a flag that says which side owns it. It does not check what the other process
 * writes, it does not sleep, and all records have one size. So it shows the cost of the memory alone.
 *
 *     flag_copy stream|echo PRODUCER_CORE CONSUMER_CORE RECORDS
 *
 * stream: the producer fills slots as they become free. echo: it waits until each record comes back.
 * It prints the nanoseconds from the first record until the consumer has taken the last one, or the last
 * one has come back. `caravan bench ring` compiles and runs it. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { RECORD_BYTES = 64, SLOTS = 1024 };

struct slot {
    _Atomic uint32_t full;
    uint8_t bytes[RECORD_BYTES];
};

/* One direction. Each has its own pages. */
struct lane {
    _Alignas(4096) struct slot slots[SLOTS];
};

struct shared {
    struct lane there, back;
    _Alignas(4096) _Atomic uint32_t ready;
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

static void put(struct lane *lane, uint64_t n, const uint8_t *record) {
    struct slot *slot = &lane->slots[n % SLOTS];
    while (atomic_load_explicit(&slot->full, memory_order_acquire)) pause_briefly();
    memcpy(slot->bytes, record, RECORD_BYTES);
    atomic_store_explicit(&slot->full, 1, memory_order_release);
}

static void take(struct lane *lane, uint64_t n, uint8_t *record) {
    struct slot *slot = &lane->slots[n % SLOTS];
    while (!atomic_load_explicit(&slot->full, memory_order_acquire)) pause_briefly();
    memcpy(record, slot->bytes, RECORD_BYTES);
    atomic_store_explicit(&slot->full, 0, memory_order_release);
}

static void check(const uint8_t *record, uint64_t n) {
    uint64_t number;
    memcpy(&number, record, sizeof number);
    if (number != n) {
        fprintf(stderr, "expected record %llu, received %llu\n", (unsigned long long)n, (unsigned long long)number);
        exit(1);
    }
}

static void consume(struct shared *shared, uint64_t records, int echo) {
    uint8_t record[RECORD_BYTES];
    atomic_store_explicit(&shared->ready, 1, memory_order_release);
    for (uint64_t n = 0; n < records; n++) {
        take(&shared->there, n, record);
        check(record, n);
        if (echo) put(&shared->back, n, record);
    }
}

static void produce(struct shared *shared, uint64_t records, int echo) {
    uint8_t record[RECORD_BYTES] = {0};
    for (uint64_t n = 0; n < records; n++) {
        memcpy(record, &n, sizeof n);
        put(&shared->there, n, record);
        if (echo) {
            take(&shared->back, n, record);
            check(record, n);
        }
    }
    struct slot *last = &shared->there.slots[(records - 1) % SLOTS];
    while (atomic_load_explicit(&last->full, memory_order_acquire)) pause_briefly();
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: flag_copy stream|echo PRODUCER_CORE CONSUMER_CORE RECORDS\n");
        return 2;
    }
    int echo = strcmp(words[1], "echo") == 0;
    uint64_t records = strtoull(words[4], NULL, 10);
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (shared == MAP_FAILED) fail("mmap");
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        /* The consumer must not keep spinning when the producer has ended. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail("prctl");
        if (getppid() != parent) return 1;
        pin(atoi(words[3]));
        consume(shared, records, echo);
        return 0;
    }
    pin(atoi(words[2]));
    while (!atomic_load_explicit(&shared->ready, memory_order_acquire)) {
        if (waitpid(child, NULL, WNOHANG) != 0) fail("the consumer");
    }
    int64_t start = now_ns();
    produce(shared, records, echo);
    int64_t took = now_ns() - start;
    int status;
    if (waitpid(child, &status, 0) < 0 || status != 0) fail("the consumer");
    printf("%lld\n", (long long)took);
    return 0;
}
