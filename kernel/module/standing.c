// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Whether tasks stand in code of a module.
 *
 * Everything stops (stop_machine) for one look at all stacks, word by word:
 * what runs no more has its place in its stack, an interrupted place included.
 * The words need no unwind table that could be wrong; a word that is left over
 * from earlier counts too, until it is overwritten. What the words lack are
 * return addresses that a tracer keeps elsewhere (kretprobes, the function
 * graph tracer): the unwinder knows these. Where it gives up, the task counts.
 *
 * Idle tasks are not looked at: what they call with interrupts goes back before
 * the processor stops. Nor are tasks that are at their very end, which are in
 * no list: synchronize_rcu_tasks() has waited for them.
 */
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sched/task_stack.h>
#include <linux/stop_machine.h>
#include <linux/version.h>
#include <asm/unwind.h>

#include "standing.h"

/* Frames of one stack: more than the deepest has room for. */
#define FRAMES	1024

struct look {
	unsigned long start;
	unsigned long end;
	int standing;
};

static struct look look_at_text(struct module *module)
{
	struct look look = {};

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
	look.start = (unsigned long)module->core_layout.base;
	look.end = look.start + module->core_layout.text_size;
#else
	look.start = (unsigned long)module->mem[MOD_TEXT].base;
	look.end = look.start + module->mem[MOD_TEXT].size;
#endif
	return look;
}

static bool is_inside(const struct look *look, unsigned long address)
{
	/* A call may be the last instruction: it returns to the end. */
	return look->start <= address && address <= look->end;
}

static bool is_in_words(const struct look *look, struct task_struct *task)
{
	unsigned long *end = (unsigned long *)((unsigned long)task_stack_page(task) + THREAD_SIZE);
	unsigned long *word = (unsigned long *)task_stack_page(task);
	unsigned long sp = READ_ONCE(task->thread.sp);

	/* Who runs is the stopper itself: all of its stack. */
	if (task != current && sp >= (unsigned long)word && sp < (unsigned long)end)
		word = (unsigned long *)round_down(sp, sizeof(*word));
	for (; word < end; word++)
		if (is_inside(look, READ_ONCE_NOCHECK(*word)))
			return true;
	return false;
}

static bool is_in_frames(const struct look *look, struct task_struct *task)
{
	struct unwind_state state;
	int frames = 0;

	for (unwind_start(&state, task, NULL, NULL); !unwind_done(&state); unwind_next_frame(&state))
		if (is_inside(look, unwind_get_return_address(&state)) || ++frames > FRAMES)
			return true;
	return unwind_error(&state);
}

/* Runs while no other code does. */
static int count_standing(void *data)
{
	struct look *look = data;
	struct task_struct *process, *task;

	for_each_process_thread(process, task) {
		/* Dead, and its stack given back. */
		if (!task_stack_page(task))
			continue;
		if (is_in_words(look, task) || is_in_frames(look, task))
			look->standing++;
	}
	return 0;
}

int tasks_standing_in(struct module *module)
{
	struct look look = look_at_text(module);
	int error = stop_machine(count_standing, &look, NULL);

	return error ? error : look.standing;
}
