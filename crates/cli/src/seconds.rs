//! Durations on the command line.

/// Seconds: a number from 0 to a day.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.0..=86_400.0).contains(&s) => Ok(s),
        _ => Err("a number of seconds from 0 to 86400 is wanted".into()),
    }
}
