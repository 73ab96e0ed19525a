/*
 * Makes system calls in a window that it marks, and prints how many instructions the machine executed in between,
 * by its own clock: in an exact guest a clock tick is an instruction.
 *
 * system_calls COUNT [copies]: calls getppid COUNT times; with `copies` it also has the kernel copy through a pipe
 * into pages that are not there yet, and into an address that never is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "marks.h"

#define PAGE 4096
/* An address at which nothing is mapped. */
#define NOWHERE 8L

static unsigned long clock_now(void)
{
	unsigned int low, high;

	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (unsigned long)high << 32 | low;
}

/* The marks are in functions of their own: the emulator executes these alike, whatever stands around the calls. */
__attribute__((noinline)) static unsigned long begin_window(void)
{
	unsigned long now = clock_now();

	MARK(MARK_BEGIN);
	return now;
}

__attribute__((noinline)) static unsigned long end_window(void)
{
	MARK(MARK_END);
	return clock_now();
}

/* Whether four bytes go through the pipe into a page that is touched for the first time. */
static int copies(const int pipe_ends[2], char *page)
{
	if (write(pipe_ends[1], "abcd", 4) != 4 || read(pipe_ends[0], page, 4) != 4 || page[3] != 'd')
		return 0;
	return syscall(SYS_write, pipe_ends[1], NOWHERE, 4) == -1;
}

int main(int count, char **words)
{
	long calls = count > 1 ? atol(words[1]) : 0;
	int copy = count > 2, pipe_ends[2];
	size_t size = (size_t)(calls + 1) * PAGE;
	char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned long begin, end;

	if (pages == MAP_FAILED || madvise(pages, size, MADV_NOHUGEPAGE) || pipe(pipe_ends))
		return 1;
	begin = begin_window();
	for (long i = 0; i < calls; i++) {
		syscall(SYS_getppid);
		if (copy && !copies(pipe_ends, pages + i * PAGE))
			return 2;
	}
	end = end_window();
	printf("%lu\n", end - begin);
	return 0;
}
