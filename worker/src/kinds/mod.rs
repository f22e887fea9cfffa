//! The kinds of work: each prepares and computes in a folder of its own, and is registered here and nowhere else in the
//! worker.

mod generate;
mod generate_text;
mod gpt2_finetune;
mod lora;
mod pictures;
mod rehearsal;
mod shared_out;
mod texts;
mod textual_inversion;
mod unet_finetune;

use ringtune_shared::job::{JobSpec, Work};
use tokio::sync::mpsc;

pub use gpt2_finetune::bench::{GradientBench, GradientTimes, Leaving};
pub(crate) use rehearsal::{As, DrawingReport, Estimate, Found};
pub(crate) use unet_finetune::forecast::{UnetForecast, UnetOptions};

use crate::{
    rank::{self, Context, live},
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
            Work::Lora(job) => {
                let task = lora::Lora { job };
                ringtune_shared::tasks::spawn(live(task, assignment, context, orders, events));
            }
            Work::UnetFinetune(job) => {
                let task = unet_finetune::UnetFinetune { job };
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

/// Prepares a job as the only rank of a ring would, and, where it is asked for, computes a little of it.
///
/// # Errors
/// What would end the job.
pub(crate) async fn rehearse(spec: &JobSpec, with: As, context: &Context) -> Result<Found, rank::Error> {
    match &spec.work {
        Work::TextualInversion(job) => {
            Box::pin(textual_inversion::rehearsal::rehearse(spec, job, with, context)).await
        }
        Work::Gpt2Finetune(job) => gpt2_finetune::rehearsal::rehearse(spec, job, with, context).await,
        Work::Lora(job) => Box::pin(lora::rehearsal::rehearse(spec, job, with, context)).await,
        Work::UnetFinetune(job) => {
            Box::pin(unet_finetune::rehearsal::rehearse(spec, job, with, context)).await
        }
        Work::GenerateText(job) => generate_text::rehearsal::rehearse(spec, job, with, context).await,
        Work::Generate(job) => generate::rehearsal::rehearse(spec, job, with, context).await,
    }
}
