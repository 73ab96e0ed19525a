//! Processes on the command line.

/// The number of a process.
pub(crate) fn process_number(text: &str) -> Result<i32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        Err(_) if is_name(text) => {
            Err(format!("a process number is wanted; `pgrep -a {text}` lists those of that name"))
        }
        _ => Err("a process number is wanted, from 1 on; `ps -e` lists them".into()),
    }
}

/// Whether it may be the name of a program, and means nothing else to a shell.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_a_name_is_told_how_to_find_the_number() {
        assert_eq!(process_number("4711"), Ok(4711));
        let told = |text: &str| process_number(text).unwrap_err();
        assert!(told("nginx").contains("`pgrep -a nginx`"));
        for wrong in ["0", "-1", "", "99999999999", "$(x)", "a b"] {
            assert!(told(wrong).contains("`ps -e`"), "{wrong}");
        }
    }
}
