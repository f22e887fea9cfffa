//! A row's script, line by line.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use ringtune_proto::v1::{self, JobReason, JobState, RankPhase};
use rustix::process::Signal;
use tokio::time::sleep;

use super::{
    node::{clock, descriptors, disk},
    proxy::{Proxy, Weather},
    row::{Act, Who},
    say,
    stage::{BrokenLink, Stage},
    story::{self, Story},
};
use crate::wait::until;

/// Waits for one moment, or does one thing.
pub(super) async fn play(stage: &mut Stage<'_>, story: &Story, act: Act) -> Result<()> {
    let context = || format!("{act:?}, at step {} of epoch {}", story.step(), story.epoch());
    if act.is_moment() { moment(stage, story, act).await } else { fault(stage, story, act).await }
        .with_context(context)
}

async fn moment(stage: &mut Stage<'_>, story: &Story, act: Act) -> Result<()> {
    match act {
        Act::Pause(between) => {
            sleep(stage.random.pause(between.from..between.to)).await;
            Ok(())
        }
        Act::Step(step) => comes(stage.patience, story, || story.step() >= step).await,
        Act::Preparing => comes(stage.patience, story, || state(story) == Some(JobState::Preparing)).await,
        Act::Reforming => {
            // It takes less than 100 ms, which a look at the job may miss; the line in its log stays.
            let now = || story.job().is_some_and(|job| reforms(&job));
            comes(stage.patience, story, || now() || says(story, "re-forming the ring")).await
        }
        Act::StepOfEpoch(epoch) => {
            let made = || {
                let events = story.events();
                events.iter().any(|seen| story::step(seen).is_some_and(|step| step.epoch >= epoch))
            };
            comes(stage.patience, story, made).await
        }
        Act::Member(who) => {
            let label = label_of(stage, story, who)?;
            let id = stage.cluster.daemon(&label)?.id.clone();
            comes(stage.patience, story, || members(story).iter().any(|member| member.worker_id == id)).await
        }
        Act::NoMember(who) => {
            let label = label_of(stage, story, who)?;
            let id = stage.cluster.daemon(&label)?.id.clone();
            ensure!(members(story).iter().all(|member| member.worker_id != id), "{label} is in the ring");
            Ok(())
        }
        Act::Members(count) => comes(stage.patience, story, || members(story).len() == count).await,
        Act::Says(text) => comes(stage.patience, story, || says(story, text)).await,
        Act::Waits(text) => {
            let job = story.job().context("a job")?.job_id;
            let says = || async {
                let reason = stage.cluster.job(&job).await?.state_reason;
                Ok(reason.contains(text).then_some(()))
            };
            until("the job does not say that it waits", stage.patience, says).await
        }
        Act::Uploading => {
            let folder = stage.sandbox.path("coordinator/contents/partial");
            comes(stage.patience, story, || has_bytes(&folder)).await
        }
        Act::File(who, text) => {
            let folder = stage.sandbox.path(&label_of(stage, story, who)?);
            comes(stage.patience, story, || has_file(&folder, text)).await
        }
        other => bail!("{other:?} is no moment"),
    }
}

/// Waits until it is true; fails at once when the job ends before.
async fn comes(patience: Duration, story: &Story, question: impl Fn() -> bool) -> Result<()> {
    let ask = || -> std::future::Ready<Result<Option<()>>> {
        let answer = if question() {
            Ok(Some(()))
        } else if let Some(job) = story.job().filter(story::has_ended) {
            Err(anyhow::anyhow!("the job is {:?} before that: {}", job.state(), job.state_reason))
        } else {
            Ok(None)
        };
        std::future::ready(answer)
    };
    until("the moment does not come", patience, ask).await
}

fn state(story: &Story) -> Option<JobState> {
    story.job().map(|job| job.state())
}

fn members(story: &Story) -> Vec<v1::ring::Member> {
    story.job().and_then(|job| job.ring).map(|ring| ring.members).unwrap_or_default()
}

fn reforms(job: &v1::Job) -> bool {
    let waits = |ring: &v1::Ring| ring.members.iter().any(|member| member.phase() == RankPhase::Waiting);
    job.reason_code() == JobReason::Reforming || job.ring.as_ref().is_some_and(waits)
}

/// Whether a line of the job's log has this text.
fn says(story: &Story, text: &str) -> bool {
    let events = story.events();
    events.iter().any(|seen| story::line(seen).is_some_and(|line| line.message.contains(text)))
}

fn has_file(folder: &Path, text: &str) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.into_iter().any(|entry| {
        entry.file_name().to_string_lossy().contains(text)
            || entry.file_type().is_ok_and(|kind| kind.is_dir()) && has_file(&entry.path(), text)
    })
}

/// Whether a file of the folder is not empty.
fn has_bytes(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.into_iter().any(|entry| entry.metadata().is_ok_and(|about| about.len() > 0))
}

/// The daemon's label.
fn label_of(stage: &Stage<'_>, story: &Story, who: Who) -> Result<String> {
    match who {
        Who::Coordinator => Ok(stage.cluster.coordinator.label.clone()),
        Who::Worker(number) => Ok(format!("worker-{number}")),
        Who::Rank(rank) => {
            let members = members(story);
            let member = members.get(rank).with_context(|| format!("the ring has no rank {rank}"))?;
            let mut workers = stage.cluster.workers.iter();
            let worker = workers.find(|worker| worker.id == member.worker_id);
            Ok(worker.context("a worker of this row")?.label.clone())
        }
    }
}

/// The number of a worker, from 1.
fn number_of(stage: &Stage<'_>, story: &Story, who: Who) -> Result<usize> {
    let label = label_of(stage, story, who)?;
    label.strip_prefix("worker-").and_then(|number| number.parse().ok()).context("a worker")
}

async fn fault(stage: &mut Stage<'_>, story: &Story, act: Act) -> Result<()> {
    match act {
        Act::Kill(who) => {
            let label = label_of(stage, story, who)?;
            stage.cluster.daemon(&label)?.end().await
        }
        Act::Terminate(who) => signal(stage, story, who, Signal::TERM),
        Act::Stop(who) => signal(stage, story, who, Signal::STOP),
        Act::Continue(who) => signal(stage, story, who, Signal::CONT),
        Act::StartAgain(who) => {
            let label = label_of(stage, story, who)?;
            stage.cluster.daemon(&label)?.ended().await?;
            stage.start_again(&label).await
        }
        Act::Add => stage.add_worker(&[]).await,
        Act::AddOther => stage.add_worker(&["--kernels-revision=1"]).await,
        Act::AddBuild(build) => stage.add_build(build).await,
        Act::TruncateCheckpoint | Act::FlipCheckpoint => {
            let file = newest_checkpoint(stage, story).await?;
            let mut bytes = fs::read(&file)?;
            let middle = bytes.len() / 2;
            if act == Act::TruncateCheckpoint {
                bytes.truncate(middle)
            } else {
                bytes[middle] ^= 1
            }
            Ok(fs::write(&file, bytes)?)
        }
        Act::RingLink(who, weather) => {
            stage.broken = Some(BrokenLink::Of(label_of(stage, story, who)?));
            on_ring_link(stage, story, who, |proxy| proxy.set(weather))
        }
        Act::CutRingLink(who) => on_ring_link(stage, story, who, Proxy::cut),
        Act::CutRingLinkAfter(who, bytes) => on_ring_link(stage, story, who, |proxy| proxy.cut_after(bytes)),
        Act::FlipBits(who, parts) => on_ring_link(stage, story, who, |proxy| proxy.flip(parts)),
        Act::CoordinatorLink(who, weather) => {
            let label = label_of(stage, story, who)?;
            stage.coordinator_links.get(&label).context("a proxy")?.set(weather);
            Ok(())
        }
        Act::CutCable(who) | Act::MendCable(who) => {
            let node = number_of(stage, story, who)?;
            let network = stage.network.as_ref().context("a network")?;
            if matches!(act, Act::CutCable(_)) { network.cut(node) } else { network.mend(node) }
        }
        Act::Lose(from, to) | Act::Find(from, to) => {
            let (from, to) = (number_of(stage, story, from)?, number_of(stage, story, to)?);
            let network = stage.network.as_ref().context("a network")?;
            if matches!(act, Act::Find(..)) {
                return network.find(from, to);
            }
            network.lose(from, to)?;
            stage.broken = Some(BrokenLink::Lossy { from, to });
            Ok(())
        }
        Act::Refuse(from, to) => {
            let port = stage.cluster.daemon(&label_of(stage, story, to)?)?.grpc.clone();
            let port = port.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).context("a port")?;
            let (from, to) = (number_of(stage, story, from)?, number_of(stage, story, to)?);
            stage.network.as_ref().context("a network")?.refuse(from, to, port)?;
            stage.broken = Some(BrokenLink::Refused { from, to, port });
            Ok(())
        }
        Act::MendLink => mend_link(stage),
        Act::FillDisk(who) | Act::CrowdDisk(who) | Act::FreeDisk(who) => {
            let label = label_of(stage, story, who)?;
            let folder = stage.sandbox.path(&label);
            let daemon = stage.cluster.daemon(&label)?;
            match act {
                Act::FillDisk(_) => disk::fill(daemon, &folder),
                Act::CrowdDisk(_) => disk::crowd(daemon, &folder, 4 << 20),
                _ => disk::free(daemon, &folder),
            }
        }
        Act::NoDescriptors(who) => {
            let label = label_of(stage, story, who)?;
            let had = descriptors::take(stage.cluster.daemon(&label)?)?;
            stage.descriptors.insert(label, had);
            Ok(())
        }
        Act::Descriptors(who) => {
            let label = label_of(stage, story, who)?;
            let had = stage.descriptors.remove(&label).context("they were not taken")?;
            descriptors::give(stage.cluster.daemon(&label)?, had)
        }
        Act::Clock(who, seconds) => clock::jump(stage.sandbox, &label_of(stage, story, who)?, seconds),
        Act::SetClocksRight => {
            let mut workers = stage.cluster.workers.iter();
            workers.try_for_each(|worker| clock::jump(stage.sandbox, &worker.label, 0))
        }
        Act::ByItself => Ok(()),
        Act::Mixed(seconds) => mixed(stage, story, Duration::from_secs(seconds)).await,
        other => bail!("{other:?} is no fault"),
    }
}

fn mend_link(stage: &mut Stage<'_>) -> Result<()> {
    let network = || stage.network.as_ref().context("a network");
    match stage.broken.take().context("no link is broken")? {
        BrokenLink::Of(label) => {
            stage.ring_links.get(&label).context("a proxy")?.set(Weather::default());
            Ok(())
        }
        BrokenLink::Lossy { from, to } => network()?.find(from, to),
        BrokenLink::Refused { from, to, port } => network()?.allow(from, to, port),
    }
}

/// Path of the job's newest checkpoint at the coordinator.
async fn newest_checkpoint(stage: &Stage<'_>, story: &Story) -> Result<PathBuf> {
    let job_id = story.job().context("a job")?.job_id;
    let listed = stage.cluster.files(&job_id).await?;
    let step = |name: &str| -> Option<u64> {
        name.strip_prefix("checkpoint-")?.strip_suffix(".safetensors")?.parse().ok()
    };
    let newest = listed.iter().filter_map(|artifact| Some((step(&artifact.name)?, &artifact.sha256))).max();
    let (_, hash) = newest.context("no checkpoint is kept")?;
    let folder = stage.sandbox.path("coordinator/contents/sha256").join(&hash[..2]);
    Ok(folder.join(hash))
}

fn signal(stage: &mut Stage<'_>, story: &Story, who: Who, signal: Signal) -> Result<()> {
    let label = label_of(stage, story, who)?;
    stage.cluster.signal(&label, signal)
}

fn on_ring_link(stage: &Stage<'_>, story: &Story, who: Who, change: impl Fn(&Proxy)) -> Result<()> {
    let label = label_of(stage, story, who)?;
    change(stage.ring_links.get(&label).context("a proxy")?);
    Ok(())
}

/// Random faults one after another, each mended after a while, until the time is over.
async fn mixed(stage: &mut Stage<'_>, story: &Story, long: Duration) -> Result<()> {
    let end = tokio::time::Instant::now() + long;
    while tokio::time::Instant::now() < end {
        let workers = stage.cluster.workers.len() as u64;
        let who = Who::Worker(1 + stage.random.within(0..workers) as usize);
        let between = stage.random.pause(100..3_500);
        let acts = random_fault(stage.random.bits(), who, stage.random.within(1..4_000));
        say(&format!("{:?}: {acts:?}, {} ms apart", who, between.as_millis()));
        for act in acts {
            boxed(stage, story, act).await?;
            sleep(between).await;
        }
    }
    Ok(())
}

/// `fault` and `mixed` call each other.
fn boxed<'a>(
    stage: &'a mut Stage<'_>,
    story: &'a Story,
    act: Act,
) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
    Box::pin(fault(stage, story, act))
}

/// A fault and what mends it.
fn random_fault(choice: u64, who: Who, bytes: u64) -> Vec<Act> {
    let fine = Weather::default();
    let late = Weather::late(Duration::from_millis(50), Duration::from_millis(50));
    match choice % 10 {
        0 | 1 => vec![Act::Kill(who), Act::StartAgain(who)],
        2 => vec![Act::Kill(Who::Coordinator), Act::StartAgain(Who::Coordinator)],
        3 => vec![Act::Stop(who), Act::Continue(who)],
        4 => vec![Act::RingLink(who, Weather::black_hole()), Act::RingLink(who, fine)],
        5 => vec![Act::CoordinatorLink(who, Weather::black_hole()), Act::CoordinatorLink(who, fine)],
        6 => vec![Act::CutRingLinkAfter(who, bytes)],
        7 => vec![Act::FlipBits(who, 1)],
        8 => vec![Act::Terminate(who), Act::StartAgain(who)],
        _ => vec![Act::RingLink(who, late), Act::RingLink(who, fine)],
    }
}
