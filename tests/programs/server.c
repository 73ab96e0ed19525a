/* A small server for tests of live processes: `server SOCKET [--seconds N]` listens on a Unix socket, one thread for
 * each connection, one request and one answer a line:
 *   sum SEED COUNT   the checksum of COUNT steps from SEED, computed by switches and 256 generated functions
 *   plain SEED COUNT the same number computed by a formula, for comparison
 *   stats            requests served so far, by all connections
 *   ping             "pong"
 *   quit             ends the server with status 42
 * Anything else is answered with "error". Without SOCKET it serves itself over a socket pair and checks the answers.
 * flags: -pthread */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#define FUNCTIONS 256

static atomic_ulong served;

/* Each function is a small switch of its own with constants of its own, so that the code is large. */
#define FUNCTION(n)                                                             \
    NOINLINE static uint32_t step_##n(uint32_t x) {                             \
        switch (x >> 11 & 7) {                                                  \
        case 0: OPAQUE(x); return x * (2u * (n) + 1u) + 1u;                     \
        case 1: OPAQUE(x); return x ^ (x >> 3) ^ (n);                           \
        case 2: OPAQUE(x); return x + 0x9e3779b9u * (n);                        \
        case 3: OPAQUE(x); return (x << 5 | x >> 27) + (n);                     \
        case 4: OPAQUE(x); return ~x - (n);                                     \
        case 5: OPAQUE(x); return x * 5u ^ (n);                                 \
        case 6: OPAQUE(x); return x - 77u * (n);                                \
        default: OPAQUE(x); return x ^ (x << 7) ^ (n);                          \
        }                                                                       \
    }
#define HEX(X, p) X(p##0) X(p##1) X(p##2) X(p##3) X(p##4) X(p##5) X(p##6) X(p##7) \
    X(p##8) X(p##9) X(p##a) X(p##b) X(p##c) X(p##d) X(p##e) X(p##f)
#define ALL(X) HEX(X, 0x0) HEX(X, 0x1) HEX(X, 0x2) HEX(X, 0x3) HEX(X, 0x4) HEX(X, 0x5) HEX(X, 0x6) HEX(X, 0x7) \
    HEX(X, 0x8) HEX(X, 0x9) HEX(X, 0xa) HEX(X, 0xb) HEX(X, 0xc) HEX(X, 0xd) HEX(X, 0xe) HEX(X, 0xf)
ALL(FUNCTION)

NOINLINE static uint32_t dispatch(uint32_t x, unsigned n) {
    switch (n) {
#define CASE(n) case n: return step_##n(x);
        ALL(CASE)
    default: return 0;
    }
}

static uint32_t formula(uint32_t x, uint32_t n) {
    uint32_t results[8] = {x * (2u * n + 1u) + 1u, x ^ (x >> 3) ^ n, x + 0x9e3779b9u * n, (x << 5 | x >> 27) + n,
                           ~x - n, x * 5u ^ n, x - 77u * n, x ^ (x << 7) ^ n};
    return results[x >> 11 & 7];
}

static uint32_t checksum(uint32_t seed, unsigned count, uint32_t (*step)(uint32_t, unsigned)) {
    uint32_t x = seed;
    for (unsigned i = 0; i < count; i++) x = step(x, (x ^ i) % FUNCTIONS) + i;
    return x;
}

static uint32_t plain_step(uint32_t x, unsigned n) { return formula(x, n); }

/* The answer to one line, without the line end. Returns its length. */
static int answer(const char *line, char *reply, size_t room) {
    unsigned seed, count;
    atomic_fetch_add(&served, 1);
    if (sscanf(line, "sum %u %u", &seed, &count) == 2) return snprintf(reply, room, "%u", checksum(seed, count, dispatch));
    if (sscanf(line, "plain %u %u", &seed, &count) == 2)
        return snprintf(reply, room, "%u", checksum(seed, count, plain_step));
    if (strcmp(line, "stats") == 0) return snprintf(reply, room, "%lu", atomic_load(&served));
    if (strcmp(line, "ping") == 0) return snprintf(reply, room, "pong");
    if (strcmp(line, "quit") == 0) _exit(SUCCESS);
    return snprintf(reply, room, "error");
}

static void *serve(void *argument) {
    int connection = (int)(intptr_t)argument;
    FILE *in = fdopen(connection, "r");
    char line[256], reply[64];
    CHECK(in != NULL);
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        int n = answer(line, reply, sizeof reply - 1);
        reply[n++] = '\n';
        if (send(connection, reply, (size_t)n, MSG_NOSIGNAL) != n) break;
    }
    fclose(in);
    return NULL;
}

static void start(int connection) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve, (void *)(intptr_t)connection) == 0);
    CHECK(pthread_detach(thread) == 0);
}

static void end_on_alarm(int signal) {
    (void)signal;
    _exit(SUCCESS);
}

static int listen_on(const char *path, double seconds) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    CHECK(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    unlink(path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 64) == 0);
    if (seconds > 0) {
        signal(SIGALRM, end_on_alarm);
        alarm(seconds < 1 ? 1 : (unsigned)seconds);
    }
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection >= 0) start(connection);
    }
}

static int ask(int connection, const char *request, char *reply, size_t room) {
    size_t have = 0;
    CHECK(write(connection, request, strlen(request)) == (ssize_t)strlen(request));
    do {
        ssize_t n = read(connection, reply + have, room - 1 - have);
        CHECK(n > 0);
        have += (size_t)n;
    } while (reply[have - 1] != '\n');
    reply[have - 1] = 0;
    return 1;
}

static void one_round(unsigned round) {
    int ends[2];
    char request[64], reply[64], expected[64];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    start(ends[1]);
    for (unsigned i = 0; i < 50; i++) {
        snprintf(request, sizeof request, "sum %u 500\n", round * 1000 + i);
        ask(ends[0], request, reply, sizeof reply);
        snprintf(expected, sizeof expected, "%u", checksum(round * 1000 + i, 500, plain_step));
        CHECK(strcmp(reply, expected) == 0);
    }
    ask(ends[0], "nonsense\n", reply, sizeof reply);
    CHECK(strcmp(reply, "error") == 0);
    close(ends[0]);
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] != '-') return listen_on(argv[1], option(argc, argv, "--seconds", 0));
    return run_rounds(argc, argv, one_round);
}
