//! Plays a row and judges it.

use std::{
    fs,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1;

use super::{
    clean,
    measure::{Measured, measure},
    play::play,
    proxy::{Proxy, Way, Weather},
    row::{Act, Row},
    say,
    stage::Stage,
    story::{self, Story},
    verdict,
};
use crate::{Sandbox, process::finish, wait::until};

/// Lines of each log that a failure shows.
const SHOWN_LINES: usize = 60;
/// Timeout of an ended job's last events.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Time in which answers to the submit command are lost.
const REPLIES_LOST: Duration = Duration::from_millis(1_500);

/// Outcome of a row.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Passed.
    Passed(Measured),
    /// Skipped: this machine has no such environment.
    Skipped,
}

/// The seed of this run: RINGTUNE_CHAOS_SEED, or one of its own.
pub fn seed() -> u64 {
    let given = std::env::var("RINGTUNE_CHAOS_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    })
}

/// Plays a row; a failure has the logs of all daemons.
pub async fn run(row: &Row, seed: u64) -> Result<Outcome> {
    say(&format!("{}: RINGTUNE_CHAOS_SEED={seed}", row.name));
    let clean = clean::without_faults(row).await.context("the run without faults")?;
    let sandbox = Sandbox::new()?;
    let limit = Duration::from_secs(row.deadline);
    let played = tokio::time::timeout(limit, Box::pin(within(&sandbox, row, seed, &clean))).await;
    let played =
        played.unwrap_or_else(|_| Err(anyhow::anyhow!("it hangs: not over after {} s", row.deadline)));
    let outcome = played.with_context(|| format!("{}\nin row {}, seed {seed}", logs(&sandbox), row.name))?;
    if let Outcome::Passed(measured) = outcome {
        say(&format!("{}: {measured:?}", row.name));
    }
    sandbox.expect_no_process().await?;
    Ok(outcome)
}

async fn within(sandbox: &Sandbox, row: &Row, seed: u64, clean: &clean::Results) -> Result<Outcome> {
    // 1. The daemons and the job.
    let Some(mut stage) = Stage::set(sandbox, row, seed).await? else { return Ok(Outcome::Skipped) };
    let job_file = sandbox.write_job("job.toml", &clean::job(row)?)?;
    let job_id = if row.replies_are_lost {
        submit_without_replies(&mut stage, &job_file.to_string_lossy()).await?
    } else {
        stage.cluster.submit(&job_file).await?
    };
    let story = Story::follow(&stage.cluster.coordinator.door(), &job_id)?;
    // 2. The script.
    let mut first_fault = None;
    for act in &row.acts {
        if act.hurts() && first_fault.is_none() {
            first_fault = Some((Instant::now(), story.epoch()));
        }
        let played = Box::pin(play(&mut stage, &story, *act)).await;
        played.with_context(|| told(&story))?;
    }
    // 3. What came out.
    let job = ending(&story, Duration::from_secs(row.deadline)).await?;
    verdict::succeeded(&job).with_context(|| told(&story))?;
    let results = clean::results(sandbox, row, &stage.cluster.coordinator.door(), &job_id).await?;
    let events = story.events();
    verdict::judge(row, &job, &events, &results, clean).with_context(|| told(&story))?;
    let measured = first_fault.map(|(since, epoch)| measure(&events, &story.sights(), since, epoch));
    let measured = measured.transpose().with_context(|| told(&story))?.unwrap_or_default();
    verdict::needless(row, measured).with_context(|| told(&story))?;
    verdict::in_time(row, measured).with_context(|| told(&story))?;
    // Of faults at random, the first may be one that nobody has to notice: no time is taken from it.
    let mixed = row.acts.iter().any(|act| matches!(act, Act::Mixed(_)));
    let steps_lost = measured.steps_lost;
    Ok(Outcome::Passed(if mixed { Measured { steps_lost, ..Measured::default() } } else { measured }))
}

/// Waits until a job has ended, and all that it said has come.
pub(super) async fn ending(story: &Story, limit: Duration) -> Result<v1::Job> {
    let ended = || std::future::ready(Ok(story.job().filter(story::has_ended)));
    let job = until("the job ends", limit, ended).await?;
    let last = job.last_sequence;
    let all_told = || std::future::ready(Ok((story.told() >= last).then_some(())));
    until("the last event comes", LAST_WORDS, all_told).await?;
    Ok(job)
}

/// Submits while no answer comes back for a while, and then the connection breaks: the command asks again, and the
/// coordinator gets its requests twice.
async fn submit_without_replies(stage: &mut Stage<'_>, job_file: &str) -> Result<String> {
    let proxy = Proxy::start(stage.random.bits()).await?;
    proxy.forward_to(&stage.cluster.coordinator.grpc)?;
    let before = stage.random.pause(0..200);
    let back = Way { held: true, bytes_per_second: None };
    let mut command = stage.cluster.ringtune(&["submit", job_file])?;
    command.envs(stage.cluster.coordinator.door().behind(&proxy.address()).variables());
    let submitting = async { finish(&mut command).await?.expect_code(0) };
    let losing = async {
        // From CreateJob on: by then the pictures are there.
        let jobs = stage.cluster.jobs().await?;
        let created = || {
            let mut jobs = jobs.clone();
            async move {
                let listed = jobs.list_jobs(v1::ListJobsRequest::default()).await?.into_inner().jobs;
                Ok((!listed.is_empty()).then_some(()))
            }
        };
        tokio::time::sleep(before).await;
        proxy.set(Weather { back, ..Weather::default() });
        let _ = tokio::time::timeout(REPLIES_LOST, until("the job is there", REPLIES_LOST, created)).await;
        proxy.cut();
        proxy.set(Weather::default());
        anyhow::Ok(())
    };
    let (submitted, lost) = tokio::join!(submitting, losing);
    lost?;
    let listed = stage.cluster.jobs().await?.list_jobs(v1::ListJobsRequest::default()).await?.into_inner();
    ensure!(listed.jobs.len() == 1, "one submit made {} jobs", listed.jobs.len());
    Ok(submitted?.stdout.trim().to_owned())
}

/// The job's newest events that are no steps.
pub(super) fn told(story: &Story) -> String {
    let events = story.events();
    let lines = events.iter().rev().filter(|seen| story::step(seen).is_none()).take(20);
    let lines: Vec<String> = lines.map(|seen| format!("  {:?}", seen.event)).collect();
    format!("the job said:\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
}

/// The ends of all logs.
pub(super) fn logs(sandbox: &Sandbox) -> String {
    let mut shown = String::new();
    let entries = fs::read_dir(sandbox.folder()).into_iter().flatten().filter_map(Result::ok);
    let mut logs: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.extension() == Some("log".as_ref())).collect();
    logs.sort();
    for log in logs {
        let text = fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        shown.push_str(&format!("--- {}\n{}\n", log.display(), last.join("\n")));
    }
    shown
}
