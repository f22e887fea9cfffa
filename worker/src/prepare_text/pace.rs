//! Texts of progress; pure.

use std::time::Duration;

use ringtune_text::{Snapshot, Stage};

/// Nothing is said of what takes less.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// Time from one line to the next where there is no terminal.
pub(super) const LINES: Duration = Duration::from_secs(10);

/// The line that shows a moment. `elapsed`: since this stage began.
pub(super) fn line(now: &Snapshot, elapsed: Duration) -> String {
    let Snapshot { stage, documents, tokens, bytes, total_bytes, kept_bytes } = *now;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let new = bytes.saturating_sub(kept_bytes);
    let speed = megabytes(new) / seconds;
    let left = match (new, total_bytes.saturating_sub(bytes)) {
        // Too soon for an estimate.
        (0, _) => String::new(),
        _ if elapsed < QUIET => String::new(),
        (new, left) => format!(", {} left", duration(left as f64 / new as f64 * seconds)),
    };
    match stage {
        Stage::Looking => "looking at the inputs, and at what is there already".to_owned(),
        Stage::Tokenizing => format!(
            "tokens: {:.0} of {:.0} MB, {documents} documents, {tokens} tokens, {speed:.1} MB/s{left}",
            megabytes(bytes),
            megabytes(total_bytes)
        ),
        Stage::Writing => {
            format!(
                "writing: {:.0} of {:.0} MB, {speed:.1} MB/s{left}",
                megabytes(bytes),
                megabytes(total_bytes)
            )
        }
    }
}

fn duration(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_by_what_this_run_has_done() {
        let now = Snapshot {
            stage: Stage::Tokenizing,
            documents: 7,
            tokens: 900,
            bytes: 60_000_000,
            total_bytes: 100_000_000,
            kept_bytes: 40_000_000,
        };
        let line = line(&now, Duration::from_secs(10));
        assert_eq!(line, "tokens: 60 of 100 MB, 7 documents, 900 tokens, 2.0 MB/s, 20 s left");
    }

    #[test]
    fn before_anything_is_done_no_end_is_told() {
        let now = Snapshot {
            stage: Stage::Writing,
            bytes: 0,
            kept_bytes: 0,
            total_bytes: 5_000_000,
            documents: 1,
            tokens: 1,
        };
        assert_eq!(line(&now, Duration::ZERO), "writing: 0 of 5 MB, 0.0 MB/s");
    }

    #[test]
    fn times_are_in_the_unit_that_fits() {
        assert_eq!([59.0, 61.0, 7200.0].map(duration), ["59 s", "2 min", "2.0 h"]);
    }
}
