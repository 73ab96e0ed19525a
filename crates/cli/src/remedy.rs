//! What `doctor` and `kernel doctor` say would allow more.

use restitch_report::{WIDTH, visible_line};

/// The remedy of a check, if there is one. It is to be copied: whole, and below its name where it does not
/// fit beside it. Commands that are joined by `&&` then have a line each, which shells read as one.
pub(crate) fn to_allow_more(remedy: Option<&str>) -> String {
    const NAME: &str = "      to allow more:";
    let Some(remedy) = remedy.map(visible_line) else { return String::new() };
    let fits = NAME.len() + 1 + remedy.chars().count() <= WIDTH;
    match fits {
        true => format!("{NAME} {remedy}\n"),
        false => format!("{NAME}\n        {}\n", remedy.replace("&& ", "&&\n        ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_stay_whole() {
        assert_eq!(to_allow_more(None), "");
        assert_eq!(to_allow_more(Some("sudo it")), "      to allow more: sudo it\n");
        let long = "sudo command ".repeat(5);
        assert_eq!(to_allow_more(Some(&long)), format!("      to allow more:\n        {long}\n"));
        let two = to_allow_more(Some(&format!("{long}&& sudo it")));
        assert_eq!(two, format!("      to allow more:\n        {long}&&\n        sudo it\n"));
    }
}
