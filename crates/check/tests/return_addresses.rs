//! Calls of code that reads its return address: that they are not copied is checked, not believed.

mod common;

use common::Module;
use restitch_check::{Problem, check};
use restitch_layout::testing::{shuffled, whole};
use restitch_program::{BlockAttrs, BlockId, Movability};
use restitch_testkit::{compile, program, skipped};
use std::collections::BTreeSet;

fn module() -> Option<Module> {
    match compile(&program("returns.c"), &["-O2"]) {
        Ok(path) => Some(Module::parse(std::fs::read(path).unwrap())),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

#[test]
fn versions_without_such_calls_hold() {
    let Some(module) = module() else { return };
    for layout in [whole(&module.program), shuffled(&module.program, 5)] {
        for counted in [Vec::new(), module.everything(&layout)] {
            let version = module.version(&layout, &counted);
            let checked = check(&module.image, &module.program, &layout, version, module.bias());
            let report = *checked.unwrap_or_else(|error| panic!("{:#?}", error.findings)).report();
            assert!(report.instructions > 100);
        }
    }
}

/// An analysis that knows nothing of return addresses: each of the calls is found, by function.
#[test]
fn copied_calls_are_found() {
    let Some(mut module) = module() else { return };
    let program = &mut module.program;
    program.blocks.iter_mut().for_each(|block| block.attrs.remove(BlockAttrs::PINNED));
    for function in &mut program.functions {
        if function.movability == Movability::ReturnsElsewhere {
            function.movability = Movability::Movable;
        }
    }
    let layout = whole(&module.program);
    let version = module.version(&layout, &[]);
    let error = check(&module.image, &module.program, &layout, version, module.bias()).unwrap_err();
    let mut found = BTreeSet::new();
    for finding in &error.findings {
        assert!(matches!(finding.problem, Problem::ReturnAddress(_)), "{finding}");
        let block: BlockId = module.program.block_at(finding.original.unwrap()).unwrap();
        let function = module.program.function(module.program.block(block).function);
        found.insert(function.name.as_deref().unwrap_or_default().to_owned());
    }
    // (The others have no blocks: there may be data behind their calls.)
    let expected = ["asked", "by_body", "by_jump", "by_pop", "by_skip", "by_thunk", "by_wrapper"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
