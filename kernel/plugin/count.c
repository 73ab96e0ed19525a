/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A TCG plugin that counts what the kernel of a guest executes, exactly, in windows that the guest marks.
 *
 * Problem: QEMU tells when a unit of translation begins, not whether it came to its end, and between two units
 * there may have been an interrupt. So counts of units are not counts of instructions, and a step from one unit
 * to the next is not always a branch.
 *
 * Idea: the last instruction of each unit leaves a note. Where it is missing, the unit was left early: by a fault,
 * whose address the processor has pushed, or by the emulator itself, which goes on in the middle. That point is a
 * "cut": instructions from there on were not executed. The entries of interrupts and faults are known by their first
 * instructions; the branch that was on its way when one came is kept by the address of the pushed frame until the
 * return from it, and so is an instruction that faults: if execution goes on elsewhere then, that is a way from it.
 * Steps that this does not explain are counted, and said.
 *
 * Limits: x86-64 Linux. With several processors, what others do while a window begins or ends is counted or not.
 * A faulting instruction is counted when it succeeds; an instruction that never does is not counted.
 *
 * Arguments: out=PREFIX. A window's counts go to the file PREFIX followed by its number; crates/guest/src/counts.rs
 * reads it.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "instructions.h"
#include "marks.h"
#include "model.h"
#include "qemu.h"
#include "table.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_PROCESSORS 64
#define MOST_INTERRUPTIONS 256
/* The lowest address of the kernel's half. */
#define KERNEL 0xffff800000000000u
/* Where the kernel's image is, which is mapped by pages of 2 MiB; modules are behind, in pages of 4 KiB. */
#define IMAGE_BEGIN 0xffffffff80000000u
#define IMAGE_END 0xffffffffc0000000u
/* Selectors of code segments, of which the processor pushes one behind the address: the kernel's, programs'. */
#define KERNEL_CODE 0x10u
#define PROGRAM_CODE 0x33u
#define PROGRAM_CODE_32 0x23u

struct instruction {
	uint64_t address;
	uint64_t size;
	/* How often the unit was left before this instruction. */
	uint64_t cuts;
};

/* A unit of translation. */
struct unit {
	struct unit *next;
	uint64_t begin, end;
	/* Where a direct jump at its end goes. */
	uint64_t target;
	uint64_t hash;
	uint64_t count;
	/* How often the first instruction was but the rest of one that had begun before (repeated string moves). */
	uint64_t continued;
	size_t length;
	enum kind kind;
	bool kernel;
	/* It looks like where the processor goes at an interrupt or a fault. */
	bool entry;
	/* The last instruction repeats itself. */
	bool repeats;
	bool returns_from_interrupt;
	struct instruction instructions[];
};

/* A branch that an interrupt came behind, or an instruction that a fault has stopped. */
struct interruption {
	uint64_t frame;
	/* The unit whose end execution came from; none at a fault. */
	const struct unit *unit;
	/* The instruction that did not come to its end. */
	const struct instruction *stopped;
};

/* What translated code reads and writes without calling us. */
struct flags {
	/* Whether a window is open. */
	uint64_t open;
	/* Whether the last instruction of the present unit has begun. */
	uint64_t done;
};

struct processor {
	/* Whether it is at work in one of our calls; kept if there are several processors. */
	bool busy;
	/* The unit of the kernel that was begun last; none in programs. */
	struct unit *last;
	struct flags *flags;
	/* Where the frame was that the last return from an interrupt took. */
	uint64_t returned_frame;
	struct interruption interruptions[MOST_INTERRUPTIONS];
	size_t interrupted;
	struct table branches;
	struct cache lines, pages, large_pages;
	uint64_t line;
	struct qemu_plugin_register *stack_pointer;
	struct bytes *buffer;
	/* Totals. */
	uint64_t user, units, interruptions_seen, unexplained, continued;
	uint64_t fetches, line_misses[2], page_misses[2];
};

EXPORT int qemu_plugin_version = QEMU_INTERFACE;

static struct processor processors[MOST_PROCESSORS];
static struct qemu_plugin_scoreboard *board;
static qemu_plugin_u64 open_flag, done_flag;
static char prefix[4096];
static unsigned int window;
/* Whether there are several processors, which run at once. */
static bool several;

/* Holds units and windows. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define BUCKETS (1u << 16)
static struct unit *units[BUCKETS];
static uint64_t changed;
static struct bytes *translation_buffer;

/* --- Steps ----------------------------------------------------------------------------------------------- */

static void add_count(uint64_t *count)
{
	__atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

static const struct instruction *last_of(const struct unit *unit)
{
	return &unit->instructions[unit->length - 1];
}

/* The unit was left before the instruction at `address`: that instruction, or none. */
static const struct instruction *cut(struct unit *unit, uint64_t address)
{
	for (size_t i = 0; i < unit->length; i++) {
		if (unit->instructions[i].address == address) {
			add_count(&unit->instructions[i].cuts);
			return &unit->instructions[i];
		}
	}
	return NULL;
}

/* Execution went from the end of `from` to `to`. */
static void branch(struct processor *processor, const struct unit *from, uint64_t to)
{
	const struct instruction *last = last_of(from);

	if (from->kind == PLAIN || from->kind == LEAVES) {
		if (from->kind == PLAIN && to != from->end)
			processor->unexplained++;
		return;
	}
	table_add(&processor->branches, last->address, to, 1, (uint64_t)from->kind << 32 | last->size);
}

/* Takes what was interrupted with the frame at that address; nothing of all if it was not. */
static struct interruption resume(struct processor *processor, uint64_t frame)
{
	for (size_t i = 0; i < processor->interrupted; i++) {
		struct interruption found = processor->interruptions[i];

		if (found.frame == frame) {
			processor->interruptions[i] = processor->interruptions[--processor->interrupted];
			return found;
		}
	}
	return (struct interruption){ .frame = frame };
}

static void remember(struct processor *processor, struct interruption interruption)
{
	/* A frame at the same place is over: its stack was used anew. */
	resume(processor, interruption.frame);
	if (!interruption.unit && !interruption.stopped)
		return;
	if (processor->interrupted == MOST_INTERRUPTIONS) {
		processor->unexplained++;
		return;
	}
	processor->interruptions[processor->interrupted++] = interruption;
}

/* From where execution comes, after returns from interrupts; nothing if nothing is known of it. */
static struct interruption origin(struct processor *processor)
{
	const struct unit *last = processor->last;

	if (last->returns_from_interrupt)
		return resume(processor, processor->returned_frame);
	return (struct interruption){ .unit = last };
}

/* Behind a fault, execution goes on at `to`: with the same instruction, or elsewhere for good. */
static void after_fault(struct processor *processor, const struct instruction *stopped, uint64_t to)
{
	if (to != stopped->address)
		table_add(&processor->branches, stopped->address, to, 1, (uint64_t)FAULT << 32 | stopped->size);
}

/* A step within the kernel that is no interruption. */
static void go_on(struct processor *processor, struct unit *unit, bool done)
{
	struct unit *last = processor->last;
	struct interruption from;

	if (!done) {
		/* The emulator left the unit on its own account. */
		if (!cut(last, unit->begin))
			processor->unexplained++;
		return;
	}
	if (last->repeats && unit->begin == last_of(last)->address) {
		add_count(&unit->continued);
		processor->continued++;
		return;
	}
	from = origin(processor);
	if (from.unit)
		branch(processor, from.unit, unit->begin);
	else if (from.stopped)
		after_fault(processor, from.stopped, unit->begin);
}

/* Whether the page of a line is among the translations; it is from now on. */
static bool translation_hit(struct processor *processor, uint64_t line)
{
	uint64_t address = line << LINE_SHIFT;

	if (address >= IMAGE_BEGIN && address < IMAGE_END)
		return cache_hit(&processor->large_pages, address >> LARGE_SHIFT);
	return cache_hit(&processor->pages, address >> PAGE_SHIFT);
}

static void fetch(struct processor *processor, const struct unit *unit)
{
	uint64_t last = (unit->end - 1) >> LINE_SHIFT;

	for (uint64_t line = unit->begin >> LINE_SHIFT; line <= last; line++) {
		unsigned int user = !unit->kernel;
		uint64_t before = processor->line;

		if (line == before)
			continue;
		processor->line = line;
		processor->fetches += !user;
		if (!cache_hit(&processor->lines, line))
			processor->line_misses[user]++;
		if (line >> (PAGE_SHIFT - LINE_SHIFT) != before >> (PAGE_SHIFT - LINE_SHIFT) &&
		    !translation_hit(processor, line))
			processor->page_misses[user]++;
	}
}

static bool take_done(struct processor *processor)
{
	bool done = processor->flags->done;

	processor->flags->done = 0;
	return done;
}

/* Begins the work of a call; none if the window was closed meanwhile. end_of_work() has to follow. */
static struct processor *begin_work(unsigned int index)
{
	struct processor *processor = &processors[index];

	processor->flags = qemu_plugin_scoreboard_find(board, index);
	if (several) {
		/* Who closes a window clears `open` first and waits for `busy` then. */
		__atomic_store_n(&processor->busy, true, __ATOMIC_SEQ_CST);
		if (!__atomic_load_n(&processor->flags->open, __ATOMIC_SEQ_CST)) {
			__atomic_store_n(&processor->busy, false, __ATOMIC_RELEASE);
			return NULL;
		}
	}
	return processor;
}

static void end_of_work(struct processor *processor)
{
	if (several)
		__atomic_store_n(&processor->busy, false, __ATOMIC_RELEASE);
}

static void begin(struct processor *processor, struct unit *unit)
{
	fetch(processor, unit);
	processor->units++;
	processor->last = unit;
	add_count(&unit->count);
}

/* A unit of the kernel begins, and it is no interruption. */
static void ordinary(struct processor *processor, struct unit *unit, bool done)
{
	if (processor->last)
		go_on(processor, unit, done);
	begin(processor, unit);
}

static void step(unsigned int index, void *data)
{
	struct processor *processor = begin_work(index);

	if (!processor)
		return;
	ordinary(processor, data, take_done(processor));
	end_of_work(processor);
}

/* A unit of a program begins. */
static void step_of_program(unsigned int index, void *data)
{
	struct processor *processor = begin_work(index);
	const struct unit *unit = data;
	bool done;

	if (!processor)
		return;
	done = take_done(processor);
	if (processor->last && !(done && processor->last->kind == LEAVES))
		processor->unexplained++;
	processor->last = NULL;
	processor->user += unit->length;
	fetch(processor, unit);
	end_of_work(processor);
}

/* Eight bytes of the guest's memory. */
static uint64_t word_at(struct processor *processor, uint64_t address)
{
	uint64_t word = 0;

	g_byte_array_set_size(processor->buffer, 0);
	if (qemu_plugin_read_memory_vaddr(address, processor->buffer, sizeof word) &&
	    processor->buffer->length >= sizeof word)
		memcpy(&word, processor->buffer->data, sizeof word);
	else
		processor->unexplained++;
	return word;
}

static uint64_t stack_pointer(struct processor *processor)
{
	uint64_t word = 0;

	g_byte_array_set_size(processor->buffer, 0);
	if (processor->stack_pointer &&
	    qemu_plugin_read_register(processor->stack_pointer, processor->buffer) >= (int)sizeof word)
		memcpy(&word, processor->buffer->data, sizeof word);
	else
		processor->unexplained++;
	return word;
}

static bool is_code_segment(uint64_t selector)
{
	return selector == KERNEL_CODE || selector == PROGRAM_CODE || selector == PROGRAM_CODE_32;
}

/*
 * Where the frame of an interrupt is: at the stack pointer or, at faults that have an error code, behind it; 0 if
 * there is none.
 */
static uint64_t frame_at(struct processor *processor, uint64_t stack_pointer)
{
	if (is_code_segment(word_at(processor, stack_pointer + 8)))
		return stack_pointer;
	return is_code_segment(word_at(processor, stack_pointer + 16)) ? stack_pointer + 8 : 0;
}

/* Kernel code was interrupted before the instruction at `address`; by a fault with an error code, or otherwise. */
static void interrupted(struct processor *processor, uint64_t frame, uint64_t address, bool done, bool coded)
{
	struct unit *last = processor->last;
	struct interruption from;

	processor->interruptions_seen++;
	/* Between two repetitions: the emulator goes on with it after the interrupt. */
	if (done && !coded && last->repeats && address == last_of(last)->address)
		processor->continued++;
	if (!done || address == last_of(last)->address) {
		/* A fault: what was not executed is begun again, without a branch to it, or never. */
		const struct instruction *stopped = cut(last, address);

		remember(processor, (struct interruption){ .frame = frame, .stopped = stopped });
		if (!stopped)
			processor->unexplained++;
		return;
	}
	from = origin(processor);
	from.frame = frame;
	remember(processor, from);
}

/* A unit begins that looks like an entry of interrupts or faults. */
static void entry(struct processor *processor, struct unit *unit, bool done)
{
	struct unit *last = processor->last;
	uint64_t top = stack_pointer(processor), frame = frame_at(processor, top);
	uint64_t address;

	if (!frame || (last && done && last->target == unit->begin)) {
		/* Code that only looks like it, or that entries of several interrupts share. */
		ordinary(processor, unit, done);
		return;
	}
	address = word_at(processor, frame);
	if (last && address >= KERNEL)
		interrupted(processor, frame, address, done, frame != top);
	else if (last && !(done && last->kind == LEAVES))
		processor->unexplained++;
	begin(processor, unit);
}

static void step_of_entry(unsigned int index, void *data)
{
	struct processor *processor = begin_work(index);

	if (!processor)
		return;
	entry(processor, data, take_done(processor));
	end_of_work(processor);
}

/* The processor is about to return from an interrupt. */
static void before_return(unsigned int index, void *data)
{
	struct processor *processor = begin_work(index);

	(void)data;
	if (!processor)
		return;
	processor->returned_frame = stack_pointer(processor);
	end_of_work(processor);
}

/* --- Windows --------------------------------------------------------------------------------------------- */

static void set_open(bool open)
{
	for (int i = 0; i < qemu_plugin_num_vcpus(); i++) {
		struct flags *flags = qemu_plugin_scoreboard_find(board, i);

		__atomic_store_n(&flags->open, open, __ATOMIC_SEQ_CST);
	}
}

/* Closes the window and waits until no processor works on it. The caller is in no such work. */
static void close_window(void)
{
	set_open(false);
	for (size_t i = 0; i < MOST_PROCESSORS; i++) {
		while (__atomic_load_n(&processors[i].busy, __ATOMIC_SEQ_CST))
			sched_yield();
	}
}

static void clear_processor(struct processor *processor)
{
	struct qemu_plugin_register *stack_pointer = processor->stack_pointer;
	struct bytes *buffer = processor->buffer;
	struct table branches = processor->branches;

	table_clear(&branches);
	memset(processor, 0, sizeof *processor);
	processor->stack_pointer = stack_pointer;
	processor->buffer = buffer;
	processor->branches = branches;
	processor->lines.sets = LINE_SETS;
	processor->pages.sets = PAGE_SETS;
	processor->large_pages.sets = LARGE_SETS;
}

static void clear_unit(struct unit *unit)
{
	unit->count = unit->continued = 0;
	for (size_t i = 0; i < unit->length; i++)
		unit->instructions[i].cuts = 0;
}

static void begin_window(unsigned int index, void *data)
{
	(void)index;
	(void)data;
	pthread_mutex_lock(&lock);
	close_window();
	for (size_t i = 0; i < BUCKETS; i++) {
		for (struct unit *unit = units[i]; unit; unit = unit->next)
			clear_unit(unit);
	}
	for (size_t i = 0; i < MOST_PROCESSORS; i++)
		clear_processor(&processors[i]);
	changed = 0;
	set_open(true);
	pthread_mutex_unlock(&lock);
}

static void add_instructions(const struct unit *unit, struct table *instructions)
{
	uint64_t count = unit->count;

	for (size_t i = 0; i < unit->length; i++) {
		const struct instruction *instruction = &unit->instructions[i];

		count -= instruction->cuts;
		table_add(instructions, instruction->address, 0, count - (i == 0 ? unit->continued : 0),
			  instruction->size);
	}
}

static void write_words(FILE *file, const uint64_t *words, size_t count)
{
	if (fwrite(words, sizeof *words, count, file) != count)
		qemu_plugin_outs("restitch: cannot write the counts of a window\n");
}

static void write_table(FILE *file, const struct table *table, bool pairs)
{
	for (size_t i = 0; i < table->size; i++) {
		const struct entry *entry = &table->entries[i];

		if (!entry->count)
			continue;
		if (pairs)
			write_words(file, (uint64_t[]){ entry->first, entry->second, entry->count, entry->more }, 4);
		else
			write_words(file, (uint64_t[]){ entry->first, entry->count, entry->more }, 3);
	}
}

static void write_totals(FILE *file, size_t instructions, size_t branches)
{
	uint64_t totals[14] = { 0 };

	for (size_t i = 0; i < MOST_PROCESSORS; i++) {
		const struct processor *of = &processors[i];

		totals[0] += of->user;
		totals[1] += of->fetches;
		totals[2] += of->line_misses[0];
		totals[3] += of->line_misses[1];
		totals[4] += of->page_misses[0];
		totals[5] += of->page_misses[1];
		totals[6] += of->interruptions_seen;
		totals[7] += of->unexplained;
		totals[9] += of->units;
		totals[10] += of->units != 0;
		totals[11] += of->continued;
	}
	totals[8] = changed;
	totals[12] = instructions;
	totals[13] = branches;
	write_words(file, totals, 14);
}

static void write_window(FILE *file)
{
	struct table instructions = { 0 }, branches = { 0 };

	for (size_t i = 0; i < BUCKETS; i++) {
		for (const struct unit *unit = units[i]; unit; unit = unit->next) {
			if (unit->kernel)
				add_instructions(unit, &instructions);
		}
	}
	for (size_t i = 0; i < MOST_PROCESSORS; i++) {
		const struct table *own = &processors[i].branches;

		for (size_t at = 0; at < own->size; at++) {
			const struct entry *entry = &own->entries[at];

			table_add(&branches, entry->first, entry->second, entry->count, entry->more);
		}
	}
	if (fwrite("RSTWIN01", 1, 8, file) != 8)
		qemu_plugin_outs("restitch: cannot write the counts of a window\n");
	write_totals(file, instructions.used, branches.used);
	write_table(file, &instructions, false);
	write_table(file, &branches, true);
	free(instructions.entries);
	free(branches.entries);
}

static void end_window(unsigned int index, void *data)
{
	char name[sizeof prefix + 16];
	FILE *file;

	(void)index;
	(void)data;
	pthread_mutex_lock(&lock);
	close_window();
	snprintf(name, sizeof name, "%s%u", prefix, window++);
	file = fopen(name, "w");
	if (file) {
		write_window(file);
		if (fclose(file))
			qemu_plugin_outs("restitch: cannot write the counts of a window\n");
	} else {
		qemu_plugin_outs("restitch: cannot make the file of a window\n");
	}
	pthread_mutex_unlock(&lock);
}

/* --- Translation ----------------------------------------------------------------------------------------- */

/* The code of a unit: bytes of its first instructions, for recognition, and a hash of all. */
struct code {
	uint8_t first[32];
	size_t size;
	uint64_t hash;
};

static struct code code_of(const struct qemu_plugin_tb *translated, size_t length)
{
	struct code code = { .hash = 0xcbf29ce484222325u };

	for (size_t i = 0; i < length; i++) {
		const struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(translated, i);
		uint8_t bytes[16];
		size_t size = qemu_plugin_insn_data(instruction, bytes, sizeof bytes);

		for (size_t at = 0; at < size; at++) {
			if (code.size < sizeof code.first)
				code.first[code.size++] = bytes[at];
			code.hash = (code.hash ^ bytes[at]) * 0x100000001b3u;
		}
	}
	return code;
}

/* The same for a unit, which may end within the pattern. */
static bool looks_like_entry(uint64_t begin, const struct code *code)
{
	uint8_t bytes[8];

	if (code->size >= sizeof bytes)
		return is_entry(code->first, code->size);
	g_byte_array_set_size(translation_buffer, 0);
	if (!qemu_plugin_read_memory_vaddr(begin, translation_buffer, sizeof bytes) ||
	    translation_buffer->length < sizeof bytes)
		return is_entry(code->first, code->size);
	memcpy(bytes, translation_buffer->data, sizeof bytes);
	return is_entry(bytes, sizeof bytes);
}

static void describe(struct unit *unit, const struct qemu_plugin_tb *translated, const struct code *code)
{
	const struct qemu_plugin_insn *instruction = NULL;
	uint8_t bytes[16];
	struct opcode of;

	for (size_t i = 0; i < unit->length; i++) {
		instruction = qemu_plugin_tb_get_insn(translated, i);
		unit->instructions[i].address = qemu_plugin_insn_vaddr(instruction);
		unit->instructions[i].size = qemu_plugin_insn_size(instruction);
	}
	of = opcode(bytes, qemu_plugin_insn_data(instruction, bytes, sizeof bytes));
	unit->kind = kind_of(of);
	unit->repeats = repeats(of);
	unit->returns_from_interrupt = unit->kind == LEAVES && of.bytes[0] == 0xcf;
	unit->end = last_of(unit)->address + last_of(unit)->size;
	unit->target = unit->kind == JUMP ? target_of(of, unit->end) : 0;
	unit->kernel = unit->begin >= KERNEL;
	unit->entry = unit->kernel && looks_like_entry(unit->begin, code);
}

/* The unit for translated code: the one that there was for the same bytes, or a new one. */
static struct unit *unit_for(const struct qemu_plugin_tb *translated, size_t length)
{
	struct code code = code_of(translated, length);
	uint64_t begin = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(translated, 0));
	struct unit **bucket = &units[(begin * 0x9e3779b97f4a7c15u) >> 48 & (BUCKETS - 1)];
	struct unit *unit;

	for (unit = *bucket; unit; unit = unit->next) {
		if (unit->begin != begin || unit->length != length)
			continue;
		if (unit->hash == code.hash)
			return unit;
		changed += begin >= KERNEL;
	}
	unit = calloc(1, sizeof *unit + length * sizeof unit->instructions[0]);
	if (!unit)
		abort();
	unit->begin = begin;
	unit->length = length;
	unit->hash = code.hash;
	describe(unit, translated, &code);
	unit->next = *bucket;
	*bucket = unit;
	return unit;
}

/* The number of a mark, or 0. */
static uint32_t mark(const struct qemu_plugin_insn *instruction)
{
	static const uint8_t nop[] = { 0x0f, 0x1f, 0x80 };
	uint8_t bytes[7];
	uint32_t number;

	if (qemu_plugin_insn_size(instruction) != sizeof bytes ||
	    qemu_plugin_insn_data(instruction, bytes, sizeof bytes) != sizeof bytes ||
	    memcmp(bytes, nop, sizeof nop))
		return 0;
	memcpy(&number, bytes + sizeof nop, sizeof number);
	return number;
}

static void look_for_marks(const struct qemu_plugin_tb *translated, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(translated, i);
		uint32_t number = mark(instruction);

		if (number == MARK_BEGIN)
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, begin_window, NO_REGISTERS, NULL);
		else if (number == MARK_END)
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, end_window, NO_REGISTERS, NULL);
	}
}

static void translate(uint64_t plugin, struct qemu_plugin_tb *translated)
{
	size_t length = qemu_plugin_tb_n_insns(translated);
	struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(translated, length - 1);
	executed *call = step;
	struct unit *unit;

	(void)plugin;
	pthread_mutex_lock(&lock);
	unit = unit_for(translated, length);
	pthread_mutex_unlock(&lock);
	if (!unit->kernel)
		call = step_of_program;
	else if (unit->entry)
		call = step_of_entry;
	qemu_plugin_register_vcpu_tb_exec_cond_cb(translated, call, unit->entry ? READ_REGISTERS : NO_REGISTERS,
						  NOT_EQUAL, open_flag, 0, unit);
	if (unit->kernel)
		qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(last, STORE, done_flag, 1);
	else
		look_for_marks(translated, length);
	if (unit->kernel && unit->returns_from_interrupt)
		qemu_plugin_register_vcpu_insn_exec_cond_cb(last, before_return, READ_REGISTERS, NOT_EQUAL,
							    open_flag, 0, unit);
}

static void processor_begins(uint64_t plugin, unsigned int index)
{
	struct array *registers = qemu_plugin_get_registers();
	const struct register_name *names = (const struct register_name *)registers->data;

	(void)plugin;
	if (index >= MOST_PROCESSORS)
		abort();
	several = index > 0 || several;
	processors[index].buffer = g_byte_array_new();
	for (unsigned int i = 0; i < registers->length; i++) {
		if (!strcmp(names[i].name, "rsp"))
			processors[index].stack_pointer = names[i].handle;
	}
}

EXPORT int qemu_plugin_install(uint64_t plugin, const void *info, int count, char **arguments)
{
	(void)info;
	for (int i = 0; i < count; i++) {
		if (strncmp(arguments[i], "out=", 4) || strlen(arguments[i] + 4) >= sizeof prefix) {
			qemu_plugin_outs("restitch: the plugin takes out=PREFIX\n");
			return -1;
		}
		strcpy(prefix, arguments[i] + 4);
	}
	translation_buffer = g_byte_array_new();
	board = qemu_plugin_scoreboard_new(sizeof(struct flags));
	open_flag = (qemu_plugin_u64){ board, offsetof(struct flags, open) };
	done_flag = (qemu_plugin_u64){ board, offsetof(struct flags, done) };
	qemu_plugin_register_vcpu_init_cb(plugin, processor_begins);
	qemu_plugin_register_vcpu_tb_trans_cb(plugin, translate);
	return 0;
}
