//! The kinds of work: each prepares and computes in a folder of its own, and is registered here and nowhere else in the
//! worker.

mod generate;
/// What a rank of it does is not here yet.
mod gpt2_finetune {
    pub(super) mod rehearsal;
}
mod rehearsal;
mod textual_inversion;

use ringtune_shared::job::Work;
use tokio::sync::mpsc;

pub use generate::rehearsal::{DrawingOptions, DrawingTiming, RehearsedDrawing, rehearse_drawing};
pub use gpt2_finetune::rehearsal::{RehearsedWords, rehearse_words};
pub use textual_inversion::rehearsal::{Rehearsal, RehearsalOptions, RehearsedWord, Timing, rehearse};

use crate::{
    fault::Refusal,
    rank::{self, Context, Rank, Task, live},
    session::{Assignment, RankControl, RankEvent, RankKey, RankLauncher},
};

/// A kind of work that this build of the worker knows by name alone.
struct NotHere;

impl Task for NotHere {
    /// It is never made.
    type Work = <generate::Generate as Task>::Work;

    async fn prepare(self, rank: &Rank) -> Result<Self::Work, rank::Error> {
        let problem =
            format!("got {:?}; this worker cannot do that yet", rank.assignment.spec.kind().as_str());
        Err(Refusal::of("kind", problem).into())
    }
}

impl RankLauncher for Context {
    fn launch(&self, assignment: Assignment, events: mpsc::Sender<(RankKey, RankEvent)>) -> RankControl {
        let (control, orders) = RankControl::new();
        let context = self.clone();
        match assignment.spec.work.clone() {
            Work::TextualInversion(job) => {
                let task = textual_inversion::TextualInversion { job };
                ringtune_shared::tasks::spawn(live(task, assignment, context, orders, events));
            }
            Work::Generate(spec) => {
                let task = generate::Generate { spec };
                ringtune_shared::tasks::spawn(live(task, assignment, context, orders, events));
            }
            Work::Gpt2Finetune(_) => {
                ringtune_shared::tasks::spawn(live(NotHere, assignment, context, orders, events));
            }
        }
        control
    }
}
