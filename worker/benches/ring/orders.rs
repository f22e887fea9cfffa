//! How a program of several ranks is driven: orders come as lines on stdin, answers go as lines to stdout.

use std::io::{BufRead as _, Write as _};

use ringtune_shared::ids::{JobId, WorkerId};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::Outcome;

/// A rank's own, and that of each member of a ring.
#[derive(Deserialize, Serialize)]
pub(crate) struct Address {
    pub(crate) worker: WorkerId,
    pub(crate) address: String,
}

/// A place in a ring.
#[derive(Deserialize)]
pub(crate) struct Form {
    pub(crate) job: JobId,
    pub(crate) rank: usize,
    pub(crate) members: Vec<Address>,
}

/// Lines on stdin, read where nothing else waits.
pub(crate) fn orders() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

pub(crate) fn answer(object: &impl Serialize) -> Outcome<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", serde_json::to_string(object)?)?;
    Ok(stdout.flush()?)
}
