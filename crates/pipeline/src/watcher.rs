//! Who hears how far it is.

/// Hears what a session is doing, for progress bars.
pub trait Watcher {
    /// A phase begins; `seconds` is how long it will take, where that is known.
    fn phase(&mut self, name: &str, seconds: Option<f64>);
    /// Something worth a line.
    fn note(&mut self, text: &str);
}

/// A watcher that hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Watcher for Quiet {
    fn phase(&mut self, _name: &str, _seconds: Option<f64>) {}
    fn note(&mut self, _text: &str) {}
}
