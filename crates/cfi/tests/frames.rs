//! From frames to their callers.

use restitch_address::{Avma, Svma};
use restitch_cfi::*;
use std::collections::HashMap;

/// A stack: words by address.
fn reader(words: &[(u64, u64)]) -> impl FnMut(Avma) -> Option<u64> {
    let words: HashMap<u64, u64> = words.iter().copied().collect();
    move |at| words.get(&at.get()).copied()
}

fn registers(rip: u64, rsp: u64) -> Registers {
    Registers::default().with(Register::RIP, rip).with(Register::RSP, rsp)
}

#[test]
fn at_entry_the_return_address_is_on_top() {
    let regs = registers(0x1000, 0x7000).with(Register::RBX, 5);
    let step = step(&FrameState::at_entry(), &regs, &mut reader(&[(0x7000, 0x2005)])).unwrap();
    assert_eq!(step.cfa, Avma::new(0x7008));
    assert_eq!(step.return_address_slot, Some(Avma::new(0x7000)));
    assert_eq!(step.caller, registers(0x2005, 0x7008).with(Register::RBX, 5));
}

#[test]
fn saved_registers_come_back() {
    let mut state = FrameState::at_entry();
    state.cfa = Cfa::RegisterOffset { register: Register::RBP, offset: 16 };
    state.registers = vec![
        (Register::RBX, RegisterRule::Offset(-24)),
        (Register::RBP, RegisterRule::Offset(-16)),
        (Register::R12, RegisterRule::Register(Register::RAX)),
        (Register::R13, RegisterRule::ValOffset(32)),
        (Register::R14, RegisterRule::Undefined),
        (Register::R15, RegisterRule::SameValue),
        (Register::RIP, RegisterRule::Offset(-8)),
    ];
    let regs = registers(0x1000, 0x6000)
        .with(Register::RBP, 0x7000)
        .with(Register::RAX, 12)
        .with(Register::R14, 14)
        .with(Register::R15, 15);
    let stack = [(0x6ff8, 3), (0x7000, 0x8000), (0x7008, 0x2005)];
    let step = step(&state, &regs, &mut reader(&stack)).unwrap();
    let wanted = registers(0x2005, 0x7010)
        .with(Register::RBX, 3)
        .with(Register::RBP, 0x8000)
        .with(Register::RAX, 12)
        .with(Register::R12, 12)
        .with(Register::R13, 0x7030)
        .with(Register::R15, 15);
    assert_eq!(step.caller, wanted);
    assert_eq!(step.return_address_slot, Some(Avma::new(0x7008)));
}

#[test]
fn an_undefined_return_address_ends_the_stack() {
    let mut state = FrameState::at_entry();
    state.registers[0].1 = RegisterRule::Undefined;
    let step = step(&state, &registers(0x1000, 0x7000), &mut reader(&[])).unwrap();
    assert_eq!((step.caller.rip(), step.return_address_slot), (None, None));
}

#[test]
fn what_is_missing_is_named() {
    let state = FrameState::at_entry();
    let error = step(&state, &Registers::default(), &mut reader(&[])).unwrap_err();
    assert_eq!(error, CfiError::UnknownRegister { register: Register::RSP });
    let error = step(&state, &registers(1, 0x7000), &mut reader(&[])).unwrap_err();
    assert_eq!(error, CfiError::UnreadableStack { at: Avma::new(0x7000) });
    assert!(error.to_string().contains("0x7000"));
}

/// `DW_CFA_def_cfa_expression (breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus)`: a PLT stub pushes
/// at its 11th byte.
const PLT: [u8; 11] = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];

#[test]
fn the_expression_of_plt_stubs() {
    let state = FrameState { cfa: Cfa::Expression(PLT[..].into()), ..FrameState::at_entry() };
    let stack = [(0x7000, 0x2005), (0x7008, 0x3005)];
    for (rip, cfa, caller) in [(0x1020, 0x7008, 0x2005), (0x102a, 0x7008, 0x2005), (0x102b, 0x7010, 0x3005)] {
        let step = step(&state, &registers(rip, 0x7000), &mut reader(&stack)).unwrap();
        assert_eq!((step.cfa.get(), step.caller.rip()), (cfa, Some(Avma::new(caller))), "{rip:#x}");
    }
    assert!(state.depends_on_position());
    assert_eq!(state.shifted_stack(8), None);
    assert!(!FrameState::at_entry().depends_on_position());
}

#[test]
fn an_expression_that_reads_the_stack() {
    // A function that realigns its stack: breg6 (rbp) -8; deref.
    let state = FrameState { cfa: Cfa::Expression([0x76, 0x78, 0x06][..].into()), ..FrameState::at_entry() };
    let regs = registers(0x1000, 0x6000).with(Register::RBP, 0x6108);
    let step = step(&state, &regs, &mut reader(&[(0x6100, 0x7008), (0x7000, 0x2005)])).unwrap();
    assert_eq!(step.return_address_slot, Some(Avma::new(0x7000)));
    assert!(!state.depends_on_position());
    assert_eq!(state.shifted_stack(16), Some(state));
}

#[test]
fn an_endless_expression_is_given_up() {
    // skip -3
    let state = FrameState { cfa: Cfa::Expression([0x2f, 0xfd, 0xff][..].into()), ..FrameState::at_entry() };
    let error = step(&state, &registers(1, 2), &mut reader(&[])).unwrap_err();
    assert!(matches!(error, CfiError::Expression { .. }), "{error}");
}

#[test]
fn pushing_moves_only_a_frame_address_that_counts_from_rsp() {
    let shifted = FrameState::at_entry().shifted_stack(8).unwrap();
    assert_eq!(shifted.cfa, Cfa::RegisterOffset { register: Register::RSP, offset: 16 });
    assert_eq!(shifted.registers, FrameState::at_entry().registers);
    let mut framed = FrameState::at_entry();
    framed.cfa = Cfa::RegisterOffset { register: Register::RBP, offset: 16 };
    assert_eq!(framed.shifted_stack(8), Some(framed.clone()));
    framed.registers[0].1 = RegisterRule::Expression([0x77, 8][..].into());
    assert_eq!(framed.shifted_stack(8), None);
}

#[test]
fn the_signal_frame_of_the_c_library() {
    use object::{Object, ObjectSection};
    let Ok(data) = std::fs::read("/usr/lib/x86_64-linux-gnu/libc.so.6") else {
        println!("SKIPPED: no C library at the Debian place");
        return;
    };
    let file = object::File::parse(&*data).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let info = UnwindInfo::parse(section.data().unwrap(), Svma::new(section.address())).unwrap();
    let frame = info.entries().iter().find(|entry| entry.signal_frame).expect("__restore_rt");
    let rows = info.rows(frame).unwrap();
    // The kernel's ucontext is on top of the stack; its general registers start at byte 40 (sigcontext).
    let order = [8u16, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16];
    let rsp = 0x7000;
    let stack: Vec<(u64, u64)> =
        order.iter().enumerate().map(|(i, r)| (rsp + 40 + 8 * i as u64, 0x100 + u64::from(*r))).collect();
    let step = step(&rows.last().unwrap().state, &registers(0x1000, rsp), &mut reader(&stack)).unwrap();
    for r in 0..17 {
        assert_eq!(step.caller.get(Register(r)), Some(0x100 + u64::from(r)), "{:?}", Register(r));
    }
    assert_eq!(step.return_address_slot, Some(Avma::new(rsp + 40 + 8 * 16)));
}
