//! The figures, their bounds, and how both are printed.

use std::fmt::Write as _;

use ringtune_tests::swarm::Counts;
use serde_json::{Value, json};

use crate::probes::Samples;

/// A figure and, if it has one, its bound.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) measured: f64,
    pub(crate) unit: &'static str,
    pub(crate) bound: Bound,
}

/// Bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// It is only shown.
    None,
    /// Upper bound.
    AtMost(f64),
    /// Lower bound.
    AtLeast(f64),
}

/// The coordinator with so many jobs, and its next start with them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage {
    pub(crate) jobs: usize,
    pub(crate) create: Samples,
    pub(crate) list: Samples,
    pub(crate) disk: Samples,
    pub(crate) memory: f64,
    /// CPU seconds a second while the jobs of this stage were created.
    pub(crate) cores: f64,
    pub(crate) ready_seconds: f64,
    /// None: not all workers came back in time.
    pub(crate) back_seconds: Option<f64>,
}

/// Everything that was found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) figures: Vec<Figure>,
    pub(crate) stages: Vec<Stage>,
    pub(crate) counts: Counts,
    /// Problems, in words.
    pub(crate) notes: Vec<String>,
}

impl Figure {
    pub(crate) fn passed(&self) -> bool {
        match self.bound {
            Bound::None => true,
            Bound::AtMost(most) => self.measured <= most,
            Bound::AtLeast(least) => self.measured >= least,
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.bound, self.passed()) {
            (Bound::None, _) => "",
            (_, true) => "PASS",
            (_, false) => "FAIL",
        }
    }
}

impl Bound {
    fn text(self, unit: &str) -> String {
        match self {
            Self::None => String::new(),
            Self::AtMost(most) => format!("<= {}", number(most, unit)),
            Self::AtLeast(least) => format!(">= {}", number(least, unit)),
        }
    }
}

impl Report {
    pub(crate) fn add(&mut self, name: &'static str, measured: f64, unit: &'static str, bound: Bound) {
        self.figures.push(Figure { name, measured, unit, bound });
    }

    pub(crate) fn passed(&self) -> bool {
        self.figures.iter().all(Figure::passed)
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{:44}{:>16}{:>18}\n", "figure", "measured", "bound");
        for figure in &self.figures {
            let measured = number(figure.measured, figure.unit);
            let bound = figure.bound.text(figure.unit);
            let line = format!("{:44}{measured:>16}{bound:>18}  {}", figure.name, figure.verdict());
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push_str("\nwith jobs    CreateJob p50/p99    ListJobs p50/p99    fdatasync p99    memory    cores    ready    all back\n");
        for stage in &self.stages {
            let pair = |samples: &Samples| {
                format!("{} / {}", number(samples.quantile(0.5), ""), number(samples.quantile(0.99), "ms"))
            };
            let back = stage.back_seconds.map_or("never".to_owned(), |seconds| number(seconds, "s"));
            let _ = writeln!(
                text,
                "{:>9}{:>21}{:>20}{:>17}{:>10}{:>9.2}{:>9}{back:>12}",
                stage.jobs,
                pair(&stage.create),
                pair(&stage.list),
                number(stage.disk.quantile(0.99), "ms"),
                number(stage.memory, "MB"),
                stage.cores,
                number(stage.ready_seconds, "s"),
            );
        }
        for note in &self.notes {
            let _ = writeln!(text, "\nnote: {note}");
        }
        text
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let figures = self.figures.iter().map(|figure| {
            let (at_most, at_least) = match figure.bound {
                Bound::None => (None, None),
                Bound::AtMost(most) => (Some(most), None),
                Bound::AtLeast(least) => (None, Some(least)),
            };
            json!({
                "name": figure.name,
                "measured": figure.measured,
                "unit": figure.unit,
                "at_most": at_most,
                "at_least": at_least,
                "passed": figure.passed(),
            })
        });
        let stages = self.stages.iter().map(|stage| {
            json!({
                "jobs": stage.jobs,
                "create_p50_ms": stage.create.quantile(0.5),
                "create_p99_ms": stage.create.quantile(0.99),
                "list_p50_ms": stage.list.quantile(0.5),
                "list_p99_ms": stage.list.quantile(0.99),
                "fdatasync_p50_ms": stage.disk.quantile(0.5),
                "fdatasync_p99_ms": stage.disk.quantile(0.99),
                "memory_mb": stage.memory,
                "cores": stage.cores,
                "ready_seconds": stage.ready_seconds,
                "back_seconds": stage.back_seconds,
            })
        });
        json!({
            "passed": self.passed(),
            "figures": figures.collect::<Vec<_>>(),
            "stages": stages.collect::<Vec<_>>(),
            "swarm": self.counts.to_json(),
            "notes": self.notes,
        })
    }
}

/// Three digits or a whole number, and the unit.
fn number(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        _ if value == value.trunc() => 0,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}
