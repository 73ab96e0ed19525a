//! The whole chain on one file: lays out all movable blocks again, in a given order, and writes the new file.
//!
//! `cargo run -p restitch-apply-elf --example relayout -- FILE OUT [original|reversed|random[:SEED]] [--move-headers]`;
//! with `--restore` instead of an order, turns FILE back into the file that it was made from.

use restitch_apply::{Existing, Outlives, write_atomically};
use restitch_apply_elf::{OutputOptions, is_restitch_output, original_bytes, place, plan_output, verify};
use restitch_cfi::UnwindInfo;
use restitch_emit::{Request, emit};
use restitch_image::Image;
use restitch_layout::{Fragment, Layout};
use restitch_program::{BlockId, Program, analyze};
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments) {
        eprintln!("relayout: {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [input, output, rest @ ..] = arguments else {
        return Err(
            "usage: relayout FILE OUT [original|reversed|random[:SEED]|--restore] [--move-headers]".into()
        );
    };
    let mode = std::fs::metadata(input)?.permissions().mode();
    let mut image = Image::parse(std::fs::read(input)?)?;
    let has = |flag: &str| rest.iter().any(|a| a == flag);
    let bytes = if has("--restore") {
        original_bytes(&image)?
    } else {
        if is_restitch_output(&image).is_some() {
            image = Image::parse(original_bytes(&image)?)?;
        }
        let order = rest.iter().find(|a| !a.starts_with("--")).map_or("original", String::as_str);
        relayout(
            &image,
            order,
            &OutputOptions { move_program_headers: has("--move-headers"), large_pages: false },
        )?
    };
    Ok(write_atomically(Path::new(output), &bytes, mode, Existing::Replace, Outlives::PowerCut)?)
}

fn relayout(image: &Image, order: &str, options: &OutputOptions) -> Result<Vec<u8>, Box<dyn Error>> {
    let begin = Instant::now();
    let at = image.eh_frame().ok_or("no unwind tables")?;
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap_or_default(), at.start)?;
    let program = analyze(image, &unwind)?;
    let layout = all_blocks(&program, order)?;
    let size = 2 * image.executable_ranges().iter().map(|r| r.len()).sum::<u64>();
    let start = place(image, size, options)?;
    let request = Request {
        image,
        program: &program,
        unwind: &unwind,
        layout: &layout,
        start,
        bias: None,
        number: 1,
        bound_slots: &[],
        by_slots: true,
        promote: &[],
        pointers: None,
        large_pages: false,
        counters: None,
    };
    let version = emit(&request)?;
    let emitted = begin.elapsed();
    println!("{} blocks placed, {} skips", version.blocks.len(), version.skipped.len());
    let version = restitch_check::check(image, &program, &layout, version, None)?;
    println!("emitted {emitted:?}, checked {:?}", begin.elapsed());
    let plan = plan_output(image, &version, options)?;
    let bytes = plan.write();
    verify(&plan, &Image::parse(bytes.clone())?)?;
    println!("{} redirects, {} bytes, {:?}", plan.redirects().len(), bytes.len(), begin.elapsed());
    Ok(bytes)
}

/// A fragment a block: in address order, reversed, or shuffled by a small generator.
fn all_blocks(program: &Program, order: &str) -> Result<Layout, Box<dyn Error>> {
    let mut blocks: Vec<BlockId> = program.block_ids().filter(|b| program.is_movable(*b)).collect();
    match order.split_once(':').unwrap_or((order, "1")) {
        ("original", _) => {}
        ("reversed", _) => blocks.reverse(),
        ("random", seed) => {
            let mut state: u64 = seed.parse()?;
            for i in (1..blocks.len()).rev() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                blocks.swap(i, (state >> 33) as usize % (i + 1));
            }
        }
        _ => return Err(format!("unknown order {order}").into()),
    }
    let hot = blocks.into_iter().map(|b| Fragment { blocks: vec![b], align: 1 }).collect();
    Ok(Layout { hot, ..Layout::default() })
}
