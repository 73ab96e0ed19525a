// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * For tests in guests: has sysfs_remove_group() warn, as it does of a group that is
 * not there, and then go on.
 */
#include <linux/module.h>
#include <linux/sysfs.h>

static int __init trial_begin(void)
{
	static const struct attribute_group none = { .name = "none" };

	sysfs_remove_group(&THIS_MODULE->mkobj.kobj, &none);
	return 0;
}

static void __exit trial_end(void)
{
}

module_init(trial_begin);
module_exit(trial_end);
MODULE_DESCRIPTION("Has the kernel warn");
MODULE_LICENSE("Dual MIT/GPL");
