//! Each fault does what it says, and is over when it is mended.

use std::{
    fs,
    io::ErrorKind,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox,
    chaos::{
        Ground, Row,
        node::{clock, descriptors, disk},
        proxy::{Proxy, Way, Weather},
        stage::Stage,
    },
    wait::{SOON, until},
};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// What does not come within this does not come.
const NEVER: Duration = Duration::from_millis(400);

const TEN_YEARS: i64 = 10 * 365 * 24 * 3_600;

/// A proxy, and both ends of one connection through it.
async fn connection() -> Result<(Proxy, TcpStream, TcpStream)> {
    let proxy = Proxy::start(5).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    proxy.forward_to(&listener.local_addr()?.to_string())?;
    let near = TcpStream::connect(proxy.address()).await?;
    let (far, _) = listener.accept().await?;
    near.set_nodelay(true)?;
    Ok((proxy, near, far))
}

async fn receive(stream: &mut TcpStream, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    timeout(SOON, stream.read_exact(&mut bytes)).await??;
    Ok(bytes)
}

#[tokio::test]
async fn a_proxy_passes_both_directions_and_their_ends() -> Result<()> {
    let (proxy, mut near, mut far) = connection().await?;
    let large: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    let (sent, received) = tokio::join!(near.write_all(&large), receive(&mut far, large.len()));
    sent?;
    ensure!(received? == large, "other bytes came");
    far.write_all(b"answer").await?;
    ensure!(receive(&mut near, 6).await? == b"answer");
    ensure!(proxy.passed() == (large.len() as u64, 6), "{:?}", proxy.passed());
    near.shutdown().await?;
    ensure!(timeout(SOON, far.read(&mut [0])).await?? == 0, "the end did not come");
    Ok(())
}

#[tokio::test]
async fn late_bytes_come_late_and_in_order() -> Result<()> {
    let (proxy, mut near, mut far) = connection().await?;
    proxy.set(Weather::late(Duration::from_millis(100), Duration::from_millis(50)));
    let start = Instant::now();
    for byte in 0..50 {
        near.write_all(&[byte]).await?;
        tokio::task::yield_now().await;
    }
    ensure!(receive(&mut far, 50).await? == (0..50).collect::<Vec<u8>>());
    ensure!(start.elapsed() >= Duration::from_millis(100), "after {:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_narrow_link_takes_its_time() -> Result<()> {
    let (proxy, mut near, mut far) = connection().await?;
    proxy.set(Weather::narrow(100_000));
    let start = Instant::now();
    near.write_all(&[7; 50_000]).await?;
    receive(&mut far, 50_000).await?;
    ensure!(start.elapsed() >= Duration::from_millis(450), "50 KB at 100 KB/s took {:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_black_hole_keeps_the_connection_and_what_was_sent() -> Result<()> {
    let (proxy, mut near, mut far) = connection().await?;
    proxy.set(Weather::black_hole());
    near.write_all(b"forth").await?;
    far.write_all(b"back").await?;
    ensure!(timeout(NEVER, far.read(&mut [0])).await.is_err(), "something came through");
    ensure!(timeout(NEVER, near.read(&mut [0])).await.is_err(), "something came back");
    proxy.set(Weather::default());
    ensure!(receive(&mut far, 5).await? == b"forth");
    ensure!(receive(&mut near, 4).await? == b"back");
    Ok(())
}

#[tokio::test]
async fn a_black_hole_of_one_way_lets_the_other_pass() -> Result<()> {
    let (proxy, mut near, mut far) = connection().await?;
    proxy.set(Weather { forth: Way { held: true, bytes_per_second: None }, ..Weather::default() });
    near.write_all(b"forth").await?;
    far.write_all(b"back").await?;
    ensure!(receive(&mut near, 4).await? == b"back");
    ensure!(timeout(NEVER, far.read(&mut [0])).await.is_err(), "something came through");
    Ok(())
}

#[tokio::test]
async fn a_cut_is_a_reset_in_the_middle() -> Result<()> {
    let (proxy, mut near, mut far) = connection().await?;
    proxy.cut_after(1_000);
    near.write_all(&[1; 400]).await?;
    receive(&mut far, 400).await?;
    near.write_all(&[2; 5_000]).await?;
    let mut rest = Vec::new();
    let error = timeout(SOON, far.read_to_end(&mut rest)).await?.err().context("it ended in peace")?;
    ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
    ensure!(rest.len() <= 600, "{} bytes came after it", rest.len());
    ensure!(proxy.passed().0 == 1_000, "{:?}", proxy.passed());
    ensure!(timeout(SOON, near.read(&mut [0])).await?.is_err(), "the near end was not reset");
    // It is over: another connection lasts.
    TcpStream::connect(proxy.address()).await?.write_all(&[3; 5_000]).await?;
    Ok(())
}

#[tokio::test]
async fn so_many_bits_flip_and_no_more() -> Result<()> {
    let (proxy, mut near, mut far) = connection().await?;
    proxy.flip(2);
    let mut different = 0;
    for _ in 0..4 {
        near.write_all(&[0; 1_000]).await?;
        different += receive(&mut far, 1_000).await?.iter().map(|byte| byte.count_ones()).sum::<u32>();
    }
    ensure!(different == 2 && proxy.flips_left() == 0, "{different} bits, {} left", proxy.flips_left());
    Ok(())
}

#[tokio::test]
async fn words_arrive_as_others_where_a_connection_begins_and_nowhere_else() -> Result<()> {
    let (proxy, first, _far) = connection().await?;
    drop(first);
    proxy.reword(vec![(b"this build".to_vec(), b"some other".to_vec())]);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    proxy.forward_to(&listener.local_addr()?.to_string())?;
    let mut near = TcpStream::connect(proxy.address()).await?;
    let (mut far, _) = listener.accept().await?;
    near.write_all(b"I am this build.").await?;
    let begins = receive(&mut far, 16).await?;
    ensure!(begins == b"I am some other.", "{begins:?}");
    near.write_all(&[b'.'; 4096]).await?;
    receive(&mut far, 4096).await?;
    near.write_all(b"I am this build.").await?;
    ensure!(receive(&mut far, 16).await? == b"I am this build.");
    Ok(())
}

/// Whether a daemon's HTTP page answers at once.
async fn answers(address: &str) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        // Over TLS it is said that the port speaks TLS.
        anyhow::Ok(answer.starts_with(b"HTTP/1."))
    };
    matches!(timeout(NEVER, ask).await, Ok(Ok(true)))
}

async fn answers_soon(address: &str) -> Result<()> {
    until("it answers", SOON, || async { Ok(answers(address).await.then_some(())) }).await
}

#[tokio::test]
async fn a_stopped_daemon_is_silent_until_it_continues() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(mut stage) = Stage::set(&sandbox, &Row::new("row", 1), 1).await? else { return Ok(()) };
    let http = stage.cluster.workers[0].http.clone();
    answers_soon(&http).await?;
    stage.cluster.signal("worker-1", Signal::STOP)?;
    // Where the machine is busy, its threads do not all stop at once.
    until("it is silent", SOON, || async { Ok((!answers(&http).await).then_some(())) }).await?;
    ensure!(!answers(&http).await, "it answers although it is stopped");
    stage.cluster.signal("worker-1", Signal::CONT)?;
    answers_soon(&http).await
}

#[tokio::test]
async fn a_daemon_without_descriptors_takes_no_connection_until_it_has_some() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(stage) = Stage::set(&sandbox, &Row::new("row", 1), 1).await? else { return Ok(()) };
    let worker = &stage.cluster.workers[0];
    answers_soon(&worker.http).await?;
    let had = descriptors::take(worker)?;
    ensure!(!answers(&worker.http).await, "it takes a connection without a descriptor");
    descriptors::give(worker, had)?;
    answers_soon(&worker.http).await
}

#[tokio::test]
async fn a_full_disk_takes_no_byte_until_there_is_room() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let row = Row::new("row", 1).on(Ground::SmallDisks(8 << 20));
    let Some(stage) = Stage::set(&sandbox, &row, 1).await? else { return Ok(()) };
    let (worker, folder) = (&stage.cluster.workers[0], sandbox.path("worker-1"));
    let id = worker.process_id().context("it runs")?;
    let file = format!("/proc/{id}/root{}/file", folder.display());
    fs::write(&file, [1; 5_000])?;
    disk::fill(worker, &folder)?;
    let error = fs::write(&file, [1; 50_000]).err().context("there is room on a full disk")?;
    ensure!(error.kind() == ErrorKind::StorageFull, "{error}");
    disk::free(worker, &folder)?;
    fs::write(&file, [1; 50_000])?;
    ensure!(!folder.join("file").exists(), "it is not a disk of its own");
    Ok(())
}

#[tokio::test]
async fn a_clock_jumps_for_one_daemon_alone() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(mut stage) = Stage::set(&sandbox, &Row::new("row", 1).on(Ground::Clocks), 1).await? else {
        return Ok(());
    };
    // The coordinator's times of events go on from its start; those of its log are the clock's.
    let year = |label: &str| -> Result<i32> {
        let log = fs::read_to_string(sandbox.path(&format!("{label}.log")))?;
        let last = log.lines().last().context("a line")?;
        Ok(last.split('-').next().unwrap_or_default().parse()?)
    };
    let before = year("coordinator")?;
    clock::jump(&sandbox, "coordinator", TEN_YEARS)?;
    // It writes down that it ends.
    stage.cluster.signal("coordinator", Signal::TERM)?;
    let jumped = || async { Ok((year("coordinator")? >= before + 9).then_some(())) };
    until("the clock jumps", SOON, jumped).await?;
    ensure!(year("worker-1")? <= before + 1, "the worker's clock jumped, too");
    Ok(())
}

/// Whether a connection from this machine to a node comes about.
async fn reaches(address: &str) -> bool {
    matches!(timeout(NEVER, TcpStream::connect(address)).await, Ok(Ok(_)))
}

async fn reaches_soon(address: &str) -> Result<()> {
    until("it is reached", SOON, || async { Ok(reaches(address).await.then_some(())) }).await
}

#[tokio::test]
async fn a_cable_is_cut_and_mended_and_what_one_node_sends_is_lost() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let row = Row::new("row", 2).on(Ground::Namespaces);
    let Some(stage) = Stage::set(&sandbox, &row, 1).await? else { return Ok(()) };
    let network = stage.network.as_ref().context("a network")?;
    let [first, second] = [0, 1].map(|index: usize| stage.cluster.workers[index].grpc.clone());
    reaches_soon(&first).await?;
    network.cut(1)?;
    ensure!(!reaches(&first).await, "it is reached without a cable");
    ensure!(reaches(&second).await, "the other cable was cut, too");
    network.mend(1)?;
    reaches_soon(&first).await?;
    // What comes to it arrives; what it answers is lost.
    network.lose(1, 0)?;
    ensure!(!reaches(&first).await, "its answer came");
    network.find(1, 0)?;
    reaches_soon(&first).await
}
