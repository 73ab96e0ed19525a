//! Stage one: an ELF file as the rest of restitch sees it.
//!
//! **You** read the file's bytes (from a path, from `/proc/PID/map_files`, from memory) and hand them to
//! [`Image::parse`]. **This crate** reads headers, segments, symbols, dynamic relocations, build id, static
//! probes, PLT stubs and the place of the unwind tables, and answers questions by [`Svma`]. Stripped files
//! and files without section headers are normal input; what they lack is empty, not an error. **It does not**
//! do I/O, look at processes, decode instructions or unwind tables, or change anything.
//!
//! Supported: ELF64 little-endian x86-64, ET_EXEC and ET_DYN. Everything else is refused with an
//! [`ImageError`] whose text says what to do. The bytes are foreign: no input makes this crate panic.
//!
//! Invariants: segments are sorted and do not overlap, their file parts lie inside the file; symbols,
//! relocations and PLT stubs are sorted by address. Equal bytes give equal images.

pub mod bytes;
mod debugdata;
mod dynamic;
mod error;
mod header;
mod names;
mod note;
mod patch_points;
mod plt;
mod probe;
pub mod raw;
mod relocation;
mod run_time;
mod section;
mod symbol;
mod unwind;
mod view;

pub use dynamic::{DynamicInfo, ExportedSymbol};
pub use error::ImageError;
pub use header::Segment;
pub use names::NameInTable;
pub use note::BuildId;
pub use plt::PltSlot;
pub use probe::StaticProbe;
pub use raw::ProgramHeader;
pub use relocation::{DynamicRelocation, RelocationKind};
pub use run_time::RunTime;
pub use section::Section;
pub use symbol::{Binding, Symbol, SymbolKind};

use dynamic::DynamicTable;
use object::elf;
use restitch_address::{FileOffset, Svma, SvmaRange};
use std::fmt;
use std::sync::{Arc, OnceLock};
use view::View;

/// What sort of module an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// ET_EXEC: a program at fixed addresses.
    Executable,
    /// ET_DYN: a program that is loaded anywhere (also static-pie).
    Pie,
    /// ET_DYN: a shared library.
    SharedObject,
}

/// An ELF file: its bytes and what its headers say about them. Immutable.
#[derive(Clone)]
pub struct Image {
    data: Arc<[u8]>,
    kind: ImageKind,
    entry: Svma,
    headers: Vec<ProgramHeader>,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    executable: Vec<SvmaRange>,
    dynamic: DynamicInfo,
    exported: Vec<ExportedSymbol>,
    interpreter: Option<String>,
    relocations: Vec<DynamicRelocation>,
    symbols: Vec<Symbol>,
    aliases: Vec<Symbol>,
    /// Names of all dynamic symbols, and whether they are defined here.
    dynamic_names: Vec<(Arc<str>, bool)>,
    plt_slots: Vec<PltSlot>,
    static_probes: Vec<StaticProbe>,
    patch_points: Vec<Svma>,
    build_id: Option<BuildId>,
    identity: OnceLock<BuildId>,
    run_time: OnceLock<Option<RunTime>>,
    eh_frame_hdr: Option<SvmaRange>,
    eh_frame: Option<SvmaRange>,
}

impl Image {
    /// Reads the image in `data`, the bytes of a whole file.
    ///
    /// # Errors
    /// [`ImageError`], if the bytes are not a complete, linked ELF64 x86-64 program or shared object.
    pub fn parse(data: impl Into<Arc<[u8]>>) -> Result<Self, ImageError> {
        let data = data.into();
        let header = header::header(&data)?;
        header::check_supported(&header)?;
        let headers = header::program_headers(&data, &header)?;
        let segments = header::segments(&data, &headers)?;
        let sections = section::sections(&data, &header);
        let view = View { data: &data, segments: &segments };
        let table = DynamicTable::read(view, &headers);
        let dynamic = table.info();
        let (relocations, dynamic_symbols) = relocation::relocations(view, &table, &sections);
        let aliases = all_symbols(view, &sections, &dynamic_symbols);
        let executable = section::executable_ranges(&segments, &sections);
        let plt_slots = plt::plt_slots(view, &sections, &executable, &relocations);
        let exported = table.exported(&dynamic_symbols);
        let interpreter = interpreter(&data, &headers);
        let eh_frame_hdr = unwind::eh_frame_hdr(view, &headers, &sections);
        Ok(Self {
            kind: kind(header.kind, &dynamic, interpreter.is_some()),
            entry: Svma::new(header.entry),
            symbols: symbol::best(&aliases),
            dynamic_names: dynamic_symbols
                .into_iter()
                .map(|s| (s.name, s.raw.section != elf::SHN_UNDEF))
                .collect(),
            build_id: note::build_id(&data, &headers, &sections),
            static_probes: probe::static_probes(&data, &sections),
            patch_points: patch_points::patch_points(view, &sections, &relocations),
            identity: OnceLock::new(),
            run_time: OnceLock::new(),
            eh_frame: unwind::eh_frame(view, &sections, eh_frame_hdr),
            eh_frame_hdr,
            headers,
            segments,
            sections,
            executable,
            dynamic,
            exported,
            interpreter,
            relocations,
            aliases,
            plt_slots,
            data,
        })
    }

    fn view(&self) -> View<'_> {
        View { data: &self.data, segments: &self.segments }
    }

    /// The bytes of the whole file.
    pub fn data(&self) -> &[u8] {
        &self.data
    }
    /// What sort of module this is.
    pub fn kind(&self) -> ImageKind {
        self.kind
    }
    /// Where execution begins (0 for most shared objects).
    pub fn entry(&self) -> Svma {
        self.entry
    }
    /// All program headers, in file order.
    pub fn program_headers(&self) -> &[ProgramHeader] {
        &self.headers
    }
    /// The loadable segments, sorted by address.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// The segment that holds `at`.
    pub fn segment_at(&self, at: Svma) -> Option<&Segment> {
        self.view().segment_at(at)
    }
    /// From the first segment's start to the last one's end, not rounded to pages.
    pub fn span(&self) -> SvmaRange {
        let start = self.segments.first().map_or(Svma::new(0), |s| s.range.start);
        let end = self.segments.last().map_or(start, |s| s.range.end);
        SvmaRange::between(start, end)
    }
    /// What code elsewhere has to be near to, if that can be within `most` bytes: the whole
    /// [`span`](Self::span); if that is longer, what the file holds bytes for (most of a long span is zeroed
    /// data, which code of the larger models does not reach by displacements either); else what is
    /// executable. Nothing, if the code itself is further apart.
    pub fn span_within(&self, most: u64) -> Option<SvmaRange> {
        let hull = |ranges: &mut dyn Iterator<Item = SvmaRange>| {
            ranges
                .filter(|r| !r.is_empty())
                .reduce(|all, r| SvmaRange::between(all.start.min(r.start), all.end.max(r.end)))
        };
        let in_file = hull(&mut self.segments.iter().map(Segment::file_backed));
        let code = hull(&mut self.segments.iter().filter(|s| s.executable).map(|s| s.range));
        [Some(self.span()), in_file, code].into_iter().flatten().find(|range| range.len() <= most)
    }
    /// PT_GNU_RELRO: data that is read-only once relocated.
    pub fn relro(&self) -> Option<SvmaRange> {
        let header = self.headers.iter().find(|p| p.kind == object::elf::PT_GNU_RELRO)?;
        Some(SvmaRange::new(header.address, header.memory_len))
    }
    /// The section headers, in file order (index 0 is the null section); empty in a file without them.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }
    /// The first section of this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// `len` bytes at `at`, if they all lie in one segment and in the file. Zero-filled memory (`.bss`) gives
    /// none.
    pub fn read(&self, at: Svma, len: usize) -> Option<&[u8]> {
        self.view().read(at, len)
    }
    /// The bytes from `at` to the end of its segment's part in the file.
    pub fn read_tail(&self, at: Svma) -> Option<&[u8]> {
        self.view().tail(at).filter(|tail| !tail.is_empty())
    }
    /// The little-endian number at `at`, before relocation.
    pub fn read_u64(&self, at: Svma) -> Option<u64> {
        self.view().u64(at)
    }
    /// The little-endian number at `at`.
    pub fn read_u32(&self, at: Svma) -> Option<u32> {
        self.view().u32(at)
    }
    /// The little-endian two's complement number at `at`.
    pub fn read_i32(&self, at: Svma) -> Option<i32> {
        self.view().i32(at)
    }
    /// Where the byte at `at` is in the file.
    pub fn file_offset(&self, at: Svma) -> Option<FileOffset> {
        let segment = self.segment_at(at).filter(|s| s.file_backed().contains(at))?;
        Some(segment.file_offset + (at.get() - segment.range.start.get()))
    }
    /// The address of the byte at `offset`, as far as a segment loads it. Where two do, the executable one
    /// wins.
    pub fn address_of(&self, offset: FileOffset) -> Option<Svma> {
        let into = |s: &Segment| offset.get().checked_sub(s.file_offset.get()).filter(|&n| n < s.file_len);
        let loading = || self.segments.iter().filter_map(|s| Some((s, s.range.start + into(s)?)));
        let executable = loading().find(|(s, _)| s.executable);
        executable.or_else(|| loading().next()).map(|(_, at)| at)
    }

    /// Whether `at` is in one of the [`executable_ranges`](Self::executable_ranges).
    pub fn is_executable(&self, at: Svma) -> bool {
        let i = self.executable.partition_point(|r| r.start <= at);
        i > 0 && self.executable[i - 1].contains(at)
    }
    /// Whether `at` is in a writable segment, [`relro`](Self::relro) data included.
    pub fn is_writable(&self, at: Svma) -> bool {
        self.segment_at(at).is_some_and(|s| s.writable)
    }
    /// Where code is, sorted, without overlaps: the sections that hold instructions (so that read-only data
    /// in an executable segment is not code); in a file without them, the executable segments.
    pub fn executable_ranges(&self) -> Vec<SvmaRange> {
        self.executable.clone()
    }

    /// Functions and objects that the module defines, from .symtab, .dynsym and MiniDebugInfo, sorted by
    /// address, one for each address: functions before objects, global names before weak and local ones.
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }
    /// The same with all names of an address, the best one first.
    pub fn symbols_with_aliases(&self) -> &[Symbol] {
        &self.aliases
    }
    /// The entries of the dynamic symbol table that have an address in this module, in the table's order:
    /// what other modules and `dlsym` find.
    pub fn exported(&self) -> &[ExportedSymbol] {
        &self.exported
    }
    /// Addresses that .symtab gives to names which are neither functions nor objects (labels of assembly,
    /// bounds that the linker sets), in the table's order.
    pub fn labels(&self) -> Vec<Svma> {
        symbol::labels(&self.data, &self.sections)
    }
    /// The names in .symtab and in the dynamic symbol table, of whatever kind, also of what other modules
    /// define; in the tables' order, the same name more than once where several entries have it.
    pub fn names(&self) -> impl Iterator<Item = NameInTable<'_>> {
        let dynamic = self.dynamic_names.iter();
        let dynamic =
            dynamic.map(|(text, defined)| NameInTable { text: text.as_bytes(), is_defined: *defined });
        names::in_sections(&self.data, &self.sections).chain(dynamic)
    }
    /// The names of its notes' owners, each with its final zero, in the file's order.
    pub fn note_names(&self) -> Vec<&[u8]> {
        note::names(&self.data, &self.headers, &self.sections)
    }
    /// Bytes of the file that are loaded and never written, code aside: where constants are.
    pub fn constants(&self) -> Vec<&[u8]> {
        names::constants(self.view(), &self.sections)
    }
    /// The run time that is linked into the file, if it is one that looks code addresses up in tables of its
    /// own: then the code has to stay where it is. Looked for when it is first asked for.
    pub fn run_time(&self) -> Option<RunTime> {
        *self.run_time.get_or_init(|| run_time::of(self))
    }
    /// The symbols of this name, in address order. A linear search.
    pub fn symbols_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Symbol> {
        self.aliases.iter().filter(move |s| &*s.name == name)
    }
    /// The best symbol that starts at `at`.
    pub fn symbol_at(&self, at: Svma) -> Option<&Symbol> {
        self.symbols.binary_search_by_key(&at, |s| s.range.start).ok().map(|i| &self.symbols[i])
    }
    /// The last symbol that starts at or below `at`, if its range holds `at`.
    pub fn symbol_containing(&self, at: Svma) -> Option<&Symbol> {
        let i = self.symbols.partition_point(|s| s.range.start <= at).checked_sub(1)?;
        self.symbols.get(i).filter(|s| s.range.contains(at))
    }
    /// The name of the function that starts at `at`.
    pub fn function_name(&self, at: Svma) -> Option<&str> {
        self.symbol_at(at).filter(|s| s.is_function()).map(|s| &*s.name)
    }

    /// What the loader writes, sorted by address: DT_RELA, DT_JMPREL, DT_RELR; of a static program the
    /// IRELATIVE entries, if it has section headers.
    pub fn relocations(&self) -> &[DynamicRelocation] {
        &self.relocations
    }
    /// The (first) relocation of exactly this place.
    pub fn relocation_at(&self, at: Svma) -> Option<&DynamicRelocation> {
        plt::relocation_at(&self.relocations, at)
    }
    /// The relocations of places in `range`, which must not wrap.
    pub fn relocations_in(&self, range: SvmaRange) -> &[DynamicRelocation] {
        let from = self.relocations.partition_point(|r| r.at < range.start);
        let to = self.relocations.partition_point(|r| r.at < range.end);
        &self.relocations[from..to.max(from)]
    }
    /// Whether the loader may write into `range`: a relocation's place is taken for eight bytes long, the
    /// most that there is for code.
    pub fn is_relocated(&self, range: SvmaRange) -> bool {
        let from = Svma::new(range.start.get().saturating_sub(7));
        !range.is_empty() && !self.relocations_in(SvmaRange::between(from, range.end)).is_empty()
    }
    /// PLT stubs, sorted by address.
    pub fn plt_slots(&self) -> &[PltSlot] {
        &self.plt_slots
    }
    /// The PLT stub whose range holds `at`.
    pub fn plt_slot_at(&self, at: Svma) -> Option<&PltSlot> {
        let i = self.plt_slots.partition_point(|s| s.stub.start <= at).checked_sub(1)?;
        self.plt_slots.get(i).filter(|s| s.stub.contains(at))
    }

    /// Static probes, sorted by address; none in a file without section headers.
    pub fn static_probes(&self) -> &[StaticProbe] {
        &self.static_probes
    }
    /// The static probes in `range`, which must not wrap.
    pub fn static_probes_in(&self, range: SvmaRange) -> &[StaticProbe] {
        probe::within(&self.static_probes, range)
    }

    /// Places in code that are made to be written to while the program runs (XRay's sleds,
    /// `-fpatchable-function-entry` and the like), sorted; none in a file without section headers. Those in
    /// front of a function belong to it.
    pub fn patch_points(&self) -> &[Svma] {
        &self.patch_points
    }
    /// Whether there is such a place in `range`.
    pub fn has_patch_point(&self, range: SvmaRange) -> bool {
        let from = self.patch_points.partition_point(|at| *at < range.start);
        self.patch_points.get(from).is_some_and(|at| range.contains(*at))
    }
    /// Whether the program may write to all of its code, as it is loaded.
    pub fn is_code_writable(&self) -> bool {
        !self.executable.is_empty() && self.executable.iter().all(|code| self.is_writable(code.start))
    }

    /// The GNU build id.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }
    /// The build id; of a file without one (or with one of more than 64 bytes), a hash of its content in a
    /// build id's form ([`BuildId::is_of_content`]), which is computed when it is first asked for.
    pub fn identity(&self) -> &BuildId {
        self.identity.get_or_init(|| match self.build_id() {
            Some(id) if id.is_usable() => id.clone(),
            _ => BuildId::of_content(&self.data),
        })
    }
    /// The unwind tables. Without section headers the range goes on to the end of the segment, and the reader
    /// stops at the zero terminator.
    pub fn eh_frame(&self) -> Option<SvmaRange> {
        self.eh_frame
    }
    /// The unwind tables' index.
    pub fn eh_frame_hdr(&self) -> Option<SvmaRange> {
        self.eh_frame_hdr
    }

    /// What the dynamic section says; empty for a static program.
    pub fn dynamic(&self) -> &DynamicInfo {
        &self.dynamic
    }
    /// DT_SONAME.
    pub fn soname(&self) -> Option<&str> {
        self.dynamic.soname.as_deref()
    }
    /// DT_NEEDED.
    pub fn needed(&self) -> &[String] {
        &self.dynamic.needed
    }
    /// PT_INTERP: the dynamic loader.
    pub fn interpreter(&self) -> Option<&str> {
        self.interpreter.as_deref()
    }
    /// Whether this is a program that runs without a dynamic loader (static or static-pie).
    pub fn is_static(&self) -> bool {
        self.kind != ImageKind::SharedObject && self.interpreter.is_none()
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("kind", &self.kind)
            .field("build_id", &self.build_id)
            .field("span", &self.span())
            .field("symbols", &self.symbols.len())
            .field("relocations", &self.relocations.len())
            .finish_non_exhaustive()
    }
}

/// A shared library may have an interpreter (glibc's own does), and old linkers do not set DF_1_PIE.
fn kind(elf_type: u16, dynamic: &DynamicInfo, has_interpreter: bool) -> ImageKind {
    match elf_type {
        object::elf::ET_EXEC => ImageKind::Executable,
        _ if dynamic.pie || (has_interpreter && dynamic.soname.is_none()) => ImageKind::Pie,
        _ => ImageKind::SharedObject,
    }
}

fn interpreter(data: &[u8], headers: &[ProgramHeader]) -> Option<String> {
    let header = headers.iter().find(|p| p.kind == object::elf::PT_INTERP)?;
    let bytes = bytes::slice(data, header.offset.get(), header.file_len)?;
    bytes::c_string(bytes, 0).map(|s| s.into_owned())
}

/// The names of all tables, MiniDebugInfo included.
fn all_symbols(view: View<'_>, sections: &[Section], dynamic: &[dynamic::DynamicSymbol]) -> Vec<Symbol> {
    let mut symbols = symbol::from_sections(view.data, sections, view.segments);
    symbols.extend(symbol::from_dynamic(dynamic, view.segments));
    let debugdata = sections.iter().find(|s| s.name == ".gnu_debugdata");
    if let Some(inner) = debugdata.and_then(|s| debugdata::decompress(s.bytes(view.data)))
        && let Ok(header) = header::header(&inner)
    {
        let inner_sections = section::sections(&inner, &header);
        symbols.extend(symbol::from_sections(&inner, &inner_sections, view.segments));
    }
    symbol::sorted(symbols)
}
