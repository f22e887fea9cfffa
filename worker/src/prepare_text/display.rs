//! Shows on stderr how far it is: one line that changes on a terminal, lines now and then otherwise.

use std::{
    io::{IsTerminal as _, Write as _},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use ringtune_text::{Snapshot, Stage};

use super::pace::{LINES, QUIET, line};

/// Columns of a terminal that says nothing of them.
const COLUMNS: usize = 80;

/// State of the screen. Threads write at any time.
#[derive(Debug)]
pub(super) struct Display {
    is_terminal: bool,
    begun: Instant,
    shown: Mutex<Shown>,
}

#[derive(Debug)]
struct Shown {
    stage: Stage,
    stage_begun: Instant,
    last_line: Option<Instant>,
    /// Whether the terminal's last line is one that changes.
    is_open: bool,
}

impl Display {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let is_terminal =
            std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let shown = Shown { stage: Stage::Looking, stage_begun: now, last_line: None, is_open: false };
        Self { is_terminal, begun: now, shown: Mutex::new(shown) }
    }

    /// Says something that stays.
    pub(super) fn say(&self, text: &str) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let clear = if std::mem::take(&mut shown.is_open) { "\r\x1b[K" } else { "" };
        write(&format!("{clear}{text}\n"));
    }

    /// Shows a moment, if it is time to.
    pub(super) fn show(&self, now: &Snapshot) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.stage != now.stage {
            (shown.stage, shown.stage_begun) = (now.stage, Instant::now());
        }
        let since_last = shown.last_line.map(|last| last.elapsed());
        let is_due = self.is_terminal || since_last.is_none_or(|elapsed| elapsed >= LINES);
        if self.begun.elapsed() < QUIET || !is_due {
            return;
        }
        let text = line(now, shown.stage_begun.elapsed());
        shown.last_line = Some(Instant::now());
        shown.is_open = self.is_terminal;
        match self.is_terminal {
            true => write(&format!("\r\x1b[K{}", text.chars().take(columns() - 1).collect::<String>())),
            false => write(&format!("{text}\n")),
        }
    }

    /// Leaves the screen to others.
    pub(super) fn finish(&self) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut shown.is_open) {
            write("\r\x1b[K");
        }
    }
}

fn columns() -> usize {
    // Some terminals say 0.
    match rustix::termios::tcgetwinsize(std::io::stderr()) {
        Ok(size) if size.ws_col > 1 => usize::from(size.ws_col),
        _ => COLUMNS,
    }
}

/// A closed stderr is nobody's loss.
fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
