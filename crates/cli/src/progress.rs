//! What a person sees while a session works. Everything goes to standard error.

use indicatif::{ProgressBar, ProgressStyle};
use restitch_session::Watcher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A progress bar for each phase.
pub struct Progress {
    bar: ProgressBar,
    timer: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Progress {
    /// Nothing is shown before the first phase.
    pub fn new() -> Self {
        Self { bar: ProgressBar::hidden(), timer: None }
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        if let Some((stop, thread)) = self.timer.take() {
            stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
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
        self.bar.set_message(name.to_owned());
        let (bar, stop, since) = (self.bar.clone(), Arc::new(AtomicBool::new(false)), Instant::now());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                bar.set_position((since.elapsed().as_secs_f64() * 10.0) as u64);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        self.timer = Some((stop, thread));
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
