//! Versions without copies of jump tables: their jumps go by the original tables, and redirects lead back.

mod common;

use common::Module;
use restitch_check::check;
use restitch_emit::{RedirectKind, SkipReason};
use restitch_layout::testing::{shuffled, whole};
use restitch_program::BlockAttrs;

#[test]
fn jumps_by_original_tables_come_back() {
    let mut module = Module::parse(include_bytes!("data/small.elf").to_vec());
    let copied = module.version(&whole(&module.program), &[]);
    let table = module.program.tables[0].clone();
    assert!(table.copyable && !copied.tables.is_empty());
    module.program.keep_tables();
    assert_eq!(module.program.validate(), Ok(()));
    for layout in [whole(&module.program), shuffled(&module.program, 3)] {
        for counted in [Vec::new(), module.everything(&layout)] {
            let version = module.version(&layout, &counted);
            let of_table = version.skipped.iter().filter(|s| s.why == SkipReason::TableNotCopied);
            assert_eq!((version.tables.len(), of_table.count()), (0, 1));
            let landings = version.redirects.iter().filter(|r| r.kind == RedirectKind::Landing);
            let landings: Vec<_> = landings.map(|r| r.at).collect();
            for to in &table.targets {
                let block = module.program.block_starting_at(*to).unwrap();
                assert!(module.program.block(block).attrs.contains(BlockAttrs::INDIRECT), "{to}");
            }
            // A block of fewer than five bytes has no room for one, and goes on in the original code.
            assert!(table.targets.iter().any(|to| landings.contains(to)), "{landings:?}");
            let checked = check(&module.image, &module.program, &layout, version, module.bias());
            let report = *checked.unwrap_or_else(|e| panic!("{:#?}", e.findings)).report();
            assert_eq!((report.tables, report.table_entries), (0, 0));
        }
    }
}
