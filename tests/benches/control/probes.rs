//! Measurements beside the calls: the disk, and the coordinator's process.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// Clock ticks a second in /proc, on every Linux.
const TICKS: f64 = 100.0;

/// Times of one kind of call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(pub(crate) Vec<Duration>);

impl Samples {
    /// The time within which that share of the calls was answered (nearest rank), in milliseconds; 0: no call.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    }

    /// Takes the others in.
    pub(crate) fn extend(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }
}

/// Writes a page and syncs it, twenty times a second, until it is stopped.
#[derive(Debug)]
pub(crate) struct DiskProbe {
    /// Dropped, it ends the thread.
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Result<Samples>>,
}

impl DiskProbe {
    /// Starts it on a file in `folder`. The file has its size from the start, as a database's log has.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        const PAGE: usize = 4096;
        const PAGES: u64 = 256;
        let path = folder.join("disk-probe");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        for page in 0..PAGES {
            file.write_all_at(&[1; PAGE], page * PAGE as u64)?;
        }
        file.sync_all()?;
        let (stop, stopped) = mpsc::channel();
        let probe = move || {
            let mut samples = Samples::default();
            let mut page = 0;
            while stopped.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
                let start = Instant::now();
                file.write_all_at(&[2; PAGE], page * PAGE as u64)?;
                file.sync_data()?;
                samples.0.push(start.elapsed());
                page = (page + 1) % PAGES;
            }
            Ok(samples)
        };
        Ok(Self { stop, thread: std::thread::spawn(probe) })
    }

    /// Stops it and returns how long the syncs took.
    pub(crate) fn stop(self) -> Result<Samples> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow::anyhow!("the disk probe panicked"))?
    }
}

/// MB that a process has in memory now, and at most had.
pub(crate) fn memory(process: u32) -> Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).context("the coordinator ended")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("a memory size")?;
        let kilobytes: f64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse()?;
        anyhow::Ok(kilobytes / 1024.0)
    };
    Ok((field("VmRSS")?, field("VmHWM")?))
}

/// CPU seconds that a process has used.
pub(crate) fn cpu_seconds(process: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).context("the coordinator ended")?;
    // The name before it, in parentheses, may hold anything. User and system time are fields 14 and 15.
    let (_, fields) = stat.rsplit_once(')').context("a process name")?;
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS)
}
