//! The version as an ELF image: what a process maps, and what `perf`, `gdb` and `readelf` read.
//!
//! Addresses in it are relative to the start of the version. (System V ABI, chapters 4 and 5.)

use crate::areas::{Areas, HEADERS, UnwindAreas};
use crate::model::VersionSymbol;
use restitch_address::{PAGE, Svma, SvmaRange};
use std::ops::Range;

const EHDR_LEN: u16 = 64;
const PHDR_LEN: u16 = 56;
const SHDR_LEN: u16 = 64;
const SYM_LEN: u64 = 24;

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PT_GNU_STACK: u32 = 0x6474_e551;
const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOTE: u32 = 7;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;
/// `STB_LOCAL`, `STT_FUNC`.
const LOCAL_FUNCTION: u8 = 2;
/// Index of `.text` among the sections, and of `.strtab`.
const TEXT: u16 = 1;
const STRTAB: u32 = 7;

/// A section header without its name.
#[derive(Default)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    len: u64,
    link: u32,
    info: u32,
    align: u64,
    entry_len: u64,
}

/// What tools find in the file by name.
pub(crate) struct Names<'a> {
    pub symbols: &'a [VersionSymbol],
    /// Notes of static probes.
    pub probes: Vec<u8>,
}

/// Completes the image in `bytes`, which ends with the unwind tables: pads it to whole pages, adds names and
/// section headers behind them, and fills in the headers. Returns how many bytes are to be mapped.
pub(crate) fn finish(
    bytes: &mut Vec<u8>,
    start: Svma,
    areas: &Areas,
    unwind: &UnwindAreas,
    names: &Names<'_>,
) -> u64 {
    bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
    let loaded = bytes.len() as u64;
    let mut sections = loaded_sections(start, areas, unwind);
    let (table, strings) = symbol_table(start, names.symbols);
    sections.push(Section {
        name: ".symtab",
        kind: SHT_SYMTAB,
        offset: append(bytes, &table),
        len: table.len() as u64,
        link: STRTAB,
        info: (table.len() as u64 / SYM_LEN) as u32,
        align: 8,
        entry_len: SYM_LEN,
        ..Section::default()
    });
    let unloaded =
        |name, kind, align, offset, len| Section { name, kind, offset, len, align, ..Section::default() };
    sections.push(unloaded(".strtab", SHT_STRTAB, 1, append(bytes, &strings), strings.len() as u64));
    if !names.probes.is_empty() {
        let at = append(bytes, &names.probes);
        sections.push(unloaded(".note.stapsdt", SHT_NOTE, 4, at, names.probes.len() as u64));
    }
    sections.push(unloaded(".shstrtab", SHT_STRTAB, 1, 0, 0));
    let mut section_names = vec![0];
    let name_offsets: Vec<u32> = sections.iter().map(|s| push_name(&mut section_names, s.name)).collect();
    if let Some(last) = sections.last_mut() {
        last.offset = append(bytes, &section_names);
        last.len = section_names.len() as u64;
    }
    let mut headers = vec![0; usize::from(SHDR_LEN)];
    for (section, name) in sections.iter().zip(name_offsets) {
        section_header(&mut headers, section, name);
    }
    let headers_at = append(bytes, &headers);
    let hdr = relative(start, unwind.eh_frame_hdr);
    let head = file_header(loaded, hdr.0..hdr.0 + hdr.1, headers_at, sections.len() as u16 + 1);
    bytes[..head.len()].copy_from_slice(&head);
    loaded
}

fn relative(start: Svma, range: SvmaRange) -> (u64, u64) {
    (range.start.offset_from(start) as u64, range.len())
}

fn loaded_sections(start: Svma, areas: &Areas, unwind: &UnwindAreas) -> Vec<Section> {
    let section = |name, (at, len): (u64, u64), align, flags| Section {
        name,
        kind: SHT_PROGBITS,
        flags: SHF_ALLOC | flags,
        address: at,
        offset: at,
        len,
        align,
        ..Section::default()
    };
    let part = |from: u32, to: u32| (u64::from(from), u64::from(to - from));
    vec![
        section(".text", part(HEADERS, areas.text_end), 64, SHF_EXECINSTR),
        section(".rodata", part(areas.tables, areas.tables_end), 8, 0),
        section(".gcc_except_table", relative(start, unwind.lsda), 4, 0),
        section(".eh_frame_hdr", relative(start, unwind.eh_frame_hdr), 4, 0),
        section(".eh_frame", relative(start, unwind.eh_frame), 8, 0),
    ]
}

/// Appends `data` 8-aligned; returns its offset.
fn append(bytes: &mut Vec<u8>, data: &[u8]) -> u64 {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let offset = bytes.len() as u64;
    bytes.extend_from_slice(data);
    offset
}

fn push_name(names: &mut Vec<u8>, name: &str) -> u32 {
    let offset = names.len() as u32;
    // A NUL would end the name early.
    names.extend(name.bytes().take_while(|b| *b != 0));
    names.push(0);
    offset
}

/// The symbols and their names.
fn symbol_table(start: Svma, symbols: &[VersionSymbol]) -> (Vec<u8>, Vec<u8>) {
    let mut table = vec![0; SYM_LEN as usize];
    let mut names = vec![0];
    for symbol in symbols {
        let (at, len) = relative(start, symbol.range);
        put32(&mut table, push_name(&mut names, &symbol.name));
        table.extend([LOCAL_FUNCTION, 0]);
        put16(&mut table, TEXT);
        put64(&mut table, at);
        put64(&mut table, len);
    }
    (table, names)
}

fn section_header(out: &mut Vec<u8>, section: &Section, name: u32) {
    put32(out, name);
    put32(out, section.kind);
    put64(out, section.flags);
    put64(out, section.address);
    put64(out, section.offset);
    put64(out, section.len);
    put32(out, section.link);
    put32(out, section.info);
    put64(out, section.align);
    put64(out, section.entry_len);
}

/// The ELF header and the program headers.
fn file_header(loaded: u64, eh_frame_hdr: Range<u64>, sections_at: u64, sections: u16) -> Vec<u8> {
    // ELFCLASS64, ELFDATA2LSB, EV_CURRENT.
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    out.resize(16, 0);
    put16(&mut out, 3); // ET_DYN
    put16(&mut out, restitch_x86::elf::MACHINE);
    put32(&mut out, 1);
    put64(&mut out, 0);
    put64(&mut out, u64::from(EHDR_LEN));
    put64(&mut out, sections_at);
    put32(&mut out, 0);
    for value in [EHDR_LEN, PHDR_LEN, 3, SHDR_LEN, sections, sections - 1] {
        put16(&mut out, value);
    }
    program_header(&mut out, PT_LOAD, READ | EXECUTE, 0..loaded, PAGE);
    program_header(&mut out, PT_GNU_EH_FRAME, READ, eh_frame_hdr, 4);
    program_header(&mut out, PT_GNU_STACK, READ | WRITE, 0..0, 16);
    out
}

fn program_header(out: &mut Vec<u8>, kind: u32, flags: u32, range: Range<u64>, align: u64) {
    put32(out, kind);
    put32(out, flags);
    let (at, len) = (range.start, range.end - range.start);
    for value in [at, at, at, len, len, align] {
        put64(out, value);
    }
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend(value.to_le_bytes());
}
fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}
fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}
