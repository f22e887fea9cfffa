//! Many small jobs on workers of two numerics classes, and a fault every 20 seconds.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use tokio::{
    task::JoinSet,
    time::{sleep, sleep_until},
};

use crate::{
    Door, Sandbox,
    chaos::{
        clean::{self, Results},
        proxy::Weather,
        random::Random,
        results::{About, heading},
        row::{Ground, Row},
        runner::{ending, logs, told},
        say,
        stage::Stage,
        story::{self, Story},
        verdict,
    },
    daemon::WORKER,
    job::text,
    process::finish,
};

/// Workers on the fake engine.
const FAKE: usize = 8;
/// Workers with libtorch.
const REAL: usize = 2;
/// Ranks that a job wants; it is content with one.
const RANKS: usize = 4;
/// Steps of a job.
const STEPS: i64 = 400;
/// Jobs at once: one more than there are rings, so that nobody is idle for long.
const STREAMS: usize = 4;
/// From fault to fault.
const EVERY: Duration = Duration::from_secs(20);
/// Until all streams are at work.
const WARMING_UP: Duration = Duration::from_secs(10);

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Minutes with faults.
    pub minutes: u64,
    /// Number of each kind, by name.
    pub faults: Vec<(&'static str, usize)>,
    /// Jobs that ended on workers with the fake engine, and on those with libtorch.
    pub jobs: (usize, usize),
    /// Steps stored in a second without faults.
    pub calm_rate: f64,
    /// Rate with faults.
    pub rate: f64,
}

/// Faults for so many minutes, after a fifth of that without any.
///
/// # Errors
/// A job did not end, or ended with other bytes than without faults.
pub async fn play(minutes: u64, seed: u64) -> Result<Kept> {
    // 1. What the job comes to on each kind of worker.
    let fake = Row { deadline: 600, ..Row::new("random", RANKS).steps(STEPS).on(Ground::Proxies) };
    let real = Row { program: WORKER, ..fake.clone() };
    let clean = [clean::without_faults(&fake).await?, clean::without_faults(&real).await?];
    // 2. The workers, and jobs one after the other.
    let sandbox = Arc::new(Sandbox::new()?);
    let all = Row { workers: vec![fake.workers[0].clone(); FAKE], ..fake.clone() };
    let mut stage = Stage::set(&sandbox, &all, seed).await?.context("loopback")?;
    for _ in 0..REAL {
        stage.add_worker_of(WORKER, &[]).await?;
    }
    stage.cluster.wait_for_idle(FAKE + REAL).await?;
    let real_workers: BTreeSet<String> =
        stage.cluster.workers.iter().skip(FAKE).map(|worker| worker.id.clone()).collect();
    let jobs = Arc::new(Jobs {
        sandbox: Arc::clone(&sandbox),
        coordinator: stage.cluster.coordinator.door(),
        job_file: text(&sandbox.write_job("job.toml", &clean::job(&fake)?)?),
        row: fake,
        clean,
        real_workers,
        over: AtomicBool::new(false),
    });
    let mut streams = JoinSet::new();
    for number in 1..=STREAMS {
        streams.spawn(Arc::clone(&jobs).one_after_the_other(number));
    }
    // 3. The same without faults and with them.
    sleep(WARMING_UP).await;
    let calm_from = Instant::now();
    sleep(Duration::from_secs(60 * minutes.div_ceil(5))).await;
    let faults_from = Instant::now();
    let end = faults_from + Duration::from_secs(60 * minutes);
    let faults = Box::pin(faults(&mut stage, end, &jobs.over)).await;
    let faults = faults.with_context(|| format!("{}\nseed {seed}", logs(&sandbox)))?;
    let faults_to = Instant::now();
    jobs.over.store(true, Ordering::Relaxed);
    // 4. What came out.
    let mut done = Vec::new();
    while let Some(stream) = streams.join_next().await {
        done.extend(stream?.with_context(|| format!("{}\nseed {seed}", logs(&sandbox)))?);
    }
    let rate = |from: Instant, to: Instant| {
        let steps = done.iter().flat_map(|job| &job.steps).filter(|at| (from..to).contains(*at)).count();
        steps as f64 / to.duration_since(from).as_secs_f64()
    };
    let on_real = done.iter().filter(|job| job.real).count();
    Ok(Kept {
        minutes,
        faults,
        jobs: (done.len() - on_real, on_real),
        calm_rate: rate(calm_from, faults_from),
        rate: rate(faults_from, faults_to),
    })
}

/// State shared by all streams of jobs.
struct Jobs {
    sandbox: Arc<Sandbox>,
    coordinator: Door,
    job_file: String,
    row: Row,
    clean: [Results; 2],
    real_workers: BTreeSet<String>,
    /// No more jobs: the time is over, or one of them went wrong.
    over: AtomicBool,
}

/// A job that ended as it should.
struct Done {
    /// On workers with libtorch.
    real: bool,
    /// When its steps were stored.
    steps: Vec<Instant>,
}

impl Jobs {
    async fn one_after_the_other(self: Arc<Self>, stream: usize) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let ended = Box::pin(self.one()).await;
            if ended.is_err() {
                self.over.store(true, Ordering::Relaxed);
            }
            done.push(ended.with_context(|| format!("job {} of stream {stream}", done.len() + 1))?);
        }
        Ok(done)
    }

    async fn one(&self) -> Result<Done> {
        let mut submit = self.sandbox.ringtune(&["submit", &self.job_file])?;
        let submitted = finish(submit.envs(self.coordinator.variables())).await?.expect_code(0)?;
        let job_id = submitted.stdout.trim();
        let story = Story::follow(&self.coordinator, job_id)?;
        let judged = self.judge(&story, job_id).await;
        judged.with_context(|| format!("job {job_id}, {}", told(&story)))
    }

    async fn judge(&self, story: &Story, job_id: &str) -> Result<Done> {
        let job = ending(story, Duration::from_secs(self.row.deadline)).await?;
        verdict::succeeded(&job)?;
        // Those of its last ring decided the bits: only a job that no ring had begun goes to another class.
        let real = !story.members().is_disjoint(&self.real_workers);
        let [fake, torch] = &self.clean;
        let results = clean::results(&self.sandbox, &self.row, &self.coordinator, job_id).await?;
        let events = story.events();
        verdict::judge(&self.row, &job, &events, &results, if real { torch } else { fake })?;
        let steps = events.iter().filter(|seen| story::step(seen).is_some()).map(|seen| seen.at);
        Ok(Done { real, steps: steps.collect() })
    }
}

/// A fault of a daemon that is mended after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Freeze,
    CutFromRing,
    CutFromCoordinator,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kills",
            Self::Freeze => "freezes",
            Self::CutFromRing => "cuts from the ring",
            Self::CutFromCoordinator => "cuts from the coordinator",
        }
    }
}

/// A daemon and what happens to it. The coordinator is killed and frozen, too.
fn choose(random: &mut Random) -> (String, Fault) {
    let worker = random.within(0..(FAKE + REAL + 1) as u64);
    match (worker, random.within(0..6)) {
        (0, 0..4) => ("coordinator".to_owned(), Fault::Kill),
        (0, _) => ("coordinator".to_owned(), Fault::Freeze),
        (number, 0 | 1) => (format!("worker-{number}"), Fault::Kill),
        (number, 2 | 3) => (format!("worker-{number}"), Fault::Freeze),
        (number, 4) => (format!("worker-{number}"), Fault::CutFromRing),
        (number, _) => (format!("worker-{number}"), Fault::CutFromCoordinator),
    }
}

async fn faults(
    stage: &mut Stage<'_>,
    end: Instant,
    over: &AtomicBool,
) -> Result<Vec<(&'static str, usize)>> {
    let mut next = tokio::time::Instant::now();
    let mut done = Vec::new();
    while Instant::now() < end && !over.load(Ordering::Relaxed) {
        let (label, fault) = choose(&mut stage.random);
        let lasts = stage.random.pause(500..8_000);
        say(&format!("{fault:?}: {label}, for {} ms", lasts.as_millis()));
        strike(stage, &label, fault, lasts).await.with_context(|| format!("{fault:?}, {label}"))?;
        done.push(fault);
        next += EVERY;
        sleep_until(next).await;
    }
    let kinds: BTreeSet<Fault> = done.iter().copied().collect();
    let count = |kind| done.iter().filter(|fault| **fault == kind).count();
    Ok(kinds.into_iter().map(|kind| (kind.name(), count(kind))).collect())
}

async fn strike(stage: &mut Stage<'_>, label: &str, fault: Fault, lasts: Duration) -> Result<()> {
    let (hole, fine) = (Weather::black_hole(), Weather::default());
    match fault {
        Fault::Kill => {
            stage.cluster.daemon(label)?.end().await?;
            sleep(lasts).await;
            stage.start_again(label).await
        }
        Fault::Freeze => {
            stage.cluster.signal(label, Signal::STOP)?;
            sleep(lasts).await;
            stage.cluster.signal(label, Signal::CONT)
        }
        Fault::CutFromRing | Fault::CutFromCoordinator => {
            let links =
                if fault == Fault::CutFromRing { &stage.ring_links } else { &stage.coordinator_links };
            let link = links.get(label).context("a proxy")?;
            link.set(hole);
            sleep(lasts).await;
            link.set(fine);
            Ok(())
        }
    }
}

impl Kept {
    /// Of a hundred steps without faults so many are made with them.
    pub fn percent(&self) -> f64 {
        100.0 * self.rate / self.calm_rate
    }

    /// Whether there was something to see.
    ///
    /// # Errors
    /// No job ended on one kind of workers, or no step was made.
    pub fn judge(&self) -> Result<()> {
        let (fake, real) = self.jobs;
        ensure!(fake > 0 && real > 0, "{fake} jobs ended on fake workers, {real} on those with libtorch");
        ensure!(self.calm_rate > 0.0 && self.rate > 0.0, "no step was made");
        Ok(())
    }
}

/// Its section of tests/chaos/RESULTS.md.
pub fn section(about: &About, kept: &Kept) -> String {
    let count: usize = kept.faults.iter().map(|(_, count)| count).sum();
    let kinds: Vec<String> = kept.faults.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let what = format!(
        "{FAKE} fake workers and {REAL} with libtorch, {STREAMS} jobs of {STEPS} steps at a time, for {} minutes a \
         fault every {} s",
        kept.minutes,
        EVERY.as_secs()
    );
    let mut text = heading(about, "Faults at random", &what);
    let (fake, real) = kept.jobs;
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{count} faults ({}). {} jobs ended, {fake} on fake workers and {real} with libtorch, all with the bytes of \
         runs without faults. Steps stored in a second: {:.1} with faults, {:.1} without, so {:.0} % of the \
         throughput was kept.",
        kinds.join(", "),
        fake + real,
        kept.rate,
        kept.calm_rate,
        kept.percent()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::results::about;

    #[test]
    fn every_daemon_and_every_fault_is_met() {
        let mut random = Random::new(3);
        let met: BTreeSet<(String, Fault)> = (0..2_000).map(|_| choose(&mut random)).collect();
        // Four faults of each worker, two of the coordinator.
        assert_eq!(met.len(), 4 * (FAKE + REAL) + 2, "{met:?}");
        assert!(met.contains(&("worker-10".to_owned(), Fault::CutFromRing)));
    }

    #[test]
    fn the_throughput_kept_is_shown_and_nothing_at_all_is_no_result() {
        let kept = Kept {
            minutes: 30,
            faults: vec![("kills", 40), ("freezes", 20)],
            jobs: (50, 9),
            calm_rate: 40.0,
            rate: 30.0,
        };
        let text = section(&about(), &kept);
        assert!(
            text.contains("60 faults (40 kills, 20 freezes). 59 jobs ended, 50 on fake workers and 9"),
            "{text}"
        );
        assert!(text.contains("30.0 with faults, 40.0 without, so 75 % of the"), "{text}");
        assert!(kept.judge().is_ok());
        assert!(Kept { jobs: (50, 0), ..kept.clone() }.judge().is_err());
        assert!(Kept { rate: 0.0, ..kept }.judge().is_err());
    }
}
