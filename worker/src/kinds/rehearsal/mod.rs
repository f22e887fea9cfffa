//! A rank's preparation without a job, on this machine alone.

mod found;

pub(crate) use found::{
    DrawingReport, EmbeddingReport, Estimate, Found, LanguageReport, LoraReport, ModelReport, RehearsedWord,
    SizeReport, TextsReport, TrainingReport,
};

use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    job::JobSpec,
    ring::{Member, RingView},
};
use tokio::sync::mpsc;

use crate::{
    engine::Precision,
    journal::Journal,
    rank::{Context, Error, Rank},
    session::{Assignment, Level, RankEvent},
};

/// As what a job is rehearsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct As {
    /// What a rank would compute in here.
    pub(crate) precision: Precision,
    /// Its threads.
    pub(crate) threads: usize,
    /// Compute a little, to see how long it takes.
    pub(crate) compute: bool,
}

/// What was prepared, and as what.
pub(super) struct Alone<Prepared> {
    pub(super) prepared: Prepared,
    pub(super) assignment: Assignment,
    /// What the preparation warned of.
    pub(super) warnings: Vec<String>,
}

/// Prepares as the only rank of a ring would.
///
/// # Errors
/// What would end the job.
pub(super) async fn alone<Prepared>(
    spec: &JobSpec,
    As { precision, threads, .. }: As,
    context: &Context,
    prepare: impl AsyncFnOnce(&Rank) -> Result<Prepared, Error>,
) -> Result<Alone<Prepared>, Error> {
    let myself = Member { worker: WorkerId::new(), address: String::new() };
    let ring = RingView { job: JobId::new(), epoch: Epoch::FIRST, members: vec![myself] };
    let numerics_class = "rehearsal".to_owned();
    let assignment =
        Assignment { threads, precision, numerics_class, ..Assignment::new(ring, 0, spec.clone()) };
    // What it says is collected.
    let (events, mut said) = mpsc::channel(64);
    let journal = Journal::new(assignment.key(), Some(0), events).of(context.access.clone());
    let folder = context.rank_folder(assignment.ring.job);
    let life = assignment.key();
    let rank = Rank { assignment, life, context: context.clone(), journal, folder };
    let collect = async {
        let mut warnings = Vec::new();
        while let Some((_, event)) = said.recv().await {
            if let RankEvent::Log(Level::Warn, line) = event {
                warnings.push(line);
            }
        }
        warnings
    };
    let preparing = async {
        // As a rank does before it prepares anything; there are no traces.
        let prepared = match rank.context.access.check(&rank.assignment.spec, false) {
            Ok(()) => prepare(&rank).await,
            Err(refused) => Err(refused.into()),
        };
        // With its journal, so that there is an end of what it says.
        let Rank { assignment, .. } = rank;
        prepared.map(|prepared| (prepared, assignment))
    };
    let (prepared, warnings) = tokio::join!(preparing, collect);
    let (prepared, assignment) = prepared?;
    Ok(Alone { prepared, assignment, warnings })
}
