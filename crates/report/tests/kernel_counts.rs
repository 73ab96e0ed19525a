//! The forms of counts of kernel functions.

use restitch_report::{
    COUNTS_SCHEMA_VERSION, CountedBlock, CountedEdge, CountedFunction, CountsReport, GroupStays,
};
use serde_json::Value;
use std::collections::BTreeSet;

fn function(name: &str, is_root: bool, counts: &[u64]) -> CountedFunction {
    let address = |number: usize| format!("{:#x}", 0xffff_ffff_8100_0000 + 16 * number);
    let block =
        |(number, count): (usize, &u64)| CountedBlock { address: address(number), bytes: 16, count: *count };
    let edge = |number: usize| CountedEdge {
        from: address(number - 1),
        to: address(number),
        count: counts[number],
        is_exact: number != 3,
    };
    CountedFunction {
        name: name.into(),
        address: address(0),
        is_root,
        calls: counts[0],
        blocks: counts.iter().enumerate().map(block).collect(),
        edges: (1..counts.len()).map(edge).collect(),
    }
}

fn report() -> CountsReport {
    CountsReport {
        schema_version: COUNTS_SCHEMA_VERSION,
        restitch_version: "0.1.0".into(),
        release: "6.1.0-44-amd64".into(),
        seconds: 20.04,
        standing: 0,
        left: None,
        counters: 4,
        functions: vec![
            function("do_sys_poll", true, &[1_000_000, 999_999, 1, 0]),
            function("fd\u{1b}install", false, &[7, 7]),
        ],
        stays: vec![GroupStays {
            name: "schedule".into(),
            address: "0x1".into(),
            why: "it switches stacks".into(),
        }],
    }
}

#[test]
fn counts_are_the_same_after_a_trip_through_json() {
    let report = report();
    assert_eq!(CountsReport::from_json(&report.to_json().unwrap()).unwrap(), report);
}

#[test]
fn counts_are_told_in_a_table_of_80_columns() {
    let text = report().to_text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "2 functions of Linux 6.1.0-44-amd64 for 20.0 s: 4 counters for 6 blocks, of which 5 were executed; 75.0 %",
        "do_sys_poll 1,000,000 2,000,000 3/4",
        "not counted schedule: it switches stacks",
    ] {
        assert!(words.contains(expected), "{expected:?} is missing in {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(!text.contains("slept"), "{text}");
    let mut many = report();
    many.functions = vec![many.functions[0].clone(); 23];
    assert!(many.to_text().contains("and 3 functions more"), "{}", many.to_text());
}

#[test]
fn edges_that_are_bounds_are_not_exact() {
    let report = report();
    // Of four.
    assert!((report.exact_share() - 0.75).abs() < 1e-12);
    let none = CountsReport { functions: Vec::new(), ..report };
    assert!((none.exact_share() - 1.0).abs() < 1e-12);
}

#[test]
fn each_field_of_the_json_is_documented() {
    fn paths(value: &Value, at: &str, out: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = format!("{at}{name}");
                    paths(value, &format!("{path}."), out);
                    out.insert(path);
                }
            }
            Value::Array(items) => {
                let at = format!("{}[].", at.trim_end_matches('.'));
                items.iter().for_each(|item| paths(item, &at, out));
            }
            _ => {}
        }
    }
    let json: Value = serde_json::from_str(&report().to_json().unwrap()).unwrap();
    let mut there = BTreeSet::new();
    paths(&json, "", &mut there);
    let document = include_str!("../../../docs/json.md").split_once("\n## Counts of kernel functions\n");
    let document = document.expect("a part").1.split("\n## ").next().unwrap_or_default();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(there, rows.map(str::to_owned).collect());
}

#[test]
fn who_sleeps_in_copies_is_told_with_what_to_do() {
    let counted = |left: Option<&str>| CountsReport { standing: 2, left: left.map(Into::into), ..report() };
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = counted(Some("restitch_poll")).to_text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let text = words(text);
    assert!(text.contains("2 tasks slept in the copies when counters were read"), "{text}");
    assert!(text.contains("restitch kernel revert restitch_poll takes it out"), "{text}");
    assert!(!words(counted(None).to_text()).contains("revert"));
}
