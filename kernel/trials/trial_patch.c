// SPDX-License-Identifier: GPL-2.0 OR MIT
/* For tests in guests: a live patch of cmdline_proc_show(), by which /proc/cmdline is `patched`. */
#include <linux/livepatch.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static int patched_show(struct seq_file *file, void *unused)
{
	seq_puts(file, "patched\n");
	return 0;
}

static struct klp_func functions[] = {
	{ .old_name = "cmdline_proc_show", .new_func = patched_show },
	{}
};

static struct klp_object objects[] = {
	/* No name: the kernel itself. */
	{ .funcs = functions },
	{}
};

static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

static int __init trial_begin(void)
{
	return klp_enable_patch(&patch);
}

static void __exit trial_end(void)
{
}

module_init(trial_begin);
module_exit(trial_end);
MODULE_DESCRIPTION("A live patch");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_INFO(livepatch, "Y");
