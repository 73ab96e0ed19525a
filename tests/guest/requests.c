/*
 * Requests to a server on the loopback interface, by a number of connections, of which each has one under way.
 *
 *	requests redis|memcached|http|postgres PORT CONNECTIONS WARM COUNT
 *
 * The first WARM ones are not counted; then COUNT ones are, in a window for who counts what the guest executes. With a
 * COUNT of 0 there is no end: SIGTERM ends it. Replies are compared; at a wrong one it ends with 1 and words.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../kernel/plugin/marks.h"

#define MOST_CONNECTIONS 256
#define ROOM 16384
/* Keys, and rows of a table, that requests are about. */
#define KEYS 1000
/* Bytes of a value of memcached. */
#define VALUE 100

struct connection {
	int socket;
	unsigned long number;
	size_t length;
	char reply[ROOM];
};

/* What a server is asked, and how long its reply is. */
struct protocol {
	const char *name;
	/* Writes request `number`; its length. */
	size_t (*ask)(char *room, unsigned long number);
	/* The length of the reply to request `number`; 0 if it is not whole yet, -1 if it is wrong. */
	long (*whole)(const char *reply, size_t length, unsigned long number);
};

static struct connection connections[MOST_CONNECTIONS];

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "requests: %s (errno %d)\n", what, errno);
	_exit(1);
}

static unsigned long key(unsigned long number)
{
	return number * 7919 % KEYS;
}

/* A reply that is always the same. */
static long exactly(const char *wanted, const char *reply, size_t length)
{
	size_t all = strlen(wanted);

	if (memcmp(reply, wanted, length < all ? length : all))
		return -1;
	return length >= all ? (long)all : 0;
}

static size_t ask_redis(char *room, unsigned long number)
{
	/* All keys are set first. */
	if (number < KEYS || number % 2)
		return sprintf(room, "*3\r\n$3\r\nSET\r\n$16\r\nkey:%012lu\r\n$3\r\nxxx\r\n", key(number));
	return sprintf(room, "*2\r\n$3\r\nGET\r\n$16\r\nkey:%012lu\r\n", key(number));
}

static long whole_redis(const char *reply, size_t length, unsigned long number)
{
	return exactly(number < KEYS || number % 2 ? "+OK\r\n" : "$3\r\nxxx\r\n", reply, length);
}

static const char *value(void)
{
	static char text[VALUE + 1];

	if (!text[0])
		memset(text, 'v', VALUE);
	return text;
}

static size_t ask_memcached(char *room, unsigned long number)
{
	/* One in ten is a change. */
	if (number < KEYS || number % 10 == 0)
		return sprintf(room, "set key%06lu 0 0 %d\r\n%s\r\n", key(number), VALUE, value());
	return sprintf(room, "get key%06lu\r\n", key(number));
}

static long whole_memcached(const char *reply, size_t length, unsigned long number)
{
	char wanted[VALUE + 64];

	if (number < KEYS || number % 10 == 0)
		return exactly("STORED\r\n", reply, length);
	sprintf(wanted, "VALUE key%06lu 0 %d\r\n%s\r\nEND\r\n", key(number), VALUE, value());
	return exactly(wanted, reply, length);
}

static size_t ask_http(char *room, unsigned long number)
{
	(void)number;
	return sprintf(room, "GET /file HTTP/1.1\r\nHost: localhost\r\nUser-Agent: requests\r\nAccept: */*\r\n\r\n");
}

static long whole_http(const char *reply, size_t length, unsigned long number)
{
	static const char named[] = "Content-Length: ";
	const char *body = memmem(reply, length, "\r\n\r\n", 4);
	const char *said;
	size_t all;

	(void)number;
	if (length >= 12 && memcmp(reply, "HTTP/1.1 200", 12))
		return -1;
	if (!body)
		return 0;
	said = memmem(reply, body - reply, named, sizeof named - 1);
	if (!said)
		return -1;
	all = body + 4 - reply + strtoul(said + sizeof named - 1, NULL, 10);
	return length >= all ? (long)all : 0;
}

static uint32_t word(const char *at)
{
	uint32_t big;

	memcpy(&big, at, sizeof big);
	return ntohl(big);
}

static size_t ask_postgres(char *room, unsigned long number)
{
	size_t length;
	uint32_t big;

	length = sprintf(room + 5, "SELECT abalance FROM pgbench_accounts WHERE aid = %lu;", 1 + key(number)) + 1;
	big = htonl(length + 4);
	room[0] = 'Q';
	memcpy(room + 1, &big, sizeof big);
	return length + 5;
}

/* Messages up to the one that says that the server waits for the next request. */
static long whole_postgres(const char *reply, size_t length, unsigned long number)
{
	size_t at = 0;

	(void)number;
	while (at + 5 <= length) {
		size_t next = at + 1 + word(reply + at + 1);

		if (reply[at] == 'E')
			return -1;
		if (reply[at] == 'Z' && next <= length)
			return next;
		at = next;
	}
	return 0;
}

static const struct protocol protocols[] = {
	{ "redis", ask_redis, whole_redis },
	{ "memcached", ask_memcached, whole_memcached },
	{ "http", ask_http, whole_http },
	{ "postgres", ask_postgres, whole_postgres },
};

static void ask(const struct protocol *protocol, struct connection *connection, unsigned long number)
{
	char room[1024];
	size_t length = protocol->ask(room, number);

	connection->number = number;
	connection->length = 0;
	if (write(connection->socket, room, length) != (ssize_t)length)
		fail("a request cannot be written");
}

/* Takes what has come; whether the reply is whole. */
static int take(const struct protocol *protocol, struct connection *connection)
{
	ssize_t got = read(connection->socket, connection->reply + connection->length,
			   sizeof connection->reply - connection->length);
	long whole;

	if (got <= 0)
		fail("the server has closed a connection");
	connection->length += got;
	whole = protocol->whole(connection->reply, connection->length, connection->number);
	if (whole < 0 || (whole && (size_t)whole != connection->length)) {
		fwrite(connection->reply, 1, connection->length, stderr);
		fail("a reply is wrong");
	}
	return whole != 0;
}

/* Who we are, and the wait for the server's being ready. */
static void greet_postgres(struct connection *connection)
{
	static const char words[] = "\0\0\0\0\0\3\0\0user\0postgres\0database\0postgres\0";
	char room[sizeof words];
	uint32_t big = htonl(sizeof words);

	memcpy(room, words, sizeof words);
	memcpy(room, &big, sizeof big);
	if (write(connection->socket, room, sizeof room) != (ssize_t)sizeof room)
		fail("the server cannot be greeted");
	while (!take(&protocols[3], connection))
		;
}

static void reach(struct connection *connection, int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int on = 1;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	connection->socket = socket(AF_INET, SOCK_STREAM, 0);
	if (connection->socket < 0 || connect(connection->socket, (struct sockaddr *)&to, sizeof to))
		fail("the server cannot be reached");
	setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* So many are `asked` already. */
static void go_round(const struct protocol *protocol, int events, unsigned long asked, unsigned long warm,
		     unsigned long count)
{
	struct epoll_event ready[MOST_CONNECTIONS];
	unsigned long done = 0;

	for (;;) {
		int number = epoll_wait(events, ready, MOST_CONNECTIONS, -1);

		for (int i = 0; i < number; i++) {
			struct connection *connection = ready[i].data.ptr;

			if (!take(protocol, connection))
				continue;
			if (++done == warm && count)
				MARK(MARK_BEGIN);
			if (count && done == warm + count) {
				MARK(MARK_END);
				return;
			}
			ask(protocol, connection, asked++);
		}
	}
}

int main(int argc, char **argv)
{
	const struct protocol *protocol = protocols;
	unsigned long warm, count, number;
	int events = epoll_create1(0);

	if (argc != 6)
		fail("say redis|memcached|http|postgres PORT CONNECTIONS WARM COUNT");
	while (strcmp(protocol->name, argv[1])) {
		if (++protocol == protocols + sizeof protocols / sizeof protocols[0])
			fail("there is no such protocol");
	}
	number = strtoul(argv[3], NULL, 10);
	warm = strtoul(argv[4], NULL, 10);
	count = strtoul(argv[5], NULL, 10);
	if (!number || number > MOST_CONNECTIONS || warm < KEYS + number)
		fail("1 to 256 connections are possible, and 1,000 warm requests and one for each the least");
	for (unsigned long i = 0; i < number; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = &connections[i] };

		reach(&connections[i], atoi(argv[2]));
		if (protocol == &protocols[3])
			greet_postgres(&connections[i]);
		if (epoll_ctl(events, EPOLL_CTL_ADD, connections[i].socket, &event))
			fail("a connection cannot be waited for");
	}
	for (unsigned long i = 0; i < number; i++)
		ask(protocol, &connections[i], i);
	go_round(protocol, events, number, warm, count);
	return 0;
}
