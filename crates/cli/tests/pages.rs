//! Manual pages, completions and the list of files of the Debian package.

use restitch_session::ExitCode;
use restitch_testkit::{TempDir, find_program, require, scratch};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn restitch(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_restitch")).args(arguments).output().expect("starts");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    output
}

fn help(command: &[&str]) -> String {
    let output = restitch(&[command, &["--help"]].concat());
    String::from_utf8(output.stdout).expect("text")
}

/// What `restitch pages` writes.
fn pages() -> TempDir {
    let folder = scratch();
    restitch(&["pages", folder.path().to_str().expect("a plain path")]);
    folder
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `command` and all below it, as `--help` lists them.
fn commands(command: Vec<String>) -> Vec<Vec<String>> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let help = help(&words);
    let list = help.split_once("\nCommands:\n").map_or("", |(_, list)| list);
    let listed = list.lines().take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let below: Vec<_> = names.map(|name| [&command[..], &[name.to_string()]].concat()).collect();
    std::iter::once(command).chain(below.into_iter().flat_map(commands)).collect()
}

/// The file of a command's page.
fn page_of(folder: &Path, command: &[String]) -> PathBuf {
    let name: Vec<&str> = std::iter::once("restitch").chain(command.iter().map(String::as_str)).collect();
    folder.join(format!("man/man1/{}.1", name.join("-")))
}

#[test]
fn every_command_has_a_page_with_all_options_and_exit_codes() {
    let folder = pages();
    let all = commands(Vec::new());
    assert!(all.len() > 20 && all.contains(&vec!["cache".into(), "list".into()]), "{all:?}");
    let mut found: BTreeSet<PathBuf> = std::fs::read_dir(folder.path().join("man/man1"))
        .expect("there")
        .flatten()
        .map(|e| e.path())
        .collect();
    for command in &all {
        let path = page_of(folder.path(), command);
        let page = read(&path).replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        assert!(found.remove(&path));
        for section in
            ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "FILES", "\"SEE ALSO\""]
        {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{}: no {section}", path.display());
        }
        for code in ExitCode::ALL {
            // What is in backticks is bold there.
            let entry = format!("\n{}\n{}\n", code.number(), code.meaning().replace('`', ""));
            assert!(page.contains(&entry), "{}: no exit code {}: {page}", path.display(), code.number());
        }
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        for option in help(&words).split_whitespace().filter(|word| word.starts_with("--")) {
            let option = option.trim_end_matches(|c: char| !c.is_alphanumeric());
            assert!(page.contains(option), "{}: no {option}", path.display());
        }
    }
    assert_eq!(found, BTreeSet::new(), "pages of nothing");
}

#[test]
fn the_page_of_options_is_that_of_the_command_line() {
    let folder = pages();
    let made = read(&folder.path().join("doc/restitch/options.md"));
    for command in commands(Vec::new()) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = help(&words);
        // Descriptions are further in; a line of one may begin with the name of another option.
        let listed = help.lines().filter(|line| line.len() - line.trim_start().len() <= 6);
        let options = listed.filter_map(|line| line.trim_start().split_once("--"));
        let names = options.filter(|(before, _)| before.is_empty() || before.ends_with(", "));
        for name in names.filter_map(|(_, rest)| rest.split([' ', '<']).next()) {
            let known = ["help", "version"].contains(&name) || made.contains(&format!("`--{name}"));
            assert!(known, "{words:?}: no --{name} in {made}");
        }
    }
    let kept = read(&repository().join("docs/options.md"));
    assert!(
        made == kept,
        "docs/options.md is old; `restitch pages FOLDER` writes FOLDER/doc/restitch/options.md"
    );
}

#[test]
fn documents_show_commands_that_there_are() {
    let usage =
        names(&repository().join("docs/usage"), ".md").into_iter().map(|name| format!("docs/usage/{name}"));
    let documents = usage.chain(["README.md", "docs/profiles.md", "CONTRIBUTING.md"].map(String::from));
    let mut shown = 0;
    for document in documents {
        let text = read(&repository().join(&document)).replace("\\\n", " ");
        let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let lines = blocks.flat_map(str::lines).map(|line| line.trim_start_matches("sudo "));
        for command in lines.filter_map(|line| line.strip_prefix("restitch ")) {
            let words: Vec<&str> =
                command.split_whitespace().take_while(|w| !["--", "#"].contains(w)).collect();
            let long = usize::from(["cache", "kernel", "profile"].contains(&words[0])) + 1;
            let help = help(&words[..long]);
            for option in words[long..].iter().filter_map(|word| word.strip_prefix("--")) {
                let known =
                    help.split_whitespace().any(|word| word.trim_end_matches(',') == format!("--{option}"));
                assert!(known, "{document}: there is no --{option} in `restitch {command}`");
            }
            shown += 1;
        }
    }
    assert!(shown > 40, "{shown}");
}

/// The page of options lists them anyway; a user has to learn from another one what a command is for.
#[test]
fn commands_that_there_are_are_shown_in_documents() {
    let documents = ["docs", "docs/usage"].into_iter().flat_map(|folder| {
        names(&repository().join(folder), ".md").into_iter().map(move |name| format!("{folder}/{name}"))
    });
    let told = documents.filter(|name| name != "docs/options.md").chain(["README.md".into()]);
    let text: String = told.map(|name| read(&repository().join(name))).collect();
    // As it is called where nothing is installed.
    let text = text.replace("-p restitch -- ", "restitch ");
    let below = |command: &Vec<String>, all: &[Vec<String>]| {
        all.iter().any(|c| c.len() > command.len() && c.starts_with(command))
    };
    let all = commands(Vec::new());
    let alone = all.iter().filter(|command| !below(command, &all));
    let unseen: Vec<String> = alone
        .map(|command| format!("restitch {}", command.join(" ")))
        .filter(|c| !text.contains(c))
        .collect();
    assert_eq!(unseen, Vec::<String>::new(), "no page says what they are for");
}

#[test]
fn pages_name_what_their_own_command_uses() {
    let folder = pages();
    let names_cache = |command: &str| {
        read(&folder.path().join(format!("man/man1/restitch-{command}.1"))).contains("RESTITCH_CACHE_DIR")
    };
    assert_eq!(
        ["cache-optimize", "optimize", "batch", "attach"].map(names_cache),
        [true, false, true, false]
    );
}

#[test]
fn the_help_lists_the_exit_codes() {
    let help = help(&[]);
    let codes = help.split_once("\nExit codes:\n").expect("a list").1;
    let codes = codes.split_whitespace().collect::<Vec<_>>().join(" ");
    for code in ExitCode::ALL {
        let entry = format!("{} {}", code.number(), code.meaning());
        assert!(codes.contains(&entry), "no {entry:?} in {codes}");
    }
}

/// In a pipe, whose width nobody knows, and in terminals of 80 columns and more.
#[test]
fn help_fits_into_eighty_columns() {
    for command in commands(Vec::new()) {
        for (option, columns) in [("--help", None), ("-h", None), ("--help", Some("80")), ("-h", Some("200"))]
        {
            let mut process = Command::new(env!("CARGO_BIN_EXE_restitch"));
            process.args(&command).arg(option).env_remove("COLUMNS").envs(columns.map(|n| ("COLUMNS", n)));
            let help = String::from_utf8(process.output().expect("starts").stdout).expect("text");
            let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(help.contains("Usage:") && long.is_empty(), "{command:?} {option}: {long:#?}");
        }
    }
}

#[test]
fn pages_are_set_without_warnings() {
    let groff = require!(find_program("groff"), "groff");
    let folder = pages();
    for command in commands(Vec::new()) {
        let path = page_of(folder.path(), &command);
        let mut command = Command::new(&groff);
        let output = command.args(["-man", "-Tutf8", "-ww", "-rLL=80n"]).arg(&path).output().expect("starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", path.display());
        assert!(text.contains("User Commands") && !text.contains('`'), "{}: {text}", path.display());
    }
}

#[test]
fn shells_accept_the_completions() {
    let folder = pages();
    let scripts = [
        ("bash", "bash-completion/completions/restitch"),
        ("zsh", "zsh/site-functions/_restitch"),
        ("fish", "fish/vendor_completions.d/restitch.fish"),
    ];
    for (shell, name) in scripts {
        let path = folder.path().join(name);
        let script = read(&path);
        assert!(script.contains("revert-if-slower"), "{name} knows options");
        assert!(!script.contains("demo-workload"), "{name} offers what nobody types");
        if let Some(shell) = find_program(shell) {
            let checked = Command::new(shell).arg("-n").arg(&path).output().expect("starts");
            assert!(checked.status.success() && checked.stderr.is_empty(), "{name}: {checked:?}");
        }
    }
}

/// An asset of the package: its path in the repository (from its top), and its path in the package.
struct Asset {
    from: String,
    to: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn package() -> toml::Table {
    let manifest: toml::Table =
        read(&repository().join("crates/cli/Cargo.toml")).parse().expect("a manifest");
    manifest["package"]["metadata"]["deb"].as_table().expect("a table").clone()
}

/// The assets, those with a pattern once for each file that there is; `made` has what the script makes in
/// `out/package/share`.
fn assets(made: &Path) -> Vec<Asset> {
    let package = package();
    let listed = package["assets"].as_array().expect("a list");
    let listed =
        listed.iter().map(|asset| (asset[0].as_str().expect("a path"), asset[1].as_str().expect("a path")));
    listed.flat_map(|(from, to)| expanded(from.trim_start_matches("../../"), to, made)).collect()
}

fn expanded(from: &str, to: &str, made: &Path) -> Vec<Asset> {
    let (folder, name) = from.rsplit_once('/').unwrap_or(("", from));
    let names = match name.strip_prefix('*') {
        None => vec![name.to_string()],
        Some(ending) => names(&on_disk(&format!("{folder}/"), made), ending),
    };
    assert!(!names.is_empty(), "{from} is nothing");
    let place = |name: &str| if to.ends_with('/') { format!("{to}{name}") } else { to.to_string() };
    let asset = |name: String| Asset { from: format!("{folder}/{name}"), to: place(&name) };
    names.into_iter().map(asset).collect()
}

fn names(folder: &Path, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(ending)).collect()
}

/// Where a path of the repository is: what the script makes is not in the repository.
fn on_disk(path: &str, made: &Path) -> PathBuf {
    match path.trim_start_matches('/').strip_prefix("out/package/share/") {
        Some(rest) => made.join(rest),
        None => repository().join(path.trim_start_matches('/')),
    }
}

#[test]
fn the_package_has_what_it_lists() {
    let made = pages();
    let script = read(&repository().join("scripts/package"));
    let package = package();
    let others = [&package["license-file"][0], &package["changelog"]];
    let others = others.map(|path| path.as_str().expect("a path").trim_start_matches("../../").to_string());
    for from in assets(made.path()).into_iter().map(|asset| asset.from).chain(others) {
        let by_script = match from.strip_prefix("out/package/") {
            Some(name) => {
                script.contains("made=out/package\n") && script.contains(&format!(">\"$made/{name}\""))
            }
            None => from == "target/release/restitch",
        };
        assert!(by_script || on_disk(&from, made.path()).is_file(), "nothing makes {from}");
    }
}

#[test]
fn links_between_documents_lead_somewhere_in_the_package() {
    let made = pages();
    let assets = assets(made.path());
    let packed: BTreeSet<&str> = assets.iter().map(|asset| asset.to.as_str()).collect();
    let documents: Vec<&Asset> = assets.iter().filter(|asset| asset.to.ends_with(".md")).collect();
    assert!(documents.len() > 5);
    for document in documents {
        let text = read(&on_disk(&document.from, made.path()));
        for target in links(&text) {
            let to = resolved(&document.to, target);
            assert!(packed.contains(to.as_str()), "{} links to {target}, which is not packed", document.to);
        }
    }
}

/// The targets of links to other files.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// The path that a link in `document` means.
fn resolved(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
