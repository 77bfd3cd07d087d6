/* The program with which `caravan bench engine --only swap` compares the engine: one process writes 56
 * bytes, and another reads them, through slots of 64 bytes that change their owner. A ring of slot numbers
 * in each direction carries full slots there and empty ones back. The first 8 bytes of a slot say who owns
 * it, and each change of owner writes them. There is no app, no queue, no sleep and no recovery from a
 * crash. So it shows the cost of the memory alone.
 *
 *     swap_loop PRODUCER_CORE CONSUMER_CORE WARM_UP_NS RUN_NS
 *
 * Prints the messages that the consumer took within RUN_NS, the nanoseconds that really passed
 * meanwhile, and the processor's nanoseconds of both processes. `caravan bench engine` compiles
 * and runs it. */

#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A side publishes its position after at most BATCH slots, as in the engine. */
enum { WORDS = 7, SLOTS = 1024, BATCH = 128 };
enum owner { PRODUCER = 1, CONSUMER, FULL, EMPTY };

struct slot {
    _Alignas(64) _Atomic uint64_t owner;
    uint64_t payload[WORDS];
};

/* head <= tail <= head + SLOTS; each side writes one of them, which has its own cache line. */
struct ring {
    _Alignas(4096) _Atomic uint64_t tail;
    _Alignas(128) _Atomic uint64_t head;
    _Alignas(128) uint32_t items[SLOTS];
};

struct shared {
    struct ring full, empty;
    struct slot slots[SLOTS];
    _Alignas(4096) _Atomic uint32_t ready;
    _Atomic uint32_t stop;
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

static int64_t clock_ns(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0) fail("clock_gettime");
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static uint64_t loaded(_Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

static void stored(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

/* The accesses can be relaxed: a side reads a slot only after the ring has passed on its number. */
static void owned_by(struct slot *slot, enum owner from, enum owner to) {
    if (atomic_load_explicit(&slot->owner, memory_order_relaxed) != from) {
        fprintf(stderr, "a slot has an unexpected owner\n");
        exit(1);
    }
    atomic_store_explicit(&slot->owner, to, memory_order_relaxed);
}

static void consume(struct shared *shared) {
    struct ring *full = &shared->full, *empty = &shared->empty;
    uint64_t taken = 0, given = 0;
    atomic_store_explicit(&shared->ready, 1, memory_order_release);
    for (;;) {
        uint64_t there = loaded(&full->tail) - taken;
        if (there == 0) {
            if (atomic_load_explicit(&shared->stop, memory_order_acquire)) return;
            pause_briefly();
            continue;
        }
        if (there > BATCH) there = BATCH;
        /* The other ring always has room, because it has a place for each slot. */
        for (uint64_t end = taken + there; taken < end; taken++) {
            uint32_t index = full->items[taken % SLOTS];
            struct slot *slot = &shared->slots[index];
            owned_by(slot, FULL, CONSUMER);
            uint64_t sum = 0;
            for (int word = 0; word < WORDS; word++) sum += slot->payload[word];
            if (sum != WORDS * taken + WORDS * (WORDS - 1) / 2) {
                fprintf(stderr, "message %llu has wrong contents\n", (unsigned long long)taken);
                exit(1);
            }
            owned_by(slot, CONSUMER, EMPTY);
            empty->items[given++ % SLOTS] = index;
        }
        stored(&full->head, taken);
        stored(&empty->tail, given);
    }
}

/* The producer's side. */
struct producer {
    struct shared *shared;
    uint64_t sent, collected;
    uint32_t free[SLOTS];
    uint32_t free_count;
};

static void collect(struct producer *self) {
    struct ring *empty = &self->shared->empty;
    for (uint64_t end = loaded(&empty->tail); self->collected < end; self->collected++) {
        uint32_t index = empty->items[self->collected % SLOTS];
        owned_by(&self->shared->slots[index], EMPTY, PRODUCER);
        self->free[self->free_count++] = index;
    }
    stored(&empty->head, self->collected);
}

static void produce_batch(struct producer *self) {
    struct ring *full = &self->shared->full;
    if (self->free_count < BATCH) collect(self);
    uint32_t count = self->free_count < BATCH ? self->free_count : BATCH;
    if (count == 0) pause_briefly();
    for (uint32_t n = 0; n < count; n++) {
        uint32_t index = self->free[--self->free_count];
        struct slot *slot = &self->shared->slots[index];
        for (int word = 0; word < WORDS; word++) slot->payload[word] = self->sent + word;
        owned_by(slot, PRODUCER, FULL);
        full->items[self->sent++ % SLOTS] = index;
    }
    stored(&full->tail, self->sent);
}

static void produce_for(struct producer *self, int64_t ns) {
    int64_t end = clock_ns(CLOCK_MONOTONIC) + ns;
    while (clock_ns(CLOCK_MONOTONIC) < end) {
        for (int batch = 0; batch < 64; batch++) produce_batch(self);
    }
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: swap_loop PRODUCER_CORE CONSUMER_CORE WARM_UP_NS RUN_NS\n");
        return 2;
    }
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (shared == MAP_FAILED) fail("mmap");
    static struct producer producer;
    producer.shared = shared;
    for (uint32_t index = 0; index < SLOTS; index++) {
        atomic_store(&shared->slots[index].owner, PRODUCER);
        producer.free[producer.free_count++] = index;
    }
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        /* The consumer must not keep spinning when the producer has ended. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail("prctl");
        if (getppid() != parent) return 1;
        pin(atoi(words[2]));
        consume(shared);
        return 0;
    }
    pin(atoi(words[1]));
    clockid_t childs;
    if (clock_getcpuclockid(child, &childs) != 0) fail("clock_getcpuclockid");
    while (!atomic_load_explicit(&shared->ready, memory_order_acquire)) {
        if (waitpid(child, NULL, WNOHANG) != 0) fail("the consumer");
    }
    produce_for(&producer, atoll(words[3]));
    uint64_t before = loaded(&shared->full.head), taken;
    int64_t start = clock_ns(CLOCK_MONOTONIC);
    int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) + clock_ns(childs);
    /* If other work occupies the consumer's core, continue until the consumer has taken something. */
    do produce_for(&producer, atoll(words[4]));
    while ((taken = loaded(&shared->full.head) - before) == 0);
    int64_t took = clock_ns(CLOCK_MONOTONIC) - start;
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) + clock_ns(childs) - cpu;
    atomic_store_explicit(&shared->stop, 1, memory_order_release);
    int status;
    if (waitpid(child, &status, 0) < 0 || status != 0) fail("the consumer");
    printf("%llu %lld %lld\n", (unsigned long long)taken, (long long)took, (long long)cpu);
    return 0;
}
