//! The chain from a file to its output, with layouts of all movable blocks.
#![allow(dead_code, reason = "each test binary uses its part of this module")]

use restitch_address::Svma;
use restitch_apply::CheckedVersion;
use restitch_apply_elf::{ElfError, ElfPlan, OutputOptions, place, plan_output, verify};
use restitch_cfi::UnwindInfo;
use restitch_emit::{Executions, Pointers, Promotion, Request, emit_for};
use restitch_image::Image;
use restitch_layout::testing::{duplicated, fetching};
use restitch_layout::{Fragment, Layout};
use restitch_program::{BlockId, Program, analyze};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The order of the blocks in a test layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Original,
    Reversed,
    /// With random duplicates.
    Random(u64),
    /// Every other function only.
    Half,
}

pub const ORDERS: [Order; 3] = [Order::Original, Order::Reversed, Order::Random(7)];

pub const IN_PLACE: OutputOptions = OutputOptions { move_program_headers: false, large_pages: false };
pub const MOVED: OutputOptions = OutputOptions { move_program_headers: true, large_pages: false };

pub fn image(path: &Path) -> Image {
    Image::parse(std::fs::read(path).expect("readable")).expect("an ELF image")
}

/// A checked version of all movable blocks, for the place that `options` ask for.
pub fn version(image: &Image, order: Order, options: &OutputOptions) -> CheckedVersion {
    version_at(image, order, place(image, 1 << 20, options).expect("a place"))
}

/// Where `options` put a version of a test program.
pub fn place_of(image: &Image, options: &OutputOptions) -> Svma {
    place(image, 1 << 20, options).expect("a place")
}

pub fn version_at(image: &Image, order: Order, start: Svma) -> CheckedVersion {
    version_with(image, order, start, |_| Vec::new())
}

/// With the promoted calls that `promote` chooses; in position-independent files pointers to functions lead
/// to the copies.
pub fn version_with(
    image: &Image,
    order: Order,
    start: Svma,
    promote: impl Fn(&Program) -> Vec<Promotion>,
) -> CheckedVersion {
    let at = image.eh_frame().expect("unwind tables");
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap_or_default(), at.start)
        .expect("unwind tables");
    let program = analyze(image, &unwind).expect("analysable");
    let mut blocks: Vec<BlockId> = program.block_ids().filter(|b| program.is_movable(*b)).collect();
    match order {
        Order::Original => {}
        Order::Reversed => blocks.reverse(),
        Order::Random(seed) => shuffle(&mut blocks, seed),
        Order::Half => blocks.retain(|b| program.block(*b).function.index().is_multiple_of(2)),
    }
    // Numbers without a pattern: where a block stands in a cache line, and which way a branch is turned, must
    // not matter.
    let counts = |len: usize| -> Vec<u64> {
        match order {
            Order::Random(seed) => (0..len as u64).map(|i| (i + seed) * 7919 % 1009).collect(),
            _ => Vec::new(),
        }
    };
    let (blocks_ran, edges_ran) = (counts(program.blocks.len()), counts(program.edges.len()));
    let hot = blocks.into_iter().map(|b| Fragment { blocks: vec![b], align: 1 }).collect();
    let mut layout = Layout { hot, ..Layout::default() };
    if let Order::Random(seed) = order {
        layout = duplicated(&program, layout, seed);
        assert!(layout.duplicates() > 10);
        layout = fetching(&program, layout, seed);
    }
    let pointers = Pointers::of(image, &program);
    let request = Request {
        image,
        program: &program,
        unwind: &unwind,
        layout: &layout,
        start,
        bias: None,
        number: 3,
        bound_slots: &[],
        by_slots: true,
        promote: &promote(&program),
        pointers: Some(&pointers),
        large_pages: false,
        counters: None,
    };
    let executions = Executions { blocks: &blocks_ran, edges: &edges_ran };
    let version = emit_for(&request, executions).expect("emitted");
    assert_eq!(version.blocks.iter().filter(|b| b.duplicate).count() > 10, !layout.tails.is_empty());
    restitch_check::check(image, &program, &layout, version, None)
        .unwrap_or_else(|e| panic!("{} findings, the first: {:?}", e.total, e.findings.first()))
}

fn shuffle(blocks: &mut [BlockId], seed: u64) {
    let mut state = seed;
    for i in (1..blocks.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        blocks.swap(i, (state >> 33) as usize % (i + 1));
    }
}

pub fn plan(image: &Image, order: Order, options: &OutputOptions) -> Result<ElfPlan, ElfError> {
    plan_output(image, &version(image, order, options), options)
}

/// The verified bytes of the output.
pub fn output(image: &Image, order: Order, options: &OutputOptions) -> Vec<u8> {
    let plan = plan(image, order, options).expect("planned");
    let bytes = plan.write();
    assert_eq!(bytes.len(), plan.len());
    verify(&plan, &Image::parse(bytes.clone()).expect("the output is an image")).expect("verified");
    bytes
}

/// Writes an executable file. Another process does it: were it open for writing here, a process that another
/// test forks at that moment would hold it open, and starting it would fail with ETXTBSY.
pub fn install(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let (bytes_at, path) = (directory.join(format!("{name}.bytes")), directory.join(name));
    std::fs::write(&bytes_at, bytes).expect("writable");
    std::fs::set_permissions(&bytes_at, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let copied = std::process::Command::new("cp")
        .args(["--remove-destination", "-p"])
        .arg(&bytes_at)
        .arg(&path)
        .status();
    assert!(copied.expect("cp starts").success());
    path
}

/// Whether this program of the test set checks itself without arguments.
pub fn runs_alone(source: &Path) -> bool {
    source.file_stem().is_some_and(|s| s != "server")
}

/// `None` if the tool is not installed: a reason to skip. Every other failure is a bug of the test.
pub fn available<T>(made: Result<T, restitch_testkit::Error>) -> Option<T> {
    match made {
        Err(restitch_testkit::Error::Missing { .. }) => None,
        made => Some(made.expect("compiles")),
    }
}
