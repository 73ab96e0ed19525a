//! The groups of a kernel, as text and as JSON.

use crate::group::{GroupState, GroupStatus};
use restitch_report::{counted, paragraph, visible_line};
use serde::Serialize;

/// Version of the JSON form of groups.
pub const GROUPS_SCHEMA_VERSION: u32 = 1;
/// Columns of a group's name.
const NAME: usize = 12;

/// The groups of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Groups {
    /// [`GROUPS_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// In the order in which they were loaded.
    pub groups: Vec<GroupStatus>,
}

impl Groups {
    /// Of these.
    pub fn new(groups: Vec<GroupStatus>) -> Self {
        Self { schema_version: GROUPS_SCHEMA_VERSION, groups }
    }

    /// For a terminal.
    pub fn to_text(&self) -> String {
        if self.groups.is_empty() {
            return "No group of copies is in this kernel.\n".into();
        }
        self.groups.iter().map(line).collect()
    }

    /// As JSON.
    ///
    /// # Errors
    /// None in practice.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

fn line(group: &GroupStatus) -> String {
    let functions = counted(group.functions.into(), "function");
    let tasks = counted(group.standing.into(), "task");
    let words = match group.state {
        GroupState::Registered => format!("loaded; the calls of its {functions} go to the original code"),
        GroupState::Enabled => {
            let means = visible_line(&group.means);
            format!("in force: the calls of {functions} are led to copies (by {means})")
        }
        GroupState::Draining => format!("given back; {tasks} still in its copies"),
    };
    let name = visible_line(&group.name);
    let gap = if name.chars().count() < NAME { "" } else { "  " };
    paragraph(&format!("{name:NAME$}{gap}"), &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_in_words() {
        let group = |name: &str, state, standing| GroupStatus {
            name: name.into(),
            state,
            means: "jump".into(),
            functions: 3,
            standing,
        };
        let groups = vec![
            group("poll", GroupState::Enabled, 0),
            group("tcp", GroupState::Draining, 1),
            group("read", GroupState::Registered, 0),
            group("restitch_poll", GroupState::Draining, 2),
        ];
        let text = Groups::new(groups).to_text();
        let expected = "\
poll        in force: the calls of 3 functions are led to copies (by jump)
tcp         given back; 1 task still in its copies
read        loaded; the calls of its 3 functions go to the original code
restitch_poll  given back; 2 tasks still in its copies
";
        assert_eq!(text, expected);
        assert!(Groups::new(Vec::new()).to_text().starts_with("No group"));
    }

    #[test]
    fn the_document_has_all_fields() {
        let group = GroupStatus {
            name: "poll".into(),
            state: GroupState::Draining,
            means: "jump".into(),
            functions: 3,
            standing: 1,
        };
        let json = Groups::new(vec![group]).to_json().expect("numbers and texts");
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["groups"][0]["state"], "draining");
        let document =
            include_str!("../../../docs/json.md").split("## Groups in the kernel").nth(1).expect("a part");
        for field in value["groups"][0].as_object().expect("fields").keys() {
            assert!(document.contains(&format!("| `groups[].{field}` |")), "{field}");
        }
    }
}
