//! What the commands print of sweeps as JSON.

use std::collections::BTreeMap;

use ringtune_proto::{
    convert::{job_reason_name, job_state_name},
    v1,
};
use serde::Serialize;

use crate::output::time_text;

/// A job's place in its sweep within its line of JSON.
#[derive(Debug, Serialize)]
pub struct SweepPlaceObject {
    sweep_id: String,
    point: i32,
    points: i32,
    settings: BTreeMap<String, String>,
    passed: i32,
}

impl From<&v1::SweepPlace> for SweepPlaceObject {
    fn from(place: &v1::SweepPlace) -> Self {
        let v1::SweepPlace { sweep_id, point, points, settings, passed, .. } = place.clone();
        Self { sweep_id, point, points, settings, passed }
    }
}

/// A validation loss.
#[derive(Debug, Serialize)]
pub struct ValidationObject {
    step: i64,
    loss: f64,
}

impl From<&v1::ValidationLoss> for ValidationObject {
    fn from(validation: &v1::ValidationLoss) -> Self {
        Self { step: validation.step, loss: validation.loss }
    }
}

/// A sweep as a line of JSON.
#[derive(Debug, Serialize)]
pub struct SweepObject {
    r#type: &'static str,
    sweep_id: String,
    name: String,
    owner: String,
    create_time: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rungs: Vec<RungObject>,
    points: Vec<PointObject>,
    best_job_id: String,
}

#[derive(Debug, Serialize)]
struct RungObject {
    step: i64,
    keep: i32,
}

#[derive(Debug, Serialize)]
struct PointObject {
    point: i32,
    job_id: String,
    name: String,
    settings: BTreeMap<String, String>,
    state: &'static str,
    reason_code: &'static str,
    state_reason: String,
    step: i64,
    total_steps: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation: Option<ValidationObject>,
    passed: i32,
}

impl From<&v1::Sweep> for SweepObject {
    fn from(sweep: &v1::Sweep) -> Self {
        let rung = |rung: &v1::Rung| RungObject { step: rung.step, keep: rung.keep };
        Self {
            r#type: "sweep",
            sweep_id: sweep.sweep_id.clone(),
            name: sweep.name.clone(),
            owner: sweep.owner.clone(),
            create_time: time_text(sweep.create_time.as_ref()),
            rungs: sweep.rungs.iter().map(rung).collect(),
            points: sweep.points.iter().map(PointObject::from).collect(),
            best_job_id: sweep.best_job_id.clone(),
        }
    }
}

impl From<&v1::SweepPoint> for PointObject {
    fn from(point: &v1::SweepPoint) -> Self {
        Self {
            point: point.point,
            job_id: point.job_id.clone(),
            name: point.name.clone(),
            settings: point.settings.clone(),
            state: job_state_name(point.state()),
            reason_code: job_reason_name(point.reason_code()),
            state_reason: point.state_reason.clone(),
            step: point.step,
            total_steps: point.total_steps,
            loss: point.loss,
            validation: point.validation.as_ref().map(ValidationObject::from),
            passed: point.passed,
        }
    }
}
