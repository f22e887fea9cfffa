//! `[queue]`: whose a job is, how it is found again, and how urgent it is.
//!
//! Invariant: none of it decides a bit of the result. It is therefore no part of a [`JobSpec`], which is what goes into
//! an embedding's metadata, what a checkpoint is compared by, and what the ranks are given.

use std::{collections::BTreeMap, time::SystemTime};

use serde::{Deserialize, Serialize};

use super::{JobSpec, SpecError, Violation};
use crate::names;

/// Characters of an owner.
const LONGEST_OWNER: usize = 128;
/// Labels of a job.
const MOST_LABELS: usize = 32;
/// Characters of a label's key, and of its value.
const LONGEST_LABEL: usize = 63;
/// A hundred years.
const MOST_SECONDS: u64 = 3_155_760_000;
/// How often a job is tried again at most.
const MOST_RETRIES: u64 = 1000;
/// Unless a job says something else.
const WORKER_RETRIES: u32 = 2;
/// The greatest priority.
pub const HIGHEST_PRIORITY: u32 = 1000;

/// A job file, or a CreateJobRequest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobRequest {
    /// The work.
    #[serde(flatten)]
    pub spec: JobSpec,
    /// Owner, labels and priority.
    pub queue: QueueSpec,
}

impl JobRequest {
    /// The job as a job file that [`super::parse_job_request`] reads back to the same request.
    ///
    /// # Errors
    /// None for a checked request.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

/// Whose a job is, how it is found again, and how urgent it is. What was made by [`QueueSpec::from_draft`] has been
/// checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSpec {
    /// Whose it is. Where the coordinator asks who calls: the caller's name, and only an admin may give another one.
    /// Elsewhere a claim that nobody checks. At most 128 printable characters. Default: empty, or the caller's name.
    pub owner: String,
    /// From 0 to 1000; jobs with a higher one come first. The coordinator's `queue.submitter_priority` says how high one who
    /// is no admin may go. Default 0.
    pub priority: u32,
    /// Until when it has to be done, in UTC, as in `2026-12-24T18:00:00Z`; empty: whenever. It fails then, and keeps what it has.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub deadline: String,
    /// Seconds after its first ring was formed within which it has to be done, at most a hundred years, what it is paused or waits
    /// in between included; 0: however long it takes.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_seconds: u64,
    /// How often it is tried again in a row, without a new step in between, where workers are lost or fail by no fault of its own,
    /// 0 to 1000. Default 2.
    #[serde(skip_serializing_if = "is_two")]
    pub worker_retries: u32,
    /// How often in all it is tried again after an error of its own, from its newest checkpoint, 0 to 1000. Default 0.
    #[serde(skip_serializing_if = "is_none")]
    pub error_retries: u32,
    /// At most 32. A key has 1 to 63 of a-z, 0-9 and `. _ / -`, the first a letter or a digit; a value at most 63
    /// printable characters.
    pub labels: BTreeMap<String, String>,
}

/// `[queue]`, unchecked; see [`QueueSpec`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "documented in QueueSpec")]
pub struct QueueDraft {
    pub owner: Option<String>,
    pub priority: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub deadline: Option<String>,
    pub max_seconds: Option<i64>,
    pub worker_retries: Option<i64>,
    pub error_retries: Option<i64>,
}

impl Default for QueueSpec {
    fn default() -> Self {
        Self {
            owner: String::new(),
            priority: 0,
            deadline: String::new(),
            max_seconds: 0,
            worker_retries: WORKER_RETRIES,
            error_retries: 0,
            labels: BTreeMap::new(),
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_none(retries: &u32) -> bool {
    *retries == 0
}

fn is_two(retries: &u32) -> bool {
    *retries == WORKER_RETRIES
}

/// A whole number from 0 to `most`. One that is none of these is a violation of `field`.
fn whole(violations: &mut Vec<Violation>, field: &str, given: i64, most: u64) -> u64 {
    let number = u64::try_from(given).ok().filter(|number| *number <= most);
    if number.is_none() {
        violations.push(Violation::new(field, format!("got {given}; allowed: 0 to {most}")));
    }
    number.unwrap_or_default()
}

impl QueueSpec {
    /// Fills in the defaults and checks every value.
    ///
    /// # Errors
    /// Everything that is wrong, by the fields' full names, as in "queue.labels.team".
    pub fn from_draft(draft: QueueDraft) -> Result<Self, SpecError> {
        let mut violations = Vec::new();
        let owner = draft.owner.unwrap_or_default();
        if let Err(problem) = names::check(&owner, LONGEST_OWNER) {
            violations.push(Violation::new("queue.owner", problem));
        }
        let mut number = |field: &str, given: Option<i64>, usual: u64, most: u64| {
            let usual = i64::try_from(usual).unwrap_or(i64::MAX);
            whole(&mut violations, field, given.unwrap_or(usual), most)
        };
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let priority = small(number("queue.priority", draft.priority, 0, u64::from(HIGHEST_PRIORITY)));
        let usual = u64::from(WORKER_RETRIES);
        let worker_retries = small(number("queue.worker_retries", draft.worker_retries, usual, MOST_RETRIES));
        let error_retries = small(number("queue.error_retries", draft.error_retries, 0, MOST_RETRIES));
        let max_seconds = number("queue.max_seconds", draft.max_seconds, 0, MOST_SECONDS);
        violations.extend(check_labels("queue.labels", &draft.labels));
        let deadline = draft.deadline.unwrap_or_default();
        if !deadline.is_empty() && humantime::parse_rfc3339(&deadline).is_err() {
            let given = shown(&deadline);
            let problem = format!("got {given:?}; allowed: a time in UTC, as in \"2026-12-24T18:00:00Z\"");
            violations.push(Violation::new("queue.deadline", problem));
        }
        let labels = draft.labels;
        match violations.is_empty() {
            true => {
                Ok(Self { owner, priority, labels, deadline, max_seconds, worker_retries, error_retries })
            }
            false => Err(SpecError { violations }),
        }
    }

    /// Until when it has to be done, in milliseconds since 1970. `started`: when its first ring was formed, likewise.
    pub fn ends_by(&self, started: Option<i64>) -> Option<i64> {
        let since_1970 = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let milliseconds = |time| i64::try_from(since_1970(time).as_millis()).unwrap_or(i64::MAX);
        let deadline = humantime::parse_rfc3339(&self.deadline).ok().map(milliseconds);
        let seconds = i64::try_from(self.max_seconds).unwrap_or(i64::MAX);
        let limit = started.filter(|_| seconds > 0);
        let limit = limit.map(|started| started.saturating_add(seconds.saturating_mul(1000)));
        deadline.into_iter().chain(limit).min()
    }
}

/// Everything that is wrong with labels. `field`: their name in messages.
pub fn check_labels(field: &str, labels: &BTreeMap<String, String>) -> Vec<Violation> {
    if labels.len() > MOST_LABELS {
        let problem = format!("{} labels; allowed: at most {MOST_LABELS}", labels.len());
        return vec![Violation::new(field, problem)];
    }
    let problem = |(key, value): (&String, &String)| {
        let problem = check_label_key(key).and_then(|()| check_label_value(value)).err()?;
        Some(Violation::new(format!("{field}.{}", shown(key)), problem))
    };
    labels.iter().filter_map(problem).collect()
}

/// Checks one label.
///
/// # Errors
/// Its field, as in "queue.labels.team", with what is allowed.
pub fn check_label(key: &str, value: &str) -> Result<(), Violation> {
    let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    check_labels("queue.labels", &labels).pop().map_or(Ok(()), Err)
}

/// Checks a label's value.
pub(super) fn check_label_value(value: &str) -> Result<(), String> {
    names::check(value, LONGEST_LABEL).map_err(|problem| problem.to_string())
}

/// Checks a label's key.
///
/// # Errors
/// What is wrong with it and what is allowed.
pub fn check_label_key(key: &str) -> Result<(), String> {
    let alphanumeric = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_key = key.starts_with(alphanumeric)
        && key.len() <= LONGEST_LABEL
        && key.chars().all(|letter| alphanumeric(letter) || "._/-".contains(letter));
    match is_key {
        true => Ok(()),
        false => Err(format!(
            "the key {:?} has {} characters; allowed: 1 to {LONGEST_LABEL} of a-z, 0-9 and . _ / -, the first a \
             letter or a digit",
            shown(key),
            key.chars().count()
        )),
    }
}

/// The beginning of a text from outside, for a message.
fn shown(text: &str) -> String {
    let begin: String = text.chars().take(LONGEST_LABEL + 1).collect();
    names::visible(&begin).replace(['\n', '\t'], "?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{parse_job_request, tests::job_with};

    fn draft(labels: &[(&str, &str)]) -> QueueDraft {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        QueueDraft { labels: labels.collect(), ..QueueDraft::default() }
    }

    fn refused(draft: QueueDraft) -> Vec<String> {
        let error = QueueSpec::from_draft(draft).unwrap_err();
        error.violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_given_is_nobodys_and_not_urgent() {
        assert_eq!(QueueSpec::from_draft(QueueDraft::default()), Ok(QueueSpec::default()));
    }

    #[test]
    fn limits_hold_at_their_edges() {
        let (key, value) = ("k".repeat(63), "ü".repeat(63));
        let mut most = draft(&[("0", ""), ("a.b/c-d_e", "x y"), (&key, &value)]);
        most.owner = Some("ä".repeat(128));
        most.priority = Some(1000);
        let queue = QueueSpec::from_draft(most.clone()).unwrap();
        assert_eq!((queue.priority, queue.labels.len()), (1000, 3));
        most.labels.extend((0..29).map(|number| (format!("n{number}"), String::new())));
        assert!(QueueSpec::from_draft(most.clone()).is_ok());
        most.labels.insert("one-more".to_owned(), String::new());
        assert_eq!(refused(most), ["queue.labels: 33 labels; allowed: at most 32"]);
    }

    #[test]
    fn everything_that_is_wrong_is_named_with_what_is_allowed() {
        for priority in [-1, 1001, i64::MAX, i64::MIN] {
            let wrong = QueueDraft { priority: Some(priority), ..QueueDraft::default() };
            assert_eq!(refused(wrong), [format!("queue.priority: got {priority}; allowed: 0 to 1000")]);
        }
        let long = "x".repeat(64);
        for key in ["", "Team", "-a", "a b", "ä", "a\n", long.as_str()] {
            let problems = refused(draft(&[(key, "v")]));
            assert!(
                problems[0].starts_with("queue.labels.") && problems[0].contains("allowed: 1 to 63"),
                "{problems:?}"
            );
            assert!(!problems[0].contains('\n'), "{problems:?}");
        }
        let mut both = draft(&[("a", "tab\t"), ("b", &long), ("c", "\u{2066}x")]);
        both.owner = Some("o".repeat(129));
        let problems = refused(both);
        assert_eq!(problems[0], "queue.owner: 129 characters; allowed: at most 128");
        assert!(problems[1].starts_with("queue.labels.a: has the control character '\\t'"), "{problems:?}");
        assert_eq!(problems[2], "queue.labels.b: 64 characters; allowed: at most 63");
        assert!(problems[3].starts_with("queue.labels.c: has U+2066"), "{problems:?}");
    }

    #[test]
    fn a_job_has_to_be_done_by_the_earlier_of_its_two_limits() {
        let of = |deadline: &str, max_seconds| {
            let draft = QueueDraft {
                deadline: Some(deadline.to_owned()),
                max_seconds: Some(max_seconds),
                ..QueueDraft::default()
            };
            QueueSpec::from_draft(draft).unwrap()
        };
        let hour = "1970-01-01T01:00:00Z";
        assert_eq!(of("", 0).ends_by(Some(5)), None);
        assert_eq!(of(hour, 0).ends_by(None), Some(3_600_000));
        assert_eq!(of(hour, 60).ends_by(None), Some(3_600_000));
        assert_eq!(of(hour, 60).ends_by(Some(500)), Some(60_500));
        assert_eq!(of(hour, 7200).ends_by(Some(500)), Some(3_600_000));
        for deadline in ["tomorrow", "2026-12-24", "2026-13-01T00:00:00Z", "2026-12-24T18:00:00+01:00"] {
            let wrong = QueueDraft { deadline: Some(deadline.to_owned()), ..QueueDraft::default() };
            assert!(refused(wrong)[0].starts_with("queue.deadline: got"), "{deadline}");
        }
        let wrong = QueueDraft { max_seconds: Some(-1), ..QueueDraft::default() };
        assert_eq!(refused(wrong), ["queue.max_seconds: got -1; allowed: 0 to 3155760000"]);
        let wrong =
            QueueDraft { worker_retries: Some(-1), error_retries: Some(1001), ..QueueDraft::default() };
        let allowed = "allowed: 0 to 1000";
        let said = [
            format!("queue.worker_retries: got -1; {allowed}"),
            format!("queue.error_retries: got 1001; {allowed}"),
        ];
        assert_eq!(refused(wrong), said);
    }

    #[test]
    fn a_request_is_read_back_from_its_own_job_file() {
        let mut queue = QueueSpec::from_draft(draft(&[("a.b/c", "x \"y\"")])).unwrap();
        queue.owner = "ada".to_owned();
        (queue.priority, queue.max_seconds) = (7, 60);
        (queue.worker_retries, queue.error_retries) = (0, 3);
        queue.deadline = "2026-12-24T18:00:00Z".to_owned();
        for queue in [queue, QueueSpec::default()] {
            let request = JobRequest { spec: job_with("", ""), queue };
            let text = request.to_toml().unwrap();
            assert_eq!(parse_job_request(&text, &[]).unwrap(), request, "{text}");
        }
    }
}
