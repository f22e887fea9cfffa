//! A job's place in its sweep.

use std::collections::BTreeMap;

use ringtune_shared::ids::SweepId;
use ringtune_shared::job::Rung;
use serde::{Deserialize, Serialize};

use super::record::{AnyFloat, StepRecord};

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepPlace {
    /// The sweep.
    pub sweep: SweepId,
    /// Counts the jobs of the sweep, from 1.
    pub point: u32,
    /// How many it has.
    pub points: u32,
    /// What is this job's own: values by their options' full names.
    pub settings: BTreeMap<String, String>,
    /// Where jobs of the sweep end early, by their steps; of all of its jobs the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rungs: Vec<Rung>,
    /// How many of these the job has behind it.
    #[serde(default)]
    pub passed: u32,
    /// Its validation losses at the rungs that it has come to, infinite where one is no number. Those that it has not passed are
    /// of one that waits for the other jobs, or was not good enough: while it leaves its ring it may come to more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<AnyFloat>,
}

impl SweepPlace {
    /// The next rung, if there is one.
    pub fn rung(&self) -> Option<Rung> {
        self.rungs.get(self.passed as usize).copied()
    }

    /// Its validation loss there, if it has come there.
    pub fn score(&self) -> Option<f64> {
        self.scores.get(self.passed as usize).map(|AnyFloat(loss)| *loss)
    }

    /// It after a new step, if that is at a rung.
    pub(super) fn after(&self, step: &StepRecord) -> Option<Self> {
        let rung = self.rungs.get(self.scores.len())?;
        let loss = step.validation_loss.map(|AnyFloat(loss)| loss).filter(|loss| !loss.is_nan());
        let mut place = (step.step >= rung.step).then(|| self.clone())?;
        place.scores.push(AnyFloat(loss.unwrap_or(f64::INFINITY)));
        Some(place)
    }
}
