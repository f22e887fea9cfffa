//! Sweeps: `submit` of a job file that makes several jobs, and `sweep`.

use std::collections::BTreeSet;

use ringtune_proto::{
    convert::{job_state_name, queue_to_wire, spec_to_wire},
    v1::{self, JobReason, JobState, create_sweep_request::PointRequest},
};
use ringtune_shared::job::JobSpec;
use uuid::Uuid;

use super::{
    checked_job::CheckedJob,
    reach::client_of,
    resolve,
    table::{print_table, table},
    watch::watch_to_the_end,
};
use crate::{
    client::{Client, ClientError},
    error::Error,
    interrupt::Interrupts,
    job_file::SweepFile,
    order_arguments::SweepArguments,
    output::{Output, remark},
    references::short_id,
    sources,
    sweep_objects::SweepObject,
};

/// Submits all jobs of a sweep. What several of them have in common is checked and uploaded once.
pub(super) async fn send(
    client: &Client,
    sweep: SweepFile,
    output: Output,
    request_id: &str,
    interrupts: &Interrupts,
) -> Result<v1::Sweep, Error> {
    let stopped = || Error::Interrupted("stopped before the sweep was submitted".to_owned());
    // 1. Everything is checked before anything is uploaded.
    let mut checked: Vec<(String, CheckedJob)> = Vec::new();
    let mut points = Vec::with_capacity(sweep.points.len());
    for point in sweep.points {
        let places = sources::contents_of(&point.file.spec);
        let known = checked.iter().position(|(known, _)| *known == places);
        let (spec, queue) = (point.file.spec.clone(), queue_to_wire(&point.file.queue));
        let at = match known {
            Some(at) => at,
            None => {
                let mut job = tokio::select! {
                    job = CheckedJob::check(point.file, None) => job?,
                    () = interrupts.first() => return Err(stopped()),
                };
                job.complete_class(client, None, output, interrupts).await?;
                checked.push((places, job));
                checked.len() - 1
            }
        };
        points.push((at, spec, queue, point.settings));
    }
    // 2. The contents, and with them the jobs.
    let sending = async {
        let mut uploaded: Vec<JobSpec> = Vec::with_capacity(checked.len());
        for (_, job) in &checked {
            uploaded.push(job.upload(client).await?);
        }
        let points = points.into_iter().map(|(at, mut spec, queue, settings)| {
            sources::take_contents(&mut spec, &uploaded[at]);
            PointRequest { spec: Some(spec_to_wire(&spec)), queue: Some(queue), settings }
        });
        let wanted = v1::CreateSweepRequest {
            points: points.collect(),
            halving: sweep.halving,
            request_id: request_id.to_owned(),
            ..v1::CreateSweepRequest::default()
        };
        client.create_sweep(wanted).await.map_err(|source| match source {
            ClientError::NoAnswer { .. } | ClientError::Unreachable { .. } => {
                Error::MaybeSubmitted { source, request_id: request_id.to_owned() }
            }
            refused => refused.into(),
        })
    };
    tokio::select! {
        sweep = sending => sweep,
        () = interrupts.first() => Err(stopped()),
    }
}

/// Follows all jobs of a sweep until they have ended, and shows what came of them.
pub(super) async fn follow(
    client: &Client,
    sweep: &v1::Sweep,
    output: Output,
    interrupts: &Interrupts,
) -> Result<(), Error> {
    let jobs: Vec<Uuid> = sweep.points.iter().filter_map(|point| point.job_id.parse().ok()).collect();
    watch_to_the_end(client, &jobs, false, output, interrupts).await?;
    let id = sweep.sweep_id.parse().unwrap_or_default();
    let sweep = client.get_sweep(id).await?;
    show(&sweep, output)?;
    let is_fine = |point: &&v1::SweepPoint| {
        point.state() == JobState::Succeeded || point.reason_code() == JobReason::OutOfSweep
    };
    let others = sweep.points.iter().filter(|point| !is_fine(point)).count();
    match others {
        0 => Ok(()),
        _ => Err(Error::JobEnded(format!("{others} of {} jobs did not succeed", sweep.points.len()))),
    }
}

/// `ringtune sweep`.
pub(super) async fn sweep(arguments: SweepArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let id = resolve::sweep(&client, &arguments.sweep).await?;
    let sweep = match arguments.cancel {
        true => client.cancel_sweep(id, &arguments.reason).await?,
        false => client.get_sweep(id).await?,
    };
    show(&sweep, output)
}

fn show(sweep: &v1::Sweep, output: Output) -> Result<(), Error> {
    if output.is_json() {
        return Ok(output.json(&SweepObject::from(sweep))?);
    }
    // The options that differ; of a deleted job they are not known.
    let options: BTreeSet<&String> = sweep.points.iter().flat_map(|point| point.settings.keys()).collect();
    let mut header = vec!["POINT"];
    header.extend(options.iter().map(|option| option.as_str()));
    header.extend(["STATE", "STEP", "LOSS", "VALIDATION", "JOB"]);
    let mut table = table(&header);
    let loss = |loss: Option<f64>| loss.map(|loss| format!("{loss:.4}")).unwrap_or_default();
    for point in &sweep.points {
        let best = if point.job_id == sweep.best_job_id { " *" } else { "" };
        let mut row = vec![point.point.to_string()];
        row.extend(options.iter().map(|option| point.settings.get(*option).cloned().unwrap_or_default()));
        row.extend([
            state_of(point),
            format!("{}/{}", point.step, point.total_steps),
            loss(point.loss),
            loss(point.validation.as_ref().map(|validation| validation.loss)) + best,
            short_id(&point.job_id).to_owned(),
        ]);
        table.add_row(row);
    }
    print_table(output, &table)?;
    remark(&summary(sweep));
    Ok(())
}

/// "PAUSED, at its rung", "OUT", or the state alone.
fn state_of(point: &v1::SweepPoint) -> String {
    let state = job_state_name(point.state());
    match point.reason_code() {
        JobReason::WaitingForSweep => format!("{state}, at its rung"),
        JobReason::OutOfSweep => "OUT".to_owned(),
        _ => state.to_owned(),
    }
}

/// Which job is the best, and where the others will end.
fn summary(sweep: &v1::Sweep) -> String {
    let best = sweep.points.iter().find(|point| point.job_id == sweep.best_job_id);
    let mut lines = vec![match best.and_then(|best| Some((best, best.validation.as_ref()?))) {
        Some((best, validation)) => {
            let settings: Vec<String> =
                best.settings.iter().map(|(option, value)| format!("{option}={value}")).collect();
            let (loss, step) = (validation.loss, validation.step);
            format!("* point {}, {}: {loss:.4} after step {step}", best.point, settings.join(" "))
        }
        None => "no validation loss yet".to_owned(),
    }];
    let passed = sweep.points.iter().map(|point| point.passed).max().unwrap_or_default();
    let to_come = sweep.rungs.iter().skip(usize::try_from(passed).unwrap_or_default());
    let rungs: Vec<String> =
        to_come.map(|rung| format!("the best {} after step {}", rung.keep, rung.step)).collect();
    if !rungs.is_empty() {
        lines.push(format!("what goes on: {}", rungs.join(", ")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_job_and_the_rungs_to_come_are_said() {
        let validation = Some(v1::ValidationLoss { step: 40, loss: 1.25 });
        let settings = [("train.seed".to_owned(), "7".to_owned())].into();
        let point = v1::SweepPoint {
            point: 3,
            job_id: "x".into(),
            settings,
            validation,
            passed: 1,
            ..Default::default()
        };
        let rung = |step, keep| v1::Rung { step, keep };
        let mut sweep = v1::Sweep {
            points: vec![point],
            rungs: vec![rung(40, 2), rung(80, 1)],
            best_job_id: "x".into(),
            ..v1::Sweep::default()
        };
        let best = "* point 3, train.seed=7: 1.2500 after step 40";
        assert_eq!(summary(&sweep), format!("{best}\nwhat goes on: the best 1 after step 80"));
        sweep.points[0].passed = 2;
        assert_eq!(summary(&sweep), best);
        sweep.best_job_id.clear();
        assert_eq!(summary(&sweep), "no validation loss yet");
    }
}
