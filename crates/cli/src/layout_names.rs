//! Layouts as arguments.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};
use restitch_session::{LayoutChoice, layout_algorithms, layout_choice};
use std::ffi::OsStr;

/// Reads what [`layout_choice`] reads. Help and shells are told the algorithms, each with its meaning; what
/// may stand behind a name, the argument's own help says.
#[derive(Debug, Clone, Copy)]
pub struct LayoutNames;

impl TypedValueParser for LayoutNames {
    type Value = LayoutChoice;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<LayoutChoice, Error> {
        layout_choice.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let known = layout_algorithms().into_iter().map(|a| PossibleValue::new(a.name()).help(a.meaning()));
        Some(Box::new(known))
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Args;
    use clap::{CommandFactory, Parser};
    use restitch_session::layout_algorithms;

    #[test]
    fn help_tells_the_algorithms_and_more_can_be_given() {
        for command in ["attach", "optimize", "run", "batch", "lab"] {
            let mut all = Args::command();
            let help = all.find_subcommand_mut(command).expect("a command").render_long_help().to_string();
            let unwrapped = help.split_whitespace().collect::<Vec<_>>().join(" ");
            for known in layout_algorithms() {
                let line = format!("- {}: {}", known.name(), known.meaning());
                assert!(unwrapped.contains(&line), "{command}: {line:?} is missing in {help}");
            }
        }
        let parsed = |layout: &str| Args::try_parse_from(["restitch", "attach", "--layout", layout, "1"]);
        for layout in ["c3", "c3+search", "stitch:4K:2M", "stitch:zen4+search=2"] {
            assert!(parsed(layout).is_ok(), "{layout}");
        }
        let refused = parsed("best").expect_err("no layout").to_string();
        assert!(refused.contains("there is no layout \"best\"; choose one of original"), "{refused}");
    }
}
