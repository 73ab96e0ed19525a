//! Versions of all code of whole files: this test program itself, and the C library that it runs with.
//! Further files can be named in `RESTITCH_TEST_FILES`, separated by colons.

mod support;

use restitch_address::LoadBias;
use restitch_cfi::UnwindInfo;
use restitch_emit::{Counted, CounterRequest, CounterWidth, Request, Version, emit};
use restitch_image::{Image, ImageKind};
use restitch_layout::Layout;
use restitch_layout::testing::{shuffled, whole};
use restitch_program::{EdgeId, EdgeKind, Program, analyze};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

struct Module {
    image: Image,
    unwind: UnwindInfo,
    program: Program,
}

fn module(path: &std::path::Path) -> Module {
    let image = Image::parse(std::fs::read(path).unwrap()).unwrap();
    let range = image.eh_frame().unwrap();
    let bytes = image.read(range.start, range.len() as usize).unwrap();
    let unwind = UnwindInfo::parse(bytes, range.start).unwrap();
    let program = analyze(&image, &unwind).unwrap();
    Module { image, unwind, program }
}

fn files() -> Vec<PathBuf> {
    let mut files = vec![std::env::current_exe().unwrap()];
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    files.extend(
        maps.lines()
            .filter_map(|l| l.split_whitespace().nth(5))
            .find(|p| p.contains("/libc.so"))
            .map(PathBuf::from),
    );
    let more = std::env::var("RESTITCH_TEST_FILES").unwrap_or_default();
    files.extend(more.split(':').filter(|p| !p.is_empty()).map(PathBuf::from));
    files
}

fn request<'a>(module: &'a Module, layout: &'a Layout) -> Request<'a> {
    let below = module.image.span().start.align_down(4096).offset(-0x1000_0000);
    let above = module.image.span().end.align_up(4096) + 0x20_0000;
    let start = if module.image.kind() == ImageKind::Executable { above } else { below };
    Request {
        image: &module.image,
        program: &module.program,
        unwind: &module.unwind,
        layout,
        start,
        bias: Some(LoadBias::default()),
        number: 1,
        bound_slots: &[],
        by_slots: true,
        promote: &[],
        pointers: None,
        large_pages: false,
        counters: None,
    }
}

/// The project's own checker agrees.
fn prove(request: &Request<'_>, version: Version) {
    let proof = restitch_check::check(request.image, request.program, request.layout, version, request.bias);
    if let Err(error) = proof {
        panic!("{error}");
    }
}

fn summary(version: &Version) -> String {
    let mut why = std::collections::BTreeMap::new();
    for skipped in &version.skipped {
        *why.entry(skipped.why).or_insert(0) += 1;
    }
    format!(
        "{} blocks, {} bytes of text, {} pieces, {} redirects, skipped {why:?}",
        version.blocks.len(),
        version.text.len(),
        version.map.pieces.len(),
        version.redirects.len()
    )
}

#[test]
fn all_functions_in_original_order_and_in_random_order() {
    for path in files() {
        let module = module(&path);
        for layout in [whole(&module.program), shuffled(&module.program, 0x1234_5678_9abc_def1)] {
            let request = request(&module, &layout);
            let clock = Instant::now();
            let version = emit(&request).unwrap();
            println!("{}: {:?}: {}", path.display(), clock.elapsed(), summary(&version));
            let seen = support::Comparison::new(&request, &version).run();
            println!("    {seen:?}");
            assert!(seen.instructions > 1000);
            assert!(version.skipped.len() < module.program.blocks.len() / 2);
            assert!(!version.redirects.is_empty());
            prove(&request, version);
        }
    }
}

#[test]
fn counters_everywhere() {
    for path in files() {
        let module = module(&path);
        let blocks = module.program.block_ids().map(Counted::Block);
        let edges =
            (0..module.program.edges.len()).filter(|e| module.program.edges[*e].kind != EdgeKind::Table);
        let counted: Vec<Counted> =
            blocks.chain(edges.map(|e| Counted::Edge(EdgeId::from_index(e)))).collect();
        for layout in [whole(&module.program), shuffled(&module.program, 0xfeed_beef)] {
            let plain = request(&module, &layout);
            let area_start = plain.start.offset(-0x800_0000);
            let request = Request {
                counters: Some(CounterRequest {
                    area_start,
                    width: CounterWidth::Bits32,
                    counted: &counted,
                    votes: &[],
                }),
                ..plain
            };
            let version = emit(&request).unwrap();
            println!("{}: {}", path.display(), summary(&version));
            let seen = support::Comparison::new(&request, &version).run();
            let missing = version.counters.as_ref().unwrap().missing.len();
            println!("    {seen:?}, {missing} missing of {}", counted.len());
            assert_eq!(seen.counters + missing, counted.len());
            assert!(missing < counted.len() / 3);
            prove(&request, version);
        }
    }
}

/// The version is an ELF file that binutils have nothing to say against.
#[test]
fn readelf_accepts_a_version() {
    if Command::new("readelf").arg("--version").output().is_err() {
        return;
    }
    for path in files() {
        let module = module(&path);
        let layout = shuffled(&module.program, 0x77);
        let version = emit(&request(&module, &layout)).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &version.bytes).unwrap();
        let output = Command::new("readelf").arg("-aW").arg(file.path()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && err.is_empty(), "{err}");
        assert!(out.contains("GNU_EH_FRAME") && out.contains(".cold"));
        let image = Image::parse(version.bytes.clone()).unwrap();
        assert_eq!(image.symbols().len(), version.symbols.len());
        let hdr = version.eh_frame_hdr.start.offset_from(version.range.start) as u64;
        assert_eq!(image.eh_frame_hdr().unwrap().start.get(), hdr);
    }
}
