//! Each target for about a second, on the same inputs every time. (How far it gets in that second depends on
//! the machine; the first inputs are always tried.)

use restitch_fuzz::{TARGETS, havoc::damage, seeds::seeds};
use restitch_profile::testing::Random;
use restitch_profile_formats::Format;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

/// Inputs tried at least.
const FIRST: usize = 100;

#[test]
fn each_target_for_a_second() {
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name}: no seeds");
        seeds.iter().for_each(|seed| target(seed));
        let (mut random, begin, mut tried) = (Random::new(7), Instant::now(), 0);
        while tried < FIRST || begin.elapsed() < Duration::from_millis(1000) {
            let data = damage(&seeds[random.below(seeds.len())], &mut random);
            if catch_unwind(|| target(&data)).is_err() {
                let file = std::env::temp_dir().join(format!("restitch-fuzz-{name}"));
                std::fs::write(&file, &data).expect("the temporary folder is writable");
                panic!("{name}: failed on input {tried}, saved as {}", file.display());
            }
            tried += 1;
        }
        println!("{name}: {tried} inputs");
    }
}

#[test]
fn cargo_fuzz_knows_every_target() {
    let manifest = include_str!("../Cargo.toml");
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("fuzz_targets/{name}.rs")), "{name} is missing in Cargo.toml");
        let path = format!("{}/fuzz_targets/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(source.contains(&format!("::{name}(data)")), "{path} calls something else");
    }
}

/// Formats are known by their first bytes; the target of the own store puts these on what it is given.
#[test]
fn each_profile_format_has_a_target() {
    let seeds: Vec<Vec<u8>> = TARGETS.iter().flat_map(|(name, _)| seeds(name)).collect();
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Store) {
        let is_read = seeds.iter().any(|seed| Format::detect(seed) == Ok(format));
        assert!(is_read, "no target has a seed that is {format}");
    }
}
