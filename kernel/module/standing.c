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

/* One at a time (its callers hold a lock), and on no stack: there its addresses would be found. */
static struct {
	unsigned long start;
	unsigned long end;
	int standing;
} look;

static void look_at_text(struct module *module)
{
	look.standing = 0;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
	look.start = (unsigned long)module->core_layout.base;
	look.end = look.start + module->core_layout.text_size;
#else
	look.start = (unsigned long)module->mem[MOD_TEXT].base;
	look.end = look.start + module->mem[MOD_TEXT].size;
#endif
}

static bool is_inside(unsigned long address)
{
	/* A call may be the last instruction: it returns to the end. */
	return look.start <= address && address <= look.end;
}

/* While everything stands still: whether it is what has stopped one of the processors. */
static bool is_stopper(const struct task_struct *task)
{
#ifdef CONFIG_SMP
	return READ_ONCE(task->on_cpu);
#else
	return task == current;
#endif
}

static bool is_in_words(struct task_struct *task)
{
	unsigned long *end = (unsigned long *)((unsigned long)task_stack_page(task) + THREAD_SIZE);
	unsigned long *word = (unsigned long *)task_stack_page(task);
	unsigned long sp = READ_ONCE(task->thread.sp);

	/* Where the stack of one that runs ends is not known: all of it. */
	if (!is_stopper(task) && sp >= (unsigned long)word && sp < (unsigned long)end)
		word = (unsigned long *)round_down(sp, sizeof(*word));
	for (; word < end; word++)
		if (is_inside(READ_ONCE_NOCHECK(*word)))
			return true;
	return false;
}

static bool is_in_frames(struct task_struct *task)
{
	struct unwind_state state;
	int frames = 0;

	for (unwind_start(&state, task, NULL, NULL); !unwind_done(&state); unwind_next_frame(&state))
		if (is_inside(unwind_get_return_address(&state)) || ++frames > FRAMES)
			return true;
	return unwind_error(&state);
}

static bool stands(struct task_struct *task)
{
	/* Its words hold what it looks for. */
	if (task == current)
		return is_in_frames(task);
	/* The unwinder refuses stacks in use. */
	return is_in_words(task) || (!is_stopper(task) && is_in_frames(task));
}

/* Runs while no other code does. */
static int count_standing(void *data)
{
	struct task_struct *process, *task;

	for_each_process_thread(process, task) {
		/* Without a stack it is dead. */
		if (task_stack_page(task) && stands(task))
			look.standing++;
	}
	return 0;
}

int tasks_standing_in(struct module *module)
{
	int error;

	look_at_text(module);
	error = stop_machine(count_standing, NULL, NULL);
	return error ? error : look.standing;
}
