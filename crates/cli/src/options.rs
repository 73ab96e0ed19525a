//! `docs/options.md`: every option of every command as tables, made from the definition of the command line.

use clap::{Arg, Command};
use restitch_session::layout_algorithms;

const INTRODUCTION: &str = "\
# Options

Every option of every command, made from the definition of the command line by `restitch pages FOLDER`, as `--help`
and the manual pages are. Numbers of seconds may have fractions.
";

/// A command that has as many options of another one at least is shown by what it has besides these.
const SHARED: usize = 5;

/// As many values of an option are shown in its place (`on|off`); of more, the name of their kind.
const FEW_VALUES: usize = 6;

/// The page, for `whole` and all commands below it.
pub fn page(whole: &Command) -> String {
    let all: Vec<&Command> = listed(whole);
    let sections = all.iter().enumerate().map(|(number, command)| section(command, &all[..number]));
    format!("{INTRODUCTION}{}{}", sections.collect::<String>(), layouts())
}

/// The commands that do something, in the order of help; those that only hold others are left out.
fn listed(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    below.flat_map(|c| if c.has_subcommands() { listed(c) } else { vec![c] }).collect()
}

fn section(command: &Command, before: &[&Command]) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("\n## {}\n\n{}.\n", called(command), about.trim_end_matches('.'));
    let shared = before.iter().find(|other| covers(command, other));
    let own = |arg: &&Arg| shared.is_none_or(|other| !other.get_arguments().any(|o| same(arg, o)));
    let arguments: Vec<&Arg> = shown(command).filter(own).collect();
    if let Some(other) = shared {
        text.push_str(&format!("\nAll options of `{}`, and:\n", called(other)));
    }
    let (plain, grouped): (Vec<&Arg>, Vec<&Arg>) =
        arguments.into_iter().partition(|arg| arg.get_help_heading().is_none());
    text.push_str(&table(&plain));
    for heading in headings(&grouped) {
        let of_it: Vec<&Arg> =
            grouped.iter().filter(|a| a.get_help_heading() == Some(heading)).copied().collect();
        text.push_str(&format!("\n### {} of `{}`\n{}", heading, called(command), table(&of_it)));
    }
    text
}

/// What the user types for it, without arguments.
fn called(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

/// Options and arguments without those of help itself, which all commands have.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|a| !a.is_hide_set() && !["help", "version"].contains(&a.get_id().as_str()))
}

fn headings<'a>(arguments: &[&'a Arg]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for heading in arguments.iter().filter_map(|a| a.get_help_heading()) {
        if !found.contains(&heading) {
            found.push(heading);
        }
    }
    found
}

/// Whether `command` has all options of `other`, and these are many.
fn covers(command: &Command, other: &Command) -> bool {
    let options = || shown(other).filter(|a| !a.is_positional());
    options().count() >= SHARED && options().all(|o| shown(command).any(|a| same(a, o)))
}

fn same(a: &Arg, b: &Arg) -> bool {
    !a.is_positional() && a.get_long() == b.get_long() && meaning(a) == meaning(b) && default(a) == default(b)
}

fn table(arguments: &[&Arg]) -> String {
    if arguments.is_empty() {
        return String::new();
    }
    let rows = arguments.iter().map(|arg| {
        format!("| {} | {} | {} |\n", in_cell(&name(arg)), in_cell(&default(arg)), in_cell(&meaning(arg)))
    });
    format!("\n| option | default | meaning |\n|---|---|---|\n{}", rows.collect::<String>())
}

/// A bar would end the cell.
fn in_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The option with its short form and its value.
fn name(arg: &Arg) -> String {
    let value = value(arg);
    let Some(long) = arg.get_long() else { return format!("`{value}`") };
    let short = arg.get_short().map(|c| format!("`-{c}`, ")).unwrap_or_default();
    let takes_value = arg.get_action().takes_values();
    if takes_value { format!("{short}`--{long} {value}`") } else { format!("{short}`--{long}`") }
}

/// What the option takes: the values themselves if they are few, else the name of their kind.
fn value(arg: &Arg) -> String {
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_string()).collect();
    if !values.is_empty() && values.len() <= FEW_VALUES {
        return values.join("|");
    }
    let kind = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    kind.unwrap_or_else(|| arg.get_id().to_string().to_uppercase())
}

/// The default value; nothing where there is none or where it is that a flag is not given.
fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<String> =
        arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    if arg.is_required_set() && !arg.is_positional() { "required".into() } else { values.join(",") }
}

/// The help on one line.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    help.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What may follow `--layout`.
fn layouts() -> String {
    let rows = layout_algorithms().into_iter().map(|a| format!("| `{}` | {} |\n", a.name(), a.meaning()));
    format!(
        "\n## Layouts\n\nNames for `--layout`.\n\n| name | meaning |\n|---|---|\n{}",
        rows.collect::<String>()
    )
}
