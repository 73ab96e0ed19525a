/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How callers of a function of the kernel are led to its copy: by the best
 * means that this kernel's ftrace has. Code is written by ftrace alone.
 */
#ifndef RESTITCH_REDIRECT_H
#define RESTITCH_REDIRECT_H

#include <linux/ftrace.h>

#include "restitch-kernel.h"

/* One function that is redirected. */
struct redirect {
	struct ftrace_ops ops;
	struct restitch_group_function function;
	/* What ftrace was given: needed to undo it. */
	unsigned long target;
};

/* What is used, for people: "jump", "call" or "registers". */
const char *redirect_method(void);
/* Leads callers to the copy. Nothing is changed when this fails. */
int redirect_set(struct redirect *redirect);
/* And back. Who is in the copy stays there. */
void redirect_undo(struct redirect *redirect);

#endif
