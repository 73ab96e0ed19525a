/*
 * Takes group modules in force and out again by the control module's device.
 *
 *	groups toggle SECONDS NAME...	a tenth of a second after each change, one of them in force or out of it
 *	groups kill COUNT NAME...	that often, a process that changes one of them all the time is killed at a random
 *					moment, and then none may be in force
 *
 * Ends with 1 and words at the first thing that is not as it should be.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEVICE "/dev/restitch-kernel"
/* Groups, at most. */
#define GROUPS 64
/* Between two changes, in microseconds. */
#define STEP 100000
/* Before a process that changes groups all the time is killed, in microseconds, at most. */
#define LIFE 900000

static int device;

static void wrong(const char *what, const char *which)
{
	fprintf(stderr, "%s %s (errno %d)\n", what, which, errno);
	exit(1);
}

static void open_device(void)
{
	device = open(DEVICE, O_RDWR);
	if (device < 0)
		wrong("open", DEVICE);
}

static void order(const char *verb, char **names)
{
	char text[100];

	for (; *names; names++) {
		int length = snprintf(text, sizeof(text), "%s %s\n", verb, *names);

		if (write(device, text, (size_t)length) != length)
			wrong(verb, *names);
	}
}

/* What the device says of all groups: a line each. */
static void read_status(char *text, size_t size)
{
	ssize_t length, all = 0;

	if (lseek(device, 0, SEEK_SET))
		wrong("seek", DEVICE);
	while ((length = read(device, text + all, size - 1 - (size_t)all)) > 0)
		all += length;
	if (length < 0)
		wrong("read", DEVICE);
	text[all] = 0;
}

/* Each group's line has to say so, or (`is` 0) must not. */
static void expect_state(char **names, const char *state, int is)
{
	char text[4096], line[100];

	read_status(text, sizeof(text));
	for (; *names; names++) {
		snprintf(line, sizeof(line), "%s %s ", *names, state);
		if ((strstr(text, line) != NULL) != is)
			wrong(text, line);
	}
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int count_of(char **names)
{
	int count = 0;

	while (names[count])
		count++;
	if (count > GROUPS)
		wrong("too many groups", "");
	return count;
}

/* Those that are in force at the end are no more when this process ends. */
static void toggle(double seconds, char **names)
{
	char in_force[GROUPS] = "", *one[2] = { NULL, NULL };
	double until = now() + seconds;
	int count = count_of(names), times = 0, which;

	open_device();
	for (; now() < until; times++) {
		which = rand() % count;
		one[0] = names[which];
		order(in_force[which] ? "disable" : "enable", one);
		in_force[which] = !in_force[which];
		expect_state(one, "enabled", in_force[which]);
		usleep(STEP);
	}
	printf("%d times in force or out of it\n", times);
}

static void change_all_the_time(char **names)
{
	open_device();
	for (;;) {
		order("enable", names);
		order("disable", names);
	}
}

static void kill_one(char **names)
{
	char *one[2] = { names[rand() % count_of(names)], NULL };
	int status;
	pid_t child = fork();

	if (child < 0)
		wrong("fork", "");
	if (!child)
		change_all_the_time(one);
	usleep((useconds_t)(rand() % LIFE));
	if (kill(child, SIGKILL) || waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
		wrong("kill", "");
	open_device();
	expect_state(names, "enabled", 0);
	close(device);
}

int main(int count, char **words)
{
	if (count < 4)
		return 2;
	if (!strcmp(words[1], "toggle"))
		toggle(atof(words[2]), words + 3);
	for (int i = 0; !strcmp(words[1], "kill") && i < atoi(words[2]); i++)
		kill_one(words + 3);
	return 0;
}
