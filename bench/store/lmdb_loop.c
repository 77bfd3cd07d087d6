/* The program with which `caravan bench store` measures LMDB: it writes keys of 16 bytes with values of 32 into a
 * database, or looks random ones up for a while.
 *
 *     lmdb_loop FOLDER fill KEYS
 *     lmdb_loop FOLDER get KEYS RUN_NS BATCH
 *     lmdb_loop FOLDER put KEYS RUN_NS BATCH
 *
 * A transaction has BATCH lookups or writes. Writes are not synchronized with a disk: reads and writes concern the
 * kernel's cache of the file. `fill` prints the bytes of the database's file; the others print operations, nanoseconds, and the
 * processor's nanoseconds. Before it counts, `get` reads each value once, so that all pages are mapped. */

#include <inttypes.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { KEY_BYTES = 16, VALUE_BYTES = 32, FILL_BATCH = 10000 };

static void check(int code, const char *what) {
    if (code == MDB_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, mdb_strerror(code));
    exit(1);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* A cheap random number (splitmix64). */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Writes "key:" and twelve digits. */
static void make_key(char *key, uint64_t number) {
    memcpy(key, "key:", 4);
    for (int place = KEY_BYTES - 1; place >= 4; place--, number /= 10) key[place] = (char)('0' + number % 10);
}

static void put(MDB_txn *transaction, MDB_dbi table, uint64_t number, int flags) {
    char key_bytes[KEY_BYTES], value_bytes[VALUE_BYTES];
    make_key(key_bytes, number);
    memset(value_bytes, 'v', VALUE_BYTES);
    MDB_val key = {KEY_BYTES, key_bytes}, value = {VALUE_BYTES, value_bytes};
    check(mdb_put(transaction, table, &key, &value, flags), "mdb_put");
}

/* Returns a byte of the value, so that the value is read. */
static unsigned get(MDB_txn *transaction, MDB_dbi table, uint64_t number) {
    char key_bytes[KEY_BYTES], copy[VALUE_BYTES];
    make_key(key_bytes, number);
    MDB_val key = {KEY_BYTES, key_bytes}, value;
    check(mdb_get(transaction, table, &key, &value), "mdb_get");
    memcpy(copy, value.mv_data, VALUE_BYTES);
    return (unsigned char)copy[VALUE_BYTES - 1];
}

int main(int count, char **words) {
    if (count < 4) return 2;
    const char *folder = words[1], *task = words[2];
    uint64_t keys = strtoull(words[3], NULL, 10);
    MDB_env *env;
    MDB_txn *transaction;
    MDB_dbi table;
    check(mdb_env_create(&env), "mdb_env_create");
    check(mdb_env_set_mapsize(env, (size_t)(64 << 20) + 512 * keys), "mdb_env_set_mapsize");
    check(mdb_env_open(env, folder, MDB_NOSYNC | MDB_WRITEMAP | MDB_NORDAHEAD, 0600), "mdb_env_open");
    check(mdb_txn_begin(env, NULL, 0, &transaction), "mdb_txn_begin");
    check(mdb_dbi_open(transaction, NULL, 0, &table), "mdb_dbi_open");
    check(mdb_txn_commit(transaction), "mdb_txn_commit");
    if (!strcmp(task, "fill")) {
        for (uint64_t first = 0; first < keys; first += FILL_BATCH) {
            check(mdb_txn_begin(env, NULL, 0, &transaction), "mdb_txn_begin");
            for (uint64_t n = first; n < keys && n < first + FILL_BATCH; n++) put(transaction, table, n, MDB_APPEND);
            check(mdb_txn_commit(transaction), "mdb_txn_commit");
        }
        MDB_stat pages;
        check(mdb_env_stat(env, &pages), "mdb_env_stat");
        size_t used = pages.ms_branch_pages + pages.ms_leaf_pages + pages.ms_overflow_pages;
        printf("%zu\n", used * pages.ms_psize);
        mdb_env_close(env);
        return 0;
    }
    if (count < 6) return 2;
    uint64_t run_ns = strtoull(words[4], NULL, 10), batch = strtoull(words[5], NULL, 10);
    uint64_t state = clock_ns(CLOCK_MONOTONIC), done = 0;
    volatile unsigned sum = 0;
    int is_get = !strcmp(task, "get");
    if (is_get) {
        check(mdb_txn_begin(env, NULL, MDB_RDONLY, &transaction), "mdb_txn_begin");
        MDB_cursor *cursor;
        MDB_val key, value;
        check(mdb_cursor_open(transaction, table, &cursor), "mdb_cursor_open");
        while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == MDB_SUCCESS) sum += *(unsigned char *)value.mv_data;
        mdb_cursor_close(cursor);
        mdb_txn_reset(transaction);
    }
    uint64_t begin = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), now = begin;
    while (now - begin < run_ns) {
        if (is_get) {
            check(mdb_txn_renew(transaction), "mdb_txn_renew");
            for (uint64_t n = 0; n < batch; n++) sum += get(transaction, table, next_random(&state) % keys);
            mdb_txn_reset(transaction);
        } else {
            check(mdb_txn_begin(env, NULL, 0, &transaction), "mdb_txn_begin");
            for (uint64_t n = 0; n < batch; n++) put(transaction, table, next_random(&state) % keys, 0);
            check(mdb_txn_commit(transaction), "mdb_txn_commit");
        }
        done += batch;
        now = clock_ns(CLOCK_MONOTONIC);
    }
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", done, now - begin, cpu);
    if (is_get) mdb_txn_abort(transaction);
    mdb_env_close(env);
    return 0;
}
