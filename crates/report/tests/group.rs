//! The three forms of a group of kernel functions.

use restitch_report::*;

fn function(name: &str, is_root: bool, [hot_bytes, chains, cold_bytes]: [u64; 3]) -> GroupFunction {
    let address = "0xffffffff81000000".into();
    // A callee of which nothing else is left.
    let inlined_calls = if hot_bytes == 0 { 3 } else { 0 };
    let (name, is_led) = (name.into(), is_root);
    GroupFunction { name, address, is_root, is_led, hot_bytes, chains, cold_bytes, inlined_calls }
}

fn call(offset: Option<u64>, callee: Option<&str>, goes: GroupCallGoes, count: u64) -> GroupCall {
    GroupCall {
        caller: "do_sys_poll".into(),
        site: "0xffffffff8100001f".into(),
        offset,
        is_static_call: false,
        callee: callee.map(Into::into),
        goes,
        count,
    }
}

fn group() -> GroupReport {
    let shape = CacheShape { line_bytes: 64, sets: 20, ways: 2 };
    // Before: three lines in set 3, far apart; after: the same code together.
    let before = Occupancy::of(shape, [3, 23, 43].map(|line| line * 64..line * 64 + 8));
    let after = Occupancy::of(shape, std::iter::once(0..124));
    GroupReport {
        schema_version: GROUP_SCHEMA_VERSION,
        restitch_version: "0.1.0".into(),
        name: "tcp <in>".into(),
        led_by: Some("jump".into()),
        functions: vec![
            function("tcp_rcv_established", true, [1980, 10, 11_152]),
            function(&format!("long_{}", "name".repeat(12)), false, [44, 1, 0]),
            function("short", false, [0, 0, 0]),
        ],
        indirect_calls: vec![
            call(Some(0x1f), Some("sock_<poll>"), GroupCallGoes::Copy, 1200),
            call(None, None, GroupCallGoes::Unseen, 7_000_000),
        ],
        stays: vec![GroupStays {
            name: "mutex_unlock\u{1b}[31m".into(),
            address: "0xffffffff81000040".into(),
            why: "its lock text is told by its address".into(),
        }],
        cache: Some(BeforeAndAfter { before, after }),
        notes: vec!["nothing is loaded".into()],
    }
}

#[test]
fn a_group_has_all_forms() {
    let group = group();
    assert_eq!(GroupReport::from_json(&group.to_json().unwrap()).unwrap(), group);
    assert_eq!(group.bytes(), (2024, 11_152));
    let html = group.to_html();
    assert!(
        html.contains("<code>do_sys_poll+0x1f</code></td><td>pointer</td><td><code>sock_&lt;poll&gt;"),
        "{html}"
    );
    for part in ["tcp &lt;in&gt;", "<td class=\"n\">11,152</td>", "<span class=\"over\">3</span>", "(root)"] {
        assert!(html.contains(part), "{part} is missing in:\n{html}");
    }
    assert_eq!(html.matches("<span").count(), 40, "a cell a set, before and after");
    assert!(!html.contains('\u{1b}') && !html.contains("<script"));
}

#[test]
fn its_text_fits_a_terminal() {
    let text = group().to_text();
    let expected = "\
before      3 lines, 7.5 % of the cache; 1 set overfull
  0   0   0   3*  0   0   0   0   0   0   0   0   0   0   0   0
  0   0   0   0

after       2 lines, 5.0 % of the cache; 0 sets overfull
  1   1   0   0   0   0   0   0   0   0   0   0   0   0   0   0
  0   0   0   0
";
    assert!(text.ends_with(expected), "{text}");
    let first = "do_sys_poll at 0xffffffff8100001f -> (not seen)                        7,000,000\n";
    let second = "do_sys_poll+0x1f -> sock_<poll>                                            1,200\n\n";
    let calls: String = [first, second].concat();
    assert!(text.contains(&calls), "the most frequent first: {text}");
    assert!(text.contains("1.98 KiB of hot code, 10.9 KiB (84.6 %) of cold code"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80) && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn the_picture_names_roots_and_what_is_largest() {
    let mut group = group();
    group.functions.push(function("cold_one", false, [1, 1, 9000]));
    let picture = group.picture(2);
    assert!(picture.contains("tcp_rcv_established (root)") && picture.contains("long_name"), "{picture}");
    assert!(!picture.contains("cold_one") && picture.contains("\nand 2 more\n"), "{picture}");
    assert!(picture.contains("3*") && !picture.contains("nothing is loaded"), "{picture}");
    assert!(group.picture(4).contains("cold_one") && group.picture(4).contains("short (inlined)"));
    group.functions[0].is_root = false;
    assert!(group.picture(4).contains("tcp_rcv_established (pointer)"), "calls are led to it all the same");
    group.indirect_calls[0].goes = GroupCallGoes::Original;
    let picture = group.picture(1);
    assert!(
        picture.contains(" (not seen) ") && !picture.contains("sock_"),
        "the most frequent one: {picture}"
    );
    assert!(group.picture(2).contains(" -> sock_<poll> (stays) "));
    group.functions[3].is_root = true;
    assert!(group.picture(1).contains("cold_one"), "a root is there, however small");
}

#[test]
fn the_document_has_exactly_these_fields() {
    fn paths(value: &serde_json::Value, at: &str, out: &mut std::collections::BTreeSet<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    let path = format!("{at}{name}");
                    paths(value, &format!("{path}."), out);
                    out.insert(path);
                }
            }
            serde_json::Value::Array(items) => {
                let at = format!("{}[].", at.trim_end_matches('.'));
                items.iter().for_each(|item| paths(item, &at, out));
            }
            _ => {}
        }
    }
    let json: serde_json::Value = serde_json::from_str(&group().to_json().unwrap()).unwrap();
    let mut there = std::collections::BTreeSet::new();
    paths(&json, "", &mut there);
    // They are said to be the same as those before.
    there.retain(|path| !path.starts_with("cache.after."));
    let document = include_str!("../../../docs/json.md").split_once("\n## A group of kernel functions\n");
    let document = document.expect("a part").1.split("\n## ").next().unwrap_or_default();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(there, rows.map(str::to_owned).collect());
}
