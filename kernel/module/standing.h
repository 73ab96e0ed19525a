/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef RESTITCH_STANDING_H
#define RESTITCH_STANDING_H

#include <linux/module.h>

/*
 * How many tasks stand in code of a module: have an address of its text on
 * their stacks. May count too many, never too few, provided that nothing leads
 * into the module any more and synchronize_rcu_tasks() has returned since.
 * Negative: an error, and nothing is known. One call at a time.
 */
int tasks_standing_in(struct module *module);

#endif
