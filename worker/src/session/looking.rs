//! Looks which other workers are reached, for a coordinator that asks.

use std::collections::VecDeque;

use ringtune_proto::v1;
use ringtune_shared::{ids::JobId, ring::Member};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::task::AbortOnDropHandle;

use crate::ring::Rings;

/// Questions that are looked into at the same time. Beyond them the oldest gets no answer.
const MOST_QUESTIONS: usize = 16;

/// The question which workers are reached.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    /// For which job.
    pub(super) job: JobId,
    /// Its name.
    pub(super) look: u64,
    /// Workers to reach.
    pub(super) workers: Vec<Member>,
}

/// Questions in progress.
pub(super) struct Looking {
    rings: Rings,
    running: VecDeque<AbortOnDropHandle<()>>,
    seen: mpsc::Sender<v1::LinksSeen>,
}

impl Looking {
    /// Nothing yet, and where the answers come.
    pub(super) fn new(rings: Rings) -> (Self, mpsc::Receiver<v1::LinksSeen>) {
        let (seen, answers) = mpsc::channel(MOST_QUESTIONS);
        (Self { rings, running: VecDeque::new(), seen }, answers)
    }

    /// Begins to look; what is said at once.
    pub(super) fn begin(&mut self, question: Question) -> v1::LinksSeen {
        let Question { job, look, workers } = question;
        let answer = move |looking, broken| v1::LinksSeen { job_id: job.to_string(), look, looking, broken };
        self.running.retain(|running| !running.is_finished());
        if self.running.len() >= MOST_QUESTIONS {
            self.running.pop_front();
        }
        let (rings, seen) = (self.rings.clone(), self.seen.clone());
        let looking = tokio::spawn(async move {
            let broken = broken(&rings, workers).await;
            // The asker is gone with the loop.
            let _ = seen.send(answer(false, broken)).await;
        });
        self.running.push_back(AbortOnDropHandle::new(looking));
        answer(true, Vec::new())
    }
}

/// The workers that are not reached, all tried concurrently.
async fn broken(rings: &Rings, workers: Vec<Member>) -> Vec<v1::BrokenLink> {
    let mut looks = JoinSet::new();
    for Member { worker, address } in workers {
        let rings = rings.clone();
        looks.spawn(async move {
            let looked = rings.look_at(worker, &address).await;
            let worker_id = worker.to_string();
            looked.err().map(|reason| v1::BrokenLink { worker_id, reason: format!("{address}: {reason}") })
        });
    }
    looks.join_all().await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wire::{Heard, MOST_LOOKED_AT, event};

    #[test]
    fn a_question_names_workers_but_not_too_many() {
        let ask = |workers| {
            let asked = v1::LookAtLinks { job_id: JobId::new().to_string(), look: 3, workers };
            event(v1::SessionResponse { message: Some(v1::session_response::Message::LookAtLinks(asked)) })
        };
        let worker_id = ringtune_shared::ids::WorkerId::new().to_string();
        let member = v1::RingMember { worker_id, address: "10.0.0.1:7080".to_owned() };
        let Ok(Heard::Question(question)) = ask(vec![member.clone()]) else { panic!("not read") };
        assert_eq!((question.look, question.workers[0].address.as_str()), (3, "10.0.0.1:7080"));
        assert!(ask(vec![member; MOST_LOOKED_AT + 1]).is_err());
        assert!(ask(vec![v1::RingMember::default()]).is_err());
    }
}
