/*
 * Loads that know what has to come out: each makes system calls on one path of the kernel for some time, compares
 * every result, and ends with 1 and words at the first one that is wrong.
 *
 *	loads poll|pipe|tcp SECONDS	prints the kind and how often it went round
 *	loads file SECONDS FILE		the same with a file that it makes
 *	loads polls COUNT		calls poll exactly that often
 *	loads sleep poll|pipe		sleeps in the kernel until SIGUSR1 comes
 *
 * Among what it does: faults at the begin, in the middle and at the end of what the kernel copies, interruptions by
 * signals, sleep and waking by another process, and the ends of files and streams.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
/* Pipes that one call of poll looks at. */
#define PIPES 100
/* The largest amount that goes through a pipe or a connection at once. */
#define MOST (60 * 1024)
#define FILE_SIZE (4L << 20)

static const char *kind;
static volatile sig_atomic_t signals;
/* An address at which nothing is mapped; the compiler is not to know it. */
static void *volatile nowhere = (void *)8L;

__attribute__((format(printf, 1, 2), noreturn)) static void wrong(const char *format, ...)
{
	int error = errno;
	va_list words;

	va_start(words, format);
	fprintf(stderr, "%s: ", kind);
	vfprintf(stderr, format, words);
	fprintf(stderr, " (errno %d)\n", error);
	_exit(1);
}

static void expect(int holds, const char *what)
{
	if (!holds)
		wrong("wrong: %s", what);
}

static void expect_error(long result, int error, const char *what)
{
	if (result != -1 || errno != error)
		wrong("%s: %ld in place of error %d", what, result, error);
}

static unsigned int next_random(void)
{
	static unsigned long state = 0x9e3779b97f4a7c15;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned int)(state >> 16);
}

/* 1 to most. */
static size_t some(size_t most)
{
	return 1 + next_random() % most;
}

/* What stands at a place of a stream. */
static unsigned char at(unsigned long place, unsigned int salt)
{
	return (unsigned char)((place * 2654435761u + salt * 40503u) >> 11);
}

static void fill(unsigned char *bytes, size_t length, unsigned long place, unsigned int salt)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = at(place + i, salt);
}

static void compare(const unsigned char *bytes, size_t length, unsigned long place, unsigned int salt)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != at(place + i, salt))
			wrong("byte %lu is %u and not %u", place + i, bytes[i], at(place + i, salt));
}

/* Two pages of which the second is not there. */
static unsigned char *cliff(void)
{
	static unsigned char *pages;

	if (!pages) {
		pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		expect(pages != MAP_FAILED && !munmap(pages + PAGE, PAGE), "memory");
	}
	return pages + PAGE;
}

static void count_signal(int number)
{
	(void)number;
	signals++;
}

static void on_signal(int number, int flags)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };

	expect(!sigaction(number, &action, NULL), "sigaction");
}

/* A signal after some microseconds, and then again and again if `every`. */
static void alarm_in(long microseconds, int every)
{
	struct itimerval timer = { .it_value = { .tv_usec = microseconds } };

	if (every)
		timer.it_interval = timer.it_value;
	expect(!setitimer(ITIMER_REAL, &timer, NULL), "setitimer");
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void write_all(int to, const unsigned char *bytes, size_t length)
{
	while (length) {
		ssize_t done = write(to, bytes, length);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			wrong("write gave %zd", done);
		bytes += done;
		length -= (size_t)done;
	}
}

static void read_all(int from, unsigned char *bytes, size_t length)
{
	while (length) {
		ssize_t done = read(from, bytes, some(length));

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			wrong("read gave %zd", done);
		bytes += done;
		length -= (size_t)done;
	}
}

/* Ends with the process that started it. */
static pid_t partner(void (*work)(int, int), int from, int to)
{
	pid_t child = fork();

	expect(child >= 0, "fork");
	if (!child) {
		work(from, to);
		_exit(0);
	}
	return child;
}

static void end(pid_t child)
{
	int status;

	expect(waitpid(child, &status, 0) == child && status == 0, "the other process found something wrong");
}

/* poll */

static int many[PIPES][2];
static int echo_to[2], echo_from[2];

static void echo_bytes(int from, int to)
{
	unsigned char byte;

	/* So that it ends with the process that started it. */
	close(echo_to[1]);
	while (read(from, &byte, 1) == 1) {
		usleep(byte * 4);
		write_all(to, &byte, 1);
	}
}

static void poll_many(void)
{
	struct pollfd fds[2 * PIPES];
	char written[PIPES];
	int count = 0;
	unsigned char byte;

	for (int i = 0; i < PIPES; i++) {
		written[i] = next_random() % 3 == 0;
		if (written[i])
			write_all(many[i][1], (unsigned char *)"x", 1);
		count += written[i];
		fds[2 * i] = (struct pollfd){ many[i][0], POLLIN, -1 };
		fds[2 * i + 1] = (struct pollfd){ many[i][1], POLLOUT, -1 };
	}
	expect(poll(fds, 2 * PIPES, next_random() % 2 ? 0 : 50) == count + PIPES, "how many are ready");
	for (int i = 0; i < PIPES; i++) {
		expect(fds[2 * i].revents == (written[i] ? POLLIN : 0), "what can be read");
		expect(fds[2 * i + 1].revents == POLLOUT, "what can be written");
		if (written[i])
			expect(read(many[i][0], &byte, 1) == 1 && byte == 'x', "the byte");
	}
}

static void poll_ends(void)
{
	struct pollfd fds[3];
	int ends[2], others[2], closed;

	expect(!pipe(ends) && !pipe(others), "pipe");
	closed = dup(ends[0]);
	close(closed);
	close(ends[1]);
	close(others[0]);
	fds[0] = (struct pollfd){ ends[0], POLLIN, 0 };
	fds[1] = (struct pollfd){ others[1], POLLOUT, 0 };
	fds[2] = (struct pollfd){ closed, POLLIN, 0 };
	expect(poll(fds, 3, -1) == 3, "three ends");
	expect(fds[0].revents == POLLHUP, "its writer is gone");
	expect(fds[1].revents == (POLLERR | POLLOUT), "its reader is gone");
	expect(fds[2].revents == POLLNVAL, "it is closed");
	close(ends[0]);
	close(others[1]);
}

static void poll_faults(void)
{
	struct pollfd *over = (struct pollfd *)cliff() - 3;
	unsigned char *page = cliff() - PAGE;

	for (int i = 0; i < 3; i++)
		over[i] = (struct pollfd){ many[i][1], POLLOUT, 0 };
	expect_error(poll(nowhere, 1, 0), EFAULT, "poll of nothing");
	expect_error(poll(over, 4, 0), EFAULT, "poll over the end");
	expect(poll(over, 3, 0) == 3, "poll up to the end");
	expect(!mprotect(page, PAGE, PROT_READ), "mprotect");
	expect_error(poll(over, 3, 0), EFAULT, "poll of what cannot be written");
	expect(!mprotect(page, PAGE, PROT_READ | PROT_WRITE), "mprotect");
	expect_error(poll(over, 1UL << 30, 0), EINVAL, "poll of too many");
}

static void poll_sleep(void)
{
	struct pollfd fd = { echo_from[0], POLLIN, 0 };
	unsigned char byte = (unsigned char)next_random(), back;
	int before = signals;

	expect(poll(&fd, 1, 1) == 0 && !fd.revents, "nothing comes by itself");
	/* Again and again, since the first may come before the call. */
	alarm_in(1000, 1);
	expect_error(poll(&fd, 1, 100000), EINTR, "a signal");
	alarm_in(0, 0);
	expect(signals > before, "a signal has come");
	write_all(echo_to[1], &byte, 1);
	expect(poll(&fd, 1, -1) == 1 && fd.revents == POLLIN, "waking");
	expect(read(echo_from[0], &back, 1) == 1 && back == byte, "the echo");
}

static void start_poll(void)
{
	for (int i = 0; i < PIPES; i++)
		expect(!pipe(many[i]), "pipe");
	expect(!pipe(echo_to) && !pipe(echo_from), "pipe");
	partner(echo_bytes, echo_to[0], echo_from[1]);
	on_signal(SIGALRM, 0);
	close(echo_to[0]);
}

static void go_round_poll(void)
{
	poll_many();
	poll_ends();
	poll_faults();
	poll_sleep();
}

/* pipe */

static void pipe_stream(int from, int to)
{
	unsigned char bytes[MOST];
	unsigned long place = 0;

	(void)from;
	while (place < 8 * MOST) {
		size_t length = some(MOST);

		fill(bytes, length, place, 1);
		write_all(to, bytes, length);
		place += length;
	}
	_exit(0);
}

/* A stream from a process that sleeps whenever the pipe is full, while signals come. */
static void pipe_blocking(void)
{
	static unsigned char bytes[MOST];
	unsigned long place = 0;
	int ends[2];
	pid_t child;

	expect(!pipe(ends), "pipe");
	child = partner(pipe_stream, ends[0], ends[1]);
	close(ends[1]);
	alarm_in(700, 1);
	for (;;) {
		ssize_t done = read(ends[0], bytes, some(MOST));

		if (done < 0 && errno == EINTR)
			continue;
		expect(done >= 0, "read");
		if (!done)
			break;
		compare(bytes, (size_t)done, place, 1);
		place += (unsigned long)done;
	}
	alarm_in(0, 0);
	expect(place >= 8 * MOST, "the end of the stream");
	close(ends[0]);
	end(child);
}

static void pipe_full_and_empty(void)
{
	static unsigned char bytes[MOST];
	unsigned long in = 0, out = 0;
	int ends[2];

	expect(!pipe2(ends, O_NONBLOCK), "pipe");
	expect_error(read(ends[0], bytes, 1), EAGAIN, "an empty pipe");
	for (;;) {
		size_t length = some(MOST);
		ssize_t done;

		fill(bytes, length, in, 2);
		done = write(ends[1], bytes, length);
		if (done < 0)
			break;
		in += (unsigned long)done;
	}
	expect(errno == EAGAIN && in >= 2 * PAGE, "a full pipe");
	while (out < in) {
		ssize_t done = read(ends[0], bytes, some(MOST));

		expect(done > 0, "read");
		compare(bytes, (size_t)done, out, 2);
		out += (unsigned long)done;
	}
	expect(out == in, "as much comes out as went in");
	close(ends[0]);
	expect_error(write(ends[1], bytes, 1), EPIPE, "no reader");
	close(ends[1]);
}

static void pipe_faults(void)
{
	unsigned char *edge = cliff(), bytes[16];
	struct iovec parts[2] = { { edge - 8, 8 }, { nowhere, 8 } };
	int ends[2];

	expect(!pipe(ends), "pipe");
	expect_error(write(ends[1], nowhere, 4), EFAULT, "a write from nowhere");
	fill(edge - 16, 16, 0, 3);
	expect(write(ends[1], edge - 16, 16) == 16, "a write up to the end");
	expect_error(read(ends[0], nowhere, 4), EFAULT, "a read to nowhere");
	memset(edge - 16, 0, 16);
	expect(read(ends[0], edge - 16, 16) == 16, "a read up to the end");
	compare(edge - 16, 16, 0, 3);
	/* How much of it goes is the kernel's choice, and nothing else comes out. */
	fill(edge - 8, 8, 0, 4);
	if (writev(ends[1], parts, 2) == 8)
		expect(read(ends[0], bytes, 16) == 8, "the part that was there");
	else
		expect(errno == EFAULT, "a write over the end");
	close(ends[0]);
	close(ends[1]);
}

static void start_pipe(void)
{
	on_signal(SIGALRM, 0);
	on_signal(SIGPIPE, 0);
}

static void go_round_pipe(void)
{
	pipe_full_and_empty();
	pipe_faults();
	pipe_blocking();
}

/* tcp */

static struct sockaddr_in server_address = { .sin_family = AF_INET };

/* Gives back what it gets, whose length comes first, changed. */
static void serve(int connection)
{
	static unsigned char bytes[MOST];
	unsigned int head[2];
	ssize_t more;

	read_all(connection, (unsigned char *)head, sizeof(head));
	expect(head[0] <= MOST, "the length");
	read_all(connection, bytes, head[0]);
	compare(bytes, head[0], 0, head[1]);
	fill(bytes, head[0], 0, head[1] + 1);
	write_all(connection, bytes, head[0]);
	/* The client closes first, or resets. */
	do
		more = read(connection, bytes, 1);
	while (more < 0 && errno == EINTR);
	expect(more == 0 || errno == ECONNRESET, "the end");
	close(connection);
}

static void serve_all(int listening, int unused)
{
	pid_t parent = getppid();

	(void)unused;
	alarm_in(100000, 1);
	while (getppid() == parent) {
		int connection = accept(listening, NULL, NULL);

		if (connection >= 0)
			serve(connection);
		else
			expect(errno == EINTR, "accept");
	}
}

static void start_tcp(void)
{
	socklen_t length = sizeof(server_address);
	int listening = socket(AF_INET, SOCK_STREAM, 0);

	server_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	expect(!bind(listening, (struct sockaddr *)&server_address, length) && !listen(listening, 50), "listen");
	expect(!getsockname(listening, (struct sockaddr *)&server_address, &length), "getsockname");
	on_signal(SIGALRM, 0);
	partner(serve_all, listening, 0);
	close(listening);
}

static int connected(void)
{
	int connection = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	expect(connection >= 0, "socket");
	expect(!connect(connection, (struct sockaddr *)&server_address, sizeof(server_address)), "connect");
	if (next_random() % 2)
		expect(!setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "TCP_NODELAY");
	return connection;
}

static void go_round_tcp(void)
{
	static unsigned char bytes[MOST];
	unsigned int head[2] = { (unsigned int)some(next_random() % 2 ? 200 : MOST), next_random() };
	struct linger reset = { .l_onoff = 1 };
	int connection = connected();

	write_all(connection, (unsigned char *)head, sizeof(head));
	fill(bytes, head[0], 0, head[1]);
	write_all(connection, bytes, head[0]);
	expect_error(send(connection, nowhere, 4, 0), EFAULT, "sent from nowhere");
	expect(recv(connection, bytes, 1, MSG_PEEK) == 1, "a look at what comes");
	expect_error(recv(connection, nowhere, 4, 0), EFAULT, "received to nowhere");
	read_all(connection, bytes, head[0]);
	compare(bytes, head[0], 0, head[1] + 1);
	expect_error(recv(connection, bytes, 1, MSG_DONTWAIT), EAGAIN, "nothing more comes");
	if (next_random() % 4 == 0)
		expect(!setsockopt(connection, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), "SO_LINGER");
	close(connection);
}

/* file */

static const char *file_name;
/* What was written last to each page of the file. */
static unsigned int salts[FILE_SIZE / PAGE];
static int file, direct;

static void write_page(size_t page)
{
	unsigned char bytes[PAGE];

	salts[page] = next_random();
	fill(bytes, PAGE, page * PAGE, salts[page]);
	expect(pwrite(file, bytes, PAGE, (off_t)(page * PAGE)) == PAGE, "a page is written");
}

static void compare_file(const unsigned char *bytes, size_t length, size_t place)
{
	while (length) {
		size_t page = place / PAGE, rest = (page + 1) * PAGE - place;
		size_t part = length < rest ? length : rest;

		compare(bytes, part, place, salts[page]);
		bytes += part;
		place += part;
		length -= part;
	}
}

static void start_file(void)
{
	file = open(file_name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	expect(file >= 0, "open");
	for (size_t page = 0; page < FILE_SIZE / PAGE; page++)
		write_page(page);
	expect(!fsync(file), "fsync");
	direct = open(file_name, O_RDONLY | O_DIRECT);
	expect(direct >= 0, "open for direct reads");
}

static void file_faults(void)
{
	unsigned char *edge = cliff();

	expect_error(pread(file, nowhere, 100, 0), EFAULT, "a read to nowhere");
	/* What fits is read. */
	expect(pread(file, edge - 10, 100, 5) == 10, "a read over the end");
	compare_file(edge - 10, 10, 5);
}

static void go_round_file(void)
{
	static unsigned char bytes[16 * PAGE] __attribute__((aligned(PAGE)));
	size_t place = next_random() % FILE_SIZE, length = some(sizeof(bytes));
	size_t there = place + length > FILE_SIZE ? FILE_SIZE - place : length;

	if (next_random() % 8 == 0)
		expect(!fsync(file) && !posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), "forgetting");
	expect(pread(file, bytes, length, (off_t)place) == (ssize_t)there, "how much is read");
	compare_file(bytes, there, place);
	expect(pread(file, bytes, 10, FILE_SIZE) == 0, "the end of the file");
	place = place / PAGE * PAGE;
	if (next_random() % 4 == 0) {
		expect(pread(direct, bytes, PAGE, (off_t)place) == PAGE, "a direct read");
		compare_file(bytes, PAGE, place);
	}
	write_page(place / PAGE);
	file_faults();
}

/* The rest */

static void call_poll(long count)
{
	struct pollfd fd = { -1, POLLIN, 0 };

	while (count--)
		expect(poll(&fd, 1, 0) == 0, "poll");
}

static void sleep_in(const char *call)
{
	struct pollfd fd;
	int ends[2];
	char byte;

	on_signal(SIGUSR1, 0);
	expect(!pipe(ends), "pipe");
	fd = (struct pollfd){ ends[0], POLLIN, 0 };
	if (!strcmp(call, "poll"))
		expect_error(poll(&fd, 1, -1), EINTR, "poll");
	else
		expect_error(read(ends[0], &byte, 1), EINTR, "read");
	expect(signals == 1, "one signal");
	puts("woken");
}

static const struct load {
	const char *name;
	void (*start)(void);
	void (*go_round)(void);
} loads[] = {
	{ "poll", start_poll, go_round_poll },
	{ "pipe", start_pipe, go_round_pipe },
	{ "tcp", start_tcp, go_round_tcp },
	{ "file", start_file, go_round_file },
};

int main(int count, char **words)
{
	unsigned long rounds = 0;
	double until;

	if (count < 3)
		return 2;
	kind = words[1];
	if (!strcmp(kind, "polls"))
		call_poll(atol(words[2]));
	else if (!strcmp(kind, "sleep"))
		sleep_in(words[2]);
	for (size_t i = 0; i < sizeof(loads) / sizeof(*loads); i++) {
		if (strcmp(kind, loads[i].name))
			continue;
		file_name = count > 3 ? words[3] : NULL;
		loads[i].start();
		for (until = now() + atof(words[2]); now() < until; rounds++)
			loads[i].go_round();
		printf("%s: %lu rounds\n", kind, rounds);
	}
	return 0;
}
