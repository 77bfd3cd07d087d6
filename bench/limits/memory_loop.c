/* The program with which `caravan bench limits` compares its figures of memory: loads that each wait for the one before, on
 * one core, and a sum in order, on several. Its ring of lines comes from a shuffle, and not from the
 * arithmetic that Caravan uses, so that neither order is at an advantage unnoticed.
 *
 *     memory_loop latency BYTES RUN_NS CORE
 *     memory_loop bandwidth BYTES RUN_NS CORE...
 *
 * Prints the nanoseconds of a load, or the bytes a second of all cores, each by its median batch. `caravan bench limits` compiles and runs it. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE_WORDS = 8, LOADS = 256, BATCHES_MAX = 1 << 20, PASS_WORDS = 1 << 17, HUGE_BYTES = 2 << 20, CORES_MAX = 1024 };

static uint64_t *words;
static size_t count;
static uint64_t run_ns;
static pthread_barrier_t ready;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void keep_on(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}

static uint64_t random_below(uint64_t limit) {
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

/* Sattolo's shuffle: a single ring through all lines. */
static void lay_ring(void) {
    size_t lines = count / LINE_WORDS;
    for (size_t line = 0; line < lines; line++) words[line * LINE_WORDS] = line * LINE_WORDS;
    for (size_t line = lines - 1; line > 0; line--) {
        size_t other = random_below(line);
        uint64_t held = words[line * LINE_WORDS];
        words[line * LINE_WORDS] = words[other * LINE_WORDS];
        words[other * LINE_WORDS] = held;
    }
}

static int order(const void *a, const void *b) {
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return (first > second) - (first < second);
}

/* Each batch is timed, because other programs make some of them long. */
struct batches {
    uint64_t *times, begun, before;
    size_t number;
};

static struct batches begin(void) {
    struct batches batches = { .times = malloc(BATCHES_MAX * sizeof(uint64_t)) };
    if (!batches.times) fail("malloc");
    batches.begun = batches.before = now_ns();
    return batches;
}

static int goes_on(struct batches *batches) {
    uint64_t now = now_ns();
    batches->times[batches->number++] = now - batches->before;
    batches->before = now;
    return now - batches->begun < run_ns && batches->number < BATCHES_MAX;
}

static double median(struct batches *batches) {
    qsort(batches->times, batches->number, sizeof *batches->times, order);
    return (double)batches->times[batches->number / 2];
}

static double latency_ns(void) {
    uint64_t at = 0;
    struct batches batches = begin();
    do {
        for (int i = 0; i < LOADS; i++) at = words[at];
    } while (goes_on(&batches));
    /* The last index is used, so that no load can be left out. */
    __asm__ volatile("" : : "r"(at));
    return median(&batches) / LOADS;
}

#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default"), optimize("O3")))
#endif
static uint64_t sum(const uint64_t *from, size_t length) {
    uint64_t lanes[32] = { 0 }, total = 0;
    for (size_t i = 0; i + 32 <= length; i += 32)
        for (int lane = 0; lane < 32; lane++) lanes[lane] += from[i + lane];
    for (int lane = 0; lane < 32; lane++) total += lanes[lane];
    return total;
}

struct walker {
    pthread_t thread;
    int core;
    size_t first;
    double bytes_per_s;
};

static void *stream(void *argument) {
    struct walker *walker = argument;
    keep_on(walker->core);
    size_t at = walker->first;
    uint64_t total = 0;
    pthread_barrier_wait(&ready);
    struct batches batches = begin();
    do {
        total += sum(words + at, PASS_WORDS);
        at = (at + PASS_WORDS) % count;
    } while (goes_on(&batches));
    __asm__ volatile("" : : "r"(total));
    walker->bytes_per_s = PASS_WORDS * sizeof *words * 1e9 / median(&batches);
    return NULL;
}

static double bandwidth(char **cores, int number) {
    static struct walker walkers[CORES_MAX];
    double all = 0;
    if (pthread_barrier_init(&ready, NULL, (unsigned)number)) fail("pthread_barrier_init");
    for (int i = 0; i < number; i++) {
        walkers[i].core = atoi(cores[i]);
        walkers[i].first = count / (size_t)number * (size_t)i / PASS_WORDS * PASS_WORDS;
        if (pthread_create(&walkers[i].thread, NULL, stream, &walkers[i])) fail("pthread_create");
    }
    for (int i = 0; i < number; i++) {
        pthread_join(walkers[i].thread, NULL);
        all += walkers[i].bytes_per_s;
    }
    return all;
}

int main(int argc, char **argv) {
    if (argc < 5 || argc - 4 > CORES_MAX) {
        fprintf(stderr, "memory_loop latency|bandwidth BYTES RUN_NS CORE...\n");
        return 2;
    }
    size_t bytes = strtoull(argv[2], NULL, 10);
    run_ns = strtoull(argv[3], NULL, 10);
    count = bytes / sizeof *words;
    keep_on(atoi(argv[4]));
    char *memory = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    /* A kernel without huge pages refuses this; Caravan then has none either. */
    (void)madvise(memory, bytes + HUGE_BYTES, MADV_HUGEPAGE);
    words = (uint64_t *)(((uintptr_t)memory + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    lay_ring();
    printf("%f\n", strcmp(argv[1], "latency") ? bandwidth(argv + 4, argc - 4) : latency_ns());
    return 0;
}
