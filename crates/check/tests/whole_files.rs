//! Versions of all code of whole files: this test program itself. Further files can be named in
//! `RESTITCH_TEST_FILES`, separated by colons.

mod common;

use common::Module;
use restitch_check::check;
use restitch_layout::testing::{duplicated, half, shuffled, whole};
use restitch_testkit::{Error, compile, program, without_section_headers};
use std::path::PathBuf;
use std::time::Instant;

fn files() -> Vec<PathBuf> {
    let more = std::env::var("RESTITCH_TEST_FILES").unwrap_or_default();
    let more = more.split(':').filter(|p| !p.is_empty()).map(PathBuf::from);
    std::iter::once(std::env::current_exe().unwrap()).chain(more).collect()
}

#[test]
fn versions_of_all_code_in_any_order_counted_or_not_are_equal() {
    all_versions_are_equal(files());
}

#[test]
fn exception_tables_are_found_without_section_headers() {
    let throwing = match compile(&program("throw.cc"), &["-O2"]) {
        Ok(path) => path,
        Err(Error::Missing { tool }) => restitch_testkit::skip!("{tool} is missing"),
        Err(error) => panic!("{error}"),
    };
    all_versions_are_equal(vec![without_section_headers(&throwing).unwrap()]);
}

fn all_versions_are_equal(files: Vec<PathBuf>) {
    for path in files {
        let module = Module::parse(std::fs::read(&path).unwrap());
        let program = &module.program;
        let layouts = [whole(program), shuffled(program, 0x1234_5678_9abc_def1), half(program, 0x55)];
        let again = [duplicated(program, whole(program), 3), duplicated(program, shuffled(program, 0x77), 5)];
        let some = duplicated(program, half(program, 0x55), 7);
        for layout in layouts.into_iter().chain(again).chain([some]) {
            assert!(layout.tails.is_empty() || layout.duplicates() > 20);
            for counted in [Vec::new(), module.everything(&layout)] {
                let version = module.version(&layout, &counted);
                let clock = Instant::now();
                match check(&module.image, &module.program, &layout, version, module.bias()) {
                    Ok(checked) => {
                        println!("{}: {:?}: {:?}", path.display(), clock.elapsed(), checked.report());
                        assert!(checked.report().instructions > 1000);
                        let expected = counted.is_empty() && !layout.tails.is_empty();
                        assert_eq!(checked.report().duplicates > 20, expected, "{:?}", checked.report());
                    }
                    Err(error) => {
                        for finding in error.findings.iter().take(20) {
                            println!("{finding}");
                        }
                        panic!("{}: {}: {error}", path.display(), error.total);
                    }
                }
            }
        }
    }
}
