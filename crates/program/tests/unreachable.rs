//! Jump tables with entries that the compiler knows to be unreachable: clang sends them to the end of the
//! function, where no code is.

use restitch_address::Svma;
use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{EdgeKind, Program, Terminator, analyze};
use restitch_testkit::{compile, scratch, skipped};

/// A switch over 0 to 5 as clang writes it; entries 1 and 4 lead to the end of the function, in front of
/// padding.
const SOURCE: &str = r#"
__asm__(
    ".text\n.p2align 4\n.globl chosen\n.type chosen,@function\nchosen:\n.cfi_startproc\n"
    "cmpl $5, %edi\nja 6f\nmovl %edi, %eax\nleaq 9f(%rip), %rcx\nmovslq (%rcx,%rax,4), %rax\naddq %rcx, %rax\njmp *%rax\n"
    "1: movl $10, %eax\nret\n2: movl $20, %eax\nret\n3: movl $30, %eax\nret\n4: movl $40, %eax\nret\n6: xorl %eax, %eax\nret\n"
    "5:\n.cfi_endproc\n.size chosen, .-chosen\nnopw 0(%rax,%rax)\n.p2align 4\n"
    ".section .rodata\n.p2align 2\n9: .long 1b-9b, 5b-9b, 2b-9b, 3b-9b, 5b-9b, 4b-9b\n.text\n");
int chosen(int);
int main(int argc, char **argv) { return chosen(argc + 1) != 20; }
"#;

fn analyzed() -> Option<(Image, Program)> {
    let folder = scratch();
    let source = folder.path().join("unreachable.c");
    std::fs::write(&source, SOURCE).unwrap();
    let path = match compile(&source, &["-O2"]) {
        Ok(path) => path,
        Err(error) => {
            skipped(&error.to_string());
            return None;
        }
    };
    let image = Image::parse(std::fs::read(path).unwrap()).unwrap();
    let at = image.eh_frame().unwrap();
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap(), at.start).unwrap();
    let program = analyze(&image, &unwind).unwrap();
    assert_eq!(program.validate(), Ok(()));
    Some((image, program))
}

#[test]
fn a_table_goes_on_behind_entries_that_are_unreachable() {
    let Some((image, program)) = analyzed() else { return };
    let function = image.symbols_named("chosen").next().unwrap().range;
    let table = program.tables.iter().find(|t| function.contains(t.jump_at)).expect("the table is found");
    assert!(table.copyable);
    assert_eq!(table.targets.len(), 6, "all of it: {table:?}");
    let nowhere: Vec<usize> = (0..6).filter(|i| table.targets[*i] == function.end).collect();
    assert_eq!(nowhere, [1, 4]);
    assert!(program.is_unreachable_entry(function.end) && !program.is_unreachable_entry(function.start));
    let block = program.block_ids().find(|b| program.block(*b).terminator_at() == table.jump_at).unwrap();
    assert!(matches!(program.block(block).terminator, Terminator::Table(_)));
    let edges: Vec<Svma> = program
        .out_edges(block)
        .filter(|e| e.1.kind == EdgeKind::Table)
        .map(|e| program.block(e.1.to).start)
        .collect();
    assert_eq!(edges.len(), 4, "what is unreachable has no edge");
}
