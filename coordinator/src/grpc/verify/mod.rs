//! VerifyJob: which steps are computed again, and from where.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringtune_proto::convert::{FieldError, unsigned};
use ringtune_proto::v1;
use ringtune_shared::checkpoint::Resumed;
use ringtune_shared::ids::{ContentHash, JobId};
use ringtune_shared::job::JobSpec;
use ringtune_shared::trace::TraceContext;

use super::ids::job_id;
use super::jobs::{Jobs, check_request_id};
use super::status::{FailedRequest, precondition};
use crate::access::Call;
use crate::core::{Checkpoint, Cluster, Job, NewJob, NewVerification, Pin, RequestKey, Time, Verification};
use crate::references::Ties;
use crate::store::lists::ArtifactQuery;

/// Files of a job that are looked through at a time for its checkpoints.
const PORTION: u32 = 500;
/// What the names of checkpoints begin with, and what sorts behind all of them.
const CHECKPOINTS: (&str, &str) = ("checkpoint-", "checkpoint.");
/// Numerics classes that a refusal names at most.
const MOST_CLASSES: usize = 4;

impl Jobs {
    /// Queues a verification with the id `verification_id`, unless the same request did so before.
    pub(super) async fn create_verification(
        &self,
        call: &Call,
        request: v1::VerifyJobRequest,
        verification_id: JobId,
        trace: Option<TraceContext>,
    ) -> Result<Arc<Job>, FailedRequest> {
        let id = job_id(&request.job_id)?;
        let given = (unsigned("first_step", request.first_step)?, unsigned("last_step", request.last_step)?);
        call.about(id);
        let key = request_key(call, request.request_id, id, given)?;
        let handle = &self.0.handle;
        if let Some(known) = handle.requested(key.as_ref()).await? {
            return Ok(known);
        }
        let original = self.0.job(call, id).await?;
        let pin = check_job(&original)?;
        // 1. Which steps.
        let oldest = handle.store().steps(id, 0, 1).await?.first().map(|first| first.step);
        let (first_step, last_step) = check_steps(id, given, oldest.map(|oldest| (oldest, original.step)))?;
        let (interval, total) = (original.spec.state_interval(), original.spec.total_steps());
        let last_step = if given.1 == 0 { newest_with_state(last_step, interval, total) } else { last_step };
        let has_to = |step: u64| step > 0 && (interval == 1 || step == last_step);
        if last_step < first_step {
            return Err(without_hash(id, first_step).into());
        }
        for step in [first_step, last_step].into_iter().filter(|step| has_to(*step)) {
            let stored = handle.step(id, step).await?;
            if stored.and_then(|stored| stored.state).is_none() {
                return Err(without_hash(id, step).into());
            }
        }
        // 2. On what.
        let cluster = handle.cluster();
        if let Err(problem) = check_class(&cluster, &pin.numerics_class) {
            let problem = format!("job_id: job {id} was computed on {problem}");
            return Err(precondition("NO_SUCH_WORKER", id.to_string(), problem).into());
        }
        drop(cluster);
        // 3. From where; and what that takes is held from here on.
        let mut ties = Ties::default();
        let (spec, resumed) = self.start_before(&mut ties, &original, first_step).await?;
        let references = &self.0.references;
        references.check_images(&mut ties, &spec).await.map_err(|error| gone(id, error))?;
        references.check_embeddings(&mut ties, &spec).await.map_err(|error| gone(id, error))?;
        let (spec, queue) = (Arc::new(spec), original.queue.clone());
        let job = NewJob { id: verification_id, spec, queue, request: key, resumed, trace, sweep: None };
        let verification = Verification { job: id, first_step, last_step, difference: None };
        Ok(references.verify_job(NewVerification { job, verification, pin }, ties).await?)
    }

    /// The spec of a job, made to begin with the newest of its checkpoints before a step that is there and whole, or else
    /// where the job itself began.
    async fn start_before(
        &self,
        ties: &mut Ties,
        original: &Job,
        step: u64,
    ) -> Result<(JobSpec, Option<Resumed>), FailedRequest> {
        for checkpoint in self.checkpoints_before(original.id, step).await? {
            let mut spec = JobSpec::clone(&original.spec);
            if let Some(place) = spec.resume_from_mut() {
                *place = checkpoint.hash.uri();
            }
            match self.0.references.resumed(ties, &spec).await {
                Ok(Some(resumed)) if resumed.step == checkpoint.step => {
                    // No rank of a verification could take another one.
                    match self.0.references.check_whole(checkpoint.hash).await {
                        Ok(()) => return Ok((spec, Some(resumed))),
                        Err(problem) => {
                            let (job, step) = (original.id, checkpoint.step);
                            tracing::warn!(%job, step, problem, "a checkpoint is damaged and not used");
                        }
                    }
                }
                // One that is gone or says something else is not used: an older one costs time alone.
                Ok(_) | Err(_) => {
                    tracing::warn!(job = %original.id, step = checkpoint.step, "a checkpoint cannot be used")
                }
            }
        }
        let spec = JobSpec::clone(&original.spec);
        let resumed = self.0.references.resumed(ties, &spec).await;
        Ok((spec, resumed.map_err(|error| gone(original.id, error))?))
    }

    /// The checkpoints of a job that its ranks made before a step, the newest first.
    async fn checkpoints_before(&self, job: JobId, step: u64) -> Result<Vec<Checkpoint>, FailedRequest> {
        let mut found: Vec<Checkpoint> = Vec::new();
        let mut after = CHECKPOINTS.0.to_owned();
        loop {
            let query = ArtifactQuery {
                job,
                name: None,
                media_type: None,
                by_time: false,
                descending: false,
                after: Some((Time::default(), after.clone())),
                limit: PORTION,
            };
            let page = self.0.handle.store().list_artifacts(&query).await?;
            let named = page.iter().take_while(|file| file.name.as_str() < CHECKPOINTS.1);
            found.extend(named.filter_map(|file| file.checkpoint()).filter(|one| one.step < step));
            match page.last() {
                Some(last) if page.len() == PORTION as usize && last.name.as_str() < CHECKPOINTS.1 => {
                    after.clone_from(&last.name);
                }
                _ => break,
            }
        }
        found.sort_by_key(|checkpoint| std::cmp::Reverse(checkpoint.step));
        Ok(found)
    }
}

/// The same id with another job or other steps is another request.
fn request_key(
    call: &Call,
    id: String,
    job: JobId,
    steps: (u64, u64),
) -> Result<Option<RequestKey>, FieldError> {
    check_request_id(&id)?;
    let id = call.own_request(id);
    let fingerprint = ContentHash::of(format!("verify {job} {} {}", steps.0, steps.1).as_bytes());
    Ok((!id.is_empty()).then_some(RequestKey { id, fingerprint }))
}

/// Refuses what has no steps that could be verified; gives what they were computed on.
fn check_job(job: &Job) -> Result<Arc<Pin>, FieldError> {
    let id = job.id;
    let refuse = |problem: String| Err(FieldError::new("job_id", problem));
    if let Some(verification) = &job.verification {
        return refuse(format!(
            "job {id} is itself a verification; allowed: the job that it verifies, {}",
            verification.job
        ));
    }
    if job.spec.total_steps() == 0 {
        let kind = job.spec.kind().as_str();
        return refuse(format!(
            "job {id} is of kind {kind:?}, which has no steps; allowed: a job that learns"
        ));
    }
    if let Some(exact) = job.spec.exact_instead() {
        return refuse(format!(
            "the sums of job {id} depend on the number of ranks, and a verification has one; allowed: a job with \
             {exact}, or with cluster.world_size = 1"
        ));
    }
    match &job.pin {
        Some(pin) if pin.numerics_class.is_empty() => refuse(format!(
            "job {id} was run by release 0.1.0, which did not keep what its steps were computed on; allowed: a job of a \
             newer release"
        )),
        Some(pin) => Ok(pin.clone()),
        None => refuse(no_step(id)),
    }
}

fn no_step(job: JobId) -> String {
    format!("job {job} has done no step yet; allowed: a job with at least one")
}

/// The first and last step that are meant. `given`: 0 stands for the oldest and the newest that are `stored`.
fn check_steps(job: JobId, given: (u64, u64), stored: Option<(u64, u64)>) -> Result<(u64, u64), FieldError> {
    let Some((oldest, newest)) = stored.filter(|(oldest, newest)| oldest <= newest) else {
        return Err(FieldError::new("job_id", no_step(job)));
    };
    let or = |given: u64, default: u64| if given == 0 { default } else { given };
    let (first, last) = (or(given.0, oldest), or(given.1, newest));
    let allowed = format!("allowed: {oldest} to {newest}, the steps that are stored of job {job}");
    for (field, step) in [("first_step", first), ("last_step", last)] {
        if !(oldest..=newest).contains(&step) {
            return Err(FieldError::new(field, format!("got {step}; {allowed}")));
        }
    }
    if first > last {
        return Err(FieldError::new(
            "first_step",
            format!("got {first}, which is after last_step, {last}; {allowed}"),
        ));
    }
    Ok((first, last))
}

/// The newest step up to `step` of which the ranks said the hash of their state.
fn newest_with_state(step: u64, interval: u64, total: u64) -> u64 {
    if step == total { step } else { step - step % interval.max(1) }
}

fn without_hash(job: JobId, step: u64) -> FieldError {
    let problem = format!(
        "step {step} of job {job} is stored without the hash of its state: release 0.2.0 and older ones kept none, and a \
         job that compares its state in some steps alone has it of these; allowed: steps that have one"
    );
    FieldError::new("job_id", problem)
}

/// Refuses a class that no worker has that is connected and can verify. The text goes on after "it was computed on".
fn check_class(cluster: &Cluster, class: &str) -> Result<(), String> {
    let connected = || cluster.workers().filter(|worker| worker.session.is_some());
    let of_class = || connected().filter(|worker| worker.capabilities.numerics_class == class);
    if of_class().any(|worker| worker.verifies) {
        return Ok(());
    }
    if of_class().next().is_some() {
        return Err(format!(
            "numerics class {class}, and the connected workers of it are of an older release that cannot verify"
        ));
    }
    let classes: BTreeSet<&str> =
        connected().map(|worker| worker.capabilities.numerics_class.as_str()).collect();
    let some: Vec<&str> = classes.iter().copied().take(MOST_CLASSES).collect();
    let more = if classes.len() > some.len() {
        format!(" and {} more", classes.len() - some.len())
    } else {
        String::new()
    };
    let connected = if some.is_empty() {
        "no worker is connected".to_owned()
    } else {
        format!("connected are {}{more}", some.join(", "))
    };
    Err(format!("numerics class {class}, which no connected worker has: {connected}"))
}

/// What a job needs is there no more.
fn gone(job: JobId, error: FieldError) -> FieldError {
    FieldError::new("job_id", format!("job {job} cannot be computed again: {error}"))
}

#[cfg(test)]
mod tests;
