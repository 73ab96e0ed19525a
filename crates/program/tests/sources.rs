//! Functions from other lists than unwind tables, and code of which unwinders know nothing, through the whole
//! analysis.

use restitch_address::SvmaRange;
use restitch_cfi::{NoUnwindTables, UnwindInfo};
use restitch_image::Image;
use restitch_program::{
    AnalyzeError, FunctionRange, FunctionSource, Movability, Program, Sources, SymbolFunctions, analyze,
    analyze_among,
};
use restitch_testkit::{compile, program, skipped};
use std::collections::BTreeSet;

/// A plain list.
struct Listed(Vec<SvmaRange>);

impl FunctionSource for Listed {
    fn functions(&self) -> Vec<FunctionRange> {
        self.0.iter().map(|range| FunctionRange { range: *range, overlapping: false }).collect()
    }

    fn if_none(&self) -> &'static str {
        "the list is empty"
    }
}

fn by(image: &Image, sources: Sources<'_>) -> Result<Program, AnalyzeError> {
    let program = analyze_among(image, sources, &BTreeSet::new())?;
    assert_eq!(program.validate(), Ok(()));
    Ok(program)
}

/// A program in C, whose functions nobody unwinds through with exceptions, and its unwind tables.
fn compiled(name: &str, flags: &[&str]) -> Option<(Image, UnwindInfo)> {
    let path = match compile(&program(name), flags) {
        Ok(path) => path,
        Err(error) => {
            skipped(&format!("{name}: {error}"));
            return None;
        }
    };
    let image = Image::parse(std::fs::read(path).unwrap()).unwrap();
    let at = image.eh_frame().unwrap();
    let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap(), at.start).unwrap();
    Some((image, unwind))
}

fn listed(unwind: &UnwindInfo) -> Listed {
    // From behind, with what is no code: a source need not know.
    let nothing = [SvmaRange::default(), SvmaRange::new(restitch_address::Svma::new(8), 4)];
    Listed(unwind.entries().iter().rev().map(|entry| entry.range).chain(nothing).collect())
}

#[test]
fn a_plain_list_of_the_same_functions_gives_the_same_program() {
    for flags in [&["-O2"][..], &["-O0", "-no-pie"]] {
        let Some((image, unwind)) = compiled("switch.c", flags) else { return };
        let listed = by(&image, Sources { functions: &listed(&unwind), unwind: &unwind }).unwrap();
        assert_eq!(listed, analyze(&image, &unwind).unwrap(), "{flags:?}");
    }
}

#[test]
fn without_unwind_tables_code_is_found_just_as_well() {
    for flags in [&["-O2"][..], &["-O0", "-no-pie"]] {
        let Some((image, unwind)) = compiled("switch.c", flags) else { return };
        let unknown = by(&image, Sources { functions: &listed(&unwind), unwind: &NoUnwindTables }).unwrap();
        let known = analyze(&image, &unwind).unwrap();
        assert_eq!(unknown.tables, known.tables, "{flags:?}");
        let ranges = |program: &Program| program.functions.iter().map(|f| f.range).collect::<Vec<_>>();
        assert_eq!(ranges(&unknown), ranges(&known));
        assert!(unknown.blocks.len() >= known.blocks.len(), "{flags:?}: with more doubt, not with less");
        let main = unknown.functions.iter().find(|f| f.name.as_deref() == Some("main")).unwrap();
        assert_eq!(main.movability, Movability::Movable);
    }
}

#[test]
fn functions_of_a_symbol_table_are_those_of_unwind_tables_that_have_names() {
    for flags in [&["-O2"][..], &["-O0", "-no-pie"]] {
        let Some((image, unwind)) = compiled("switch.c", flags) else { return };
        let named = by(&image, Sources { functions: &SymbolFunctions(&image), unwind: &unwind }).unwrap();
        let all = analyze(&image, &unwind).unwrap();
        let main = named.functions.iter().find(|f| f.name.as_deref() == Some("main")).expect("it is named");
        let same = all.functions.iter().find(|f| f.range == main.range).expect("unwinders know it");
        assert_eq!(
            (main.movability, main.blocks.indices().len()),
            (same.movability, same.blocks.indices().len())
        );
        let of_both = named.functions.iter().filter(|f| all.functions.iter().any(|g| f.range == g.range));
        assert!(of_both.count() >= 8, "{flags:?}");
        assert_eq!(named.tables, all.tables, "{flags:?}");
    }
}

#[test]
fn functions_that_a_list_does_not_keep_apart_stay() {
    let Some((image, unwind)) = compiled("switch.c", &["-O2"]) else { return };
    let main = image.symbols_named("main").next().unwrap().range;
    let inner = SvmaRange::between(main.start + 1, main.end);
    let program = by(&image, Sources { functions: &Listed(vec![inner, main]), unwind: &unwind }).unwrap();
    let found: Vec<_> = program.functions.iter().map(|f| (f.range, f.movability)).collect();
    assert_eq!(found, [(main, Movability::Overlapping)]);
}

#[test]
fn who_lists_nothing_says_what_is_missing() {
    let Some((image, unwind)) = compiled("switch.c", &["-O2"]) else { return };
    let error = by(&image, Sources { functions: &Listed(Vec::new()), unwind: &unwind }).unwrap_err();
    assert_eq!(error.to_string(), "the list is empty");
    let nothing = UnwindInfo::parse(&[], restitch_address::Svma::new(0)).unwrap();
    let error = analyze(&image, &nothing).unwrap_err().to_string();
    assert!(error.starts_with("the file has no unwind table entries (.eh_frame)"), "{error}");
}
