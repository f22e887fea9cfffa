//! What files of a job's results say of the job.

use serde_json::{Map, Value};

use crate::{
    fault::Refusal,
    rank::{Error, JOB_FILE},
    session::Assignment,
};

/// The job as far as it decides the learned bits, with what it is computed in. `sections`: those that do not, as where something lies;
/// `options`: those of section `of` that do not.
///
/// # Errors
/// None but the writer's.
pub(crate) fn deciding_job(
    assignment: &Assignment,
    sections: &[&str],
    of: &str,
    options: &[&str],
) -> Result<Map<String, Value>, Error> {
    let refused = |problem: String| Refusal::of(JOB_FILE, problem);
    let job = serde_json::to_value(&assignment.spec).map_err(|error| refused(error.to_string()))?;
    let Value::Object(mut job) = job else { return Err(refused("it is no object".to_owned()).into()) };
    sections.iter().for_each(|section| drop(job.remove(*section)));
    if let Some(Value::Object(section)) = job.get_mut(of) {
        options.iter().for_each(|option| drop(section.remove(*option)));
    }
    job.insert("precision".to_owned(), Value::from(assignment.precision.name()));
    Ok(job)
}
