/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a group module gives to restitch-kernel. A group module is written by
 * restitch, without a compiler: these are the layouts that it writes.
 */
#ifndef RESTITCH_KERNEL_H
#define RESTITCH_KERNEL_H

#include <linux/module.h>
#include <linux/types.h>

/* Of the structures below. */
#define RESTITCH_GROUP_VERSION	1
/* Functions of a group that calls can be led to, at most. */
#define RESTITCH_GROUP_FUNCTIONS	4096

/* A function whose callers are led to a copy. */
struct restitch_group_function {
	/* The function of the kernel: where its symbol is. */
	unsigned long original;
	/* Its copy in the group module, at an even address. */
	unsigned long copy;
	/*
	 * Code that drops a return address from the stack and runs on into the
	 * copy, for kernels that reach a copy by a call; at an even address.
	 */
	unsigned long called;
};

struct restitch_group {
	u32 version;
	/* Entries of functions. */
	u32 count;
	char name[MODULE_NAME_LEN];
	struct module *owner;
	const struct restitch_group_function *functions;
};

/* From the group module's init and exit. */
int restitch_kernel_register(const struct restitch_group *group);
void restitch_kernel_unregister(const struct restitch_group *group);

#endif
