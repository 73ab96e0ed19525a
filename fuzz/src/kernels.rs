//! What a kernel says of itself: a core file, symbols, lists of the function tracer, types, tables.

use restitch_kernel::{Analysis, Kernel, KernelError, Lists, Symbols, image};
use restitch_testkit::small_kernel::{BASE, SmallKernel};
use std::io::{Error, ErrorKind};
use std::path::Path;

/// A core file: headers, code and tables. The symbols are right.
pub fn kernel_core(core: &[u8]) {
    understood(core, &SmallKernel::new().symbols, &Lists::default(), None);
}

/// `/proc/kallsyms`; the core file is right.
pub fn kernel_symbols(text: &[u8]) {
    understood(&SmallKernel::new().core(), &String::from_utf8_lossy(text), &Lists::default(), None);
}

/// The lists of the tracer and of probes, separated by lines of `--`, and the types behind them.
pub fn kernel_lists(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.split("--\n").map(str::to_owned);
    let lists = Lists {
        traceable: parts.next(),
        trace_sites: parts.next(),
        traced: parts.next(),
        probed: parts.next(),
        unprobed: parts.next(),
    };
    understood(&SmallKernel::new().core(), &SmallKernel::new().symbols, &lists, Some(data));
}

/// Seeds of the first.
pub(crate) fn cores() -> Vec<Vec<u8>> {
    vec![SmallKernel::new().core()]
}

/// Of the second.
pub(crate) fn symbols() -> Vec<Vec<u8>> {
    vec![SmallKernel::new().symbols.into_bytes()]
}

/// Of the third.
pub(crate) fn lists() -> Vec<Vec<u8>> {
    let lists = format!(
        "work\nwarns\n--\n{BASE:x} work\n--\nwork (1) R\n--\n{BASE:x} k work+0x0\n--\n0x{BASE:x}-0x{BASE:x}0\twork\n"
    );
    // The head of a file of types.
    let types = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    vec![lists.into_bytes(), types.to_vec()]
}

fn understood(core: &[u8], text: &str, lists: &Lists, types: Option<&[u8]>) {
    let Ok(kernel) = read(core, text, lists, types) else { return };
    let ids: Vec<_> = kernel.functions.ids().collect();
    for id in &ids {
        let (function, code) = (kernel.functions.get(*id), kernel.code(*id));
        assert!(code.blocks.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
        assert!(
            code.blocks.iter().all(|block| !block.range.is_empty() && function.contains(block.range.start))
        );
        let is_block = |block: Option<usize>| block.is_none_or(|block| block < code.blocks.len());
        assert!(code.edges.iter().all(|edge| is_block(edge.from) && is_block(edge.to)));
    }
    let whole = Analysis::of(&kernel, String::new(), &[]);
    let survey = whole.survey.as_ref().expect("of the whole");
    let staying: u64 = survey.not_movable.iter().map(|staying| staying.functions).sum();
    assert_eq!(survey.movable_functions + staying, survey.functions);
    let _ = (whole.to_text(), Analysis::of(&kernel, String::new(), &ids).to_json());
}

fn read(core: &[u8], text: &str, lists: &Lists, types: Option<&[u8]>) -> Result<Kernel, KernelError> {
    let symbols = Symbols::parse(text, Path::new("symbols"))?;
    let bytes = |at: u64, room: &mut [u8]| {
        let part = usize::try_from(at).ok().and_then(|at| core.get(at..)?.get(..room.len()));
        room.copy_from_slice(part.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    };
    Kernel::new(image(bytes, Path::new("core"), &symbols)?, symbols, types, lists)
}
