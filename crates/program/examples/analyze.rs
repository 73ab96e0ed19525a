//! Analyses a file and prints what was found:
//! `cargo run --release -p restitch-program --example analyze -- FILE`.
use restitch_program::{BlockAttrs, Movability, Terminator, analyze};
use std::collections::BTreeMap;
use std::time::Instant;

fn main() {
    let path = std::env::args().nth(1).expect("usage: analyze FILE");
    let t = Instant::now();
    let image = restitch_image::Image::parse(std::fs::read(&path).expect("readable")).expect("an ELF file");
    let t_image = t.elapsed();
    let at = image.eh_frame().expect("unwind tables");
    let bytes = image.read(at.start, at.len() as usize).expect("unwind tables in the file");
    let unwind = restitch_cfi::UnwindInfo::parse(bytes, at.start).expect("readable unwind tables");
    let t_cfi = t.elapsed();
    let program = analyze(&image, &unwind).expect("analysable");
    println!("image {t_image:?}, unwind {:?}, program {:?}", t_cfi - t_image, t.elapsed() - t_cfi);
    let mut why: BTreeMap<Movability, usize> = BTreeMap::new();
    for f in &program.functions {
        *why.entry(f.movability).or_default() += 1;
    }
    println!("functions {} {why:?}", program.functions.len());
    println!("redirectable {}", program.functions.iter().filter(|f| f.redirectable).count());
    println!("blocks {} edges {} calls {}", program.blocks.len(), program.edges.len(), program.calls.len());
    let attr = |a| program.blocks.iter().filter(|b| b.attrs.contains(a)).count();
    for (name, flag) in BlockAttrs::all().iter_names() {
        println!("  {name} {}", attr(flag));
    }
    let indirect = program.blocks.iter().filter(|b| b.terminator == Terminator::IndirectJump).count();
    let copyable = program.tables.iter().filter(|t| t.copyable).count();
    println!("tables {} copyable {copyable}; indirect jumps left {indirect}", program.tables.len());
    let entries: usize = program.tables.iter().map(|t| t.targets.len()).sum();
    let tail: usize = program.tables.iter().map(|t| t.tail.len()).sum();
    println!("entries {entries} tail {tail}");
    if let Err(problems) = program.validate() {
        println!("INVALID: {:?}", &problems[..problems.len().min(10)]);
    }
    if std::env::args().nth(2).is_some() {
        for b in program.blocks.iter().filter(|b| b.terminator == Terminator::IndirectJump) {
            println!("  {} in {}", b.terminator_at(), program.function(b.function).range.start);
        }
        for f in program.functions.iter().filter(|f| f.movability != Movability::Movable) {
            println!("  {:?} {} {}", f.movability, f.range, f.name.as_deref().unwrap_or("?"));
        }
        for b in program.blocks.iter().filter(|b| b.attrs.contains(BlockAttrs::UNREACHED)) {
            println!("  unreached {} in {}", b.range(), program.function(b.function).range.start);
        }
    }
}
