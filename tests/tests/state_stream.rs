//! A state that is larger than the memory that it may take is written, hashed, read back, and streamed to a second process.
//!
//! For a larger one: `RINGTUNE_STATE_BYTES=6442450944 cargo nextest run --release --workspace -E 'binary(state_stream)'
//! --no-capture`.

use std::{
    collections::BTreeMap,
    env, fs, io,
    net::{Shutdown, TcpStream},
    path::Path,
    process::Stdio,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use ringtune_shared::{
    checkpoint::{self, About, CheckpointHeader, Numerics},
    ids::ContentHash,
    state::{
        ChunkPlace, Decoder, Dtype, Encoded, Encoder, FileSink, FromTensors, Hashing, State, StateError,
        StateSource, TensorInfo, TensorList, TensorsHash, transfer,
    },
};
use ringtune_tests::{Sandbox, process::finish_child};
use tokio::{net::TcpListener, process::Command};

const TENSORS: u64 = 2000;
const BYTES: u64 = 600_000_000;
/// Of either process, whatever the state's size.
const MOST_MEMORY: u64 = 200_000_000;
/// Variables of the second process: the first one's address, and the target file.
const ADDRESS: &str = "RINGTUNE_STATE_ADDRESS";
const FILE: &str = "RINGTUNE_STATE_FILE";

/// A state that nobody has: every number is made when it is asked for.
struct MadeUp(TensorList);

impl MadeUp {
    /// About so many bytes: every hundredth tensor is large, and the types take turns.
    fn new(bytes: u64) -> Result<Self> {
        let types = [Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::U8, Dtype::I64];
        let weight = |number: u64| if number.is_multiple_of(100) { 100 } else { 1 };
        let all: u64 = (0..TENSORS).map(weight).sum();
        let tensor = |number: u64| {
            let dtype = types[(number % 5) as usize];
            let numbers = bytes * weight(number) / all * 8 / dtype.bitsize() as u64;
            TensorInfo::new(format!("unet.blocks.{number}.weight"), dtype, vec![numbers / 4, 4])
        };
        Ok(Self(TensorList::new((0..TENSORS).map(tensor).collect::<Result<_, _>>()?)?))
    }
}

impl State for MadeUp {
    fn source(&self) -> Result<Box<dyn StateSource + '_>, StateError> {
        let fill = |place: ChunkPlace, into: &mut [u8]| {
            let first = ((place.tensor as u64) << 40) + place.offset / 8;
            for (number, word) in into.chunks_mut(8).enumerate() {
                let bytes = mixed(first + number as u64).to_le_bytes();
                word.copy_from_slice(&bytes[..word.len()]);
            }
            Ok(())
        };
        Ok(Box::new(FromTensors::new(self.0.clone(), fill)))
    }
}

/// SplitMix64. Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn about() -> About {
    About {
        step: 1000,
        version: "0.2.0".to_owned(),
        model_hash: "m".to_owned(),
        data_hash: "d".to_owned(),
        options: BTreeMap::new(),
        numerics: Numerics { class: "c".to_owned(), threads_per_rank: 2, precision: "bf16".to_owned() },
        provenance: "c/threads-2".to_owned(),
    }
}

/// The most memory that this process has needed since [`forget`]. Pages of files count only where they are mapped: those
/// of the programs, a few megabytes.
fn most_memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Begins to count anew. Source: Documentation/filesystems/proc.rst, clear_refs.
fn forget() -> Result<()> {
    Ok(fs::write("/proc/self/clear_refs", "5")?)
}

#[test]
fn memory_that_is_used_is_seen() -> Result<()> {
    forget()?;
    let before = most_memory()?;
    let used = vec![1u8; 100_000_000];
    let after = most_memory()?;
    ensure!(after - before > 90_000_000 && used.iter().all(|byte| *byte == 1), "{before} and {after}");
    Ok(())
}

#[tokio::test]
async fn a_state_larger_than_the_memory_it_takes_goes_to_a_file_and_to_another_process() -> Result<()> {
    let wanted = match env::var("RINGTUNE_STATE_BYTES") {
        Ok(text) => text.parse().context("RINGTUNE_STATE_BYTES")?,
        Err(_) => BYTES,
    };
    forget()?;
    let sandbox = Sandbox::new()?;
    let file = sandbox.path("checkpoint");
    let (path, mut clock) = (file.clone(), Clock(Instant::now()));
    // 1. To a file; the same bytes have the same name when nobody keeps them.
    let written = tokio::task::spawn_blocking(move || -> Result<Encoded> {
        let state = MadeUp::new(wanted)?;
        ensure!(state.0.tensors().len() as u64 == TENSORS && state.0.bytes() > wanted / 10 * 9);
        let written = checkpoint::write(&path, &about(), &BTreeMap::new(), &state)?;
        clock.lap("written", written.bytes);
        ensure!(fs::metadata(&path)?.len() == written.bytes);
        let tensors = TensorsHash::of(&mut *state.source()?)?;
        let metadata = checkpoint::metadata(&about(), &BTreeMap::new(), tensors)?;
        ensure!(Encoder::hash(metadata, &mut *state.source()?)? == written, "the file has another name");
        clock.lap("hashed", written.bytes);
        // 2. Read back: the header alone, and all of it.
        let mut reader = Hashing::new(fs::File::open(&path)?);
        let header = CheckpointHeader::read(&mut reader, written.bytes)?;
        ensure!(header.tensors == state.0 && reader.bytes() < 1_000_000, "{} bytes", reader.bytes());
        let whole = checkpoint::OpenCheckpoint::new(Hashing::new(fs::File::open(&path)?), written.bytes)?;
        ensure!(whole.verify()?.hash() == written.sha256, "it reads back as something else");
        clock.lap("read back", written.bytes);
        Ok(written)
    })
    .await??;
    // 3. To another process, from the file, as to a neighbour.
    let (arrived, theirs) = stream_to_second_process(&file, &sandbox.path("arrived")).await?;
    ensure!(arrived == written.sha256, "{arrived} arrived, {} was sent", written.sha256);
    let ours = most_memory()?;
    report(&format!("{} bytes; memory at most: {ours} and {theirs} bytes", written.bytes));
    ensure!(ours <= MOST_MEMORY, "{ours} bytes of memory");
    ensure!(theirs <= MOST_MEMORY, "{theirs} bytes of memory in the second process");
    Ok(())
}

/// The received state, and the peak memory.
async fn stream_to_second_process(file: &Path, target: &Path) -> Result<(ContentHash, u64)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    // This program again, which then runs one other test.
    let mut child = Command::new(env::current_exe()?)
        .args(["--exact", "the_second_process", "--nocapture"])
        .env(ADDRESS, listener.local_addr()?.to_string())
        .env(FILE, target)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()?;
    let stream = tokio::select! {
        accepted = listener.accept() => accepted?.0.into_std()?,
        ended = child.wait() => bail!("the second process ended: {}", ended?),
    };
    let (path, mut clock) = (file.to_owned(), Clock(Instant::now()));
    let sending = tokio::task::spawn_blocking(move || -> Result<()> {
        stream.set_nonblocking(false)?;
        let mut checkpoint = checkpoint::open(&path)?;
        let header = &checkpoint.header;
        let metadata = checkpoint::metadata(&header.about, &header.numbers, header.tensors_sha256)?;
        let mut encoder = Encoder::new(metadata, io::BufWriter::with_capacity(1 << 20, stream));
        transfer(&mut checkpoint.source, &mut encoder)?;
        let sent = encoder.encoded().context("not sent")?;
        encoder.into_inner().into_inner()?.shutdown(Shutdown::Write)?;
        clock.lap("sent", sent.bytes);
        Ok(())
    });
    sending.await??;
    let said = finish_child(child).await?.expect_code(0)?.stdout;
    let line = said.lines().find_map(|line| line.strip_prefix("arrived ")).with_context(|| said.clone())?;
    let (hash, memory) = line.split_once(' ').context("two words")?;
    Ok((hash.parse()?, memory.parse()?))
}

/// Takes in what the first process streams. Nothing where there is none: it is no test by itself.
#[test]
fn the_second_process() -> Result<()> {
    let (Ok(address), Ok(file)) = (env::var(ADDRESS), env::var(FILE)) else { return Ok(()) };
    forget()?;
    let mut decoder = Decoder::new(Hashing::new(TcpStream::connect(address)?), None)?;
    let mut sink = FileSink::create(Path::new(&file), decoder.header().metadata.clone())?;
    transfer(&mut decoder, &mut sink)?;
    let (kept, came) = (sink.encoded().context("not kept")?, decoder.into_inner());
    ensure!(kept == Encoded { sha256: came.hash(), bytes: came.bytes() }, "it is kept as something else");
    println!("\narrived {} {}", kept.sha256, most_memory()?);
    Ok(())
}

/// Says how long things take.
struct Clock(Instant);

impl Clock {
    fn lap(&mut self, what: &str, bytes: u64) {
        let seconds = self.0.elapsed().as_secs_f64();
        report(&format!("{what} in {seconds:.1} s, {:.0} MB/s", bytes as f64 / 1e6 / seconds));
        self.0 = Instant::now();
    }
}

#[expect(clippy::print_stderr, reason = "figures for whoever runs it with --no-capture")]
fn report(line: &str) {
    eprintln!("{line}");
}
