//! Final counts, compared with the bounds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::swarm::JobList;

use crate::{
    load::for_each_job,
    probes::Samples,
    report::{
        Bound::{AtLeast, AtMost, None as Shown},
        Report, Stage,
    },
    stages::{Bench, PATIENCE, say},
};

/// Of the jobs that passed through, the steps of so many are looked up.
const SAMPLE: usize = 200;

impl Bench<'_> {
    /// Calls, memory and restarts, over all stages.
    pub(crate) fn judge_stages(&mut self) {
        let Report { stages, .. } = &self.report;
        let all = |samples: fn(&Stage) -> &Samples| {
            let mut all = Samples::default();
            stages.iter().for_each(|stage| all.extend(samples(stage)));
            all
        };
        let (create, list) = (all(|stage| &stage.create), all(|stage| &stage.list));
        let disk = all(|stage| &stage.disk);
        let most = |of: fn(&Stage) -> f64| stages.iter().map(of).fold(0.0, f64::max);
        let cores = most(|stage| stage.cores);
        let ready = most(|stage| stage.ready_seconds);
        let back = most(|stage| stage.back_seconds.unwrap_or(f64::INFINITY));

        let report = &mut self.report;
        report.add("fdatasync p50", disk.quantile(0.5), "ms", Shown);
        report.add("fdatasync p99", disk.quantile(0.99), "ms", Shown);
        report.add("CreateJob p50", create.quantile(0.5), "ms", Shown);
        report.add("CreateJob p99", create.quantile(0.99), "ms", AtMost(20.0 + 2.0 * disk.quantile(0.99)));
        report.add("ListJobs p50", list.quantile(0.5), "ms", Shown);
        report.add("ListJobs p99", list.quantile(0.99), "ms", AtMost(20.0));
        report.add("calls that failed", self.failed_calls as f64, "", AtMost(0.0));
        report.add("coordinator's memory, at most", self.peak, "MB", AtMost(500.0));
        report.add("coordinator's CPU, at most", cores, "cores", Shown);
        report.add("killed: ready again", ready, "s", AtMost(2.0));
        report.add("killed: all workers back", back, "s", AtMost(15.0));
        report.add("killed: running jobs lost", self.lost_rings as f64, "", AtMost(0.0));
    }

    /// Stops the rings' steps and compares what they reported with what is stored.
    pub(crate) async fn judge_rings(&mut self) -> Result<()> {
        self.swarm.hold_paced_jobs();
        let start = Instant::now();
        // The last ones are on their way.
        let lost = loop {
            let lost = self.lost_steps(&self.rings).await?;
            if lost == 0 || start.elapsed() > PATIENCE / 3 {
                break lost;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let steps: i64 = self.rings.iter().map(|ring| self.swarm.ledger().last_step(ring)).sum();
        say(&format!("the rings made {steps} steps"));
        self.report.add("step reports of the rings", steps as f64, "", Shown);
        self.report.add("step reports that were lost", lost as f64, "", AtMost(0.0));
        Ok(())
    }

    async fn lost_steps(&self, ids: &[String]) -> Result<i64> {
        let ledger = self.swarm.ledger();
        let lost = |mut jobs: JobList, id: String| {
            let ledger = Arc::clone(&ledger);
            async move { jobs.lost_steps(&id, &ledger).await }
        };
        Ok(for_each_job(&self.coordinator()?.jobs(), ids, lost).await?.into_iter().sum())
    }

    /// Frees the workers, and counts the jobs that pass through.
    pub(crate) async fn let_jobs_through(&mut self) -> Result<()> {
        let before = self.swarm.counts().finished_jobs;
        let (start, limit) = (Instant::now(), Duration::from_secs(self.arguments.seconds));
        // A job that cannot be cancelled was lost before, and counted.
        let cancel = |mut jobs: JobList, id| async move { Ok(jobs.cancel(id).await.is_ok()) };
        for_each_job(&self.coordinator()?.jobs(), &self.rings, cancel).await?;
        let (mut last, mut through) = (start.elapsed(), 0);
        while start.elapsed() < limit && before + through < self.arguments.jobs as u64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = self.swarm.counts().finished_jobs - before;
            if now > through {
                (last, through) = (start.elapsed(), now);
            }
        }
        // A trickle that dried up is as slow as the time it was given.
        let seconds = if before + through < self.arguments.jobs as u64 { start.elapsed() } else { last };
        say(&format!("{through} jobs passed through in {:.1} s", seconds.as_secs_f64()));
        let rate = through as f64 / seconds.as_secs_f64();
        self.report.add("jobs passing through a second", rate, "", AtLeast(50.0));
        Ok(())
    }

    /// Judges the swarm and its jobs.
    pub(crate) async fn judge_swarm(&mut self) -> Result<()> {
        let mut jobs = self.coordinator()?.jobs();
        let failed = jobs.in_state(JobState::Failed).await?;
        let passed: Vec<String> = jobs
            .in_state(JobState::Succeeded)
            .await?
            .into_iter()
            .take(SAMPLE)
            .map(|job| job.job_id)
            .collect();
        let lost = self.lost_steps(&passed).await?;
        ensure!(lost == 0, "{lost} step reports are missing in jobs that succeeded");
        let counts = self.swarm.counts();
        let report = &mut self.report;
        report.add("jobs that failed", failed.len() as f64, "", AtMost(0.0));
        report.add("heartbeats sent", counts.heartbeats as f64, "", Shown);
        report.add("workers whose heartbeats were not served", self.unheard as f64, "", AtMost(0.0));
        report.add("sessions ended whose worker spoke", counts.lost_sessions() as f64, "", AtMost(0.0));
        if let Some(job) = failed.first() {
            report.notes.push(format!("a job failed: {}", job.state_reason));
        }
        let ended = [("spoke", &counts.ended_that_spoke), ("was silent", &counts.ended_silent)];
        for (what, reasons) in ended {
            for (reason, count) in reasons {
                report.notes.push(format!("{count} sessions ended whose worker {what}: {reason}"));
            }
        }
        report.counts = counts;
        Ok(())
    }
}
