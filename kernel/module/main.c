// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * restitch-kernel: leads callers of functions of the kernel to copies in group
 * modules, and back.
 *
 * Group modules register from their init. User space names a registered group,
 * and gives neither addresses nor code:
 *
 *	open("/dev/restitch-kernel")		CAP_SYS_MODULE
 *	write("enable NAME\n")			callers are led to the copies
 *	write("disable NAME\n")			and no more
 *	read()					a line for each group:
 *						NAME STATE MEANS FUNCTIONS STANDING
 *
 * A group is enabled until the descriptor that enabled it is closed, so also
 * when its process dies. Then it is "draining" while tasks stand in its copies,
 * for which all stacks are looked at, now and every second. From "enable" to the
 * end of that the group module has one more reference, so it cannot be unloaded.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/kallsyms.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "redirect.h"
#include "restitch-kernel.h"
#include "standing.h"

/* Registered groups, at most. */
#define GROUPS	64
/* Between two looks for tasks that stand in a group. */
#define LOOK_AGAIN	HZ

enum state { REGISTERED, ENABLED, DRAINING };

struct group {
	struct list_head list;
	const struct restitch_group *described;
	enum state state;
	/* The descriptor that enabled it; only to be compared. */
	const struct file *enabler;
	struct redirect *redirects;
	/* Tasks that stood in it at the last look. */
	int standing;
};

static LIST_HEAD(groups);
static unsigned int group_count;
/* Over all of the above. */
static DEFINE_MUTEX(lock);

static void look_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(again, look_again);

static struct group *find(const char *name)
{
	struct group *group;

	list_for_each_entry(group, &groups, list)
		if (!strcmp(group->described->name, name))
			return group;
	return NULL;
}

static void undo(struct group *group, unsigned int count)
{
	while (count)
		redirect_undo(&group->redirects[--count]);
	/* Nobody is on the way to a copy any more, or runs in one without having slept. */
	synchronize_rcu_tasks();
	synchronize_rcu();
	kvfree(group->redirects);
	group->redirects = NULL;
}

/* Gives the group's module back if nobody stands in it. */
static void drain(struct group *group)
{
	group->standing = tasks_standing_in(group->described->owner);
	if (group->standing) {
		schedule_delayed_work(&again, LOOK_AGAIN);
		return;
	}
	group->state = REGISTERED;
	module_put(group->described->owner);
}

static void look_again(struct work_struct *work)
{
	struct group *group;

	mutex_lock(&lock);
	list_for_each_entry(group, &groups, list)
		if (group->state == DRAINING)
			drain(group);
	mutex_unlock(&lock);
}

static void disable(struct group *group)
{
	if (group->state == ENABLED) {
		undo(group, group->described->count);
		group->enabler = NULL;
		group->state = DRAINING;
	}
	if (group->state == DRAINING)
		drain(group);
}

static int enable(struct group *group, const struct file *enabler)
{
	unsigned int i, count = group->described->count;
	int error = 0;

	if (group->state == ENABLED)
		return -EBUSY;
	/* A group that drains still has its reference. */
	if (group->state == REGISTERED && !try_module_get(group->described->owner))
		return -ENODEV;
	group->state = DRAINING;
	group->redirects = kvcalloc(count, sizeof(*group->redirects), GFP_KERNEL);
	if (!group->redirects) {
		drain(group);
		return -ENOMEM;
	}
	for (i = 0; i < count && !error; i++) {
		group->redirects[i].function = group->described->functions[i];
		error = redirect_set(&group->redirects[i]);
	}
	if (error) {
		pr_warn("restitch: %s: %ps cannot be redirected: %d\n", group->described->name,
			(void *)group->redirects[i - 1].function.original, error);
		undo(group, i - 1);
		drain(group);
		return error;
	}
	group->state = ENABLED;
	group->enabler = enabler;
	return 0;
}

/* Whether calls can be led there: code of the group's module, at an even address. */
static bool is_entry(unsigned long address, struct module *owner)
{
	return !(address & 1) && within_module_core(address, owner);
}

/* Whether a symbol of the kernel is there. */
static bool is_symbol(unsigned long address)
{
	char text[KSYM_SYMBOL_LEN];

	sprint_symbol(text, address);
	return strstr(text, "+0x0/");
}

static int check(const struct restitch_group *described)
{
	const struct restitch_group_function *function;
	size_t length = strnlen(described->name, sizeof(described->name));
	u32 i;

	if (described->version != RESTITCH_GROUP_VERSION)
		return -EPROTONOSUPPORT;
	if (!length || length == sizeof(described->name) || strpbrk(described->name, " \n"))
		return -EINVAL;
	if (!described->count || described->count > RESTITCH_GROUP_FUNCTIONS || !described->owner)
		return -EINVAL;
	for (i = 0; i < described->count; i++) {
		function = &described->functions[i];
		if (!is_entry(function->copy, described->owner) ||
		    !is_entry(function->called, described->owner) || !is_symbol(function->original))
			return -EFAULT;
	}
	return 0;
}

int restitch_kernel_register(const struct restitch_group *described)
{
	int error = check(described);
	struct group *group;

	if (error) {
		pr_warn("restitch: a group is not as it should be: %d\n", error);
		return error;
	}
	group = kzalloc(sizeof(*group), GFP_KERNEL);
	if (!group)
		return -ENOMEM;
	group->described = described;
	mutex_lock(&lock);
	if (group_count == GROUPS || find(described->name)) {
		error = group_count == GROUPS ? -ENOSPC : -EEXIST;
		kfree(group);
	} else {
		list_add_tail(&group->list, &groups);
		group_count++;
	}
	mutex_unlock(&lock);
	return error;
}
EXPORT_SYMBOL_GPL(restitch_kernel_register);

void restitch_kernel_unregister(const struct restitch_group *described)
{
	struct group *group;

	mutex_lock(&lock);
	group = find(described->name);
	/* Not registered yet or no more, unless someone unloads by force: then it waits. */
	while (group && group->state != REGISTERED) {
		disable(group);
		mutex_unlock(&lock);
		schedule_timeout_uninterruptible(LOOK_AGAIN);
		mutex_lock(&lock);
	}
	if (group) {
		list_del(&group->list);
		group_count--;
		kfree(group);
	}
	mutex_unlock(&lock);
}
EXPORT_SYMBOL_GPL(restitch_kernel_unregister);

static int show(struct seq_file *out, void *unused)
{
	static const char * const states[] = { "registered", "enabled", "draining" };
	struct group *group;

	mutex_lock(&lock);
	list_for_each_entry(group, &groups, list)
		seq_printf(out, "%s %s %s %u %d\n", group->described->name, states[group->state],
			   redirect_method(), group->described->count, group->standing);
	mutex_unlock(&lock);
	return 0;
}

static int device_open(struct inode *inode, struct file *file)
{
	/* Of a miscellaneous device it is the device, and of a sequential file it has to be nothing. */
	file->private_data = NULL;
	return capable(CAP_SYS_MODULE) ? single_open(file, show, NULL) : -EPERM;
}

static ssize_t device_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	char text[MODULE_NAME_LEN + 16] = "";
	char *name = text, *verb;
	struct group *group;
	int error = 0;

	if (!capable(CAP_SYS_MODULE))
		return -EPERM;
	if (length >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, length))
		return -EFAULT;
	strim(text);
	verb = strsep(&name, " ");
	if (!name)
		return -EINVAL;
	mutex_lock(&lock);
	group = find(name);
	if (!group)
		error = -ENOENT;
	else if (!strcmp(verb, "enable"))
		error = enable(group, file);
	else if (!strcmp(verb, "disable"))
		disable(group);
	else
		error = -EINVAL;
	mutex_unlock(&lock);
	return error ? error : length;
}

static int device_release(struct inode *inode, struct file *file)
{
	struct group *group;

	mutex_lock(&lock);
	list_for_each_entry(group, &groups, list)
		if (group->state == ENABLED && group->enabler == file)
			disable(group);
	mutex_unlock(&lock);
	return single_release(inode, file);
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.read = seq_read,
	.write = device_write,
	.llseek = seq_lseek,
	.release = device_release,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "restitch-kernel",
	.mode = 0600,
	.fops = &device_operations,
};

static int __init restitch_kernel_init(void)
{
	return misc_register(&device);
}

static void __exit restitch_kernel_exit(void)
{
	misc_deregister(&device);
	cancel_delayed_work_sync(&again);
}

module_init(restitch_kernel_init);
module_exit(restitch_kernel_exit);

MODULE_DESCRIPTION("Leads callers of kernel functions to copies in group modules of restitch");
MODULE_AUTHOR("the restitch authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
