// SPDX-License-Identifier: GPL-2.0 OR MIT
/* See redirect.h. */
#include <linux/moduleparam.h>
#include <linux/trace_recursion.h>
#include <linux/version.h>

#include "redirect.h"

static bool registers;
module_param(registers, bool, 0444);
MODULE_PARM_DESC(registers, "Redirect as live patches do even where this kernel has direct calls");

#ifdef CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS
#define DIRECT 1
#else
#define DIRECT 0
#endif

#ifdef CONFIG_DYNAMIC_FTRACE_WITH_JMP
#define JUMP 1
#else
#define JUMP 0
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
static int direct_set(struct redirect *redirect)
{
	return register_ftrace_direct_multi(&redirect->ops, redirect->target);
}

static int direct_undo(struct redirect *redirect)
{
	int error = unregister_ftrace_direct_multi(&redirect->ops, redirect->target);

	ftrace_set_filter_ip(&redirect->ops, redirect->function.original, 1, 0);
	return error;
}
#else
static int direct_set(struct redirect *redirect)
{
	return register_ftrace_direct(&redirect->ops, redirect->target);
}

static int direct_undo(struct redirect *redirect)
{
	return unregister_ftrace_direct(&redirect->ops, redirect->target, true);
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
#define ftrace_regs_set_instruction_pointer ftrace_instruction_pointer_set
#endif

/* An instruction at an even address has bit 0 free: it says "by a jump". */
static unsigned long direct_target(struct redirect *redirect)
{
#if JUMP && LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
	return ftrace_jmp_set(redirect->function.copy);
#elif JUMP
	/* 6.19: a flag of the operation says so. */
	redirect->ops.flags |= FTRACE_OPS_FL_JMP;
	return redirect->function.copy;
#else
	return redirect->function.called;
#endif
}

static void notrace to_copy(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
			    struct ftrace_regs *fregs)
{
	struct redirect *redirect = container_of(ops, struct redirect, ops);
	int bit = ftrace_test_recursion_trylock(ip, parent);

	/* Without it the original runs, which does the same. */
	if (bit < 0)
		return;
	ftrace_regs_set_instruction_pointer(fregs, redirect->function.copy);
	ftrace_test_recursion_unlock(bit);
}

const char *redirect_method(void)
{
	if (!DIRECT || registers)
		return "registers";
	return JUMP ? "jump" : "call";
}

int redirect_set(struct redirect *redirect)
{
	int error = ftrace_set_filter_ip(&redirect->ops, redirect->function.original, 0, 0);

	if (error)
		return error;
	if (DIRECT && !registers) {
		redirect->target = direct_target(redirect);
		error = direct_set(redirect);
	} else {
		redirect->ops.func = to_copy;
		redirect->ops.flags |= FTRACE_OPS_FL_IPMODIFY;
		if (!IS_ENABLED(CONFIG_HAVE_DYNAMIC_FTRACE_WITH_ARGS))
			redirect->ops.flags |= FTRACE_OPS_FL_SAVE_REGS;
		error = register_ftrace_function(&redirect->ops);
	}
	if (error)
		ftrace_set_filter_ip(&redirect->ops, redirect->function.original, 1, 0);
	return error;
}

void redirect_undo(struct redirect *redirect)
{
	int error;

	if (DIRECT && !registers) {
		error = direct_undo(redirect);
	} else {
		error = unregister_ftrace_function(&redirect->ops);
		ftrace_set_filter_ip(&redirect->ops, redirect->function.original, 1, 0);
	}
	WARN_ON_ONCE(error);
}
