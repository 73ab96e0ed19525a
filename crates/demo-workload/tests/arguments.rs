//! The command line.

use restitch_demo_workload::{Amount, BadArguments, Options};
use std::time::Duration;

fn parse(line: &str) -> Result<Option<Options>, BadArguments> {
    Options::parse(line.split_whitespace().map(String::from))
}

#[test]
fn all_options_are_read() {
    let options = parse("--seconds 1.5 --threads 2 --progress p").unwrap().unwrap();
    assert_eq!(
        options,
        Options { amount: Amount::Time(Duration::from_millis(1500)), threads: 2, progress: Some("p".into()) }
    );
    assert_eq!(parse("--requests 7").unwrap().unwrap().amount, Amount::Requests(7));
    assert_eq!(parse("--requests 7 --help"), Ok(None));
}

#[test]
fn bad_lines_are_refused_by_name() {
    for (line, text) in [
        ("", "give either --requests or --seconds"),
        ("--requests 1 --seconds 1", "give either --requests or --seconds"),
        ("--requests", "--requests needs a value"),
        ("--requests -1", "'-1' is not a usable value of --requests"),
        ("--seconds -1", "'-1' is not a usable value of --seconds"),
        ("--seconds NaN", "'NaN' is not a usable value of --seconds"),
        ("--seconds 1e300", "'1e300' is not a usable value of --seconds"),
        ("--requests 1 --threads 0", "'0' is not a usable value of --threads"),
        ("fast", "unknown argument 'fast'"),
    ] {
        assert_eq!(parse(line).unwrap_err().to_string(), text, "{line}");
    }
}
