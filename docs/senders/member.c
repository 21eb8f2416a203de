/* The member of member.sh in C: cc -o member member.c */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t own(const char *name) { return strtoull(getenv(name), NULL, 10); }

static int dial(int kind, const char *ip, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(ip)};
    int made = socket(AF_INET, kind, 0);
    while (connect(made, (struct sockaddr *)&to, sizeof to)) usleep(50000);
    return made;
}

/* One record to the trace port: pairs of value and size in bytes, all big-endian. The check sum is 0: a message is its
   own name and nothing more. */
static void trace(int event, int detail, int origin, int incarnation, uint64_t number, uint64_t value, int size) {
    static int port;
    static uint64_t sent;
    if (!sent) port = dial(SOCK_DGRAM, getenv("ORDERBED_TRACE_IP"), own("ORDERBED_TRACE_PORT"));
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = t.tv_sec * 1000000000ull + t.tv_nsec, fields[][2] = {
        {0x6f74, 2}, {2, 1}, {1, 1}, {own("ORDERBED_GROUP"), 4}, {own("ORDERBED_MEMBER"), 2},
        {own("ORDERBED_INCARNATION"), 2}, {++sent, 4}, {event, 1}, {detail, 1}, {origin, 2}, {incarnation, 2},
        {0, 2}, {number, 8}, {now, 8}, {now, 8}, {value, 8}, {size, 4}, {0, 4}};
    unsigned char bytes[64], *at = bytes;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int left = fields[i][1]; left--;) *at++ = fields[i][0] >> 8 * left;
    send(port, bytes, sizeof bytes, 0);
}

static FILE *orders;
static uint64_t delivered;
static int origin, incarnation, number;

static void deliver(void) {
    if (fscanf(orders, "%d %d %d", &origin, &incarnation, &number) != 3) exit(1);
    trace(4, 1, origin, incarnation, number, ++delivered, 8); /* DELIVER, agreed, at this position */
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint64_t messages = atoi(argv[2]), members = atoi(argv[3]);
    int me = own("ORDERBED_MEMBER"), life = own("ORDERBED_INCARNATION");
    char cue[80];
    trace(1, 0, me, life, 0, 0, 0); /* START */
    int connection = dial(SOCK_STREAM, argv[1], 7000);
    orders = fdopen(connection, "r");
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    if (!fgets(cue, sizeof cue, stdin)) return 1; /* "start" */
    for (int mine = 1; mine <= (int)messages; mine++) {
        trace(2, 0, me, life, mine, 0, 8); /* SUBMIT */
        dprintf(connection, "%d %d %d\n", me, life, mine);
        do deliver(); while (origin != me || incarnation != life || number != mine);
    }
    while (delivered < messages * members) deliver();
    trace(8, 1, me, life, 0, messages, 0); /* STOP, everything done */
    puts("drained");
    while (fgets(cue, sizeof cue, stdin) && strcmp(cue, "stop\n")) continue;
    return 0;
}
