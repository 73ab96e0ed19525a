//! A journal that was damaged: it is made anew of the records and maps beside the version files, or refused
//! where those are gone; nothing is written into the process that is not the file's.

mod common;

use common::{Restitch, Target, code, expect_message, look, stoppable};
use restitch_testkit::require;

#[test]
fn a_damaged_journal_is_made_anew() {
    let program = require!(stoppable("throw.cc", &["-O2"]), "g++");
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    type Damage = fn(Vec<u8>) -> Vec<u8>;
    let damages: [(&str, Damage); 4] = [
        ("cut", |bytes| bytes[..bytes.len() / 2].to_vec()),
        ("empty", |_| Vec::new()),
        // An original byte of a patch, which only the checksum tells of.
        ("another number", |bytes| {
            let text = String::from_utf8(bytes).unwrap();
            let (before, behind) = text.split_once("\"original\":[").unwrap();
            let (first, rest) = behind.split_once(',').unwrap();
            format!("{before}\"original\":[{},{rest}", first.parse::<u8>().unwrap().wrapping_add(1))
                .into_bytes()
        }),
        // The same without a checksum, as of an older restitch: the file has the right bytes.
        ("forged", |bytes| {
            let text = String::from_utf8(bytes).unwrap();
            let (_, object) = text.split_once("\",").unwrap();
            forge(format!("{{{object}").replace("\"schema\":2", "\"schema\":1").as_bytes())
        }),
    ];
    for (name, damage) in damages {
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        assert!(!look::differences(target.pid()).is_empty(), "{name}");
        let journal = restitch.journals().pop().expect("a journal");
        let damaged = damage(std::fs::read(&journal).unwrap());
        std::fs::write(&journal, damaged).unwrap();
        let status = restitch.status(target.pid());
        status.expect(code::DONE);
        assert!(status.stdout.contains(": optimized,"), "{name}: {}", status.stdout);
        target.assert_goes_back(&restitch);
    }
    // Without the records there is nothing to make it of, and that is said.
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    let journal = restitch.journals().pop().expect("a journal");
    let whole = std::fs::read(&journal).unwrap();
    let is_record = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "restitch-record");
    let records: Vec<_> = restitch.all_files().into_iter().filter(is_record).collect();
    assert!(!records.is_empty());
    let kept: Vec<Vec<u8>> = records.iter().map(|path| std::fs::read(path).unwrap()).collect();
    records.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    std::fs::write(&journal, "{}").unwrap();
    let refused = restitch.revert(target.pid());
    refused.expect(code::BAD_INPUT);
    assert!(refused.stderr.contains(journal.to_str().unwrap()), "{}", refused.stderr);
    std::fs::write(&journal, whole).unwrap();
    records.iter().zip(&kept).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    target.assert_goes_back(&restitch);
    target.stop();
}

/// The original bytes of all patches are others.
fn forge(journal: &[u8]) -> Vec<u8> {
    let mut value: serde_json::Value = serde_json::from_slice(journal).unwrap();
    for patch in value["patches"].as_array_mut().unwrap() {
        patch["original"] = serde_json::json!([204, 204, 204, 204, 204]);
    }
    serde_json::to_vec(&value).unwrap()
}

/// What a cleaner of temporary files removes, or another directory is named: the process itself says that a
/// layout is in force in it.
#[test]
fn a_layout_without_state_files_is_not_taken_for_the_original_code() {
    let program = require!(stoppable("switch.c", &["-O2"]), "gcc");
    let (restitch, other) = (Restitch::new(), Restitch::new());
    let mut target = Target::start(&program);
    let pid = target.pid();
    restitch.attach(pid, &[]).expect(code::DONE);
    let in_force = look::differences(pid);
    assert!(!in_force.is_empty());
    let folder = restitch.state().display().to_string();
    let refused = |restitch: &Restitch, words: &[&str]| {
        let status = restitch.status(pid);
        status.expect(code::DONE);
        assert!(status.stdout.contains("state files are not"), "{}", status.stdout);
        assert!(words.iter().all(|word| status.stdout.contains(word)), "{}", status.stdout);
        expect_message(
            &restitch.revert(pid),
            code::REFUSED,
            &["state files are not in", "nothing was changed"],
        );
        expect_message(&restitch.attach(pid, &[]), code::REFUSED, &["state files are not in"]);
        assert_eq!(look::differences(pid), in_force);
    };
    refused(&other, &[&format!("RESTITCH_STATE_DIR={folder}")]);
    let kept: Vec<_> =
        restitch.all_files().into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect();
    kept.iter().for_each(|(_, path)| std::fs::remove_file(path).unwrap());
    refused(&restitch, &["until it is started anew"]);
    let all = restitch.run(&["status"]);
    assert!(all.stdout.contains(&format!("{pid} ")) && all.stdout.contains("state files"), "{}", all.stdout);
    target.assert_computing("without state files");
    // With what a backup has, it goes back.
    kept.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
    restitch.revert(pid).expect(code::DONE);
    assert_eq!(look::differences_but_hook(pid), []);
    target.stop();
}
