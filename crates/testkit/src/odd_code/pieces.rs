//! Pieces of functions. Each leaves `%rdi`, `%rsi` and the stack as they were, changes `%rax`, and may use
//! `%rcx`, `%rdx`, `%r8` to `%r11`.

use super::text::Text;

/// A piece; `index` is the number of the function that it is in. Functions of lower numbers may be called.
pub(super) type Piece = fn(&mut Text, index: usize);

/// All pieces, by name, with their weights.
pub(super) const PIECES: &[(&str, u64, Piece)] = &[
    ("arithmetic", 8, arithmetic),
    ("branch", 8, branch),
    ("either", 5, either),
    ("loop", 3, counted_loop),
    ("loop instruction", 2, loop_instruction),
    ("island", 4, island),
    ("data behind", 4, data_behind),
    ("data by index", 4, data_by_index),
    ("vector constant", 2, vector_constant),
    ("call", 4, call),
    ("indirect call", 3, indirect_call),
    ("call through a table", 2, call_through_table),
    ("table", 4, table),
    ("table in code", 4, table_in_code),
    ("table of addresses", 2, table_of_addresses),
    ("computed goto", 3, computed_goto),
    ("call and pop", 2, call_and_pop),
    ("thunk", 2, thunk),
    ("argument behind the call", 2, argument_behind_call),
    ("local subroutine", 2, local_subroutine),
    ("push and return", 2, push_and_return),
    ("flags over a jump", 3, flags_over_jump),
    ("flags kept", 2, flags_kept),
    ("flags over calls", 2, flags_over_calls),
    ("lock skipped", 2, lock_skipped),
    ("overlapping instructions", 2, overlapping_instructions),
    ("junk skipped", 2, junk_skipped),
    ("own bytes", 2, own_bytes),
    ("other's bytes", 1, others_bytes),
    ("pointers compared", 2, pointers_compared),
    ("base and offset", 2, base_and_offset),
    ("address in code", 2, address_in_code),
    ("red zone", 3, red_zone),
    ("second by pointer", 2, second_by_pointer),
    ("second by a word", 2, second_by_word),
    ("second's bytes", 1, seconds_bytes),
    ("many bytes", 1, many_bytes),
    ("return address exchanged", 1, return_address_exchanged),
    ("jump to a function", 2, jump_to_function),
];

fn arithmetic(text: &mut Text, _: usize) {
    let n = text.random.below(60) + 1;
    let line = match text.random.below(9) {
        0 => format!("add ${n}, %rax"),
        1 => "add %rdi, %rax".into(),
        2 => "xor %rsi, %rax".into(),
        3 => format!("rol ${n}, %rax"),
        4 => format!("imul ${}, %rax, %rax", 2 * n + 1),
        5 => "lea 7(%rax,%rsi,4), %rax".into(),
        6 => "bswap %rax".into(),
        7 => "not %rax".into(),
        _ => "sub %rdi, %rax".into(),
    };
    text.line(line);
}

/// A test of a few bits, and the condition on which something is skipped.
fn test(text: &mut Text) -> &'static str {
    let mask = 1 << text.random.below(7);
    let register = text.random.pick(&["%sil", "%dil", "%al"]);
    text.line(format!("test ${mask}, {register}"));
    text.random.pick(&["je", "jne", "js", "jns"])
}

fn branch(text: &mut Text, index: usize) {
    let jump = test(text);
    let over = text.label();
    text.line(format!("{jump} {over}"));
    for _ in 0..1 + text.random.below(3) {
        arithmetic(text, index);
    }
    text.line(format!("{over}:"));
}

fn either(text: &mut Text, index: usize) {
    let jump = test(text);
    let (other, end) = (text.label(), text.label());
    text.line(format!("{jump} {other}"));
    arithmetic(text, index);
    text.line(format!("jmp {end}\n{other}:"));
    arithmetic(text, index);
    arithmetic(text, index);
    text.line(format!("{end}:"));
}

fn counted_loop(text: &mut Text, index: usize) {
    let (top, n) = (text.label(), 1 + text.random.below(5));
    text.line(format!("mov ${n}, %ecx\n{top}:"));
    arithmetic(text, index);
    text.line(format!("dec %ecx\njnz {top}"));
}

fn loop_instruction(text: &mut Text, index: usize) {
    let (top, end) = (text.label(), text.label());
    text.line(format!("mov %esi, %ecx\nand $3, %ecx\njrcxz {end}\n{top}:"));
    arithmetic(text, index);
    text.line(format!("loop {top}\n{end}:"));
}

/// Something that reads a constant at `place`.
fn read(text: &mut Text, place: &str) {
    let line = match text.random.below(5) {
        0 => format!("add {place}(%rip), %rax"),
        1 => format!("xor {place}(%rip), %rax"),
        2 => format!("mov {place}(%rip), %ecx\nadd %rcx, %rax"),
        3 => format!("movzbl {place}+3(%rip), %ecx\nsub %rcx, %rax"),
        _ => format!("lea {place}(%rip), %rdx\nxor (%rdx), %rax"),
    };
    text.line(line);
}

/// Constants that control jumps over.
fn island(text: &mut Text, _: usize) {
    let (data, over) = (text.label(), text.label());
    let first = text.random.one_in(2);
    if first {
        read(text, &data);
    }
    text.line(format!("jmp {over}"));
    if text.random.one_in(2) {
        text.line(".p2align 3");
    }
    let words = 1 + text.random.below(4) as usize;
    let island = text.data(&data, words, 8);
    text.line(format!("{island}{over}:"));
    if !first {
        read(text, &data);
    }
}

/// Constants behind the function's last instruction.
fn data_behind(text: &mut Text, _: usize) {
    let data = text.label();
    read(text, &data);
    let words = text.data(&data, 1, 8);
    text.behind.push_str(&words);
}

fn data_by_index(text: &mut Text, _: usize) {
    let data = text.label();
    let load = text.random.pick(&[
        "movslq (%rdx,%rcx,4), %rdx",
        "mov (%rdx,%rcx,4), %edx",
        "movzbl (%rdx,%rcx), %edx",
        "movzwl (%rdx,%rcx,2), %edx",
    ]);
    text.line(format!("lea {data}(%rip), %rdx\nmov %esi, %ecx\nand $7, %ecx\n{load}\nadd %rdx, %rax"));
    let words = text.data(&data, 8, 4);
    match text.random.one_in(2) {
        true => text.behind.push_str(&words),
        false => {
            let over = text.label();
            text.line(format!("jmp {over}\n{words}{over}:"));
        }
    }
}

fn vector_constant(text: &mut Text, _: usize) {
    let data = text.label();
    text.line(format!("movdqu {data}(%rip), %xmm0\nmovq %xmm0, %rcx\npsrldq $8, %xmm0\nmovq %xmm0, %rdx"));
    text.line("xor %rcx, %rax\nadd %rdx, %rax");
    let words = text.data(&data, 2, 8);
    text.behind.push_str(&words);
}

/// Calls something and adds what it returns, which depends on the accumulator too.
fn around_call(text: &mut Text, call: &str) {
    for register in ["%rdi", "%rsi", "%rax"] {
        text.push(register);
    }
    text.line("xor %rax, %rdi");
    text.line(call);
    text.line("mov %rax, %rcx");
    for register in ["%rax", "%rsi", "%rdi"] {
        text.pop(register);
    }
    text.line("add %rcx, %rax");
}

/// A function that may be called from the one of this number.
fn callee(text: &mut Text, index: usize) -> Option<usize> {
    (index > 0).then(|| text.random.below(index as u64) as usize)
}

fn call(text: &mut Text, index: usize) {
    let Some(callee) = callee(text, index) else { return arithmetic(text, index) };
    // The second entry of a function is called as well.
    let entry = if text.random.one_in(3) { format!("f{callee}_second") } else { format!("f{callee}") };
    around_call(text, &format!("call {entry}"));
}

fn indirect_call(text: &mut Text, index: usize) {
    let Some(callee) = callee(text, index) else { return arithmetic(text, index) };
    around_call(text, &format!("lea f{callee}(%rip), %r11\ncall *%r11"));
}

fn call_through_table(text: &mut Text, index: usize) {
    let Some(callee) = callee(text, index) else { return arithmetic(text, index) };
    around_call(text, &format!("lea functions(%rip), %r11\ncall *{}(%r11)", 8 * callee));
}

/// The cases of a table, each of which goes on at `end`.
fn cases(text: &mut Text, index: usize, end: &str) -> Vec<String> {
    let cases: Vec<String> = (0..4).map(|_| text.label()).collect();
    for case in &cases {
        text.line(format!("{case}:"));
        arithmetic(text, index);
        text.line(format!("jmp {end}"));
    }
    cases
}

/// A table of relative entries in read-only data, as compilers make it, but perhaps without a bounds check.
fn table(text: &mut Text, index: usize) {
    let (table, end) = (text.label(), text.label());
    text.line("mov %esi, %ecx\nand $3, %ecx");
    if text.random.one_in(2) {
        text.line(format!("cmp $3, %ecx\nja {end}"));
    }
    text.line(format!("lea {table}(%rip), %rdx\nmovslq (%rdx,%rcx,4), %rcx\nadd %rdx, %rcx\njmp *%rcx"));
    let cases = cases(text, index, &end);
    text.line(format!("{end}:\n.pushsection .rodata\n.p2align 2\n{table}:"));
    for case in cases {
        text.line(format!(".long {case} - {table}"));
    }
    text.line(".popsection");
}

/// The same with the table behind its jump.
fn table_in_code(text: &mut Text, index: usize) {
    let (table, end) = (text.label(), text.label());
    let cases: Vec<String> = (0..4).map(|_| text.label()).collect();
    text.line("mov %esi, %ecx\nand $3, %ecx");
    let size = text.random.pick(&[".long", ".byte"]);
    let load = if size == ".long" { "movslq (%rdx,%rcx,4), %rcx" } else { "movsbq (%rdx,%rcx), %rcx" };
    text.line(format!("lea {table}(%rip), %rdx\n{load}\nadd %rdx, %rcx\njmp *%rcx\n{table}:"));
    for case in &cases {
        text.line(format!("{size} {case} - {table}"));
    }
    for case in &cases {
        text.line(format!("{case}:"));
        arithmetic(text, index);
        text.line(format!("jmp {end}"));
    }
    text.line(format!("{end}:"));
}

/// A table of addresses, which the loader fills; in the code where it may write there.
fn table_of_addresses(text: &mut Text, index: usize) {
    let (table, end, dispatch) = (text.label(), text.label(), text.label());
    text.line(format!("jmp {dispatch}"));
    let cases = cases(text, index, &end);
    let words: String = cases.iter().map(|case| format!(".quad {case}\n")).collect();
    let in_code = (text.text_relocations || text.fixed) && text.random.one_in(2);
    match in_code {
        true => text.line(format!("{table}:\n{words}")),
        false => {
            text.line(format!(".pushsection .data.rel.ro, \"aw\"\n.p2align 3\n{table}:\n{words}.popsection"))
        }
    }
    text.line(format!("{dispatch}:\nmov %esi, %ecx\nand $3, %ecx\nlea {table}(%rip), %rdx"));
    text.line(text_of_dispatch(text.fixed, &table));
    text.line(format!("{end}:"));
}

fn text_of_dispatch(fixed: bool, table: &str) -> String {
    match fixed {
        true => format!("jmp *{table}(,%rcx,8)"),
        false => "jmp *(%rdx,%rcx,8)".into(),
    }
}

fn computed_goto(text: &mut Text, index: usize) {
    let (one, other, end) = (text.label(), text.label(), text.label());
    text.line(format!("lea {one}(%rip), %rcx\nlea {other}(%rip), %rdx"));
    text.line("test $1, %sil\ncmovne %rdx, %rcx\njmp *%rcx");
    text.line(format!("{one}:"));
    arithmetic(text, index);
    text.line(format!("jmp {end}\n{other}:"));
    arithmetic(text, index);
    text.line(format!("{end}:"));
}

/// The program counter by a call of the next instruction.
fn call_and_pop(text: &mut Text, _: usize) {
    let (here, data) = (text.label(), text.label());
    text.line(format!("call {here}"));
    text.adjust(8);
    text.line(format!("{here}:"));
    text.pop("%rdx");
    text.line(format!("mov {data} - {here}(%rdx), %ecx\nadd %rcx, %rax"));
    let words = text.data(&data, 1, 8);
    text.behind.push_str(&words);
}

/// The program counter by a function that returns its return address.
fn thunk(text: &mut Text, _: usize) {
    let (here, data) = (text.label(), text.label());
    text.line(format!("call thunk\n{here}:\nmov {data} - {here}(%rcx), %ecx\nadd %rcx, %rax"));
    let words = text.data(&data, 1, 8);
    text.behind.push_str(&words);
}

/// A word behind the call, which the callee reads and steps over.
fn argument_behind_call(text: &mut Text, _: usize) {
    let data = text.label();
    text.line("call take_argument");
    let word = text.data(&data, 1, 4);
    text.line(word);
    text.line("add %rcx, %rax");
}

/// A call of a place in the same function, which returns in the ordinary way.
fn local_subroutine(text: &mut Text, index: usize) {
    let (subroutine, over) = (text.label(), text.label());
    text.line(format!("call {subroutine}\ncall {subroutine}\njmp {over}\n{subroutine}:"));
    text.adjust(8);
    arithmetic(text, index);
    text.line("ret");
    text.adjust(-8);
    text.line(format!("{over}:"));
}

/// A jump by way of the stack.
fn push_and_return(text: &mut Text, index: usize) {
    let (one, end) = (text.label(), text.label());
    text.line(format!("lea {one}(%rip), %rcx\npush %rcx"));
    text.adjust(8);
    text.line("ret");
    text.adjust(-8);
    text.line(format!("{one}:"));
    arithmetic(text, index);
    text.line(format!("{end}:"));
}

/// Flags that are set in front of a jump and read behind it.
fn flags_over_jump(text: &mut Text, index: usize) {
    let (there, over) = (text.label(), text.label());
    let jump = text.random.pick(&["jb", "ja", "jl", "jge", "jo", "jp"]);
    text.line(format!("cmp %rdi, %rax\njmp {there}"));
    let between = text.label();
    let filler = text.data(&between, 1, 1);
    text.line(filler);
    text.line(format!("{there}:\n{jump} {over}"));
    arithmetic(text, index);
    text.line(format!("{over}:"));
}

fn flags_kept(text: &mut Text, index: usize) {
    let over = text.label();
    text.line(format!(
        "add %rdi, %rax\nlea 3(%rax), %rax\nmov %rsi, %rcx\njnc {over}\nadc $1, %rax\n{over}:"
    ));
    text.line("sbb %rcx, %rcx\nadd %rcx, %rax");
    arithmetic(text, index);
}

/// One function leaves flags, which the next one reads.
fn flags_over_calls(text: &mut Text, _: usize) {
    text.line("lea 1(%rdi), %rcx\ncall leave_flags\ncall take_flags\nadd %rcx, %rax");
}

/// As the C library: a branch over a `lock` prefix.
fn lock_skipped(text: &mut Text, _: usize) {
    text.line("lea scratch(%rip), %rdx\nmov %rsi, (%rdx)\ntest $1, %dil\nje .+3\nlock addq $5, (%rdx)");
    text.line("add (%rdx), %rax");
}

/// A jump into the middle of an instruction.
fn overlapping_instructions(text: &mut Text, _: usize) {
    let (here, jump) = (text.label(), test(text));
    text.line(format!("{jump} {here} + 2\n{here}:\n.byte 0x41, 0xb8, 0x90, 0x90, 0x90, 0x90\nadd $3, %rax"));
}

/// A byte that begins an instruction and is never executed.
fn junk_skipped(text: &mut Text, index: usize) {
    let over = text.label();
    let junk = text.random.pick(&[0x48u8, 0xe8, 0x0f, 0xb8, 0x66, 0x05, 0xc3, 0x06]);
    text.line(format!("jmp {over}\n.byte {junk:#x}\n{over}:"));
    arithmetic(text, index);
}

/// Reads the function's own code.
fn own_bytes(text: &mut Text, index: usize) {
    let line = match text.random.below(3) {
        0 => format!("movzbl f{index}(%rip), %ecx"),
        1 => format!("mov f{index}+1(%rip), %ecx"),
        _ => format!("lea f{index}(%rip), %rdx\nmov %esi, %ecx\nand $3, %ecx\nmovzbl (%rdx,%rcx), %ecx"),
    };
    text.line(line);
    text.line("add %rcx, %rax");
}

/// Reads the code of another function.
fn others_bytes(text: &mut Text, index: usize) {
    let Some(other) = callee(text, index) else { return arithmetic(text, index) };
    text.line(format!("mov f{other}(%rip), %ecx\nxor %rcx, %rax"));
}

/// One address, made in two ways.
fn pointers_compared(text: &mut Text, index: usize) {
    let other = text.random.below(index as u64 + 1) as usize;
    text.line(format!("lea f{other}(%rip), %rcx\nlea functions(%rip), %rdx\nxor %r8d, %r8d"));
    text.line(format!("cmp {}(%rdx), %rcx\nsete %r8b\nadd %r8, %rax", 8 * other));
}

/// The address of data from that of the function, as in the large code model.
fn base_and_offset(text: &mut Text, index: usize) {
    text.line(format!("lea f{index}(%rip), %rdx\nmovabs $constants - f{index}, %rcx\nadd %rdx, %rcx"));
    text.line("mov 8(%rcx), %ecx\nadd %rcx, %rax");
}

/// An address in an instruction: a number where the program has fixed addresses, and what the loader writes
/// elsewhere.
fn address_in_code(text: &mut Text, index: usize) {
    if !text.text_relocations && !text.fixed {
        return arithmetic(text, index);
    }
    let line = match text.random.below(2) {
        0 => "movabs $constants, %rdx\nadd (%rdx), %rax",
        _ => "mov %rax, %rcx\nmovabs constants, %rax\nadd %rcx, %rax",
    };
    text.line(line);
}

/// Memory below the stack pointer, which nobody may touch.
fn red_zone(text: &mut Text, index: usize) {
    let at = -8 * (1 + text.random.below(15) as i64);
    text.line(format!("mov %rsi, {at}(%rsp)"));
    branch(text, index);
    branch(text, index);
    text.line(format!("add {at}(%rsp), %rax"));
}

/// Calls the second entry of a function, whose address an instruction makes.
fn second_by_pointer(text: &mut Text, index: usize) {
    let Some(callee) = callee(text, index) else { return arithmetic(text, index) };
    around_call(text, &format!("lea f{callee}_second(%rip), %r11\ncall *%r11"));
}

/// The same with the address in a word of data.
fn second_by_word(text: &mut Text, index: usize) {
    let Some(callee) = callee(text, index) else { return arithmetic(text, index) };
    let word = text.label();
    text.line(format!(".pushsection .data.rel.ro, \"aw\"\n.p2align 3\n{word}: .quad f{callee}_second"));
    text.line(".popsection");
    around_call(text, &format!("call *{word}(%rip)"));
}

/// Reads code at the second entry of a function: its own, or another one's.
fn seconds_bytes(text: &mut Text, index: usize) {
    let other = text.random.below(index as u64 + 1) as usize;
    let at = text.random.below(12) as i64 - 6;
    text.line(format!("mov f{other}_second + {at}(%rip), %ecx\nadd %rcx, %rax"));
}

/// Reads many bytes of code by string instructions, from the entry of a function on.
fn many_bytes(text: &mut Text, index: usize) {
    let other = text.random.below(index as u64 + 1) as usize;
    for register in ["%rsi", "%rax"] {
        text.push(register);
    }
    let (top, count) = (text.label(), 1 + text.random.below(3));
    text.line(format!("lea f{other}(%rip), %rsi\nmov ${count}, %ecx\nxor %edx, %edx\n{top}:"));
    text.line(format!("lodsl\nadd %rax, %rdx\ndec %ecx\njnz {top}"));
    for register in ["%rax", "%rsi"] {
        text.pop(register);
    }
    text.line("add %rdx, %rax");
}

/// A subroutine that takes its return address from the stack by `xchg` and jumps there.
fn return_address_exchanged(text: &mut Text, index: usize) {
    let (subroutine, back, over) = (text.label(), text.label(), text.label());
    text.line(format!("call {subroutine}\n{back}:"));
    arithmetic(text, index);
    text.line(format!("jmp {over}\n{subroutine}:"));
    text.adjust(8);
    text.line("mov %rax, %rcx\nxchg %rcx, (%rsp)");
    text.pop("%rax");
    arithmetic(text, index);
    text.line(format!("jmp *%rcx\n{over}:"));
}

/// A call without `call`: the address to return to is made and pushed.
fn jump_to_function(text: &mut Text, index: usize) {
    let Some(callee) = callee(text, index) else { return arithmetic(text, index) };
    let back = text.label();
    for register in ["%rdi", "%rsi", "%rax"] {
        text.push(register);
    }
    text.line(format!("xor %rax, %rdi\nlea {back}(%rip), %r11\npush %r11"));
    text.adjust(8);
    text.line(format!("jmp f{callee}"));
    text.adjust(-8);
    text.line(format!("{back}:\nmov %rax, %rcx"));
    for register in ["%rax", "%rsi", "%rdi"] {
        text.pop(register);
    }
    text.line("add %rcx, %rax");
}
