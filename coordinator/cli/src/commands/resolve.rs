//! Which job or worker a command line means. A whole id is taken as it is; for everything else the coordinator's lists are
//! asked.

use std::time::{Duration, SystemTime};

use ringtune_proto::{
    convert::{job_state_name, worker_state_name},
    v1,
};
use uuid::Uuid;

use super::title;
use crate::{
    client::{Client, named},
    error::Error,
    output::age_text,
    references::{JobReference, LAST, Likeness, WorkerReference},
};

/// Candidates of an ambiguous name that are listed.
const NAMED: usize = 10;

/// The job that is meant.
///
/// # Errors
/// None is, or several are, which are listed; the coordinator does not answer.
pub(super) async fn job(client: &Client, given: &JobReference) -> Result<Uuid, Error> {
    let (name, found) = match given {
        JobReference::Id(id) => return Ok(*id),
        // As with a name, a verification is not meant: `ringtune verify` says its id.
        JobReference::Last => {
            let newest = v1::ListJobsRequest { page_size: 20, ..Default::default() };
            (LAST, client.find_jobs(newest, 1, |job| job.verification.is_none()).await?)
        }
        JobReference::Like(like) => (like.name(), jobs_like(client, like).await?),
    };
    let found = found.into_iter().map(|job| Candidate {
        about: format!("{}  {}", job_state_name(job.state()), title(&job)),
        since: job.create_time,
        id: job.job_id,
    });
    only_one(&JOBS, name, client.url(), found.collect(), SystemTime::now())
}

/// The sweep that is meant: by its id, or by a job of it.
///
/// # Errors
/// As of [`job`].
pub(super) async fn sweep(client: &Client, given: &JobReference) -> Result<Uuid, Error> {
    let id_of = |job: &v1::Job| job.sweep.as_ref().map(|place| place.sweep_id.clone()).unwrap_or_default();
    let (name, mut found) = match given {
        JobReference::Id(id) => {
            let filter = named("sweep", &id.to_string());
            let wanted = v1::ListJobsRequest { filter, page_size: 1, ..v1::ListJobsRequest::default() };
            match client.find_jobs(wanted, 1, |_| true).await?.is_empty() {
                false => return Ok(*id),
                true => (id.to_string(), vec![client.get_job(*id).await?]),
            }
        }
        JobReference::Last => {
            let newest = v1::ListJobsRequest { page_size: 20, ..v1::ListJobsRequest::default() };
            (LAST.to_owned(), client.find_jobs(newest, 1, |job| job.sweep.is_some()).await?)
        }
        JobReference::Like(like) => {
            let is_meant = |job: &v1::Job| {
                job.sweep.is_some()
                    && (like.matches(&id_of(job), own_name(job)) || like.matches(&job.job_id, ""))
            };
            // Of all jobs of a sweep one would do.
            (
                like.name().to_owned(),
                client.find_jobs(v1::ListJobsRequest::default(), usize::MAX, is_meant).await?,
            )
        }
    };
    let mut known = Vec::new();
    found.retain(|job| {
        let (id, is_new) = (id_of(job), !known.contains(&id_of(job)));
        known.push(id.clone());
        is_new && !id.is_empty()
    });
    let found = found.into_iter().map(|job| Candidate {
        about: title(&job),
        since: job.create_time,
        id: id_of(&job),
    });
    only_one(&SWEEPS, &name, client.url(), found.collect(), SystemTime::now())
}

/// The jobs that are meant, each once.
pub(super) async fn jobs(client: &Client, given: &[JobReference]) -> Result<Vec<Uuid>, Error> {
    let mut meant = Vec::with_capacity(given.len());
    for one in given {
        let id = job(client, one).await?;
        if !meant.contains(&id) {
            meant.push(id);
        }
    }
    Ok(meant)
}

/// The worker that is meant.
///
/// # Errors
/// As of [`job`].
pub(super) async fn worker(client: &Client, given: &WorkerReference) -> Result<Uuid, Error> {
    let like = match given {
        WorkerReference::Id(id) => return Ok(*id),
        WorkerReference::Like(like) => like,
    };
    let mut workers = client.list_workers().await?;
    workers.retain(|worker| like.matches(&worker.worker_id, &worker.host_name));
    let found = workers.into_iter().map(|worker| Candidate {
        about: format!("{}  {} {}", worker_state_name(worker.state()), worker.host_name, worker.address),
        since: worker.connect_time,
        id: worker.worker_id,
    });
    only_one(&WORKERS, like.name(), client.url(), found.collect(), SystemTime::now())
}

/// Enough of those that are meant to see that there are too many. A name alone the coordinator looks up by itself; a piece
/// of an id is looked for in all pages of its list.
async fn jobs_like(client: &Client, like: &Likeness) -> Result<Vec<v1::Job>, Error> {
    let filter = if like.may_be_id() { String::new() } else { named("name", like.name()) };
    let wanted = v1::ListJobsRequest { filter, ..v1::ListJobsRequest::default() };
    let is_meant = |job: &v1::Job| like.matches(&job.job_id, own_name(job));
    Ok(client.find_jobs(wanted, NAMED + 1, is_meant).await?)
}

/// A verification has the name of the job that it computes again: who says that name means that job.
fn own_name(job: &v1::Job) -> &str {
    if job.verification.is_some() { "" } else { &job.name }
}

/// What is looked for, in words.
struct Kind {
    noun: &'static str,
    /// What it may be named by.
    by: &'static str,
    /// What shows all of them.
    list: &'static str,
}

const JOBS: Kind = Kind {
    noun: "job",
    by: "an id, 4 or more digits of its beginning or end, a name, or `last` for the newest that is no verification",
    list: "ringtune list",
};
const SWEEPS: Kind = Kind {
    noun: "sweep",
    by: "an id, 4 or more digits of its beginning or end, its name, `last`, or one of its jobs",
    list: "ringtune list --output json",
};
const WORKERS: Kind = Kind {
    noun: "worker",
    by: "an id, 4 or more digits of its beginning or end, or the name of its host",
    list: "ringtune workers",
};

/// Something that may be meant.
struct Candidate {
    id: String,
    about: String,
    since: Option<prost_types::Timestamp>,
}

fn only_one(
    kind: &Kind,
    given: &str,
    url: &str,
    found: Vec<Candidate>,
    now: SystemTime,
) -> Result<Uuid, Error> {
    let Kind { noun, by, list } = kind;
    match found.as_slice() {
        [] if given == LAST => Err(Error::Usage(format!("there is no {noun} at {url} yet"))),
        [] => Err(Error::Usage(format!(
            "there is no {noun} {given:?} at {url}; allowed: {by}; `{list}` shows those that there are"
        ))),
        [one] => one.id.parse().map_err(|_| {
            Error::JobEnded(format!(
                "the coordinator answered with a {noun} whose id is no UUID: {:?}",
                one.id
            ))
        }),
        several => {
            let line = |one: &Candidate| {
                let age = one.since.and_then(|time| SystemTime::try_from(time).ok());
                let age = age.map(|since| now.duration_since(since).unwrap_or(Duration::ZERO));
                let age = age.map_or(String::new(), |age| format!("  {} ago", age_text(age)));
                format!("\n  {}  {}{age}", one.id, one.about)
            };
            let lines: String = several.iter().take(NAMED).map(line).collect();
            let more = if several.len() > NAMED { "\n  and others" } else { "" };
            Err(Error::Usage(format!(
                "{given:?} means several {noun}s at {url}: give more of an id\n{}{more}",
                lines.trim_start_matches('\n')
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u128, seconds: i64) -> Candidate {
        let since = Some(prost_types::Timestamp { seconds, nanos: 0 });
        Candidate { id: Uuid::from_u128(id).to_string(), about: "RUNNING  star".to_owned(), since }
    }

    fn picked(found: Vec<Candidate>) -> Result<Uuid, String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(7300);
        only_one(&JOBS, "star", "http://node:7070", found, now).map_err(|error| error.to_string())
    }

    #[test]
    fn one_is_taken_and_none_is_said_with_what_is_allowed() {
        assert_eq!(picked(vec![candidate(7, 0)]), Ok(Uuid::from_u128(7)));
        let none = picked(Vec::new()).expect_err("none");
        assert!(none.starts_with("there is no job \"star\" at http://node:7070; allowed: "), "{none}");
        assert!(none.contains("`ringtune list`") && none.contains("`last`"), "{none}");
    }

    #[test]
    fn several_are_listed_with_state_and_age() {
        let text = picked(vec![candidate(1, 100), candidate(2, 7290)]).expect_err("two");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "\"star\" means several jobs at http://node:7070: give more of an id",
                "  00000000-0000-0000-0000-000000000001  RUNNING  star  2 h ago",
                "  00000000-0000-0000-0000-000000000002  RUNNING  star  10 s ago",
            ]
        );
        let many = picked((0..20).map(|id| candidate(id, 9000)).collect()).expect_err("many");
        assert_eq!(many.lines().count(), NAMED + 2);
        assert!(many.ends_with("\n  and others") && many.contains("star  0 s ago"), "{many}");
    }
}
