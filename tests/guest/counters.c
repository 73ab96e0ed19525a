/*
 * counters GROUP: prints the counters of a loaded group that counts, each the sum over all processors, one a line.
 * Reads what the group says of them, and the kernel's memory.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int core;

static void stop(const char *what)
{
	fprintf(stderr, "counters: %s\n", what);
	exit(1);
}

static void at(uint64_t offset, void *to, size_t len)
{
	if (pread(core, to, len, offset) != (ssize_t)len)
		stop("the kernel's memory ends early");
}

static uint64_t word(uint64_t address)
{
	uint64_t headers, value, header[7];
	uint16_t count;

	at(32, &headers, sizeof headers);
	at(56, &count, sizeof count);
	for (int number = 0; number < count; number++) {
		at(headers + 56 * number, header, sizeof header);
		/* Kind and flags; offset in the file; address; physical address; length. */
		if ((uint32_t)header[0] == 1 && address - header[2] < header[4]) {
			at(header[1] + (address - header[2]), &value, sizeof value);
			return value;
		}
	}
	stop("the kernel's memory does not hold an address");
	return 0;
}

/* The address of a symbol. */
static uint64_t symbol(const char *wanted)
{
	char name[256];
	unsigned long long address;
	FILE *list = fopen("/proc/kallsyms", "r");

	while (list && fscanf(list, "%llx %*c %255s%*[^\n]", &address, name) == 2)
		if (!strcmp(name, wanted))
			return address;
	stop("a symbol is missing");
	return 0;
}

/* Where a section of a module is; 0 if it has none of that name. */
static uint64_t section(const char *module, const char *name)
{
	char path[256];
	unsigned long long address = 0;
	FILE *file;

	snprintf(path, sizeof path, "/sys/module/%s/sections/%s", module, name);
	file = fopen(path, "r");
	if (file && fscanf(file, "%llx", &address) != 1)
		stop("a section has no address");
	return address;
}

int main(int argc, char **argv)
{
	int processors = sysconf(_SC_NPROCESSORS_CONF);
	uint64_t head, start, number, offsets = 0;

	core = open("/proc/kcore", O_RDONLY);
	if (argc != 2 || core < 0)
		stop("usage: counters GROUP");
	head = section(argv[1], ".restitch.counters");
	if (!head)
		stop("the group does not count");
	start = word(head);
	number = word(head + 8);
	/* What all processors share is a section like others; what each has is not. */
	if (section(argv[1], ".data"))
		processors = 1;
	else
		offsets = symbol("__per_cpu_offset");
	for (uint64_t counter = 0; counter < number; counter++) {
		uint64_t sum = 0;

		for (int cpu = 0; cpu < processors; cpu++)
			sum += word(start + 8 * counter + (offsets ? word(offsets + 8 * cpu) : 0));
		printf("%llu\n", (unsigned long long)sum);
	}
	return 0;
}
