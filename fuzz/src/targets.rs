//! The targets. Each takes any bytes.

use restitch_address::{LoadBias, Svma, SvmaRange};
use restitch_apply_elf::{is_restitch_output, original_bytes, place, plan_output, verify};
use restitch_cfi::{Bytes, Lsda, UnwindInfo, read_eh_frame_hdr};
use restitch_check::check;
use restitch_emit::{BoundSlot, EmitError, Promotion, Request, emit};
use restitch_image::{DynamicRelocation, Image, RelocationKind};
use restitch_layout::{Fragment, HotChains, Layout, LayoutAlgorithm};
use restitch_profile::{Profile, ProfileFile, import_perf_data, testing};
use restitch_program::{CallId, CallTarget, Program, analyze};
use std::fmt::Display;
use std::sync::OnceLock;

/// Where tables are said to be.
pub(crate) const TABLE_AT: Svma = Svma::new(0x10_0000);

/// An ELF file.
pub fn image(data: &[u8]) {
    let Ok(image) = Image::parse(data.to_vec()) else { return };
    assert!(image.segments().windows(2).all(|w| w[0].range.end <= w[1].range.start));
    let ends = image.segments().iter().flat_map(|s| [s.range.start, s.range.end, s.file_backed().end]);
    for at in ends.flat_map(|at| [at - 1, at, at + 1]) {
        let _ =
            (image.read(at, usize::MAX), image.read_u64(at), image.function_name(at), image.plt_slot_at(at));
    }
    let _ = (image.relro(), image.soname(), image.interpreter(), image.build_id());
}

/// A `.eh_frame` at a fixed address.
pub fn unwind_tables(data: &[u8]) {
    let _ = read_eh_frame_hdr(&Bytes { at: TABLE_AT, bytes: data }, TABLE_AT);
    let Ok(info) = UnwindInfo::parse(data, TABLE_AT) else { return };
    assert!(info.entries().windows(2).all(|w| w[0].range.start < w[1].range.start));
    for entry in info.entries() {
        assert!(!entry.range.is_empty());
        let Ok(rows) = info.rows(entry) else { continue };
        assert!(rows.windows(2).all(|w| w[0].start < w[1].start));
        assert!(rows.iter().all(|row| entry.range.contains(row.start)));
    }
}

/// An exception table (LSDA) of a function of 4 KiB.
pub fn exception_tables(data: &[u8]) {
    let function = SvmaRange::new(Svma::new(0x1000), 0x1000);
    let _ = Lsda::parse(&Bytes { at: TABLE_AT, bytes: data }, TABLE_AT, function);
}

/// A program file: analysis, layout, emission, check, new file. Damaged headers and tables may be refused at
/// any stage, in words.
pub fn program_file(data: &[u8]) {
    let Ok(image) = Image::parse(data.to_vec()) else { return };
    let Some((unwind, program)) = analyzed(&image) else { return };
    for layout in layouts(&program) {
        let _ = transformed(&image, &unwind, &program, &layout);
    }
}

/// A program with other instructions and constants, its headers and unwind tables undamaged: whatever the
/// analysis accepts, the checker and the reader of the new file accept too. The input is a list of changes:
/// place (3 bytes), value.
pub fn program_code(data: &[u8]) {
    for file in damaged_code(data) {
        let image = Image::parse(file).unwrap_or_else(|error| panic!("the headers: {error}"));
        let (unwind, program) = analyzed(&image).expect("undamaged tables");
        for layout in layouts(&program) {
            transformed(&image, &unwind, &program, &layout).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// The seeds with these changes in their code and constants.
fn damaged_code(changes: &[u8]) -> Vec<Vec<u8>> {
    static FILES: OnceLock<Vec<(Vec<u8>, Vec<usize>)>> = OnceLock::new();
    let with_places = |file: Vec<u8>| {
        let places = code_and_constants(&file);
        (file, places)
    };
    let files = FILES.get_or_init(|| crate::programs::files().into_iter().map(with_places).collect());
    let changed = |(file, places): &(Vec<u8>, Vec<usize>)| {
        let mut file = file.clone();
        for change in changes.chunks_exact(4) {
            let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize;
            file[places[at % places.len()]] = change[3];
        }
        file
    };
    files.iter().map(changed).collect()
}

/// Offsets in the file of what is neither a header nor an unwind table nor of use to the dynamic loader.
fn code_and_constants(file: &[u8]) -> Vec<usize> {
    let image = Image::parse(file.to_vec()).unwrap_or_else(|error| panic!("a seed: {error}"));
    let sections = [".text", ".rodata"].iter().filter_map(|name| image.section(name));
    sections
        .flat_map(|s| (s.file_offset.get()..s.file_offset.get() + s.range.len()).map(|at| at as usize))
        .collect()
}

/// The usual layout for a random profile, and one of everything.
fn layouts(program: &Program) -> [Layout; 2] {
    program.validate().unwrap_or_else(|errors| panic!("an invalid program: {errors:?}"));
    let layouts =
        [HotChains::default().layout(program, &testing::walk(program, 5, 20, 0.0)), everything(program)];
    for layout in &layouts {
        layout.validate(program).unwrap_or_else(|errors| panic!("an invalid layout: {errors:?}"));
    }
    layouts
}

fn analyzed(image: &Image) -> Option<(UnwindInfo, Program)> {
    let at = image.eh_frame()?;
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize)?, at.start).ok()?;
    let program = analyze(image, &unwind).ok()?;
    Some((unwind, program))
}

/// Every movable block, last one first.
fn everything(program: &Program) -> Layout {
    let ids = program.block_ids().rev().filter(|id| program.is_movable(*id));
    Layout { hot: ids.map(|id| Fragment { blocks: vec![id], align: 1 }).collect(), ..Layout::default() }
}

/// Every indirect call compares with some function: right or wrong, the version has to be the program.
fn promote_all(program: &Program) -> Vec<Promotion> {
    let indirect = program.calls.iter().enumerate().filter(|(_, c)| c.target == CallTarget::Indirect);
    let targets = program.functions.iter().map(|f| f.range.start).cycle();
    indirect.zip(targets).map(|((i, _), target)| Promotion { call: CallId(i as u32), target }).collect()
}

fn transformed(image: &Image, unwind: &UnwindInfo, program: &Program, layout: &Layout) -> Result<(), String> {
    let start = place(image, 64 * image.data().len() as u64, &Default::default()).map_err(text)?;
    let bias = Some(LoadBias::default());
    let promote = promote_all(program);
    let request = Request {
        image,
        program,
        unwind,
        layout,
        start,
        bias,
        number: 1,
        bound_slots: &[],
        by_slots: true,
        promote: &promote,
        pointers: None,
        large_pages: false,
        counters: None,
    };
    let emitted = |request: &Request<'_>| {
        emit(request).map_err(|error| {
            assert!(refusal(&error), "a wrong request: {error}");
            text(error)
        })
    };
    let live = Request { bound_slots: &bound(image), large_pages: true, ..request };
    check(image, program, layout, emitted(&live)?, bias).map_err(text)?;
    let version = check(image, program, layout, emitted(&request)?, bias).map_err(text)?;
    let plan = plan_output(image, &version, &Default::default()).map_err(text)?;
    let output = Image::parse(plan.write()).map_err(text)?;
    verify(&plan, &output).map_err(text)?;
    let back = original_bytes(&output).map_err(text)?;
    if back == image.data() { Ok(()) } else { Err("the way back gives another file".into()) }
}

/// The slots that a loader would fill and make read-only: with the own functions, or with something far
/// behind the module.
fn bound(image: &Image) -> Vec<BoundSlot> {
    let Some(relro) = image.relro().filter(|r| r.start < r.end) else { return Vec::new() };
    let part = SvmaRange::between(relro.start.align_down(4096), relro.end.align_down(4096).max(relro.start));
    let elsewhere = image.span().end + 0x1000_0000;
    let one = |r: &DynamicRelocation| {
        let target = match &r.kind {
            RelocationKind::JumpSlot { definition, .. } => *definition,
            RelocationKind::Symbolic { definition, addend: 0, .. } => *definition,
            RelocationKind::IRelative { .. } => None,
            _ => return None,
        };
        Some(BoundSlot { slot: r.at, target: target.unwrap_or(elsewhere) })
    };
    let in_part =
        |r: &&DynamicRelocation| part.covers(&SvmaRange::new(r.at, 8)) && r.at.get().is_multiple_of(8);
    let mut bound: Vec<BoundSlot> = image.relocations().iter().filter(in_part).filter_map(one).collect();
    // The first relocation of a place is the one that counts.
    bound.dedup_by_key(|b| b.slot);
    bound
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Errors that a damaged program may cause; the others mean that a caller asked for nonsense.
fn refusal(error: &EmitError) -> bool {
    !matches!(error, EmitError::Unaligned(_) | EmitError::UnknownBlock(_) | EmitError::BlockTwice { .. })
}

/// A file that restitch has made.
pub fn output_file(data: &[u8]) {
    let Ok(image) = Image::parse(data.to_vec()) else { return };
    if is_restitch_output(&image).is_some() {
        let _ = original_bytes(&image);
    }
}

/// The payload of a stored profile; the header around it, checksum included, is made here.
pub fn profile_store(payload: &[u8]) {
    let mut data = empty_store()[..HEADER].to_vec();
    data[HEADER - 12..HEADER - 4].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    data[HEADER - 4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    data.extend(payload);
    let Ok(file) = ProfileFile::read(&data) else { return };
    let again = ProfileFile::read(&file.write()).unwrap_or_else(|error| panic!("what was written: {error}"));
    assert_eq!(again, file);
    let program = testing::RandomProgram::new(3).program;
    for module in &file.modules {
        let (profile, _) = module.resolve(&program);
        assert_eq!(profile.blocks.len(), program.blocks.len());
    }
}

/// Bytes in front of the payload: magic, version, length, checksum.
pub(crate) const HEADER: usize = 24;

fn empty_store() -> Vec<u8> {
    ProfileFile::default().write()
}

/// A `perf.data` file.
pub fn perf_data(data: &[u8]) {
    let Ok(imported) = import_perf_data(data) else { return };
    for module in &imported.modules {
        let _ = module.to_svma(|offset| Some(Svma::new(offset.get())));
    }
}

/// The textual form of a program.
pub fn program_text(data: &[u8]) {
    let Ok(program) = Program::from_text(&String::from_utf8_lossy(data)) else { return };
    let _ = program.validate();
    let again = Program::from_text(&program.to_text()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.to_text(), program.to_text());
}

/// The textual forms of a layout and of a profile, for a fixed program.
pub fn layout_and_profile_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let program = testing::RandomProgram::new(3).program;
    if let Ok(layout) = Layout::from_text(&text, &program) {
        let _ = layout.validate(&program);
        assert_eq!(Layout::from_text(&layout.to_text(&program), &program).ok(), Some(layout));
    }
    if let Ok(profile) = Profile::from_text(&text, &program) {
        assert_eq!(Profile::from_text(&profile.to_text(&program), &program).ok(), Some(profile));
    }
}

/// Used by the seeds.
pub(crate) fn tables_of(image: &Image) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let at = image.eh_frame()?;
    let bytes = image.read(at.start, at.len() as usize)?;
    let unwind = UnwindInfo::parse(bytes, at.start).ok()?;
    let lsda = unwind.entries().iter().filter_map(|e| e.lsda);
    let tables = lsda.filter_map(|at| image.read_tail(at)).map(|tail| tail[..tail.len().min(200)].to_vec());
    Some((bytes.to_vec(), tables.collect()))
}
