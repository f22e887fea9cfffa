//! A link that can be made bad: a TCP proxy on loopback, which is changed while it runs.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use rustix::net::sockopt::set_socket_linger;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use super::random::Random;

/// Bytes that are read at once.
const PART_BYTES: usize = 16 * 1024;
/// Parts that are under way at most in one direction; what they hold back, the sender keeps.
const MOST_PARTS: usize = 64;
/// Bytes that pass at once with a limited bandwidth.
const SLICE_BYTES: usize = 1024;
/// Bytes of a connection's beginning.
const BEGINNING: usize = 4096;
/// `cut_after` when no cut is planned.
const NEVER: u64 = u64::MAX;

/// Treatment of the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// Nothing passes, and the connection stays; what was held passes later.
    pub held: bool,
    /// Bandwidth in bytes per second; None: unlimited.
    pub bytes_per_second: Option<u64>,
}

/// Treatment of a link until it is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weather {
    /// Every byte comes so much later.
    pub delay: Duration,
    /// And up to so much later than that, at random; the order stays.
    pub jitter: Duration,
    /// From who dialled to who listens.
    pub forth: Way,
    /// The answers.
    pub back: Way,
    /// Every connection is reset, those that come too.
    pub resets: bool,
}

impl Weather {
    /// Nothing passes in either direction.
    pub fn black_hole() -> Self {
        let held = Way { held: true, bytes_per_second: None };
        Self { forth: held, back: held, ..Self::default() }
    }

    /// Every connection is reset.
    pub fn reset() -> Self {
        Self { resets: true, ..Self::default() }
    }

    /// Late by `delay` and up to `jitter` more.
    pub fn late(delay: Duration, jitter: Duration) -> Self {
        Self { delay, jitter, ..Self::default() }
    }

    /// A bandwidth in each direction.
    pub fn narrow(bytes_per_second: u64) -> Self {
        let narrow = Way { held: false, bytes_per_second: Some(bytes_per_second) };
        Self { forth: narrow, back: narrow, ..Self::default() }
    }
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forth,
    Back,
}

#[derive(Debug)]
struct Shared {
    target: watch::Sender<Option<SocketAddr>>,
    weather: watch::Sender<Weather>,
    /// Counts the cuts: every connection that is open ends at a new one.
    cuts: watch::Sender<u64>,
    /// Of the next so many large parts that go forth one bit is flipped each.
    flips: AtomicU32,
    /// After so many more bytes that go forth, all connections are cut.
    cut_after: AtomicU64,
    passed: [AtomicU64; 2],
    random: Mutex<Random>,
    words: Mutex<Vec<Words>>,
}

/// Bytes that go forth, and as many others that arrive in their place.
type Words = (Vec<u8>, Vec<u8>);

/// A running proxy; its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port; connections wait until there is a target.
    pub async fn start(seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: watch::Sender::new(None),
            weather: watch::Sender::new(Weather::default()),
            cuts: watch::Sender::new(0),
            flips: AtomicU32::new(0),
            cut_after: AtomicU64::new(NEVER),
            passed: [AtomicU64::new(0), AtomicU64::new(0)],
            random: Mutex::new(Random::new(seed)),
            words: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&serving)));
            }
        });
        Ok(Self { address, shared, accepting })
    }

    /// HOST:PORT to dial.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// New connections go to this HOST:PORT.
    pub fn forward_to(&self, target: &str) -> Result<()> {
        let Ok(target) = target.parse() else { bail!("{target} is no address") };
        self.shared.target.send_replace(Some(target));
        Ok(())
    }

    /// Changes the weather, for open connections too.
    pub fn set(&self, weather: Weather) {
        self.shared.weather.send_replace(weather);
        if weather.resets {
            self.cut();
        }
    }

    /// Resets all open connections.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Resets all open connections after `bytes` more have gone forth, in the middle of whatever they belong to.
    pub fn cut_after(&self, bytes: u64) {
        self.shared.cut_after.store(bytes, Ordering::SeqCst);
    }

    /// Flips one bit in each of the next `parts` large parts that go forth.
    pub fn flip(&self, parts: u32) {
        self.shared.flips.store(parts, Ordering::SeqCst);
    }

    /// Where a new connection begins with them (in its first 4 KiB), these bytes arrive as others of the same length.
    pub fn reword(&self, words: Vec<(Vec<u8>, Vec<u8>)>) {
        *self.shared.words.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    /// Bits that are still to be flipped.
    pub fn flips_left(&self) -> u32 {
        self.shared.flips.load(Ordering::SeqCst)
    }

    /// Bytes that went forth, and back.
    pub fn passed(&self) -> (u64, u64) {
        let [forth, back] = &self.shared.passed;
        (forth.load(Ordering::SeqCst), back.load(Ordering::SeqCst))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.cut();
    }
}

impl Shared {
    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    fn way(&self, direction: Direction) -> Way {
        let weather = self.weather.borrow();
        match direction {
            Direction::Forth => weather.forth,
            Direction::Back => weather.back,
        }
    }

    /// When a part that came now may go on.
    fn due(&self) -> Instant {
        let weather = *self.weather.borrow();
        let most = weather.jitter.as_millis() as u64 + 1;
        let jitter = self.random.lock().unwrap_or_else(PoisonError::into_inner).pause(0..most);
        Instant::now() + weather.delay + jitter
    }

    /// Flips a bit of a large part, if one is to be flipped.
    fn damage(&self, part: &mut [u8]) {
        // Smaller ones are mostly acknowledgements of HTTP/2.
        if part.len() < 128 {
            return;
        }
        let take = |left: u32| left.checked_sub(1);
        if self.flips.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            let place = random.within(0..part.len() as u64) as usize;
            part[place] ^= 1 << random.within(0..8);
        }
    }

    /// Puts other words into a part of a connection's beginning.
    fn reword(&self, part: &mut [u8]) {
        for (from, to) in self.words.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let found = part.windows(from.len()).position(|window| window == from);
            if let Some(found) = found.filter(|_| from.len() == to.len()) {
                part[found..found + to.len()].copy_from_slice(to);
            }
        }
    }

    /// Number of `bytes` that may still pass before the planned cut.
    fn before_cut(&self, bytes: usize) -> usize {
        let left = self.cut_after.load(Ordering::SeqCst);
        usize::try_from(left).map_or(bytes, |left| left.min(bytes))
    }

    /// Counts bytes that went; true: the planned cut is due.
    fn count(&self, direction: Direction, bytes: usize) -> bool {
        self.passed[direction as usize].fetch_add(bytes as u64, Ordering::SeqCst);
        if direction == Direction::Back {
            return false;
        }
        let take = |left: u64| (left != NEVER).then(|| left.saturating_sub(bytes as u64));
        let had = self.cut_after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        let due = had.is_ok_and(|had| had <= bytes as u64);
        if due {
            self.cut_after.store(NEVER, Ordering::SeqCst);
        }
        due
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let (mut cuts, mut targets) = (shared.cuts.subscribe(), shared.target.subscribe());
    cuts.mark_unchanged();
    if shared.weather.borrow().resets {
        let _ = set_socket_linger(&stream, Some(Duration::ZERO));
        return;
    }
    let connected = async {
        let target = *targets.wait_for(Option::is_some).await.ok()?;
        TcpStream::connect(target?).await.ok()
    };
    let Some(target) = connected.await else { return };
    for stream in [&stream, &target] {
        let _ = stream.set_nodelay(true);
    }
    let both = async {
        tokio::join!(
            pass(&stream, &target, Direction::Forth, &shared),
            pass(&target, &stream, Direction::Back, &shared)
        )
    };
    tokio::select! {
        _ = both => (),
        _ = cuts.changed() => {
            // What closes them now is a reset.
            for stream in [&stream, &target] {
                let _ = set_socket_linger(stream, Some(Duration::ZERO));
            }
        }
    }
}

/// Passes one direction on until its end, and then the end.
async fn pass(from: &TcpStream, to: &TcpStream, direction: Direction, shared: &Shared) {
    let (parts, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(MOST_PARTS);
    let read = async move {
        let (mut buffer, mut came) = (vec![0; PART_BYTES], 0);
        loop {
            if from.readable().await.is_err() {
                return;
            }
            match from.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    if direction == Direction::Forth && came < BEGINNING {
                        shared.reword(&mut buffer[..count]);
                    }
                    came += count;
                    if parts.send((shared.due(), buffer[..count].to_vec())).await.is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => (),
                Err(_) => return,
            }
        }
    };
    let write = async {
        while let Some((due, part)) = queued.recv().await {
            sleep_until(due).await;
            if send(to, part, direction, shared).await.is_err() {
                return;
            }
        }
        let _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
    };
    tokio::join!(read, write);
}

/// Writes one part as the weather lets it.
async fn send(
    to: &TcpStream,
    mut part: Vec<u8>,
    direction: Direction,
    shared: &Shared,
) -> std::io::Result<()> {
    if direction == Direction::Forth {
        shared.damage(&mut part);
    }
    let mut weather = shared.weather.subscribe();
    let mut rest = &part[..];
    while !rest.is_empty() {
        while shared.way(direction).held {
            if weather.changed().await.is_err() {
                return Ok(());
            }
        }
        let rate = shared.way(direction).bytes_per_second;
        let slice = if rate.is_some() { SLICE_BYTES.min(rest.len()) } else { rest.len() };
        let slice = if direction == Direction::Forth { shared.before_cut(slice) } else { slice };
        to.writable().await?;
        let written = match to.try_write(&rest[..slice]) {
            Ok(written) => written,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        rest = &rest[written..];
        if shared.count(direction, written) {
            shared.cut();
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        if let Some(rate) = rate {
            sleep(Duration::from_secs_f64(written as f64 / rate.max(1) as f64)).await;
        }
    }
    Ok(())
}
