//! Shows a job's progress on stderr: a bar on a terminal, plain lines otherwise.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ringtune_proto::v1;
use ringtune_shared::names::visible;

use super::{JobProgress, Update};
use crate::output::remark;

const TEMPLATE: &str = "{bar:16} {pos}/{len} {wide_msg}";
const COLOURED_TEMPLATE: &str = "{bar:16.green/dim} {pos}/{len} {wide_msg}";
/// Redraws a second.
const REDRAWS: u8 = 8;

/// Where a job's progress is shown.
#[derive(Debug)]
pub struct Display {
    progress: JobProgress,
    bar: Option<ProgressBar>,
}

impl Display {
    /// Shows a job of that many steps, some of them done before it, in the way that suits stderr.
    pub fn new(total_steps: u64, done_before: u64) -> Self {
        let bar = stderr_takes_a_bar().then(|| bar(total_steps).with_position(done_before));
        Self { progress: JobProgress::new(total_steps), bar }
    }

    /// Shows what the event changes.
    pub fn event(&mut self, event: &v1::JobEvent) {
        let update = self.progress.apply(event);
        self.show(update);
    }

    /// Shows how far some ranks are.
    pub fn ranks(&mut self, ranks: &[v1::RankProgress]) {
        let update = self.progress.apply_ranks(ranks);
        self.show(update);
    }

    /// Shows when another rank becomes the one that the others wait for.
    pub fn timings(&mut self, ranks: &[v1::RankTiming]) {
        let update = self.progress.apply_timings(ranks);
        self.show(update);
    }

    fn show(&self, update: Option<Update>) {
        match (update, &self.bar) {
            (None, _) => (),
            (Some(Update::Remark(text)), _) => self.remark(&text),
            (Some(Update::Preparing { text, .. }), Some(bar)) => bar.set_message(visible(&text).into_owned()),
            (Some(Update::Preparing { text, new_stage: true }), None) => remark(&text),
            (Some(Update::Preparing { .. }), None) => (),
            (Some(Update::Step { .. }), Some(bar)) => {
                bar.set_position(self.progress.step());
                bar.set_message(self.progress.numbers());
            }
            (Some(Update::Step { due: true }), None) => remark(&self.progress.line()),
            (Some(Update::Step { due: false }), None) => (),
        }
    }

    /// Says something without disturbing the bar.
    pub fn remark(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(visible(text)),
            None => remark(text),
        }
    }

    /// Leaves the bar as it is and goes on below it.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

fn stderr_takes_a_bar() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn bar(total_steps: u64) -> ProgressBar {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let template = if no_colour { TEMPLATE } else { COLOURED_TEMPLATE };
    let bar = ProgressBar::with_draw_target(Some(total_steps), ProgressDrawTarget::stderr_with_hz(REDRAWS));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar
}
