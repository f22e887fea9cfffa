//! The queue's entry of a job. An absent message, an empty text and a missing number mean "not given".

use ringtune_shared::job::{QueueDraft, QueueSpec, SpecError};

use super::sections::given;
use crate::v1;

/// The checked entry of a message.
///
/// # Errors
/// All fields that are wrong, by their full names, as in "queue.labels.team".
pub fn queue_from_wire(wire: Option<v1::QueueSpec>) -> Result<QueueSpec, SpecError> {
    let wire = wire.unwrap_or_default();
    QueueSpec::from_draft(QueueDraft {
        owner: given(wire.owner),
        priority: Some(i64::from(wire.priority)),
        labels: wire.labels,
        deadline: given(wire.deadline),
        max_seconds: Some(wire.max_seconds),
        worker_retries: wire.worker_retries,
        error_retries: Some(wire.error_retries),
    })
}

/// An entry as a message.
pub fn queue_to_wire(queue: &QueueSpec) -> v1::QueueSpec {
    v1::QueueSpec {
        owner: queue.owner.clone(),
        labels: queue.labels.clone(),
        // At most 1000.
        priority: i32::try_from(queue.priority).unwrap_or(i32::MAX),
        deadline: queue.deadline.clone(),
        max_seconds: i64::try_from(queue.max_seconds).unwrap_or(i64::MAX),
        // Said where it is another number than usual: an entry that says nothing stays empty.
        worker_retries: (queue.worker_retries != QueueSpec::default().worker_retries)
            .then_some(i64::from(queue.worker_retries)),
        error_retries: i64::from(queue.error_retries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_goes_over_the_wire_unchanged() {
        let wire = v1::QueueSpec {
            owner: "ada".to_owned(),
            labels: [("project".to_owned(), "dicoo".to_owned())].into(),
            priority: 7,
            deadline: "2026-12-24T18:00:00Z".to_owned(),
            max_seconds: 60,
            worker_retries: Some(0),
            error_retries: 3,
        };
        let queue = queue_from_wire(Some(wire.clone())).unwrap();
        assert_eq!(
            (queue.owner.as_str(), queue.priority, queue.labels["project"].as_str()),
            ("ada", 7, "dicoo")
        );
        assert_eq!(queue_to_wire(&queue), wire);
        assert_eq!(queue_from_wire(None), Ok(QueueSpec::default()));
    }

    #[test]
    fn what_is_impossible_is_named() {
        let wrong = v1::QueueSpec { priority: i32::MIN, ..Default::default() };
        let error = queue_from_wire(Some(wrong)).unwrap_err();
        assert_eq!(error.violations[0].field, "queue.priority");
    }
}
