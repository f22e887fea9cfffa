//! Stages of the benchmark, in order.

use std::{
    collections::HashSet,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use ringtune_proto::v1::{self, JobState};
use ringtune_tests::{
    Sandbox,
    swarm::{Coordinator, Options, Swarm, paced_job},
    wait::until,
};
use tokio::runtime::Handle;

use crate::{
    arguments::{Arguments, RANKS},
    load::{Plan, create_jobs},
    probes::{DiskProbe, cpu_seconds, memory},
    report::{Report, Stage},
};

/// For everything that is to happen soon, however slow the coordinator is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// A session without a sign of life for so long is over.
const HEARD_WITHIN: Duration = Duration::from_secs(15);
/// The rings never come to their end.
const ENDLESS: i64 = 1_000_000;

/// A run of the benchmark.
pub(crate) struct Bench<'a> {
    pub(crate) arguments: Arguments,
    sandbox: &'a Sandbox,
    pub(crate) swarm: Swarm,
    coordinator: Option<Coordinator<'a>>,
    /// The ids of the jobs that step all the time.
    pub(crate) rings: Vec<String>,
    pub(crate) report: Report,
    /// Most MB that a coordinator had in memory so far.
    pub(crate) peak: f64,
    /// Calls that failed so far.
    pub(crate) failed_calls: usize,
    /// Rings that a restart lost.
    pub(crate) lost_rings: usize,
    /// Workers whose heartbeats were not served, over all stages.
    pub(crate) unheard: usize,
}

impl<'a> Bench<'a> {
    /// Starts the coordinator, and the swarm on a runtime of its own.
    pub(crate) async fn start(
        arguments: Arguments,
        sandbox: &'a Sandbox,
        swarm_runtime: &Handle,
    ) -> Result<Self> {
        let variables = vec![
            ("RINGTUNE__LIMITS__QUEUED_JOBS", (arguments.jobs + arguments.rings).max(20_000).to_string()),
            ("RINGTUNE__LIMITS__WORKERS", arguments.workers.max(2000).to_string()),
        ];
        let coordinator = Coordinator::start(sandbox, variables).await?;
        let options = Options {
            coordinator: coordinator.address(),
            workers: arguments.workers,
            step_time: Duration::from_secs(1),
        };
        let swarm = Swarm::start(options, swarm_runtime);
        Ok(Self {
            arguments,
            sandbox,
            swarm,
            coordinator: Some(coordinator),
            rings: Vec::new(),
            report: Report::default(),
            peak: 0.0,
            failed_calls: 0,
            lost_rings: 0,
            unheard: 0,
        })
    }

    /// Runs all stages.
    pub(crate) async fn run(mut self) -> Result<Report> {
        Box::pin(self.form_rings()).await?;
        let mut created = 0;
        let mut limit = Duration::from_secs(self.arguments.limit);
        let mut marks = [self.arguments.jobs / 100, self.arguments.jobs / 10, self.arguments.jobs]
            .map(|mark| mark.max(1));
        marks.sort_unstable();
        for mark in marks {
            if mark > created {
                let start = Instant::now();
                self.stage(created, mark, start + limit).await?;
                limit = limit.saturating_sub(start.elapsed());
                created = mark;
            }
        }
        self.judge_stages();
        self.judge_rings().await?;
        self.let_jobs_through().await?;
        self.judge_swarm().await?;
        let Self { report, swarm, .. } = self;
        swarm.stop().await;
        Ok(report)
    }

    /// The one that runs.
    pub(crate) fn coordinator(&self) -> Result<&Coordinator<'a>> {
        self.coordinator.as_ref().context("the coordinator did not start again")
    }

    /// The workers connect, and rings of them begin to step.
    async fn form_rings(&mut self) -> Result<()> {
        let took = self.swarm.all_connected(PATIENCE).await?;
        say(&format!("{} workers connected in {:.1} s", self.arguments.workers, took.as_secs_f64()));
        let mut jobs = self.coordinator()?.jobs();
        for number in 0..self.arguments.rings {
            let job = paced_job(RANKS as i64, ENDLESS);
            self.rings.push(jobs.create(job, v1::QueueSpec::default(), format!("ring-{number}")).await?);
        }
        let all_step = || async {
            Ok(self.rings.iter().all(|job| self.swarm.ledger().last_step(job) > 0).then_some(()))
        };
        until("all rings step", PATIENCE, all_step).await?;
        say(&format!("{} rings of {RANKS} step", self.rings.len()));
        Ok(())
    }

    /// Creates jobs up to a number of them; then kills the coordinator and starts it again.
    async fn stage(&mut self, from: usize, to: usize, deadline: Instant) -> Result<()> {
        // 1. The load.
        let process = self.coordinator()?.process_id()?;
        let (start, cpu_before) = (Instant::now(), cpu_seconds(process)?);
        let disk = DiskProbe::start(self.sandbox.folder())?;
        let plan = Plan { from, to, in_flight: self.arguments.in_flight, deadline };
        let load = create_jobs(&self.coordinator()?.jobs(), plan).await;
        let (seconds, disk) = (start.elapsed().as_secs_f64(), disk.stop()?);
        let cores = (cpu_seconds(process)? - cpu_before) / seconds;
        say(&format!("{} jobs created in {seconds:.1} s, {to} in all", load.created));
        if load.created < to - from {
            self.report.notes.push(format!("only {} of {} jobs were created", load.created, to - from));
        }
        for (reason, count) in &load.failed {
            self.failed_calls += count;
            self.report.notes.push(format!("{count} times {reason}"));
        }
        // 2. What it left.
        self.unheard += self.unheard_workers().await?;
        let (now, peak) = memory(process)?;
        self.peak = self.peak.max(peak);
        // 3. The next start.
        let (ready_seconds, back_seconds) = self.kill_and_start().await?;
        let stage = Stage {
            jobs: to,
            create: load.create,
            list: load.list,
            disk,
            memory: now,
            cores,
            ready_seconds,
            back_seconds,
        };
        self.report.stages.push(stage);
        Ok(())
    }

    /// Seconds until the coordinator was ready again, and until all workers were back.
    async fn kill_and_start(&mut self) -> Result<(f64, Option<f64>)> {
        let old = self.coordinator.take().context("a coordinator")?;
        let (next, ready) = old.replace(&self.swarm).await?;
        let start = Instant::now();
        let workers = self.arguments.workers;
        let all_back = || async {
            Ok((self.swarm.connected() == workers && next.connected_workers().await? == workers)
                .then_some(()))
        };
        let back = until("all workers are back", PATIENCE, all_back).await;
        let back_seconds = back.is_ok().then(|| (ready + start.elapsed()).as_secs_f64());
        let running: HashSet<String> =
            next.jobs().in_state(JobState::Running).await?.into_iter().map(|job| job.job_id).collect();
        let lost = self.rings.iter().filter(|ring| !running.contains(*ring)).count();
        self.lost_rings = self.lost_rings.max(lost);
        self.coordinator = Some(next);
        say(&match back_seconds {
            Some(seconds) => format!(
                "killed and started again: ready in {:.2} s, all back in {seconds:.1} s",
                ready.as_secs_f64()
            ),
            None => format!(
                "killed and started again: only {} of {workers} workers back after {} s",
                self.swarm.connected(),
                PATIENCE.as_secs()
            ),
        });
        Ok((ready.as_secs_f64(), back_seconds))
    }

    /// Workers whose heartbeats of the time before now were not served, however long one waits.
    async fn unheard_workers(&self) -> Result<usize> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let start = Instant::now();
        loop {
            let workers = self.coordinator()?.workers().await?;
            let heard = workers.iter().filter(|worker| {
                let last = worker.last_heartbeat_time.as_ref();
                last.is_some_and(|time| time.seconds as f64 + f64::from(time.nanos) / 1e9 >= now)
            });
            let unheard = self.arguments.workers.saturating_sub(heard.count());
            if unheard == 0 || start.elapsed() > HEARD_WITHIN {
                return Ok(unheard);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Progress, for people.
pub(crate) fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "bench-control: {line}");
}
