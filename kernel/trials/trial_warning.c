// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * For tests in guests: has sysfs_create_file_ns() warn, as it does of a file of
 * nothing, and then go on. Loads if the call has done what it does.
 */
#include <linux/module.h>
#include <linux/sysfs.h>

static int __init trial_begin(void)
{
	return sysfs_create_file_ns(NULL, NULL, NULL) == -EINVAL ? 0 : -EIO;
}

static void __exit trial_end(void)
{
}

module_init(trial_begin);
module_exit(trial_end);
MODULE_DESCRIPTION("Has the kernel warn");
MODULE_LICENSE("Dual MIT/GPL");
