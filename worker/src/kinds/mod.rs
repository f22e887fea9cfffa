//! The kinds of work: each prepares and computes in a folder of its own, and is registered here and nowhere else in the
//! worker.

mod generate;
mod generate_text;
mod gpt2_finetune;
mod rehearsal;
mod shared_out;
mod textual_inversion;

use ringtune_shared::job::Work;
use tokio::sync::mpsc;

pub use generate::rehearsal::{DrawingOptions, DrawingTiming, RehearsedDrawing, rehearse_drawing};
pub use generate_text::rehearsal::{RehearsedTexts, rehearse_texts};
pub use gpt2_finetune::bench::{GradientBench, GradientTimes, Leaving};
pub use gpt2_finetune::rehearsal::{RehearsedWords, rehearse_words};
pub use textual_inversion::rehearsal::{Rehearsal, RehearsalOptions, RehearsedWord, Timing, rehearse};

use crate::{
    rank::{Context, live},
    session::{Assignment, RankControl, RankEvent, RankKey, RankLauncher},
};

impl RankLauncher for Context {
    fn launch(&self, assignment: Assignment, events: mpsc::Sender<(RankKey, RankEvent)>) -> RankControl {
        let (control, orders) = RankControl::new();
        let context = self.clone();
        match assignment.spec.work.clone() {
            Work::TextualInversion(job) => {
                let task = textual_inversion::TextualInversion { job };
                ringtune_shared::tasks::spawn(live(task, assignment, context, orders, events));
            }
            Work::Gpt2Finetune(job) => {
                let task = gpt2_finetune::Gpt2Finetune { job };
                ringtune_shared::tasks::spawn(live(task, assignment, context, orders, events));
            }
            Work::GenerateText(spec) => {
                let task = generate_text::GenerateText { spec };
                ringtune_shared::tasks::spawn(live(task, assignment, context, orders, events));
            }
            Work::Generate(spec) => {
                let task = generate::Generate { spec };
                ringtune_shared::tasks::spawn(live(task, assignment, context, orders, events));
            }
        }
        control
    }
}
