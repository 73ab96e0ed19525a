//! What the analysis finds in real code: programs that exercise its hard parts, distribution binaries,
//! damaged files.

use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{BlockAttrs, Movability, Program, Terminator, analyze};
use restitch_testkit::{VARIANTS, compile, find_program, program, programs, skipped};
use std::path::Path;
use std::time::{Duration, Instant};

fn analyze_bytes(bytes: Vec<u8>) -> Option<(Image, Program)> {
    let image = Image::parse(bytes).ok()?;
    let at = image.eh_frame()?;
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize)?, at.start).ok()?;
    let program = analyze(&image, &unwind).ok()?;
    Some((image, program))
}

fn analyzed(path: &Path) -> (Image, Program) {
    let (image, program) =
        analyze_bytes(std::fs::read(path).unwrap()).unwrap_or_else(|| panic!("{path:?} is analysable"));
    if let Err(problems) = program.validate() {
        panic!("{path:?}: {} problems, first {:?}", problems.len(), problems.first());
    }
    (image, program)
}

fn compiled(name: &str, flags: &[&str]) -> Option<(Image, Program)> {
    match compile(&program(name), flags) {
        Ok(path) => Some(analyzed(&path)),
        Err(error) => {
            skipped(&format!("{name}: {error}"));
            None
        }
    }
}

/// Share of the code bytes, linkage stubs apart (they are a large part of small programs).
fn movable_share(program: &Program) -> f64 {
    let bytes = |all: bool| -> u64 {
        let code = program.functions.iter().filter(|f| f.movability != Movability::Linkage);
        let chosen = code.filter(|f| all || f.movability == Movability::Movable);
        chosen.map(|f| f.range.len()).sum()
    };
    bytes(false) as f64 / bytes(true) as f64
}

#[test]
fn every_variant_of_every_program_keeps_the_invariants() {
    for source in programs() {
        for flags in VARIANTS {
            let path = match compile(&source, flags) {
                Ok(path) => path,
                Err(error) => {
                    skipped(&format!("{error}"));
                    continue;
                }
            };
            let (_, program) = analyzed(&path);
            // A good part of these stays by intent.
            let least = match () {
                () if source.ends_with("returns.c") => 0.5,
                () if source.ends_with("faults.c") => 0.75,
                () => 0.85,
            };
            assert!(movable_share(&program) > least, "{source:?} {flags:?}: {}", movable_share(&program));
        }
    }
}

/// How many functions stay for their personality routine, and how many have landing pads and are movable.
fn by_personality(image: &Image, program: &Program) -> (usize, usize) {
    let unknown = program.functions.iter().filter(|f| f.movability == Movability::UnknownPersonality);
    let at = image.eh_frame().unwrap();
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap(), at.start).unwrap();
    let catches = |f: &&restitch_program::Function| {
        f.movability == Movability::Movable && unwind.find(f.range.start).unwrap().lsda.is_some()
    };
    (unknown.count(), program.functions.iter().filter(catches).count())
}

#[test]
fn functions_whose_personality_routine_is_unknown_stay() {
    for flags in VARIANTS {
        let Some((image, program)) = compiled("personality.c", flags) else { return };
        let stays = |f: &&restitch_program::Function| f.movability == Movability::UnknownPersonality;
        let stay: Vec<_> = program.functions.iter().filter(stays).map(|f| f.name.as_deref()).collect();
        assert_eq!(stay, [Some("guarded")], "{flags:?}");
        let bare =
            restitch_testkit::strip(&compile(&self::program("personality.c"), flags).unwrap()).unwrap();
        let (image, program) = (image, analyzed(&bare).1);
        assert_eq!(by_personality(&image, &program).0, 1, "{flags:?}, stripped");
    }
}

#[test]
fn nameless_personality_routines_of_common_languages_are_known() {
    let made = [
        compile(&program("throw.cc"), &["-O2", "-static"]),
        compile(&program("throw.cc"), &["-O2", "-static-pie"]),
        restitch_testkit::compile_with_llvm_runtime(&program("throw.cc"), &["-O2", "-static"]),
        restitch_testkit::compile_rust_with_musl(&program("panics.rs")),
    ];
    for path in made {
        let path = match path {
            Ok(path) => path,
            Err(error) => {
                skipped(&error.to_string());
                continue;
            }
        };
        let bare = restitch_testkit::strip(&path).unwrap();
        let (image, program) = analyzed(&bare);
        let (unknown, known) = by_personality(&image, &program);
        assert!(unknown == 0 && known > 20, "{path:?}: {unknown} are unknown, {known} known");
    }
}

#[test]
fn switches_become_tables_whose_every_target_is_known() {
    for flags in [&["-O2"][..], &["-O2", "-no-pie"], &["-O0"]] {
        let Some((_, program)) = compiled("switch.c", flags) else { return };
        assert!(program.tables.len() >= 8, "{flags:?}: {} tables", program.tables.len());
        assert!(program.tables.iter().all(|t| t.copyable), "{flags:?}");
        // The switch over all values of a byte has no bounds check: its table is found whole all the same.
        let all_targets = |t: &restitch_program::JumpTable| t.targets.len() + t.tail.len();
        assert!(program.tables.iter().any(|t| all_targets(t) >= 256), "{flags:?}: no table of 256 entries");
        // Nothing is left over but jumps of the C run time's own and of the procedure linkage.
        let left = program.blocks.iter().filter(|b| {
            let f = program.function(b.function);
            b.terminator == Terminator::IndirectJump && f.movability == Movability::Movable
        });
        assert!(left.count() <= 2, "{flags:?}");
    }
}

/// Tables of eight entries of which the code names the middle or the end.
#[test]
fn tables_are_read_from_their_first_entry_on() {
    for flags in [&["-O2"][..], &["-O1", "-no-pie"]] {
        let Some((image, program)) = compiled("odd/backward.c", flags) else { return };
        let entries = |name: &str| {
            let range = image.symbols_named(name).next().unwrap_or_else(|| panic!("no {name}")).range;
            let table = program.tables.iter().find(|t| range.contains(t.jump_at));
            let table = table.unwrap_or_else(|| panic!("no table in {name}"));
            (table.targets.len() + table.tail.len(), table.copyable)
        };
        for name in ["moved", "displaced", "negated", "between", "bytes", "unchecked"] {
            assert_eq!(entries(name), (8, true), "{flags:?} {name}");
        }
        // Two entries in front of the middle, behind the one that leads elsewhere, and four from there on.
        assert_eq!(entries("hole"), (6, false), "{flags:?}");
    }
}

#[test]
fn calls_of_setjmp_stay_and_lead_back() {
    let Some((image, program)) = compiled("setjmp.c", &["-O2"]) else { return };
    let pinned: Vec<_> = program.blocks.iter().filter(|b| b.attrs.contains(BlockAttrs::PINNED)).collect();
    assert!(!pinned.is_empty());
    for block in pinned {
        let id = program.block_starting_at(block.start).unwrap();
        assert!(!program.is_movable(id));
        let [call] = program.calls_of(id) else { panic!("a pinned block is one call") };
        if let restitch_program::CallTarget::Direct(to) = call.target {
            let name =
                image.plt_slot_at(to).and_then(|s| s.name.clone()).expect("a call through the linkage table");
            assert!(
                ["setjmp", "_setjmp", "__sigsetjmp", "getcontext", "swapcontext", "makecontext"]
                    .contains(&&*name),
                "{name}"
            );
        }
        if let Some(behind) = program.block_starting_at(block.end()) {
            assert!(
                program.block(behind).attrs.contains(BlockAttrs::INDIRECT),
                "the return point can take a landing redirect"
            );
        }
    }
}

/// What the calls of code that looks at its return address become, by the function that calls.
#[test]
fn calls_of_code_that_looks_at_its_return_address_stay() {
    for flags in VARIANTS {
        let Some((image, program)) = compiled("returns.c", flags) else { return };
        let function = |name: &str| {
            let at = image.symbols_named(name).next().unwrap_or_else(|| panic!("no {name}")).range.start;
            program.function_at(at).unwrap_or_else(|| panic!("{name} is no function"))
        };
        let pinned = |name: &str| {
            let blocks = program.blocks_of(function(name));
            blocks.filter(|b| program.block(*b).attrs.contains(BlockAttrs::PINNED)).count()
        };
        let movability = |name: &str| program.function(function(name)).movability;
        // `position`'s address is in data: so any call through a register may go there.
        for name in [
            "by_pop",
            "by_thunk",
            "by_jump",
            "by_wrapper",
            "by_skip",
            "by_body",
            "by_pointer",
            "by_given",
            "by_kept",
            "asked",
        ] {
            assert_eq!((movability(name), pinned(name)), (Movability::Movable, 1), "{flags:?} {name}");
        }
        for name in ["by_number", "by_text", "by_popped", "by_next"] {
            assert_eq!(movability(name), Movability::ReturnsElsewhere, "{flags:?} {name}");
        }
        for name in
            ["position", "take_number", "skip", "give", "keep", "nothing", "caller", "aligned", "positions"]
        {
            assert_eq!((movability(name), pinned(name)), (Movability::Movable, 0), "{flags:?} {name}");
        }
        assert_eq!(movability("by_below"), Movability::OwnPosition, "{flags:?}");
        // It goes to a label by a return: of the address that it makes nobody knows what it is for.
        assert_eq!(movability("by_thrown"), Movability::KnownLabels, "{flags:?}");
    }
}

/// What stands behind such a call may be led to a version, but not where its callee does not come back to.
#[test]
fn what_is_behind_such_calls_is_led_back_where_it_goes_on() {
    let Some((image, program)) = compiled("returns.c", &["-O2"]) else { return };
    let blocks = |name: &str| {
        let at = image.symbols_named(name).next().unwrap_or_else(|| panic!("no {name}")).range.start;
        program.blocks_of(program.function_at(at).unwrap()).map(|b| program.block(b)).collect::<Vec<_>>()
    };
    for name in ["by_skip", "by_body"] {
        let blocks = blocks(name);
        let call = blocks.iter().position(|b| b.attrs.contains(BlockAttrs::PINNED)).unwrap();
        assert_eq!(blocks[call + 1].terminator, Terminator::Return, "{name}");
        assert!(blocks[call + 2].attrs.contains(BlockAttrs::INDIRECT), "{name}");
    }
}

/// Who calls what looks at its caller in well-known programs is hardly anybody: pinned calls, of all calls,
/// at most 1 of 100.
#[test]
fn few_calls_of_installed_programs_stay() {
    let mut looked_at = 0;
    for name in ["gcc", "python3", "git", "perl", "bash"] {
        let Some(path) = find_program(name) else { continue };
        let Some((_, program)) = analyze_bytes(std::fs::read(path).unwrap()) else { continue };
        let stay = program.blocks.iter().filter(|b| b.attrs.contains(BlockAttrs::PINNED)).count();
        let whole = program.functions.iter().filter(|f| f.movability == Movability::ReturnsElsewhere);
        assert!(stay * 100 <= program.calls.len(), "{name}: {stay} of {} calls", program.calls.len());
        assert_eq!(whole.count(), 0, "{name}");
        looked_at += 1;
    }
    if looked_at == 0 {
        skipped("none of the programs is installed");
    }
}

#[test]
fn odd_code_is_named_and_left_alone() {
    let Some((image, program)) = compiled("loops.c", &["-O2"]) else { return };
    let function = |name: &str| {
        let symbol = image.symbols_named(name).next().unwrap_or_else(|| panic!("{name} is there"));
        program.function_at(symbol.range.start).map(|f| program.function(f).clone())
    };
    let movability = |name| function(name).expect("it has unwind information").movability;
    assert_eq!(
        movability("maybe_locked"),
        Movability::Movable,
        "a branch over a lock prefix belongs to what follows"
    );
    for name in ["locked_by_two", "into_immediate"] {
        assert_eq!(
            movability(name),
            Movability::Undecodable,
            "{name}: a branch goes into the middle of an instruction"
        );
    }
    let tiny = program.functions.iter().filter(|f| f.movability == Movability::Movable && f.range.len() < 5);
    for f in tiny {
        assert!(!f.redirectable, "{} is too short for a redirect", f.range);
    }
    let short = program.blocks.iter().any(|b| matches!(b.terminator, Terminator::ShortConditional(_)));
    assert!(short, "jrcxz ends a block");
}

/// The functions that stay in a program of tests/programs/odd, by name, and those of its own that move.
fn odd(name: &str, flags: &[&str]) -> Option<(Image, Vec<(String, Movability)>)> {
    let (image, program) = compiled(&format!("odd/{name}"), flags)?;
    let own = |f: &&restitch_program::Function| f.movability != Movability::Linkage && f.name.is_some();
    let named = program.functions.iter().filter(own);
    for f in program.functions.iter().filter(|f| !f.blocks.is_empty()) {
        assert!(!matches!(
            f.movability,
            Movability::DataInside | Movability::Undecodable | Movability::Overlapping
        ));
    }
    Some((image, named.map(|f| (f.name.as_deref().unwrap_or_default().to_owned(), f.movability)).collect()))
}

#[test]
fn functions_with_data_in_them_get_no_blocks_and_the_others_stay_movable() {
    let kept =
        ["with_constants", "table_of_words", "by_helper", "in_front", "last_words", "in_code", "by_numbers"];
    for (source, flags) in [
        ("constants.c", &["-O2"][..]),
        ("constants.c", &["-O2", "-no-pie"]),
        ("table.c", &["-O2"]),
        ("table.c", &["-O2", "-no-pie"]),
    ] {
        let Some((_, functions)) = odd(source, flags) else { return };
        for (name, movability) in functions {
            let stays = kept.contains(&&*name) || name == "last_of_all";
            let has_blocks = !matches!(
                movability,
                Movability::DataInside | Movability::Undecodable | Movability::KnownLabels
            );
            assert_eq!(has_blocks, !stays, "{source} {flags:?}: {name}: {movability:?}");
            assert!(stays || movability == Movability::Movable, "{source} {flags:?}: {name}: {movability:?}");
        }
    }
}

#[test]
fn functions_with_computed_targets_stay() {
    let computed = [
        "by_index",
        "by_sum",
        "by_memory",
        "by_blocks",
        "by_displacement",
        "from_the_end",
        "by_small_offsets",
    ];
    for flags in [&["-O2"][..], &["-O2", "-fno-pie", "-no-pie"]] {
        let Some((_, functions)) = odd("unrolled.c", flags) else { return };
        for (name, movability) in functions {
            let expected = match &*name {
                name if computed.contains(&name) => Movability::ComputedTargets,
                "behind_a_long_one" => Movability::ReturnsElsewhere,
                _ => Movability::Movable,
            };
            assert_eq!(movability, expected, "{flags:?}: {name}");
        }
    }
}

#[test]
fn unwind_entries_that_overlap_are_one_function_that_stays() {
    let Some((_, functions)) = odd("entries.c", &["-O2", "-Wl,--no-eh-frame-hdr"]) else { return };
    let of = |name: &str| functions.iter().find(|f| f.0 == name).map(|f| f.1);
    assert_eq!(of("first"), Some(Movability::Overlapping));
    assert_eq!(of("second"), None, "it is in the range of the first");
    assert_eq!(of("split"), Some(Movability::Undecodable));
    assert_eq!(of("one_round").or(of("main")), Some(Movability::Movable));
}

#[test]
fn functions_that_tables_of_places_to_patch_name_stay() {
    let patched = ["with_sled", "with_nop", "at_start", "in_front"];
    for flags in [&["-O2"][..], &["-O1", "-DABSOLUTE"], &["-O2", "-DABSOLUTE", "-fno-pie", "-no-pie"]] {
        let Some((image, functions)) = odd("patched.c", flags) else { return };
        assert_eq!(image.patch_points().len(), patched.len(), "{flags:?}");
        for (name, movability) in functions {
            let stays = patched.contains(&&*name);
            let expected = if stays { Movability::PatchPoint } else { Movability::Movable };
            assert_eq!(movability, expected, "{flags:?}: {name}");
        }
    }
}

#[test]
fn functions_that_look_at_their_own_position_stay() {
    for flags in [&["-O2"][..], &["-O1", "-fno-pie", "-no-pie"]] {
        let Some((_, functions)) = odd("position.c", flags) else { return };
        for (name, movability) in functions {
            let stays = ["by_system_call", "by_float_state"].contains(&&*name);
            let expected = if stays { Movability::OwnPosition } else { Movability::Movable };
            assert_eq!(movability, expected, "{flags:?}: {name}");
        }
    }
}

#[test]
fn the_large_code_models_addresses_are_no_data() {
    let flags = &["-O2", "-mcmodel=large", "-fPIE", "-pie"];
    let Some((_, functions)) = odd("computed.c", flags) else { return };
    assert!(functions.iter().all(|f| f.1 == Movability::Movable), "{functions:?}");
}

#[test]
fn distribution_binaries_are_movable_nearly_as_a_whole() {
    for name in ["cc1plus", "postgres", "mariadbd", "python3", "redis-server", "nginx", "memcached", "perl"] {
        // Not what somebody has put in front of the distribution's.
        let own = Path::new("/usr/bin").join(name);
        let Some(path) = own.exists().then_some(own).or_else(|| find_program(name)) else {
            skipped(&format!("{name} is not installed"));
            continue;
        };
        let (_, program) = analyzed(&path);
        assert!(movable_share(&program) > 0.95, "{name}: {}", movable_share(&program));
        let copyable = program.tables.iter().filter(|t| t.copyable).count();
        assert!(
            copyable * 100 >= program.tables.len() * 95,
            "{name}: {copyable} of {}",
            program.tables.len()
        );
        let redirectable = program.functions.iter().filter(|f| f.redirectable).count();
        assert!(redirectable * 100 >= program.functions.len() * 90, "{name}: {redirectable} redirectable");
    }
}

#[test]
fn the_same_file_gives_the_same_program() {
    let Some((_, first)) = compiled("virt.cc", &["-O2"]) else { return };
    let Some((_, second)) = compiled("virt.cc", &["-O2"]) else { return };
    assert_eq!(first, second);
}

/// Damaged code, tables and unwind information: an error or a program that keeps its invariants, never a
/// panic.
#[test]
fn damaged_files_do_no_harm() {
    let path = match compile(&program("switch.c"), &["-O2"]) {
        Ok(path) => path,
        Err(error) => {
            skipped(&format!("{error}"));
            return;
        }
    };
    let clean = std::fs::read(path).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let end = Instant::now() + Duration::from_millis(1500);
    let mut analysed = 0;
    while Instant::now() < end {
        let mut bytes = clean.clone();
        for _ in 0..1 + random() % 64 {
            let at = (random() % bytes.len() as u64) as usize;
            bytes[at] = random() as u8;
        }
        if let Some((_, program)) = analyze_bytes(bytes) {
            analysed += 1;
            assert_eq!(program.validate(), Ok(()));
        }
    }
    assert!(analysed > 0);
}

/// A section header's size is the file's word: nothing may go on for as long as one says.
#[test]
fn sections_of_impossible_sizes_do_no_harm() {
    let path = match compile(&program("switch.c"), &["-O2"]) {
        Ok(path) => path,
        Err(error) => {
            skipped(&format!("{error}"));
            return;
        }
    };
    let clean = std::fs::read(path).unwrap();
    // ELF64: e_shoff at 40, e_shnum at 60; a section header has 64 bytes, sh_size at 32.
    let table = u64::from_le_bytes(clean[40..48].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(clean[60..62].try_into().unwrap());
    let mut analysed = 0;
    for size_at in (0..usize::from(count)).map(|i| table + 64 * i + 32) {
        for size in [u64::MAX, 1 << 62, 1 << 46] {
            let mut bytes = clean.clone();
            bytes[size_at..size_at + 8].copy_from_slice(&size.to_le_bytes());
            if let Some((_, program)) = analyze_bytes(bytes) {
                analysed += 1;
                assert_eq!(program.validate(), Ok(()));
            }
        }
    }
    assert!(analysed > 0);
}
