//! Which workers reach each other, as far as a job's rings had to find out. Nothing of it is stored: after a restart it is
//! found out again.

use std::collections::BTreeMap;

use ringtune_shared::ids::{Epoch, WorkerId};

use super::time::Time;

/// What is known of the links of a job's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Questions asked so far: each has a number of its own.
    pub looks: u64,
    /// What the members of the ring were asked when it broke.
    pub ring: Option<Look>,
    /// As `ring`, for each worker that is ready to join.
    pub joiners: BTreeMap<WorkerId, Look>,
    /// Who was left out because of a link.
    pub apart: BTreeMap<WorkerId, Apart>,
}

/// A question to several workers: which others they reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Its name.
    pub number: u64,
    /// Of the ring that it is about.
    pub epoch: Epoch,
    /// When it was asked.
    pub since: Time,
    /// Who was asked, and what came of it.
    pub asked: BTreeMap<WorkerId, Sight>,
}

/// What a worker says of its links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// Nothing yet.
    Asked,
    /// It lives, and looks.
    Looking,
    /// Whom it cannot reach, and why.
    Seen(BTreeMap<WorkerId, String>),
}

/// A worker that was left out of a job's ring because of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apart {
    /// How often of late.
    pub times: u32,
    /// It is not asked to join before.
    pub until: Time,
}

impl Links {
    /// Whether a worker is not to be asked to join yet.
    pub(super) fn keeps_apart(&self, worker: WorkerId, now: Time) -> bool {
        self.apart.get(&worker).is_some_and(|apart| now < apart.until)
    }

    /// What the members of this epoch's ring were asked.
    pub(super) fn of_ring(&self, epoch: Epoch) -> Option<&Look> {
        self.ring.as_ref().filter(|look| look.epoch == epoch)
    }

    /// What was asked about a joiner of this epoch's ring.
    pub(super) fn of_joiner(&self, worker: WorkerId, epoch: Epoch) -> Option<&Look> {
        self.joiners.get(&worker).filter(|look| look.epoch == epoch)
    }

    /// Takes an answer in. None: nobody asked this worker so.
    pub(super) fn answer(&mut self, number: u64, worker: WorkerId, sight: Sight) -> Option<About> {
        let about = |look: &mut Look, sight| {
            let before = (look.number == number).then(|| look.asked.get_mut(&worker)).flatten()?;
            // What was seen stands, should its announcement come late.
            if !matches!(before, Sight::Seen(_)) {
                *before = sight;
            }
            Some(())
        };
        if let Some(look) = &mut self.ring
            && about(look, sight.clone()).is_some()
        {
            return Some(About::Ring);
        }
        let mut joiners = self.joiners.iter_mut();
        joiners.find_map(|(joiner, look)| about(look, sight.clone()).map(|()| About::Joiner(*joiner)))
    }
}

/// What a question was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    Ring,
    Joiner(WorkerId),
}

impl Look {
    /// Why one of two workers cannot reach the other: who cannot, and in its words.
    pub(super) fn between(&self, one: WorkerId, other: WorkerId) -> Option<(WorkerId, &str)> {
        let why = |from, to| match self.asked.get(&from)? {
            Sight::Seen(broken) => Some((from, broken.get(&to)?.as_str())),
            _ => None,
        };
        why(one, other).or_else(|| why(other, one))
    }

    /// The first of the links that do not work: who cannot reach whom, and why.
    pub(super) fn first_broken(&self) -> Option<(WorkerId, WorkerId, &str)> {
        self.asked.iter().find_map(|(from, sight)| match sight {
            Sight::Seen(broken) => broken.first_key_value().map(|(to, why)| (*from, *to, why.as_str())),
            _ => None,
        })
    }

    /// Whether all who were asked have looked.
    pub(super) fn is_over(&self) -> bool {
        self.asked.values().all(|sight| matches!(sight, Sight::Seen(_)))
    }
}
