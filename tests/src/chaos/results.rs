//! What many rounds measured, as a table.

use std::{fmt::Write as _, time::Duration};

use super::measure::Measured;

/// The rounds of one row.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    /// The row.
    pub name: &'static str,
    /// Of the rounds that went as they should.
    pub passed: Vec<Measured>,
    /// The seeds of the others.
    pub failed: Vec<u64>,
    /// Rounds for which this machine has no ground.
    pub skipped: usize,
}

/// Where and of what the rounds were.
#[derive(Clone, Debug)]
pub struct About {
    /// The seed of all rounds.
    pub seed: u64,
    /// The commit, marked when files were changed after it.
    pub commit: String,
    /// The processor's name and the number of its cores.
    pub processor: String,
    /// The day, as 2026-12-31.
    pub day: String,
    /// Rounds of each row.
    pub rounds: usize,
}

/// A section of tests/chaos/RESULTS.md.
pub fn section(about: &About, rows: &[Rounds]) -> String {
    let About { seed, commit, processor, day, rounds } = about;
    let mut text = format!(
        "\n## {day}, commit {commit}\n\n{rounds} rounds, seed {seed}, on {processor}.\n\n\
         | Row | Passed | Detected, median / most (s) | Computes again after that, median / most (s) | Steps lost, median / most |\n\
         |---|---|---|---|---|\n"
    );
    for row in rows {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}", line(row));
    }
    for row in rows.iter().filter(|row| !row.failed.is_empty()) {
        let seeds: Vec<String> = row.failed.iter().map(u64::to_string).collect();
        let _ = write!(text, "\n`{}` failed with the seeds {}.\n", row.name, seeds.join(", "));
    }
    text
}

fn line(row: &Rounds) -> String {
    let played = row.passed.len() + row.failed.len();
    let times = |time: fn(&Measured) -> Option<Duration>| {
        let milliseconds: Vec<i64> =
            row.passed.iter().filter_map(time).map(|time| time.as_millis() as i64).collect();
        let seconds = |milliseconds: i64| format!("{:.2}", milliseconds as f64 / 1000.0);
        spread(milliseconds)
            .map_or("–".to_owned(), |(median, most)| format!("{} / {}", seconds(median), seconds(most)))
    };
    let lost = spread(row.passed.iter().map(|measured| measured.steps_lost).collect());
    let lost = lost.map_or("–".to_owned(), |(median, most)| format!("{median} / {most}"));
    let passed = match row.skipped {
        0 => format!("{} of {played}", row.passed.len()),
        skipped => format!("{} of {played}, {skipped} skipped", row.passed.len()),
    };
    let (detect, resume) = (times(|measured| measured.detect), times(|measured| measured.resume));
    format!("| `{}` | {passed} | {detect} | {resume} | {lost} |", row.name)
}

/// The median (the lower one of two) and the greatest; none of nothing.
fn spread(mut numbers: Vec<i64>) -> Option<(i64, i64)> {
    numbers.sort_unstable();
    Some((*numbers.get(numbers.len().saturating_sub(1) / 2)?, *numbers.last()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_medians_maxima_and_failures() {
        let measured = |detect, resume, steps_lost| Measured {
            detect: Some(Duration::from_millis(detect)),
            resume: Some(Duration::from_millis(resume)),
            steps_lost,
        };
        let passed = vec![measured(300, 2_000, 0), measured(100, 1_000, 1), measured(200, 4_000, 0)];
        let rows = [
            Rounds { name: "row", passed, failed: vec![9], skipped: 0 },
            Rounds { name: "none", skipped: 4, ..Rounds::default() },
        ];
        let text = section(
            &About {
                seed: 5,
                commit: "abc".to_owned(),
                processor: "a processor, 2 cores".to_owned(),
                day: "2026-01-02".to_owned(),
                rounds: 4,
            },
            &rows,
        );
        assert!(text.contains("## 2026-01-02, commit abc"), "{text}");
        assert!(text.contains("| `row` | 3 of 4 | 0.20 / 0.30 | 2.00 / 4.00 | 0 / 1 |"), "{text}");
        assert!(text.contains("| `none` | 0 of 0, 4 skipped | – | – | – |"), "{text}");
        assert!(text.contains("`row` failed with the seeds 9."), "{text}");
    }
}
