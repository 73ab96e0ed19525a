//! The programs that targets and seeds begin with.

/// A hand-written module with one of everything that a version has to get right; its source lies beside it.
pub(crate) const SMALL: &[u8] = include_bytes!("../../crates/check/tests/data/small.elf");

/// The hand-written module, and what compilers make of test programs (as far as there are compilers).
pub(crate) fn files() -> Vec<Vec<u8>> {
    let sources: [(&str, &[&str]); 3] =
        [("switch.c", &["-O2"]), ("goto.c", &["-O2", "-no-pie"]), ("throw.cc", &["-O2"])];
    let compiled = sources.iter().filter_map(|(source, flags)| {
        let path = restitch_testkit::compile(&restitch_testkit::program(source), flags).ok()?;
        std::fs::read(restitch_testkit::strip(&path).ok()?).ok()
    });
    std::iter::once(SMALL.to_vec()).chain(compiled).collect()
}
