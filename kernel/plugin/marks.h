/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Marks in a guest's programs: no-operations whose operand is a number that nobody else uses. What a guest
 * executes between MARK(MARK_BEGIN) and MARK(MARK_END) is a window, which the plugin counts.
 */
#ifndef MARKS_H
#define MARKS_H

#define MARK_BEGIN 0x52535401
#define MARK_END 0x52535402

#define MARK_TEXT(number) #number
/* nopl NUMBER(%rax), always with four bytes of displacement. */
#define MARK(number) __asm__ volatile(".byte 0x0f, 0x1f, 0x80\n\t.long " MARK_TEXT(number) ::: "memory")

#endif
