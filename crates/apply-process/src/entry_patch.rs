//! The jumps that lead out of code: where they may be, and how they are written down.

use restitch_address::{Avma, PAGE};
use restitch_x86::patch::Patch;

/// Length of a redirect.
pub(crate) const LEN: usize = Patch::LEN;

/// Whether a patch at `at` would lie on two pages. There is never one: a write that is cut short would leave
/// half of it.
pub(crate) fn crosses_page(at: Avma) -> bool {
    at.align_down(PAGE) != (at + LEN as u64 - 1).align_down(PAGE)
}

/// The jump to `to` at `at`.
pub(crate) fn jump(at: Avma, to: Avma) -> Option<Patch> {
    Patch::jump(to.offset_from(at))
}

/// Where the jump leads that `found` at `at` is; none if it is none.
pub(crate) fn destination(at: Avma, found: Patch) -> Option<Avma> {
    found.as_jump().map(|distance| at.offset(distance))
}

/// A patch in the journal: a list of its bytes.
pub(crate) mod written {
    use restitch_x86::patch::Patch;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(patch: &Patch, to: S) -> Result<S::Ok, S::Error> {
        patch.bytes().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Patch, D::Error> {
        Deserialize::deserialize(from).map(Patch::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Journal {
        #[serde(with = "written")]
        now: Patch,
    }

    #[test]
    fn a_journal_has_the_bytes_one_by_one() {
        let read = |text: &str| serde_json::from_str::<Journal>(text);
        let text = r#"{"now":[233,2,3,4,5]}"#;
        let journal = read(text).expect("as all versions have written it");
        assert_eq!(*journal.now.bytes(), [233, 2, 3, 4, 5]);
        assert_eq!(serde_json::to_string(&journal).expect("plain data"), text);
        assert!(read(r#"{"now":[233,2,3,4]}"#).is_err() && read(r#"{"now":[233,2,3,4,5,6]}"#).is_err());
        assert!(read(r#"{"now":[256,2,3,4,5]}"#).is_err());
    }

    #[test]
    fn a_jump_leads_where_it_was_made_for() {
        let (at, to) = (Avma::new(0x1000), Avma::new(0x40_0010));
        let made = jump(at, to).expect("in reach");
        assert_eq!(destination(at, made), Some(to));
        assert_eq!(destination(at, Patch::new([0; LEN])), None);
        assert_eq!(jump(at, Avma::new(1 << 40)), None);
        assert!(crosses_page(Avma::new(0x1fff)) && !crosses_page(Avma::new(0x1ffb)));
    }
}
