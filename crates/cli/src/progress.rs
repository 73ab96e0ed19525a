//! What a person sees while a session works. Everything goes to standard error.

use indicatif::{ProgressBar, ProgressStyle};
use restitch_report::visible_line;
use restitch_session::Watcher;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// A progress bar for each phase, where somebody sees it.
pub struct Progress {
    bar: ProgressBar,
    ticker: Option<Ticker>,
}

impl Progress {
    /// Nothing is shown before the first phase.
    pub fn new() -> Self {
        Self { bar: ProgressBar::hidden(), ticker: None }
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        self.ticker = None;
        self.bar.finish_and_clear();
    }
}

impl Watcher for Progress {
    fn phase(&mut self, name: &str, seconds: Option<f64>) {
        self.finish();
        let length = seconds.map(|s| (s * 10.0) as u64);
        self.bar = match length {
            Some(n) => ProgressBar::new(n.max(1)),
            None => ProgressBar::new_spinner(),
        };
        let form =
            if length.is_some() { "{msg:<14} [{bar:40}] {elapsed}" } else { "{msg:<14} {spinner} {elapsed}" };
        if let Ok(style) = ProgressStyle::with_template(form) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.set_message(visible_line(name).into_owned());
        if !self.bar.is_hidden() {
            let (bar, since) = (self.bar.clone(), Instant::now());
            let tick = move || bar.set_position((since.elapsed().as_secs_f64() * 10.0) as u64);
            self.ticker = Some(Ticker::start(TICK, tick));
        }
    }

    fn note(&mut self, text: &str) {
        self.bar.suspend(|| eprintln!("restitch: {text}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A thread that does something again and again until it is dropped, which takes no time: phases are
/// measured, and some are short.
struct Ticker {
    /// Hung up to stop the thread, which waits at the other end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(every: Duration, mut tick: impl FnMut() + Send + 'static) -> Self {
        let (stop, stopped) = channel::<()>();
        let work = move || {
            tick();
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                tick();
            }
        };
        // Where there may be no more threads, progress is not shown.
        Self { stop: Some(stop), thread: std::thread::Builder::new().spawn(work).ok() }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // An error: it has panicked, and said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_phase_does_not_wait_for_the_bar() {
        // With a thread that sleeps this takes a day.
        let (sender, ticks) = channel();
        let ticker = Ticker::start(Duration::from_secs(24 * 60 * 60), move || sender.send(()).unwrap());
        assert_eq!(ticks.recv(), Ok(()));
        drop(ticker);
        assert!(ticks.recv().is_err(), "the thread is still there");
    }

    #[test]
    fn a_bar_that_nobody_sees_has_no_thread() {
        let mut progress = Progress::new();
        progress.phase("sampling", Some(1.0));
        assert_eq!(progress.ticker.is_none(), progress.bar.is_hidden());
        progress.phase("analysing", None);
        progress.finish();
        assert!(progress.ticker.is_none());
    }
}
