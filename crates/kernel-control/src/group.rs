//! What the control module says of a group.

use serde::Serialize;

/// Where a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupState {
    /// Its module is loaded; no calls are led to it.
    Registered,
    /// Calls are led to its copies.
    Enabled,
    /// No calls are led to it any more, and tasks still stand in its copies.
    Draining,
}

impl GroupState {
    /// In a word, the control module's own.
    pub fn word(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Enabled => "enabled",
            Self::Draining => "draining",
        }
    }

    fn named(word: &str) -> Option<Self> {
        [Self::Registered, Self::Enabled, Self::Draining].into_iter().find(|state| state.word() == word)
    }
}

/// A group that the control module knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// Its name, which is that of its module.
    pub name: String,
    /// Where it stands.
    pub state: GroupState,
    /// How calls are led to copies on this kernel, in the control module's word.
    pub means: String,
    /// Functions that calls can be led from.
    pub functions: u32,
    /// Tasks that stood in its copies when that was last looked at.
    pub standing: u32,
}

impl GroupStatus {
    /// A line of the control module: `NAME STATE MEANS FUNCTIONS STANDING`. None for anything else.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut word = || words.next().filter(|word| !word.is_empty());
        let status = Self {
            name: word()?.to_owned(),
            state: GroupState::named(word()?)?,
            means: word()?.to_owned(),
            functions: word()?.parse().ok()?,
            standing: word()?.parse().ok()?,
        };
        words.next().is_none().then_some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_control_module() {
        let parsed = GroupStatus::parse("poll draining jump 3 1").expect("a line");
        let state = GroupState::Draining;
        assert_eq!(
            parsed,
            GroupStatus { name: "poll".into(), state, means: "jump".into(), functions: 3, standing: 1 }
        );
        for line in [
            "",
            "poll",
            "poll gone jump 3 1",
            "poll enabled jump 3",
            "poll enabled jump 3 1 2",
            "poll  enabled",
        ] {
            assert_eq!(GroupStatus::parse(line), None, "{line}");
        }
    }
}
