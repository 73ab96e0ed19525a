//! Durations on the command line.

/// Seconds: a number from 0 to a day.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.0..=86_400.0).contains(&s) => Ok(s),
        _ => Err("a number of seconds from 0 to 86400 is wanted".into()),
    }
}

/// Seconds of work that has to take some time: more than 0, to a day.
pub(crate) fn some_seconds(text: &str) -> Result<f64, String> {
    let wanted = "a number of seconds above 0, up to 86400, is wanted";
    seconds(text).ok().filter(|s| *s > 0.0).ok_or_else(|| wanted.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_their_ranges() {
        assert_eq!((seconds("0"), seconds("86400"), some_seconds("0.1")), (Ok(0.0), Ok(86_400.0), Ok(0.1)));
        for wrong in ["-1", "86401", "nan", "inf", "x", ""] {
            assert!(seconds(wrong).is_err() && some_seconds(wrong).is_err(), "{wrong}");
        }
        assert!(some_seconds("0").is_err_and(|why| why.contains("above 0")));
    }
}
