//! Sweeps: several jobs that are asked for at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringtune_proto::convert::{FieldError, queue_to_wire, spec_to_wire};
use ringtune_proto::v1::{self, create_sweep_request::PointRequest};
use ringtune_shared::ids::{JobId, SweepId};
use ringtune_shared::job::{JobSpec, MOST_POINTS, Requested, SweepRequest, parse_job_file, rungs};
use ringtune_shared::names;
use ringtune_shared::trace::TraceContext;
use tonic::Status;

use super::jobs::{Jobs, request_key, sent};
use super::lists::jobs::within_reach;
use super::outbound;
use super::status::{FailedRequest, bad_field, bad_job_file, bad_spec};
use crate::access::Call;
use crate::core::{Job, NewJob, SweepPlace};
use crate::references::Ties;
use crate::service::Error;
use crate::store::lists::{JobFilter, JobOrder, JobQuery};

/// What is said of a job's own values: how many, and of how many characters each.
const MOST_SETTINGS: (usize, usize) = (64, 100);

impl Jobs {
    /// Checks a request and makes all of its jobs or none. Gives the first. `id`: its, if it is made now.
    pub(super) async fn make_sweep(
        &self,
        call: &Call,
        request: v1::CreateSweepRequest,
        id: JobId,
        trace: Option<TraceContext>,
    ) -> Result<Arc<Job>, Status> {
        // 1. What is asked for?
        let (wires, halving) = points(&request)?;
        let count = wires.len();
        if !(2..=MOST_POINTS).contains(&count) {
            let problem = format!("{count} jobs; allowed: 2 to {MOST_POINTS}");
            return Err(bad_field(&FieldError::new("points", problem)));
        }
        // 2. Each of its jobs, as if it were alone.
        let (sweep, mut ties) = (SweepId::new(), Ties::default());
        let (mut news, mut bytes) = (Vec::<NewJob>::with_capacity(count), vec![u8::from(halving)]);
        for (index, wire) in wires.into_iter().enumerate() {
            let at = |status: Status| in_point(index, status);
            let settings = checked_settings(wire.settings).map_err(|error| at(bad_field(&error)))?;
            let spec = wire.spec.unwrap_or_default();
            let queue = self.check_queue(call, wire.queue).map_err(at)?;
            if news.first().is_some_and(|first| first.queue.owner != queue.owner) {
                let problem = format!("got {:?}; allowed: that of the first", queue.owner);
                return Err(at(bad_field(&FieldError::new("queue.owner", problem))));
            }
            bytes.extend(sent(&spec, &queue));
            let (spec, resumed) = self.check_spec(&mut ties, spec).await.map_err(at)?;
            let place = SweepPlace {
                sweep,
                point: u32::try_from(index + 1).unwrap_or(u32::MAX),
                points: u32::try_from(count).unwrap_or(u32::MAX),
                settings,
                rungs: Vec::new(),
                passed: 0,
                scores: Vec::new(),
            };
            news.push(NewJob {
                id: if index == 0 { id } else { JobId::new() },
                spec: Arc::new(spec),
                queue: Arc::new(queue),
                request: None,
                resumed,
                trace,
                sweep: Some(place),
            });
        }
        // 3. Where are they compared?
        if halving {
            let specs: Vec<&JobSpec> = news.iter().map(|new| &*new.spec).collect();
            let done = news.iter().filter_map(|new| Some(new.resumed.as_ref()?.step)).max();
            let rungs = rungs(&specs, done.unwrap_or(0)).map_err(bad_spec)?;
            news.iter_mut()
                .filter_map(|new| new.sweep.as_mut())
                .for_each(|place| place.rungs.clone_from(&rungs));
        }
        // 4. All of them, or those that the same request made before.
        let key = request_key(call, request.request_id, &bytes).map_err(FailedRequest::from)?;
        news.iter_mut().take(1).for_each(|first| first.request.clone_from(&key));
        Ok(self.0.references.create_sweep(news, ties).await.map_err(FailedRequest::from)?)
    }

    /// A sweep that a call reaches.
    ///
    /// # Errors
    /// There is none, as far as the caller is concerned; the store's.
    pub(super) async fn sweep(&self, call: &Call, id: SweepId) -> Result<v1::Sweep, FailedRequest> {
        let filter = JobFilter { sweep: Some(id), ..JobFilter::default() };
        let (filter, limit) = (within_reach(call, filter), u32::try_from(MOST_POINTS).unwrap_or(u32::MAX));
        let query = JobQuery { filter, order: JobOrder::Creation, descending: false, after: None, limit };
        let mut jobs = self.0.handle.store().list_jobs(&query).await?;
        self.0.handle.explain(&mut jobs);
        jobs.iter_mut().for_each(|job| super::reach::redact_for(call, job));
        outbound::sweep(&jobs).ok_or_else(|| Error::NoSuchSweep(id).into())
    }
}

/// The jobs that are asked for, and whether the worse of them end early.
fn points(request: &v1::CreateSweepRequest) -> Result<(Vec<PointRequest>, bool), Status> {
    if request.job_file.is_empty() {
        return Ok((request.points.clone(), request.halving));
    }
    let refuse = |problem: &str| Err(bad_field(&FieldError::new("job_file", problem)));
    if !request.points.is_empty() || request.halving {
        return refuse("comes in place of points and halving: give one or the other");
    }
    match parse_job_file(&request.job_file, &[]).map_err(bad_job_file)? {
        Requested::Job(_) => refuse("has no [sweep]: CreateJob makes one job"),
        Requested::Sweep(SweepRequest { points, halving }) => {
            let points = points.into_iter().map(|point| PointRequest {
                spec: Some(spec_to_wire(&point.request.spec)),
                queue: Some(queue_to_wire(&point.request.queue)),
                settings: point.settings,
            });
            Ok((points.collect(), halving))
        }
    }
}

fn checked_settings(settings: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, FieldError> {
    let (most, longest) = MOST_SETTINGS;
    if settings.len() > most {
        let problem = format!("{} of them; allowed: at most {most}", settings.len());
        return Err(FieldError::new("settings", problem));
    }
    let texts = settings.iter().flat_map(|(key, value)| [key, value]);
    for text in texts {
        names::check(text, longest).map_err(|problem| FieldError::new("settings", problem.to_string()))?;
    }
    Ok(settings)
}

/// Says of which point an error is.
fn in_point(index: usize, status: Status) -> Status {
    let message = format!("points[{index}]: {}", status.message());
    let (code, details) = (status.code(), bytes_of(&status));
    Status::with_details_and_metadata(code, message, details, status.metadata().clone())
}

fn bytes_of(status: &Status) -> tonic::codegen::Bytes {
    tonic::codegen::Bytes::copy_from_slice(status.details())
}
