//! The three forms of a full result, and their document.

use proptest::prelude::*;
use restitch_report::*;
use serde_json::Value;
use std::collections::BTreeSet;

fn comparison() -> Comparison {
    let profile =
        |path: &str| ComparedProfile { path: path.into(), functions: 3, blocks: 40, executions: 12_345 };
    let mut comparison =
        Comparison::new(vec![profile("a & <b>"), profile("c\u{1b}[31m")], vec!["a warning".into()]);
    let table = |unlike| vec![vec![1.0, unlike], vec![unlike, 1.0]];
    comparison.modules = vec!["/usr/bin/program".into()];
    comparison.function_overlap = table(0.25);
    comparison.block_overlap = table(0.5);
    comparison.edge_overlap = table(0.125);
    comparison.function_cosine = table(0.75);
    comparison.branch_cosine = table(0.0);
    let taken = |n| TakenDifference { branches: 100, only_one: 7, l0: n, l1: n / 2.0, l2: n / 4.0 };
    comparison.taken = vec![vec![taken(0.0), taken(50.0)], vec![taken(50.0), taken(0.0)]];
    comparison
}

#[test]
fn a_comparison_has_all_forms() {
    let comparison = comparison();
    assert_eq!(Comparison::from_json(&comparison.to_json().unwrap()).unwrap(), comparison);
    let text = comparison.to_text();
    for part in
        ["overlap of functions", "0.2500", "taken probability, L1 per branch", "12345 block executions"]
    {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "control characters reach the terminal");
    let svg = comparison.to_svg();
    assert!(svg.contains("a &amp; &lt;b&gt;") && !svg.contains('\u{1b}') && !svg.contains("NaN"));
    // Eight measures, four cells each, and the background.
    assert_eq!(
        (svg.matches("<rect").count(), svg.matches("<g ").count(), svg.matches("</g>").count()),
        (33, 8, 8)
    );
}

fn sample() -> RunResult {
    let target = Target {
        program: "/usr/lib/postgresql/15/bin/postgres".into(),
        pid: Some(4711),
        processes: 3,
        threads: 17,
    };
    let mut result = RunResult::new("attach", target);
    result.modules.push(Module {
        path: "/usr/lib/postgresql/15/bin/postgres".into(),
        build_id: Some("0123456789abcdef0123456789abcdef01234567".into()),
        functions: 15_321,
        blocks: 412_907,
        code_bytes: 5_242_880,
        movable_share: 0.987,
        not_movable: vec![Reason { reason: "no unwind information".into(), functions: 12, bytes: 800 }],
        layout: Some(LayoutSummary {
            algorithm: "ext-tsp".into(),
            score_before: 0.41,
            score_after: 0.93,
            hot_blocks: 31_000,
            cold_blocks: 9_000,
            duplicates: 12,
            duplicate_bytes: 400,
            prefetches: 7,
        }),
        version: Some(VersionSummary {
            number: 2,
            bytes: 1_310_720,
            text_bytes: 1_048_576,
            blocks: 40_000,
            redirects: 2_801,
            checked: CheckCounts {
                blocks: 40_000,
                instructions: 210_000,
                branches: 38_000,
                tables: 91,
                rows: 250_000,
                call_sites: 30_000,
                redirects: 2_801,
                direct: 57,
                by_slot: 12,
                promoted: 11,
            },
            large_page_bytes: 2 << 20,
        }),
        counting: Some(Counting {
            blocks: 39_000,
            counters: 21_000,
            counters_per_block: 0.5385,
            taken_branches: 1_234_567,
            functions_run: 900,
            edges: 50_000,
            exact_edge_share: 0.99912,
            exact_function_share: 0.997,
            block_edge_share: 0.9961,
            block_function_share: 0.9788,
            flow_error_in: 0.0000012,
            flow_error_out: 0.0021,
        }),
        samples: 90_000,
        plan: None,
        hottest: vec![
            HotFunction {
                name: "ExecInterpExpr".into(),
                address: "0x401000".into(),
                share: 0.123,
                blocks: 500,
                moved_blocks: 480,
                stays: None,
            },
            HotFunction {
                name: "std::map<int, std::string>::operator[]".into(),
                address: "0x402000".into(),
                share: 0.05,
                blocks: 20,
                moved_blocks: 0,
                stays: Some("procedure linkage stubs".into()),
            },
        ],
    });
    result.profile = Some(ProfileSummary {
        source: "counting version".into(),
        seconds: 5.0,
        samples: 120_000,
        exact_edge_share: 0.996,
    });
    result.branch_records = Some(BranchRecords {
        source: "trace".into(),
        records: 40,
        full_records: 39,
        branches: 20_123,
        elsewhere: 3,
        in_vdso: 17,
        coverage: 0.912,
        alarms: 41,
        ends: vec![End { why: "full".into(), count: 39 }, End { why: "at a signal".into(), count: 1 }],
        breakpoints: 70,
        contradicted: 1,
        static_usefulness: 0.61,
        cpu_ms: 5_000.0,
        held_ms: 47.5,
        looking_ms: 30.0,
        recording_ms: 0.0,
        overhead: Some(0.0095),
        version_bytes: 0,
        blocked_threads: 1,
        missed_threads: 2,
    });
    result.samples = Some(Samples {
        source: "lbr".into(),
        samples: 12_345,
        branches: 395_040,
        elsewhere: 12,
        in_vdso: 34,
        lost: 5,
        per_second: 4_000,
        cost_us: 2.5,
        overhead: 0.01,
        coverage: Some(0.973),
    });
    result.left_out =
        vec![LeftOut { path: "/lib/libodd.so".into(), why: "the checker refused it".into(), samples: 400 }];
    result.other_modules =
        Some(OtherModules { modules: 3, samples: 900, share: 0.0075, outside: 300, outside_share: 0.0025 });
    result.apply = Some(ApplySummary {
        how: "process".into(),
        in_force_ms: 8_250.0,
        pause_us: 412.0,
        pause_parts: vec![
            PausePart { name: "nothing stopped for it".into(), us: 0.0 },
            PausePart { name: "stop".into(), us: 50.0 },
            PausePart { name: "remap".into(), us: 230.0 },
            PausePart { name: "of that: reading".into(), us: 100.0 },
            PausePart { name: "of that: writing".into(), us: 20.0 },
            PausePart { name: "before it: one thread held".into(), us: 7.0 },
        ],
        patches: 2_801,
        moved_threads: 5,
        moved_to_counting: 3,
        moved_to_layout: 2,
    });
    let before = [101.0, 99.0, 100.0, 102.0, 98.0, 100.5, 99.5, 100.2];
    let after = before.map(|b| b * 0.9);
    result.verdict = stats::verdict("cycles per transaction", "kilocycles", Better::Lower, &before, &after);
    let rates = [800.0, 801.0, 799.0, 802.0, 798.0];
    result.verdict_beside = stats::verdict("transactions", "per second", Better::Higher, &rates, &rates);
    let round = |at_seconds: f64, why: &str| Round {
        at_seconds,
        seconds: 9.25,
        why: why.into(),
        outcome: Outcome::InForce,
        error: None,
        verdict: None,
    };
    let first = Round { verdict: result.verdict.clone(), ..round(0.0, "the session began") };
    let failed = Round {
        outcome: Outcome::NothingToDo,
        error: Some("too little CPU time".into()),
        ..round(900.0, "the process works in a way that was not known")
    };
    result.continuous = Some(Continuous {
        rounds: vec![first, failed],
        seconds: 1234.5,
        samples: 45_000,
        sample_sets: 45,
        program_phases: 2,
        ended: Some("the process has ended".into()),
    });
    result.phases =
        vec![Phase { name: "sample".into(), ms: 2000.0 }, Phase { name: "lay out".into(), ms: 61.5 }];
    result.peak_memory_bytes = 300 << 20;
    result.warnings = vec!["no hardware branch records on this machine; counts come from a counting version, which slows the program down while it runs".into()];
    result.outcome = Outcome::InForce;
    result.exit_code = 0;
    result
}

/// The result of a dry run.
fn planned() -> RunResult {
    let mut result = sample();
    let module = &mut result.modules[0];
    (module.layout, module.version) = (None, None);
    module.plan = Some(Plan {
        sample_share: 0.75,
        sampled_functions: 210,
        sampled_bytes: 43 << 10,
        fixed_functions: 2,
        fixed_share: 0.0125,
        functions: 2_195,
        blocks: 39_798,
        bytes: 2 << 20,
        counting_bytes: Some(3 << 20),
        counting_mapped_bytes: Some(5 << 20),
    });
    result.planned_memory = Some(PlannedMemory {
        needed_bytes: 7 << 20,
        for_counting: true,
        left_bytes: Some(61 << 20),
        limit_bytes: Some(64 << 20),
        group: Some("/sys/fs/cgroup/shop".into()),
    });
    (result.apply, result.verdict, result.verdict_beside) = (None, None, None);
    result.outcome = Outcome::Planned;
    result
}

#[test]
fn a_plan_says_what_would_be_done() {
    let text = planned().to_text();
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "75.0 % of all, 90,000 samples, in 210 functions with 43.0 KiB of code",
        "2 functions with 1.2 % of these samples cannot be moved",
        "2,195 functions with 39,798 blocks of 2.00 MiB; the counting version has 3.00 MiB of code (5.00 MiB with \
         tables and counters)",
        "7.00 MiB of the process's memory to count; how much the new code takes is known then; 61.0 MiB of 64.0 MiB \
         are left in /sys/fs/cgroup/shop",
        "500 blk",
        "planned; nothing was changed",
    ] {
        assert!(flat.contains(part), "{part} is missing:\n{text}");
    }
    assert!(!flat.contains("480/500"), "{text}");
    let html = planned().to_html();
    for part in ["To be profiled", "5.00 MiB", "7.00 MiB"] {
        assert!(html.contains(part), "{part} is missing:\n{html}");
    }
    // By a given profile, without a limit.
    let mut known = planned();
    known.planned_memory = Some(PlannedMemory { needed_bytes: 2 << 20, ..PlannedMemory::default() });
    let flat = known.to_text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("needed 2.00 MiB of the process's memory; no memory cgroup limits it"), "{flat}");
}

/// All paths of a JSON value: `modules[].version.bytes`.
fn paths(value: &Value, at: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                out.insert(path.clone());
                paths(value, &path, out);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| paths(item, &format!("{at}[]"), out)),
        _ => {}
    }
}

#[test]
fn the_document_names_exactly_the_fields_that_there_are() {
    // What is said of kernels is held by a test of the command.
    let document = include_str!("../../../docs/json.md");
    let document = document.split("\n## The kernel\n").next().expect("a part");
    let documented: BTreeSet<String> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect();
    let mut there = BTreeSet::new();
    paths(&serde_json::from_str(&sample().to_json().unwrap()).unwrap(), "", &mut there);
    paths(&serde_json::from_str(&planned().to_json().unwrap()).unwrap(), "", &mut there);
    paths(&serde_json::from_str(&comparison().to_json().unwrap()).unwrap(), "", &mut there);
    let missing: Vec<_> = there.difference(&documented).collect();
    let gone: Vec<_> = documented.difference(&there).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not in docs/json.md: {missing:?}; only there: {gone:?}");
    assert!(document.contains(&format!("`schema_version` {SCHEMA_VERSION}")));
    assert!(document.contains(&format!("`comparison_schema_version` {COMPARISON_SCHEMA_VERSION}")));
    for value in [
        "lower",
        "higher",
        "yes",
        "no",
        "unclear",
        "in_force",
        "written",
        "planned",
        "reverted",
        "nothing_to_do",
        "failed",
    ] {
        assert!(document.contains(&format!("`\"{value}\"`")), "{value} is not described");
    }
}

#[test]
fn json_goes_both_ways_and_newer_fields_are_ignored() {
    let json = sample().to_json().unwrap();
    assert_eq!(RunResult::from_json(&json).unwrap(), sample());
    let newer = json.replacen('{', "{\"of_the_future\": [1, {}],", 1);
    assert_eq!(RunResult::from_json(&newer).unwrap(), sample());
    let bare = RunResult::new("attach", sample().target);
    assert_eq!(RunResult::from_json(&bare.to_json().unwrap()).unwrap(), bare);
    assert!(RunResult::from_json("{\"schema_version\": 1}").is_err());
}

#[test]
fn the_text_says_it_all_in_eighty_columns() {
    let text = sample().to_text();
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    for form in [&text, &sample().to_html()] {
        assert!(!form.contains("nothing stopped for it"), "{form}");
    }
    for part in [
        "process 4711, 3 processes, 17 threads",
        "15,321 functions",
        "5.00 MiB",
        "98.7 %",
        "no unwind information",
        "0.410 before",
        "0.930",
        "2,801 redirects",
        "210,000 instructions",
        "ExecInterpExpr",
        "21,000 counters for 39,000 blocks (0.538 each)",
        "900 functions with 50,000 edges",
        "99.91 % of the edges, 99.70 % of the functions; from block counts alone 99.61 % of the edges, 97.88 % of the functions",
        "error 1.2e-4 % between",
        "12.3 %",
        "0/20 blk stays procedure linkage stubs",
        "3 threads to the counting version, 2 to the new layout",
        "3 other modules with 0.8 % of the samples, too few in each; 0.2 % of the samples in no module",
        "counting version, 5.00 s",
        "412 us",
        "stop 50.0 us, remap 230 us (reading 100 us, writing 20.0 us), before it: one thread held 7.00 us",
        "2,801 patches",
        "it helped: 0.900",
        "2.06 s: sample 2.00 s, lay out 61.5 ms",
        "300 MiB",
        "warning",
        "active 8.25 s after the start",
        "the new layout is active (exit code 0)",
    ] {
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(part), "{part} is missing:\n{text}");
    }
}

/// The name of a function gives way to its numbers of blocks.
#[test]
fn large_functions_keep_their_unit() {
    let mut result = sample();
    let hot = &mut result.modules[0].hottest[0];
    (hot.name, hot.blocks, hot.moved_blocks) = ("x".repeat(100), 12_345, 12_340);
    let text = result.to_text();
    let line = text.lines().find(|line| line.contains("xxx")).expect("it is listed");
    assert!(line.ends_with(" 12,340/12,345 blk") && line.chars().count() <= 80, "{line}");
}

#[test]
fn plurals_are_those_of_english() {
    use restitch_report::counted;
    let all = [(1, "branch"), (2, "branch"), (0, "process"), (1_234, "block"), (2, "patch")];
    let all = all.map(|(n, noun)| counted(n, noun));
    assert_eq!(all, ["1 branch", "2 branches", "0 processes", "1,234 blocks", "2 patches"]);
}

#[test]
fn one_of_a_kind_is_said_in_the_singular() {
    let mut result = sample();
    let module = &mut result.modules[0];
    (module.functions, module.blocks) = (1, 1);
    let version = module.version.as_mut().unwrap();
    (version.blocks, version.redirects) = (1, 1);
    let checked = &mut version.checked;
    (checked.blocks, checked.instructions, checked.branches, checked.tables) = (1, 1, 1, 1);
    (checked.rows, checked.call_sites, checked.redirects) = (1, 1, 1);
    let page = result.to_html();
    for part in [
        ", 1 function, 1 block<",
        ": 1 block, ",
        " mapped, 1 redirect<",
        ">1 block, 1 instruction, 1 branch, 1 table, 1 unwind row, 1 call site, 1 redirect<",
    ] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
}

#[test]
fn the_page_holds_the_numbers_and_loads_nothing() {
    let page = sample().to_html();
    for part in [
        "width:100.0%",
        "width:90.0%",
        "ExecInterpExpr",
        "12.3 %",
        "it helped",
        "900 functions with 50,000 edges",
        "2,801",
        "std::map&lt;int, std::string&gt;",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["<script", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
    assert_eq!(page.matches("<div").count(), page.matches("</div>").count());
}

fn nasty() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,30}",
        Just("<script>alert('x')</script>".to_owned()),
        Just("\"&quot;\u{1b}[2J\r\n</title>".to_owned())
    ]
}

proptest! {
    #[test]
    fn names_from_elsewhere_cannot_break_out(name in nasty(), path in nasty(), warning in nasty(), value in any::<f64>()) {
        let mut result = sample();
        result.modules[0].hottest[0].name = name.clone();
        result.modules[0].path = path;
        result.target.program = name;
        result.warnings = vec![warning];
        if let Some(v) = &mut result.verdict {
            v.after = value;
        }
        let page = result.to_html();
        // The page's own markup, and nothing else, uses these.
        let bare = sample().to_html();
        for mark in ["<", ">", "\""] {
            prop_assert_eq!(page.matches(mark).count(), bare.matches(mark).count(), "{}", mark);
        }
        let text = result.to_text();
        prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        prop_assert!(result.to_json().is_ok());
    }

    #[test]
    fn the_json_reader_survives_anything(mut json in Just(sample().to_json().unwrap().into_bytes()), at in any::<prop::sample::Index>(), byte: u8) {
        let i = at.index(json.len());
        json[i] = byte;
        if let Ok(text) = std::str::from_utf8(&json) {
            let _ = RunResult::from_json(text);
        }
    }
}
